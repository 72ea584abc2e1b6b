"""Driver: carries out what the node decides and connects it to the event loop of one broker.

Rules: everything happens on one event loop; only disk work runs elsewhere, and its completion returns to the loop.
Events of one loop turn are decided one by one and carried out together, so that one fsync and one write serve all of
them. Messages from NATS are carried out at once, so a lone message is not delayed. A reply that cannot be sent closes
its own connection; the rest of the step is still done. Disk work is always submitted, because other requests wait for
it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import msgspec

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import BrokerId, TimestampUs
from penstock.base.meters import Families
from penstock.broker.nats.leaf_link import LEAF_GROUP, InterestKnown, LeafEvent, LeafLink
from penstock.broker.nats.link import LinkDown, LinkEvent, LinkUp, NatsLink
from penstock.broker.peers.peers import PeerConnections
from penstock.broker.process.disk_threads import DiskThreads, TimedWork
from penstock.broker.process.running_timeout import RunningTimeout
from penstock.broker.rate_limited_log import RateLimitedLog
from penstock.broker.socket_api.connection import Caller
from penstock.broker.socket_api.server import Server
from penstock.broker.tracing import Tracing
from penstock.broker.transport.tls import ServerTls
from penstock.hot.message_group import MessageGroup
from penstock.ingest.nats import (
    BarrierReached,
    InfoChanged,
    InterestLost,
    MessagesSkipped,
    RepliesUnanswerable,
    ServerComplaint,
    SubscriptionRefused,
)
from penstock.jetstream.consumer_requests import ask_consumers
from penstock.jetstream.gateway import ACK_GROUP, GATEWAY_GROUP, Gateway
from penstock.jetstream.node_access import GatewayCaller
from penstock.messages import (
    AskConsumersRequest,
    CertificateInfo,
    JoinResponse,
    NatsStatus,
    PassApiCallsRequest,
    PassApiCallsResponse,
    PeerFailure,
    Request,
    Response,
    StatusResponse,
)
from penstock.node.node import Node
from penstock.node.quorum.metadata_forwarding import THE_BROKER
from penstock.node.security.access import ClientOrigin
from penstock.node.step import DiskWork, Lane, NatsAnswers, Reply, Step, Subscribe, Unsubscribe

_log = logging.getLogger("penstock.broker")

_SWEEP_US = 1_000_000
_TIMER_US_MIN = 1_000
# Longest delays until a deadline earlier than the planned one is noticed: after a request or a change, and after
# messages and their syncs, whose deadlines are of seconds, unless the node is to go on in its next turn
# (`Node.has_next_turn`). To find the next deadline costs as much as a tenth of a lone message.
_PLAN_US = 3_000
_LATE_PLAN_US = 50_000
_NEVER_US = 2**63
_DISK_US = 5_000_000  # Interval of measurements of the disk's space.
_LEAVE_SHARE = 0.2  # Share of the stop time-out for each of the two hand-overs to other brokers.


# Counts while the machine is suspended, too: sessions and leases end meanwhile for the other brokers.
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_clock() -> Now:
    return Now(time.time_ns() // 1_000, _elapsed_us())


def _elapsed_us() -> int:
    """Elapsed time of `wall_clock` without the wall time: cheaper, because every read and batch calls it."""
    return time.clock_gettime_ns(_ELAPSED) // 1_000


def _raise(error: BaseException) -> None:
    raise error


class Driver:
    """Joins the node, disk threads, NATS link, server and peers of one broker. The caller sets the last three before
    the node starts, and `leaf` if messages are to be delivered over NATS.
    """

    link: NatsLink
    api_link: NatsLink | None = None  # requests to JetStream's API and their answers: a flood leaves messages alone
    leaf: LeafLink | None = None
    server: Server
    peers: PeerConnections
    tls: ServerTls | None = None
    gateway: Gateway | None = None  # JetStream's API, if it is on

    def __init__(
        self,
        node: Node,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], Now] = wall_clock,
        disk: DiskThreads,
        in_flight_bytes_max: int,
        embedded_nats: bool,
        remember_cluster: Callable[[str], None] = lambda cluster_id: None,
        failed: Callable[[BaseException], None] = _raise,
        disk_space: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """Create the driver; `remember_cluster` persists the cluster id (on a disk thread), `failed` receives fatal
        errors. `disk_space` returns the free and all bytes of the disk (on a disk thread); None: not measured.
        """
        self._disk_space = disk_space
        self._disk_bytes: tuple[int, int] | None = None  # free, all
        self._disk_asked_us: int | None = None  # when the measurement began that has not returned
        self._next_disk_us = 0
        self._node = node
        self._remember_cluster = remember_cluster
        self._failed = failed
        self.tracing: Tracing | None = None
        self._loop = loop
        self._clock = clock
        self.elapsed_us = _elapsed_us if clock is wall_clock else lambda: clock().elapsed_us  # for measuring waits
        self._threads = disk
        disk.taken = self._disk_work_taken
        self._complaints = RateLimitedLog()
        self._in_flight_bytes_max = in_flight_bytes_max
        self._has_embedded_nats = embedded_nats
        self._scheduled = False
        self._gateway_turn_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = _NEVER_US  # when the timer is due
        self._plan: asyncio.TimerHandle | None = None  # pending re-planning of the timer
        self._plan_us = _NEVER_US  # when that is due
        self._plans_soon = False  # a deadline may be near: see `_PLAN_US`
        self._seen_us = 0  # elapsed time of the last event
        self._next_sweep_us = 0
        self._barriers: dict[int, int] = {}  # token of the link → token of the node
        self.reading_paused = False  # because of backpressure: too many bytes in flight
        self.reconnects = 0  # connections to NATS that were lost
        self.complained = 0
        self.messages_skipped = 0
        self.unanswerable = 0
        self.last_complaint = ""
        self._link_since_us: int | None = None  # wall clock, since when NATS is connected
        self.api_decided = asyncio.Event()  # which prefixes of JetStream's API are served
        self._stopping = False  # requests are refused
        self._stopped = False

    def now(self) -> Now:
        """Return the time from the injected clock and record it as the time of the last event."""
        now = self._clock()
        self._seen_us = now.elapsed_us
        return now

    @property
    def waits_for(self) -> str:
        """The reason why the broker has not joined its cluster yet; empty once it has."""
        return self._node.waits_for

    @property
    def is_stopping(self) -> bool:
        """True if requests are refused because the broker is stopping."""
        return self._stopping or self._stopped

    def trace(self, tracing: Tracing) -> None:
        self.tracing = self._node.meters.tracer = tracing

    @property
    def disk_work(self) -> int:
        """Number of disk tasks that have not completed."""
        return self._threads.open_count

    @property
    def stalled_syncs(self) -> int:
        """Number of logs whose fsync hangs."""
        return self._node.stalled_syncs

    def families(self) -> Families:
        """Yield the node's metric families."""
        for family in self._node.families(self.now()):
            if family is None:
                self.schedule()  # to carry out the read that this family has begun
            yield family
        self.schedule()

    def have_done(self, lane: Lane, run: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        """Run `run` on a disk thread, then call `done` on the loop with its error or None."""
        self._threads.submit(lane, run, done)

    # Events

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        if self._stopping:
            return  # the drain timed out: these messages are neither stored nor acked
        now = self.now()
        if self.leaf is not None and (trial := groups.pop(LEAF_GROUP, None)) is not None:
            self.leaf.trial_received(trial)
        self._node.messages_received(groups, now)
        self._carry_out_messages()
        self._watch_budget()

    def calls_received(self, calls: MessageGroup) -> None:
        """Pass requests to JetStream's API to the gateway, which refuses them while the broker stops."""
        if self._stopped or self.gateway is None:
            return
        if self._have_api(partial(self.gateway.messages_received, calls, self.now())):
            if (step := self._node.take()) is not None:
                self.do(step)
            return
        self._carry_out_messages()

    def acks_received(self, acks: MessageGroup) -> None:
        """Pass acks of consumers to the gateway."""
        if self._stopped or self.gateway is None:
            return
        self._have_api(partial(self.gateway.acks_received, acks, self.now()))
        self._carry_out_messages()

    def _have_api(self, take: Callable[[], bool | None]) -> bool | None:
        """Have JetStream's API take an event, and return what it says: a bug in it costs neither messages nor the
        broker's other clients.
        """
        try:
            return take()
        except Exception:  # noqa: BLE001 (reported; the gateway has answered its caller, and gone on with the others)
            _log.exception("internal error (bug) in JetStream's API")
            return None

    def link_event(self, event: LinkEvent) -> None:
        now = self.now()
        if isinstance(event, LinkUp):
            self._link_since_us = event.at_us
            self._node.nats_up()
            self.carry_out()  # at once: a barrier requested from now on comes after the node's own
        elif isinstance(event, LinkDown):
            self._link_since_us = None
            self.reconnects += 1
            lost = now if event.gap_start_us is None else msgspec.structs.replace(now, wall_us=event.gap_start_us)
            self._node.nats_lost(lost, f"{event.kind.name.lower()}: {event.reason}")
        elif isinstance(event, BarrierReached):
            if (token := self._barriers.pop(event.token, None)) is not None:
                self._node.barrier_reached(token, now)
        elif isinstance(event, SubscriptionRefused):
            if event.sid == LEAF_GROUP:
                pass  # the leaf's trial tells it
            elif event.sid is not None or not event.subject:  # otherwise the subscription has been ended meanwhile
                self._node.subscription_refused(event.sid, event.reason, now)
        else:
            self._note(event, now)
        self.schedule()

    def api_link_event(self, event: LinkEvent) -> None:
        """Take an event of the connection for JetStream's API; its failures are in the log."""
        now, link, gateway = self.now(), self.api_link, self.gateway
        if link is None or gateway is None:
            return
        if isinstance(event, LinkUp) and link.info is not None:
            gateway.connected(link.info.max_payload, link.info.jetstream, now)
            self.carry_out()
        elif isinstance(event, InfoChanged):
            gateway.payload_max = event.info.max_payload
        elif isinstance(event, SubscriptionRefused):
            if event.sid is not None:
                gateway.refused(event.sid, event.reason)
        else:
            self._note(event, now)
        self.schedule()

    def _note(self, event: LinkEvent, now: Now) -> None:
        """Count and log what is wrong with single messages and commands."""
        if isinstance(event, ServerComplaint):
            self._complain(event, now)
        elif isinstance(event, MessagesSkipped):
            self.messages_skipped += event.count
            text = f"a message from nats-server is not understood and not stored; it begins with {event.line!r}"
            self._warn("skipped", text, now)
        elif isinstance(event, RepliesUnanswerable):
            self.unanswerable += event.count
            text = "a publisher gets no ack: its reply subject is over %d bytes long or has a carriage return in it"
            self._warn("unanswerable", text % limits.NATS_REPLY_BYTES_MAX, now)

    def leaf_event(self, event: LeafEvent) -> None:
        """Take an event of the leaf connection, which logs by itself."""
        if isinstance(event, InterestLost) and self.gateway is not None:
            self._have_api(partial(self.gateway.interest_lost, event.subjects, self.now()))
        elif isinstance(event, InterestKnown) and self.gateway is not None:
            self._have_api(partial(self.gateway.interest_known, self.now()))
        self.schedule()

    def _complain(self, event: ServerComplaint, now: Now) -> None:
        self.complained += 1
        self.last_complaint = event.text
        self._warn(event.kind.name, f"nats-server complains: {event.text}", now)

    def _warn(self, kind: str, text: str, now: Now) -> None:
        """Log a warning that a client or peer can trigger, rate-limited per kind."""
        if (line := self._complaints.line(kind, text, now.elapsed_us)) is not None:
            _log.warning("%s", line)

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        """Pass a client's request to the node, or refuse it while the broker stops."""
        if self._stopping:
            # Otherwise the disk might never become idle, and the node would receive requests after its stop.
            caller.connection.reply(caller, RemoteError(ErrorCode.STOPPING, "the broker is stopping"), None)
            return
        try:
            is_broker = caller.connection.is_peer or caller.connection.handshake.is_broker
            who = THE_BROKER if is_broker else caller.connection.who
            if isinstance(request, PassApiCallsRequest):
                if self.gateway is not None:
                    self.gateway.passed_on(raw, self.now())
                caller.connection.reply(caller, PassApiCallsResponse(), None)
                return
            origin = ClientOrigin(caller.connection.handshake.client_name, caller.connection.peer)
            if self.gateway is not None and isinstance(request, AskConsumersRequest):
                ask_consumers(self.gateway, self._node.authorized(caller, request, raw, self.now(), who, origin))
                return
            self._node.request(caller, request, raw, self.now(), who, origin)
        except RemoteError as refusal:
            caller.connection.reply(caller, refusal, None)
        except Exception:  # noqa: BLE001 (reported, and answered)
            # A bug triggered by one request must not cost the other clients their connections.
            _log.exception("internal error (bug) in a %s request of %s", caller.api, caller.connection.peer)
            error = RemoteError(ErrorCode.INTERNAL, "internal error (bug) of the broker; its log has the details")
            caller.connection.reply(caller, error, None)

    def requests_taken(self) -> None:
        """Carry out the decisions of these requests at once: acks may wait for them."""
        self._carry_out_at_once()

    def callers_gone(self, callers: list[Caller]) -> None:
        """Drop these requests: their clients have disconnected."""
        self._node.callers_disconnected(callers)

    def peer_came(self, broker_id: BrokerId) -> None:
        """Another broker has connected to this one: retry our own connection to it without backoff."""
        self.peers.came(broker_id)

    def process_of(self, broker_id: BrokerId) -> str:
        """Return the process registered for a broker; empty if unknown."""
        return self._node.process_of(broker_id)

    def disk_of(self, broker_id: BrokerId) -> str:
        """Return the data directory registered for a broker; empty if unknown."""
        return self._node.disk_of(broker_id)

    def peer_up(self, broker_id: BrokerId, cluster_id: str) -> None:
        """A connection to another broker is established."""
        self.carry_out()  # first: what was decided for an earlier connection is dropped together with that connection
        self._node.peer_up(broker_id, self.now(), cluster_id, is_proven=self.peers.is_proven(broker_id))
        self.schedule()

    def peer_refused(self, broker_id: BrokerId, where: str, error: RemoteError) -> None:
        """Another broker belongs to another cluster, or refuses this broker for that reason."""
        self._node.peer_refused(broker_id, where, error, self.now())
        self.schedule()

    def peer_lost(self, broker_id: BrokerId) -> None:
        self._node.peer_lost(broker_id, self.now())
        self.schedule()

    def peer_answered(
        self, broker_id: BrokerId, token: int, response: Response | RemoteError, raw: bytes | memoryview
    ) -> None:
        """Pass a peer's response to the node."""
        try:
            self._node.answered(broker_id, token, response, raw, self.now())
        except Exception:  # noqa: BLE001 (reported; that connection begins anew)
            _log.exception("internal error (bug) in an answer of broker %d", broker_id)
            self.peers.cut(broker_id, "its answer caused an internal error (bug)")
        self._carry_out_at_once()  # acks may wait for the next request

    def peer_receiving(self, broker_id: BrokerId, size_bytes: int) -> None:
        """A large answer of another broker is being received."""
        self._node.receiving(broker_id, size_bytes, self.now())

    def peer_joined(self, response: JoinResponse) -> None:
        """A broker has answered the join request with the cluster's description."""
        self._node.joined(response, self.now())
        self.schedule()

    # Carrying out

    def schedule(self) -> None:
        """Carry out all decisions at the end of this loop turn."""
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._scheduled_turn)

    def _scheduled_turn(self) -> None:
        self._scheduled = False
        self.carry_out()

    def _carry_out_at_once(self) -> None:
        if not self._stopped:
            self.carry_out()

    def carry_out(self) -> None:
        """Carry out all that the node has decided."""
        self._take_steps()
        self._set_timer(_PLAN_US)

    def _carry_out_messages(self) -> None:
        self._take_steps()
        is_soon, self._plans_soon = self._plans_soon or self._node.has_next_turn, False
        self._set_timer(_PLAN_US if is_soon else _LATE_PLAN_US)

    def _take_steps(self) -> None:
        while (step := self._node.take()) is not None:
            self.do(step)
            if self.gateway is not None and self.gateway.has_news:
                self._have_api(partial(self.gateway.tick, self.now()))
        if self.gateway is not None and not self.api_decided.is_set() and self.gateway.is_decided:
            self.api_decided.set()
        if self.tracing is not None:  # requests without a waiting client make no step
            self.tracing.record()
            self.tracing.answered()
        if self.gateway is not None and self.gateway.has_next_turn and not self._gateway_turn_due:
            self._gateway_turn_due = True
            self._loop.call_soon(self._gateway_turn)

    def _gateway_turn(self) -> None:
        """Let readers of JetStream's API go on, between all that has come meanwhile."""
        self._gateway_turn_due = False
        if self.gateway is not None and not self._stopped:
            self._have_api(partial(self.gateway.turn, self.now()))
            self.carry_out()

    def do(self, step: Step) -> None:
        """Carry out one step, top to bottom, but begin the kernel's syncs first: the disk is at work meanwhile."""
        disk = [work for work in step.disk if work.sync is None or not self._begin_sync(work)] if step.disk else ()
        try:
            self._do_on_loop(step)
        finally:
            # Even after an error: a log whose fsync is never submitted would wait for it for ever.
            for work in disk:
                self._submit(work)
        for notice in step.notices:
            _log.warning("%s", notice)
        for news in step.news:
            _log.log(logging.WARNING if news.is_warning else logging.INFO, "%s", news.text)
        if step.failure:
            self._failed(OperationalError(step.failure))

    def _do_on_loop(self, step: Step) -> None:
        if self.tracing is not None:
            self.tracing.record()
        if step.publish:
            self._publish(step.publish)
            self._node.meters.acked(step.publish, self.elapsed_us())
        if step.deliver and self.leaf is not None:
            self.leaf.deliver(step.deliver)
        if self.tracing is not None:
            self.tracing.answered()
        for reply in step.replies:
            self._reply(reply)
        for request in step.peers:
            self.peers.send(request)
        for broker_id, address in step.peer_addresses:
            self.peers.set_address(broker_id, address)
        if step.cluster_id:
            self._learn_cluster(step.cluster_id)
        if step.join is not None:
            self.peers.join(step.join)
        for command in step.nats:
            if isinstance(command, Subscribe):
                self._link_of(command.sid).subscribe(command.sid, command.subject, command.queue)
            elif isinstance(command, Unsubscribe):
                self._link_of(command.sid).unsubscribe(command.sid)
            else:
                self._barriers[self.link.barrier()] = command.token
        for note in step.notes:
            note()

    def _publish(self, answers: list[NatsAnswers]) -> None:
        """Send acks to publishers, and answers to callers of JetStream's API."""
        if self.api_link is not None and any(one.sid == GATEWAY_GROUP for one in answers):
            self.api_link.answer([one for one in answers if one.sid == GATEWAY_GROUP])
            answers = [one for one in answers if one.sid != GATEWAY_GROUP]
        if answers:
            self.link.answer(answers)

    def _link_of(self, sid: int) -> NatsLink:
        is_of_api = self.api_link is not None and sid & GATEWAY_GROUP in (GATEWAY_GROUP, ACK_GROUP)
        return self.api_link if is_of_api and self.api_link is not None else self.link

    @property
    def answers_dropped(self) -> int:
        """Number of acks and answers that nats-server did not take in time."""
        return self.link.answers_dropped + (0 if self.api_link is None else self.api_link.answers_dropped)

    def _reply(self, reply: Reply) -> None:
        caller = reply.caller
        if isinstance(caller, GatewayCaller):
            assert self.gateway is not None
            self._have_api(partial(self.gateway.answered, caller, reply.response, reply.payload))
            return
        assert isinstance(caller, Caller)
        try:
            response = reply.response
            if isinstance(response, StatusResponse):
                response = self._complete_status(response)
            caller.connection.reply(caller, response, reply.payload, reply.looked_bytes)
            self.server.requests.answered(caller.api, self.elapsed_us() - caller.since_us)
        except Exception:  # noqa: BLE001 (reported; the other answers must get out)
            _log.exception("internal error (bug): %s gets no answer and is closed", caller.connection.peer)
            caller.connection.close()

    def _complete_status(self, status: StatusResponse) -> StatusResponse:
        """Add connections, NATS link, served APIs and certificates to the node's status."""
        link, server = self.link, self.server
        nats = NatsStatus(
            state="connected" if link.is_up else "connecting",
            url=str(link.server or ""),
            server_name=link.info.server_name if link.info is not None else "",
            server_version=link.info.version if link.info is not None else "",
            embedded=self._has_embedded_nats,
            reading_paused=self.reading_paused,
            since_us=None if self._link_since_us is None else TimestampUs(self._link_since_us),
            last_error=link.last_failure,
            reconnects=self.reconnects,
            answers_dropped=self.answers_dropped,
            complaints=self.complained,
            last_complaint=self.last_complaint,
            messages_skipped=self.messages_skipped,
            unanswerable=self.unanswerable,
            announced=tuple(map(str, link.announced)),
            gaps=status.nats.gaps,
        )
        if (leaf := self.leaf) is not None:
            nats = msgspec.structs.replace(
                nats,
                leaf_state="connected" if leaf.is_up else "connecting",
                leaf_url=str(leaf.server or ""),
                leaf_error=leaf.last_failure,
                leaf_allowed=leaf.allowed,
                leaf_subjects=len(leaf.interest),
                undelivered=leaf.undelivered,
            )
        if (api := self.gateway) is not None:
            nats = msgspec.structs.replace(
                nats,
                api_prefixes=tuple(api.served),
                api_manages=api.rights.may_manage,
                api_user=api.rights.user or "",
                api_unknown=api.unknown,
            )
        if self.api_link is not None:
            is_up = self.api_link.is_up
            nats = msgspec.structs.replace(
                nats, api_state="connected" if is_up else "connecting", api_error=self.api_link.last_failure
            )
        damaged_frames = server.damaged_frames + self.peers.damaged_frames
        free_bytes, size_bytes = self._disk_bytes or (None, None)
        disk_wait_us = 0 if self._disk_asked_us is None else self.elapsed_us() - self._disk_asked_us
        return msgspec.structs.replace(
            status,
            nats=nats,
            peer_failures=tuple(
                PeerFailure(broker_id=broker_id, address=address, reason=reason)
                for broker_id, address, reason in self.peers.failures()
            ),
            apis_served=()
            if self.gateway is None or nats.api_state != "connected"
            else tuple(one for one, is_so in self.gateway.served.items() if is_so),
            disk_free_bytes=free_bytes,
            disk_size_bytes=size_bytes,
            synced_by="kernel" if self._threads.has_kernel else "threads",
            disk_answers=disk_wait_us < limits.DISK_PROBE_TIMEOUT_MS * 1_000,
            connections=len(server.connections) - len(server.peers),
            requests_in_flight=server.open_request_count,
            tls_expires_us=None if self.tls is None else TimestampUs(self.tls.expires_us),
            certificates=self._certificates(),
            counters=status.counters
            | _counted(
                damaged_frames=damaged_frames,
                failed_logins=server.failed_logins,
                unfinished_logins=server.unfinished_logins,
                delayed=server.usage.delayed,
                throttled=server.usage.throttled,
            ),
        )

    def _certificates(self) -> tuple[CertificateInfo, ...]:
        held = () if self.tls is None else self.tls.held
        return tuple(
            CertificateInfo(
                setting=one.setting,
                expires_us=TimestampUs(one.validity.end_us),
                last_expires_us=TimestampUs(one.last_end_us),
            )
            for one in held
        )

    def _learn_cluster(self, cluster_id: str) -> None:
        def done(error: Exception | None) -> None:
            if error is not None:  # most likely the data directory belongs to another cluster
                self._failed(error)

        self.peers.hello = msgspec.structs.replace(self.peers.hello, cluster_id=cluster_id)
        self._threads.submit(Lane.WRITE, lambda: self._remember_cluster(cluster_id), done)

    # Disk threads

    def _submit(self, work: DiskWork) -> None:
        """Have a disk thread do the work."""
        if (meter := work.meter) is None:
            self._threads.submit(work.lane, work.run, lambda error: self._complete(work, error), work.user)
            return
        timed = TimedWork(work.run)

        def measured(error: Exception | None) -> None:
            meter.add(timed.took_us)
            self._complete(work, error)

        self._threads.submit(work.lane, timed, measured, work.user)

    def _begin_sync(self, work: DiskWork) -> bool:
        """Have the kernel do a plain sync; False if it does not take it."""
        sync, begun_us = work.sync, self.elapsed_us()
        assert sync is not None

        def synced(error: Exception | None) -> None:
            if work.meter is not None:
                work.meter.add(self.elapsed_us() - begun_us)
            if error is None and sync.check is not None:
                try:
                    sync.check()
                except OSError as failure:
                    error = failure
            self._complete(work, error)

        try:
            return self._threads.sync(sync.descriptor, synced)
        except Exception:  # noqa: BLE001 (reported; the answers of the step must get out, and a thread syncs as well)
            _log.exception("internal error (bug): the kernel is not asked to sync a file; a thread does it")
            return False

    def _complete(self, work: DiskWork, error: Exception | None) -> None:
        if self._stopped:
            return  # the node has stopped already
        self._node.complete(work, error, self.now())
        self._plans_soon |= work.sync is None  # the next slice of such work may be due in milliseconds

    def _disk_work_taken(self) -> None:
        """Carry out at once what the node has decided about disk work that is done: acks may wait for it."""
        if not self._stopped:
            self._seen_us = self.elapsed_us()  # a read for the server is no event of the node; the plan counts from now
            self._carry_out_messages()
            self._watch_budget()

    def read_ahead(self, run: Callable[[], None], done: Callable[[Exception | None], None], user: str = "") -> None:
        """Run a read on a disk thread for a client; `user` is the client's user name, if any."""
        self._threads.submit(Lane.READ, run, done, user)

    def reload_certificates(self) -> None:
        """Reload the TLS certificates (SIGHUP)."""
        if self.tls is not None and not self._stopped:
            self.tls.reload(self.now().wall_us, self.read_ahead)

    def keys_read(self) -> None:
        """The keys of encrypted streams were read again."""
        if not self._stopped:
            self._node.keys_read(self.now())
            self.schedule()

    async def _disk_idle(self, patience: RunningTimeout, keep_s: float) -> bool:
        """Return True once no disk task is open and its results are carried out; False on time-out."""
        self.carry_out()

        async def idle() -> None:
            while self._threads.open_count:
                await self._threads.idle()
                self.carry_out()

        return await patience.waits_for(idle(), keep_s)

    # Limits and time

    def _watch_budget(self) -> None:
        """Apply backpressure: pause reading from NATS above the global in-flight limit, resume below half of it."""
        in_flight_bytes = self._node.in_flight_bytes
        if not self.reading_paused and in_flight_bytes > self._in_flight_bytes_max:
            self.reading_paused = True
            _log.warning("%d bytes in flight: reading from NATS is paused", in_flight_bytes)
            self.link.pause_reading()
        elif self.reading_paused and in_flight_bytes <= self._in_flight_bytes_max // 2:
            self.reading_paused = False
            _log.info("reading from NATS again")
            self.link.resume_reading()

    def _set_timer(self, plan_us: int) -> None:
        """Schedule the planning of the timer, once for all events until then, so that a lone message does not pay for
        it.
        """
        if self._stopped:
            return
        due_us = self._seen_us + plan_us
        if self._timer_us <= self._seen_us:
            self._tick()  # the loop was too busy to run the timer in time
        elif due_us < self._timer_us and due_us < self._plan_us:
            self._cancel_plan()
            self._plan_us = due_us
            self._plan = self._loop.call_later(plan_us / 1e6, self._plan_timer)

    def _plan_timer(self) -> None:
        self._cancel_plan()
        # An earlier timer stays and sets the next one when it fires: a batch needs no timer of its own.
        wake_us = min(self._node.next_wake_us, self._next_sweep_us)
        if self.gateway is not None and (due_us := self.gateway.next_deadline_us) is not None:
            wake_us = min(wake_us, due_us)
        if wake_us >= self._timer_us:
            return
        self._cancel_timer()
        self._timer_us = wake_us
        self._timer = self._loop.call_later(max(_TIMER_US_MIN, wake_us - self.elapsed_us()) / 1e6, self._tick)

    def _measure_disk(self, now_us: int) -> None:
        """Measure the disk's space from time to time, for the status, one measurement at a time."""
        if self._disk_space is None or self._disk_asked_us is not None or now_us < self._next_disk_us:
            return
        self._next_disk_us, self._disk_asked_us = now_us + _DISK_US, now_us
        measure, found = self._disk_space, list[tuple[int, int]]()

        def done(error: Exception | None) -> None:
            self._disk_asked_us = None
            self._disk_bytes = found[0] if error is None else None

        self.have_done(Lane.WRITE, lambda: found.append(measure()), done)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel_plan(self) -> None:
        self._plan_us = _NEVER_US
        if self._plan is not None:
            self._plan.cancel()
            self._plan = None

    def _tick(self) -> None:
        self._cancel_timer()
        self._timer_us = _NEVER_US
        now = self.now()
        self._node.tick(now, self.link.proven_us)
        if self.gateway is not None:
            self._have_api(partial(self.gateway.tick, now))
        if now.elapsed_us >= self._next_sweep_us:
            self._next_sweep_us = now.elapsed_us + _SWEEP_US
            self.server.sweep()
            self.peers.sweep()
            if self.tls is not None:
                self.tls.sweep(now.wall_us, now.elapsed_us, self.read_ahead)
            self._measure_disk(now.elapsed_us)
        self._take_steps()
        if not self._stopped:
            self._plan_timer()

    # The end

    async def _others(self, take_over: Callable[[Now, Callable[[], None]], None], timeout_s: float) -> None:
        """Have other brokers take over; this broker serves what they have not taken over yet."""
        done = asyncio.Event()
        take_over(self.now(), done.set)
        self.schedule()
        if not await RunningTimeout(self._loop.time, timeout_s).waits_for(done.wait()):
            _log.warning("no metadata leader answers: others take over when the session of this broker is over")

    async def stop(self, timeout_s: float) -> bool:
        """Hand over leaderships, drain NATS, flush, answer open requests and close, all within `timeout_s`.

        Return False if the disk did not answer in time. Then the logs stay as after a crash, and waiting clients lose
        their connections instead of getting an answer that may be false.
        """
        async with RunningTimeout(self._loop.time, timeout_s).running() as patience:
            return await self._stop(patience, timeout_s)

    async def _stop(self, patience: RunningTimeout, timeout_s: float) -> bool:
        self.server.stop_listening()
        # the metadata first, while everything is still served
        await self._others(self._node.hand_over, timeout_s * _LEAVE_SHARE)
        self._node.drain(self.now())
        self.carry_out()
        # Before the leaderships end, so that what was published is acked: another leader would not ack these messages.
        if self.api_link is not None:
            await self.api_link.drain(int(timeout_s * 100))
        proven_us = self.link.proven_us
        if not await self.link.drain(int(timeout_s * 250)):
            _log.warning("NATS did not confirm the end of the subscriptions; what was on the way was not stored")
            if proven_us is not None:
                self._node.not_drained(proven_us)
        await self._others(self._node.leave, timeout_s * _LEAVE_SHARE)
        if self.gateway is not None:
            self._have_api(self.gateway.shut_down)
            self.carry_out()
        self._stopping = True
        self._node.give_up_queries()
        for_clients_s = timeout_s * 0.3
        patience.remaining_s()
        self._node.before_stop()
        disk_answers = await self._disk_idle(patience, for_clients_s)
        if disk_answers:
            self._node.before_stop()
            await self._disk_idle(patience, for_clients_s)  # only checkpoints: a stop is clean without them
            self.do(self._node.stop(self._clock()))
        else:
            _log.critical(
                "the disk does not answer: %d operations are open, no log was closed", self._threads.open_count
            )
        self._stopped = True
        self._cancel_timer()
        self._cancel_plan()
        await self.peers.stop()
        await self.server.finish(patience.remaining_s() / 2)
        if self.leaf is not None:
            self.leaf.stop()
        if self.api_link is not None:
            await self.api_link.stop(int(timeout_s * 50))
        await self.link.stop(int(patience.remaining_s() * 500))
        self._threads.close()
        return disk_answers


def _counted(**counts: int) -> dict[str, int]:
    """Return the counters above 0."""
    return {name: count for name, count in counts.items() if count}
