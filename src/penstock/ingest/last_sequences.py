"""The last sequence of each subject, under one leadership: being read from the log, known, or not to be had.

How it is read is in `node.last_sequences`.
"""

from __future__ import annotations

from enum import Enum

from penstock.base import limits
from penstock.batch.codec import LAYOUT
from penstock.hot.group import Group
from penstock.hot.last_offsets import LastOffsets
from penstock.hot.rows import Rows
from penstock.ingest import acks


class Reading(Enum):
    """What is being read from the log."""

    NOTHING = "nothing"
    END = "end"  # messages wait
    OLDER = "older"  # they do not


BEFORE_ALL = -1
"""Where a log begins that says nothing of subjects which it does not have: another one may have them."""


class LastSequences:
    """`failure` says why the log could not be read last; `is_compacted`: the last message of a subject may be gone."""

    __slots__ = ("_offsets", "failure", "is_compacted", "reading")

    def __init__(self, log_end: int) -> None:
        self.reading = Reading.END
        self.failure = ""
        self.is_compacted = False
        self._offsets = LastOffsets(limits.LAST_OFFSETS_MAX, log_end)

    @property
    def offsets(self) -> LastOffsets | None:
        """Those of the log; None: its end is not read yet."""
        return None if self.reading is Reading.END else self._offsets

    @property
    def known_from(self) -> int:
        """The last message of a subject that is not known lies before that offset, if there is one."""
        return self._offsets.known_from

    def is_full(self, log_start: int) -> bool:
        """Whether no older subject can become known."""
        self._offsets.expire(log_start)
        return self._offsets.is_full

    def why_unknown(self, log_start: int) -> acks.AckError:
        """What they hear who ask for a subject of which nothing is known."""
        if log_start == BEFORE_ALL:
            text = "this partition was added, and an older one may have the last message on the subject: a sequence "
            return acks.bad_request(f"{text}can be expected once this one has stored something on it")
        if self.failure:
            return acks.store_failed(self.failure)
        if self.is_full(log_start):
            text = f"{limits.LAST_OFFSETS_MAX} subjects have later messages than this one, and no more are kept"
            return acks.insufficient_resources(text)
        return acks.unavailable("the last message on this subject is being searched for")

    def found(self, older: LastOffsets, known_from: int) -> None:
        """What lies before `known_from` is read, as far as `older` has it."""
        if known_from == self.known_from:  # else some were forgotten meanwhile, and what was found may be older
            self._offsets.note_before(older)

    def stored(self, rows: Group, base_offset: int, log_end: int) -> None:
        """Of the rows that were looked at last, those below `log_end` are written."""
        if (written := log_end - base_offset) < len(rows):
            self._offsets.take_back()
            self._offsets.note(rows, 0, written, base_offset)
        self._offsets.written()

    def appended(self, message: bytearray, base_offset: int) -> None:
        """A batch came over the socket, and is written."""
        self._offsets.note_batch(Rows(message, LAYOUT).last_of_subjects(), base_offset)
