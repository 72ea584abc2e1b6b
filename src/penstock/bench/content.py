"""What was sent and what came back, as numbers that can be compared: how many, how long, and checksums of the bytes.

Rules: every value byte goes through a CRC-32C, on both sides and for every product. `crc_sum` adds the checksums of
the single values, so it does not depend on the order in which several publishers met in the log; `crc_chain` is the
checksum of all values behind each other, which also tells their order, and is there only where one publisher sent
them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from crc32c import crc32c

_SUM_MASK = 2**64 - 1


class Content(msgspec.Struct, frozen=True):
    """Messages as numbers. `crc_sum` None: only the chain was taken, as by a consumer that is being measured."""

    messages: int
    value_bytes: int
    crc_sum: int | None
    crc_chain: int | None


class Tally:
    """Content, as it comes."""

    def __init__(self) -> None:
        self._messages = 0
        self._value_bytes = 0
        self._crc_sum = 0
        self._crc_chain = 0

    def add(self, values: Iterable[bytes | memoryview]) -> None:
        """Take these values, in their order."""
        for value in values:
            self._messages += 1
            self._value_bytes += len(value)
            self._crc_sum += crc32c(value)
            self._crc_chain = crc32c(value, self._crc_chain)

    @property
    def messages(self) -> int:
        """How many came so far."""
        return self._messages

    def content(self, *, ordered: bool = True) -> Content:
        """All that came; without the chain if their order means nothing."""
        chain = self._crc_chain if ordered else None
        return Content(self._messages, self._value_bytes, self._crc_sum & _SUM_MASK, chain)


def difference(sent: Content, found: Content) -> str | None:
    """How `found` differs from `sent`, in words; None if it does not."""
    if found.messages != sent.messages:
        return f"{sent.messages:,} messages were acked, {found.messages:,} came back"
    if found.value_bytes != sent.value_bytes:
        return f"{sent.value_bytes:,} bytes were acked, {found.value_bytes:,} came back"
    if sent.crc_sum is not None and found.crc_sum is not None and sent.crc_sum != found.crc_sum:
        return "what came back has another checksum than what was sent"
    if sent.crc_chain is not None and found.crc_chain is not None and sent.crc_chain != found.crc_chain:
        return "what came back is in another order than it was sent, or has other bytes"
    return None
