"""This broker's part in the cluster: the metadata, its registration, and the requests about both.

Rules: everything that the cluster agrees on comes through here, on one broker as on many. A broker that is alone is its
own metadata leader: it is registered, and may lead, before `start` returns. With others registration takes time, and
what is on the disk can be read meanwhile.

    quorum          Raft and the image
    metadata_leader duties of the controller
    link            requests to the metadata leader
    standing        registration and heartbeats
    departure       controlled shutdown
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from penstock.base import limits
from penstock.base.clock import Now, earliest
from penstock.base.errors import CorruptionError, ErrorCode, OperationalError, RemoteError
from penstock.base.ids import BrokerId, Incarnation
from penstock.messages import (
    JoinRequest,
    JoinResponse,
    PeerHelloRequest,
    Request,
    Response,
    StopBrokerRequest,
    StreamInfo,
)
from penstock.messages.fields import INT64_MAX
from penstock.metadata.commands import Command, RegisterBroker
from penstock.metadata.controller.controller import Controller, ControllerConfig
from penstock.metadata.image import ClusterImage, CommandOutcome, StreamState
from penstock.node.context import Context
from penstock.node.control.addresses import PeerAddresses
from penstock.node.control.controlled_shutdown import ControlledShutdown
from penstock.node.control.metadata_listener import MetadataListener, StreamDescriber
from penstock.node.control.peer_requests import PeerRequests
from penstock.node.control.readiness import not_ready_reason
from penstock.node.control.startup_conflicts import (
    StartupConflicts,
    is_cluster_mismatch,
    is_id_conflict,
    is_stale_data_dir,
)
from penstock.node.controller.api_admin import ApiAdmin
from penstock.node.controller.apply_barriers import LocalApplyBarrier
from penstock.node.controller.audit import AuditLog
from penstock.node.controller.feature_level_admin import FeatureLevelAdmin
from penstock.node.controller.metadata_leader import MetadataLeader
from penstock.node.controller.stream_admin import StreamAdmin
from penstock.node.controller.stream_placement import StreamPlacement
from penstock.node.controller.user_admin import UserAdmin
from penstock.node.data_dir.bootstrap import has_metadata, open_storage
from penstock.node.data_dir.clean_stop import doubtful_log, take_clean_stop
from penstock.node.data_dir.folders import check_folders
from penstock.node.data_dir.lost_files import check_guards, recovery_advice
from penstock.node.data_dir.process_history import ProcessHistory
from penstock.node.quorum.cluster_events import ClusterObservation
from penstock.node.quorum.metadata_forwarding import Administrative, Local, MetadataForwarder
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.peer_fencing import PeerProcess, ProcessStart
from penstock.node.quorum.quorum import Quorum
from penstock.node.quorum.raft_listener import EntryPosition
from penstock.node.quorum.registration import BrokerRegistration, HeartbeatNumbers, register_command
from penstock.node.quorum.session import ClusterSession
from penstock.node.security.access import Access, Call
from penstock.node.security.auth_markers import AuthMarkers
from penstock.node.step import JoinAttempt, Lane
from penstock.raft import Raft, RaftConfig

_TICK_US = limits.RAFT_TICK_MS * 1_000
_API_LEASE_US = limits.API_LEASE_MS * 1_000
_CONFIRM_US = limits.REFUSALS_CONFIRM_MS * 1_000


class Cluster:
    """Call `open` first, then `start`. `chance` is a seeded random generator, such as random.Random."""

    def __init__(
        self,
        context: Context,
        peers: PeerClient,
        session: ClusterSession,
        markers: AuthMarkers,
        access: Access,
        audit: AuditLog,
    ) -> None:
        self._access = access
        self._audit = audit
        self._vfs = context.vfs
        self._settings = context.settings
        self._outbox = context.outbox
        self._peers = peers
        self._chance = context.chance
        self._context = context
        self._startup_conflicts = StartupConflicts(context.settings, context.outbox)
        self.auth_markers = markers
        self._session = session
        self._is_started = False
        self._is_heard = True
        self._looked_us = 0  # elapsed time of the last session check
        self._heard_until_us = 0  # elapsed time until which no full check is needed, unless the leader changes
        self._process_history = ProcessHistory(context.vfs)
        self._next_tick_us = 0
        self._heard_leader: BrokerId | None = None
        self._confirmed_by_us = -_CONFIRM_US  # time of the last heartbeat of `confirm_soon`
        self._heard_us: int | None = None  # when a metadata leader was last known
        self._addresses = PeerAddresses(context.settings, context.outbox)
        self._told_cluster_id = context.settings.cluster_id
        self.deleted: list[StreamState] = []  # by commands applied at the start
        self.registered_us = 0  # when this broker was last registered

    def info(self, state: StreamState) -> StreamInfo:
        """Return a stream's description for clients."""
        return self._describer.stream(state)

    # Start

    def open(self, listener: MetadataListener, describer: StreamDescriber) -> None:
        """Open the metadata and join the quorum as far as possible alone; blocking. PenstockError, OSError.

        `listener` makes the image take effect on this broker; `describer` describes streams for clients.
        """
        self._consequences = listener
        self._describer = describer
        try:
            self._open()
        except CorruptionError as error:
            raise error.advised(recovery_advice(self._vfs, self._settings)) from error

    def _open(self) -> None:
        settings, has_data = self._settings, has_metadata(self._vfs)
        missing = check_guards(self._vfs, settings.guards)
        storage, notices, deleted = open_storage(self._vfs, settings)
        self.deleted += deleted
        last_index = max((entry.index for entry in storage.state.entries), default=storage.state.snapshot.index)
        begins = EntryPosition(last_index, storage.state.hard_state.term)
        check_folders(self._vfs, last_index)
        self._process_history.begin(
            settings.process, has_data=has_data
        )  # only now: a refused start leaves everything as it is
        stopped = take_clean_stop(self._vfs)
        if stopped is not None and (path := doubtful_log(self._vfs)):
            self._outbox.notice(f"{path} has lost a checkpoint: this start is one as after a kill")
            stopped = None
        for note in (*missing, *notices, *self._process_history.notices):
            self._outbox.notice(note)
        raft = Raft(RaftConfig(settings.broker_id), self._chance, storage.state)
        self.quorum = Quorum(
            self._context,
            storage,
            raft,
            self._peers,
            own=PeerProcess(settings.data_dir_id, self._process_history.process),
            start=ProcessStart(self._process_history.names, begins.log_index, begins.raft_term),
            observer=self,
        )
        ask_here: Local = lambda request, done, who: self._metadata_leader.request(request, done, who)  # noqa: E731
        self.link = MetadataForwarder(self._context, self.quorum, self._peers, ask_here)
        controller = Controller(settings.broker_id, ControllerConfig(), has_keys=settings.encrypted is not None)
        self._stream_admin = StreamAdmin(
            self._context,
            self.quorum,
            self._peers,
            StreamPlacement(self._context, self.quorum, controller),
            await_here=self._consequences.wait_for,
            info=self.info,
        )
        self._users = UserAdmin(self._context, self.quorum, self._peers)
        self._levels = FeatureLevelAdmin(self._context, self.quorum, self._peers)
        self._apply_barrier = LocalApplyBarrier(lambda: self.image.index)
        self._metadata_leader = MetadataLeader(
            self._context,
            self.quorum,
            controller,
            self._stream_admin,
            self._users,
            self._levels,
            ApiAdmin(self._context, self.quorum),
            self._access,
        )
        self.registration = self._new_standing(stopped, begins)
        self._session.quorum, self._session.registration = self.quorum, self.registration
        parts = (self.quorum, self.link, self._peers, self.registration)
        self.controlled_shutdown = ControlledShutdown(self._context, *parts)
        self._audit.begin(self.image)
        self.auth_markers.open(self.image, has_data=has_data)
        self.quorum.start()

    def _new_standing(self, stopped: Incarnation | None, begins: EntryPosition) -> BrokerRegistration:
        """`begins`: end of the metadata log at this start; `stopped`: incarnation that stopped cleanly before it."""
        who = register_command(self._settings, self._process_history, stopped, begins)
        return BrokerRegistration(
            who,
            self._ask_for_standing,
            self.quorum,
            self._consequences,
            self._look_at_standing,
            has_keys=self._settings.encrypted is not None,
        )

    def start(self) -> None:
        """Let the image take effect, now that the logs are open. A broker that is alone registers here; blocking."""
        self._is_started = self._session.is_started = True
        about = (self.quorum, self._metadata_leader)
        self._peer_requests = PeerRequests(
            self._context, self, *about, self._consequences.wait_for, self._apply_barrier
        )
        if self.quorum.is_alone:
            self.registration.tick(self._context.now)
            if self.registration.incarnation is None:
                self._outbox.notice("streams can be read, and store nothing until the disk has room for the metadata")
        if self.quorum.trouble and not self.quorum.is_alone:
            raise OperationalError(self.quorum.trouble)
        self.quorum.keep_reserve()
        self.quorum.started()
        self._tell_addresses()
        self._tell_cluster_id()
        if self._settings.join and not self.quorum.membership.voters:
            self._join()

    def _join(self) -> None:
        settings = self._settings
        request = JoinRequest(
            broker_id=settings.broker_id,
            data_dir_id=settings.data_dir_id,
            address=settings.address,
            broker_version=settings.broker_version,
        )
        self._outbox.step.join = JoinAttempt(request, settings.join)

    def _ask_for_standing(self, request: Request, done: Callable[[Response | RemoteError], None]) -> None:
        def answered(response: Response | RemoteError) -> None:
            if isinstance(response, RemoteError) and is_id_conflict(response):
                self._startup_conflicts.id_conflict_reported(response, self._context.now.elapsed_us)
            elif isinstance(response, RemoteError) and is_stale_data_dir(response):
                self._startup_conflicts.stale_data_dir_reported(response)
            elif _is_too_early(response) and self.quorum.leader is not None:
                self.registration.retry(self._context.now)
            done(response)

        self.link.ask(request, answered)

    def peer_up(self, broker_id: BrokerId, cluster_id: str) -> None:
        """Note a connected broker of this cluster; an empty `cluster_id`: it does not know the cluster's id yet."""
        self._startup_conflicts.same_cluster_confirmed(broker_id)
        self.quorum.cluster_formation.cluster_id_reported(broker_id, cluster_id)

    def peer_refused(self, broker_id: BrokerId, where: str, error: RemoteError) -> None:
        """Handle a refusal by the broker at `where` (0: unknown which): other cluster, or number or address in use."""
        if is_cluster_mismatch(error):
            self._startup_conflicts.refused(f"the broker at {where}", broker_id, error, self.quorum.membership.voters)
        elif is_id_conflict(error):
            self._startup_conflicts.id_conflict_reported(error, self._context.now.elapsed_us)

    def joined(self, response: JoinResponse) -> None:
        """Take the members of the cluster from a member's answer: they are asked for the metadata leader."""
        own = self._settings.broker_id
        self._addresses.members = {one.broker_id: one.address for one in response.members if one.broker_id != own}
        if not self.image.cluster_id:
            self._say_cluster_id(response.cluster_id)
        self._tell_addresses()
        self.registration.heartbeat_now()

    @property
    def process(self) -> str:
        """Name of this process in its messages to peers."""
        return self._process_history.process

    @property
    def cluster_id(self) -> str:
        """Id of this broker's cluster; empty while unknown."""
        return self.image.cluster_id or self._told_cluster_id

    def _tell_cluster_id(self) -> None:
        if self.image.cluster_id:
            self._say_cluster_id(self.image.cluster_id)

    def _say_cluster_id(self, cluster_id: str) -> None:
        if cluster_id != self._told_cluster_id:
            self._told_cluster_id = cluster_id
            self._outbox.step.cluster_id = cluster_id

    @property
    def image(self) -> ClusterImage:
        """Metadata image, as far as this broker has applied it."""
        return self._context.image

    @property
    def waits_for(self) -> str:
        """Reason, for people, why this broker has no part in the cluster yet; empty once it has."""
        reason = not_ready_reason(
            self.quorum, self.registration, self._startup_conflicts, self._settings.broker_id, self.voters_reachable
        )
        if not reason and self._settings.requires_login and not self.image.users:
            return "waiting for the first user, without which no client can log in: one broker must create it (--auth)"
        return reason

    def check_knows(self) -> None:
        """Raise RemoteError not_yet if other brokers may know of changes that this one has not applied."""
        if reason := self._doubt():
            raise RemoteError(ErrorCode.NOT_YET, f"not ready: {reason}")

    def _doubt(self) -> str:
        if (reason := self.waits_for) or self.quorum.is_alone or self.quorum.leader is not None:
            return reason
        voters = len(self.quorum.membership.voters)
        return f"waiting for a metadata leader: {self.voters_reachable} of {voters} voters reachable"

    @property
    def voters_reachable(self) -> int:
        """Number of voters that this broker can reach, itself included."""
        return sum(map(self.is_reachable, self.quorum.membership.voters))

    def is_reachable(self, broker_id: BrokerId) -> bool:
        """True if that broker is connected; this one reaches itself."""
        return broker_id == self._settings.broker_id or self._peers.is_up(broker_id)

    @property
    def seen(self) -> ClusterObservation:
        """View of the cluster for the event log."""
        voters = self.quorum.membership.voters
        has_majority = self.voters_reachable > len(voters) // 2
        return ClusterObservation(self.quorum.leader, has_majority, self.image.live_brokers(), voters)

    @property
    def heard_ms(self) -> int | None:
        """Milliseconds since a metadata leader was last known; None if never since start."""
        if self.quorum.leader is not None:
            return 0
        return None if self._heard_us is None else (self._context.now.elapsed_us - self._heard_us) // 1_000

    @property
    def silent_us(self) -> dict[BrokerId, int]:
        """Microseconds since this metadata leader heard of each live broker; empty on others, and if it is alone."""
        return {} if self.quorum.is_alone else self._metadata_leader.silent_us(self._context.now)

    @property
    def confirmed_us(self) -> int | None:
        """Elapsed time of the latest heartbeat that counts (`BrokerRegistration.confirmed_us`); now if alone."""
        return self._context.now.elapsed_us if self.quorum.is_alone else self.registration.confirmed_us

    def confirm_soon(self) -> bool:
        """Send a heartbeat, so that `confirmed_us` soon is at least now; False: one was within REFUSALS_CONFIRM_MS."""
        now = self._context.now
        if now.elapsed_us < self._confirmed_by_us + _CONFIRM_US:
            return False
        self._confirmed_by_us = now.elapsed_us
        self.registration.heartbeat_now()
        self.registration.tick(now)
        return True

    @property
    def api_lease_us(self) -> int:
        """Elapsed time until which this broker may act by the decision on JetStream's API that it has applied (ADR 98).

        A decision that is committed by now is applied here, or this broker stops by then.
        """
        if self.quorum.is_alone:
            return INT64_MAX
        confirmed_us = self.registration.confirmed_us
        return 0 if confirmed_us is None else confirmed_us + _API_LEASE_US

    @property
    def beats(self) -> HeartbeatNumbers:
        """Heartbeats of this broker (`BrokerRegistration`); a constant if it is alone, as it then sends none."""
        return HeartbeatNumbers(0, 1) if self.quorum.is_alone else self.registration.beats

    # Callbacks of the quorum

    def applied(self, place: EntryPosition, command: Command, outcome: CommandOutcome | RemoteError) -> None:
        """Handle a command that was applied."""
        self.auth_markers.update(self.image)
        if isinstance(outcome, CommandOutcome):
            self._audit.applied(place.log_index, command, outcome)
        if isinstance(command, RegisterBroker) and command.broker_id == self._settings.broker_id:
            self.registered_us = command.registered_us
        if not self._is_started:
            if isinstance(outcome, CommandOutcome) and outcome.deleted and outcome.stream is not None:
                self.deleted.append(outcome.stream)
        elif isinstance(outcome, CommandOutcome):
            self._tell_cluster_id()
            self._look_at_standing()
            if outcome.changed:
                self._consequences.applied(outcome)
        self._metadata_leader.applied(place.log_index, place.raft_term, self.image, outcome)
        self._apply_barrier.answer_due(self._context.now)

    def replaced(self, before: ClusterImage) -> None:
        """Handle a snapshot that has replaced the image."""
        self.auth_markers.update(self.image)
        self._audit.begin(self.image)
        if self._is_started:
            self._tell_cluster_id()
            self._look_at_standing()
            self._consequences.replaced(before)

    def answered(self, broker_id: BrokerId, response: Response | RemoteError, raw: bytes | memoryview) -> None:
        """Handle a voter's answer to a Raft message sent before this run was registered."""
        if not isinstance(response, RemoteError):
            self._startup_conflicts.accepted_by(broker_id)
        elif is_stale_data_dir(response):
            self._startup_conflicts.stale_data_dir_reported_by(broker_id, response, self.quorum.membership.voters)

    def metadata_leadership_gained(self) -> None:
        """Handle this broker's election as metadata leader."""
        self._metadata_leader.lead()
        self.registration.heartbeat_now()

    def metadata_leadership_lost(self) -> None:
        """Handle the loss of the metadata leadership."""
        self._metadata_leader.follow(self.quorum.leader)

    def failed(self, reason: str) -> None:
        """Stop leading and following, have others lead at once, and terminate: the metadata cannot be saved here.

        A broker that is alone goes on: no other broker has its data, or votes on what it may have forgotten.
        """
        if self.quorum.is_alone:
            self._outbox.notice(f"{reason}; no stream can be created or changed until a restart")
            return
        self._outbox.step.failure = reason
        incarnation = self.registration.incarnation
        if not self._is_started or incarnation is None:
            return
        self.registration.end()
        self._consequences.live_brokers_changed(None)
        request = StopBrokerRequest(broker_id=self._settings.broker_id, incarnation=incarnation)
        self.link.ask(request, lambda response: None)

    def _look_at_standing(self) -> None:
        if not self._is_started:
            return
        self.registration.image(self.image.brokers.get(self._settings.broker_id))
        if self.registration.incarnation is not None and not self._startup_conflicts.is_settled:
            self._startup_conflicts.is_settled = True
            self.quorum.peer_fencing.registered()
            if (forget := self._process_history.registered()) is not None:
                self._outbox.work(Lane.WRITE, forget, lambda error: None)
        self.check_session(self._context.now)
        self._tell_addresses()
        self._consequences.live_brokers_changed(self.registration.incarnation)

    def _tell_addresses(self) -> None:
        self._addresses.tell(self.image.brokers.values())

    # Requests

    def administer(self, call: Call, request: Administrative) -> None:
        """Forward a client's change to the metadata leader. RemoteError not_yet: this broker knows no broker to ask."""
        if self.waits_for and not (self.quorum.obstacle or self.link.knows_somebody):
            self.check_knows()

        def done(response: Response | RemoteError) -> None:
            is_lost = isinstance(response, RemoteError) and response.code == ErrorCode.NOT_METADATA_LEADER
            if is_lost and (reason := self._doubt()):  # what the operator can change
                response = RemoteError(ErrorCode.NOT_METADATA_LEADER, f"no metadata leader was found in time: {reason}")
            self._outbox.reply(call.caller, response)

        self.link.administer(request, done, call.auth.who, call.authorize)

    def peer_request(self, caller: Hashable, request: Request, raw: bytes | memoryview) -> None:
        """Handle another broker's request. RemoteError."""
        self._peer_requests.take(caller, request, raw)

    def peer_said(self, hello: PeerHelloRequest) -> None:
        """Note a peer's address and version, and its cluster id if it knows that."""
        formation = self.quorum.cluster_formation
        formation.version_reported(hello.broker_id, hello.broker_version)
        if not self._peers.is_up(hello.broker_id):
            formation.cluster_id_reported(hello.broker_id, hello.cluster_id)
        if self._addresses.said(hello.broker_id, hello.address):
            self._tell_addresses()

    # Time

    def tick(self, now: Now) -> None:
        """Advance Raft's time and check everything that waits."""
        if now.elapsed_us >= self._next_tick_us:
            self._next_tick_us = now.elapsed_us + _TICK_US
            if self.quorum.needs_ticks:
                self.quorum.tick()
            self._metadata_leader.tick(now)
            self.link.tick(now)
            self._apply_barrier.answer_due(now)
            self.auth_markers.update(self.image)
            if self.quorum.leader is not None:
                self._heard_us = now.elapsed_us
        if not self.quorum.is_alone or self.registration.incarnation is None:
            self.registration.tick(now)
        self.check_session(now)

    def has_session(self, now: Now) -> bool:
        """True if `check_session` has nothing to do."""
        is_heard = self.quorum.leader == self._heard_leader and now.elapsed_us < self._heard_until_us
        return is_heard and not self.controlled_shutdown.is_under_way

    @property
    def session_until_us(self) -> int:
        """Elapsed time until which `has_session` stays true without an event."""
        return self._heard_until_us

    def check_session(self, now: Now) -> None:
        """Check before each decision whether this broker's session may have ended: the process may have slept."""
        if self.has_session(now):  # the usual case
            self._looked_us = now.elapsed_us
            return
        leader = self.quorum.leader
        if leader != self._heard_leader:  # let the new leader know at once that this broker is live
            self._heard_leader = leader
            self.registration.heartbeat_now()
        self.controlled_shutdown.check_progress()
        is_heard = self.quorum.is_alone or self.registration.is_heard(now)
        if is_heard != self._is_heard:
            self._is_heard = is_heard
            self._consequences.metadata_contact_changed(
                now.wall_us - (now.elapsed_us - self._looked_us), is_heard=is_heard
            )
        self._looked_us = now.elapsed_us
        if self.quorum.is_alone:
            self._heard_until_us = now.elapsed_us + _TICK_US  # others may join
        else:
            self._heard_until_us = (self.registration.unheard_us or 0) if is_heard else 0

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` has something to do."""
        if not self.quorum.is_alone:
            unheard_us = self.registration.unheard_us if self._is_heard else None
            leave_us = self.controlled_shutdown.next_deadline_us
            return earliest(self._next_tick_us, self.registration.next_deadline_us, unheard_us, leave_us)
        waiting_us = (
            0
            if self.quorum.needs_ticks or self._metadata_leader.has_to_form
            else earliest(
                self.link.next_deadline_us,
                self._stream_admin.next_deadline_us,
                self._users.next_deadline_us,
                self._levels.next_deadline_us,
            )
        )
        return earliest(
            None if waiting_us is None else max(waiting_us, self._next_tick_us),
            self.registration.next_deadline_us if self.registration.incarnation is None else None,
        )

    # Shutdown

    def leave(self, done: Callable[[], None]) -> None:
        """Have other brokers lead what this one leads; call `done` once they do, or if that is not possible."""
        incarnation = self.registration.incarnation
        if self.quorum.is_alone or incarnation is None:
            done()
            return
        self.registration.leave()
        self.controlled_shutdown.leave(incarnation, done)

    def stop(self, error: RemoteError) -> None:
        """Answer all that wait and close the files: the broker is stopping."""
        self.link.stop(error)
        self._stream_admin.stop(error)
        self._users.stop(error)
        self._levels.stop(error)
        self._apply_barrier.stop(error)
        self.quorum.stop(error)


def _is_too_early(response: Response | RemoteError) -> bool:
    """True if the broker that was asked does not lead yet, or no longer."""
    return isinstance(response, RemoteError) and response.code == ErrorCode.NOT_METADATA_LEADER
