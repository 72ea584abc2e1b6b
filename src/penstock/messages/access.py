"""Login, users and rules.

Rules: a login is two requests, whose data are those of the mechanism (`access.scram`, `access.nkeys`); if
authentication is on, no other request is served before. Secret verifiers are sent to a broker, and back only to an
administrator who exports users; all other answers contain no key. A change is answered once all live brokers apply it.
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
    """The broker's answer. `is_done`: the other fields are those that hello withheld before the login."""

    data: _DataField
    is_done: bool = False
    cluster_id: str = ""
    nats_urls: tuple[str, ...] = ()  # for publishers; administrators get the embedded server's with its credentials

    def __repr__(self) -> str:
        return repr_without_logins(self)


class CredentialInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A credential without its secret."""

    credential_id: str
    kind: CredentialKind
    created_us: TimestampField
    expires_us: TimestampField | None = None
    public_key: str = ""  # of an nkey


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One user; or `*`, which stands for everybody."""

    name: str
    created_us: TimestampField
    credentials: tuple[CredentialInfo, ...] = ()
    rules: tuple[Rule, ...] = ()
    quotas: Quotas = Quotas()
    streams: int = 0  # streams that it created and that exist
    partitions: int = 0  # of these streams
    message_ids: int = 0  # that leaders may keep for them


class ListUsersRequest(Request, frozen=True, kw_only=True):
    """List users; `names`: only these. Others than administrators get only themselves and `*`."""

    names: Annotated[tuple[UserField, ...], msgspec.Meta(max_length=limits.USERS_PER_ANSWER_MAX)] | None = None
    after: str = ""  # begin after this name


class ListUsersResponse(Response, frozen=True, kw_only=True):
    """The users, by name. `next_after`: the `after` of the next page."""

    users: tuple[UserInfo, ...]
    next_after: str | None = None
    is_guarded: bool = False  # True if authentication is on
    user: str = ""  # the calling user


class UserExport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to restore a user, secret verifiers included; or `*`, which stands for everybody."""

    name: str
    created_us: TimestampField
    credentials: tuple[Credential, ...] = ()
    rules: tuple[Rule, ...] = ()
    quotas: Quotas = Quotas()


class ExportUsersRequest(Request, frozen=True, kw_only=True):
    """Export all users with their secret verifiers, for a backup. For administrators."""

    after: str = ""  # begin after this name


class ExportUsersResponse(Response, frozen=True, kw_only=True):
    """The users, by name. `next_after`: the `after` of the next page."""

    users: tuple[UserExport, ...]
    next_after: str | None = None


class CreateUserRequest(Request, frozen=True, kw_only=True):
    """Create a user. The first one must be an administrator: from then on all clients must log in."""

    name: UserField
    credentials: _Credentials
    rules: _Rules = ()
    quotas: Quotas = Quotas()


class AlterUserRequest(Request, frozen=True, kw_only=True):
    """Add and remove credentials, atomically; or set quotas. All users may change their own credentials."""

    name: UserField
    add: _Credentials = ()
    drop: _Ids = ()
    quotas: Quotas | None = None  # None: unchanged


class DeleteUserRequest(Request, frozen=True, kw_only=True):
    """Delete a user, its credentials and its rules."""

    name: UserField


class ChangeRulesRequest(Request, frozen=True, kw_only=True):
    """Add and remove rules of a user, atomically; `*` stands for everybody."""

    name: UserField
    add: _Rules = ()
    drop: _Rules = ()


class UserChangedResponse(Response, frozen=True, kw_only=True):
    """All live brokers apply the change. `index`: of the change; 0: nothing had to be changed."""

    index: Int64Field = 0


class CreateUserResponse(UserChangedResponse, frozen=True, kw_only=True):
    """The user was created."""


class AlterUserResponse(UserChangedResponse, frozen=True, kw_only=True):
    """The user was altered."""


class DeleteUserResponse(UserChangedResponse, frozen=True, kw_only=True):
    """The user was deleted."""


class ChangeRulesResponse(UserChangedResponse, frozen=True, kw_only=True):
    """The rules were changed."""


class TestAccessRequest(Request, frozen=True, kw_only=True):
    """Check if a user may do an operation. `subject`: of a stream to create, or of rows."""

    __test__ = False  # not for pytest

    name: UserField
    operation: Operation
    stream: str = ""
    subject: str = ""
    group: str = ""


class TestAccessResponse(Response, frozen=True, kw_only=True):
    """True if allowed; the rule that allows it, or why none does. `subjects`: only these of the stream."""

    __test__ = False

    is_allowed: bool
    reason: str = ""
    subjects: tuple[str, ...] = ()


class AwaitMetadataRequest(Request, frozen=True, kw_only=True):
    """Between brokers: wait until the receiver applies the metadata up to that index."""

    index: Int64Field
    timeout_ms: Int64Field


class AwaitMetadataResponse(Response, frozen=True, kw_only=True):
    """The receiver applies it."""
