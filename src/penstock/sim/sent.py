"""What publishers send: one message, as it goes to NATS or over the socket; and those of the stream that is compacted.

Rules: of that stream few keys are in use at a time, each only for a while: so most messages are followed by another one
of their key, and some tombstones by none. A tombstone has no value to be known by, so each message there has a subject
of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.base.config import StreamConfig
from penstock.sim.compacted import Row

_IN_USE = 4  # keys
_MESSAGES_EACH = 8  # or so, before a key is used no more
_KEYLESS, _TOMBSTONES = 9, 4  # one message in so many
_STRIDE = 7_919  # from one message's chance to the next one's


class Message(NamedTuple):
    """One message. `name`: what it is known by; `value` None: a tombstone; `headers`: what goes to NATS with it."""

    subject: bytes
    name: bytes
    value: bytes | None
    headers: bytes = b""
    key: bytes | None = None
    by: bytes = b""  # what decides on its partition: see `split`
    number: int = 0  # of those that belong together, where one was sent after the other; 0: nobody waited

    @property
    def row(self) -> Row:
        """What counts of it for compaction."""
        return Row(self.key, self.value is None)


def keyed(config: StreamConfig, number: int, chance: int, size_bytes: int = 0) -> Message:
    """The message of this number; `chance` is what it is drawn by."""
    subject = config.subject.replace(">", str(number)).encode()
    value = (b"%b/" % subject).ljust(size_bytes, b".")
    chance += _STRIDE * number
    if chance % _KEYLESS == 0:
        return Message(subject, value, value)
    chance //= _KEYLESS
    key = b"k%d" % (number // _MESSAGES_EACH + chance % _IN_USE)
    headers = b"NATS/1.0\r\nPenstock-Key: %b\r\n" % key
    if chance // _IN_USE % _TOMBSTONES == 0:
        return Message(subject, subject, None, headers + b"Penstock-Tombstone: 1\r\n\r\n", key)
    return Message(subject, value, value, headers + b"\r\n", key)
