"""Messages of publishers, as sent to NATS or over the socket; and those of the compacted stream.

Rules: The compacted stream uses few keys at a time, each only for a while: so most messages are followed by another of
their key, and some tombstones by none. A tombstone has no value that identifies it, so each message of that stream has
a subject of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.base.config import StreamConfig
from penstock.testing.simulation.checks.compacted import CompactedRow

_IN_USE = 4  # keys
_MESSAGES_EACH = 8  # approximate messages of a key before it is retired
_KEYLESS, _TOMBSTONES = 9, 4  # one message in so many
_STRIDE = 7_919  # distance between the random numbers of successive messages


class SentMessage(NamedTuple):
    """One message. `name`: its unique identification; `value` None: a tombstone; `headers`: its NATS headers."""

    subject: bytes
    name: bytes
    value: bytes | None
    headers: bytes = b""
    key: bytes | None = None
    by: bytes = b""  # decides the partition: see `split`
    number: int = 0  # sequence of the messages with the same `by`; 0: the publisher did not wait

    @property
    def row(self) -> CompactedRow:
        """Key and tombstone flag, for compaction."""
        return CompactedRow(self.key, self.value is None)


def keyed(config: StreamConfig, number: int, chance: int, size_bytes: int = 0) -> SentMessage:
    """Make message number `number`, drawn with `chance`."""
    subject = config.subject.replace(">", str(number)).encode()
    value = (b"%b/" % subject).ljust(size_bytes, b".")
    chance += _STRIDE * number
    if chance % _KEYLESS == 0:
        return SentMessage(subject, value, value)
    chance //= _KEYLESS
    key = b"k%d" % (number // _MESSAGES_EACH + chance % _IN_USE)
    headers = b"NATS/1.0\r\nPenstock-Key: %b\r\n" % key
    if chance // _IN_USE % _TOMBSTONES == 0:
        return SentMessage(subject, subject, None, headers + b"Penstock-Tombstone: 1\r\n\r\n", key)
    return SentMessage(subject, value, value, headers + b"\r\n", key)
