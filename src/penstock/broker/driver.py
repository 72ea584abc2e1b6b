"""The driver: does what the node decides. Holds the event loop's side of one broker together.

Rules: everything happens on one event loop; only disk work runs elsewhere, and comes back to the loop when it is done.
Events of one turn of the loop are decided one by one and carried out together, so that one sync and one write serve
all of them. Messages from NATS are carried out at once: a lone message waits for nothing. An answer that cannot be
given ends its own connection; the rest of the step is done, and disk work in any case: somebody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import BrokerId
from penstock.base.meters import Families
from penstock.broker.complaints import Complaints
from penstock.broker.connection import Caller
from penstock.broker.disk_threads import DiskThreads, TimedWork
from penstock.broker.nats_link import LinkDown, LinkEvent, LinkUp, NatsLink
from penstock.broker.patience import Patience
from penstock.broker.peers import Peers
from penstock.broker.server import Server
from penstock.broker.status import complete_status
from penstock.broker.tls import ServerTls
from penstock.broker.tracing import Tracing
from penstock.hot.group import Group
from penstock.ingest.nats import (
    BarrierReached,
    MessagesSkipped,
    RepliesUnanswerable,
    ServerComplaint,
    SubscriptionRefused,
)
from penstock.messages import JoinResponse, Request, Response, StatusResponse
from penstock.node.metadata_link import THE_BROKER
from penstock.node.node import Node
from penstock.node.step import DiskWork, Lane, Reply, Step, Subscribe, Unsubscribe

_log = logging.getLogger("penstock.broker")

_SWEEP_US = 1_000_000
_TIMER_US_MIN = 1_000
_PLAN_US = 3_000  # so late may be noticed that something is due sooner than was planned
_NEVER_US = 2**63
_LEAVE_SHARE = 0.2  # of the time that a stop may take


def wall_clock() -> Now:
    """The time of this machine."""
    return Now(time.time_ns() // 1_000, time.monotonic_ns() // 1_000)


def _monotonic_us() -> int:
    """What `wall_clock` has as elapsed time, for less: it is asked with every read and every batch."""
    return time.monotonic_ns() // 1_000


def _raise(error: BaseException) -> None:
    raise error


class Driver:
    """Node, disk threads, link, server and peers of one broker. The latter three are set before the node starts."""

    link: NatsLink
    server: Server
    peers: Peers
    tls: ServerTls | None = None

    def __init__(
        self,
        node: Node,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], Now] = wall_clock,
        disk_threads: int,
        in_flight_bytes_max: int,
        embedded_nats: bool,
        remember_cluster: Callable[[str], None] = lambda cluster_id: None,
        failed: Callable[[BaseException], None] = _raise,
    ) -> None:
        """`remember_cluster` keeps the cluster's id for good, in a disk thread; `failed` hears why we must stop."""
        self._node = node
        self._remember_cluster = remember_cluster
        self._failed = failed
        self.tracing: Tracing | None = None
        self._loop = loop
        self._clock = clock
        self.elapsed_us = _monotonic_us if clock is wall_clock else lambda: clock().elapsed_us  # for waits
        self._threads = DiskThreads(loop, disk_threads)
        self._complaints = Complaints()
        self._in_flight_bytes_max = in_flight_bytes_max
        self.has_embedded_nats = embedded_nats
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = _NEVER_US  # when it is due
        self._plan: asyncio.TimerHandle | None = None  # the timer is about to be planned anew
        self._seen_us = 0  # the time of the last event
        self._next_sweep_us = 0
        self._barriers: dict[int, int] = {}  # the link's token → the node's
        self.reading_paused = False  # since too much is in flight
        self.reconnects = 0  # of connections to NATS that were lost
        self.complained = 0
        self.messages_skipped = 0
        self.unanswerable = 0
        self.last_complaint = ""
        self.link_since_us: int | None = None  # NATS is connected, by the calendar
        self._stopping = False  # requests are refused
        self._stopped = False

    def now(self) -> Now:
        """The time, from the clock that was given."""
        now = self._clock()
        self._seen_us = now.elapsed_us
        return now

    @property
    def waits_for(self) -> str:
        """What the broker waits for before it has its part in the cluster; empty once it has it."""
        return self._node.waits_for

    @property
    def is_stopping(self) -> bool:
        """Whether requests are refused because the broker is about to end."""
        return self._stopping or self._stopped

    def trace(self, tracing: Tracing) -> None:
        """Tell it of what is traced, from now on."""
        self.tracing = self._node.meters.tracer = tracing

    @property
    def disk_work(self) -> int:
        """Pieces of work that disk threads have not given back."""
        return self._threads.open_count

    @property
    def stalled_syncs(self) -> int:
        """Logs of which the disk does not give back a sync."""
        return self._node.stalled_syncs

    def families(self) -> Families:
        """What is measured of the node."""
        for family in self._node.families(self.now()):
            if family is None:
                self.schedule()  # what it has begun to read
            yield family
        self.schedule()

    def have_done(self, lane: Lane, run: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        """Have a disk thread `run`; then `done` hears on the loop how it went."""
        self._threads.submit(lane, run, done)

    # Events

    def groups_received(self, groups: dict[int, Group]) -> None:
        """Messages from NATS."""
        if self._stopping:
            return  # the drain took too long: they are not stored, nor acked
        self._node.messages(groups, self.now())
        self.carry_out()
        self._watch_budget()

    def link_event(self, event: LinkEvent) -> None:
        """News of the connection to NATS."""
        now = self.now()
        if isinstance(event, LinkUp):
            self.link_since_us = event.at_us
            self._node.nats_up()
            self.carry_out()  # at once: whoever asks for a barrier now is behind the node's
        elif isinstance(event, LinkDown):
            self.link_since_us = None
            self.reconnects += 1
            lost = now if event.gap_start_us is None else msgspec.structs.replace(now, wall_us=event.gap_start_us)
            self._node.nats_lost(lost, f"{event.kind.name.lower()}: {event.reason}")
        elif isinstance(event, BarrierReached):
            if (token := self._barriers.pop(event.token, None)) is not None:
                self._node.reached(token, now)
        elif isinstance(event, SubscriptionRefused):
            if event.sid is not None or not event.subject:  # else one that has been ended meanwhile
                self._node.refused(event.sid, event.reason, now)
        elif isinstance(event, ServerComplaint):
            self._complain(event, now)
        elif isinstance(event, MessagesSkipped):
            self.messages_skipped += event.count
            text = f"a message from nats-server is not understood and not stored; it begins with {event.line!r}"
            self._warn("skipped", text, now)
        elif isinstance(event, RepliesUnanswerable):
            self.unanswerable += event.count
            text = "a publisher gets no ack: its reply subject is over %d bytes long or has a carriage return in it"
            self._warn("unanswerable", text % limits.NATS_REPLY_BYTES_MAX, now)
        self.schedule()

    def _complain(self, event: ServerComplaint, now: Now) -> None:
        self.complained += 1
        self.last_complaint = event.text
        self._warn(event.kind.name, f"nats-server complains: {event.text}", now)

    def _warn(self, kind: str, text: str, now: Now) -> None:
        """Log what others can cause, at most one line of a kind in a while."""
        if (line := self._complaints.line(kind, text, now.elapsed_us)) is not None:
            _log.warning("%s", line)

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        """A client asks for something."""
        if self._stopping:
            # Else the disk might never become idle, and the node would be asked after its end.
            caller.connection.reply(caller, RemoteError(ErrorCode.STOPPING, "the broker is stopping"), None)
            return
        try:
            is_broker = caller.connection.is_peer or caller.connection.greeting.is_broker
            who = THE_BROKER if is_broker else caller.connection.who
            self._node.request(caller, request, raw, self.now(), who)
        except Exception:  # noqa: BLE001 (reported, and answered)
            # A mistake in the program that one request has found: it must not take the other clients with it.
            _log.exception("a mistake in the program, found by a %s request of %s", caller.api, caller.connection.peer)
            error = RemoteError(ErrorCode.INTERNAL, "the broker made a mistake; its log says which")
            caller.connection.reply(caller, error, None)

    def requests_taken(self) -> None:
        """Carry out what they led to, at once: acks may wait for it."""
        self._carry_out_at_once()

    def callers_gone(self, callers: list[Caller]) -> None:
        """Nobody waits for these answers any more."""
        self._node.gone(callers)

    def peer_came(self, broker_id: BrokerId) -> None:
        """Another broker has connected: this one need not wait to connect to it."""
        self.peers.came(broker_id)

    def peer_up(self, broker_id: BrokerId, cluster_id: str) -> None:
        """Another broker can be asked."""
        self.carry_out()  # first: what was decided for an earlier connection to it is dropped with that one
        self._node.peer_up(broker_id, self.now(), cluster_id, is_proven=self.peers.is_proven(broker_id))
        self.schedule()

    def peer_refused(self, broker_id: BrokerId, where: str, error: RemoteError) -> None:
        """Another broker is none of our cluster's, or takes us for none."""
        self._node.peer_refused(broker_id, where, error, self.now())
        self.schedule()

    def peer_lost(self, broker_id: BrokerId) -> None:
        """It cannot be asked any more."""
        self._node.peer_lost(broker_id, self.now())
        self.schedule()

    def peer_answered(
        self, broker_id: BrokerId, token: int, response: Response | RemoteError, raw: bytes | memoryview
    ) -> None:
        """What came of a request to another broker."""
        try:
            self._node.answered(broker_id, token, response, raw, self.now())
        except Exception:  # noqa: BLE001 (reported; that connection begins anew)
            _log.exception("a mistake in the program, found by an answer of broker %d", broker_id)
            self.peers.cut(broker_id, "its answer found a mistake in the program")
        self._carry_out_at_once()  # acks may wait for the request that follows it

    def peer_receiving(self, broker_id: BrokerId, size_bytes: int) -> None:
        """A large answer of another broker is on its way."""
        self._node.receiving(broker_id, size_bytes, self.now())

    def peer_joined(self, response: JoinResponse) -> None:
        """Some broker has said what the cluster is."""
        self._node.joined(response, self.now())
        self.schedule()

    # Carrying out

    def schedule(self) -> None:
        """Carry out what is decided, once this turn of the loop has decided all it can."""
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
        """Do all that the node has decided."""
        self._take_steps()
        self._set_timer()

    def _take_steps(self) -> None:
        while (step := self._node.take()) is not None:
            self.do(step)
        if self.tracing is not None:  # what nobody waits for made no step
            self.tracing.look()
            self.tracing.answered()

    def do(self, step: Step) -> None:
        """One step, top to bottom."""
        try:
            self._do_on_loop(step)
        finally:
            # Whatever went wrong before it: a log whose sync is forgotten waits for it for ever.
            for work in step.disk:
                self._submit(work)
        for notice in step.notices:
            _log.warning("%s", notice)
        for news in step.news:
            _log.log(logging.WARNING if news.is_warning else logging.INFO, "%s", news.text)
        if step.failure:
            self._failed(OperationalError(step.failure))

    def _do_on_loop(self, step: Step) -> None:
        if self.tracing is not None:
            self.tracing.look()
        if step.publish:
            self.link.answer(step.publish)
            self._node.meters.acked(step.publish, self.elapsed_us())
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
                self.link.subscribe(command.sid, command.subject, command.queue)
            elif isinstance(command, Unsubscribe):
                self.link.unsubscribe(command.sid)
            else:
                self._barriers[self.link.barrier()] = command.token
        for note in step.notes:
            note()

    def _reply(self, reply: Reply) -> None:
        caller = reply.caller
        assert isinstance(caller, Caller)
        try:
            response = reply.response
            if isinstance(response, StatusResponse):
                response = complete_status(response, self)
            caller.connection.reply(caller, response, reply.payload, reply.looked_bytes)
            self.server.requests.answered(caller.api, self.elapsed_us() - caller.since_us)
        except Exception:  # noqa: BLE001 (reported; the other answers must get out)
            _log.exception("a mistake in the program: %s gets no answer and is closed", caller.connection.peer)
            caller.connection.close()

    def _learn_cluster(self, cluster_id: str) -> None:
        def done(error: Exception | None) -> None:
            if error is not None:  # somebody else's cluster, most likely: nothing of ours belongs there
                self._failed(error)

        self.peers.hello = msgspec.structs.replace(self.peers.hello, cluster_id=cluster_id)
        self._threads.submit(Lane.WRITE, lambda: self._remember_cluster(cluster_id), done)

    # Disk threads

    def _submit(self, work: DiskWork) -> None:
        def done(error: Exception | None) -> None:
            if self._stopped:
                return  # it came back too late
            self._node.complete(work, error, self.now())
            self.schedule()
            self._watch_budget()

        if (meter := work.meter) is None:
            self._threads.submit(work.lane, work.run, done, work.user)
            return
        timed = TimedWork(work.run)

        def measured(error: Exception | None) -> None:
            meter.add(timed.took_us)
            done(error)

        self._threads.submit(work.lane, timed, measured, work.user)

    def read_ahead(self, run: Callable[[], None], done: Callable[[Exception | None], None], user: str = "") -> None:
        """Have a disk thread read for a client, who may be a user."""
        self._threads.submit(Lane.READ, run, done, user)

    def reload_certificates(self) -> None:
        """Somebody has put new ones in their place."""
        if self.tls is not None and not self._stopped:
            self.tls.reload(self.now().wall_us, self.read_ahead)

    def keys_read(self) -> None:
        """The keys of encrypted streams were read again."""
        if not self._stopped:
            self._node.keys_read(self.now())
            self.schedule()

    async def disk_idle(self, timeout_s: float) -> bool:
        """True once no disk work is open and all that came of it is carried out; False if that takes too long."""
        return await self._disk_idle(Patience(self._loop.time, timeout_s), 0.0)

    async def _disk_idle(self, patience: Patience, keep_s: float) -> bool:
        self.carry_out()

        async def idle() -> None:
            while self._threads.open_count:
                await self._threads.idle()
                self.carry_out()

        return await patience.waits_for(idle(), keep_s)

    # Limits and time

    def _watch_budget(self) -> None:
        """Stop reading NATS at the global limit; read on when half of it is free again."""
        in_flight_bytes = self._node.in_flight_bytes
        if not self.reading_paused and in_flight_bytes > self._in_flight_bytes_max:
            self.reading_paused = True
            _log.warning("%d bytes in flight: reading from NATS is paused", in_flight_bytes)
            self.link.pause_reading()
        elif self.reading_paused and in_flight_bytes <= self._in_flight_bytes_max // 2:
            self.reading_paused = False
            _log.info("reading from NATS again")
            self.link.resume_reading()

    def _set_timer(self) -> None:
        """Have the timer planned anew, once for all that happens until then: a lone message does not wait for it."""
        if self._stopped:
            return
        if self._timer_us <= self._seen_us:
            self._tick()  # the loop was too busy for it
        elif self._plan is None and self._timer_us > self._seen_us + _PLAN_US:
            self._plan = self._loop.call_later(_PLAN_US / 1e6, self._plan_timer)

    def _plan_timer(self) -> None:
        self._cancel_plan()
        # One that is set for earlier stays, and sets the next when it comes: a batch needs no timer of its own.
        wake_us = min(self._node.next_wake_us, self._next_sweep_us)
        if wake_us >= self._timer_us:
            return
        self._cancel_timer()
        self._timer_us = wake_us
        self._timer = self._loop.call_later(max(_TIMER_US_MIN, wake_us - self.elapsed_us()) / 1e6, self._tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel_plan(self) -> None:
        if self._plan is not None:
            self._plan.cancel()
            self._plan = None

    def _tick(self) -> None:
        self._cancel_timer()
        self._timer_us = _NEVER_US
        now = self.now()
        self._node.tick(now, self.link.proven_us)
        if now.elapsed_us >= self._next_sweep_us:
            self._next_sweep_us = now.elapsed_us + _SWEEP_US
            self.server.sweep()
            self.peers.sweep()
            if self.tls is not None:
                self.tls.sweep(now.wall_us, now.elapsed_us, self.read_ahead)
        self._take_steps()
        if not self._stopped:
            self._plan_timer()

    # The end

    async def _others(self, take_over: Callable[[Now, Callable[[], None]], None], timeout_s: float) -> None:
        """Have other brokers take over; what they have not is served meanwhile."""
        done = asyncio.Event()
        take_over(self.now(), done.set)
        self.schedule()
        if not await Patience(self._loop.time, timeout_s).waits_for(done.wait()):
            _log.warning("no metadata leader answers: others take over when the session of this broker is over")

    async def stop(self, timeout_s: float) -> bool:
        """Let others lead, drain NATS, make all durable, answer who waits, close: `timeout_s` in all, whoever does not
        play along.

        False if the disk did not answer in time: then the logs are left as they are, as after a crash, and whoever
        waits for an answer loses his connection instead of hearing something that may not be true.
        """
        async with Patience(self._loop.time, timeout_s).running() as patience:
            return await self._stop(patience, timeout_s)

    async def _stop(self, patience: Patience, timeout_s: float) -> bool:
        self.server.stop_listening()
        await self._others(self._node.hand_over, timeout_s * _LEAVE_SHARE)  # the metadata, while all is served
        self._node.drain(self.now())
        self.carry_out()
        # Before it leaves, so that what was published is acked: another leader would not ack what this one has.
        proven_us = self.link.proven_us
        if not await self.link.drain(int(timeout_s * 250)):
            _log.warning("NATS did not confirm the end of the subscriptions; what was on the way was not stored")
            if proven_us is not None:
                self._node.not_drained(proven_us)
        await self._others(self._node.leave, timeout_s * _LEAVE_SHARE)
        self._stopping = True
        self._node.give_up_queries()
        for_clients_s = timeout_s * 0.3
        patience.look()
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
        await self.server.finish(patience.look() / 2)
        await self.link.stop(int(patience.look() * 500))
        self._threads.close()
        return disk_answers
