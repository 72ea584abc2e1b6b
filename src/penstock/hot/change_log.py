"""Changes of a table of pending messages, as bytes: runs of deliveries, acks and so on.

Rules: an operation of several neighbouring offsets is one run. `take` gives the bytes since the last call; applied to
the table as it was then, they make it what it is now (see `pending_rows.apply_change`). What gets longer than
LOG_BYTES_MAX is dropped: then only a snapshot tells what changed (`is_lost`).

    tag: the operation in the low 4 bits, the length - 1 in the high ones; 15: a varint follows, the length - 16

| operation | then                                   | what it says                                            |
|-----------|----------------------------------------|---------------------------------------------------------|
| CLOCK     | varint: ms                             | so much later than the operation before                 |
| DELIVER   | varint: gap                            | messages behind the position and a gap are delivered    |
| KEYED     | varint: gap; 4 bytes each              | the same, in an order by key: the hashes of their keys  |
| PARK      | varint: gap; 4 bytes each              | they wait for an earlier one of their key               |
| PASS      | varint: gap                            | the position goes on                                    |
| AGAIN     | zigzag                                 | delivered again, or at last                             |
| SETTLE    | zigzag                                 | acked or terminated                                     |
| NAK       | zigzag, varint: ms                     | to be delivered again after this time                   |
| PROGRESS  | zigzag                                 | in progress: the wait begins anew                       |
| GONE      | zigzag                                 | gone, or given up: as far as they are pending           |
| ALL       | zigzag                                 | acked, with all before the last one                     |
| RESET     | varint: offset                         | nothing is pending, and the position is there           |

A zigzag is the first offset, less the end of the run before that has one.
"""

from __future__ import annotations

from penstock.hot import memory

CLOCK = 0
DELIVER = 1
KEYED = 2
PARK = 3
PASS = 4
AGAIN = 5
SETTLE = 6
NAK = 7
PROGRESS = 8
GONE = 9
ALL = 10
RESET = 11

_CLOCK = 0  # the same for compiled code
_DELIVER = 1
_KEYED = 2
_PARK = 3
_PASS = 4
_AGAIN = 5
_SETTLE = 6
_NAK = 7
_PROGRESS = 8
_GONE = 9
_ALL = 10
_RESET = 11
_NONE = 15

LOG_BYTES_MAX = 256 * 1024
"""Of one change, before it is dropped for a snapshot."""
_LOG_BYTES_MAX = LOG_BYTES_MAX
_int = int


class ChangeLog:
    """The changes since the last `take`. `is_on`: they are noted. `position`: up to which it is noted."""

    __slots__ = ("_begin", "_bytes", "_end", "_hashes", "_op", "_ref", "_value", "is_lost", "is_on", "position")

    def __init__(self, position: _int) -> None:
        self.position = position
        self.is_on = True
        self.is_lost = False
        self._bytes = bytearray()
        self._hashes = bytearray()  # of the run
        self._op = _NONE  # the run that may still grow
        self._begin = 0
        self._end = 0
        self._value = 0
        self._ref = position

    def size(self) -> int:
        """Return the bytes that are noted, but for the run that may grow; 0: nothing is noted."""
        return len(self._bytes) + (self._op != _NONE)

    def note(self, op: _int, offset: _int, value: _int) -> None:
        """Note an operation on one message; `value`: of NAK its ms, of KEYED and PARK its hash."""
        if not self.is_on:
            return
        is_keyed = op in (_KEYED, _PARK)
        if op != self._op or offset != self._end or (value != self._value and not is_keyed):
            self._finish()
            self._op = op
            self._begin = offset
            self._value = value
        self._end = offset + 1
        if is_keyed:
            at = memory.widen(self._hashes, 4)
            target = self._hashes
            memory.put_int32(target, at, value)

    def note_range(self, op: _int, begin: _int, end: _int) -> None:
        """Note an operation on a range of offsets."""
        if not self.is_on:
            return
        if op != self._op or begin != self._end:
            self._finish()
            self._op = op
            self._begin = begin
            self._value = 0
        self._end = end

    def clock(self, ms: _int) -> None:
        """Note that time goes on."""
        if not self.is_on:
            return
        self._finish()
        self._put(_CLOCK, 1)
        self._varint(ms)

    def reset(self, offset: _int) -> None:
        """Note that all begins anew at an offset."""
        if not self.is_on:
            return
        self._finish()
        self._put(_RESET, 1)
        self._varint(offset)
        self.position = self._ref = offset

    def take(self, position: _int) -> bytes:
        """Return all since the last call, up to a position."""
        self._finish()
        if position > self.position:
            self._put(_PASS, 1)
            self._varint(position - self.position)
        taken = bytes(self._bytes)
        self.clear(position)
        return taken

    def clear(self, position: _int) -> None:
        """Forget all: a snapshot tells it."""
        self._bytes = bytearray()
        self._hashes = bytearray()
        self._op = _NONE
        self._ref = position
        self.is_lost = False
        self.position = position

    def _finish(self) -> None:
        """Write the run that might have grown."""
        op = self._op
        if op == _NONE:
            return
        self._op = _NONE
        if len(self._bytes) > _LOG_BYTES_MAX:
            self._bytes = bytearray()
            self.is_lost = True
        self._put(op, self._end - self._begin)
        if op in (_DELIVER, _KEYED, _PARK):
            self._varint(self._begin - self.position)
            self.position = self._end
            if len(self._hashes):
                hashes = self._hashes
                memory.append(self._bytes, hashes, 0, len(self._hashes))
                self._hashes = bytearray()
            return
        put_zigzag(self._bytes, self._begin - self._ref)
        self._ref = self._end
        if op == _NAK:
            self._varint(self._value)

    def _put(self, op: _int, length: _int) -> None:
        self._byte(op | (length - 1 if length < 16 else 15) << 4)
        if length >= 16:
            self._varint(length - 16)

    def _varint(self, number: _int) -> None:
        put_varint(self._bytes, number)

    def _byte(self, value: _int) -> None:
        put_byte(self._bytes, value)


def put_varint(out: bytearray, number: _int) -> None:
    """Append a number as LEB128."""
    while number >= 0x80:
        put_byte(out, number & 0x7F | 0x80)
        number >>= 7
    put_byte(out, number)


def put_zigzag(out: bytearray, number: _int) -> None:
    """Append a number that may be negative: 0, -1, 1, -2, … are 0, 1, 2, 3, …"""
    put_varint(out, 2 * number if number >= 0 else -2 * number - 1)


def put_byte(out: bytearray, value: _int) -> None:
    """Append a byte."""
    at = memory.widen(out, 1)
    target = out
    target[at] = value
