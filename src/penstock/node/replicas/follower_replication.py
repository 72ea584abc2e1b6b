"""Followed partitions of this broker: one fetcher for each broker that leads some of them.

Rules: batches from a leader are appended byte for byte, or refused as a whole; one fetch response is processed before
the next request is sent. A log is truncated only while no other work is under way in it. A follower's high watermark
(`committed_end`) is what its leader says, once the metadata here says which rows readers are shown. An unreachable
leader is reported with a heartbeat, which is sent at once. A log that cannot be appended to is reported to its leader,
which stops waiting for it; on a full disk it is retried.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from penstock.base import limits
from penstock.base.clock import Now, earliest
from penstock.base.errors import OperationalError, RemoteError
from penstock.base.ids import BrokerId, Incarnation, PartitionKey
from penstock.commitlog import LogState, RangeRefusedError, ShortageError, TruncationTask
from penstock.messages import ReplicaFetchResponse, Response, UnreachableLeader
from penstock.metadata.image import PartitionState
from penstock.node.context import Context
from penstock.node.maintenance.log_maintenance import LogMaintenance
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_events import PartitionEventKind, PartitionEvents
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.step import Lane
from penstock.replication.catch_up import CatchUpBudget
from penstock.replication.fetcher import Delivery, Fetcher, FetchSent
from penstock.replication.follower import Following, LogOrders


class FollowerReplication:
    """All partitions that this broker follows."""

    def __init__(
        self,
        context: Context,
        peers: PeerClient,
        partitions: Mapping[PartitionKey, Partition],
        upkeep: LogMaintenance,
        events: PartitionEvents,
    ) -> None:
        self._outbox = context.outbox
        self._peers = peers
        self._broker_id = context.settings.broker_id
        self._partitions = partitions
        self._context = context
        self._upkeep = upkeep
        self._events = events
        self._fetchers: dict[BrokerId, Fetcher] = {}
        self._behind: dict[PartitionKey, None] = {}  # partitions whose leaders go by later metadata
        self._image_index = 0  # of the metadata for which they were last looked at
        self._without_us: dict[BrokerId, int] = {}  # leaders without a connection, and since when (elapsed)
        self._catch_up = CatchUpBudget(context.settings.catch_up_bytes_per_s)
        self._incarnation: Incarnation | None = None

    def registered(self, incarnation: Incarnation, now: Now) -> None:
        """Fetch under this incarnation from now on."""
        self._incarnation = incarnation
        for fetcher in self._fetchers.values():
            fetcher.registered(incarnation, now.elapsed_us)

    # Partitions that are followed

    def follow(self, partition: Partition, state: PartitionState) -> None:
        """Follow the leader that the image names."""
        assert state.leader is not None
        following = partition.following
        if following is not None and following.leader_epoch == state.leader_epoch:
            fetcher, reported = self._fetchers[following.leader], following.reports_flushes
            fetcher.in_sync(following, self._broker_id in state.isr)
            self._note_image(partition, following, state)
            if following.reports_flushes and not reported:
                self._upkeep.flush(partition)
                fetcher.flushed(following)  # the leader waits for syncs that it was not told of
            return
        if following is None:
            following = Following(
                partition.key,
                partition.log,
                state.leader,
                state.leader_epoch,
                committed_end=partition.committed_end,
                fresh_us=partition.fresh_us,
                is_late=partition.lags_leader,
            )
            partition.follow(following)
        else:
            self._fetchers[following.leader].forget(partition.key)
            following.follow(state.leader, state.leader_epoch)
        following.is_in_sync = self._broker_id in state.isr
        self._note_image(partition, following, state)
        fetcher = self._fetcher(state.leader)
        fetcher.follow(following)
        if partition.is_impeded:
            fetcher.impeded(following)

    def _note_image(self, partition: Partition, following: Following, state: PartitionState) -> None:
        following.tells_flushes = partition.tells_flushes
        following.is_observer = self._broker_id in state.observers
        following.freshness.has_rivals = partition.is_replicated

    def end(self, partition: Partition) -> None:
        """Stop following: this broker leads the partition, it has no leader, or it was removed here."""
        assert partition.following is not None
        self._fetchers[partition.following.leader].forget(partition.key)
        partition.fresh_us, partition.lags_leader = partition.following.freshness.as_of_us, partition.following.lags

    def _fetcher(self, leader: BrokerId) -> Fetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            assert self._incarnation is not None, "only a registered broker follows"
            fetcher = Fetcher(self._broker_id, self._incarnation, self._context.chance.random, self._catch_up)
            self._fetchers[leader] = fetcher
        return fetcher

    def listened_us(self, partition: Partition) -> int | None:
        """Elapsed time at which this or an earlier leader last reported a connection to NATS; None if unknown."""
        following = partition.following
        return None if following is None else following.freshness.listened_us

    def trouble(self, partition: Partition) -> str:
        """Return why the partition gets no data from its leader, or cannot append it; empty if it follows."""
        following = partition.following
        if following is None:
            return ""
        if self._fetchers[following.leader].unreachable_since_us is not None:
            return f"broker {following.leader}, which leads it, does not answer this broker"
        return following.trouble

    def reaches(self, partition: Partition) -> bool:
        """True if the partition's present leader answers, as far as this broker knows."""
        following = partition.following
        if following is None or not self._peers.is_up(following.leader) or not following.freshness.is_told:
            return False
        return self._fetchers[following.leader].unreachable_since_us is None

    def flushed(self, partition: Partition) -> None:
        """Report a new flushed offset (`flushed_end`) to the leader."""
        following = partition.following
        if following is not None:
            self._note_ends(partition)  # the log starts no later than it is flushed
            self._fetchers[following.leader].flushed(following)

    def impeded(self, partition: Partition) -> None:
        """Report to the leader that the log cannot be appended to."""
        following = partition.following
        if following is not None:
            self._fetchers[following.leader].impeded(following)

    def free(self, partition: Partition) -> None:
        """Report to the leader that the log can be appended to again."""
        following = partition.following
        if following is not None and not partition.is_impeded:
            self._fetchers[following.leader].free(following)

    def unreachable(self, live: Mapping[BrokerId, Incarnation]) -> tuple[UnreachableLeader, ...]:
        """Return the leaders that do not answer, for the heartbeat to the metadata leader."""
        return tuple(
            UnreachableLeader(broker_id, live[broker_id])
            for broker_id, fetcher in self._fetchers.items()
            if fetcher.unreachable_since_us is not None and not fetcher.is_idle and broker_id in live
        )

    # Requests and timers

    def settle(self, now: Now) -> None:
        """Send the fetch and progress requests that are due."""
        now_us = now.elapsed_us
        if self._behind and self._image_index != self._context.image.index:
            self._show_what_waited()
        for leader, fetcher in self._fetchers.items():
            if fetcher.rests(now_us) or not self._peers.is_up(leader):
                continue
            while (sent := fetcher.request(now_us)) is not None:
                self._ask(leader, fetcher, sent)
            if (told := fetcher.progress()) is not None:
                number, request = told
                self._peers.send(leader, request, done=self._progress_answered(fetcher, number))

    def _ask(self, leader: BrokerId, fetcher: Fetcher, sent: FetchSent) -> None:
        def done(response: Response | RemoteError, raw: bytes | memoryview) -> None:
            if isinstance(response, ReplicaFetchResponse):
                self._answered(fetcher, sent.number, response, raw, self._context.now)
            else:
                assert isinstance(response, RemoteError), response
                fetcher.failed(sent.number, response, self._context.now.elapsed_us)
                self._tell_unreachable(fetcher)

        self._peers.send(leader, sent.request, done=done)

    def _progress_answered(
        self, fetcher: Fetcher, number: int
    ) -> Callable[[Response | RemoteError, bytes | memoryview], None]:
        def done(response: Response | RemoteError, raw: bytes | memoryview) -> None:
            if isinstance(response, RemoteError):
                fetcher.failed(number, response, self._context.now.elapsed_us)
            else:
                fetcher.progress_answered(number)

        return done

    def _tell_unreachable(self, fetcher: Fetcher) -> None:
        if fetcher.unreachable_since_us is not None and not fetcher.is_idle:
            self._events.is_heartbeat_due = True

    def lost(self, broker_id: BrokerId, now: Now) -> None:
        """Note a lost connection."""
        fetcher = self._fetchers.get(broker_id)
        if fetcher is not None:
            fetcher.lost(now.elapsed_us)
            self._tell_unreachable(fetcher)

    def receiving(self, broker_id: BrokerId, size_bytes: int, now: Now) -> None:
        """Note that `size_bytes` more of a large response have come; 0 when it begins."""
        if (fetcher := self._fetchers.get(broker_id)) is not None:
            fetcher.receiving(size_bytes, now.elapsed_us)

    def tick(self, now: Now) -> None:
        """Detect leaders that are connected and silent."""
        for leader, fetcher in self._fetchers.items():
            if fetcher.tick(now.elapsed_us) or self._is_without(leader, fetcher, now.elapsed_us):
                self._tell_unreachable(fetcher)

    def _is_without(self, leader: BrokerId, fetcher: Fetcher, now_us: int) -> bool:
        """True if there has been no connection to a leader for too long; there may never have been one."""
        if fetcher.is_idle or self._peers.is_up(leader):
            self._without_us.pop(leader, None)
            return False
        since_us = self._without_us.setdefault(leader, now_us)
        if fetcher.unreachable_since_us is not None or now_us - since_us < limits.REPLICA_FETCH_TIMEOUT_MS * 1_000:
            return False
        fetcher.unreached(now_us)
        return True

    def next_deadline_us(self, now: Now) -> int | None:
        """Latest time at which `tick` or `settle` has something to do."""
        first_us = None
        for leader, fetcher in self._fetchers.items():
            if self._peers.is_up(leader):
                first_us = earliest(first_us, fetcher.next_deadline_us(now.elapsed_us))
        return first_us

    # Responses

    def _answered(
        self, fetcher: Fetcher, number: int, response: ReplicaFetchResponse, raw: bytes | memoryview, now: Now
    ) -> None:
        try:
            deliveries = fetcher.answered(number, response, len(raw), now.elapsed_us)
        except RemoteError as error:
            self._outbox.notice(f"broker {self._broker_id} got an invalid answer to a replica fetch: {error}")
            return
        view = memoryview(raw)
        for delivery in deliveries:
            partition = self._partitions.get(delivery.following.key)
            if partition is not None and partition.following is delivery.following:
                self._deliver(fetcher, partition, delivery, view, now)

    def _deliver(self, fetcher: Fetcher, partition: Partition, delivery: Delivery, raw: memoryview, now: Now) -> None:
        following, orders, refill = delivery.following, delivery.orders, b""
        if orders.append:
            orders, refill = self._append(fetcher, partition, raw[delivery.position : delivery.position_end], now)
        self._note_ends(partition)
        if orders.truncate is not None or orders.reset is not None:
            self._cut(fetcher, partition, following, orders, refill)

    def _append(self, fetcher: Fetcher, partition: Partition, data: memoryview, now: Now) -> tuple[LogOrders, bytes]:
        """Append the batches and continue fetching; return a truncation to do first and the batches to append then."""
        following = partition.following
        assert following is not None
        try:
            partition.append_fetched(data)
        except RangeRefusedError as error:
            if error.truncate_to is not None:
                # A copy: the buffer is released meanwhile.
                return following.overlaps(error.truncate_to), error.instead or bytes(data)
            trouble = f"cannot follow broker {following.leader}: {error}"
            partition.tell(trouble, self._outbox)
            fetcher.stall(following, now.elapsed_us, f"it {trouble}")
        except OperationalError as error:
            partition.tell(f"cannot follow: {error}", self._outbox)
            self._refused(partition, error)
            if partition.log.state is LogState.WRITABLE:  # otherwise only a restart helps
                fetcher.stall(following, now.elapsed_us, f"it cannot follow: {error}")
        else:
            self._upkeep.note_progress(partition, partition.committed_end)
            self.free(partition)
            fetcher.proceed(following)
        return LogOrders(), b""

    def _refused(self, partition: Partition, error: Exception) -> None:
        if not isinstance(error, ShortageError):
            partition.impediment = str(error)
            self._events.add(PartitionEventKind.IMPEDED, partition)

    def _note_ends(self, partition: Partition) -> None:
        following = partition.following
        assert following is not None
        following.image_index = self._context.image.index
        if following.is_behind:
            self._behind[partition.key] = None
        ends = following.ends()
        if ends.log_start is not None:
            self._raise_start(partition, ends.log_start)
        if ends.committed_end is not None:
            partition.follow_committed(ends.committed_end)
            self._events.add(PartitionEventKind.COMMITTED, partition)

    def _show_what_waited(self) -> None:
        """Follow the high watermarks of partitions that waited for the metadata by which their leaders go."""
        behind, self._behind, self._image_index = self._behind, {}, self._context.image.index
        for key in behind:
            partition = self._partitions.get(key)
            if partition is not None and partition.following is not None and partition.cutting is None:
                self._note_ends(partition)

    def _raise_start(self, partition: Partition, log_start: int) -> None:
        before = partition.log.log_start
        with contextlib.suppress(OperationalError):  # retried with the next response
            partition.log.raise_start(log_start)
        if partition.log.log_start != before:
            self._events.add(PartitionEventKind.LOG_START_RAISED, partition)

    def _refill(self, partition: Partition, following: Following, data: bytes) -> None:
        """Append the overlapping batches in place of what was truncated, before any read: readers saw some of them."""
        if not data:
            return
        committed_end = partition.committed_end
        try:
            partition.append_fetched(memoryview(data))
        except OperationalError as error:  # fetched again
            partition.tell(f"cannot follow: {error}", self._outbox)
            return
        ends = following.refilled()
        if ends.log_start is not None:
            self._raise_start(partition, ends.log_start)
        assert ends.committed_end is not None
        partition.follow_committed(ends.committed_end)
        self._upkeep.note_progress(partition, committed_end)

    def _cut(
        self, fetcher: Fetcher, partition: Partition, following: Following, orders: LogOrders, refill: bytes
    ) -> None:
        if orders.cuts_committed:
            self._outbox.notice(
                f"{partition.label}: messages that readers may have seen are cut to agree with "
                f"broker {following.leader}, which leads and does not have them"
            )

        log = partition.log

        def ended(error: Exception | None) -> None:
            if error is None:
                following.cut()
            else:
                following.cut_failed()
            if partition.when_idle is not None:  # the stream was deleted
                self._upkeep.cut_done(partition)
                return
            if error is None:
                partition.follow_cut()
                self._refill(partition, following, refill)
            else:
                partition.tell(f"cannot be cut to agree with its leader: {error}", self._outbox)
                self._refused(partition, error)
            self._upkeep.cut_done(partition)
            # The log is unchanged, so the truncation can be retried.
            if error is not None and log.state is LogState.WRITABLE:
                following.mended()
                why = f"it cannot be cut to agree with its leader: {error}"
                fetcher.stall(following, self._context.now.elapsed_us, why)
            else:
                fetcher.proceed(following)
            self._events.add(PartitionEventKind.ROLE_DUE, partition)

        def run() -> None:
            try:
                if orders.reset is not None:
                    task: TruncationTask | None = log.reset(orders.reset)
                else:
                    assert orders.truncate is not None
                    task = log.truncate(orders.truncate)
            except OperationalError as error:
                ended(error)
                return
            if task is None:  # there is nothing to truncate
                ended(None)
                return

            def done(error: Exception | None) -> None:
                if error is None:
                    log.truncated(task)
                else:
                    log.truncate_failed(task, error)
                ended(error)

            self._outbox.work(Lane.WRITE, task.run, done)

        self._upkeep.cut(partition, run)
