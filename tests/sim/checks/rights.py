"""Model of permissions: evaluates again what each user may do, and checks the brokers' decisions.

| invariant                                                                         | checked at              |
|-----------------------------------------------------------------------------------|-------------------------|
| no request succeeds that the asked broker's users do not permit                   | an answer               |
| no request succeeds without login, or by a rotated secret                         | an answer               |
| no request succeeds on a broker that lacks an acknowledged change                 | an answer               |
| a permitted request is denied only if some broker's users did not permit it       | an answer               |
| a denied request alters no stream (and stores nothing: see `checks`)              | every event of a broker |

Rules: All brokers have the same users at the same index of the last user change; `agreement` compares that. A request
is checked against the asked broker's users at its arrival, a fetch again at its answer. A denial may come from the
metadata leader, so it is checked against all users since the oldest index that any broker had when the request arrived.
`not_yet` is no denial: see `node/security/access.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.access import Operation, Rule, User
from penstock.access.handshake import Principal
from penstock.access.users import EVERYBODY
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    AlterStreamRequest,
    AlterUserRequest,
    AppendAtRequest,
    AppendRequest,
    ChangeRulesRequest,
    CommitOffsetsRequest,
    CreateUserRequest,
    DeleteUserRequest,
    FetchRequest,
    MetadataRequest,
    Request,
    Response,
    StatusRequest,
    TruncateRequest,
)
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.rows import subjects_of
from tests.sim.models.logins import ADMIN, APP, first_user

if TYPE_CHECKING:
    from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
    from penstock.testing.simulation.checks.checks import PartitionHistory

Users = Mapping[str, User]
DENIALS = frozenset({ErrorCode.NOT_AUTHORIZED, ErrorCode.UNAUTHENTICATED})
_ABSENCES = frozenset({ErrorCode.STREAM_CHANGED})  # a stream that the user may not see gets the error of a missing one
_FOR_ADMINISTRATORS = (
    StatusRequest,
    AppendAtRequest,
    CreateUserRequest,
    AlterUserRequest,
    DeleteUserRequest,
    ChangeRulesRequest,
)


@dataclass(slots=True)
class AuthorizationCheck:
    """One request at its arrival. Each index is that of the last user change."""

    who: Principal | None
    request: Request
    subjects: frozenset[bytes]  # of the rows of an append
    acted: int  # index at the asked broker
    oldest: int  # lowest index of all brokers
    since: int  # last change that its sender knew to be acknowledged


class Rights:
    """The permission checks of one run with users."""

    def __init__(self, around: Surroundings) -> None:
        self.acknowledged = 0  # index of the last acknowledged user change
        self.names: dict[int, str] = {}  # stream id → name, of the streams that restricted users use
        self.histories: dict[int, PartitionHistory] = {}  # stream id → history of their only partition
        self.altered: dict[tuple[str, int], str] = {}  # (stream, segment_bytes) of acknowledged alterations → user
        self._around = around
        self._users: dict[int, Users] = {}  # index of the last user change → users from then on
        self._acted: dict[int, int] = {}  # broker → index of the last user change
        self._forbidden: dict[tuple[str, int], str] = {}  # (stream, segment_bytes) of denied alterations → user

    def acted(self, broker: SimBroker) -> None:
        """Check a broker after each of its events."""
        assert broker.node is not None
        index, users = inspector.users(broker.node)
        if self._acted.get(broker.broker_id) == index:
            return
        self._acted[broker.broker_id] = index
        self._users.setdefault(index, users)
        for name in self.names.values():
            segment_bytes = inspector.segment_bytes(broker.node, name)
            if (whose := self._forbidden.get((name, segment_bytes))) is not None:
                raise ViolationError(f"{name} has the segment_bytes {segment_bytes}, which was refused to {whose}")

    def first_user(self) -> User:
        return first_user()

    def ended(self, broker: SimBroker) -> None:
        """Forget a broker whose run has ended."""
        self._acted.pop(broker.broker_id, None)

    def asks(
        self, broker: SimBroker, who: Principal | None, request: Request, raw: bytes, since: int
    ) -> Callable[[Response | RemoteError], None]:
        """Record a client's request at its arrival at a broker; return the check of its response."""
        assert broker.node is not None
        index, users = inspector.users(broker.node)
        self._users.setdefault(index, users)
        subjects = frozenset[bytes]()
        if isinstance(request, AppendRequest) and request.stream_id in self.names:
            subjects = subjects_of(raw)
        asked = AuthorizationCheck(who, request, subjects, index, min([index, *self._acted.values()]), since)
        may = self._may(users, asked)
        if isinstance(request, AlterStreamRequest) and not may:
            self._forbidden[request.name, int(request.changes.get("segment_bytes", 0))] = str(who)
        if isinstance(request, TruncateRequest) and may and request.stream_id in self.histories:
            history = self.histories[request.stream_id]
            history.truncating = max(history.truncating, int(request.before))
        return lambda response: self._answered(broker, asked, response)

    def _answered(self, broker: SimBroker, asked: AuthorizationCheck, response: Response | RemoteError) -> None:
        """Check the answer of the broker that was asked."""
        if isinstance(response, RemoteError):
            self._refused(broker, asked, response)
            return
        text = f"{broker.name} has carried out {type(asked.request).__name__} for {asked.who}"
        if not self._may(self._users[asked.acted], asked):
            raise ViolationError(f"{text}, who may not: its users were those of index {asked.acted}")
        assert broker.node is not None
        index, users = inspector.users(broker.node)
        if isinstance(asked.request, FetchRequest) and not self._may(users, asked):
            raise ViolationError(f"{text}, who may not read any more when it answers, at index {index}")
        is_of_itself = isinstance(asked.request, StatusRequest | MetadataRequest)  # always permitted to administrators
        if asked.acted < asked.since and not is_of_itself:
            raise ViolationError(f"{text} by users of index {asked.acted}; those of {asked.since} were acknowledged")
        self._around.count("requests of users")

    def _refused(self, broker: SimBroker, asked: AuthorizationCheck, error: RemoteError) -> None:
        if error.code == ErrorCode.NOT_YET:
            self._around.count("requests that were not judged")
        is_absent = error.code in _ABSENCES and self._stream(asked.request) is not None
        if error.code not in DENIALS and not is_absent:
            return
        since_then = [users for index, users in self._users.items() if index >= asked.oldest]
        if all(self._may(users, asked) for users in since_then):
            text = f"{broker.name} refuses {type(asked.request).__name__} to {asked.who}, who may"
            raise ViolationError(f"{text} by all users since index {asked.oldest}: {error}")
        self._around.count("denied requests")

    # The independent evaluation of the rules

    def _stream(self, request: Request) -> str | None:
        """Return the name of the request's stream, if it is one of `names`."""
        if isinstance(request, AlterStreamRequest):
            return request.name if request.name in self.names.values() else None
        if isinstance(request, CommitOffsetsRequest):
            return self.names.get(request.offsets[0].stream_id)
        stream_id = getattr(request, "stream_id", None)
        return None if stream_id is None else self.names.get(stream_id)

    def _may(self, users: Users, asked: AuthorizationCheck) -> bool:
        who = asked.who
        user = None if who is None else users.get(who.name)
        if who is None or user is None or user.made_index != who.made_index:
            return False
        marks = [one.mark for one in user.credentials if one.credential_id == who.credential_id]
        if marks != [who.mark]:
            return False
        if who.name == ADMIN:
            return True
        request = asked.request
        if isinstance(request, _FOR_ADMINISTRATORS):
            return False
        if who.name == APP:
            return True
        everybody = users.get(EVERYBODY)
        rules = {*user.rules, *(() if everybody is None else everybody.rules)}
        return self._is_allowed(rules, asked, self._stream(request))

    @staticmethod
    def _is_allowed(rules: set[Rule], asked: AuthorizationCheck, name: str | None) -> bool:
        if name is None:
            return isinstance(asked.request, MetadataRequest)
        operation = _OPERATIONS[type(asked.request)]
        if any(one.operation is operation and one.stream in (name, f"{name[0]}*") for one in rules):
            return True
        subjects = {one.subject.encode() for one in rules if one.operation is operation and one.subject}
        return bool(asked.subjects) and asked.subjects <= subjects


_OPERATIONS: dict[type[Request], Operation] = {
    FetchRequest: Operation.READ,
    AppendRequest: Operation.APPEND,
    AlterStreamRequest: Operation.ALTER,
    TruncateRequest: Operation.DELETE,
    CommitOffsetsRequest: Operation.COMMIT_OFFSETS,
}
