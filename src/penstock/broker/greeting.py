"""Who is on the other side of a connection, and so what it may ask: hello, then a login, or another broker's hello.

Rules: nothing but hello is taken first; where everybody has to log in, nothing but that next, in frames that are small.
A login is one attempt: whoever fails is told so and closed, and the log says from where. A broker shows that it knows
the secret of the cluster before it is taken for one, wherever anybody has to log in; what both say from then on is
encrypted.

| stage      | hello | a message of a login     | peer hello                        | another request               |
|------------|-------|--------------------------|-----------------------------------|-------------------------------|
| NEW        | MET   |                          |                                   |                               |
| MET        | MET   | CHALLENGED               | INTRODUCED, where no broker has   | where nobody has to log in    |
|            |       |                          | to prove anything                 |                               |
| CHALLENGED |       | USER, or PROVEN (broker) |                                   |                               |
| USER       | USER  |                          |                                   | what clients ask              |
| PROVEN     |       |                          | INTRODUCED                        |                               |
| INTRODUCED |       |                          | INTRODUCED, as the same broker    | what clients ask, if not      |
|            |       |                          |                                   | proven                        |
| PEER       | PEER  |                          | PEER, as the same broker          | what brokers ask              |
| FAILED     |       |                          |                                   |                               |

What stands nowhere is refused, and the connection is closed. A login that fails is FAILED. An answered peer hello makes
INTRODUCED a PEER.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

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


class Guard(Protocol):
    """The authentication of a broker: whether clients and brokers have to log in, and who they are."""

    @property
    def is_guarded(self) -> bool:
        """Whether everybody has to log in now."""

    @property
    def brokers_prove(self) -> bool:
        """Whether who says that it is a broker has to prove it."""

    @property
    def is_current(self) -> bool:
        """Whether this broker knows who there is: else it says of nobody that he is not."""

    def begin_login(self) -> ServerHandshake:
        """A login of somebody."""

    def logged_in(self, who: Principal, data: bytes, *, is_here: bool) -> AuthenticateResponse:
        """The answer to the last message of a login; `data` is the mechanism's part of it. `is_here`: the client is on
        this machine.

        RemoteError overloaded: the user has as many connections as it may have.
        """

    def counts(self, who: Principal) -> bool:
        """Whether what somebody has logged in with still counts."""


class Unguarded:
    """The `Guard` of a broker without authentication."""

    is_guarded = False
    brokers_prove = False
    is_current = True

    def begin_login(self) -> ServerHandshake:
        """RemoteError bad_request: there is no authentication."""
        raise RemoteError(ErrorCode.BAD_REQUEST, "nobody has to log in here")

    def logged_in(self, who: Principal, data: bytes, *, is_here: bool) -> AuthenticateResponse:
        """Never called: no login begins."""
        raise AssertionError(who)

    def counts(self, who: Principal) -> bool:
        """Never called: no login begins."""
        raise AssertionError(who)


class Stage(Enum):
    """Where a connection stands; see the module's table."""

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


_TAKEN: dict[Stage, frozenset[_Kind]] = {
    Stage.NEW: frozenset({_Kind.HELLO}),
    Stage.MET: frozenset(_Kind),
    Stage.CHALLENGED: frozenset({_Kind.LOGIN}),
    Stage.USER: frozenset({_Kind.HELLO, _Kind.OTHER}),
    Stage.PROVEN: frozenset({_Kind.PEER_HELLO}),
    Stage.INTRODUCED: frozenset({_Kind.PEER_HELLO, _Kind.OTHER}),
    Stage.PEER: frozenset({_Kind.HELLO, _Kind.PEER_HELLO, _Kind.OTHER}),
    Stage.FAILED: frozenset(),
}
_KNOWN = frozenset({Stage.USER, Stage.PROVEN, Stage.INTRODUCED, Stage.PEER})


class Greeting:
    """See the module. RemoteError from `take`: it is told, and the connection is closed."""

    def __init__(self, guard: Guard, overload: RemoteError | None, *, is_here: bool = False) -> None:
        """`overload`: why it is taken only if it is that of another broker; `is_here`: it comes from this machine."""
        self.stage = Stage.NEW
        self.is_checked = False  # its frames, and the answers, have checksums
        self.who: Principal | None = None  # who has logged in
        self.client_name = ""
        self.broker_id: BrokerId | None = None  # of a peer, once it has said who it is
        self.claimed = ""  # as whom somebody tried to log in
        self._guard = guard
        self._overload = overload
        self._is_here = is_here
        self.cipher: FrameCipher | None = None  # of a broker that has proved it: for all behind the answer to that
        self._login: ServerHandshake | None = None  # while it is CHALLENGED

    @property
    def is_new(self) -> bool:
        """Whether its hello has not come."""
        return self.stage is Stage.NEW

    @property
    def is_logging_in(self) -> bool:
        """Whether a login has begun that has neither failed nor come to its end."""
        return self.stage is Stage.CHALLENGED

    @property
    def is_peer(self) -> bool:
        """Whether it is a broker whose peer hello was answered."""
        return self.stage is Stage.PEER

    def introduced(self, broker_id: BrokerId) -> None:
        """Its peer hello was taken."""
        self.broker_id, self.stage = broker_id, Stage.INTRODUCED

    def accepted(self) -> None:
        """And answered."""
        assert self.stage is Stage.INTRODUCED, self.stage
        self.stage = Stage.PEER

    @property
    def is_open(self) -> bool:
        """Whether it is known as well as it has to be: it may ask, and send what is large."""
        return self.stage in _KNOWN or (self.stage is Stage.MET and not self._guard.is_guarded)

    @property
    def is_broker(self) -> bool:
        """Whether it has shown that it knows the secret of the cluster."""
        return self.who is not None and self.who.name == BROKER

    @property
    def is_stranger(self) -> bool:
        """Whether it was taken for a broker without a proof, and would have to show one by now."""
        return self.broker_id is not None and not self.is_broker and self._guard.brokers_prove

    def check_frame(self, frame: Frame) -> None:
        """RemoteError bad_frame: its checksums are not as those of the first one."""
        if self.stage is Stage.NEW:
            self.is_checked = frame.is_checked
        elif frame.is_checked != self.is_checked:
            text = "of the frames on one connection all have checksums, or none"
            raise RemoteError(ErrorCode.BAD_FRAME, text)

    def take(self, request: Request) -> AuthenticateResponse | None:
        """What a request is answered that is part of a login; None: others answer it, if `is_allowed`."""
        if self._overload is not None and not self._may_be_peer(request):
            raise self._overload
        kind = _kind(request)
        if kind not in _TAKEN[self.stage]:
            raise self._out_of_turn(kind)
        if isinstance(request, HelloRequest):
            self.client_name = request.client_name[:128]
            if self.stage is Stage.NEW:
                self.stage = Stage.MET
        elif isinstance(request, AuthenticateRequest):
            return self._log_in(request)
        elif isinstance(request, PeerHelloRequest):
            self._check_peer(request)
        elif self.is_broker and not self.is_peer:  # as a broker it might do everything
            raise RemoteError(ErrorCode.BAD_REQUEST, _PEER_HELLO_NEXT)
        elif not self.is_open:
            raise RemoteError(ErrorCode.UNAUTHENTICATED, _LOG_IN_FIRST)
        return None

    def _out_of_turn(self, kind: _Kind) -> RemoteError:
        """Why that is not taken in this stage."""
        if self.stage is Stage.NEW:
            return RemoteError(ErrorCode.BAD_REQUEST, "the first request on a connection is hello")
        if self.stage in (Stage.CHALLENGED, Stage.FAILED):
            return RemoteError(ErrorCode.UNAUTHENTICATED, _LOG_IN_FIRST)
        if kind is _Kind.LOGIN:
            return RemoteError(ErrorCode.BAD_REQUEST, "who is there is known already: connect anew to be somebody else")
        if kind is _Kind.PEER_HELLO:
            return RemoteError(
                ErrorCode.BAD_REQUEST, f"user {'' if self.who is None else self.who.name!r} is no broker"
            )
        return RemoteError(ErrorCode.BAD_REQUEST, _PEER_HELLO_NEXT)

    def check_allowed(self, api: int) -> None:
        """RemoteError bad_request: only brokers ask that, or no broker does; unauthenticated."""
        if self.is_stranger and api != Api.PEER_HELLO:
            text = "it was not proved that this is a broker of this cluster, and by now that has to be: connect anew"
            raise RemoteError(ErrorCode.UNAUTHENTICATED, text)
        if self.is_peer and not is_asked_by_brokers(api):
            raise RemoteError(ErrorCode.BAD_REQUEST, "that is asked by clients, and this is the connection of a broker")
        if not self.is_peer and not is_asked_by_clients(api):
            text = "that is asked between brokers; the first request of one is peer_hello"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)

    def _log_in(self, request: AuthenticateRequest) -> AuthenticateResponse:
        login = self._login or self._guard.begin_login()
        self._login, self.stage = None, Stage.FAILED  # unless it goes on
        try:
            data = login.take(request.mechanism, request.data)
        except RemoteError:
            if not self._guard.is_current:
                text = "this broker has not heard from the others, and does not know who may log in; ask another"
                raise RemoteError(ErrorCode.NOT_YET, text) from None
            raise
        finally:
            self.claimed = login.claimed[:128]
        if login.who is None:
            self._login, self.stage = login, Stage.CHALLENGED
            return AuthenticateResponse(data=data)
        answer = self._guard.logged_in(login.who, data, is_here=self._is_here)
        self.who, self.stage = login.who, Stage.USER
        if self.is_broker:
            self.stage = Stage.PROVEN
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
_PEER_HELLO_NEXT = "a broker says peer_hello next"


def _kind(request: Request) -> _Kind:
    if isinstance(request, HelloRequest):
        return _Kind.HELLO
    if isinstance(request, AuthenticateRequest):
        return _Kind.LOGIN
    return _Kind.PEER_HELLO if isinstance(request, PeerHelloRequest) else _Kind.OTHER
