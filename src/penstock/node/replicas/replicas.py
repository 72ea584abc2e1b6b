"""All replicas on this broker: builds the parts that open, lead, follow, repair and maintain their logs.

Rules: this module takes no decisions. The parts add what has happened to a partition to `PartitionEvents`; the node
passes it on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from penstock.base import limits
from penstock.base.clock import Now, earliest
from penstock.base.errors import RemoteError
from penstock.base.ids import Incarnation, PartitionId, PartitionKey, StreamId
from penstock.commitlog import LogState
from penstock.messages import (
    LogEnd,
    ResignedLeadership,
    UnreachableLeader,
)
from penstock.metadata.companions import is_companion, marks_key, target_key
from penstock.metadata.image import ClusterImage, CommandOutcome
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.maintenance.disk_space_probe import DiskSpaceProbe
from penstock.node.maintenance.log_maintenance import LogMaintenance
from penstock.node.maintenance.scrubbing import Scrubber
from penstock.node.partition.in_flight import InFlightBudget
from penstock.node.partition.partition import NO_ROLLUP, Partition
from penstock.node.partition.partition_events import PartitionEvents
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.stream_waiters import ANYHOW, ExpectedStream
from penstock.node.replicas.archives import Archives
from penstock.node.replicas.companions import Companions
from penstock.node.replicas.follower_replication import FollowerReplication
from penstock.node.replicas.hidden_rows import HiddenRows
from penstock.node.replicas.key_migration import KeyMigrator
from penstock.node.replicas.leader_leases import LeaderLeases
from penstock.node.replicas.leader_replication import LeaderReplication
from penstock.node.replicas.log_end_reports import recovered_text
from penstock.node.replicas.remote_dedup import RemoteDedup
from penstock.node.replicas.repairs import Repairs
from penstock.node.replicas.roles import Roles
from penstock.node.replicas.rollups import Rollups
from penstock.node.replicas.staged_retention import StagedRetention
from penstock.node.replicas.stream_lifecycle import StreamLifecycle
from penstock.node.replicas.truncations import Truncations
from penstock.node.subscriptions.ingest_backlog import IngestBacklog
from penstock.node.subscriptions.nats_listener import NatsListener


class Replicas:
    """Holds this broker's partitions by key."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        peers: PeerClient,
        listening: NatsListener,
        backlog: IngestBacklog,
        budget: InFlightBudget,
        events: PartitionEvents,
    ) -> None:
        self._context, self._broker_id = context, context.settings.broker_id
        self._listening, self._events = listening, events
        self._failed: dict[PartitionKey, Partition] = {}  # partitions whose logs take no appends
        self._told_resigned = 0  # round-robin position, if there are more than one heartbeat can hold
        self._disk_space_probe = DiskSpaceProbe(context.vfs, context.outbox)
        self.partitions: dict[PartitionKey, Partition] = {}
        self.log_maintenance = LogMaintenance(context, events)
        self.leases = LeaderLeases(context, cluster, peers, budget.refusals)
        self.leader_replication = LeaderReplication(
            context, self.partitions, self.log_maintenance, cluster, listening, self.leases
        )
        self.follows = FollowerReplication(context, peers, self.partitions, self.log_maintenance, events)
        self.truncations = Truncations(context, cluster)
        self.archives = Archives(context.outbox, cluster)
        self.rollups = Rollups(context, cluster)
        self.staged_retention = StagedRetention(context, self.partitions, self.log_maintenance)
        self.key_migrator = KeyMigrator(context, cluster, listening.subscriptions, backlog)
        self.remote_dedup = RemoteDedup(context, peers, self.partitions, backlog)
        self.roles = Roles(
            context,
            self.partitions,
            self.leader_replication,
            self.follows,
            listening,
            self.log_maintenance,
            self.key_migrator,
            events,
        )
        self.streams = StreamLifecycle(context, budget, self.log_maintenance, self.roles, self.partitions, events)
        self.repairs = Repairs(context, peers, self.partitions, self.log_maintenance, self.roles, self.streams, events)
        self.companions = Companions(context, self.partitions, self.streams.failures, self.streams.marks_ahead)
        self.hidden_rows = self.companions.consumer = HiddenRows(
            self.partitions, events, self.log_maintenance.touch, self.staged_retention
        )
        self.scrubber = Scrubber(context, self.partitions, budget.counters)

    # The metadata image

    def applied(self, outcome: CommandOutcome) -> None:
        """Apply an image that one command has changed."""
        self.streams.applied(outcome)
        self.truncations.answer_done()
        for recovery in outcome.recovered:
            partition = self.partitions.get(PartitionKey(recovery.stream_id, recovery.partition))
            if partition is not None and partition.leadership is not None:
                self.roles.event_log.recovered(recovered_text(partition, recovery.ends))

    def replaced(self, before: ClusterImage) -> None:
        """Apply an image that a snapshot has replaced."""
        self.streams.replaced(before)
        self.truncations.answer_done()

    def live_brokers_changed(self, incarnation: Incarnation | None) -> None:
        """Update roles after brokers were registered or fenced, or after this broker's incarnation changed."""
        self.leases.registered(incarnation)
        if self.roles.image(self._context.image, incarnation):
            self.streams.registered()
            if incarnation is not None:
                self._listening.may_lead(self._context.image.streams)

    def metadata_contact_changed(self, awake_us: int, *, is_heard: bool) -> None:
        """Note that the metadata leader has stopped answering this broker, or answers again.

        `awake_us`: wall-clock time when this process last ran for certain; it may have been suspended since.
        """
        self.roles.metadata_contact_changed(awake_us, is_heard=is_heard)

    def wait_for(
        self,
        stream_id: StreamId,
        deadline_us: int,
        done: Callable[[RemoteError | None], None],
        awaited: ExpectedStream = ANYHOW,
    ) -> None:
        """Call `done` once the stream is ready; see `StreamLifecycle.wait_for`."""
        self.streams.wait_for(stream_id, deadline_us, done, awaited)

    def unreachable(self) -> tuple[UnreachableLeader, ...]:
        """Return leaders that do not answer this broker's fetches."""
        return self.follows.unreachable(self.roles.live)

    def resigned(self) -> tuple[ResignedLeadership, ...]:
        """Return partitions that this broker leads but cannot serve, and that other brokers could lead."""
        gone = [key for key, one in self._failed.items() if not one.is_impeded or self.partitions.get(key) is not one]
        for key in gone:
            del self._failed[key]
        failed = [
            ResignedLeadership(
                *target_key(key),
                partition.leadership.leader_epoch,
                partition.log.state is LogState.WRITABLE,
            )
            for key, partition in self._failed.items()
            if partition.leadership is not None and partition.is_replicated
        ]
        unheard = (
            ResignedLeadership(
                key.stream_id,
                PartitionId(key.partition),
                partition.leadership.leader_epoch,
                is_whole=True,
                is_refused=is_refused,
            )
            for partition, is_refused in self._listening.absent(self._context.now)
            if (key := partition.key) not in self._failed and partition.leadership is not None and partition.may_pass
        )
        # A partition and its companion log are resigned together: once, and as not whole if either is not.
        known: dict[PartitionKey, ResignedLeadership] = {}
        for one in (*failed, *self.streams.unopened(), *self._closed_and_led(), *unheard):
            before = known.get(PartitionKey(one.stream_id, one.partition))
            if before is None or before.is_whole:
                known[PartitionKey(one.stream_id, one.partition)] = one
        told = tuple(known.values())
        if len(told) <= limits.ELECTIONS_PER_COMMAND_MAX:
            return told
        begin = self._told_resigned % len(told)  # each in its turn: for some there may be no other leader
        self._told_resigned = begin + limits.ELECTIONS_PER_COMMAND_MAX
        return (*told[begin:], *told[:begin])[: limits.ELECTIONS_PER_COMMAND_MAX]

    def _closed_and_led(self) -> Iterator[ResignedLeadership]:
        """Yield partitions that this broker is to lead, whose logs it could not reopen, and that others could lead."""
        for partition in self.repairs.closed():
            state = partition.stream.partitions[partition.key.partition]
            if state.leader == self._broker_id and partition.is_replicated:
                yield ResignedLeadership(*target_key(partition.key), state.leader_epoch)

    def log_ends(self) -> tuple[LogEnd, ...]:
        """Return the log ends of leaderless partitions for which the longest log is to lead."""
        closed = (partition.key for partition in self.repairs.closed())
        unknown = [key for key in (*self.streams.failures, *closed) if not is_companion(key.stream_id)]
        failed = [key for key in unknown if self._broker_id in self._context.image.partition(*key).replicas]
        return self.roles.log_ends.take(self.roles.live.keys(), failed)

    def as_of_us(self, partition: Partition) -> int | None:
        """Elapsed time up to which everything committed is shown here; None if unknown.

        See `penstock.replication.freshness`; a leader's value comes from its own leadership. With a companion log, all
        that it hides by then is hidden here, too.
        """
        as_of_us = self._as_of_us(partition)
        if as_of_us is None or not partition.stream.has_marks:
            return as_of_us
        companion = self.partitions.get(marks_key(partition.key))
        if companion is None:
            return None
        hidden_us = self.companions.passed_as_of_us(companion, self._as_of_us(companion))
        return None if hidden_us is None else partition.shown_as_of(min(as_of_us, hidden_us))

    def _as_of_us(self, partition: Partition) -> int | None:
        if partition.leadership is not None:
            return self.leader_replication.as_of_us(partition)
        if partition.following is not None:
            return partition.following.freshness.as_of_us
        return partition.fresh_us

    def behind_us(self, partition: Partition) -> int | None:
        """Age of `as_of_us` in µs; None if unknown."""
        as_of_us = self.as_of_us(partition)
        return None if as_of_us is None else max(0, self._context.now.elapsed_us - as_of_us)

    def has_nats(self) -> bool:
        return self._listening.has_nats

    # Events of a partition

    def began(self, partition: Partition) -> None:
        """Begin what only a leader does."""
        self.log_maintenance.count(partition)
        self.rollups.check(partition)
        self.staged_retention.watch(partition)
        self.companions.advanced(partition)
        if (target := self.partitions.get(target_key(partition.key))) is not None:
            self.hidden_rows.committed(target)

    def ended(self, partition: Partition, error: RemoteError) -> None:
        """End what only a leader does; `error` is for callers that wait."""
        self.truncations.refuse(partition, error)
        self.rollups.ended(partition)
        self.staged_retention.ended(partition)

    def closed(self, partition: Partition, error: RemoteError) -> None:
        """Forget a partition that was removed from this broker."""
        self.repairs.forget(partition)
        self.key_migrator.forget(partition)
        self.companions.closed(partition, error)
        self.ended(partition, error)

    def committed(self, partition: Partition) -> None:
        """Notify followers that the high watermark (`committed_end`) has advanced."""
        self.leader_replication.ends_moved(partition, self._context.now)
        self.companions.advanced(partition)
        self.hidden_rows.committed(partition)
        if partition.rollup_at != NO_ROLLUP:
            self.rollups.check(partition)
        self.staged_retention.watch(partition)

    def log_start_raised(self, partition: Partition) -> None:
        """Handle a raised log start offset."""
        self.hidden_rows.start_raised(partition)
        if partition.leadership is not None:
            partition.leadership.log_start_raised(partition.log.log_start)
            self.leader_replication.ends_moved(partition, self._context.now)
            self.truncations.answer_done()

    def role_due(self, partition: Partition) -> None:
        """Handle a log that was cut to agree with its leader's."""
        self.companions.cut(partition)
        self.roles.update(partition)

    def repaired(self, partition: Partition) -> None:
        """Handle a log that is whole again."""
        self.scrubber.soon(partition.key)
        self.companions.cut(partition)
        self.hidden_rows.opened(partition)

    def failed(self, partition: Partition) -> None:
        """Handle a log that takes no appends until it is repaired or the broker restarts."""
        self.take_out(partition)
        self.repairs.schedule(partition)

    def impeded(self, partition: Partition) -> None:
        """Handle a disk that takes no writes: others lead, and do not wait for this broker, until there is room."""
        self._disk_space_probe.lacks(self._context.now.elapsed_us)
        self.take_out(partition)

    def take_out(self, partition: Partition) -> None:
        """Have others lead the partition, and not wait for this broker."""
        self.follows.impeded(partition)
        if self._failed.get(partition.key) is not partition:
            self._failed[partition.key] = partition
            self._events.is_heartbeat_due = True

    def _free(self) -> None:
        """Clear the failures: the disk takes writes again."""
        for partition in self._failed.values():
            partition.impediment = ""
            self.follows.free(partition)
        self._failed = {key: one for key, one in self._failed.items() if one.is_impeded}

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Forget pending requests of disconnected callers."""
        self.leader_replication.callers_disconnected(callers)
        self.truncations.callers_disconnected(callers)
        self.archives.callers_disconnected(callers)
        self.remote_dedup.callers_disconnected(callers)
        self.leases.callers_disconnected(callers)

    def stop(self, error: RemoteError) -> None:
        """Fail pending requests because the broker is about to stop."""
        self.truncations.stop(error)
        self.leases.stop(error)
        self.staged_retention.stop()
        self.streams.stream_waiters.stop(error)
        self.remote_dedup.stop()

    @property
    def is_disk_full(self) -> bool:
        """True since the disk refused a write of a log, until it takes writes again."""
        return self._disk_space_probe.is_needed

    # Each step, and timers

    def settle(self) -> None:
        """Send pending replies to followers and requests to other brokers."""
        if self._disk_space_probe.has_room:
            self._disk_space_probe.has_room = False
            self._free()
        now = self._context.now
        self.key_migrator.settle(now)
        self.leases.settle()
        self.leader_replication.settle(now)
        self.follows.settle(now)

    def tick(self, now: Now) -> None:
        self.streams.stream_waiters.expire(now.elapsed_us)
        self.streams.tick(now.elapsed_us)
        self.log_maintenance.flush_due(now.elapsed_us)
        self.log_maintenance.find_stalls(now.elapsed_us)
        self.log_maintenance.cleaners.tick(now.elapsed_us)
        self.leader_replication.tick(now)
        self.follows.tick(now)
        self._disk_space_probe.tick(now.elapsed_us)
        self.truncations.tick(now.elapsed_us)
        self.rollups.tick(now.elapsed_us)
        self.staged_retention.tick(now.elapsed_us)
        self.remote_dedup.tick(now.elapsed_us)
        self.repairs.tick(now.elapsed_us)
        self.scrubber.tick(now.elapsed_us)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` or `settle` must run."""
        return earliest(
            self.streams.stream_waiters.next_deadline_us,
            self.streams.next_deadline_us,
            self.key_migrator.next_deadline_us,
            self.log_maintenance.next_deadline_us,
            self.log_maintenance.cleaners.next_deadline_us,
            self.leader_replication.next_deadline_us,
            self.follows.next_deadline_us(self._context.now),
            self._disk_space_probe.next_deadline_us,
            self.truncations.next_deadline_us,
            self.rollups.next_deadline_us,
            self.staged_retention.next_deadline_us,
            self.remote_dedup.next_deadline_us,
            self.repairs.next_deadline_us,
            self.leases.next_deadline_us,
            self.scrubber.next_deadline_us,
        )
