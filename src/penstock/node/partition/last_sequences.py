"""Searches a leader's log for the last sequences of subjects (expected-last-sequence checks).

Rules: what is known is a function of the log, like message ids (see `node.partition.dedup`). A leadership begins to
keep the last offsets of subjects when the first message states an expected last sequence, keeps them current, and drops
them at its end, after compaction has removed rows, or when rows are hidden: a hidden row is no last one. A partition
without such messages does no work for it.

| a message expects a sequence of a subject | it                                                                  |
|-------------------------------------------|---------------------------------------------------------------------|
| whose last message is in the table        | is checked                                                          |
| that is not, and the table has all        | is checked: there is no message                                     |
| that is not, and there are older messages | waits with its read: all such subjects of it are searched at once   |
| whose search failed                       | is refused with the reason                                          |

Messages are looked up in the same way where a limit by subject refuses others, or makes room for them in a full stream:
also those of clients. With a limit of 1 the last one tells; with a larger limit they are counted.

The search asks the subject indexes, and what has none: it makes them where they are missing, unless the feature level
forbids it. It runs among reads, and goes on among queries if it has to read for long. What it finds holds for the read
that waits, as long as nothing that came after it has left the table. Without indexes the first search learns the last
offsets of all older subjects, as far as a table has room.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from penstock.base import limits
from penstock.batch import codec
from penstock.commitlog import LogView, SubjectQueries
from penstock.hot.subject_table import SubjectTable
from penstock.ingest.last_sequences import UNREADABLE, LastSequences
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.step import DiskWork, Lane, Step


class _LongSearchError(Exception):
    """The search has read as much as it may among reads."""


class Counted(NamedTuple):
    """Subjects whose messages from `begin` on are to be counted; see `SubjectQueries.counts_of_many`."""

    subjects: Sequence[bytes] = ()
    begin: int = 0
    most: int = 0
    hides_oldest: bool = False


class FindLasts:
    """Finds the last offset of each of some subjects below `end`, in a disk thread."""

    def __init__(
        self,
        view: LogView,
        end: int,
        subjects: Sequence[bytes],
        counted: Counted,
        *,
        is_indexed: bool,
        knows_all: bool,
        is_long: bool,
    ) -> None:
        self._view = view
        self._counted = counted
        self._end = min(end, view.log_end)
        self._subjects = subjects
        self._is_indexed = is_indexed
        self._knows_all = knows_all
        self._bytes_max = limits.OFFSET_MAX if is_long else limits.LAST_SEARCH_BYTES_MAX
        self._read_bytes = 0
        self.is_given_up = False  # it would have read for long
        self.lasts: list[int] = []
        self.numbers: list[int] = []
        self.older: SubjectTable | None = None

    def run(self) -> None:
        """Raise RemoteError (corrupt_range), OSError or LogCutError."""
        try:
            if self._is_indexed or self._knows_all:
                queries = SubjectQueries(self._view, self._end, self._tell, makes_indexes=self._is_indexed)
                self.lasts = queries.last_of_many(self._subjects)
            else:
                self._learn_all()
            if (counted := self._counted).subjects:
                queries = SubjectQueries(
                    self._view, self._end, self._tell, makes_indexes=self._is_indexed, begin=counted.begin
                )
                self.numbers = queries.counts_of_many(counted.subjects, counted.most, hides_oldest=counted.hides_oldest)
        except _LongSearchError:
            self.is_given_up = True

    def _tell(self, size_bytes: int) -> None:
        self._read_bytes += size_bytes
        if self._read_bytes > self._bytes_max:
            raise _LongSearchError

    def _learn_all(self) -> None:
        view, end = self._view, self._end
        older = SubjectTable(limits.SUBJECT_TABLE_MAX, view.log_start)
        for _, data in view.batches(view.log_start, end):
            self._tell(len(data))
            rows, offsets = codec.check_values(data), codec.offsets(data)
            begin, stop = bisect_left(offsets, view.log_start), bisect_left(offsets, end)
            older.take(*rows.subjects(), memoryview(offsets), begin, stop)
            older.written()
        self.older = older


def search(
    lasts: LastSequences,
    subjects: Sequence[bytes],
    counted: Counted,
    view: LogView,
    step: Step,
    *,
    is_indexed: bool,
) -> bool:
    """Have subjects that are not in the table searched in a disk thread, below it, and messages counted.

    Return True if that is not needed, as all are known without.
    """
    known_from = lasts.table.known_from
    if lasts.older is not None and not is_indexed and not counted.subjects:
        found = [lasts.older.find(one, 0, len(one)) for one in subjects]
        if lasts.older.known_from <= view.log_start or -1 not in found:
            lasts.searched(subjects, found, known_from)
            return True
    is_long = lasts.searches_long
    work = FindLasts(
        view, known_from, subjects, counted, is_indexed=is_indexed, knows_all=lasts.older is not None, is_long=is_long
    )

    def done(error: Exception | None) -> None:
        lasts.is_searching = False
        lasts.searches_long = work.is_given_up
        if error is not None:
            lasts.failure = f"the subjects in the log cannot be read: {as_remote_error(error)}"
            failed, uncounted = [UNREADABLE] * len(subjects), [UNREADABLE] * len(counted.subjects)
            lasts.searched(subjects, failed, known_from, counted.subjects, uncounted)
        elif work.older is not None:
            lasts.older = work.older
        elif not work.is_given_up:
            lasts.searched(subjects, work.lasts, known_from, counted.subjects, work.numbers)
        lasts.go_on()

    lasts.is_searching = True
    step.disk.append(DiskWork(Lane.QUERY if is_long else Lane.READ, work.run, done))
    return False
