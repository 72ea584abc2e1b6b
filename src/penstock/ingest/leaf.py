"""Session of one leaf connection to nats-server, which only delivers: bytes in, events and bytes out.

Rules: as in `ingest.nats`. The session makes no subscription, so that no message of the account comes over it. What
nats-server tells of the interest in the account goes into an `InterestTable`, which outlives the session.

A leaf connection is how nats-servers join: a message that comes over it is delivered as it is, and a reply subject
`$JS.ACK.….…@orders.eu` makes `orders.eu` the subject that the subscriber sees, while its subscription is on an inbox
(ADR 93). nats-server is strict with a leaf: it *closes* the connection after each error. So the broker must not send
what is not allowed: see `delivery_mistake`.

| nats-server says      | before the PONG               | behind it                                               |
|-----------------------|-------------------------------|---------------------------------------------------------|
| INFO                  | the first: CONNECT; the second has the permissions of our user, as `export`             |
| LS+, LS-              | a snapshot of the interest    | each change of it                                       |
| PONG                  | the snapshot is complete      | BarrierReached                                          |
| -ERR                  | CLOSED                        | CLOSED                                                  |
| LMSG, HMSG, RMSG      | skipped, bounded              | skipped, bounded                                        |
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.base.subjects import subject_mistake
from penstock.hot.interest import scan_interest
from penstock.hot.scan import ProtocolError
from penstock.ingest.connect import ANONYMOUS, Authentication, ErrorKind, ErrorLine, ServerInfo, leaf_connect_line
from penstock.ingest.interest import InterestTable
from penstock.ingest.nats import InterestLost, NatsSessionState, Received, ServerSession, SessionEvent

_TICK_MS = 500  # watched subjects that no subscription is known for are looked at so often
_UNCHECKED = ("$JS.ACK.", "_R_.")  # nats-server checks no permission for these
_ROUTED_PREFIX = "_GR_."  # of an inbox behind a gateway of nats-server
_ROUTED_PREFIX_CHARS = len("_GR_.cccccc.ssssss.")


def delivery_mistake(info: ServerInfo, subject: bytes, size_bytes: int) -> str | None:
    """Return why nats-server would close the leaf connection for such a message, or None.

    `info`: of the leaf connection. `subject`: as a client chose it. `size_bytes`: of headers and payload.
    """
    if size_bytes > info.max_payload:
        return f"a message of {size_bytes} bytes is over the max_payload of nats-server ({info.max_payload})"
    text = subject.decode("utf-8", "surrogateescape")
    if (mistake := subject_mistake(text)) is not None:
        return mistake  # white space would break the frame
    if text.startswith(_ROUTED_PREFIX):
        text = text[_ROUTED_PREFIX_CHARS:]
    if info.export is None or text.startswith(_UNCHECKED) or info.export.allows(text):
        return None
    return f"the leaf's user may not publish on {text!r}"


class LeafSession(ServerSession):
    """The leaf's side of one connection."""

    def __init__(
        self,
        interest: InterestTable,
        *,
        name: str,
        authentication: Authentication = ANONYMOUS,
        tls_wanted: bool = False,
        ping_interval_ms: int = limits.NATS_PING_INTERVAL_MS,
        now_ms: int = 0,
    ) -> None:
        """`name`: unique in the NATS system, and the same after a restart: nats-server closes an older leaf of that
        name. `tls_wanted`: refuse a server without TLS.
        """
        super().__init__(
            name=name,
            authentication=authentication,
            tls_wanted=tls_wanted,
            ping_interval_ms=ping_interval_ms,
            now_ms=now_ms,
        )
        self._interest = interest
        interest.begun()

    def receive(self, buffer: bytes | bytearray | memoryview, start: int, end: int, now_ms: int) -> Received:
        """Parse buffer[start:end]. Never raises: invalid input becomes SessionClosed, after the events before it."""
        if self.state is NatsSessionState.CLOSED:
            return Received(end, {}, [], 0)
        self.data_arrived(now_ms)
        events: list[SessionEvent] = []
        scanned = self._interest.scanned
        mistake: OperationalError | None = None
        position = end
        try:
            position = scan_interest(buffer, start, end, scanned)
        except ProtocolError as error:
            mistake = error
        lines = scanned.lines[:]
        scanned.lines.clear()
        was_ready = self.state is NatsSessionState.READY
        try:
            for line in lines:
                self._line(line, events)
            if self.state is NatsSessionState.CONNECTING_INFO and (scanned.keys or scanned.untracked):
                raise OperationalError("not the leaf protocol: interest before INFO")
            if self.state is NatsSessionState.TLS and (position < end or scanned.keys or scanned.untracked):
                raise OperationalError("nats-server sent plain bytes after asking for TLS")
        except OperationalError as error:
            mistake = error
        if not was_ready and self.state is NatsSessionState.READY:
            self._interest.snapshot_complete(now_ms)
        if was_ready:
            behind, events = events, []
            self._tell_lost(now_ms, events)  # first: who hears of a barrier knows what was lost before it
            events += behind
        else:
            self._tell_lost(now_ms, events)
        if mistake is not None:
            self._close(ErrorKind.PROTOCOL, str(mistake), events)
        return Received(position, {}, events, 0)

    @property
    def next_tick_ms(self) -> int:
        """Time of the next `tick`."""
        is_due = self._interest.next_ms == 0
        return min(self._next_ping_ms, self._now_ms + (1 if is_due else _TICK_MS))

    def tick(self, now_ms: int, *, reading: bool = True) -> list[SessionEvent]:
        """Send a PING, or detect a dead connection, and tell of watched subjects that no subscription has come for."""
        self._now_ms = now_ms
        events = super().tick(now_ms, reading=reading)
        self._tell_lost(now_ms, events)
        return events

    def _tell_lost(self, now_ms: int, events: list[SessionEvent]) -> None:
        if self.state is NatsSessionState.READY and (lost := self._interest.lost(now_ms)):
            events.append(InterestLost(tuple(lost)))

    def _connect_line(self) -> bytes:
        return leaf_connect_line(self.info, self._authentication, name=self._name, tls=self._tls)

    def _error(self, error: ErrorLine, events: list[SessionEvent]) -> None:
        """End the session: nats-server closes a leaf's connection after every error."""
        if error.kind is ErrorKind.AUTHORIZATION:
            reason = (
                f"nats-server refuses the leaf's credentials ({error.text}); give it a user in `leafnodes`, or "
                "one of an account"
            )
        elif error.kind is ErrorKind.DUPLICATE_LEAF:
            reason = f"another leaf connection has the same name, {self._name}: does a second broker run with this id?"
        elif error.kind is ErrorKind.PERMISSION_PUBLISH:
            reason = f"nats-server closed the leaf connection ({error.text}); allow its user to publish there"
        else:
            reason = f"nats-server says to the leaf: {error.text}"
        self._close(error.kind, reason, events)
