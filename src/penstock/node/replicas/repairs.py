"""Repairs corrupt replicas with data from other brokers: see `commitlog.repair`.

Rules: only a replica that another broker leads, and that is not in the ISR, is repaired, one at a time, at a bounded
rate: so nothing that others rely on is removed. A leader that finds its log corrupt resigns if another replica is in
sync. The current leader is asked first and sends what it has: what it lacks was never committed. The other replicas are
asked for what the leader cannot read either, and send committed batches; of one leader epoch those are identical.
Nothing is discarded because of a follower's answer, nor without a leader: the corrupt log may have been the longest.
But a log of marks whose partition has no leader is restored without one, also in the ISR: if all are corrupt, at
different places, none could lead. Then holes are filled with what others have there of the same leader epoch, committed
or not: it is what was there. A failed repair is retried with backoff, from another broker if the data of one did not
fit. The cleaner finishes with the log first, and starts nothing there meanwhile. The repaired log is opened as at a
start, and joins the ISR like any replica that lags. While it is closed, this broker neither leads nor follows with it.

| step                           | when it fails                 | what the replica reports meanwhile   |
|--------------------------------|-------------------------------|--------------------------------------|
| wanted                         | waits until it may be repaired| read-only, and what it waits for     |
| fetched, rewritten             | wanted again, later each time | read-only, and what failed           |
| closed, replaced               | opened, as the files are      |                                      |
| opened                         | opened again, later each time | failed: why its log cannot be opened |
| checked: still corrupt         | wanted again, later each time | read-only, and what failed           |
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from penstock.base import limits
from penstock.base.clock import growing
from penstock.base.errors import ErrorCode, OperationalError, PenstockError, RemoteError
from penstock.base.ids import BrokerId, Offset, PartitionKey
from penstock.commitlog import Log, LogState, LogView, MissingRange, RepairError, SegmentRepair, Slice
from penstock.messages import ReplicaRangeRequest, ReplicaRangeResponse, Response
from penstock.metadata.companions import is_marks
from penstock.node.context import Context
from penstock.node.maintenance.log_maintenance import LogMaintenance
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.partition.partition_events import PartitionEventKind, PartitionEvents
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.replicas.roles import Roles
from penstock.node.replicas.stream_lifecycle import StreamLifecycle
from penstock.node.security.access import Call
from penstock.node.step import FileRange, Lane

_RETRY_US = limits.REPAIR_RETRY_MS * 1_000
_SOON_US = limits.REPAIR_SOON_MS * 1_000


@dataclass(slots=True, eq=False)
class _Repair:
    """The repair under way."""

    partition: Partition
    mending: SegmentRepair | None  # None if its log only has to be reopened
    asked: set[BrokerId] = field(default_factory=set)  # brokers that could not fill the present hole
    givers: set[BrokerId] = field(default_factory=set)
    giver: BrokerId | None = None  # the last broker that sent data
    is_busy: bool = False  # a disk thread, a peer's answer or an fsync is awaited
    is_waiting: bool = False  # for a sync, before its log is closed


class Repairs:
    """Repairs this broker's replicas."""

    def __init__(
        self,
        context: Context,
        peers: PeerClient,
        partitions: Mapping[PartitionKey, Partition],
        upkeep: LogMaintenance,
        roles: Roles,
        streams: StreamLifecycle,
        events: PartitionEvents,
    ) -> None:
        self._outbox = context.outbox
        self._peers = peers
        self._broker_id = context.settings.broker_id
        self._partitions = partitions
        self._context = context
        self._upkeep = upkeep
        self._roles = roles
        self._streams = streams
        self._events = events
        self._wanted: dict[PartitionKey, int] = {}  # elapsed time of the next try
        self._tries: dict[PartitionKey, int] = {}  # consecutive failures
        self._misfits: dict[PartitionKey, set[BrokerId]] = {}  # brokers whose last data did not fit
        self._under_way: _Repair | None = None
        self._free_us = 0  # elapsed time when the rate limit permits more

    def schedule(self, partition: Partition) -> None:
        """Schedule a repair of a partition whose log was found corrupt."""
        may_mend = partition.is_replicated or partition.following is not None
        if may_mend and partition.log.state is LogState.READ_ONLY:
            self._wanted.setdefault(partition.key, self._context.now.elapsed_us)

    @property
    def next_deadline_us(self) -> int | None:
        if (repair := self._under_way) is not None:
            return None if repair.is_busy else self._free_us
        return min(self._wanted.values(), default=None)

    def tick(self, now_us: int) -> None:
        """Begin or continue a repair if it is time; `now_us` is elapsed time."""
        if (repair := self._under_way) is not None:
            if not repair.is_busy and now_us >= self._free_us:
                self._go_on(repair)
            return
        for key in [key for key, due_us in self._wanted.items() if due_us <= now_us]:
            partition = self._partitions.get(key)
            if partition is None or not _is_wanted(partition):
                for place in (self._wanted, self._tries, self._misfits):
                    place.pop(key, None)
                continue
            waits_for = self._waits_for(partition)
            if not waits_for and self._under_way is not None:
                waits_for = "it is mended after another one"
            if not waits_for and not self._upkeep.cleaners.gives_way(partition):
                waits_for = "it is mended once the cleaner is done with it"
            if not waits_for:
                self._begin(partition)
                continue
            if key not in self._tries:
                partition.mending = waits_for
            is_soon = self._counts(partition) or partition.log.is_cleaned
            self._wanted[key] = now_us + (_SOON_US if is_soon else _RETRY_US)

    def _waits_for(self, partition: Partition) -> str:
        """Return why it cannot be repaired now; empty if it can."""
        if partition.closed:
            return ""
        log, state = partition.log, partition.stream.partitions[partition.key.partition]
        restores = _is_restored(partition)
        if self._counts(partition) and not restores:
            return "it is in sync by the metadata, or leads: it is mended once another replica is in sync, and leads"
        if state.leader in (None, self._broker_id) and not restores:
            return "it is mended once another broker leads"
        if state.leader_epoch < log.leader_epoch:
            return (
                f"it is not mended: its log has seen leader epoch {log.leader_epoch}, and the metadata says "
                f"{state.leader_epoch}: the metadata has lost commands"
            )
        is_idle = partition.cutting is None and not partition.flushing
        has_unsynced = log.flushed_end != log.log_end and not log.awaits_opening
        return "" if is_idle and not has_unsynced else "it is mended once all that it has is on the disk"

    def _counts(self, partition: Partition) -> bool:
        """True if the replica leads or may lead next: then it must not be changed."""
        state = partition.stream.partitions[partition.key.partition]
        return partition.leadership is not None or self._broker_id in state.isr

    def _begin(self, partition: Partition) -> None:
        is_to_mend = not partition.closed and not partition.log.awaits_opening
        self._under_way = repair = _Repair(partition, partition.log.repair() if is_to_mend else None)
        self._go_on(repair)

    def forget(self, partition: Partition) -> None:
        """Forget a removed partition."""
        repair = self._under_way
        if repair is not None and repair.partition is partition:
            if repair.is_waiting:
                self._end(repair)
        elif partition.closed:
            self._upkeep.cut_done(partition)  # nothing else uses its files

    def closed(self) -> Iterator[Partition]:
        """Return the partitions whose logs are closed and cannot be opened: what they hold is unknown."""
        return (partition for key in self._wanted if (partition := self._partitions.get(key)) and partition.closed)

    # Rewriting

    def _go_on(self, repair: _Repair) -> None:
        mending = repair.mending
        if self._is_lost(repair):
            self._end(repair)
            return
        if mending is None or mending.is_done:
            self._place(repair)
            return
        if mending.hole is not None:
            self._ask(repair, mending, mending.hole)
            return
        repair.is_busy = True

        def done(error: Exception | None) -> None:
            repair.is_busy = False
            self._free_us = self._context.now.elapsed_us + mending.moved_bytes * 1_000_000 // limits.REPAIR_BYTES_PER_S
            if error is not None:
                if isinstance(error, RepairError) and repair.giver is not None:
                    self._misfits.setdefault(repair.partition.key, set()).add(repair.giver)
                self._fail(repair, f"cannot be mended: {error}")
            elif mending.hole is not None or mending.is_done:
                self._go_on(repair)

        self._outbox.work(Lane.QUERY, mending.run, done)

    def _is_lost(self, repair: _Repair) -> bool:
        """True if it must not be repaired now."""
        partition = repair.partition
        if not self._is_here(partition):
            return True
        if partition.closed:  # it is only to be opened
            return False
        truncates = repair.mending is not None and repair.mending.truncates
        return self._counts(partition) and (truncates or not _is_restored(partition))

    def _is_here(self, partition: Partition) -> bool:
        return self._partitions.get(partition.key) is partition and partition.when_idle is None

    def _fail(self, repair: _Repair, why: str) -> None:
        key = repair.partition.key
        repair.partition.mending, repair.partition.mending_fails = f"it {why}", True
        repair.partition.tell(why, self._outbox)
        self._end(repair)
        tries = self._tries[key] = self._tries.get(key, 0) + 1
        delay_ms = growing(limits.REPAIR_RETRY_MS, tries, limits.REPAIR_RETRY_MS_MAX)
        self._wanted[key] = self._context.now.elapsed_us + delay_ms * 1_000

    def _end(self, repair: _Repair) -> None:
        """End the repair under way; schedule the next if the log is still corrupt."""
        if repair.mending is not None:
            repair.mending.close()
        self._under_way = None
        partition = repair.partition
        self._wanted.pop(partition.key, None)
        if self._is_here(partition) and _is_wanted(partition):
            self._wanted[partition.key] = self._context.now.elapsed_us + _RETRY_US

    # Data of other brokers

    def _ask(self, repair: _Repair, mending: SegmentRepair, hole: MissingRange) -> None:
        partition = repair.partition
        state = partition.stream.partitions[partition.key.partition]
        others = [one for one in state.replicas if one not in (self._broker_id, state.leader)]
        givers = others if state.leader in (None, self._broker_id) else [state.leader, *others]
        misfits = self._misfits.get(partition.key, set())
        left = [one for one in givers if one not in repair.asked and self._peers.is_up(one)]
        giver = next((one for one in left if one not in misfits), None)
        if giver is None:
            self._misfits.pop(partition.key, None)  # the next time all are asked again
            self._fail(repair, f"cannot be mended yet: no other replica gives offset {hole.offset}; it is tried again")
            return
        request = ReplicaRangeRequest(
            stream_id=partition.key.stream_id,
            partition=partition.key.partition,
            leader_epoch=state.leader_epoch,
            offset=Offset(hole.offset),
            end=Offset(hole.end_offset),
            bytes_max=limits.REPAIR_BYTES_AT_ONCE,
        )
        repair.is_busy = True
        leads = giver == state.leader

        def done(response: Response | RemoteError, raw: bytes | memoryview) -> None:
            repair.is_busy = False
            if self._under_way is not repair:
                return
            if self._take(mending, response, bytes(raw), leads=leads):
                repair.asked.clear()
                repair.givers.add(giver)
                repair.giver = giver
            else:
                repair.asked.add(giver)
            self._go_on(repair)

        self._peers.send(giver, request, done=done)

    def _take(self, mending: SegmentRepair, response: Response | RemoteError, raw: bytes, *, leads: bool) -> bool:
        """Return True if the answer fills the hole. `leads`: by the image, its sender is the leader."""
        hole = mending.hole
        assert hole is not None
        if isinstance(response, ReplicaRangeResponse):
            if raw:
                mending.offer(raw, leads=leads and response.leads)
            elif leads and response.leads:
                mending.ends()
            return mending.hole is None
        assert isinstance(response, RemoteError), response
        log_start = response.details.get("log_start")
        if not leads or response.code != ErrorCode.OFFSET_OUT_OF_RANGE or not isinstance(log_start, int):
            return False
        if log_start > hole.offset:
            mending.begins(log_start)
        return log_start > hole.offset

    # Replacing the log

    def _place(self, repair: _Repair) -> None:
        """Replace the log once no fsync is under way; none begins until it is open again."""
        partition = repair.partition
        if partition.closed:
            self._open(repair)
            return
        if partition.cutting is not None:
            self._fail(repair, "cannot be mended now: its log is being cut; it is tried again")
            return
        repair.is_busy = repair.is_waiting = True
        self._upkeep.cut(partition, lambda: self._close(repair))

    def _close(self, repair: _Repair) -> None:
        partition = repair.partition
        repair.is_waiting = False
        if self._is_lost(repair):  # this broker is to lead by now
            self._end(repair)
            self._settle(partition)
            return
        self._roles.leave(partition)
        try:
            partition.log.supersede()
        except OperationalError as error:
            partition.tell(f"cannot be closed cleanly to be mended: {error}", self._outbox)
        self._open(repair)

    def _open(self, repair: _Repair) -> None:
        """Put the rewritten files in place, once, and open the log."""
        partition = repair.partition
        mending = None if partition.closed else repair.mending
        opened: list[Log] = []
        refused: list[Exception] = []
        repair.is_busy = True

        def run() -> None:
            try:
                if mending is not None:
                    mending.place()
            except (OSError, PenstockError) as error:
                refused.append(error)  # as after a crash; opening the log recovers
            opened.append(self._streams.open_again(partition))

        def done(error: Exception | None) -> None:
            repair.is_busy = False
            if partition.when_idle is not None:
                for log in opened:
                    log.close()
                self._end(repair)
                self._settle(partition)
            elif error is None:
                self._opened(repair, opened[0], *refused)
                self._settle(partition)
            else:
                why = ": ".join(map(str, (*refused, error)))
                partition.closed = f"its log was closed to be mended, and cannot be opened: {why}"
                self._fail(repair, f"cannot be opened, once it was mended: {why}; it is tried again")

        self._outbox.work(Lane.WRITE, run, done)

    def _settle(self, partition: Partition) -> None:
        self._upkeep.cut_done(partition)
        if partition.when_idle is None:
            self._roles.update(partition)

    def _opened(self, repair: _Repair, log: Log, *refused: Exception) -> None:
        partition, mending = repair.partition, repair.mending
        partition.reopened(log)
        if log.state is LogState.READ_ONLY and mending is None:
            self._is_open(repair, log)
            return
        if log.state is LogState.READ_ONLY:
            why = f": {refused[0]}" if refused else ""
            self._fail(repair, f"was mended, and is damaged still{why}; it is tried again")
            self._upkeep.opened(partition)
            return
        for place in (self._tries, self._misfits):
            place.pop(partition.key, None)
        self._end(repair)
        if mending is not None:
            self._tell_mended(repair, mending)
        self._upkeep.opened(partition)
        self._events.add(PartitionEventKind.REPAIRED, partition)

    def _is_open(self, repair: _Repair, log: Log) -> None:
        """Handle a log that was only reopened, and still is to be repaired."""
        if log.awaits_opening:
            self._fail(repair, "cannot be mended yet: its end cannot be brought to the disk; it is tried again")
        else:
            self._end(repair)
            self._wanted[repair.partition.key] = self._context.now.elapsed_us
        self._upkeep.opened(repair.partition)

    def _tell_mended(self, repair: _Repair, mending: SegmentRepair) -> None:
        partition = repair.partition
        partition.counters["repaired_ranges"] += mending.ranges
        partition.counters["repaired_bytes"] += mending.offered_bytes
        givers = ", ".join(map(str, sorted(repair.givers)))
        came = f", for which {mending.offered_bytes} bytes came from broker {givers}" if givers else ""
        ranges = f"{mending.ranges} damaged range{'' if mending.ranges == 1 else 's'}"
        kept = "; what was damaged is kept beside it, in files with .cut- in their names"
        self._outbox.notice(f"{partition.label} is mended: {ranges}{came}{kept if mending.has_kept else ''}")

    # Serving other brokers

    def serve(self, find: PartitionLookup, call: Call, request: ReplicaRangeRequest) -> None:
        """Send committed batches to a broker whose replica is corrupt. Raise RemoteError."""
        partition = find.replica(request.stream_id, request.partition)
        leadership, view = partition.leadership, partition.view()
        leads = leadership is not None and leadership.leader_epoch == request.leader_epoch
        end = view.log_end if leads or _is_restored(partition) else partition.committed_end
        found: list[Slice | None] = []

        def run() -> None:
            found.append(_sound(view, request, end))

        def done(error: Exception | None) -> None:
            if error is not None:
                self._outbox.reply(call.caller, as_remote_error(error))
                return
            (one,) = found
            extent = one and FileRange(partition.vfs, one.path, one.position, one.length, partition.log.damage_found)
            self._outbox.reply(call.caller, ReplicaRangeResponse(leads=leads), extent)

        self._outbox.work(Lane.READ, run, done)


def _is_restored(partition: Partition) -> bool:
    """True for a log of marks while its partition has no leader; see the module. It is never compacted."""
    state = partition.stream.partitions[partition.key.partition]
    return is_marks(partition.key.stream_id) and state.leader is None


def _is_wanted(partition: Partition) -> bool:
    return bool(partition.closed) or partition.log.state is LogState.READ_ONLY


def _sound(view: LogView, request: ReplicaRangeRequest, end: int) -> Slice | None:
    """Return the verified range, at most up to `end` and little more than requested. Raise RemoteError or OSError."""
    offset, wanted_end = request.offset, min(request.end, end)
    if view.log_start <= offset and offset >= wanted_end:
        return None
    bytes_max = max(1, min(request.bytes_max, limits.REPLICA_FETCH_BYTES))
    with contextlib.suppress(RemoteError):  # corrupt here, too: what lies before may be sent
        end = min(end, view.batch_at(wanted_end - 1)[1].end_offset)
    found = view.slice(offset, end=end, bytes_max=bytes_max)
    if found is not None and (sound_end := view.sound_end(found)) < found.end_offset:
        found = view.slice(offset, end=sound_end, bytes_max=bytes_max)
    return found
