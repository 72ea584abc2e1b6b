"""Routes requests to the metadata leader, which may be this broker.

Rules: Raft names the leader; a broker that is not yet a member asks its peers in turn, and then the leader they name.
Brokers' requests are tried once; the caller retries. Clients' requests (create, alter, pause, truncate, delete) wait
while no leader is known and are retried after a change of leader, until they time out: all of them may be sent twice. A
deposed leader may hang with its connections open, so its successor is asked as soon as it is known. A client's request
is authorized again before each try: the leader knows the user's rules, but not the credential. A refusal by the leader,
or of the permission, is final; if an earlier try may have succeeded, a refused permission is told as timed_out. If this
broker's own disk stands in the way and no other broker can be asked, the request fails at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.access.handshake import Principal, sharer_of
from penstock.access.users import BROKER
from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import BrokerId
from penstock.messages import (
    AlterStreamRequest,
    AlterUserRequest,
    ChangeRulesRequest,
    CreateStreamRequest,
    CreateUserRequest,
    DeleteStreamRequest,
    DeleteUserRequest,
    ExportUsersRequest,
    ForwardRequest,
    ForwardResponse,
    RaiseFeatureLevelRequest,
    ReportArchivedRequest,
    Request,
    Response,
    SetIntakeRequest,
    StagedStreamRequest,
    TakeApiRequest,
    TruncateRequest,
)
from penstock.node.context import Context
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.quorum import Quorum
from penstock.wire.bodies import decode_answer_body, request_body

Administrative = (
    CreateStreamRequest
    | AlterStreamRequest
    | DeleteStreamRequest
    | SetIntakeRequest
    | TruncateRequest
    | StagedStreamRequest
    | ReportArchivedRequest
    | CreateUserRequest
    | AlterUserRequest
    | DeleteUserRequest
    | ChangeRulesRequest
    | ExportUsersRequest
    | RaiseFeatureLevelRequest
    | TakeApiRequest
)
Done = Callable[[Response | RemoteError], None]
Authorize = Callable[[], None]
"""Raises RemoteError if the request may no longer take effect; not_yet if that is not known now."""
Local = Callable[[Request, Done, Principal | None], None]
"""Answers a request; the third argument is the user, None if authentication is off."""

_NOT_NOW = frozenset(
    {
        ErrorCode.NOT_METADATA_LEADER,
        ErrorCode.BROKER_UNAVAILABLE,
        ErrorCode.STOPPING,
        ErrorCode.OVERLOADED,
    }
)
_DID_NOTHING = frozenset(
    {
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.NOT_AUTHORIZED,
        ErrorCode.NOT_YET,
        ErrorCode.STOPPING,
        ErrorCode.OVERLOADED,
        ErrorCode.STORAGE_FAILED,
    }
)
"""Refusals of one try."""
_MAY_BE_DONE = frozenset({ErrorCode.NOT_METADATA_LEADER, ErrorCode.BROKER_UNAVAILABLE})
THE_BROKER = Principal(BROKER)
"""The caller of brokers' own requests."""

_IN_DOUBT = "the metadata leader did not answer in time; the change may or may not have been made"
_RETRY_US = limits.FORWARD_RETRY_MS * 1_000
_GRACE_US = limits.FORWARD_GRACE_MS * 1_000


def _in_doubt(refusal: RemoteError) -> RemoteError:
    return RemoteError(ErrorCode.TIMED_OUT, f"{_IN_DOUBT}; since then: {refusal.message}")


def _always() -> None:
    """Authorize what the broker itself wants."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A client's request without an answer."""

    request: Administrative
    who: Principal | None
    authorize: Authorize
    done: Done
    deadline_us: int
    retry_us: int
    asked: BrokerId | None = None  # the broker asked, until it answers
    tries: int = 0
    in_doubt: bool = False  # a try may have succeeded: no answer, or one of a leader deposed meanwhile
    last_error: RemoteError | None = None

    def sent_to(self, broker: BrokerId) -> None:
        """Note a further try: earlier errors say nothing about it."""
        self.asked, self.last_error = broker, None

    def end(self, response: Response | RemoteError) -> None:
        """Answer the client: that a try was refused says nothing of an earlier one that may have succeeded."""
        if self.in_doubt and isinstance(response, RemoteError) and response.code in _DID_NOTHING:
            response = _in_doubt(response)
        self.done(response)

    @property
    def end_us(self) -> int:
        """Elapsed time when it fails at the latest: a leader already asked gets a little longer."""
        return self.deadline_us + (_GRACE_US if self.asked is not None else 0)


@dataclass(slots=True, eq=False)
class _Asked:
    """This broker's own request to another broker."""

    to: BrokerId
    done: Done


class MetadataForwarder:
    """`local` handles requests while this broker is the metadata leader."""

    def __init__(self, context: Context, quorum: Quorum, peers: PeerClient, local: Local) -> None:
        self._quorum = quorum
        self._peers = peers
        self._broker_id = context.settings.broker_id
        self._context = context
        self._local = local
        self._waiting: list[_Waiting] = []
        self._asked: dict[_Asked, None] = {}  # bounded by PEER_REQUESTS_MAX per peer: more fail at once
        self._named: BrokerId | None = None  # the leader that another broker named
        self._last_asked = BrokerId(0)

    def ask(self, request: Request, done: Done) -> None:
        """Send a broker's request."""
        if self._quorum.is_leader:
            self._local(request, done, THE_BROKER)
            return
        if (to := self._whom()) is None:
            text = "no metadata leader is known now; ask again in a moment"
            done(RemoteError(ErrorCode.NOT_METADATA_LEADER, text))
            return

        asked = _Asked(to, done)
        self._asked[asked] = None

        def answered(response: Response | RemoteError, raw: bytes | memoryview) -> None:
            self._learn(response)
            if asked in self._asked:
                del self._asked[asked]
                done(response)

        self._peers.send(to, request, done=answered)

    @property
    def knows_somebody(self) -> bool:
        """True if there is a broker to ask, if only for the leader."""
        return self._quorum.leader is not None or bool(self._peers.up_ids)

    def _whom(self) -> BrokerId | None:
        """Return the metadata leader; while Raft knows none, a peer that may know it, in turn."""
        leader = self._quorum.leader
        if leader is not None and leader != self._broker_id:
            return leader
        if self._named is not None and self._peers.is_up(self._named):
            return self._named
        up = sorted(self._peers.up_ids)
        if not up:
            return None
        self._last_asked = next((one for one in up if one > self._last_asked), up[0])
        return self._last_asked

    def _learn(self, response: Response | RemoteError) -> None:
        """Note the leader that a refusal names."""
        if isinstance(response, RemoteError) and response.code in _NOT_NOW:
            named = response.details.get("leader")
            is_other = isinstance(named, int) and named != self._broker_id
            self._named = BrokerId(named) if is_other else None  # type: ignore[arg-type]

    def administer(
        self,
        request: Administrative,
        done: Done,
        who: Principal | None = THE_BROKER,
        authorize: Authorize = _always,
    ) -> None:
        """Send a request as `who`; `done` is called once, within the request's time-out.

        `authorize` is called before each try: `Call.authorize` of the client's request that this one is made for.
        """
        shares = FairShares((sharer_of(one.who), 1) for one in self._waiting)
        if not shares.fits(sharer_of(who), 1, limits.FORWARDED_REQUESTS_MAX):
            done(RemoteError(ErrorCode.OVERLOADED, "too many changes of streams at once; ask again in a moment"))
            return
        timeout_ms = limits.FORWARD_TIMEOUT_MS
        if isinstance(request, CreateStreamRequest | StagedStreamRequest):
            timeout_ms = request.timeout_ms
        timeout_ms = min(timeout_ms, limits.FETCH_WAIT_MS_MAX)  # a client may name any
        now_us = self._context.now.elapsed_us
        waiting = _Waiting(request, who, authorize, done, now_us + timeout_ms * 1_000, now_us)
        self._waiting.append(waiting)
        self._try(waiting)

    def _try(self, waiting: _Waiting) -> None:
        waiting.tries += 1
        number = waiting.tries
        request = waiting.request
        try:
            waiting.authorize()
        except RemoteError as refusal:
            if refusal.code == ErrorCode.NOT_YET:  # out of contact: known as soon as the leader can be asked
                if not waiting.in_doubt:
                    waiting.last_error = refusal
                self._wait(waiting)
            else:  # whatever its code: a stream of which the user may know nothing is "not found"
                self._answered(waiting, number, _in_doubt(refusal) if waiting.in_doubt else refusal)
            return
        if self._quorum.is_leader:
            waiting.sent_to(self._broker_id)
            self._local(request, lambda response: self._tried(waiting, number, response), waiting.who)
            return
        if (to := self._whom()) is None:
            if self._quorum.obstacle:
                self._answered(waiting, number, RemoteError(ErrorCode.STORAGE_FAILED, self._quorum.obstacle))
                return
            text = "no metadata leader could be found in time: are most of the voters up?"
            self._answered(waiting, number, RemoteError(ErrorCode.NOT_METADATA_LEADER, text))
            return
        waiting.sent_to(to)
        was_up = self._peers.is_up(to)

        def done(response: Response | RemoteError, raw: bytes | memoryview) -> None:
            if isinstance(response, ForwardResponse):
                try:
                    response = decode_answer_body(bytes(raw), type(request))
                except RemoteError as error:
                    response = error
            else:
                self._learn(response)
            (self._tried if was_up else self._answered)(waiting, number, response)

        api, version, body = request_body(request)
        user, user_index = ("", 0) if waiting.who is None else (waiting.who.name, waiting.who.made_index)
        forward = ForwardRequest(api=api, version=version, user=user, user_index=user_index)
        self._peers.send(to, forward, body, done)

    def _tried(self, waiting: _Waiting, number: int, response: Response | RemoteError) -> None:
        waiting.in_doubt |= isinstance(response, RemoteError) and response.code in _MAY_BE_DONE
        self._answered(waiting, number, response)

    def _answered(self, waiting: _Waiting, number: int, response: Response | RemoteError) -> None:
        if waiting not in self._waiting or (number != waiting.tries and isinstance(response, RemoteError)):
            return  # timed out, or another broker was asked since
        now_us = self._context.now.elapsed_us
        if isinstance(response, RemoteError) and response.code in _NOT_NOW and now_us < waiting.deadline_us:
            waiting.last_error = response
            self._wait(waiting)
            return
        self._waiting.remove(waiting)
        waiting.end(response)

    def _wait(self, waiting: _Waiting) -> None:
        waiting.asked = None
        waiting.retry_us = self._context.now.elapsed_us + _RETRY_US

    def tick(self, now: Now) -> None:
        """Retry, and fail requests that timed out or were sent to a deposed leader."""
        for asked in [one for one in self._asked if self._has_followed(one.to)]:
            del self._asked[asked]
            text = "another broker leads the metadata by now; ask again"
            asked.done(RemoteError(ErrorCode.NOT_METADATA_LEADER, text))
        for waiting in list(self._waiting):
            if now.elapsed_us >= waiting.end_us:
                self._waiting.remove(waiting)
                waiting.end(waiting.last_error or RemoteError(ErrorCode.TIMED_OUT, _IN_DOUBT))
            elif now.elapsed_us >= waiting.retry_us if waiting.asked is None else self._has_followed(waiting.asked):
                waiting.in_doubt |= waiting.asked is not None
                self._try(waiting)

    def _has_followed(self, asked: BrokerId) -> bool:
        """True if another broker is known to lead by now."""
        if self._quorum.is_leader:
            return asked != self._broker_id
        leader = self._quorum.leader
        return leader is not None and leader not in (asked, self._broker_id)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        if not self._waiting:
            return None
        return min(one.end_us if one.asked is not None else min(one.retry_us, one.end_us) for one in self._waiting)

    def stop(self, error: RemoteError) -> None:
        """Fail all pending requests because the broker stops."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.in_doubt |= one.asked is not None
            one.end(error)
