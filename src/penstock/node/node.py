"""The node: takes every message, request and event of one broker, and returns every effect as a `Step`.

Rules: methods take an event and the time (`now`), decide at once, and put the effects into the outbox; the driver takes
the step and carries it out. Nothing here blocks. One owner calls; disk work comes back through `complete`.

| event                           | method                 |
|---------------------------------|------------------------|
| messages from NATS              | `messages_received`    |
| the connection to NATS is up    | `nats_up`              |
| NATS answered a barrier         | `barrier_reached`      |
| NATS refused a subscription     | `subscription_refused` |
| the connection to NATS was lost | `nats_lost`            |
| a request from a client         | `request`              |
| a client has disconnected       | `callers_disconnected` |
| a peer broker is connected      | `peer_up`              |
| … is disconnected               | `peer_lost`            |
| … refuses this broker           | `peer_refused`         |
| … has answered                  | `answered`             |
| the broker is about to stop     | `hand_over`, `leave`   |
| a cluster accepts this broker   | `joined`               |
| disk work is done               | `complete`             |
| time has passed                 | `tick`                 |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from penstock.access.handshake import Principal
from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation, PartitionId, PartitionKey, StreamId
from penstock.base.meters import Families
from penstock.hot.message_group import MessageGroup
from penstock.live.row_set import RowSet
from penstock.messages import (
    JoinResponse,
    Request,
    Response,
)
from penstock.messages.fields import INT64_MAX
from penstock.metadata.companions import is_marks
from penstock.metadata.image import ClusterImage
from penstock.node.api.consumption import Done
from penstock.node.api.last_rows import KeptLasts
from penstock.node.consumers.consumer_logs import KnownConsumers
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.controller.audit import AuditLog
from penstock.node.data_dir.clean_stop import mark_if_synced
from penstock.node.metrics_collector import NodeMetricsCollector
from penstock.node.partition.in_flight import InFlightBudget
from penstock.node.partition.leader_hints import not_leader
from penstock.node.partition.partition import Partition, Shown
from penstock.node.partition.partition_events import PartitionEventKind, PartitionEvents
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.session import ClusterSession
from penstock.node.replicas.listened_file import ListenedFile
from penstock.node.replicas.replicas import Replicas
from penstock.node.request_router import STOPPING, RequestRouter
from penstock.node.security.access import NO_ORIGIN, Access, Call, ClientOrigin
from penstock.node.security.auth_markers import AuthMarkers
from penstock.node.settings import Settings
from penstock.node.step import DiskWork, Outbox, Step
from penstock.node.subscriptions.ingest_backlog import IngestBacklog
from penstock.node.subscriptions.nats_listener import NatsListener, was_led_by
from penstock.vfs import Vfs

TICK_US = 1_000_000


class Node:
    """One broker without its sockets. Call `start` first."""

    def __init__(self, vfs: Vfs, settings: Settings, chance: Any) -> None:
        """`chance` is a source of randomness, such as a seeded random.Random."""
        context = self._context = Context(vfs, settings, chance)
        self._settings, self._outbox = settings, context.outbox
        self._is_stopped = False
        self._next_tick_us = 0
        self._is_due = True  # something has happened since the last follow-up
        self.event_count = 0
        """Grows with all that may change what this node says, but for the time."""
        # partitions that stored messages, each with its earlier committed_end: see `take`
        self._stored: list[tuple[Partition, int]] = []
        self._events = PartitionEvents()
        self._peers = PeerClient(self._outbox)
        self._budget = InFlightBudget(settings.partition_in_flight_bytes_max)
        self.meters = self._budget.meters
        self._ingest_backlog = IngestBacklog()
        self._listener = NatsListener(vfs, self._outbox, self._events, domain_prefix=settings.domain_prefix.encode())
        session = ClusterSession(context)
        markers = AuthMarkers(context, session, self._peers)
        self.access = Access(context, session, markers)
        self._audit = AuditLog(context)
        self._cluster = Cluster(context, self._peers, session, markers, self.access, self._audit)
        self._replicas = Replicas(
            context,
            self._cluster,
            self._peers,
            self._listener,
            self._ingest_backlog,
            self._budget,
            self._events,
        )
        self._partitions, self._upkeep = self._replicas.partitions, self._replicas.log_maintenance
        self._listened = ListenedFile(vfs, self._outbox, self._partitions, self._replicas.roles, self._listener)
        self._router = RequestRouter(
            context,
            self._cluster,
            self._replicas,
            self.access,
            self._peers,
            self._listener,
            self._ingest_backlog,
            self._budget,
        )
        self._fetches, self._lookups, self._verifying = (
            self._router.fetches,
            self._router.lookups,
            self._router.verifying,
        )
        self._storing, self._offsets, self._schemas, self._publishing = (
            self._router.storing,
            self._router.offsets,
            self._router.schemas,
            self._router.publishing,
        )
        self._schema_checks, self._deletions = self._router.schema_checks, self._router.deletions
        self._decisions = self._router.decisions
        self._consumption = self._router.consumption
        self._erasures = self._router.erasures
        self._survey_marks, self._expiries = self._router.survey_marks, self._router.expiries
        self._schedules = self._router.schedules
        self._mark_snapshots = self._router.mark_snapshots
        self._consumer_logs = self._router.consumer_logs
        self._metrics_collector = NodeMetricsCollector(
            context, self._cluster, self._replicas, self._listener, self._router, self.meters
        )

    # Life cycle

    def start(self, now: Now) -> Step:
        """Recover everything from disk; blocks. Raise PenstockError or OSError if the broker cannot start on it."""
        self._context.now = now
        self._replicas.leases.started(now)
        cluster = self._cluster
        self._router.report.started_us = now.wall_us
        cluster.open(self._replicas, self._router.report)
        listened, broker_id = self._listened.load(now.wall_us), self._settings.broker_id
        self._replicas.streams.start(cluster.deleted, listened)
        self._replicas.scrubber.start()
        last_message_us = max((p.log.last_timestamp_us for p in self._partitions.values()), default=0)
        led = [one for one in self._partitions.values() if was_led_by(broker_id, one)]
        self._listener.load(
            led=[one for one in led if not listened.was_led_by_others(one.key)],  # the image may be older
            last_sign_of_life_us=max(last_message_us, cluster.registered_us, listened.broker_us),
            now_us=now.wall_us,
        )
        cluster.start()
        self._dispatch_events()
        return self._outbox.take()

    def _begin(self, now: Now) -> None:
        """Begin an event. It finds no partition, and no role, that an earlier one of the same turn has ended."""
        self._context.now, self._is_due = now, True
        self.event_count += 1
        self._dispatch_pressing_events()

    def give_up_queries(self) -> None:
        """Fail long-running queries because the broker is about to stop."""
        self._begin(self._context.now)
        self._lookups.stop()
        self._verifying.stop()
        self._deletions.stop()
        self._decisions.stop(STOPPING)
        self._consumption.stop(STOPPING)
        self._expiries.stop()
        self._schedules.stop()
        self._erasures.stop()
        self._fetches.give_up(STOPPING)
        self._replicas.remote_dedup.stop()
        self._offsets.stop()
        self._consumer_logs.stop()
        self._schemas.stop(STOPPING)

    def hand_over(self, now: Now, done: Callable[[], None]) -> None:
        """Transfer the metadata leadership before a stop; call `done` once transferred, or if no broker can take it."""
        self._begin(now)
        self._cluster.controlled_shutdown.hand_over(done)

    def drain(self, now: Now) -> None:
        """Note that the broker is about to stop and to leave NATS."""
        self._begin(now)
        self._replicas.leader_replication.drain(now)
        self._listener.drain(now.wall_us)

    def not_drained(self, nats_proven_us: int) -> None:
        """Note that NATS did not confirm the drain: messages it sent after `nats_proven_us` may not have arrived."""
        self._begin(self._context.now)
        self._listener.drain(nats_proven_us)

    def leave(self, now: Now, done: Callable[[], None]) -> None:
        """Hand over all leaderships before a stop; call `done` once that is done, or if it is impossible."""
        self._begin(now)
        self._cluster.leave(done)

    def before_stop(self) -> None:
        """Have disk threads do the syncs of `stop` in advance, one log after the other; NATS has been drained.

        Called twice: the checkpoint of the second call covers what the first one synced. `stop` works without it.
        """
        self._begin(self._context.now)
        for partition in self._partitions.values():
            self._upkeep.before_close(partition)

    def stop(self, now: Now) -> Step:
        """Fail pending requests, sync and close everything; blocks. NATS and disk threads were drained before."""
        self._begin(now)
        self._is_stopped = True
        self._lookups.stop()
        self._verifying.stop()
        self._deletions.stop()
        self._decisions.stop(STOPPING)
        self._consumption.stop(STOPPING)
        self._expiries.stop()
        self._schedules.stop()
        self._erasures.stop()
        self._listened.stop(now)
        self._ingest_backlog.go_on(self._ingest, must=True)
        for partition in self._partitions.values():
            self._upkeep.close(partition)
            self._fetches.refuse(partition.key, STOPPING)
        self._storing.appends.stop(STOPPING)
        self._publishing.stop(STOPPING)
        self._replicas.stop(STOPPING)
        self._cluster.stop(STOPPING)
        self._listener.stop(now)
        if self._replicas.streams.are_open:
            whole_since = self._cluster.registration.whole_since
            mark_if_synced(self._context.vfs, whole_since, (one.log for one in self._partitions.values()), self._outbox)
        return self._outbox.take()

    def take(self) -> Step | None:
        """Return what the driver must do now, or None. Acks come first, then what follows from them."""
        while not self._outbox.step:
            if not (self._is_due or self._events or self._stored):
                return None
            self._is_due = False
            self._follow_up()
        return self._outbox.take()

    def _follow_up(self) -> None:
        """Do what the stored messages and the partitions' events lead to.

        The backlog needs no event to be dispatched before it: it goes by the partitions' states, which are up to date
        when an event is added. What it stores is followed up in the next turn of `take`, for `_stored` is not empty.
        """
        self.event_count += 1
        stored, self._stored = self._stored, []
        for partition, committed_end in stored:
            if partition.when_idle is None:  # else the stream was deleted
                self._storing.written(partition, committed_end)
        if self._ingest_backlog.may_go_on:
            self._ingest_backlog.may_go_on = False
            self._ingest_backlog.go_on(self._ingest)
        self._dispatch_events()
        self._replicas.settle()
        refusals, step = self._budget.refusals, self._outbox.step
        if refusals and refusals.settle(self._cluster.beats, self._context.now, step):
            self._cluster.registration.heartbeat_now()
            self._cluster.registration.tick(self._context.now)
            # again, for this broker may be the metadata leader and have answered itself
            refusals.settle(self._cluster.beats, self._context.now, step)

    def _dispatch_pressing_events(self) -> None:
        if self._events.is_pressing:
            self._dispatch_events()

    def _dispatch_events(self) -> None:
        """Pass each event on to all that act on it.

        | event                | acted on by                                                                    |
        |----------------------|--------------------------------------------------------------------------------|
        | OPENED               | hidden rows                                                                    |
        | BEGAN                | rollups, retention of staged rows; deletions that wait for a companion log;    |
        |                      | decisions by limits by subject and rollups; expiry; schedules; logs of         |
        |                      | consumers                                                                      |
        | RESIGNED             | callers that wait are sent to the new leader; group offsets, and what is known |
        |                      | of logs of consumers, are dropped                                              |
        | COMMITTED            | followers, readers, publications of staged rows; rollups; the consumer of      |
        |                      | companion logs; hidden rows; decisions by limits by subject and rollups;       |
        |                      | expiry; schedules; logs of consumers                                           |
        | SHOWN                | readers; these decisions, and requests that wait for them; rollups of all;     |
        |                      | expiry; schedules                                                              |
        | FLUSHED              | the leader that is followed                                                    |
        | LOG_START_RAISED     | followers, truncations, hidden rows                                            |
        | ROLE_DUE             | roles; the consumer of companion logs                                          |
        | FAILED               | other brokers lead; repairs                                                    |
        | IMPEDED, STALLED     | other brokers lead                                                             |
        | RESUMED              | the leader that is followed                                                    |
        | REPAIRED             | the scrubber; the consumer of companion logs                                   |
        | SUBSCRIBED, REFUSED  | callers that wait for a stream                                                 |
        | SURVEYED             | marks that hide what was found                                                 |
        | CLOSED               | callers that wait; everything kept for the partition is dropped                |
        """
        events, replicas = self._events, self._replicas
        while (event := events.next()) is not None:
            partition = event.partition
            match event.kind:
                case PartitionEventKind.COMMITTED:
                    replicas.committed(partition)
                    self._fetches.grown(partition)
                    if partition.needs_decisions or is_marks(partition.key.stream_id):
                        self._decisions.check(partition)
                    if partition.stream.config.allow_message_ttl:
                        self._expiries.check(partition)
                    if partition.stream.config.allows_schedules:
                        self._schedules.check(partition)
                    if self._publishing:
                        self._publishing.grown(partition)
                    self._consumer_logs.committed(partition)
                case PartitionEventKind.SHOWN:
                    replicas.rollups.check(partition)
                    self._fetches.grown(partition)
                    self._decisions.shown(partition)
                    self._consumption.watch(partition)
                    if partition.stream.config.allow_message_ttl:
                        self._expiries.check(partition)
                    if partition.stream.config.allows_schedules:
                        self._schedules.check(partition)
                case PartitionEventKind.FLUSHED:
                    replicas.follows.flushed(partition)
                case PartitionEventKind.LOG_START_RAISED:
                    replicas.log_start_raised(partition)
                case PartitionEventKind.OPENED:
                    replicas.hidden_rows.opened(partition)
                case PartitionEventKind.BEGAN:
                    replicas.began(partition)
                    self._deletions.companion_led(partition)
                    self._decisions.check(partition)
                    self._consumption.watch(partition)
                    self._expiries.check(partition)
                    self._schedules.check(partition)
                    self._consumer_logs.began(partition)
                case PartitionEventKind.RESIGNED:
                    self._resigned(partition)
                case PartitionEventKind.ROLE_DUE:
                    replicas.role_due(partition)
                case PartitionEventKind.FAILED:
                    replicas.failed(partition)
                case PartitionEventKind.IMPEDED:
                    replicas.impeded(partition)
                case PartitionEventKind.STALLED:
                    replicas.take_out(partition)
                case PartitionEventKind.RESUMED:
                    replicas.follows.free(partition)
                case PartitionEventKind.REPAIRED:
                    replicas.repaired(partition)
                case PartitionEventKind.SUBSCRIBED:
                    replicas.streams.confirmed(partition)
                case PartitionEventKind.SUBSCRIPTION_REFUSED:
                    replicas.streams.refused(partition, event.subject, event.reason)
                case PartitionEventKind.SURVEYED:
                    self._survey_marks.surveyed(partition)
                case PartitionEventKind.CLOSED:
                    assert event.error is not None
                    self._closed(partition, event.error)
        if events.is_heartbeat_due:
            events.is_heartbeat_due = False
            self._cluster.registration.heartbeat_now()

    @property
    def waits_for(self) -> str:
        """Reason, for an operator, why this broker is not yet part of the cluster; empty once it is."""
        return self._cluster.waits_for

    def families(self, now: Now) -> Families:
        """Return the metrics; the caller must take the node's steps at each pause of the iterator.

        One event for all of the iterator: it only begins disk work, which needs no follow-up.
        """
        self._begin(now)
        return iter(()) if self._is_stopped else self._metrics_collector.families()

    @property
    def stalled_syncs(self) -> int:
        """Number of logs with an fsync that does not return."""
        return self._upkeep.stalled_count

    @property
    def image(self) -> ClusterImage:
        """Metadata image, as far as this broker has applied it."""
        return self._context.image

    @property
    def cluster_id(self) -> str:
        """Id of this broker's cluster; empty if unknown."""
        return self._cluster.cluster_id

    @property
    def process(self) -> str:
        """Name of this process run; empty before `start`."""
        return self._cluster.process

    @property
    def incarnation(self) -> Incarnation | None:
        """The incarnation in which this broker is registered; None: it is not."""
        return self._cluster.registration.incarnation

    @property
    def api_lease_us(self) -> int:
        """Elapsed time until which this broker may act by the decision on JetStream's API that it has applied."""
        return self._cluster.api_lease_us

    def ask_metadata_leader(self, request: Request, done: Callable[[Response | RemoteError], None]) -> None:
        """Ask the metadata leader, as this broker; `done` is called once, perhaps before this returns."""
        self._is_due = True
        self.event_count += 1
        self._cluster.link.ask(request, done)

    def consume(self, key: PartitionKey, rows: RowSet, done: Done, *, is_awaited: bool = False) -> None:
        """Remove rows that no consumer of a partition led here needs any more; see `Consumption.consume`."""
        self._is_due = True
        self.event_count += 1
        self._consumption.consume(key, rows, done, is_awaited=is_awaited)

    def when_consumed(self, key: PartitionKey, done: Done) -> None:
        """Call `done` once all that was given to `consume` before is removed; see `Consumption.when_consumed`."""
        self._is_due = True
        self.event_count += 1
        self._consumption.when_consumed(key, done)

    def tell_interest(self, key: PartitionKey, filters: Collection[str]) -> None:
        """Tell what the consumers of a partition led here want; see `Consumption.tell_interest`."""
        self._is_due = True
        self.event_count += 1
        self._consumption.tell_interest(key, filters)

    def agreed_end(self, key: PartitionKey, offset: int, leader_epoch: int | None) -> int:
        """Return how far a position from an epoch holds in the log of a partition led here; 0 if it is not."""
        return self._consumption.agreed_end(key, offset, leader_epoch)

    @property
    def consumer_logs_version(self) -> int:
        """Grows when a log of consumers that this broker leads has become known, has failed, or is led no more."""
        return self._consumer_logs.version

    def led_consumer_logs(self) -> list[PartitionKey]:
        """Return the partitions led here whose stream has logs of consumers; not all of these logs are known yet."""
        return self._consumer_logs.led()

    def consumer_log(self, stream_id: StreamId, partition: PartitionId) -> KnownConsumers:
        """Return the log of consumers of a partition led here. Raise RemoteError (not_leader, not_yet, …)."""
        return self._consumer_logs.known(stream_id, partition)

    def add_consumer_log(self, stream_id: StreamId, done: Callable[[RemoteError | None], None]) -> None:
        """Give a stream logs of consumers, unless it has them; `done` is called once, perhaps before this returns."""
        self._is_due = True
        self.event_count += 1
        self._consumer_logs.add(stream_id, done)

    @property
    def broker_id(self) -> BrokerId:
        return self._settings.broker_id

    @property
    def outbox(self) -> Outbox:
        """Collects the effects of the next step; for the parts of the broker that share it."""
        return self._outbox

    @property
    def confirmed_us(self) -> int | None:
        """Elapsed time up to which all changes of the metadata that were answered are in the image; None: unknown."""
        return INT64_MAX if self._cluster.quorum.is_alone else self._cluster.confirmed_us

    def confirm_soon(self, now: Now) -> bool:
        """Ask the metadata leader, so that `confirmed_us` soon is at least now; False if it was asked a moment ago."""
        self._at(now)
        return self._cluster.confirm_soon()

    @property
    def now(self) -> Now:
        """The time of the current event."""
        return self._context.now

    def check_session(self, now: Now) -> None:
        """Begin an event of the gateway: leaderships whose session may have ended, as the process slept, are mute."""
        if self._events or not self._cluster.has_session(now):
            self._at(now)
        else:  # no event: nothing has to be followed up
            self._context.now = now

    def shown(self, stream_id: StreamId, partition: PartitionId) -> Shown | None:
        """Return what readers are shown of a partition that this broker leads; None: it does not."""
        found = self._partitions.get(PartitionKey(stream_id, partition))
        return None if found is None or found.leadership is None else found.shown

    def kept_lasts(self, stream_id: StreamId, now: Now, who: Principal | None = None) -> KeptLasts | None:
        """Return the last messages of subjects that are in memory, of a stream that this broker leads.

        None: they have to be asked for by a request, which tells why.
        """
        if self._is_stopped:
            return None
        self.check_session(now)
        kept = self._lookups.kept_lasts(self._router.find, self.access.of(who), stream_id)
        return kept and kept._replace(until_us=min(kept.until_us, self._cluster.session_until_us))

    def find_lasts(self, kept: KeptLasts, names: Sequence[bytes]) -> KeptLasts:
        """Look few plain subjects up that `kept` is not certain of, which holds now; return it with what was found.

        What is not found so has to be asked for by a request, which may read the disk, or tells why not.
        """
        return self._lookups.find_lasts(kept, names)

    def is_stored(self, subject: str) -> bool:
        """Return if a stream stores messages on this subject without wildcards."""
        return bool(self._router.stream_index.covering(self._context.image, subject))

    def ask_peer(
        self,
        to: BrokerId,
        request: Request,
        done: Callable[[Response | RemoteError, bytes | memoryview], None],
        payload: bytes = b"",
    ) -> None:
        """Ask another broker, as this broker; `done` is called once, perhaps before this returns."""
        self._peers.send(to, request, payload, done)

    def process_of(self, broker_id: BrokerId) -> str:
        """Return the process id registered for a broker; empty if unknown."""
        return self._cluster.quorum.process_of(broker_id)

    def disk_of(self, broker_id: BrokerId) -> str:
        """Return the data directory id registered for a broker; empty if unknown."""
        return self._cluster.quorum.disk_of(broker_id)

    # NATS

    @property
    def in_flight_bytes(self) -> int:
        """Bytes received or written, and not yet answered."""
        return self._router.in_flight.size_bytes

    def messages_received(self, groups: Mapping[int, MessageGroup], now: Now) -> None:
        """Take the messages of one read of the NATS connection, by the id that their subscriptions have in common."""
        if self._is_stopped:
            return  # the drain took too long
        self._at(now)
        if not groups:
            return
        was_empty = not self._ingest_backlog
        groups_by_sid = ((partition.sid, group) for partition, group in self._listener.assign(groups))
        if (
            self._ingest_backlog.add(groups_by_sid, self._ingest, now.elapsed_us) and was_empty
        ):  # else the next tick is near already
            # sync the stored messages now as well: their log holds a file open that a queued group may need
            self._next_tick_us = now.elapsed_us

    def _ingest(self, sid: int, group: MessageGroup, arrived_us: int, must: bool) -> bool:
        """Store the messages. Return False, unless `must`, if the log must be read first or no file can be opened."""
        partition = self._listener.subscriptions.find(sid)
        if partition is None or partition.when_idle is not None:
            return True  # the stream was just deleted
        if not must and partition.reads_log:
            return False
        if not (must or partition.log.is_awake or not partition.is_writable or partition.log.has_room):
            return False
        if not partition.leads:
            self._upkeep.lead(partition)
        self._replicas.companions.note_unusable(partition)
        committed_end = partition.committed_end
        now, step = self._context.now, self._outbox.step
        while not partition.ingest(group, now, step, arrived_us=arrived_us, must=must):
            if not (self._schema_checks.knows(partition) or self._replicas.remote_dedup.request_missing(partition)):
                return False
        if misaddressed := partition.take_misaddressed():
            self._refuse_misaddressed(partition, misaddressed)
        if not self._is_stopped:  # else the log is about to be closed, and synced with that
            self._stored.append((partition, committed_end))
        return True

    def _refuse_misaddressed(self, partition: Partition, messages: list[tuple[bytes, bytes]]) -> None:
        """Refuse messages that name another stream than the only one that stores their subject."""
        index, image = self._router.stream_index, self._context.image
        alone = (reply for subject, reply in messages if len(index.covering(image, _text(subject))) == 1)
        partition.refuse_misaddressed(alone, self._outbox.step)

    def nats_up(self) -> None:
        """Handle a connection to NATS with all subscriptions renewed; a barrier shows which of them NATS granted."""
        if not self._is_stopped:
            self._begin(self._context.now)
            self._listener.up()

    def barrier_reached(self, token: int, now: Now) -> None:
        """Handle NATS's answer to a step's barrier: everything sent before it is done."""
        if not self._is_stopped:
            self._begin(now)
            self._listener.subscriptions.reached(token, now)

    def subscription_refused(self, sid: int | None, reason: str, now: Now) -> None:
        """Handle a subscription that NATS refused or revoked; `sid` is None if NATS does not say which."""
        if not self._is_stopped:
            self._begin(now)
            self._listener.subscriptions.refused(sid, reason, now)

    def nats_lost(self, now: Now, reason: str) -> None:
        """Handle the loss of the NATS connection: no partition is subscribed from `now` on.

        The wall time of `now` is when the connection last worked for certain: a gap begins there.
        """
        if not self._is_stopped:
            self._begin(self._context.now)  # that wall time is past: nothing else is stamped with it
            self._replicas.streams.lost()
            self._listener.lost(now, reason)

    # Peers

    def peer_up(self, broker_id: BrokerId, now: Now, cluster_id: str = "", *, is_proven: bool = False) -> None:
        """Handle a connection to the broker, whose id was checked; `cluster_id` is its claim, if it knows one.

        `is_proven`: it has proved that it belongs to this cluster.
        """
        if not self._is_stopped:
            self._begin(now)
            self._peers.up(broker_id, is_proven=is_proven)
            self._cluster.peer_up(broker_id, cluster_id)

    def peer_refused(self, broker_id: BrokerId, where: str, error: RemoteError, now: Now) -> None:
        """Handle a refusal by the broker at `where` (id 0 if unknown): the two are not of the same cluster."""
        if not self._is_stopped:
            self._begin(now)
            self._cluster.peer_refused(broker_id, where, error)

    def peer_lost(self, broker_id: BrokerId, now: Now) -> None:
        """Handle a lost peer connection; requests without an answer are lost with it."""
        if not self._is_stopped:
            self._begin(now)
            self._peers.lost(broker_id)

    def answered(
        self, broker_id: BrokerId, token: int, response: Response | RemoteError, raw: bytes | memoryview, now: Now
    ) -> None:
        """Handle a peer's answer to the request with that token."""
        if not self._is_stopped:
            self._begin(now)
            self._peers.answered(broker_id, token, response, raw)

    def receiving(self, broker_id: BrokerId, size_bytes: int, now: Now) -> None:
        """Note progress of a peer's large answer (0 bytes as it begins), so that the peer does not count as silent."""
        if not self._is_stopped:
            self._begin(now)
            self._replicas.follows.receiving(broker_id, size_bytes, now)

    def joined(self, response: JoinResponse, now: Now) -> None:
        """Handle the answer to the `join` request of a step: the cluster and its brokers."""
        if not self._is_stopped:
            self._begin(now)
            self._cluster.joined(response)

    def _at(self, now: Now) -> None:
        """Begin an event that must not find a session which has ended meanwhile."""
        self._begin(now)  # first: what a refused subscription leads to must not come behind its end
        if not self._is_stopped:
            self._cluster.check_session(now)
            self._dispatch_pressing_events()

    # Disk

    def complete(self, work: DiskWork, error: Exception | None, now: Now) -> None:
        """Handle finished disk work; `error` is None if it succeeded."""
        self._at(now)
        work.done(error)
        if self._ingest_backlog:
            self._ingest_backlog.go_on(self._ingest)
        if self._awaits_schemas:
            self._next_tick_us = min(self._next_tick_us, now.elapsed_us + limits.MAINTENANCE_TURN_MS * 1_000)

    @property
    def _awaits_schemas(self) -> bool:
        return self._storing.appends.awaits_schemas or self._publishing.awaits_schemas

    def keys_read(self, now: Now) -> None:
        """Handle new encryption keys."""
        self._at(now)
        if not self._is_stopped:
            self._replicas.streams.keys_read()

    # Time

    def tick(self, now: Now, nats_proven_us: int | None = None) -> None:
        """Answer requests that timed out; once a second, roll segments and apply retention.

        `nats_proven_us`: wall-clock time up to which every published message has arrived; None if NATS is not
        connected.
        """
        if self._is_stopped:
            return
        self._begin(now)
        self._fetches.tick(now, self._partitions)
        self._cluster.tick(now)
        self._replicas.tick(now)
        self._decisions.resume(now.elapsed_us)
        self._consumption.resume(now.elapsed_us)
        self._expiries.tick(now.elapsed_us)
        self._schedules.tick(now.elapsed_us)
        self._budget.batches.tick(now, self._outbox.step)
        if now.elapsed_us < self._next_tick_us:
            return
        self._next_tick_us = now.elapsed_us + TICK_US
        self._schema_checks.tick(self._partitions.values(), now)
        self._storing.appends.tick()
        self._ingest_backlog.go_on(self._ingest)
        self._publishing.tick()
        self._deletions.tick(now.elapsed_us)
        self._decisions.tick(now.elapsed_us)
        self._consumption.tick()
        self._erasures.tick(now.elapsed_us)
        self._survey_marks.tick()
        self._mark_snapshots.tick()
        self._audit.write_missing(self._partitions, self._storing.append_to)
        self._listener.subscriptions.tick(now)
        self._listened.tick(now, nats_proven_us)
        self._cluster.quorum.keep_reserve()
        self._replicas.roles.event_log.report_due(
            self._cluster.seen, now.elapsed_us, is_alone=self._cluster.quorum.is_alone
        )
        if not self._upkeep.tick(self._partitions, now.wall_us) or self._ingest_backlog or self._awaits_schemas:
            self._next_tick_us = now.elapsed_us + limits.MAINTENANCE_TURN_MS * 1_000

    @property
    def next_wake_us(self) -> int:
        """Latest time at which `tick` must run."""
        wake_us = self._next_tick_us
        for deadline_us in (
            self._fetches.next_deadline_us,
            self._cluster.next_deadline_us,
            self._replicas.next_deadline_us,
            self._decisions.next_deadline_us,
            self._consumption.next_deadline_us,
            self._expiries.next_deadline_us,
            self._schedules.next_deadline_us,
            self._budget.refusals.next_deadline_us,
            self._budget.batches.next_deadline_us,
        ):
            if deadline_us is not None and deadline_us < wake_us:
                wake_us = deadline_us
        return wake_us

    @property
    def has_next_turn(self) -> bool:
        """True if messages have led to work that is due within milliseconds: answers, messages or refusals that wait
        for the next turn, news for followers.
        """
        return (
            self._fetches.has_next_turn
            or bool(self._ingest_backlog)
            or bool(self._budget.refusals)
            or self._replicas.leader_replication.has_news
        )

    # Requests

    def request(
        self,
        caller: Hashable,
        request: Request,
        raw: bytes | memoryview,
        now: Now,
        who: Principal | None = None,
        origin: ClientOrigin = NO_ORIGIN,
    ) -> None:
        """Answer a request now or later, with exactly one reply to `caller`. `who` is the logged-in user, or None."""
        try:
            call = self.authorized(caller, request, raw, now, who, origin)
            self._router.handlers[type(request)](call, request)
        except RemoteError as error:
            self._outbox.reply(caller, error)

    def authorized(
        self,
        caller: Hashable,
        request: Request,
        raw: bytes | memoryview,
        now: Now,
        who: Principal | None = None,
        origin: ClientOrigin = NO_ORIGIN,
    ) -> Call:
        """Return the call of a request that the caller may send; it is an event. Raise RemoteError."""
        if self._is_stopped:
            raise RemoteError(STOPPING.code, STOPPING.message)
        self._at(now)
        call = Call(caller, self.access.of(who), request, raw, now, origin)
        call.authorize()
        return call

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Forget the pending requests of disconnected callers."""
        callers = list(callers)
        self._begin(self._context.now)
        self._fetches.callers_disconnected(callers)
        self._lookups.callers_disconnected(callers)
        self._verifying.callers_disconnected(callers)
        self._deletions.callers_disconnected(callers)
        self._decisions.callers_disconnected(callers)
        self._erasures.callers_disconnected(callers)
        self._schemas.callers_disconnected(callers)
        self._replicas.callers_disconnected(callers)

    def _closed(self, partition: Partition, error: RemoteError) -> None:
        self._replicas.closed(partition, error)
        self._replicas.leases.ended(partition, error)
        self._fetches.refuse(partition.key, error)
        self._storing.appends.refuse(partition.key, error)
        self._publishing.refuse(partition.key, error)
        self._deletions.refuse(partition, error)
        self._decisions.ended(partition, error)
        self._consumption.ended(partition, error)
        self._erasures.refuse(partition, error)
        self._survey_marks.ended(partition)
        self._expiries.forget(partition)
        self._schedules.forget(partition)
        self._publishing.grown(partition)
        self._listener.remove(partition)
        self._offsets.ended(partition)
        self._schemas.ended(partition)
        self._consumer_logs.ended(partition)
        self._router.letters.ended(partition)
        self.meters.forget(partition.key)

    def _resigned(self, partition: Partition) -> None:
        text = f"{partition.label} is led by another broker now; ask that one again"
        self._replicas.ended(partition, RemoteError(ErrorCode.FENCED_EPOCH, text))
        # Refer pending requests to the new leader.
        error = not_leader(self._context.image, partition.stream, partition.key.partition)
        self._replicas.leases.ended(partition, error)
        self._fetches.refuse(partition.key, error)
        self._publishing.refuse(partition.key, error)
        self._deletions.refuse(partition, error)
        self._decisions.ended(partition, error)
        self._consumption.ended(partition, error)
        self._erasures.refuse(partition, error)
        self._survey_marks.ended(partition)
        self._expiries.forget(partition)
        self._schedules.forget(partition)
        self._offsets.ended(partition)
        self._schemas.ended(partition)
        self._consumer_logs.ended(partition)
        self._router.letters.ended(partition)


def _text(subject: bytes) -> str:
    return subject.decode(errors="replace")
