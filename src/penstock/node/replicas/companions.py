"""Logs of marks on this broker: their committed rows are passed on, and reads of their partitions wait for them.

A partition's log of marks (`penstock.metadata.companions`), here its companion, hides rows of the partition. Its log of
consumers is none of this module's business (`node.consumers`): nothing is passed on, and no read waits. This module
does not know what a mark means: it passes the committed rows on to a consumer, on the leader and on followers alike.

Rules: every committed row is passed on, in the order of the log, at least once; after `reset` from the first one on
that is still there, because the log was cut to agree with another leader's, or because its start was raised over rows
that were not passed on (`node.api.mark_snapshots`). One read is under way for each log, in a disk thread, of a bounded
number of rows. A few rows that this leader has just written are passed on as they are, without a read.

A replica shows messages only if it knows which of them are hidden. Otherwise it refuses reads:

| the replica                 | may show messages once                                                               |
|-----------------------------|--------------------------------------------------------------------------------------|
| leads                       | its companion leads beside it, and has committed all that it held when it began      |
| follows, or has no leader   | its companion has shown all that its leader had committed at some moment of this run |
| is the only one             | always                                                                               |
| any, just started           | the image knows of the companion logs on its disk                                    |
| any                         | the companion can be read, and the consumer has the rows committed by that moment    |
| follows, or has no leader   | it has committed what the leader had when it made the last mark that is here         |
| the same, where compaction  | the consumer has all rows that are committed here: its log may have got rows         |
| or expiry goes by marks     | that the leader has erased since                                                     |
| follows                     | its companion has all that its leader has told to be committed: a full disk may      |
|                             | refuse marks while it takes messages                                                 |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

from penstock.base import limits
from penstock.base.companion_kinds import CompanionKind
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionKey, StreamId
from penstock.batch import codec
from penstock.commitlog import LogView
from penstock.metadata.companions import is_marks, marks_key, target_key
from penstock.node.context import Context
from penstock.node.partition.log_queries import Query, QueryGivenUpError, keys_and_values
from penstock.node.partition.partition import Partition
from penstock.node.replicas.companion_troubles import CompanionTroubles
from penstock.node.step import Lane


class CompanionRow(NamedTuple):
    """One committed row of a companion log."""

    offset: Offset
    key: bytes | None
    value: bytes | None


class CompanionConsumer(Protocol):
    """Takes the committed rows of companion logs. `key` is that of the partition which one belongs to."""

    def applying(self, key: PartitionKey) -> Callable[[Sequence[CompanionRow]], Any]:
        """Return what applies the next committed rows: it is called in a disk thread, as that may take long."""

    def take(self, key: PartitionKey, applied: Any, end: int) -> None:
        """Take what came of the next committed rows: all up to offset `end`."""

    def reset(self, key: PartitionKey, begin: int) -> None:
        """Drop what earlier rows came to: the log was cut, or begins later. The row at offset `begin` comes next."""

    def forget(self, key: PartitionKey) -> None:
        """Drop what the rows came to: the replica has gone."""

    def committed(self, partition: Partition) -> None:
        """Show what has waited for messages of a partition, if they are committed now, or known to be lost."""


class ReadCompanionRows(Query):
    """Reads committed rows from `start` on and applies them, in a disk thread. `applied`: what came of it."""

    def __init__(
        self, view: LogView, start: int, end: int, apply: Callable[[Sequence[CompanionRow]], Any] = len
    ) -> None:
        super().__init__(view)
        self._start, self.end = start, end
        self._apply = apply
        self.rows: list[CompanionRow] = []
        self.applied: Any = None

    def run(self) -> None:
        """Raise RemoteError (corrupt_range), OSError or QueryGivenUpError."""
        self._read()
        self.applied = self._apply(self.rows)

    def _read(self) -> None:
        size_bytes = 0
        for _, data in self._batches(self._start, self.end):
            codec.check_values(data)
            keys, values = keys_and_values(data)
            for offset, key, value in zip(codec.offsets(data), keys, values, strict=True):
                if not self._start <= offset < self.end:
                    continue
                if size_bytes >= limits.COMPANION_BYTES_AT_ONCE or len(self.rows) >= limits.COMPANION_ROWS_AT_ONCE:
                    self.end = offset
                    return
                self.rows.append(CompanionRow(Offset(offset), key, value))
                size_bytes += len(value or b"")


class _Passed:
    """State of the rows of one companion log: those that were passed on."""

    __slots__ = ("end", "failure", "kept_us", "known_end", "reading", "waiting", "written")

    def __init__(self) -> None:
        self.end = 0  # all committed rows below it were passed on
        self.known_end: int | None = None  # its high watermark when the replica first knew all that was committed
        self.reading: ReadCompanionRows | None = None
        self.written: list[CompanionRow] = []  # committed rows that this leader has just written: they need no read
        self.failure: RemoteError | None = None  # why rows could not be read
        self.kept_us: int | None = None  # all that was committed by then was passed on
        self.waiting: deque[tuple[int, Callable[[RemoteError | None], None]]] = deque()  # by end


class Companions:
    """The companion logs among `partitions`; `failures` holds the errors of logs that cannot be opened.

    `ahead`: streams with companion logs on this disk, which the image did not know at the start.
    """

    def __init__(
        self,
        context: Context,
        partitions: Mapping[PartitionKey, Partition],
        failures: Mapping[PartitionKey, RemoteError],
        ahead: Set[StreamId],
    ) -> None:
        self.consumer: CompanionConsumer | None = None  # set before the node starts
        self._outbox = context.outbox
        self._broker_id = context.settings.broker_id
        self._partitions = partitions
        self.troubles = CompanionTroubles(partitions, failures)
        self._ahead = ahead
        self._passed: dict[PartitionKey, _Passed] = {}

    # Rows

    def advanced(self, partition: Partition) -> None:
        """Pass on what is committed now, if this is a log of marks."""
        if is_marks(partition.key.stream_id):
            self._read_on(partition, self._passed.setdefault(partition.key, _Passed()))

    def cut(self, partition: Partition) -> None:
        """Begin anew if committed rows that were passed on are not in the log any more."""
        passed = self._passed.get(partition.key)
        if passed is not None:
            passed.written = []
        if passed is not None and partition.committed_end < passed.end:
            self._reset(partition, passed)
            if self.consumer is not None and not partition.committed_end:
                key = target_key(partition.key)
                self.consumer.take(key, self.consumer.applying(key)(()), 0)  # no row is left: nothing is hidden
        self.advanced(partition)

    def closed(self, partition: Partition, error: RemoteError) -> None:
        """Forget a companion log that was removed from this broker."""
        passed = self._passed.pop(partition.key, None)
        if passed is not None:
            if passed.reading is not None:
                passed.reading.give_up()
                passed.reading = None
            if self.consumer is not None:
                self.consumer.forget(target_key(partition.key))
            while passed.waiting:
                passed.waiting.popleft()[1](error)

    def _reset(self, companion: Partition, passed: _Passed) -> None:
        if passed.reading is not None:
            passed.reading.give_up()
        passed.reading, passed.end, passed.known_end, passed.kept_us = None, companion.log_start, None, None
        passed.written = []
        if self.consumer is not None:
            self.consumer.reset(target_key(companion.key), passed.end)

    def _read_on(self, companion: Partition, passed: _Passed) -> None:
        if (consumer := self.consumer) is None:
            self._pass(companion, passed, companion.committed_end)
            return
        if passed.end < companion.log_start:
            self._reset(companion, passed)
        if passed.reading is not None or passed.end >= companion.committed_end or companion.closed:
            return
        key, end = target_key(companion.key), companion.committed_end
        rows, passed.written = passed.written, []
        if rows and rows[0].offset == passed.end and rows[-1].offset + 1 == end:
            consumer.take(key, consumer.applying(key)(rows), end)
            self._pass(companion, passed, end)
            return
        reading = passed.reading = ReadCompanionRows(companion.view(), passed.end, end, consumer.applying(key))

        def done(error: Exception | None) -> None:
            if passed.reading is not reading:
                return  # cut or closed meanwhile
            passed.reading, passed.failure = None, None
            if isinstance(error, QueryGivenUpError):
                return
            if error is not None and passed.end < companion.log_start:
                self._read_on(companion, passed)  # what it was to read was removed
                return
            if error is not None:
                passed.failure = companion.read_error(error)  # the next commit, or repair, tries again
                companion.tell(f"cannot be read: {error}", self._outbox)
                return
            assert self.consumer is not None
            self.consumer.take(key, reading.applied, reading.end)
            self._pass(companion, passed, reading.end)
            self._read_on(companion, passed)

        self._outbox.work(Lane.READ, reading.run, done)

    def _pass(self, companion: Partition, passed: _Passed, end: int) -> None:
        passed.end = max(passed.end, end)
        while passed.waiting and passed.waiting[0][0] <= passed.end:
            passed.waiting.popleft()[1](None)

    # Appends

    def led(self, target: Partition) -> Partition:
        """Return the companion of a partition led here, to append to it. Raise RemoteError (not_yet, overloaded)."""
        companion = self._partitions.get(marks_key(target.key)) if target.stream.has_marks else None
        if companion is None or companion.leadership is None or companion.leadership.target is not target.leadership:
            text = f"nothing was stored: the companion log of {target.label} is not led here yet; ask again in a moment"
            raise RemoteError(ErrorCode.NOT_YET, text)
        passed = self._passed.setdefault(companion.key, _Passed())
        if len(passed.waiting) >= limits.COMPANION_WAITING_MAX:
            text = f"nothing was stored: {len(passed.waiting)} committed marks of {target.label} are not applied yet"
            raise RemoteError(ErrorCode.OVERLOADED, f"{text}; ask again in a moment")
        return companion

    def written(self, key: PartitionKey, base_offset: int, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Take rows of a companion log that are committed, and about to be passed on. A few are not read again."""
        passed = self._passed.setdefault(key, _Passed())
        size_bytes = sum(len(value or b"") for _, value in rows)
        if passed.reading is None and size_bytes <= limits.COMPANION_BYTES_ON_LOOP:
            passed.written = [CompanionRow(Offset(base_offset + place), *row) for place, row in enumerate(rows)]

    def when_passed(self, key: PartitionKey, end: int, done: Callable[[RemoteError | None], None]) -> None:
        """Call `done` once the consumer has all rows of that companion log up to `end`, which is committed."""
        passed = self._passed.setdefault(key, _Passed())
        if passed.end >= end:
            done(None)
        else:
            passed.waiting.append((end, done))

    # Reads of the partitions

    def check_readable(self, partition: Partition) -> None:
        """Raise RemoteError if this replica does not know which messages are hidden (see the module's table).

        not_yet: it will know soon; corrupt_range, storage_failed, no_encryption_key: its companion log is unusable.
        """
        if not partition.stream.has_marks:
            if partition.key.stream_id in self._ahead:
                text = "has marks of what is hidden, and this broker has not heard so since it started"
                raise RemoteError(ErrorCode.NOT_YET, f"{partition.label} {text}; ask its leader, or again in a moment")
            return
        if (unusable := self.unusable(partition)) is not None:
            raise unusable
        key = marks_key(partition.key)
        companion = self._partitions[key]
        passed = self._passed.setdefault(key, _Passed())
        if (failure := passed.failure) is not None:
            self._read_on(companion, passed)
            raise failure
        if not self._knows(companion):
            text = f"this replica of {partition.label} does not know yet which messages are hidden"
            raise RemoteError(ErrorCode.NOT_YET, f"{text}; ask its leader, or again in a moment")
        if passed.known_end is None:
            passed.known_end = companion.committed_end
            self._read_on(companion, passed)
        leadership = companion.leadership
        needed = wanted = max(passed.known_end, 0 if leadership is None else leadership.epoch_start)
        # A replica that returns gets rows that others have erased meanwhile; with a limit by subject readers do not see
        # rows before the mark that decides on them.
        if leadership is None and not partition.needs_decisions:
            wanted = companion.committed_end
        if passed.end < wanted:
            text = f"what is hidden in {partition.label} is being read; ask again in a moment"
            raise RemoteError(ErrorCode.NOT_YET, text)
        if leadership is None and may_lack_marks(companion):
            text = f"this replica of {partition.label} has not got all marks of what is hidden"
            raise RemoteError(ErrorCode.NOT_YET, f"{text}; ask its leader, or again in a moment")
        if self.consumer is not None and partition.visible.shown_marks < min(partition.visible.known_marks, needed):
            self.consumer.committed(partition)
        if partition.visible.shown_marks < min(partition.visible.known_marks, needed):
            text = f"what is hidden in {partition.label} depends on messages or marks that are not committed here yet"
            raise RemoteError(ErrorCode.NOT_YET, f"{text}; ask its leader, or again in a moment")
        if partition.lags_marks:
            text = f"this replica of {partition.label} lacks messages that are older than what hides others"
            raise RemoteError(ErrorCode.NOT_YET, f"{text}; ask its leader, or again in a moment")

    def note_unusable(self, partition: Partition) -> None:
        """Have a leader that does not know what is hidden refuse at once what depends on it, if it cannot learn it."""
        error = None if partition.knows_hidden else self.unusable(partition)
        is_lasting = error is not None and error.code != ErrorCode.NOT_YET and not error.details.get("repairing")
        partition.marks_failure = error.message if error is not None and is_lasting else ""

    def unusable(self, partition: Partition) -> RemoteError | None:
        """Return why the log of marks of a partition that has one cannot be used; None if it can."""
        return self.troubles.find(partition, CompanionKind.MARKS)

    def _knows(self, companion: Partition) -> bool:
        """True if this replica knew, at some moment of its role, all that was committed."""
        if (leadership := companion.leadership) is not None:
            return leadership.knows_latest
        if not companion.is_copied:
            return True
        if companion.stream.partitions[companion.key.partition].leader == self._broker_id:
            return False  # it is to lead, and does not yet
        following = companion.following
        as_of_us = companion.fresh_us if following is None else following.freshness.as_of_us
        return as_of_us is not None

    def passed_as_of_us(self, companion: Partition, as_of_us: int | None) -> int | None:
        """Return the time up to which all committed rows were passed on; `as_of_us`: up to which the log has them."""
        passed = self._passed.setdefault(companion.key, _Passed())
        if passed.end >= companion.committed_end:
            passed.kept_us = as_of_us
        return passed.kept_us


def may_lack_marks(companion: Partition) -> bool:
    """True if this replica may have got rows that the leader has erased because of marks that are not here."""
    following = companion.following
    return companion.lags_leader if following is None else following.lags
