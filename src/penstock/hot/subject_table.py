"""Last offset of each subject of a log, from some offset on: for checks of an expected last sequence, and for limits.

A table with `counts` also knows how many messages of a subject have come from `known_from` on.

Rules: every subject with a message at or behind `known_from` is in the table with the offset of its last message, so a
subject that is not has its last message below, or none. Rows are noted before they are written, so that those of one
read see each other: `written` or `take_back` must follow. Nothing is dropped in between: `known_from` rises in
`written` only.

Memory: 24 bytes a slot, a quarter of which stay free: 32 to 64 bytes a subject. Once half of `subjects_max` have come,
the table is set aside and the next one begins; once that is full, too, the first one goes as a whole and `known_from`
rises to where the second began. So at least half of `subjects_max` are known, no subject is moved to make room, and a
subject that comes again stays. A table grows in doublings and begins small. If all tables of a broker together have
more slots than its `TableBudget`, they are set aside earlier.

    known_from ─╮
    0 a   1 b   2 a   3 c   4 b            at most 4 subjects:   older: a → 2, c → 3    newer: b → 4

Counts take 4 bytes a slot more. The newer part counts what has come since it began, so the sum of both parts is the
number from `known_from` on. Once a caller says how many there are below (`complete`), the newer part has the number of
all, and keeps it when the older one goes.

A subject is kept as 126 bits of its SipHash, whose key is random: two subjects are taken for one with a chance of 10⁻²⁵
in a full table, which is less than that of a broken disk, and no publisher can choose two such.
"""

from __future__ import annotations

import os
from array import array

from penstock.base import limits
from penstock.hot import load, memory, places
from penstock.hot.message_group import MessageGroup
from penstock.hot.siphash import SipHash

_int = int

_SLOT = 24  # bytes: both halves of the hash, and the offset plus 2; zeros: free; 1: no message
_LAST = 16
_COUNT = 4  # bytes: a number, and whether it is that of all messages of the subject
_COMPLETE = 0x4000_0000
_COUNT_MAX = 0x3FFF_FFFF
_SIGNLESS = 0x7FFF_FFFF_FFFF_FFFF
_SLOTS_MIN = 64
_SLOTS_FREE = limits.SUBJECT_TABLE_SLOTS_FREE


class TableBudget:
    """Slots that the tables of a broker have, and should have at most."""

    __slots__ = ("slots", "slots_max")

    def __init__(self, slots_max: int) -> None:
        self.slots = 0
        self.slots_max = slots_max


class SubjectTable:
    """The last offsets of the subjects of one log, and with `counts` the number of their messages."""

    __slots__ = ("_at", "_budget", "_count", "_end", "_half", "_hash", "_mask", "_newer", "_newer_counts",
                 "_newer_from", "_noted", "_noted_count", "_noted_counts", "_older", "_older_count", "_older_counts",
                 "_older_mask", "_written_end", "counts", "known_from")  # fmt: skip

    def __init__(
        self, subjects_max: int, known_from: int, budget: TableBudget | None = None, counts: bool = False
    ) -> None:
        self.known_from = known_from
        self.counts = counts
        self._half = max(subjects_max // 2, 1)
        self._budget = TableBudget(limits.OFFSET_MAX) if budget is None else budget
        self._hash = SipHash(os.urandom(16))
        self._older: bytearray | None = None
        self._older_count = self._older_mask = 0
        self._count = self._mask = self._at = 0
        self._newer_from = self._end = self._written_end = known_from
        self._noted = bytearray()  # slots as they were before what is not written yet
        self._noted_counts = bytearray()
        self._newer_counts = bytearray()
        self._older_counts = bytearray()
        self._noted_count = 0
        self._begin(_SLOTS_MIN)

    def __del__(self) -> None:
        self._budget.slots -= self._slots()

    def __len__(self) -> int:
        """Return the number of slots in use: one or two for each subject."""
        return self._count + self._older_count

    def find(self, data: bytes, begin: _int, end: _int) -> _int:
        """Return the last offset of the subject data[begin:end], or -1: it is below `known_from`, or there is none."""
        _check(data, begin, end)
        self._hash.hash(data, begin, end)
        return self._find() - 2

    def count(self, data: bytes, begin: _int, end: _int) -> _int:
        """Return the number of messages of the subject data[begin:end]; -1 - n: there are n from `known_from` on, and
        it is not known how many below.
        """
        _check_counts(self)
        _check(data, begin, end)
        self._hash.hash(data, begin, end)
        return self._counted()

    def complete(self, data: bytes, begin: _int, end: _int, below: _int) -> None:
        """Take the number of messages of a subject below `known_from`; it is remembered if there are later ones."""
        _check_counts(self)
        _check(data, begin, end)
        self._hash.hash(data, begin, end)
        number = self._counted()
        self._find()
        newer = self._newer
        if number < 0 and load.uint64(newer, self._at + _LAST) != 0:
            load.put_int32(
                self._newer_counts, self._at // _SLOT * _COUNT, min(below - 1 - number, _COUNT_MAX) | _COMPLETE
            )

    def restart(self, data: bytes, begin: _int, end: _int) -> None:
        """Take the last message of a subject, which was recorded just now, as the only one."""
        _check_counts(self)
        _check(data, begin, end)
        self._hash.hash(data, begin, end)
        self._find()
        load.put_int32(self._newer_counts, self._at // _SLOT * _COUNT, _COMPLETE + 1)

    def note(self, group: MessageGroup, start: _int, end: _int, base_offset: _int) -> None:
        """Record rows [start, end) at `base_offset` + row, after all others."""
        if not 0 <= start <= end <= group.count:
            raise IndexError(f"rows {start} to {end} of {group.count}")
        text = group.data
        numbers = group.numbers
        for row in range(start, end):
            at = row * places.STRIDE + places.SUBJECT
            begin = numbers[at]
            size = numbers[at + 1] - begin
            after = at + places.STRIDE
            if (
                not self.counts
                and row + 1 < end
                and numbers[after + 1] - numbers[after] == size
                and load.equal(text, begin, numbers[after], size)
            ):
                continue  # the last row of a run counts
            self._hash.hash(text, begin, begin + size)
            self._put(base_offset + row)

    def note_column(self, ends: memoryview, data: memoryview, count: _int, base_offset: _int) -> None:
        """Record rows at `base_offset` + row, after all others: `ends` and `data` as in `take`."""
        offsets = bytearray(8 * count)
        load.put_int64s(offsets, 0, base_offset, 1, count)
        self.take(ends, data, memoryview(offsets), 0, count)

    def take(self, ends: memoryview, data: memoryview, offsets: memoryview, begin: _int, end: _int) -> array[int]:
        """Return for each row [begin, end), in order, what `find` would; record it, after all others.

        `ends`, `data`: the value offsets (int32, one more than rows) and the bytes of an Arrow `utf8` column without
        nulls. `offsets`: of the rows, int64, rising. IndexError, ValueError: they do not fit; nothing is recorded.
        """
        return self._take(ends, data, offsets, begin, end, False)

    def count_each(self, ends: memoryview, data: memoryview, count: _int, base_offset: _int) -> array[int]:
        """Return for each row at `base_offset` + row what `count` would; record it, as `take` does."""
        _check_counts(self)
        offsets = bytearray(8 * count)
        load.put_int64s(offsets, 0, base_offset, 1, count)
        return self._take(ends, data, memoryview(offsets), 0, count, True)

    def _take(
        self, ends: memoryview, data: memoryview, offsets: memoryview, begin: _int, end: _int, counts: bool
    ) -> array[int]:
        if not 0 <= begin <= end:
            raise IndexError(f"rows {begin} to {end}")
        found = array("q")
        count = end - begin
        if count == 0:
            return found
        text_ends = load.int32s(memoryview(ends).cast("B"), 4 * begin, count + 1)
        row_offsets = load.int64s_within(memoryview(offsets).cast("B"), 8 * begin, count)
        first = text_ends[0]
        if first < 0 or load.falls(text_ends, count + 1):
            raise ValueError("the ends of the subjects fall")
        text = memory.part(data, first, text_ends[count])
        subjects = text
        out = bytearray(8 * count)
        target = out
        for row in range(count):
            self._hash.hash(subjects, text_ends[row] - first, text_ends[row + 1] - first)
            if counts:
                number = self._counted()
                self._put(row_offsets[row])
            else:
                number = self._put(row_offsets[row]) - 2
            memory.put_int64(target, 8 * row, number)
        found.frombytes(out)
        return found

    def written(self) -> None:
        """Confirm that the recorded rows are written."""
        self._noted_count = 0
        self._written_end = self._end
        if self._count >= self._half or (
            self._budget.slots > self._budget.slots_max and self._count >= _SLOTS_FREE // 4
        ):
            self._set_aside()

    def take_back(self) -> None:
        """Undo: the recorded rows were not written."""
        noted = self._noted
        newer = self._newer
        self._end = self._written_end
        while self._noted_count > 0:
            self._noted_count -= 1
            at = self._noted_count * _SLOT
            slot = _slot_of(newer, self._mask, load.uint64(noted, at), load.uint64(noted, at + 8))
            memory.put_int64(newer, slot + _LAST, load.uint64(noted, at + _LAST))
            if self.counts:
                before = load.uint32(self._noted_counts, self._noted_count * _COUNT)
                load.put_int32(self._newer_counts, slot // _SLOT * _COUNT, before)

    def _find(self) -> _int:
        """Return the offset of the subject that was hashed, plus 2; at most 1: unknown."""
        newer = self._newer
        low = self._hash.low & _SIGNLESS
        high = self._hash.high & _SIGNLESS
        self._at = _slot_of(newer, self._mask, low, high)
        found = load.uint64(newer, self._at + _LAST)
        if found == 0:
            found = 1
            if self._older is not None:
                older = self._older
                found = max(found, load.uint64(older, _slot_of(older, self._older_mask, low, high) + _LAST))
        return found

    def _counted(self) -> _int:
        """Return the number of messages on the subject that was hashed; see `count`."""
        low = self._hash.low & _SIGNLESS
        high = self._hash.high & _SIGNLESS
        number = load.uint32(self._newer_counts, _slot_of(self._newer, self._mask, low, high) // _SLOT * _COUNT)
        if number >= _COMPLETE:
            return number - _COMPLETE
        if self._older is not None:
            slot = _slot_of(self._older, self._older_mask, low, high)
            older = load.uint32(self._older_counts, slot // _SLOT * _COUNT)
            if older >= _COMPLETE:
                return number + older - _COMPLETE
            number += older
        return -1 - number

    def _older_slot(self) -> _int:
        assert self._older is not None
        return _slot_of(self._older, self._older_mask, self._hash.low & _SIGNLESS, self._hash.high & _SIGNLESS)

    def _put(self, offset: _int) -> _int:
        """Record a message on the subject that was hashed; return what `_find` did before."""
        before = self._find()
        newer = self._newer
        if load.uint64(newer, self._at + _LAST) == 0:
            if 4 * (self._count + 1) > 3 * (self._mask + 1):
                self._grow()
                newer = self._newer
                self._find()
            memory.put_int64(newer, self._at, self._hash.low & _SIGNLESS)
            memory.put_int64(newer, self._at + 8, self._hash.high & _SIGNLESS)
            self._count += 1
        memory.put_int64(newer, self._at + _LAST, offset + 2)
        at = self._noted_count * _SLOT
        if at == len(self._noted):
            memory.widen(self._noted, max(at, _SLOT * _SLOTS_MIN))
        noted = self._noted
        memory.put_int64(noted, at, self._hash.low & _SIGNLESS)
        memory.put_int64(noted, at + 8, self._hash.high & _SIGNLESS)
        memory.put_int64(noted, at + _LAST, before)
        if self.counts:
            at = self._noted_count * _COUNT
            if at == len(self._noted_counts):
                memory.widen(self._noted_counts, max(at, _COUNT * _SLOTS_MIN))
            slot = self._at // _SLOT * _COUNT
            number = load.uint32(self._newer_counts, slot)
            load.put_int32(self._noted_counts, at, number)
            if number == 0 and self._older is not None:
                number = load.uint32(self._older_counts, self._older_slot() // _SLOT * _COUNT)
                number = number if number >= _COMPLETE else 0  # else both parts count for themselves
            if number & _COUNT_MAX < _COUNT_MAX:
                load.put_int32(self._newer_counts, slot, number + 1)
        self._noted_count += 1
        self._end = offset + 1
        return before

    def _slots(self) -> _int:
        return self._mask + 1 + (0 if self._older is None else self._older_mask + 1)

    def _begin(self, slots: _int) -> None:
        """Begin an empty newer part."""
        self._newer = bytearray(_SLOT * slots)
        self._newer_counts = bytearray(_COUNT * slots if self.counts else 0)
        self._mask = slots - 1
        self._count = 0
        self._budget.slots += slots

    def _grow(self) -> None:
        """Double the newer part."""
        source = self._newer
        slots = self._mask + 1
        count = self._count
        kept, counts = self._newer, self._newer_counts
        self._begin(2 * slots)
        self._count = count
        target = self._newer
        for at in range(0, _SLOT * slots, _SLOT):
            last = load.uint64(source, at + _LAST)
            if last != 0:
                low = load.uint64(source, at)
                high = load.uint64(source, at + 8)
                slot = _slot_of(target, self._mask, low, high)
                memory.put_int64(target, slot, low)
                memory.put_int64(target, slot + 8, high)
                memory.put_int64(target, slot + _LAST, last)
                if self.counts:
                    number = load.uint32(counts, at // _SLOT * _COUNT)
                    load.put_int32(self._newer_counts, slot // _SLOT * _COUNT, number)
        self._budget.slots -= slots
        del kept

    def _set_aside(self) -> None:
        """Drop the older part, and make the newer one the older."""
        if self._older is not None:
            self._budget.slots -= self._older_mask + 1
            self.known_from = max(self.known_from, self._newer_from)
        self._older, self._older_count, self._older_mask = self._newer, self._count, self._mask
        self._older_counts = self._newer_counts
        self._newer_from = self._end
        self._noted, self._noted_counts = bytearray(), bytearray()
        slots = _SLOTS_MIN
        if self._budget.slots <= self._budget.slots_max:  # as many as it will need, so that none is moved
            while slots <= self._older_mask and 3 * slots < 4 * self._half:
                slots *= 2
        self._begin(slots)


def _slot_of(table: bytearray, mask: _int, low: _int, high: _int) -> _int:
    """Return the position of a hash in a part, or of the free slot where it belongs; one is always free."""
    at = low & mask
    while True:
        slot = at * _SLOT
        if load.uint64(table, slot + _LAST) == 0:
            return slot
        if load.uint64(table, slot) == low and load.uint64(table, slot + 8) == high:
            return slot
        at = (at + 1) & mask


def _check_counts(table: SubjectTable) -> None:
    if not table.counts:
        raise ValueError("the table does not count messages")


def _check(data: bytes, begin: _int, end: _int) -> None:
    if not 0 <= begin <= end <= len(data):
        raise IndexError(f"{begin} to {end} of {len(data)} bytes")
