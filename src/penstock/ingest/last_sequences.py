"""Last sequence of each subject, under one leadership: known from some offset on, and searched for below it.

Where a limit by subject of more than one message refuses others, or makes room for them, the messages are counted, too.

For the search see `node.partition.last_sequences`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from penstock.base import limits
from penstock.batch.codec import LAYOUT
from penstock.hot.kept_rows import KeptRows
from penstock.hot.message_group import MessageGroup
from penstock.hot.rows import BatchRows
from penstock.hot.subject_table import SubjectTable, TableBudget
from penstock.ingest import acks

UNREADABLE = -2
"""Result of a search that failed."""


class LastSequences:
    """Last offsets by subject. `is_searching`: a search is under way; `failure`: why the last one failed.

    `searches_long`: the next search may read for long. `is_compacted`: a subject's last message may be missing.
    `waiting`: called at the end of the search. With `counts` messages from `counted_from` on are counted: it is void
    for another such offset.
    """

    __slots__ = ("_found", "_found_counts", "_found_from", "counted_from", "failure", "identity", "is_compacted",
                 "is_searching", "kept", "older", "searches_long", "table", "waiting")  # fmt: skip

    def __init__(
        self, log_end: int, budget: TableBudget | None = None, *, counts: bool = False, counted_from: int = 0
    ) -> None:
        self.table = SubjectTable(limits.SUBJECT_TABLE_MAX, log_end, budget, counts)
        self.counted_from = counted_from
        self.identity = object()  # for what is remembered of it: the tables themselves may be large
        self.is_searching = self.searches_long = self.is_compacted = False
        self.failure = ""
        self.kept: KeptRows | None = None  # last messages of the partition's subjects, if any were asked for
        self.waiting: list[Callable[[], None]] = []
        self.older: SubjectTable | None = None  # of all that lies below the table, where there are no indexes
        self._found: dict[bytes, int] | None = None
        self._found_counts: dict[bytes, int] = {}
        self._found_from = log_end

    @property
    def found(self) -> dict[bytes, int] | None:
        """Results of searches below the table, at least for the messages that wait; -1: there is none.

        None: nothing was searched, or the table knows less by now than it did then.
        """
        return self._found if self._found_from == self.table.known_from else None

    @property
    def found_counts(self) -> dict[bytes, int] | None:
        """Numbers of messages below the table, like `found`."""
        return self._found_counts if self._found_from == self.table.known_from else None

    def why_unknown(self) -> acks.AckError:
        """Return the error for an expected sequence on a subject whose last one cannot be known."""
        if self.failure:
            return acks.store_failed(self.failure)
        text = "this partition was added, and an older one may have the last message on the subject: a sequence "
        return acks.bad_request(f"{text}can be expected once this one has stored something on it")

    def searched(
        self,
        subjects: Sequence[bytes],
        lasts: Sequence[int],
        known_from: int,
        counted: Sequence[bytes] = (),
        numbers: Sequence[int] = (),
    ) -> None:
        """Take what was found below `known_from`, where the table began then: last offsets, numbers of messages."""
        if self._found is None or self._found_from != known_from:
            self._found, self._found_counts, self._found_from = {}, {}, known_from
        self._found.update(zip(subjects, lasts, strict=True))
        self._found_counts.update(zip(counted, numbers, strict=True))

    def go_on(self) -> None:
        """Call what waits."""
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one()

    @classmethod
    def since_rollup(cls, table: SubjectTable, offset: int) -> LastSequences:
        """Return the subjects from a rollup of all on, which was written, with all that is behind it."""
        lasts = cls(offset, counts=True, counted_from=offset)
        lasts.table = table
        table.written()
        return lasts

    def stored(self, rows: MessageGroup, base_offset: int, log_end: int) -> None:
        """Record that those of the last looked-up rows that are below `log_end` were written."""
        if (written := log_end - base_offset) < len(rows):
            self.table.take_back()
            self.table.note(rows, 0, written, base_offset)
        self.table.written()
        self._forget_found()

    def _forget_found(self) -> None:
        """Forget a failure, so that the next message has them read again, and the results if they are many.

        Few stay, for batches that have to ask again. What came after the search is in the table.
        """
        found = 0 if self._found is None else len(self._found) + len(self._found_counts)
        if self.failure or found > limits.FOUND_SUBJECTS_KEPT_MAX:
            self._found, self._found_counts, self.failure = None, {}, ""

    def at_limit(self, message: bytearray, base_offset: int, begin: int, most: int) -> tuple[int, list[bytes]]:
        """Return how many messages of a batch at `base_offset` come to a subject that has `most` from `begin` on.

        Also those subjects for which that has to be searched first.
        """
        ends, text = BatchRows(message, LAYOUT).subjects()
        count = len(ends) // 4 - 1
        table, known_from = self.table, self.table.known_from
        if most > 1:
            numbers, enough = table.count_each(ends, text, count, base_offset), most
            reached = sum(map((-1 - most).__ge__, numbers))  # that many are known, without those below
            found = self.found_counts or {}
        else:
            offsets = array("q", range(base_offset, base_offset + count))
            numbers, enough, reached = table.take(ends, text, memoryview(offsets), 0, count), begin, 0
            found = self.found or {}
        table.take_back()
        reached += sum(map(enough.__le__, numbers))
        if known_from <= begin:
            return reached, []
        places = memoryview(ends).cast("B").cast("i")
        unknown = dict[bytes, None]()
        for row in [row for row, number in enumerate(numbers) if -1 - most < number < 0]:
            subject = bytes(text[places[row] : places[row + 1]])
            if (below := found.get(subject, UNREADABLE)) == UNREADABLE:
                unknown[subject] = None
            elif (below - 1 - numbers[row] if most > 1 else below) >= enough:
                reached += 1
        return reached, [*unknown]

    def appended(self, message: bytearray, base_offset: int) -> None:
        """Record a batch that was appended over the socket."""
        rows = BatchRows(message, LAYOUT)
        ends, text = rows.subjects()
        self.table.note_column(ends, text, len(ends) // 4 - 1, base_offset)
        self.table.written()
        self._forget_found()
