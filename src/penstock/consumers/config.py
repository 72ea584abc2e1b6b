"""The numbers of a consumer's config that the core needs; names, filters and JSON stay with the gateway.

Rules: a config is checked when it is made, so that one that was read from a row is as sound as one from a request.
"""

from __future__ import annotations

import re

import msgspec

ORDER_NONE = 0
ORDER_KEY = 1
ORDER_SUBJECT = 2
ORDER_TOKEN_FIRST = 3
"""Orders: of none, of the message's key, of its subject, and from here on of token 1, 2, … of its subject."""

TOKENS_MAX = 32  # that an order may name
BACKOFFS_MAX = 100
WAIT_US_MAX = 366 * 86_400_000_000
WAIT_US_MIN = 1_000
DELIVERIES_MAX = 2**27
ACK_PENDING_MAX = 200_000
"""Messages in hand of one consumer at most, whatever its client asks for: a snapshot, which has some 10 bytes of each,
and 30 at the worst, has to fit one row (`CONSUMER_ROW_BYTES_MAX`).
"""
PARKED_MAX = 10_000
"""Messages of one consumer that wait for an earlier one of their key."""


_TOKEN = re.compile(r"token:([1-9]\d?)")


def order_of(text: str) -> int:
    """Return the order that a text names: `key`, `subject` or `token:N`. ValueError."""
    if text in ("key", "subject"):
        return ORDER_KEY if text == "key" else ORDER_SUBJECT
    token = _TOKEN.fullmatch(text)
    if token is None or int(token[1]) > TOKENS_MAX:
        raise ValueError(f"{text[:64]!r} is none of key, subject and token:1 to token:{TOKENS_MAX}")
    return ORDER_TOKEN_FIRST + int(token[1]) - 1


class AckConfig(msgspec.Struct, frozen=True):
    """The part of a consumer's config that the core needs. Times are µs."""

    ack_wait_us: int = 30_000_000
    backoff_us: tuple[int, ...] = ()
    """Wait of each delivery, the last one for all further ones; empty: `ack_wait_us`."""
    max_deliver: int = 0  # 0: no limit
    max_ack_pending: int = ACK_PENDING_MAX
    acks_all: bool = False
    """An ack is one for all messages up to it (ack policy "all")."""
    order: int = ORDER_NONE
    sample_percent: int = 0  # of the acks, to be told
    tells_terminated: bool = False
    """`+TERM` is left to the caller, who first writes the message elsewhere (dead letters)."""
    has_priority: bool = False  # a priority policy

    def __post_init__(self) -> None:
        """Raise ValueError if a number is out of its bounds."""
        waits = (self.ack_wait_us, *self.backoff_us)
        if not all(WAIT_US_MIN <= wait <= WAIT_US_MAX for wait in waits) or len(self.backoff_us) > BACKOFFS_MAX:
            raise ValueError(
                f"waits of {waits[:4]} µs: each is from {WAIT_US_MIN} to {WAIT_US_MAX}, {BACKOFFS_MAX} at most"
            )
        if not 0 <= self.max_deliver <= DELIVERIES_MAX:
            raise ValueError(f"max_deliver: {self.max_deliver} is not within 0 to {DELIVERIES_MAX}")
        if not 1 <= self.max_ack_pending <= ACK_PENDING_MAX:
            raise ValueError(f"max_ack_pending: {self.max_ack_pending} is not within 1 to {ACK_PENDING_MAX}")
        if not 0 <= self.order < ORDER_TOKEN_FIRST + TOKENS_MAX:
            raise ValueError(f"order {self.order} is none")
        if not 0 <= self.sample_percent <= 100:
            raise ValueError(f"sample_percent: {self.sample_percent} is not within 0 to 100")
        if self.acks_all and self.order:
            raise ValueError("an ack cannot be one for all messages up to it in an order by key")

    @property
    def is_ordered(self) -> bool:
        return self.order != ORDER_NONE

    @property
    def commits_first(self) -> bool:
        """True if a delivery is committed before it is sent (ADR 107, promise 2)."""
        return self.max_deliver > 0 or self.is_ordered or self.has_priority
