"""Handshake of a connection: hello, then a login or a peer hello; decides what the peer may request.

Rules: the first request is hello. If authentication is on, the next one must be a login, in small frames. A login is
one attempt: a failed one gets an error and the connection is closed; the log has its address. If authentication is on,
a broker must prove that it knows the cluster secret before it is accepted as one; from then on both sides encrypt.

| stage      | hello | a message of a login     | peer hello                        | another request               |
|------------|-------|--------------------------|-----------------------------------|-------------------------------|
| NEW        | MET   |                          |                                   |                               |
| MET        | MET   | CHALLENGED               | INTRODUCED, if brokers need no    | if no login is required       |
|            |       |                          | proof                             |                               |
| CHALLENGED |       | USER, or PROVEN (broker) |                                   |                               |
| USER       | USER  |                          |                                   | requests of clients           |
| PROVEN     |       |                          | INTRODUCED                        |                               |
| INTRODUCED |       |                          | INTRODUCED, as the same broker    | requests of clients, if not   |
|            |       |                          |                                   | proven                        |
| PEER       | PEER  |                          | PEER, as the same broker          | requests of brokers           |
| FAILED     |       |                          |                                   |                               |

An empty cell is refused, and the connection is closed. A failed login becomes FAILED. The answer to a peer hello makes
INTRODUCED a PEER.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from penstock.access import Quotas
from penstock.access.handshake import Principal, ServerHandshake
from penstock.access.users import BROKER, GIVE_CREDENTIALS
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import (
    Api,
    AuthenticateRequest,
    AuthenticateResponse,
    HelloRequest,
    PeerHelloRequest,
    Request,
)
from penstock.messages.apis import is_asked_by_brokers, is_asked_by_clients
from penstock.wire import Frame
from penstock.wire.encryption import FrameCipher
from penstock.wire.session import PEER_NAME


class Authenticator(Protocol):
    """Authentication of a broker: whether clients and brokers must log in, and who they are."""

    @property
    def is_guarded(self) -> bool:
        """True if clients must log in."""

    @property
    def brokers_prove(self) -> bool:
        """True if a broker must prove that it knows the cluster secret."""

    @property
    def is_current(self) -> bool:
        """True if this broker's users are up to date; otherwise it cannot report a user as unknown."""

    def begin_login(self) -> ServerHandshake:
        """Begin a login."""

    def logged_in(self, who: Principal, data: bytes, *, is_here: bool) -> AuthenticateResponse:
        """Return the answer to the last message of a login.

        `data` is the mechanism's part of it; `is_here`: the client is on this machine. Raise RemoteError overloaded if
        the user has reached its limit of connections.
        """

    def counts(self, who: Principal) -> bool:
        """True if this login is still valid."""

    def quotas_for(self, who: Principal) -> Quotas | None:
        """Return a user's quotas; None: unlimited."""


class NoAuthentication:
    is_guarded = False
    brokers_prove = False
    is_current = True

    def begin_login(self) -> ServerHandshake:
        """Raise RemoteError bad_request: authentication is off."""
        raise RemoteError(ErrorCode.BAD_REQUEST, "this broker has no authentication; connect without a login")

    def logged_in(self, who: Principal, data: bytes, *, is_here: bool) -> AuthenticateResponse:
        """Never called: no login begins."""
        raise AssertionError(who)

    def counts(self, who: Principal) -> bool:
        """Never called: no login begins."""
        raise AssertionError(who)

    def quotas_for(self, who: Principal) -> Quotas | None:
        return None


class HandshakeStage(Enum):
    """Stage of a connection; see the module's table."""

    NEW = auto()
    MET = auto()
    CHALLENGED = auto()
    USER = auto()
    PROVEN = auto()
    INTRODUCED = auto()
    PEER = auto()
    FAILED = auto()


class _Kind(Enum):
    HELLO = auto()
    LOGIN = auto()
    PEER_HELLO = auto()
    OTHER = auto()


_TAKEN: dict[HandshakeStage, frozenset[_Kind]] = {
    HandshakeStage.NEW: frozenset({_Kind.HELLO}),
    HandshakeStage.MET: frozenset(_Kind),
    HandshakeStage.CHALLENGED: frozenset({_Kind.LOGIN}),
    HandshakeStage.USER: frozenset({_Kind.HELLO, _Kind.OTHER}),
    HandshakeStage.PROVEN: frozenset({_Kind.PEER_HELLO}),
    HandshakeStage.INTRODUCED: frozenset({_Kind.PEER_HELLO, _Kind.OTHER}),
    HandshakeStage.PEER: frozenset({_Kind.HELLO, _Kind.PEER_HELLO, _Kind.OTHER}),
    HandshakeStage.FAILED: frozenset(),
}
_KNOWN = frozenset({HandshakeStage.USER, HandshakeStage.PROVEN, HandshakeStage.INTRODUCED, HandshakeStage.PEER})


class ConnectionHandshake:
    """The handshake of one connection. A RemoteError from `take` is sent, then the connection is closed."""

    def __init__(self, guard: Authenticator, overload: RemoteError | None, *, is_here: bool = False) -> None:
        """`overload`: the error for a client that is above the connection limit; `is_here`: the peer is on this
        machine.
        """
        self.stage = HandshakeStage.NEW
        self.is_checked = False  # frames and answers have checksums
        self.who: Principal | None = None  # the user that has logged in
        self.client_name = ""
        self.broker_id: BrokerId | None = None  # of a broker, from its peer hello
        self.claimed = ""  # user name of the last login attempt, not proven
        self._guard = guard
        self.overload = overload
        self._is_here = is_here
        self.cipher: FrameCipher | None = None  # of a proven broker: for all frames after its login
        self._login: ServerHandshake | None = None  # while CHALLENGED

    @property
    def is_new(self) -> bool:
        """True before the hello."""
        return self.stage is HandshakeStage.NEW

    @property
    def is_logging_in(self) -> bool:
        """True if a login has begun that has neither failed nor succeeded."""
        return self.stage is HandshakeStage.CHALLENGED

    @property
    def is_peer(self) -> bool:
        """True for a broker whose peer hello was answered."""
        return self.stage is HandshakeStage.PEER

    def introduced(self, broker_id: BrokerId) -> None:
        """The peer hello was accepted for processing."""
        self.broker_id, self.stage = broker_id, HandshakeStage.INTRODUCED

    def accepted(self) -> None:
        """The peer hello was answered."""
        assert self.stage is HandshakeStage.INTRODUCED, self.stage
        self.stage = HandshakeStage.PEER

    @property
    def is_open(self) -> bool:
        """True if the peer has authenticated as far as required: it may send requests, and large frames."""
        return self.stage in _KNOWN or (self.stage is HandshakeStage.MET and not self._guard.is_guarded)

    @property
    def is_broker(self) -> bool:
        """True if the peer has proved that it knows the cluster secret."""
        return self.who is not None and self.who.name == BROKER

    @property
    def is_stranger(self) -> bool:
        """True if this broker was accepted without a proof that is required by now."""
        return self.broker_id is not None and not self.is_broker and self._guard.brokers_prove

    def check_frame(self, frame: Frame) -> None:
        """Raise RemoteError bad_frame if this frame has checksums and the first one has none, or vice versa."""
        if self.stage is HandshakeStage.NEW:
            self.is_checked = frame.is_checked
        elif frame.is_checked != self.is_checked:
            text = "of the frames on one connection all have checksums, or none"
            raise RemoteError(ErrorCode.BAD_FRAME, text)

    def take(self, request: Request) -> AuthenticateResponse | None:
        """Return the answer to a message of a login; None for any other request, which is answered elsewhere."""
        if self.overload is not None and not self._may_be_peer(request):
            raise self.overload
        kind = _kind(request)
        if kind not in _TAKEN[self.stage]:
            raise self._out_of_turn(kind)
        if isinstance(request, HelloRequest):
            self.client_name = request.client_name[:128]
            if self.stage is HandshakeStage.NEW:
                self.stage = HandshakeStage.MET
        elif isinstance(request, AuthenticateRequest):
            return self._log_in(request)
        elif isinstance(request, PeerHelloRequest):
            self._check_peer(request)
        elif self.is_broker and not self.is_peer:  # as a broker it would have all permissions
            raise RemoteError(ErrorCode.BAD_REQUEST, _PEER_HELLO_NEXT)
        elif not self.is_open:
            raise RemoteError(ErrorCode.UNAUTHENTICATED, _LOG_IN_FIRST)
        return None

    def _out_of_turn(self, kind: _Kind) -> RemoteError:
        """Return why a request of this kind is not accepted in this stage."""
        if self.stage is HandshakeStage.NEW:
            return RemoteError(ErrorCode.BAD_REQUEST, "the first request on a connection is hello")
        if self.stage in (HandshakeStage.CHALLENGED, HandshakeStage.FAILED):
            return RemoteError(ErrorCode.UNAUTHENTICATED, _LOG_IN_FIRST)
        if kind is _Kind.LOGIN:
            return RemoteError(
                ErrorCode.BAD_REQUEST, "this connection is logged in already; open another one for another user"
            )
        if kind is _Kind.PEER_HELLO:
            return RemoteError(
                ErrorCode.BAD_REQUEST, f"user {'' if self.who is None else self.who.name!r} is no broker"
            )
        return RemoteError(ErrorCode.BAD_REQUEST, _PEER_HELLO_NEXT)

    def check_allowed(self, api: int) -> None:
        """Raise RemoteError bad_request if this side must not send that request, or unauthenticated."""
        if self.is_stranger and api != Api.PEER_HELLO:
            text = "this broker has not proved that it knows the cluster secret, which is required by now: reconnect"
            raise RemoteError(ErrorCode.UNAUTHENTICATED, text)
        if self.is_peer and not is_asked_by_brokers(api):
            raise RemoteError(ErrorCode.BAD_REQUEST, "this is a request of clients, and this connection is a broker's")
        if not self.is_peer and not is_asked_by_clients(api):
            text = "this is a request between brokers; a broker sends peer_hello first"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)

    def _log_in(self, request: AuthenticateRequest) -> AuthenticateResponse:
        login = self._login or self._guard.begin_login()
        self._login, self.stage = None, HandshakeStage.FAILED  # unless the login continues
        try:
            data = login.take(request.mechanism, request.data)
            if login.who is not None and not self._guard.counts(login.who):
                text = f"user {login.who.name!r}, or its credential, was deleted or changed during the login"
                raise RemoteError(ErrorCode.UNAUTHENTICATED, text)
        except RemoteError:
            if not self._guard.is_current:
                text = "the list of users on this broker may be outdated; ask another broker"
                raise RemoteError(ErrorCode.NOT_YET, text) from None
            raise
        finally:
            self.claimed = login.claimed[:128]
        if login.who is None:
            self._login, self.stage = login, HandshakeStage.CHALLENGED
            return AuthenticateResponse(data=data)
        answer = self._guard.logged_in(login.who, data, is_here=self._is_here)
        self.who, self.stage = login.who, HandshakeStage.USER
        if self.is_broker:
            self.stage = HandshakeStage.PROVEN
            self.cipher = FrameCipher(login.session_key, is_dialler=False)
        return answer

    def _check_peer(self, request: PeerHelloRequest) -> None:
        if not self.is_checked:
            text = "the frames between brokers have checksums, and yours have none; upgrade the older of the two"
            raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, text)
        if self._guard.brokers_prove and not self.is_broker:
            text = (
                "brokers of this cluster prove that they know its secret: start all of them with the same "
                "cluster_secret_file"
            )
            raise RemoteError(ErrorCode.UNAUTHENTICATED, text)
        proved = self.who.made_index if self.who is not None else request.broker_id
        if self.broker_id not in (None, request.broker_id) or proved != request.broker_id:
            text = f"this connection is that of broker {self.broker_id or proved}"
            raise RemoteError(ErrorCode.CLUSTER_MISMATCH, text)

    def _may_be_peer(self, request: Request) -> bool:
        if isinstance(request, HelloRequest):
            return request.client_name.startswith(PEER_NAME)
        if isinstance(request, AuthenticateRequest):
            return self.client_name.startswith(PEER_NAME)
        return isinstance(request, PeerHelloRequest) or self.broker_id is not None


_LOG_IN_FIRST = f"this cluster asks for a login: {GIVE_CREDENTIALS}"
_PEER_HELLO_NEXT = "the next request of a broker must be peer_hello"


def _kind(request: Request) -> _Kind:
    if isinstance(request, HelloRequest):
        return _Kind.HELLO
    if isinstance(request, AuthenticateRequest):
        return _Kind.LOGIN
    return _Kind.PEER_HELLO if isinstance(request, PeerHelloRequest) else _Kind.OTHER
