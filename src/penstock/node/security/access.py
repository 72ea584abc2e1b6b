"""Authorisation: every request is checked here before anything is done for it.

Rules: where authentication is on (the cluster has users, or this broker was started with it), a caller who has not
logged in is refused everything, and what no rule allows is refused with `not_authorized`. A request type that is not in
the table is for administrators only. Rules are read from the metadata image for each request, so a change takes effect
as soon as this broker has applied it. A login ends when its user or its credential is deleted. A stream on which a user
has no permission does not exist for that user.

A broker that has lost its session with the metadata leader, or has just started and is not registered, may not know
that a permission was revoked: until it does, it refuses users with `not_yet`, so that they ask another broker.
Who may monitor gets the state of such a broker, but no stored data.

| request                         | permission                                                               |
|---------------------------------|--------------------------------------------------------------------------|
| fetch, get, list offsets        | `read`; on some subjects only, if the request names them; list offsets   |
|                                 | also: `monitor`                                                          |
| append, append once             | `append`; on some subjects only: each row is checked                     |
| stage, publish, list published  | `append` on the whole target stream                                      |
| create stream                   | `create` on all its subjects; `alter` on all in the queue group it joins |
| alter stream, set intake        | `alter`; with more partitions, on all its subjects, and the same         |
| delete stream, truncate         | `delete`                                                                 |
| commit offsets, group heartbeat | `commit_offsets` on each stream, for the group; only for own members     |
| report archived                 | `commit_offsets`                                                         |
| fetch offsets, list groups      | `commit_offsets`, `read` or `monitor`                                    |
| ask consumers                   | as of the group `consumer:NAME`: to change one, `commit_offsets`; to     |
|                                 | create it, also `read` of its filters; to see it, one of these three     |
| register schemas                | `register` on the subjects; to force: also `alter`                       |
| forget schemas                  | `register` and `alter` on the subjects                                   |
| list schemas, get schema text   | any on the stream                                                        |
| metadata, find streams          | none; the answer holds the streams on which the user has a permission    |
| status                          | `monitor`                                                                |
| verify, append at               | `admin`                                                                  |
| users, rules                    | `admin`; users may list themselves and change their own credentials      |
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from penstock.access import Credential, CredentialKind, Operation, Quotas, Rule, User
from penstock.access.handshake import Principal
from penstock.access.rules import Scope
from penstock.access.scram import ScramVerifier
from penstock.access.users import EVERYBODY, GIVE_CREDENTIALS, PASSWORD_ID
from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import StreamId
from penstock.base.units import utc_text
from penstock.messages import (
    AlterStreamRequest,
    AlterUserRequest,
    AppendAtRequest,
    AppendOnceRequest,
    AppendRequest,
    AskConsumersRequest,
    AwaitErasureRequest,
    ChangeRulesRequest,
    CommitOffsetsRequest,
    ConsumerOperation,
    CreateStreamRequest,
    CreateUserRequest,
    DeleteMessagesRequest,
    DeleteStreamRequest,
    DeleteUserRequest,
    ExportUsersRequest,
    FetchOffsetsRequest,
    FetchRequest,
    FindMessagesRequest,
    FindStreamsRequest,
    ForgetSchemasRequest,
    GetRequest,
    GetSchemaTextRequest,
    GroupHeartbeatRequest,
    HelloRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    ListProducersRequest,
    ListPublishedRequest,
    ListSchemasRequest,
    ListSubjectsRequest,
    ListUsersRequest,
    MetadataRequest,
    OffsetsStreamRequest,
    PublishStagedRequest,
    PurgeSubjectRequest,
    RaiseFeatureLevelRequest,
    RegisterSchemasRequest,
    ReportArchivedRequest,
    Request,
    SchemasStreamRequest,
    SetIntakeRequest,
    StagedStreamRequest,
    StageRequest,
    StatusRequest,
    TakeApiRequest,
    TestAccessRequest,
    TruncateRequest,
    VerifyRequest,
)
from penstock.metadata.commands import Command
from penstock.metadata.image import StreamState
from penstock.metadata.persistent_map import PersistentMap
from penstock.node.context import Context
from penstock.node.partition.internal_streams import target_of
from penstock.node.quorum.metadata_forwarding import THE_BROKER
from penstock.node.quorum.session import ClusterSession
from penstock.node.security.auth_markers import AuthMarkers
from penstock.node.security.permission_cache import PermissionCache
from penstock.node.security.permission_errors import (
    not_authorized,
    stream_deleted,
    stream_not_found,
    stream_unknown_here,
)
from penstock.node.security.subscription_permissions import (
    check_may_add_partitions,
    check_may_add_subjects,
    check_may_create,
)

_UNHEARD = "this broker has no contact with the metadata leader and may not know current permissions; ask another"


C = TypeVar("C", bound=Command)


def consumer_group(name: str) -> str:
    """Return the name by which rules name a consumer of JetStream's API, as a group: those of Penstock have no `:`."""
    return f"consumer:{name}"


class _InUsers(NamedTuple):
    """Lookup tables for callers who have not logged in yet."""

    users: PersistentMap[str, User]
    holders: dict[str, tuple[User, Credential]]  # by public nkey

    @classmethod
    def of(cls, users: PersistentMap[str, User]) -> _InUsers:
        holders: dict[str, tuple[User, Credential]] = {}
        for user in users.values():
            for one in user.credentials:
                if one.public_key:
                    holders.setdefault(one.public_key, (user, one))
        return cls(users, holders)


class Access:
    """Users, credentials and rules of the image: `of` returns what one caller may do."""

    def __init__(self, context: Context, session: ClusterSession, markers: AuthMarkers) -> None:
        self._context = context
        self._session = session
        self._markers = markers
        self._judges: dict[str, PermissionCache] = {}  # by user name
        self._found: _InUsers | None = None

    @property
    def is_guarded(self) -> bool:
        """True if every client has to log in."""
        return self._markers.requires_login or self._context.image.is_guarded

    @property
    def brokers_prove(self) -> bool:
        """True if a peer that says it is a broker has to prove it."""
        return self.is_guarded or self._markers.requires_proof

    # Credential lookup (`handshake.CredentialDirectory`)

    def verifier(self, name: str) -> tuple[ScramVerifier, Principal] | None:
        user_name, slash, credential_id = name.partition("/")
        user = self._context.image.users.get(user_name)
        if user is None or user_name == EVERYBODY:
            return None
        credential = user.credential(credential_id if slash else PASSWORD_ID)
        if credential is None or credential.kind is not (CredentialKind.TOKEN if slash else CredentialKind.PASSWORD):
            return None
        keys = ScramVerifier(credential.salt, credential.iterations, credential.stored_key, credential.server_key)
        return keys, Principal(user_name, user.made_index, credential.credential_id, credential.mark)

    def holder(self, public_key: str) -> Principal | None:
        user, credential = self._in_users().holders.get(public_key, (None, None))
        if user is None or credential is None:
            return None
        return Principal(user.name, user.made_index, credential.credential_id, credential.mark)

    def expired(self, who: Principal) -> str | None:
        user = self._context.image.users.get(who.name)
        credential = None if user is None else user.credential(who.credential_id)
        if credential is None or credential.expires_us is None or credential.is_valid(self._context.now.wall_us):
            return None
        return (
            f"this {credential.kind} of {who.name!r} expired at {utc_text(credential.expires_us)}; ask for another one"
        )

    @property
    def decoy_key(self) -> bytes:
        return self._context.image.decoy_key

    def _in_users(self) -> _InUsers:
        """Return the lookup tables of the current users, rebuilt once per version of them."""
        users = self._context.image.users
        if self._found is None or self._found.users is not users:
            self._found = _InUsers.of(users)
        return self._found

    def refusal(self, who: Principal | None) -> RemoteError | None:
        """Return why a caller is not, or no longer, logged in; None if the login is valid or none is needed."""
        if not self.is_guarded or who == THE_BROKER:
            return None
        if who is None:
            return RemoteError(ErrorCode.UNAUTHENTICATED, f"this cluster asks for a login: {GIVE_CREDENTIALS}")
        user = self._context.image.users.get(who.name)
        if user is None or user.made_index != who.made_index:
            return RemoteError(ErrorCode.UNAUTHENTICATED, f"there is no user {who.name!r} any more")
        if who.credential_id:
            credential = user.credential(who.credential_id)
            if credential is None or credential.mark != who.mark:
                text = f"the credential of {who.name!r} is no longer valid: it was changed or removed"
                return RemoteError(ErrorCode.UNAUTHENTICATED, text)
            if (expired := self.expired(who)) is not None:
                return RemoteError(ErrorCode.UNAUTHENTICATED, expired)
        return None

    # Permissions

    @property
    def is_current(self) -> bool:
        """True while this broker's image cannot be older than a session."""
        return self._session.is_current

    @property
    def requires_proof(self) -> bool:
        """True if brokers have to prove their membership, with or without users."""
        return self._markers.requires_proof

    def of(self, who: Principal | None) -> Authorization:
        """Return what a caller may do; None: a caller who has not logged in."""
        return Authorization(self, self._context, who)

    def judge(self, name: str) -> PermissionCache:
        """Return the permissions of a user; of one that does not exist, those of every user."""
        users = self._context.image.users
        user, everybody = users.get(name), users.get(EVERYBODY)
        own, of_all = () if user is None else user.rules, () if everybody is None else everybody.rules
        judge = self._judges.get(name)
        if judge is None or not judge.goes_by(own, of_all):
            self._judges.pop(name, None)
            if len(self._judges) >= limits.PERMISSION_CACHE_USERS_MAX:
                del self._judges[next(iter(self._judges))]
            judge = self._judges[name] = PermissionCache(own, of_all)
        return judge

    def is_ruler(self, name: str) -> bool:
        """True if that user is an administrator."""
        return self.judge(name).is_admin

    def quotas_of(self, name: str) -> Quotas | None:
        """Return the quotas of a user on each broker; None if there is no such user, as for brokers."""
        user = self._context.image.users.get(name)
        return None if user is None else user.quotas

    def quotas_for(self, who: Principal) -> Quotas | None:
        """Return the quotas of a logged-in user; None if the login is invalid: a refused request uses no quota."""
        return None if self.refusal(who) is not None else self.quotas_of(who.name)


class Authorization:
    """Permissions of one caller, by the rules in the image at the time of each call.

    `who` is None if the caller has not logged in, as without authentication.
    """

    __slots__ = ("_access", "_context", "who")

    def __init__(self, access: Access, context: Context, who: Principal | None) -> None:
        self._access = access
        self._context = context
        self.who = who

    def _judge(self, name: str | None = None) -> PermissionCache:
        if name is None:
            name = "" if self.who is None else self.who.name
        return self._access.judge(name)

    def check(self, request: Request) -> None:
        """Raise RemoteError unauthenticated, not_authorized or not_yet unless the caller may send the request."""
        who, access = self.who, self._access
        if isinstance(request, HelloRequest):
            return
        if (refusal := access.refusal(who)) is not None:
            raise refusal
        if who == THE_BROKER:
            return
        if not access.is_guarded:
            if access.requires_proof and not access.is_current:
                raise RemoteError(ErrorCode.NOT_YET, _UNHEARD)
            return
        if not (access.is_current or (self.may_monitor and isinstance(request, StatusRequest | MetadataRequest))):
            raise RemoteError(ErrorCode.NOT_YET, _UNHEARD)
        if self.is_admin:
            return
        check = self._CHECKS.get(type(request))
        if check is None:
            self.need_admin()
        else:
            check(self, request)

    @property
    def is_free(self) -> bool:
        """True if the caller may do everything: without authentication, as a broker, or as an administrator."""
        return not self._access.is_guarded or self.who == THE_BROKER or self.is_admin

    @property
    def is_open(self) -> bool:
        """True if anybody may do everything, whatever the time."""
        return not (self._access.is_guarded or self._access.requires_proof)

    @property
    def is_admin(self) -> bool:
        """True if the caller is an administrator."""
        return self._judge().is_admin

    @property
    def may_monitor(self) -> bool:
        """True if the caller may see the state of the cluster."""
        return self._judge().may_monitor

    def rules(self, name: str | None = None) -> tuple[Rule, ...]:
        """Return the rules of a user (None: of the caller), and those for every user."""
        return self._judge(name).rules

    def signed(self, command: C) -> C:
        """Return the command with user and time, if the cluster has users: older brokers do not know these fields."""
        if not self.signature or not hasattr(command, "at_us"):
            return command
        return msgspec.structs.replace(command, by=self.signature, at_us=self._context.now.wall_us)

    @property
    def signature(self) -> str:
        """Name of the calling user. Empty if the cluster has no users or the caller is a broker."""
        is_user = self._context.image.is_guarded and self.who not in (None, THE_BROKER)
        return self.who.name if is_user and self.who is not None else ""

    @property
    def asker(self) -> str:
        """Audit id of the calling user, unique across deleted users. Empty without authentication and for brokers."""
        is_user = self._access.is_guarded and self.who not in (None, THE_BROKER)
        return f"{self.who.name}/{self.who.made_index}" if is_user and self.who is not None else ""

    @property
    def sharer(self) -> str:
        """User that the caller's entries in a bounded table count for (`FairShares`); empty: no user."""
        return "" if self.is_free else self.asker

    def need_admin(self) -> None:
        """Raise RemoteError not_authorized unless the caller may do everything."""
        if not self.is_free:
            raise not_authorized(self.who, Operation.ADMIN, "")

    def may_see(self, state: StreamState) -> bool:
        """True if the caller has any permission on the stream, or if it is `__offsets` or `__schemas` and of use."""
        return self.is_free or self._judge().sees(state)

    def seen_names(self, names: list[str]) -> list[str]:
        """Return those of the sorted stream names that the caller may see, sorted."""
        return names if self.is_free else self._judge().seen_names(self._context.image, names)

    def may_see_group(self, state: StreamState | None, group: str) -> bool:
        """True if the caller may know a group's position in a stream."""
        return (self.is_free or self.may_monitor) or bool(
            (state is not None and self._scope(Operation.READ, state)) or self._commits(state, group)
        )

    def may_see_consumer(self, state: StreamState, name: str) -> bool:
        """True if the caller may know a consumer of a stream, of JetStream's API."""
        return self.may_see_group(state, consumer_group(name))

    def appended_subjects(self, state: StreamState) -> tuple[str, ...] | None:
        """Return the subjects on which the caller may append to the stream; None: on all of them."""
        if self.is_free:
            return None
        found = self._scope(Operation.APPEND, state)
        return None if found.is_all else found.subjects

    def read_subjects(self, state: StreamState) -> tuple[str, ...] | None:
        """Return the subjects on which the caller may read messages of the stream; None: all of them."""
        if self.is_free:
            return None
        found = self._scope(Operation.READ, state)
        return None if found.is_all else found.subjects

    def may_read(self, state: StreamState, subjects: tuple[str, ...] | None) -> bool:
        """True if the caller may read messages of the stream on these subjects; None: on all of them."""
        if self._access.refusal(self.who) is not None:
            return False
        return self.is_free or self._scope(Operation.READ, state).covers(subjects)

    def _scope(self, operation: Operation, state: StreamState) -> Scope:
        return self._judge().scope(operation, state)

    def _commits(self, state: StreamState | None, group: str) -> Scope:
        name, subjects = ("", ("",)) if state is None else (state.name, state.config.held_subjects)
        return self._judge().scope_of(Operation.COMMIT_OFFSETS, name, subjects, group)

    def _state(self, stream_id: int) -> StreamState:
        """Raise RemoteError stream_changed if the stream was deleted, stream_not_found if its id is unknown here."""
        image = self._context.image
        state = image.streams.get(StreamId(stream_id))
        if state is None:
            raise stream_deleted(stream_id) if stream_id <= image.index else stream_unknown_here(stream_id)
        return state

    def _need(self, operation: Operation, state: StreamState, subjects: tuple[str, ...] | None = None) -> None:
        """Raise RemoteError not_authorized, or stream_changed if the caller may not see the stream."""
        target = target_of(state)
        if target is not None:  # a caller who may append to a stream may use the rows staged for it
            state, operation = self._context.image.streams.get(target, state), Operation.APPEND
        if not self._scope(operation, state).covers(subjects):
            raise self._denied(operation, state)

    def _denied(self, operation: Operation, state: StreamState) -> RemoteError:
        is_seen = self.may_see(state)
        return (
            not_authorized(self.who, operation, f"stream {state.name!r}")
            if is_seen
            else stream_deleted(state.stream_id)
        )

    def _reading(self, request: FetchRequest | FindMessagesRequest | ListSubjectsRequest) -> None:
        self._need(Operation.READ, self._state(request.stream_id), request.subjects)

    def _getting(self, request: GetRequest) -> None:
        subjects = None if request.subject is None else (request.subject,)
        self._need(Operation.READ, self._state(request.stream_id), subjects)

    def _listing_offsets(self, request: ListOffsetsRequest) -> None:
        state = self._state(request.stream_id)
        if self.may_monitor or (target_of(state) is None and self._scope(Operation.READ, state)):
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
        check_may_create(self._judge(), self.who, self._context.image, request.config)

    def _altering(self, request: AlterStreamRequest | SetIntakeRequest) -> None:
        self._need_named(Operation.ALTER, request.name)
        if isinstance(request, AlterStreamRequest):
            image = self._context.image
            state = image.by_name(request.name)
            check_may_add_partitions(self._judge(), self.who, image, state, request.changes)
            check_may_add_subjects(self._judge(), self.who, image, state, request.add_subjects)

    def _deleting(self, request: DeleteStreamRequest) -> None:
        self._need_named(Operation.DELETE, request.name)

    def _truncating(
        self, request: TruncateRequest | DeleteMessagesRequest | PurgeSubjectRequest | AwaitErasureRequest
    ) -> None:
        self._need(Operation.DELETE, self._state(request.stream_id))

    def _need_named(self, operation: Operation, name: str) -> None:
        image = self._context.image
        state = image.by_name(name) if name in image.names else None
        if state is None or not self.may_see(state):
            raise stream_not_found(name)
        self._need(operation, state)

    def _archiving(self, request: ReportArchivedRequest) -> None:
        self._state(request.stream_id)
        self._need_group(request.stream_id, request.archive)  # an archive counts as a group: both report positions

    def _committing(self, request: CommitOffsetsRequest) -> None:
        for stream_id in {one.stream_id for one in request.offsets}:
            self._need_group(stream_id, request.group)

    def _joining(self, request: GroupHeartbeatRequest) -> None:
        stream_ids = {*request.stream_ids, *(one.stream_id for one in request.owned)}
        for stream_id in stream_ids:
            self._need_group(stream_id, request.group)
        if not stream_ids and not self._judge().commits(request.group):
            raise not_authorized(self.who, Operation.COMMIT_OFFSETS, f"group {request.group!r}")

    def _need_group(self, stream_id: int, group: str) -> None:
        state = self._context.image.streams.get(StreamId(stream_id))
        if not self._commits(state, group).is_all:
            if state is not None and not self.may_see(state):
                raise stream_deleted(stream_id)
            where = f"stream {state.name!r}" if state is not None else f"stream {stream_id}"
            raise not_authorized(self.who, Operation.COMMIT_OFFSETS, f"{where}, group {group!r}")

    def _asking_offsets(self, request: FetchOffsetsRequest) -> None:
        state = self._context.image.streams.get(request.of_stream_id)
        if not self.may_see_group(state, request.group):
            raise not_authorized(self.who, Operation.COMMIT_OFFSETS, f"group {request.group!r}")

    def _asking_consumers(self, request: AskConsumersRequest) -> None:
        """Check the right by the consumer's name; a list holds what the caller may see, and `read` is checked later."""
        state = self._state(request.stream_id)
        if not self.may_see(state):
            raise stream_deleted(request.stream_id)
        if request.operation in (ConsumerOperation.LIST, ConsumerOperation.EXPORT_ALL):
            return
        if request.operation not in (ConsumerOperation.INFO, ConsumerOperation.EXPORT):
            self._need_group(request.stream_id, consumer_group(request.consumer))
        elif not self.may_see_consumer(state, request.consumer):
            where = f"stream {state.name!r}, group {consumer_group(request.consumer)!r}"
            raise not_authorized(self.who, Operation.COMMIT_OFFSETS, where)

    def _allowing(self, request: Any) -> None:
        """Allow every logged-in caller: the answer holds only what the caller may see."""

    def _having_groups(self, request: OffsetsStreamRequest) -> None:
        if not self._judge().has_groups:
            raise not_authorized(self.who, Operation.COMMIT_OFFSETS, "")

    def _having_schemas(self, request: SchemasStreamRequest) -> None:
        if not self._judge().registers:
            raise not_authorized(self.who, Operation.REGISTER, "")

    def _registering(self, request: RegisterSchemasRequest) -> None:
        subjects = tuple(entry.subject for entry in request.entries)
        self._need_register(request.of_stream_id, subjects, is_alteration=request.force)

    def _forgetting(self, request: ForgetSchemasRequest) -> None:
        self._need_register(request.of_stream_id, (request.subject,), is_alteration=True)

    def _need_register(self, stream_id: int, subjects: tuple[str, ...], *, is_alteration: bool) -> None:
        state = self._state(stream_id)
        self._need(Operation.REGISTER, state, subjects)
        if is_alteration:
            self._need(Operation.ALTER, state, subjects)

    def _reading_schemas(self, request: ListSchemasRequest | GetSchemaTextRequest) -> None:
        if not self.may_see(self._state(request.of_stream_id)):
            raise stream_deleted(request.of_stream_id)

    def _altering_user(self, request: AlterUserRequest) -> None:
        if not self._is_own(request):
            self.need_admin()

    def _is_own(self, request: AlterUserRequest) -> bool:
        """True if users change only their own credentials: not when logged in with a token, which a program may hold,
        and not with a credential that outlives the one they logged in with.
        """
        who = self.who
        if who is None or request.name != who.name or request.quotas is not None:
            return False
        if not who.credential_id:
            return True  # the broker that forwarded the request has checked it
        user = self._context.image.users.get(who.name)
        shown = None if user is None else user.credential(who.credential_id)
        if shown is None or shown.kind is CredentialKind.TOKEN:
            return False
        end_us = shown.expires_us
        return end_us is None or all(one.expires_us is not None and one.expires_us <= end_us for one in request.add)

    def _testing(self, request: TestAccessRequest) -> None:
        if self.who is None or request.name != self.who.name:
            self.need_admin()

    def _monitoring(self, request: StatusRequest) -> None:
        if not self.may_monitor:
            raise not_authorized(self.who, Operation.MONITOR, "")

    def _administering(self, request: Any) -> None:
        self.need_admin()

    _CHECKS: ClassVar[dict[type[Request], Callable[[Authorization, Any], None]]] = {
        HelloRequest: _allowing,
        FetchRequest: _reading,
        GetRequest: _getting,
        ListOffsetsRequest: _listing_offsets,
        ListSubjectsRequest: _reading,
        FindMessagesRequest: _reading,
        AppendRequest: _appending,
        AppendOnceRequest: _appending,
        ListProducersRequest: _appending,
        StageRequest: _appending_all,
        StagedStreamRequest: _appending_all,
        PublishStagedRequest: _appending_all,
        ListPublishedRequest: _appending_all,
        CreateStreamRequest: _creating,
        AlterStreamRequest: _altering,
        SetIntakeRequest: _altering,
        DeleteStreamRequest: _deleting,
        TruncateRequest: _truncating,
        AwaitErasureRequest: _truncating,
        DeleteMessagesRequest: _truncating,
        PurgeSubjectRequest: _truncating,
        ReportArchivedRequest: _archiving,
        OffsetsStreamRequest: _having_groups,
        CommitOffsetsRequest: _committing,
        GroupHeartbeatRequest: _joining,
        FetchOffsetsRequest: _asking_offsets,
        ListGroupsRequest: _allowing,
        AskConsumersRequest: _asking_consumers,
        SchemasStreamRequest: _having_schemas,
        RegisterSchemasRequest: _registering,
        ForgetSchemasRequest: _forgetting,
        ListSchemasRequest: _reading_schemas,
        GetSchemaTextRequest: _reading_schemas,
        MetadataRequest: _allowing,
        FindStreamsRequest: _allowing,
        ListUsersRequest: _allowing,
        AlterUserRequest: _altering_user,
        TestAccessRequest: _testing,
        CreateUserRequest: _administering,
        DeleteUserRequest: _administering,
        ChangeRulesRequest: _administering,
        ExportUsersRequest: _administering,
        RaiseFeatureLevelRequest: _administering,
        TakeApiRequest: _administering,
        StatusRequest: _monitoring,
        VerifyRequest: _administering,
        AppendAtRequest: _administering,
    }


class ClientOrigin(NamedTuple):
    """The client behind a request, by its own words and as the broker's socket sees it; not a proof of identity."""

    name: str = ""  # of its hello
    address: str = ""  # HOST:PORT


NO_ORIGIN = ClientOrigin()


class Call(NamedTuple):
    """A request with its caller and circumstances."""

    caller: Hashable  # the driver's value, to which the answer goes
    auth: Authorization
    request: Request
    raw: bytes | memoryview  # the raw part of the request
    now: Now  # when it came
    origin: ClientOrigin = NO_ORIGIN

    def authorize(self) -> None:
        """Raise RemoteError as `Authorization.check`: when the request comes, and again at the end of each wait,
        before it is answered or takes effect.
        """
        self.auth.check(self.request)

    def without_raw(self) -> Call:
        """Return the call to keep while the request waits: `raw` may be part of a large read buffer."""
        return self._replace(raw=b"")
