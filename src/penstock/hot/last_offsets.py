"""The last offset of each subject of a log, for those who store a message only if none came before theirs.

Rules: a subject that is not known has its last offset below `known_from`, or none. Whatever is known may be forgotten
where there are too many, and then `known_from` rises above it: the subject whose last message is oldest goes first.
What one read brings is noted before it is written, so that its messages see each other, and taken back if it was not.

    0 a   1 b   2 a   3 c      known_from 2:  a → 2, c → 3, any other is unknown
                ╰─ known_from  known_from 0:  a → 2, b → 1, c → 3, any other has none

Memory: a subject is known by what stands for a message id (see `message_ids`): some 300 bytes each.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

from penstock.hot import load, places
from penstock.hot.group import Group
from penstock.hot.message_ids import key_of

_int = int


class LastOffsets:
    """What is known of one log."""

    __slots__ = ("_noted", "_offsets", "_subjects_max", "known_from")

    def __init__(self, subjects_max: int, known_from: int) -> None:
        self.known_from = known_from
        self._subjects_max = subjects_max
        self._offsets: OrderedDict[bytes, int] = OrderedDict()  # those whose last message is oldest come first
        self._noted: list[tuple[bytes, int]] = []  # by what is not written yet: subject, offset before or -1

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Whether another subject makes one go."""
        return len(self._offsets) >= self._subjects_max

    def find(self, data: bytes, begin: int, end: int) -> int:
        """The last offset of the subject data[begin:end], or -1: it is below `known_from`, or there is none."""
        offset = self._offsets.get(key_of(data, begin, end))
        return -1 if offset is None else offset

    def note(self, group: Group, start: int, end: int, base_offset: int) -> None:
        """Rows [start, end) come at `base_offset` + row, behind all others; `written` or `take_back` is to follow."""
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
                continue  # the last of a run says it all
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
        """What was noted is written."""
        self._noted.clear()

    def take_back(self) -> None:
        """What was noted is not written."""
        offsets = self._offsets
        while self._noted:
            key, before = self._noted.pop()
            if before < 0:
                offsets.pop(key, None)
            elif key in offsets:  # else it was forgotten meanwhile, and is below `known_from`
                offsets[key] = before

    def note_batch(self, found: list[tuple[int, bytes]], base_offset: int) -> None:
        """A batch was written behind all others; `found` as `Rows.last_of_subjects` gives it."""
        for row, key in reversed(found):
            self._put(key, base_offset + row)
        self._noted.clear()

    def gather(self, last: list[tuple[int, bytes]], offsets: array[int], start: int) -> None:
        """Look into the next batch before `known_from`, down to the offset `start`: so a log is read backwards.

        `last` is as of `Rows.last_of_subjects`, `offsets` are those of the batch's rows.
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
        """All from its `known_from` to this one's is in `older`, which is not to be used any more."""
        own = self._offsets
        theirs = older._offsets
        self.known_from = older.known_from
        if len(theirs) > len(own):  # the few are put to the many
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
        """What lies below `log_start` is gone: make room."""
        offsets = self._offsets
        while offsets and next(iter(offsets.values())) < log_start:
            offsets.popitem(False)
