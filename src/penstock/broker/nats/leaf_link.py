"""Leaf connection to NATS: delivers messages as nats-servers do among each other, so that a subscriber sees another
subject than that of its subscription (ADR 93).

Rules: it only delivers; requests, acks and messages come over the client link. It is *up* only once a message to an own
inbox has come back over the client link with another visible subject: that proves the port, the login, the account,
the permissions and the convention. While it is not up, deliveries are dropped: no caller waits for them, and readers
start anew. A slow nats-server shows in `pending_bytes` and LeafWritable: readers then stop, and nothing else waits.

nats-server never holds up a leaf for the sake of a slow subscriber: it queues what that one does not take, and cuts it
off beyond `max_pending`. So a reader bounds what it sends ahead to each inbox; this link cannot.

| event        | when                                                                                        |
|--------------|---------------------------------------------------------------------------------------------|
| LeafUp       | the trial delivery has come back                                                            |
| LeafDown     | a connection that was up is lost, or a new reason why there is none                         |
| LeafWritable | nats-server takes less than is delivered: readers should stop; or it has caught up          |
| InterestLost | watched subjects have no subscriber any more                                                |
| InterestKnown | what nats-server knew at `ask_interest` has been told, or the connection is lost           |
| InfoChanged  | other permissions, or another `max_payload`                                                 |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.base import limits
from penstock.broker.nats.connection import LinkTiming, NatsConnection
from penstock.broker.nats.link import NatsLink
from penstock.broker.nats.reconnecting import Reconnector, now_ms
from penstock.broker.security.nats_credentials import NatsAccess, NatsServer
from penstock.hot.message_group import MessageGroup
from penstock.hot.scan import GROUP_BITS
from penstock.ingest.connect import ErrorKind, ServerInfo
from penstock.ingest.interest import InterestTable
from penstock.ingest.leaf import LeafSession, delivery_mistake
from penstock.ingest.nats import BarrierReached, InfoChanged, InterestLost, SessionEvent, SessionReady

_log = logging.getLogger("penstock.nats")

LEAF_GROUP = (1 << GROUP_BITS) - 2
"""Group of the subscription for trial deliveries on the client link; partitions count from 1."""

TRIAL_PREFIX = "_INBOX.penstock-leaf."
"""Prefix of the inboxes of trial deliveries: the client link's user subscribes there, the leaf's user publishes."""

_TRIAL_LOOK_S = 0.02  # between looks if nats-server has told the leaf of the client link's subscription
_VISIBLE = "penstock.trial"
_ACK = "$JS.ACK.penstock.leaf.1.{number}.1.0.0@" + _VISIBLE


@dataclass(frozen=True, slots=True)
class LeafUp:
    """Deliveries work. `info`: for `ingest.leaf.delivery_mistake`."""

    server: NatsServer
    info: ServerInfo


@dataclass(frozen=True, slots=True)
class LeafDown:
    """Deliveries do not work: why, and what to do."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeafWritable:
    """False: nats-server takes less than is delivered, so that readers should stop; True: it has caught up."""

    writable: bool


@dataclass(frozen=True, slots=True)
class InterestKnown:
    """All that nats-server knew of the interest at `ask_interest` has been told; or the connection is lost."""


LeafEvent = LeafUp | LeafDown | LeafWritable | InterestLost | InterestKnown | InfoChanged


class LeafOwner(Protocol):
    """Receives the events. All calls are on the event loop; none may block."""

    def leaf_event(self, event: LeafEvent) -> None:
        """An event of the table in the module's docstring."""


class LeafLink:
    """Keeps the leaf connection. `run` is its one task; all other methods are called on the same event loop."""

    def __init__(
        self,
        owner: LeafOwner,
        access: NatsAccess,
        client: NatsLink,
        *,
        name: Callable[[], str],
        random: Callable[[], float],
        timing: LinkTiming | None = None,
        trial_timeout_ms: int = limits.LEAF_TRIAL_TIMEOUT_MS,
    ) -> None:
        """`client`: the link over which trial deliveries come back. `name`: see `LeafSession`; asked at each connect.
        Raise ConfigError if credentials or certificates cannot work.
        """
        self._owner = owner
        self._access = access
        self._client = client
        self._name = name
        self._timing = timing or LinkTiming()
        self._trial_timeout_ms = trial_timeout_ms
        self.interest = InterestTable()
        """The interest in the account that this leaf may deliver to."""
        self._reconnector: Reconnector[LeafSession] = Reconnector(
            self,
            access,
            random=random,
            timing=self._timing,
            what="leaf connection",
            read_buffer_bytes=limits.LEAF_READ_BUFFER_BYTES,
        )
        self._inbox = b""  # of the trial deliveries; empty before the first connection
        self._trial_number = 0
        self._trial: asyncio.TimerHandle | None = None  # the next look at the trial, while it runs
        self._trial_due_ms = 0
        self._trial_sent = False
        self._told_down = ""  # reason of the last LeafDown
        self._is_asked = False  # an InterestKnown is due
        self.undelivered = 0
        """Number of batches of deliveries that were dropped, because the leaf was not up or took too little."""

    # State

    @property
    def is_up(self) -> bool:
        """True if deliveries work."""
        return self._reconnector.is_up

    @property
    def is_writable(self) -> bool:
        """True if nats-server takes what is delivered."""
        connection = self._reconnector.connection
        return self.is_up and connection is not None and connection.is_writable

    @property
    def pending_bytes(self) -> int:
        """Bytes delivered that nats-server has not taken yet."""
        connection = self._reconnector.connection
        return 0 if connection is None else connection.write_buffer_bytes

    @property
    def server(self) -> NatsServer | None:
        """The server of the current connection."""
        connection = self._reconnector.connection
        return None if connection is None else connection.server

    @property
    def info(self) -> ServerInfo:
        """The INFO of the current connection; defaults without one."""
        connection = self._reconnector.connection
        return ServerInfo() if connection is None else connection.session.info

    @property
    def allowed(self) -> tuple[str, ...]:
        """The patterns of subjects on which its user may publish; empty while it is not up."""
        export = self.info.export
        return () if not self.is_up else (export.allow if export is not None and export.allow else (">",))

    @property
    def last_failure(self) -> str:
        """The reason why it is, or last was, down; empty if nothing has failed."""
        return self._reconnector.last_failure

    def mistake(self, subject: bytes, size_bytes: int = 0) -> str | None:
        """Return why a message may not be delivered there, or None. nats-server would close the connection for it."""
        return delivery_mistake(self.info, subject, size_bytes)

    # Commands

    def deliver(self, frames: Sequence[bytes | bytearray]) -> None:
        """Write LMSG and HMSG frames, each whole; nats-server must allow them (`mistake`). Dropped while not up."""
        connection = self._reconnector.ready_connection
        if connection is None or not self.is_up or self.pending_bytes > limits.LEAF_PENDING_BYTES_MAX:
            self.undelivered += 1
            return
        connection.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def ask_interest(self) -> bool:
        """Have InterestKnown told, once all that nats-server knows now of the interest is known here. False: it is
        not up. Call it again only after that event.
        """
        connection = self._reconnector.ready_connection
        if connection is None or not self.is_up:
            return False
        assert not self._is_asked
        self._is_asked = True
        connection.session.barrier()
        connection.send_output()
        return True

    def trial_received(self, group: MessageGroup) -> None:
        """Messages of LEAF_GROUP have come over the client link."""
        if self._trial is None or not self._trial_sent:
            return
        wanted = _ACK.format(number=self._trial_number).partition("@")[0].encode()
        # Others are of an earlier connection, or of a stranger who knows the inbox.
        row = next((row for row in range(len(group)) if group.reply(row) == wanted), None)
        if row is None:
            return
        if group.subject(row) == _VISIBLE.encode():
            self._came_up()
        else:
            self._give_up("nats-server does not rewrite the subject of what a leaf delivers (it should from 2.2 on)")

    async def run(self) -> None:
        """Keep the connection until `stop`. Raises only what its owner raised."""
        try:
            await self._reconnector.run()
        finally:
            self._end_trial()

    def stop(self) -> None:
        """Have `run` return, after what is queued."""
        self._reconnector.stop()

    # What the reconnector and the connection call

    def new_session(self, server: NatsServer) -> LeafSession:
        name = self._name()
        self._inbox = f"{TRIAL_PREFIX}{name}".encode()
        return LeafSession(
            self.interest,
            name=name,
            authentication=self._access.credentials.authentication(server),
            tls_wanted=server.tls or bool(self._access.tls),
            ping_interval_ms=self._timing.ping_interval_ms,
            now_ms=now_ms(),
        )

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        raise AssertionError("a leaf without subscriptions has no messages")

    def session_event(self, event: SessionEvent) -> None:
        """Begin the trial; pass on what the owner needs."""
        if isinstance(event, SessionReady | InfoChanged):
            self._reconnector.announce(event.info.leafnode_urls)
        if isinstance(event, SessionReady):
            self._begin_trial()
        elif isinstance(event, BarrierReached):
            self._interest_known()
        elif isinstance(event, InterestLost | InfoChanged) and self.is_up:
            self._owner.leaf_event(event)

    def writable_changed(self, writable: bool) -> None:
        if self.is_up:
            self._owner.leaf_event(LeafWritable(writable))

    def connection_left(self, connection: NatsConnection[LeafSession]) -> None:
        self._end_trial()
        self.interest.ended()
        self._interest_known()

    def connection_ended(self, server: NatsServer, kind: ErrorKind, reason: str, *, was_ready: bool) -> None:
        if self._reconnector.is_stopping:
            return
        reason = f"{server}: {reason}"
        if reason != self._told_down:
            self._told_down = reason
            self._owner.leaf_event(LeafDown(reason))

    def _interest_known(self) -> None:
        if self._is_asked:
            self._is_asked = False
            self._owner.leaf_event(InterestKnown())

    # Inside: the trial delivery

    def _begin_trial(self) -> None:
        assert self._reconnector.connection is not None
        if not len(self.interest):  # a leaf is told at least of the subject by which nats-server detects loops
            self._give_up("this is no leaf port: give the one of `leafnodes` in the configuration of nats-server")
            return
        self._reconnector.connection.set_write_buffer(limits.LEAF_WRITE_BUFFER_BYTES_MAX)
        self._client.subscribe(LEAF_GROUP, self._inbox.decode())
        self._trial_number += 1
        self._trial_sent = False
        self._trial_due_ms = now_ms() + self._trial_timeout_ms
        self._try()

    def _try(self) -> None:
        """Send the trial delivery once there is interest in its inbox; give up at the time-out.

        It is sent again at each look: the interest may be that of another client in all inboxes, and ours come later.
        """
        self._trial = None
        connection = self._reconnector.ready_connection
        if connection is None:
            return
        if not self._client.is_up:
            self._trial_due_ms = now_ms() + self._trial_timeout_ms  # nothing can come back
        if now_ms() >= self._trial_due_ms:
            self._give_up(self._why_no_trial())
            return
        if (mistake := self.mistake(self._inbox)) is not None:
            self._give_up(f"{mistake}: allow it to publish on {TRIAL_PREFIX}> at least, best on _INBOX.>")
            return
        if self.interest.has_interest(self._inbox) is not False:
            self._trial_sent = True
            ack = _ACK.format(number=self._trial_number).encode()
            connection.write(b"LMSG %b %b 0\r\n\r\n" % (self._inbox, ack))
        self._trial = asyncio.get_running_loop().call_later(_TRIAL_LOOK_S, self._try)

    def _why_no_trial(self) -> str:
        inbox = self._inbox.decode()
        if not self._trial_sent:
            return (
                f"nats-server tells the leaf of no subscription on {inbox}, which the client connection makes: let its "
                f"user subscribe on {TRIAL_PREFIX}>, and both users belong to the same account"
            )
        return f"a trial delivery to {inbox} has not come back over the client connection"

    def _give_up(self, reason: str) -> None:
        self._end_trial()
        if (connection := self._reconnector.connection) is not None:
            connection.end_for(reason)

    def _end_trial(self) -> None:
        self._client.unsubscribe(LEAF_GROUP)  # so that nothing comes when nothing is awaited
        if self._trial is not None:
            self._trial.cancel()
            self._trial = None

    def _came_up(self) -> None:
        connection = self._reconnector.ready_connection
        if connection is None:
            return
        self._end_trial()
        self._reconnector.came_up()
        self._told_down = ""
        _log.info("deliveries go over the leaf connection to %s", connection.server)
        self._owner.leaf_event(LeafUp(connection.server, connection.session.info))
