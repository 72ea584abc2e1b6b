"""Priority groups of a pull consumer: which of the waiting requests may get the next messages.

Rules: as nats-server. They live in memory: after another leader was elected, the first request gets the pin.

| policy        | a request may get messages                                                             |
|---------------|----------------------------------------------------------------------------------------|
| overflow      | if as many are pending, or in hand, as it says; always if it says neither              |
| prioritized   | if none with a lower number waits                                                      |
| pinned_client | if it has the pin: the first one without a pin, whose client is there, gets it, until  |
|               | the client is silent for `priority_timeout`                                            |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b

from penstock.hot.deliveries import UNLIMITED, Pull
from penstock.jetstream.readers.config.reader_config import ReaderConfig
from penstock.jetstream.readers.pulls import PullPriority, frame, status
from penstock.jetstream.readers.reader import ended

PIN_HEADER = b"Nats-Pin-Id"
_NO_PRIORITY = PullPriority()
_HEADERS_BEGIN = b"NATS/1.0\r\n"


class Priorities:
    """The requests of one consumer, and who has the pin."""

    __slots__ = ("_asked", "_config", "_numbers", "_seed", "is_passed_over", "pin", "pin_due_us", "pinned_wall_us")

    def __init__(self, config: ReaderConfig, seed: bytes) -> None:
        """`seed`: bytes of this consumer alone, of which pins are made."""
        self._config = config
        self._seed = seed
        self._numbers = 0
        self._asked: dict[int, tuple[Pull, PullPriority]] = {}
        self.pin = ""
        self.pinned_wall_us = 0
        self.pin_due_us = UNLIMITED
        self.is_passed_over = False  # requests wait, and none of them may get messages

    def configure(self, config: ReaderConfig) -> None:
        """Take another config."""
        self._config = config

    def refusal(self, asked: PullPriority, now_us: int) -> bytes:
        """Return the status that refuses a request; empty: it is taken."""
        if not asked.is_given:
            return b""
        if not asked.group:
            return status(400, "Bad Request - Priority Group missing")
        if asked.group not in self._config.priority_groups:
            return status(400, "Bad Request - Invalid Priority Group")
        if self.pin and asked.pin == self.pin:
            self.pin_due_us = now_us + self._config.pin_us
        elif self.pin and asked.pin:
            return status(423, "Nats-Pin-Id mismatch")
        return b""

    def ask(self, pull: Pull, asked: PullPriority, waiting: Iterable[Pull]) -> None:
        """Note the priority of a request that waits."""
        if len(self._asked) >= 64:
            kept = {id(one) for one in waiting}
            self._asked = {number: one for number, one in self._asked.items() if number in kept}
        self._asked[id(pull)] = pull, asked

    def _of(self, pull: Pull) -> PullPriority:
        found = self._asked.get(id(pull))
        return found[1] if found is not None and found[0] is pull else _NO_PRIORITY

    def set_aside(
        self, pulls: deque[Pull], pending: int, in_hand: int, now: tuple[int, int], *, ready: int
    ) -> tuple[list[Pull], list[bytes]]:
        """Take the requests out that may get no messages now; return them, and the ends of others.

        `pending`: messages that may be delivered; `in_hand`: those without an ack; `now`: wall and elapsed time;
        `ready`: how many of the first requests may get a pin.
        """
        waiting = [*pulls]
        ends: list[bytes] = []
        match self._config.priority:
            case "overflow":
                chosen = [one for one in waiting if self._overflows(self._of(one), pending, in_hand)]
            case "prioritized":
                least = min((self._of(one).priority for one in waiting), default=0)
                chosen = [one for one in waiting if self._of(one).priority == least]
            case _:
                chosen = self._pinned(waiting, ready, ends, now)
        pulls.clear()
        pulls.extend(chosen)
        taken = {id(one) for one in chosen}
        self.is_passed_over = bool(waiting) and not chosen
        return [one for one in waiting if id(one) not in taken], ends

    def messages_left(self, pulls: Iterable[Pull], pending: int, in_hand: int) -> int:
        """Return after how many messages the chosen requests are looked at again: each message lowers `pending`."""
        if self._config.priority != "overflow":
            return UNLIMITED
        limits = (self._of(one) for one in pulls)
        return min(
            (
                pending - one.min_pending + 1
                for one in limits
                if one.min_pending > 0 and not 0 < one.min_ack_pending <= in_hand
            ),
            default=UNLIMITED,
        )

    @staticmethod
    def _overflows(asked: PullPriority, pending: int, in_hand: int) -> bool:
        if not (asked.min_pending or asked.min_ack_pending):
            return True
        return 0 < asked.min_pending <= pending or 0 < asked.min_ack_pending <= in_hand

    def _pinned(self, waiting: list[Pull], ready: int, ends: list[bytes], now: tuple[int, int]) -> list[Pull]:
        """Return the requests with the pin, and end those with another one; they leave `waiting`."""
        without_pin = (one for one in waiting[:ready] if not self._of(one).pin)
        if not self.pin and (first := next(without_pin, None)) is not None:
            self._numbers += 1
            drawn = b"%b %d %d" % (self._seed, self._numbers, now[1])
            self.pin = blake2b(drawn, digest_size=11).hexdigest()
            self.pinned_wall_us, self.pin_due_us = now[0], now[1] + self._config.pin_us
            self._asked[id(first)] = first, self._of(first)._replace(pin=self.pin)
        wrong = [one for one in waiting if self._of(one).pin not in ("", self.pin)]
        ends += [frame(one.inbox, ended(one, 423, "Nats-Wrong-Pin-Id")) for one in wrong]
        for one in wrong:
            waiting.remove(one)
        return [one for one in waiting if self.pin and self._of(one).pin == self.pin]

    def unpin(self) -> bool:
        """Take the pin away; False: no client has it."""
        had = bool(self.pin)
        self.pin, self.pinned_wall_us, self.pin_due_us = "", 0, UNLIMITED
        return had


def with_pin(frames: bytes | bytearray, pin: str) -> bytearray:
    """Return frames with the header that tells the pin."""
    out = bytearray()
    line_of_pin = b"%b: %b\r\n" % (PIN_HEADER, pin.encode())
    at = 0
    while at < len(frames):
        line_end = frames.index(b"\r\n", at)
        kind, *parts = bytes(frames[at:line_end]).split(b" ")
        size = int(parts[-1])
        body = bytes(frames[line_end + 2 : line_end + 2 + size])
        if kind == b"HMSG":
            head_size = int(parts[-2])
            parts = parts[:-2]
            block, value = body[:head_size], body[head_size:]
            first_end = block.index(b"\r\n") + 2
            block = block[:first_end] + line_of_pin + block[first_end:]
        else:
            parts = parts[:-1]
            block, value = _HEADERS_BEGIN + line_of_pin + b"\r\n", body
        out += b"HMSG %b %d %d\r\n%b%b\r\n" % (b" ".join(parts), len(block), len(block) + len(value), block, value)
        at = line_end + 2 + size + 2
    return out
