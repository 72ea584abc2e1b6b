"""Last sequence of each subject, under one leadership: being read from the log, known, or unavailable.

For the reading see `node.partition.last_sequences`.
"""

from __future__ import annotations

from enum import Enum

from penstock.base import limits
from penstock.batch.codec import LAYOUT
from penstock.hot.last_offsets import LastOffsets
from penstock.hot.message_group import MessageGroup
from penstock.hot.rows import BatchRows
from penstock.ingest import acks


class ReadState(Enum):
    """Part of the log being read."""

    NOTHING = "nothing"
    END = "end"  # messages wait for it
    OLDER = "older"  # no messages wait for it


BEFORE_ALL = -1
"""`log_start` of a log that does not know its missing subjects: an older partition may have them."""


class LastSequences:
    """Last offsets by subject. `failure`: why the last read failed; `is_compacted`: a subject's last message may be
    missing.
    """

    __slots__ = ("_offsets", "failure", "is_compacted", "reading")

    def __init__(self, log_end: int) -> None:
        self.reading = ReadState.END
        self.failure = ""
        self.is_compacted = False
        self._offsets = LastOffsets(limits.LAST_OFFSETS_MAX, log_end)

    @property
    def offsets(self) -> LastOffsets | None:
        """The known offsets; None until the end of the log is read."""
        return None if self.reading is ReadState.END else self._offsets

    @property
    def known_from(self) -> int:
        """Offset before which the last message of an unknown subject lies, if there is one."""
        return self._offsets.known_from

    def is_full(self, log_start: int) -> bool:
        """True if no older subject fits."""
        self._offsets.expire(log_start)
        return self._offsets.is_full

    def why_unknown(self, log_start: int) -> acks.AckError:
        """Return the error for an expected sequence on an unknown subject."""
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
        """Take what was read before `known_from`."""
        if known_from == self.known_from:  # otherwise some were evicted meanwhile, and the result may be stale
            self._offsets.note_before(older)

    def stored(self, rows: MessageGroup, base_offset: int, log_end: int) -> None:
        """Record that those of the last looked-up rows that are below `log_end` were written."""
        if (written := log_end - base_offset) < len(rows):
            self._offsets.take_back()
            self._offsets.note(rows, 0, written, base_offset)
        self._offsets.written()

    def appended(self, message: bytearray, base_offset: int) -> None:
        """Record a batch that was appended over the socket."""
        self._offsets.note_batch(BatchRows(message, LAYOUT).last_of_subjects(), base_offset)
