"""May somebody do what they ask? Every request passes here before anything is done for it.

Rules: where the cluster has users, or this broker was told to have everybody log in, who has not is refused everything,
and what no rule allows is refused, with `not_authorized`. A kind of request that is not in the table is refused to all
but administrators. The rules are those of the image, asked anew for each request: what was changed counts from the
moment at which this broker has heard of it. Who was deleted, or has lost the credential with which it logged in, is
nobody from then on. A stream of which somebody may do nothing is not there for them.

A broker whose session with the metadata leader is over, or that has just started and is not registered, may not have
heard of what was taken away: until it has, it refuses users with `not_yet`, so that they ask another one.
Administrators get the state of such a broker, and nothing of what is stored.

| request                                | what it takes                                                           |
|----------------------------------------|-------------------------------------------------------------------------|
| fetch, get, list offsets               | `read`; of some subjects only, where the request says which             |
| append, append once                    | `append`; on some subjects only: each row is looked at                  |
| stage, publish, list published         | `append`, on the stream that it is for, and all of it                   |
| create stream                          | `create`, on all its subjects; `alter` of all whose queue group it joins |
| alter stream, set intake               | `alter`; with more partitions, on all its subjects, and the same        |
| delete stream, truncate                | `delete`                                                                |
| commit offsets, heartbeat of a member  | `commit_offsets`, of each stream, for the group; of one's own members   |
| report archived                        | `commit_offsets`                                                        |
| fetch offsets, list groups             | the same, or `read`                                                     |
| metadata, find streams                 | told of the streams with which something may be done                    |
| status, verify, append at              | `admin`                                                                 |
| users, rules                           | `admin`; of oneself: list, own credentials                              |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.access import Credential, CredentialKind, Operation, Quotas, Rule, User
from penstock.access.handshake import Principal
from penstock.access.rules import Scope
from penstock.access.scram import Verifier
from penstock.access.users import EVERYBODY, GIVE_CREDENTIALS, PASSWORD_ID
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import StreamId
from penstock.base.units import utc_text
from penstock.messages import (
    AlterStreamRequest,
    AlterUserRequest,
    AppendAtRequest,
    AppendOnceRequest,
    AppendRequest,
    ChangeRulesRequest,
    CommitOffsetsRequest,
    CreateStreamRequest,
    CreateUserRequest,
    DeleteStreamRequest,
    DeleteUserRequest,
    ExportUsersRequest,
    FetchOffsetsRequest,
    FetchRequest,
    FindStreamsRequest,
    GetRequest,
    GroupHeartbeatRequest,
    HelloRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    ListProducersRequest,
    ListPublishedRequest,
    ListUsersRequest,
    MetadataRequest,
    OffsetsStreamRequest,
    PublishStagedRequest,
    ReportArchivedRequest,
    Request,
    SetIntakeRequest,
    StagedStreamRequest,
    StageRequest,
    StatusRequest,
    TestAccessRequest,
    TruncateRequest,
    VerifyRequest,
)
from penstock.metadata.commands import Command
from penstock.metadata.image import ClusterImage, StreamState
from penstock.metadata.persistent import PersistentMap
from penstock.node.denials import absent, denied, gone, unheard
from penstock.node.internal import target_of
from penstock.node.judging import Judge
from penstock.node.listening_rights import check_grown, check_made
from penstock.node.metadata_link import THE_BROKER

_EVERYTHING = Scope(is_all=True)
_UNHEARD = "this broker has not heard from the others lately, and may not know who may do what; ask another"


C = TypeVar("C", bound=Command)


class _InUsers(NamedTuple):
    """What is asked of users for people who have not logged in."""

    users: PersistentMap[str, User]
    holders: dict[str, tuple[User, Credential]]  # by public nkey

    @classmethod
    def of(cls, users: PersistentMap[str, User]) -> _InUsers:
        """Of these."""
        holders: dict[str, tuple[User, Credential]] = {}
        for user in users.values():
            for one in user.credentials:
                if one.public_key:
                    holders.setdefault(one.public_key, (user, one))
        return cls(users, holders)


class Access:
    """See the module. `who` is whose request is being decided; None: nobody had to log in."""

    def __init__(
        self,
        image: Callable[[], ClusterImage],
        wall_us: Callable[[], int],
        *,
        requires_login: Callable[[], bool] = lambda: False,
        requires_proof: Callable[[], bool] = lambda: False,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_current`: whether what this broker has heard of cannot be long past."""
        self._is_current = is_current
        self.who: Principal | None = None
        self._image = image
        self._wall_us = wall_us
        self._requires_login = requires_login
        self._requires_proof = requires_proof
        self._judges: dict[str, Judge] = {}  # by the name of a user
        self._found: _InUsers | None = None
        self._table: dict[type[Request], Callable[[Any], None]] = {
            HelloRequest: self._allowing,
            FetchRequest: self._reading,
            GetRequest: self._getting,
            ListOffsetsRequest: self._listing_offsets,
            AppendRequest: self._appending,
            AppendOnceRequest: self._appending,
            ListProducersRequest: self._appending,
            StageRequest: self._appending_all,
            StagedStreamRequest: self._appending_all,
            PublishStagedRequest: self._appending_all,
            ListPublishedRequest: self._appending_all,
            CreateStreamRequest: self._creating,
            AlterStreamRequest: self._altering,
            SetIntakeRequest: self._altering,
            DeleteStreamRequest: self._deleting,
            TruncateRequest: self._truncating,
            ReportArchivedRequest: self._archiving,
            OffsetsStreamRequest: self._having_groups,
            CommitOffsetsRequest: self._committing,
            GroupHeartbeatRequest: self._joining,
            FetchOffsetsRequest: self._asking_offsets,
            ListGroupsRequest: self._allowing,
            MetadataRequest: self._allowing,
            FindStreamsRequest: self._allowing,
            ListUsersRequest: self._allowing,
            AlterUserRequest: self._altering_user,
            TestAccessRequest: self._testing,
            CreateUserRequest: self._administering,
            DeleteUserRequest: self._administering,
            ChangeRulesRequest: self._administering,
            ExportUsersRequest: self._administering,
            StatusRequest: self._administering,
            VerifyRequest: self._administering,
            AppendAtRequest: self._administering,
        }

    @property
    def is_guarded(self) -> bool:
        """Whether everybody has to log in."""
        return self._requires_login() or self._image().is_guarded

    @property
    def brokers_prove(self) -> bool:
        """Whether who says that it is a broker has to prove it."""
        return self.is_guarded or self._requires_proof()

    # Who is known

    def verifier(self, name: str) -> tuple[Verifier, Principal] | None:
        """As `handshake.Directory`."""
        user_name, slash, credential_id = name.partition("/")
        user = self._image().users.get(user_name)
        if user is None or user_name == EVERYBODY:
            return None
        credential = user.credential(credential_id if slash else PASSWORD_ID)
        if credential is None or credential.kind is not (CredentialKind.TOKEN if slash else CredentialKind.PASSWORD):
            return None
        keys = Verifier(credential.salt, credential.iterations, credential.stored_key, credential.server_key)
        return keys, Principal(user_name, user.made_index, credential.credential_id, credential.mark)

    def holder(self, public_key: str) -> Principal | None:
        """As `handshake.Directory`."""
        user, credential = self._in_users().holders.get(public_key, (None, None))
        if user is None or credential is None:
            return None
        return Principal(user.name, user.made_index, credential.credential_id, credential.mark)

    def expired(self, who: Principal) -> str | None:
        """As `handshake.Directory`."""
        user = self._image().users.get(who.name)
        credential = None if user is None else user.credential(who.credential_id)
        if credential is None or credential.expires_us is None or credential.is_valid(self._wall_us()):
            return None
        return (
            f"this {credential.kind} of {who.name!r} expired at {utc_text(credential.expires_us)}; ask for another one"
        )

    @property
    def decoy_key(self) -> bytes:
        """As `handshake.Directory`."""
        return self._image().decoy_key

    def _in_users(self) -> _InUsers:
        """What is found by looking through all users, once for each version of them: nobody has logged in yet."""
        users = self._image().users
        if self._found is None or self._found.users is not users:
            self._found = _InUsers.of(users)
        return self._found

    def refusal(self, who: Principal | None) -> RemoteError | None:
        """Why that is nobody any more, or never was; None if it is somebody, or need not be."""
        if not self.is_guarded or who == THE_BROKER:
            return None
        if who is None:
            return RemoteError(ErrorCode.UNAUTHENTICATED, f"this cluster asks for a login: {GIVE_CREDENTIALS}")
        user = self._image().users.get(who.name)
        if user is None or user.made_index != who.made_index:
            return RemoteError(ErrorCode.UNAUTHENTICATED, f"there is no user {who.name!r} any more")
        if who.credential_id:
            credential = user.credential(who.credential_id)
            if credential is None or credential.mark != who.mark:
                text = f"what {who.name!r} has logged in with counts no more: it was changed, or taken away"
                return RemoteError(ErrorCode.UNAUTHENTICATED, text)
            if (expired := self.expired(who)) is not None:
                return RemoteError(ErrorCode.UNAUTHENTICATED, expired)
        return None

    # What they may do

    def check(self, who: Principal | None, request: Request) -> None:
        """RemoteError unauthenticated, not_authorized. From here on `who` asks."""
        self.who = who
        if isinstance(request, HelloRequest):
            return
        if (refusal := self.refusal(who)) is not None:
            raise refusal
        if who == THE_BROKER:
            return
        if not self.is_guarded:
            if self._requires_proof() and not self.is_current:
                raise RemoteError(ErrorCode.NOT_YET, _UNHEARD)
            return
        if not (self.is_current or (self.is_admin and isinstance(request, StatusRequest | MetadataRequest))):
            raise RemoteError(ErrorCode.NOT_YET, _UNHEARD)
        if self.is_admin:
            return
        look = self._table.get(type(request))
        if look is None:
            self.need_admin()
        else:
            look(request)

    def again(self, request: Request) -> Callable[[], None]:
        """What looks once more, as `check`, whether whoever asks now may: before the effect of what has waited."""
        who = self.who
        return lambda: self.check(who, request)

    @property
    def is_free(self) -> bool:
        """Whether whoever asks may do everything."""
        return not self.is_guarded or self.who == THE_BROKER or self.is_admin

    @property
    def is_admin(self) -> bool:
        """Whether an administrator asks."""
        return self._judge().is_admin

    def rules(self, name: str | None = None) -> tuple[Rule, ...]:
        """Those of whoever asks, or of that user, and everybody's."""
        return self._judge(name).rules

    def _judge(self, name: str | None = None) -> Judge:
        if name is None:
            name = "" if self.who is None else self.who.name
        users = self._image().users
        user, everybody = users.get(name), users.get(EVERYBODY)
        own, of_all = () if user is None else user.rules, () if everybody is None else everybody.rules
        judge = self._judges.get(name)
        if judge is None or not judge.goes_by(own, of_all):
            self._judges.pop(name, None)
            if len(self._judges) >= limits.JUDGED_USERS_MAX:
                del self._judges[next(iter(self._judges))]
            judge = self._judges[name] = Judge(own, of_all)
        return judge

    def signed(self, command: C) -> C:
        """The command, with who asks for it and when, where everybody logs in: older brokers know no such fields."""
        if not self.signature or not hasattr(command, "at_us"):
            return command
        return msgspec.structs.replace(command, by=self.signature, at_us=self._wall_us())

    @property
    def signature(self) -> str:
        """The user who asks; "" where nobody has to log in, or a broker asks."""
        is_user = self._image().is_guarded and self.who not in (None, THE_BROKER)
        return self.who.name if is_user and self.who is not None else ""

    @property
    def asker(self) -> str:
        """Who asks, one word for each user that there ever was; empty: nobody has to log in, or a broker asks."""
        is_user = self.is_guarded and self.who not in (None, THE_BROKER)
        return f"{self.who.name}/{self.who.made_index}" if is_user and self.who is not None else ""

    @property
    def sharer(self) -> str:
        """For whom it counts what whoever asks adds to a bounded table, as `FairShares` has it."""
        return "" if self.is_free else self.asker

    def is_ruler(self, name: str) -> bool:
        """Whether that user may do everything."""
        return self._judge(name).is_admin

    def seen_names(self, names: list[str]) -> list[str]:
        """Those of sorted names of streams that are there for whoever asks, sorted."""
        return names if self.is_free else self._judge().seen_names(self._image(), names)

    def quotas_of(self, name: str) -> Quotas | None:
        """What that user may use of a broker; None: there is none such, as with brokers."""
        user = self._image().users.get(name)
        return None if user is None else user.quotas

    def quotas_for(self, who: Principal) -> Quotas | None:
        """Of whoever has logged in; None also where that counts no more: what is refused uses up nothing."""
        return None if self.refusal(who) is not None else self.quotas_of(who.name)

    def need_admin(self) -> None:
        """RemoteError not_authorized."""
        if not self.is_free:
            raise denied(self.who, Operation.ADMIN, "")

    def may_see(self, state: StreamState) -> bool:
        """Whether something may be done with a stream; or it is where groups are, and somebody may have some."""
        return self.is_free or self._judge().sees(state)

    def may_see_group(self, state: StreamState | None, group: str) -> bool:
        """Whether something may be known of a group in a stream."""
        return self.is_free or bool(
            (state is not None and self._scope(Operation.READ, state)) or self._commits(state, group)
        )

    def appended_subjects(self, state: StreamState) -> tuple[str, ...] | None:
        """On which subjects rows may be appended to a stream; None: on all that it takes."""
        if self.is_free:
            return None
        found = self._scope(Operation.APPEND, state)
        return None if found.is_all else found.subjects

    def _scope(self, operation: Operation, state: StreamState) -> Scope:
        return self._judge().scope(operation, state)

    def _commits(self, state: StreamState | None, group: str) -> Scope:
        name, subject = ("", "") if state is None else (state.name, state.config.subject)
        return self._judge().scope_of(Operation.COMMIT_OFFSETS, name, subject, group)

    # The table

    def _state(self, stream_id: int) -> StreamState:
        """RemoteError: as one that whoever asks may not see."""
        image = self._image()
        state = image.streams.get(StreamId(stream_id))
        if state is None:
            raise gone(stream_id) if stream_id <= image.index else unheard(stream_id)
        return state

    @property
    def is_current(self) -> bool:
        """Whether what this broker has heard of cannot be long past."""
        return self._is_current()

    def _need(self, operation: Operation, state: StreamState, subjects: tuple[str, ...] | None = None) -> None:
        """RemoteError not_authorized, stream_changed: there is no such stream for whoever asks."""
        target = target_of(state)
        if target is not None:  # who may append to a stream handles what is staged for it
            state, operation = self._image().streams.get(target, state), Operation.APPEND
        if not self._scope(operation, state).covers(subjects):
            raise self._denied(operation, state)

    def _denied(self, operation: Operation, state: StreamState) -> RemoteError:
        is_seen = self.may_see(state)
        return denied(self.who, operation, f"stream {state.name!r}") if is_seen else gone(state.stream_id)

    def _reading(self, request: FetchRequest) -> None:
        self._need(Operation.READ, self._state(request.stream_id), request.subjects)

    def _getting(self, request: GetRequest) -> None:
        subjects = None if request.subject is None else (request.subject,)
        self._need(Operation.READ, self._state(request.stream_id), subjects)

    def _listing_offsets(self, request: ListOffsetsRequest) -> None:
        state = self._state(request.stream_id)
        if target_of(state) is None and self._scope(Operation.READ, state):
            return
        self._need(Operation.READ, state)

    def _appending(self, request: AppendRequest | AppendOnceRequest | ListProducersRequest) -> None:
        state = self._state(request.stream_id)
        if not self._scope(Operation.APPEND, state):
            raise self._denied(Operation.APPEND, state)

    def _appending_all(
        self, request: StageRequest | PublishStagedRequest | ListPublishedRequest | StagedStreamRequest
    ) -> None:
        self._need(Operation.APPEND, self._state(request.stream_id))

    def _creating(self, request: CreateStreamRequest) -> None:
        check_made(self._judge(), self.who, self._image(), request.config)

    def _altering(self, request: AlterStreamRequest | SetIntakeRequest) -> None:
        self._need_named(Operation.ALTER, request.name)
        if isinstance(request, AlterStreamRequest):
            image = self._image()
            check_grown(self._judge(), self.who, image, image.by_name(request.name), request.changes)

    def _deleting(self, request: DeleteStreamRequest) -> None:
        self._need_named(Operation.DELETE, request.name)

    def _truncating(self, request: TruncateRequest) -> None:
        self._need(Operation.DELETE, self._state(request.stream_id))

    def _need_named(self, operation: Operation, name: str) -> None:
        image = self._image()
        state = image.by_name(name) if name in image.names else None
        if state is None or not self.may_see(state):
            raise absent(name)
        self._need(operation, state)

    def _archiving(self, request: ReportArchivedRequest) -> None:
        self._state(request.stream_id)
        self._need_group(request.stream_id, request.archive)  # it is as a group is: it says how far it has come

    def _committing(self, request: CommitOffsetsRequest) -> None:
        for stream_id in {one.stream_id for one in request.offsets}:
            self._need_group(stream_id, request.group)

    def _joining(self, request: GroupHeartbeatRequest) -> None:
        stream_ids = {*request.stream_ids, *(one.stream_id for one in request.owned)}
        for stream_id in stream_ids:
            self._need_group(stream_id, request.group)
        if not stream_ids and not self._judge().commits(request.group):
            raise denied(self.who, Operation.COMMIT_OFFSETS, f"group {request.group!r}")

    def _need_group(self, stream_id: int, group: str) -> None:
        state = self._image().streams.get(StreamId(stream_id))
        if not self._commits(state, group).is_all:
            if state is not None and not self.may_see(state):
                raise gone(stream_id)
            where = f"stream {state.name!r}" if state is not None else f"stream {stream_id}"
            raise denied(self.who, Operation.COMMIT_OFFSETS, f"{where}, group {group!r}")

    def _asking_offsets(self, request: FetchOffsetsRequest) -> None:
        state = self._image().streams.get(request.of_stream_id)
        if not self.may_see_group(state, request.group):
            raise denied(self.who, Operation.COMMIT_OFFSETS, f"group {request.group!r}")

    def _allowing(self, request: Any) -> None:
        """To anybody who has logged in: what is told is what they may know."""

    def _having_groups(self, request: OffsetsStreamRequest) -> None:
        if not self._judge().has_groups:
            raise denied(self.who, Operation.COMMIT_OFFSETS, "")

    def _altering_user(self, request: AlterUserRequest) -> None:
        if not self._is_own(request):
            self.need_admin()

    def _is_own(self, request: AlterUserRequest) -> bool:
        """Whether somebody changes what he logs in with himself: not with a token, which may be of a program, and not
        for longer than he may log in now.
        """
        who = self.who
        if who is None or request.name != who.name or request.quotas is not None:
            return False
        if not who.credential_id:
            return True  # another broker has looked
        user = self._image().users.get(who.name)
        shown = None if user is None else user.credential(who.credential_id)
        if shown is None or shown.kind is CredentialKind.TOKEN:
            return False
        end_us = shown.expires_us
        return end_us is None or all(one.expires_us is not None and one.expires_us <= end_us for one in request.add)

    def _testing(self, request: TestAccessRequest) -> None:
        if self.who is None or request.name != self.who.name:
            self.need_admin()

    def _administering(self, request: Any) -> None:
        self.need_admin()
