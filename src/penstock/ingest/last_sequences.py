"""Last sequence of each subject, under one leadership: known from some offset on, and searched for below it.

For the search see `node.partition.last_sequences`.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.base import limits
from penstock.batch.codec import LAYOUT
from penstock.hot.message_group import MessageGroup
from penstock.hot.rows import BatchRows
from penstock.hot.subject_table import SubjectTable, TableBudget
from penstock.ingest import acks

UNREADABLE = -2
"""Result of a search that failed."""


class LastSequences:
    """Last offsets by subject. `is_searching`: a search is under way; `failure`: why the last one failed.

    `searches_long`: the next search may read for long. `is_compacted`: a subject's last message may be missing.
    """

    __slots__ = ("_found", "_found_from", "failure", "is_compacted", "is_searching", "older", "searches_long", "table")

    def __init__(self, log_end: int, budget: TableBudget | None = None) -> None:
        self.table = SubjectTable(limits.SUBJECT_TABLE_MAX, log_end, budget)
        self.is_searching = self.searches_long = self.is_compacted = False
        self.failure = ""
        self.older: SubjectTable | None = None  # of all that lies below the table, where there are no indexes
        self._found: dict[bytes, int] | None = None
        self._found_from = log_end

    @property
    def found(self) -> dict[bytes, int] | None:
        """Results of searches below the table for the messages that wait; -1: there is none.

        None: nothing was searched, or the table knows less by now than it did then.
        """
        return self._found if self._found_from == self.table.known_from else None

    def why_unknown(self) -> acks.AckError:
        """Return the error for an expected sequence on a subject whose last one cannot be known."""
        if self.failure:
            return acks.store_failed(self.failure)
        text = "this partition was added, and an older one may have the last message on the subject: a sequence "
        return acks.bad_request(f"{text}can be expected once this one has stored something on it")

    def searched(self, subjects: Sequence[bytes], lasts: Sequence[int], known_from: int) -> None:
        """Take what was found below `known_from`, where the table began then."""
        if self._found is None or self._found_from != known_from:
            self._found, self._found_from = {}, known_from
        self._found.update(zip(subjects, lasts, strict=True))

    def stored(self, rows: MessageGroup, base_offset: int, log_end: int) -> None:
        """Record that those of the last looked-up rows that are below `log_end` were written."""
        if (written := log_end - base_offset) < len(rows):
            self.table.take_back()
            self.table.note(rows, 0, written, base_offset)
        self.table.written()
        self._found, self.failure = None, ""

    def appended(self, message: bytearray, base_offset: int) -> None:
        """Record a batch that was appended over the socket."""
        rows = BatchRows(message, LAYOUT)
        ends, text = rows.subjects()
        self.table.note_column(ends, text, len(ends) // 4 - 1, base_offset)
        self.table.written()
