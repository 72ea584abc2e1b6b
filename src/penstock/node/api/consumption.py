"""Consumption: hides what the consumers of streams with retention `workqueue` or `interest` need no more.

Rules: the caller runs the consumers, and says which rows these are (`consumers.interest`); the leader hides them by
marks. One mark is under way for a partition; what comes meanwhile is the next one's. A caller is told once its rows are
hidden by a committed mark: then no look-up, count or reader shows them, here or at any later leader. The marks are on
the disks of the in-sync replicas by then, as all marks are, so rows that no client waits for share one with others:
between two marks lie CONSUME_PAUSE_MS, unless a client waits. A caller that is told of an error has its rows hidden or
not, and asks again.

    consume → gathered → mark committed, applied: told → gathered meanwhile …
                 └─ pause, unless awaited

The log start follows what is hidden at the beginning of the log, once the deduplication window is over: the message ids
below the log start are forgotten in the next leadership.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeAlias

from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.commitlog import LogState, LogView
from penstock.live.marks import ROWS_BYTES_MAX, HideReason
from penstock.live.row_set import NONE, RowSet
from penstock.messages import AppendResponse
from penstock.node.api.row_decisions import AppendToCompanion, RowDecisions
from penstock.node.api.stream_interest import StreamInterest
from penstock.node.context import Context
from penstock.node.partition.leader_hints import not_leader
from penstock.node.partition.partition import Partition
from penstock.node.replicas.replicas import Replicas
from penstock.node.step import Lane
from penstock.replication.leader import Leadership

Done: TypeAlias = Callable[[RemoteError | None], None]
"""Called once, perhaps before the call returns that it was given to."""

_PAUSE_US = limits.CONSUME_PAUSE_MS * 1_000


class _FindIds:
    """Finds the first message whose id still counts, in a disk thread."""

    def __init__(self, view: LogView, since_us: int) -> None:
        self._view, self._since_us = view, since_us
        self.ids_from = view.log_start

    def run(self) -> None:
        """Raise OSError. What is damaged is taken to hold ids that count."""
        try:
            self.ids_from = self._view.offset_at(self._since_us, end=self._view.log_end)
        except (RemoteError, CorruptionError):
            return


class _Consuming:
    """The rows of one partition that are to be hidden in one leadership."""

    __slots__ = (
        "begun_us",
        "gathered",
        "is_awaited",
        "is_looking",
        "leadership",
        "partition",
        "pieces",
        "told",
        "waiting",
    )

    def __init__(self, partition: Partition, leadership: Leadership) -> None:
        self.partition, self.leadership = partition, leadership
        self.gathered = NONE
        self.waiting: list[Done] = []  # told once what is gathered is hidden
        self.is_awaited = False  # a client waits for one of these
        self.pieces: deque[RowSet] = deque()  # being hidden, one mark each; the first one is under way
        self.told: list[Done] = []  # told once all of these are
        self.begun_us = -_PAUSE_US  # when the last mark began
        self.is_looking = False  # for the ids that count

    @property
    def is_current(self) -> bool:
        return self.partition.leadership is self.leadership and self.partition.when_idle is None


class Consumption:
    """Consumed rows of the partitions that this broker leads."""

    def __init__(
        self,
        context: Context,
        replicas: Replicas,
        interest: StreamInterest,
        decisions: RowDecisions,
        *,
        write: AppendToCompanion,
    ) -> None:
        self._context, self._outbox = context, context.outbox
        self._partitions, self._hidden = replicas.partitions, replicas.hidden_rows
        self._upkeep = replicas.log_maintenance
        self._interest, self._decisions = interest, decisions
        self._write = write
        self._consuming: dict[Partition, _Consuming] = {}
        self._paused: dict[_Consuming, None] = {}

    # Requests

    def consume(self, key: PartitionKey, rows: RowSet, done: Done, *, is_awaited: bool = False) -> None:
        """Hide rows that no consumer of a partition led here needs; `done` once no reader is shown them any more.

        `is_awaited`: a client waits for it. Rows that are not shown yet, or no more, are left out. `done` gets, or this
        raises with nothing done: not_leader, not_yet, read_only (deletion is suspended, or the stream is sealed),
        storage_failed, overloaded, … A stream without such a retention loses nothing, and `done` is called.
        """
        partition = self._led(key)
        if not partition.stream.config.is_consumed:
            done(None)
            return
        self._check(partition)
        rows = rows.between(partition.log_start, partition.visible_end)
        if rows.is_within(partition.log.hidden or NONE):
            done(None)
            return
        one = self._of(partition)
        if len(one.waiting) >= limits.CONSUME_WAITERS_MAX or one.gathered.size_bytes >= limits.CONSUME_BYTES_MAX:
            raise RemoteError(ErrorCode.OVERLOADED, f"too many acked messages of {partition.label} wait to be removed")
        one.gathered |= rows
        one.waiting.append(done)
        one.is_awaited |= is_awaited
        self._go_on(one)

    def when_consumed(self, key: PartitionKey, done: Done) -> None:
        """Call `done` once all rows that were given to `consume` before are hidden, or could not be.

        Who creates a consumer waits for it behind `tell_interest`: from then on each message is kept for the new
        consumer, or was never shown to it. Raise RemoteError not_leader.
        """
        one = self._consuming.get(self._led(key))
        if one is None or not one.is_current or not (one.gathered or one.pieces):
            done(None)
        elif one.gathered:
            one.waiting.append(done)
            one.is_awaited = True
            self._go_on(one)
        else:
            one.told.append(done)

    def tell_interest(self, key: PartitionKey, filters: Collection[str]) -> None:
        """Take the filters of all consumers of a partition led here, in its present leadership; none want nothing.

        Rows that are committed from now on are shown if one of the filters matches. A consumer without a filter wants
        `>`. Raise RemoteError not_leader.
        """
        partition = self._led(key)
        self._interest.tell(partition, filters)
        if partition.drops_unwanted:
            self._decisions.check(partition)

    def agreed_end(self, key: PartitionKey, offset: int, leader_epoch: int | None) -> int:
        """Return how far a position holds that was committed in an epoch: an unclean election may have put other rows
        behind that epoch's end. 0 if the partition is not led here; None as epoch: it holds as it is.
        """
        partition = self._partitions.get(key)
        if partition is None or partition.leadership is None:
            return 0
        return offset if leader_epoch is None else min(offset, partition.log.epoch_end(leader_epoch).start_offset)

    def _led(self, key: PartitionKey) -> Partition:
        partition = self._partitions.get(key)
        if partition is None or partition.leadership is None or partition.when_idle is not None:
            image = self._context.image
            raise not_leader(image, image.by_id(key.stream_id), key.partition)
        return partition

    def _check(self, partition: Partition) -> None:
        partition.require_high_watermark()
        text = f"nothing of {partition.label} was removed"
        if partition.log.state is not LogState.WRITABLE:
            raise RemoteError(
                ErrorCode.STORAGE_FAILED, f"{text}: its log is {partition.log.state.value}; see its status"
            )
        if partition.stream.intake is Intake.SEALED:
            raise RemoteError(ErrorCode.READ_ONLY, f"{text}: the stream is sealed")
        if partition.stream.config.is_deletion_suspended:
            raise RemoteError(ErrorCode.READ_ONLY, f"{text}: its deletion is suspended (suspend_deletion)")

    # Marks

    def _of(self, partition: Partition) -> _Consuming:
        one, leadership = self._consuming.get(partition), partition.leadership
        assert leadership is not None
        if one is None or one.leadership is not leadership:
            one = self._consuming[partition] = _Consuming(partition, leadership)
        return one

    def _go_on(self, one: _Consuming) -> None:
        """Begin the next mark, unless one is under way, or a pause is."""
        if one.pieces or not one.gathered:
            return
        now_us = self._context.now.elapsed_us
        if not one.is_awaited and now_us < one.begun_us + _PAUSE_US:
            self._paused[one] = None
            return
        self._paused.pop(one, None)
        one.begun_us, one.is_awaited = now_us, False
        one.pieces.extend(one.gathered.split(ROWS_BYTES_MAX))
        one.gathered, one.told, one.waiting = NONE, one.waiting, []
        self._write_next(one)

    def _write_next(self, one: _Consuming) -> None:
        try:
            rows = self._hidden.marks(one.partition, (one.pieces[0],), HideReason.CONSUMED, "", self._context.now)
            self._write(one.partition, rows, partial(self._written, one))
        except RemoteError as error:
            self._settle(one, error)

    def _written(self, one: _Consuming, answer: AppendResponse | RemoteError) -> None:
        if not one.pieces:  # its leadership has ended, and its callers know
            return
        if isinstance(answer, RemoteError):
            self._settle(one, answer)
            return
        one.pieces.popleft()
        if one.pieces:
            self._write_next(one)
        else:
            self._settle(one, None)

    def _settle(self, one: _Consuming, error: RemoteError | None) -> None:
        one.pieces.clear()
        told, one.told = one.told, []
        for done in told:
            done(error)
        if one.is_current:
            self._go_on(one)

    def ended(self, partition: Partition, error: RemoteError) -> None:
        """Tell what waits that a partition is no longer led here, or gone; what was asked may still take effect."""
        self._interest.forget(partition)
        one = self._consuming.pop(partition, None)
        if one is None:
            return
        self._paused.pop(one, None)
        one.told, one.waiting, one.gathered = one.told + one.waiting, [], NONE
        self._settle(one, error)

    def stop(self, error: RemoteError) -> None:
        """Tell all that waits that the broker stops. May be called twice."""
        for partition in list(self._consuming):
            self.ended(partition, error)

    # Time

    def resume(self, now_us: int) -> None:
        """Begin the marks whose pause is over; `now_us` is elapsed time."""
        for one in [one for one in self._paused if one.begun_us + _PAUSE_US <= now_us]:
            self._go_on(one)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `resume` must run."""
        return min((one.begun_us + _PAUSE_US for one in self._paused), default=None)

    def watch(self, partition: Partition) -> None:
        """Look after a partition, once a second, whose leadership or retention has begun."""
        is_meant = partition.stream.config.is_consumed or self._hidden.has_interest(partition)
        if is_meant and partition.leadership is not None and partition.when_idle is None:
            self._of(partition)

    def tick(self) -> None:
        """Have log starts follow what is hidden, and end what no longer is the retention of a stream."""
        for one in list(self._consuming.values()):
            partition = one.partition
            if not one.is_current:
                continue
            if partition.stream.config.is_consumed:
                self._raise_start(one)
            if not partition.drops_unwanted and self._hidden.has_interest(partition):
                self._end_interest(partition)

    def _end_interest(self, partition: Partition) -> None:
        """Say that what no consumer wants is shown from now on. Repeated until it is known here."""
        try:
            self._write(partition, self._hidden.end_of_interest(partition, self._context.now), lambda _: None)
        except RemoteError:
            return  # the next tick tries again

    def _raise_start(self, one: _Consuming) -> None:
        partition = one.partition
        hidden, log_start = partition.log.hidden, partition.log_start
        if one.is_looking or hidden is None or partition.stream.config.is_deletion_suspended:
            return
        if min(hidden.first_absent(log_start), partition.visible_end) <= log_start:
            return
        window_ms = partition.stream.config.dedup_window_ms
        if window_ms is None:
            self._raise(partition, partition.log.log_end)
            return
        query = _FindIds(partition.view(), self._context.now.wall_us - window_ms * 1_000)
        one.is_looking = True

        def found(error: Exception | None) -> None:
            one.is_looking = False
            if error is None and one.is_current:
                self._raise(partition, query.ids_from)

        self._outbox.work(Lane.READ, query.run, found)

    def _raise(self, partition: Partition, ids_from: int) -> None:
        """Raise the log start over what is hidden, up to the message ids that count."""
        hidden = partition.log.hidden or NONE
        start = min(hidden.first_absent(partition.log_start), partition.visible_end, ids_from)
        if start > partition.log_start:
            self._upkeep.give_up(partition, start)  # at False the next tick tries again
