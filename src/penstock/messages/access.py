"""Who asks, and what they may do: logging in, users, rules.

Rules: a login is two requests, whose data are those of the mechanism (`access.scram`, `access.nkeys`); until it is done
nothing else is taken, where anybody has to log in at all. What checks a secret is sent to a broker, and back only to
an administrator who exports users: what else is told of them holds no key. A change is answered once all live brokers
go by it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.access import Credential, CredentialKind, Operation, Quotas, Rule
from penstock.base import limits
from penstock.messages.fields import Int64Field, NameField, Request, Response, TimestampField, repr_without_logins

UserField = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.USER_NAME_CHARS_MAX)]
_DataField = Annotated[bytes, msgspec.Meta(max_length=limits.LOGIN_MESSAGE_BYTES_MAX)]
_Credentials = Annotated[tuple[Credential, ...], msgspec.Meta(max_length=limits.CREDENTIALS_PER_USER_MAX)]
_Ids = Annotated[tuple[NameField, ...], msgspec.Meta(max_length=limits.CREDENTIALS_PER_USER_MAX)]
_Rules = Annotated[tuple[Rule, ...], msgspec.Meta(max_length=limits.RULES_PER_USER_MAX)]


class AuthenticateRequest(Request, frozen=True, kw_only=True):
    """One message of a login."""

    mechanism: NameField
    data: _DataField


class AuthenticateResponse(Response, frozen=True, kw_only=True):
    """The answer to it. `is_done`: the rest is what hello did not tell somebody who was not known yet."""

    data: _DataField
    is_done: bool = False
    cluster_id: str = ""
    nats_urls: tuple[str, ...] = ()  # for publishers; administrators get the embedded server's with its login

    def __repr__(self) -> str:
        return repr_without_logins(self)


class CredentialInfo(msgspec.Struct, frozen=True, kw_only=True):
    """With what a user can log in; nothing from which that could be done."""

    credential_id: str
    kind: CredentialKind
    created_us: TimestampField
    expires_us: TimestampField | None = None
    public_key: str = ""  # of an nkey


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One user; or `*`, who is everybody."""

    name: str
    created_us: TimestampField
    credentials: tuple[CredentialInfo, ...] = ()
    rules: tuple[Rule, ...] = ()
    quotas: Quotas = Quotas()
    streams: int = 0  # that it has made, and that are there
    partitions: int = 0  # of these streams
    message_ids: int = 0  # that leaders may keep of them


class ListUsersRequest(Request, frozen=True, kw_only=True):
    """Which users are there? `names`: only these. Who is no administrator hears of himself, and of everybody."""

    names: Annotated[tuple[UserField, ...], msgspec.Meta(max_length=limits.USERS_PER_ANSWER_MAX)] | None = None
    after: str = ""  # of all: those behind that one


class ListUsersResponse(Response, frozen=True, kw_only=True):
    """Those that there are, by name. `next_after`: what to ask for the rest with."""

    users: tuple[UserInfo, ...]
    next_after: str | None = None
    is_guarded: bool = False  # whether anybody has to log in
    user: str = ""  # who asks, as the broker knows


class UserExport(msgspec.Struct, frozen=True, kw_only=True):
    """All that a cluster keeps of a user, from which it can be made again; or of `*`, who is everybody."""

    name: str
    created_us: TimestampField
    credentials: tuple[Credential, ...] = ()
    rules: tuple[Rule, ...] = ()
    quotas: Quotas = Quotas()


class ExportUsersRequest(Request, frozen=True, kw_only=True):
    """What is kept of all users, for a backup? With what checks their secrets: for administrators."""

    after: str = ""  # those behind that one


class ExportUsersResponse(Response, frozen=True, kw_only=True):
    """Those that there are, by name. `next_after`: what to ask for the rest with."""

    users: tuple[UserExport, ...]
    next_after: str | None = None


class CreateUserRequest(Request, frozen=True, kw_only=True):
    """Make a user. The first one has to be an administrator: from then on everybody logs in."""

    name: UserField
    credentials: _Credentials
    rules: _Rules = ()
    quotas: Quotas = Quotas()


class AlterUserRequest(Request, frozen=True, kw_only=True):
    """Give a user credentials and take some away, at once; or other quotas. One's own credentials anybody changes."""

    name: UserField
    add: _Credentials = ()
    drop: _Ids = ()
    quotas: Quotas | None = None  # None: as they are


class DeleteUserRequest(Request, frozen=True, kw_only=True):
    """Delete a user, its credentials and its rules."""

    name: UserField


class ChangeRulesRequest(Request, frozen=True, kw_only=True):
    """Give a user rules and take some away, at once; `*` is everybody."""

    name: UserField
    add: _Rules = ()
    drop: _Rules = ()


class UserChangedResponse(Response, frozen=True, kw_only=True):
    """All live brokers go by it. `index`: of the change; 0: it was so already."""

    index: Int64Field = 0


class CreateUserResponse(UserChangedResponse, frozen=True, kw_only=True):
    """As it says."""


class AlterUserResponse(UserChangedResponse, frozen=True, kw_only=True):
    """As it says."""


class DeleteUserResponse(UserChangedResponse, frozen=True, kw_only=True):
    """As it says."""


class ChangeRulesResponse(UserChangedResponse, frozen=True, kw_only=True):
    """As it says."""


class TestAccessRequest(Request, frozen=True, kw_only=True):
    """May that user do that? Nothing is done. `subject`: on which a stream is that is not there, or of rows."""

    __test__ = False  # not for pytest

    name: UserField
    operation: Operation
    stream: str = ""
    subject: str = ""
    group: str = ""


class TestAccessResponse(Response, frozen=True, kw_only=True):
    """Whether it may; the rule that says so, or why none does. `subjects`: of a stream only what is on these."""

    __test__ = False

    is_allowed: bool
    reason: str = ""
    subjects: tuple[str, ...] = ()


class AwaitMetadataRequest(Request, frozen=True, kw_only=True):
    """Between brokers: answer once you go by what was agreed on up to that index."""

    index: Int64Field
    timeout_ms: Int64Field


class AwaitMetadataResponse(Response, frozen=True, kw_only=True):
    """It does."""
