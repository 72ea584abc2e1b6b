"""Comparable numbers of what was sent and what came back: messages, bytes and checksums.

Rules: Every value byte goes through a CRC-32C, on both sides and for every product. `crc_sum` adds the checksums of the
single values, so it does not depend on the order in which several publishers' messages were stored. `crc_chain` is the
checksum of all values in sequence, which also verifies their order; it exists only with one publisher.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from crc32c import crc32c

_SUM_MASK = 2**64 - 1


class Content(msgspec.Struct, frozen=True):
    """Counts and checksums of messages. A checksum that was not computed is None: measured consumers chain only."""

    messages: int
    value_bytes: int
    crc_sum: int | None
    crc_chain: int | None


class Tally:
    """Accumulates a `Content`."""

    def __init__(self) -> None:
        self._messages = 0
        self._value_bytes = 0
        self._crc_sum = 0
        self._crc_chain = 0

    def add(self, values: Iterable[bytes | memoryview]) -> None:
        """Add values, in their order."""
        for value in values:
            self._messages += 1
            self._value_bytes += len(value)
            self._crc_sum += crc32c(value)
            self._crc_chain = crc32c(value, self._crc_chain)

    @property
    def messages(self) -> int:
        """Number of messages so far."""
        return self._messages

    def content(self, *, ordered: bool = True) -> Content:
        """Return the result; without `crc_chain` unless `ordered`."""
        chain = self._crc_chain if ordered else None
        return Content(self._messages, self._value_bytes, self._crc_sum & _SUM_MASK, chain)


def difference(sent: Content, found: Content) -> str | None:
    """Describe how `found` differs from `sent`; None if it does not."""
    if found.messages != sent.messages:
        return f"{sent.messages:,} messages were acked, {found.messages:,} came back"
    if found.value_bytes != sent.value_bytes:
        return f"{sent.value_bytes:,} bytes were acked, {found.value_bytes:,} came back"
    if sent.crc_sum is not None and found.crc_sum is not None and sent.crc_sum != found.crc_sum:
        return "what came back has another checksum than what was sent"
    if sent.crc_chain is not None and found.crc_chain is not None and sent.crc_chain != found.crc_chain:
        return "what came back is in another order than it was sent, or has other bytes"
    return None
