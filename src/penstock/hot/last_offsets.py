"""Last offset of each subject of a log, for checks of an expected last sequence per subject.

Rules: a subject that is not in the table has its last offset below `known_from`, or none. At the limit the subject
whose last message is oldest is evicted, and `known_from` rises above that message. Subjects of one read are recorded
before it is written, so that its messages see each other, and taken back if it was not written.

    0 a   1 b   2 a   3 c      known_from 2:  a → 2, c → 3, any other is unknown
                ╰─ known_from  known_from 0:  a → 2, b → 1, c → 3, any other has none

Memory: a subject is kept like a message id (see `message_ids`): some 300 bytes each.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

from penstock.hot import load, places
from penstock.hot.message_group import MessageGroup
from penstock.hot.message_ids import key_of

_int = int


class LastOffsets:
    """The last offsets of one log."""

    __slots__ = ("_noted", "_offsets", "_subjects_max", "known_from")

    def __init__(self, subjects_max: int, known_from: int) -> None:
        self.known_from = known_from
        self._subjects_max = subjects_max
        self._offsets: OrderedDict[bytes, int] = OrderedDict()  # least recent last message first
        self._noted: list[tuple[bytes, int]] = []  # entries not written yet: subject, offset before or -1

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """True if another subject evicts one."""
        return len(self._offsets) >= self._subjects_max

    def find(self, data: bytes, begin: int, end: int) -> int:
        """Return the last offset of the subject data[begin:end], or -1: it is below `known_from`, or there is none."""
        offset = self._offsets.get(key_of(data, begin, end))
        return -1 if offset is None else offset

    def note(self, group: MessageGroup, start: int, end: int, base_offset: int) -> None:
        """Record rows [start, end) at `base_offset` + row, after all others; `written` or `take_back` must follow."""
        if not 0 <= start <= end <= group.count:
            raise IndexError(f"rows {start} to {end} of {group.count}")
        data = group.data
        text = data
        numbers = group.numbers
        for row in range(start, end):
            at = row * places.STRIDE + places.SUBJECT
            begin = numbers[at]
            size = numbers[at + 1] - begin
            after = at + places.STRIDE
            if (
                row + 1 < end
                and numbers[after + 1] - numbers[after] == size
                and load.equal(text, begin, numbers[after], size)
            ):
                continue  # the last row of a run counts
            self._put(key_of(data, begin, begin + size), base_offset + row)

    def _put(self, key: bytes, offset: _int) -> None:
        offsets = self._offsets
        before = offsets.get(key)
        self._noted.append((key, -1 if before is None else before))
        if before is None and len(offsets) >= self._subjects_max:
            _, forgotten = offsets.popitem(False)
            self.known_from = max(self.known_from, forgotten + 1)
        offsets[key] = offset
        if before is not None:
            offsets.move_to_end(key)

    def written(self) -> None:
        """Confirm that the recorded rows are written."""
        self._noted.clear()

    def take_back(self) -> None:
        """Undo: the recorded rows were not written."""
        offsets = self._offsets
        while self._noted:
            key, before = self._noted.pop()
            if before < 0:
                offsets.pop(key, None)
            elif key in offsets:  # otherwise it was evicted meanwhile, and is below `known_from`
                offsets[key] = before

    def note_batch(self, found: list[tuple[int, bytes]], base_offset: int) -> None:
        """Record a batch written after all others; `found` is from `Rows.last_of_subjects`."""
        for row, key in reversed(found):
            self._put(key, base_offset + row)
        self._noted.clear()

    def gather(self, last: list[tuple[int, bytes]], offsets: array[int], start: int) -> None:
        """Add the next batch before `known_from`, down to the offset `start`: a log is read backwards.

        `last` is from `Rows.last_of_subjects`, `offsets` are those of the batch's rows.
        """
        own = self._offsets
        for row, key in last:
            offset = offsets[row]
            if offset < start:
                break
            if offset >= self.known_from or key in own:
                continue
            if len(own) >= self._subjects_max:
                start = offset + 1
                break
            own[key] = offset
            own.move_to_end(key, False)
        self.known_from = start

    def note_before(self, older: LastOffsets) -> None:
        """Merge `older`, which covers its `known_from` up to this one's; it must not be used afterwards."""
        own = self._offsets
        theirs = older._offsets
        self.known_from = older.known_from
        if len(theirs) > len(own):  # the smaller table is merged into the larger
            for key, offset in own.items():
                theirs[key] = offset
                theirs.move_to_end(key)
            self._offsets = own = theirs
        else:
            for key in reversed(theirs):
                if key not in own:
                    own[key] = theirs[key]
                    own.move_to_end(key, False)
        while len(own) > self._subjects_max:
            _, forgotten = own.popitem(False)
            self.known_from = max(self.known_from, forgotten + 1)

    def expire(self, log_start: int) -> None:
        """Drop subjects whose last message is below `log_start`."""
        offsets = self._offsets
        while offsets and next(iter(offsets.values())) < log_start:
            offsets.popitem(False)
