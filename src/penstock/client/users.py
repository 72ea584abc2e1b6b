"""`client.users`: manage users, credentials, rules and quotas of a cluster.

Rules: a secret never leaves the program that generates it or receives it: brokers get only its verifier. A change is in
effect on all live brokers when the call returns.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from penstock.access import Credential, CredentialKind, Operation, Quotas, Rule
from penstock.access.credentials import token_text
from penstock.access.nkeys import public_key_mistake
from penstock.access.rules import EVERYTHING, rule_mistake
from penstock.access.scram import verifier_of
from penstock.access.users import EVERYBODY, PASSWORD_ID, user_name_mistake
from penstock.base import limits
from penstock.client.link.link import Link
from penstock.messages import (
    AlterUserRequest,
    AlterUserResponse,
    ChangeRulesRequest,
    ChangeRulesResponse,
    CreateUserRequest,
    CreateUserResponse,
    DeleteUserRequest,
    DeleteUserResponse,
    ExportUsersRequest,
    ExportUsersResponse,
    ListUsersRequest,
    ListUsersResponse,
    TestAccessRequest,
    TestAccessResponse,
    UserExport,
    UserInfo,
)

Operations = Literal["read", "append", "create", "alter", "delete", "commit_offsets", "register", "monitor", "admin"]


class NewCredential:
    """A new credential: the verifier for the broker, and, of a token, the secret text, which is not stored anywhere."""

    def __init__(self, credential: Credential, token: str | None = None) -> None:
        self.credential = credential
        self.token = token


def password_credential(password: str, *, expires: datetime | None = None) -> NewCredential:
    """Return a password credential. ValueError: an empty password. Takes about 0.15 s, to slow down guessing."""
    if not password:
        raise ValueError("the password is empty")
    keys = verifier_of(password, secrets.token_bytes(limits.SALT_BYTES), limits.PASSWORD_ITERATIONS)
    return NewCredential(Credential(PASSWORD_ID, CredentialKind.PASSWORD, _now_us(), _us(expires), *keys))


def token_credential(user: str, *, expires: datetime | None = None) -> NewCredential:
    """Return a credential with a new random token."""
    credential_id, secret = secrets.token_hex(4), secrets.token_hex(32)
    keys = verifier_of(secret, secrets.token_bytes(limits.SALT_BYTES), 1)  # one iteration is enough for 256 random bits
    credential = Credential(credential_id, CredentialKind.TOKEN, _now_us(), _us(expires), *keys)
    return NewCredential(credential, token_text(user, credential_id, secret))


def nkey_credential(public_key: str, *, expires: datetime | None = None) -> NewCredential:
    """Return the credential for a user's public nkey (U…). ValueError: not a public nkey."""
    if (mistake := public_key_mistake(public_key)) is not None:
        raise ValueError(mistake)
    return NewCredential(
        Credential(secrets.token_hex(4), CredentialKind.NKEY, _now_us(), _us(expires), public_key=public_key)
    )


def rule(
    operation: Operations | Operation,
    *,
    stream: str | None = None,
    subject: str | None = None,
    group: str | None = None,
) -> Rule:
    """Return a permission rule. ValueError: an invalid rule."""
    made = Rule(Operation(operation), stream or "", subject or "", group or EVERYTHING)
    if (mistake := rule_mistake(made)) is not None:
        raise ValueError(mistake)
    return made


def _now_us() -> int:
    return time.time_ns() // 1_000


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1_000_000)


class Users:
    """Manages users, credentials, rules and quotas. Changes are in effect on all live brokers on return."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def all(self, *, timeout: float = 10.0) -> ListUsersResponse:
        """Return all users by name, and `*` if there are rules for everyone; a non-administrator gets only itself."""
        found: list[UserInfo] = []
        after = ""
        while True:
            page, _ = await self._link.call(ListUsersRequest(after=after), ListUsersResponse, timeout_s=timeout)
            found += page.users
            if page.next_after is None:
                return ListUsersResponse(users=tuple(found), is_guarded=page.is_guarded, user=page.user)
            after = page.next_after

    async def export(self, *, timeout: float = 10.0) -> list[UserExport]:
        """Return everything the cluster stores of users, and of `*`, by name; of passwords and tokens the verifiers.

        Administrators only. NotAuthorized; RemoteError unsupported_version: the broker is older.
        """
        found: list[UserExport] = []
        after = ""
        while True:
            page, _ = await self._link.call(ExportUsersRequest(after=after), ExportUsersResponse, timeout_s=timeout)
            found += page.users
            if page.next_after is None:
                return found
            after = page.next_after

    async def get(self, name: str, *, timeout: float = 10.0) -> UserInfo | None:
        """Return one user; None: it does not exist, or the caller may not see it."""
        request = ListUsersRequest(names=(name,))
        page, _ = await self._link.call(request, ListUsersResponse, timeout_s=timeout)
        return page.users[0] if page.users else None

    async def create(
        self,
        name: str,
        *credentials: NewCredential,
        rules: Iterable[Rule] = (),
        quotas: Quotas | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Create a user. The first one needs the rule `admin`: from then on every client must log in.

        RemoteError user_exists, change_refused; NotAuthorized. ValueError: an invalid name.
        """
        if (mistake := user_name_mistake(name)) is not None:
            raise ValueError(mistake)
        request = CreateUserRequest(
            name=name,
            credentials=tuple(one.credential for one in credentials),
            rules=tuple(rules),
            quotas=quotas or Quotas(),
        )
        await self._link.call(request, CreateUserResponse, timeout_s=timeout)

    async def alter(
        self,
        name: str,
        *,
        add: Iterable[NewCredential] = (),
        drop: Iterable[str] = (),
        quotas: Quotas | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Add credentials to a user and remove others, by id, atomically; or set its quotas.

        Clients logged in with a removed credential must log in again. RemoteError user_not_found, change_refused.
        """
        request = AlterUserRequest(name=name, add=tuple(one.credential for one in add), drop=tuple(drop), quotas=quotas)
        await self._link.call(request, AlterUserResponse, timeout_s=timeout)

    async def delete(self, name: str, *, timeout: float = 10.0) -> None:
        """Delete a user and its rules. RemoteError user_not_found; change_refused: it is the last administrator."""
        await self._link.call(DeleteUserRequest(name=name), DeleteUserResponse, timeout_s=timeout)

    async def change_rules(
        self, name: str = EVERYBODY, *, add: Iterable[Rule] = (), drop: Iterable[Rule] = (), timeout: float = 10.0
    ) -> None:
        """Add rules to a user and remove others, atomically; `*` means everyone. RemoteError user_not_found."""
        request = ChangeRulesRequest(name=name, add=tuple(add), drop=tuple(drop))
        await self._link.call(request, ChangeRulesResponse, timeout_s=timeout)

    async def may(
        self,
        name: str,
        operation: Operations | Operation,
        *,
        stream: str = "",
        subject: str = "",
        group: str = "",
        timeout: float = 10.0,
    ) -> TestAccessResponse:
        """Return whether a user has the permission, and the rule that decides. Nothing is executed."""
        request = TestAccessRequest(
            name=name, operation=Operation(operation), stream=stream, subject=subject, group=group
        )
        answer, _ = await self._link.call(request, TestAccessResponse, timeout_s=timeout)
        return answer
