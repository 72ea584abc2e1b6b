"""Leader side of replication: leaderships, follower fetches, and ISR change requests of the partitions led here.

Rules: the decisions of a leadership (`penstock.replication.leader`) are passed to its partition at once; answers to
followers go out with the step (`settle`). A follower reads what is written, committed or not. A disk thread looks up
what is not in memory, and verifies it if the follower refused it before. A partition whose log takes no more messages,
and that other brokers could lead, is resigned.

| event                          | here                | then                                                     |
|--------------------------------|---------------------|----------------------------------------------------------|
| the image has this broker lead | `begin`, `image`    | subscribe; the epoch is written with the first message   |
| messages are written           | `appended`          | followers' fetches are answered                          |
| a sync is done                 | `flushed`           | perhaps committed                                        |
| a follower fetches, or reports | `fetch`, `progress` | perhaps committed, perhaps another ISR is requested      |
| the image has another one lead | `end`               | pending acks are dropped                                 |
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.clock import Now, earliest
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import BrokerId, Incarnation, PartitionKey
from penstock.commitlog import Slice
from penstock.messages import (
    ChangeIsrRequest,
    ChangeIsrResponse,
    ReplicaFetchRequest,
    ReplicaProgressRequest,
    ReplicaProgressResponse,
    Response,
)
from penstock.metadata.companions import kind_of
from penstock.metadata.image import PartitionState
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.maintenance.log_maintenance import LogMaintenance
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.replicas.leader_leases import LeaderLeases
from penstock.node.step import FileRange, Lane
from penstock.node.subscriptions.nats_listener import NatsListener
from penstock.replication.isr_proposals import ChangeBatch, IsrProposer
from penstock.replication.leader import Leadership, LogEndsAtStart
from penstock.replication.leadership_timers import LeadershipTimers
from penstock.replication.sessions import BatchLookup, Sessions


class _Range(NamedTuple):
    """A byte range of whole batches in a led log's segment file."""

    partition: Partition
    found: Slice

    @property
    def length(self) -> int:
        """Size in bytes."""
        return self.found.length

    def piece(self) -> FileRange:
        partition, found = self
        return FileRange(partition.vfs, found.path, found.position, found.length, partition.log.damage_found)


class _InMemory(NamedTuple):
    """The last batch of a led log, as it was written."""

    data: bytes | bytearray

    @property
    def length(self) -> int:
        """Size in bytes."""
        return len(self.data)

    def piece(self) -> bytes | bytearray:
        return self.data


class _LedLog:
    """Log access for followers' fetches of one led partition."""

    __slots__ = ("_partition",)

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def epoch_end(self, leader_epoch: int) -> tuple[int, int]:
        return self._partition.log.epoch_end(leader_epoch)

    def find(self, offset: int, bytes_max: int) -> _Range | _InMemory | None:
        log = self._partition.log
        latest = log.latest
        if latest is not None and latest.base_offset == offset and latest.end_offset == log.log_end:
            return _InMemory(latest.data)
        view = log.view()
        is_cold = offset < view.log_start or not view.in_memory(offset)
        return None if is_cold else self.lookup_task(offset, bytes_max)()

    def lookup_task(self, offset: int, bytes_max: int, *, verifies: bool = False) -> Callable[[], _Range]:
        """Return the look-up, for any thread. With `verifies` it stops before corrupt bytes and reports them."""
        partition = self._partition
        view = partition.log.view()

        def run() -> _Range:
            try:
                found = view.replica_range(offset, bytes_max=bytes_max)
                if verifies and found is not None and (sound_end := view.sound_end(found)) < found.end_offset:
                    found = view.slice(max(offset, view.log_start), end=sound_end, bytes_max=bytes_max)
            except (OSError, OperationalError) as error:
                raise as_remote_error(error) from error
            assert found is not None, (partition.key, offset, view.log_end)
            return _Range(partition, found)

        return run


class LeaderReplication:
    """All partitions that this broker leads."""

    def __init__(
        self,
        context: Context,
        partitions: Mapping[PartitionKey, Partition],
        maintenance: LogMaintenance,
        cluster: Cluster,
        listener: NatsListener,
        leases: LeaderLeases,
    ) -> None:
        self._leases = leases
        self._outbox = context.outbox
        self._broker_id = context.settings.broker_id
        self._partitions = partitions
        self._context = context
        self._maintenance = maintenance
        self._cluster = cluster
        self._listener = listener
        self.is_heard = True  # the metadata leader answers this broker; set by `Roles`
        self._sessions = Sessions()
        self._is_draining = False
        self._timers: LeadershipTimers[Leadership] = LeadershipTimers()
        self._proposer = IsrProposer(self._timers)
        self._incarnation: Incarnation | None = None

    def runs_changed(self, before: Mapping[BrokerId, Incarnation], live: Mapping[BrokerId, Incarnation]) -> None:
        """End the fetch sessions of brokers whose incarnation is over."""
        for broker_id, incarnation in before.items():
            if live.get(broker_id) != incarnation:
                for caller, error in self._sessions.ended(broker_id):
                    self._outbox.reply(caller, error)

    def registered(self, incarnation: Incarnation) -> None:
        """Set the incarnation that ISR change requests carry."""
        self._incarnation = incarnation

    # Leaderships

    def begin(
        self,
        partition: Partition,
        state: PartitionState,
        live: Mapping[BrokerId, Incarnation],
        now: Now,
        target: Leadership | None = None,
    ) -> None:
        """Begin a leadership in a new leader epoch; of a companion log, beside that of its `target`."""
        log = partition.log
        # Offsets truncated on request were committed, even if this broker had not learned so.
        committed_end = max(partition.committed_end, partition.truncated_end)
        ends = LogEndsAtStart(log.log_start, committed_end, log.flushed_end, log.log_end)
        promised = self._leases.binding(state.replicas) if target is None else {}
        leadership = Leadership(
            partition.key,
            self._broker_id,
            state,
            live,
            ends,
            partition.terms,
            self._timers,
            now.elapsed_us,
            target,
            kind=kind_of(partition.key.stream_id),
            promised=promised,
        )
        partition.lead(leadership)
        self._answer_for(partition, leadership)

    def image(
        self, partition: Partition, state: PartitionState, live: Mapping[BrokerId, Incarnation], now: Now
    ) -> None:
        """Apply a changed image to a leadership that goes on."""
        leadership = partition.leadership
        assert leadership is not None
        if leadership.image(state, live, now.elapsed_us):
            self._advance_high_watermark(leadership, now)
        for one in leadership.tied():
            self._sessions.image(one)
            if not self._sessions.leads(one.key):
                self._answer_for(self._partitions[one.key], one)  # another broker holds a replica by now

    def _answer_for(self, partition: Partition, leadership: Leadership) -> None:
        if len(leadership.holders) > 1:
            self._sessions.lead(leadership, _LedLog(partition))
            partition.log.keep_latest(True)

    def as_of_us(self, partition: Partition) -> int | None:
        """Elapsed time up to which this leader knows what was committed; None if it does not know."""
        assert partition.leadership is not None
        if not partition.is_replicated:
            return self._context.now.elapsed_us
        return self._cluster.confirmed_us if partition.leadership.knows_latest else None

    def end(self, partition: Partition) -> None:
        """End the leadership: another broker leads, or none."""
        leadership = partition.leadership
        assert leadership is not None
        partition.fresh_us = self.as_of_us(partition)
        self._sessions.resign(partition.key)
        partition.log.keep_latest(False)
        leadership.end()

    # Log events

    def appended(self, partition: Partition) -> None:
        """Notify followers that the log has grown; the leadership already knows."""
        assert partition.leadership is not None
        self._sessions.appended(partition.leadership)

    def ends_moved(self, partition: Partition, now: Now) -> None:
        """Notify followers that `committed_end` or `log_start` has moved."""
        if partition.leadership is not None:
            self._sessions.ends_moved(partition.leadership, now.elapsed_us)

    def _advance_high_watermark(self, leadership: Leadership, now: Now) -> None:
        """Pass on that a high watermark may have moved, of this log or its companions'."""
        for one in leadership.tied():
            partition = self._partitions.get(one.key)
            if partition is not None and partition.leadership is one:
                self._sessions.ends_moved(one, now.elapsed_us)
                self._maintenance.advance_high_watermark(partition)

    # Requests of followers

    def fetch(
        self, caller: Hashable, request: ReplicaFetchRequest, live: Mapping[BrokerId, Incarnation], now: Now
    ) -> None:
        """Handle a follower's fetch; the answer goes out with this step or later. Raise RemoteError."""
        for leadership in self._sessions.fetch(caller, request, live.get(request.broker_id), now.elapsed_us):
            self._advance_high_watermark(leadership, now)

    def progress(
        self, caller: Hashable, request: ReplicaProgressRequest, live: Mapping[BrokerId, Incarnation], now: Now
    ) -> None:
        """Handle a follower's report of its flushed offset. Raise RemoteError."""
        for leadership in self._sessions.progress(request, live.get(request.broker_id), now.elapsed_us):
            self._advance_high_watermark(leadership, now)
        self._outbox.reply(caller, ReplicaProgressResponse())

    def drain(self, now: Now) -> None:
        """Tell followers that this broker was subscribed to NATS until now; later answers no longer claim it."""
        self._sessions.answer_all_now(now.elapsed_us)
        self.settle(now)
        self._is_draining = True

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Forget the fetches of disconnected callers."""
        self._sessions.callers_disconnected(callers)

    # Each step, and timers

    def settle(self, now: Now) -> None:
        """Send due answers to followers and request ISR changes."""
        for answer in self._sessions.answers(now.elapsed_us):
            pieces = tuple(found.piece() for found in answer.found if isinstance(found, _Range | _InMemory))
            confirmed_us = self._cluster.confirmed_us
            response = msgspec.structs.replace(
                answer.response,
                has_nats=self._listener.has_nats and self.is_heard and not self._is_draining,
                confirmed_us=None if confirmed_us is None else max(0, now.elapsed_us - confirmed_us),
            )
            self._outbox.reply(answer.caller, response, pieces or None)
        for lookup in self._sessions.lookups():
            self._look_up(lookup)
        if self._timers.has_wishes:
            self._propose(now)

    def _look_up(self, lookup: BatchLookup) -> None:
        partition = self._partitions.get(lookup.key)
        if partition is None or partition.leadership is None:
            return
        run = _LedLog(partition).lookup_task(lookup.offset, lookup.bytes_max, verifies=lookup.verifies)
        result: list[_Range] = []

        def done(error: Exception | None) -> None:
            self._sessions.found(lookup, result[0] if error is None else as_remote_error(error))

        self._outbox.work(Lane.READ, lambda: result.append(run()), done)

    def _propose(self, now: Now) -> None:
        if self._incarnation is None or (batch := self._proposer.request(now.elapsed_us)) is None:
            return
        request = ChangeIsrRequest(broker_id=self._broker_id, incarnation=self._incarnation, changes=batch.changes)
        self._cluster.link.ask(request, lambda response: self._proposed(batch, response))

    def _proposed(self, batch: ChangeBatch, response: Response | RemoteError) -> None:
        now = self._context.now
        if not isinstance(response, ChangeIsrResponse):
            is_elsewhere = isinstance(response, RemoteError) and response.code == ErrorCode.NOT_METADATA_LEADER
            retry_ms = limits.ISR_RETRY_SOON_MS if is_elsewhere else limits.ISR_RETRY_MS
            self._proposer.lost(batch.number, now.elapsed_us, retry_ms)
            return
        for leadership in self._proposer.answered(batch.number, response.results, now.elapsed_us):
            self._advance_high_watermark(leadership, now)

    def tick(self, now: Now) -> None:
        """Find lagging followers and overdue answers."""
        for leadership in self._timers.due(now.elapsed_us):
            if leadership.tick(now.elapsed_us):
                self._advance_high_watermark(leadership, now)
        self._proposer.tick(now.elapsed_us)

    @property
    def has_news(self) -> bool:
        """True if a follower is to hear within REPLICA_NEWS_DELAY_MS how far the log is committed."""
        return self._sessions.has_news

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` or `settle` must run."""
        return earliest(self._sessions.next_deadline_us, self._timers.next_deadline_us, self._proposer.next_deadline_us)
