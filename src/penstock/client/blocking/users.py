"""`client.users` of the blocking client."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.access import Operation, Quotas, Rule
from penstock.access.users import EVERYBODY
from penstock.client import users
from penstock.client.blocking.threads import LoopThread
from penstock.client.users import NewCredential, Operations
from penstock.messages import ListUsersResponse, TestAccessResponse, UserExport, UserInfo


class Users:
    """Manages users, credentials, rules and quotas. Changes are in effect on all live brokers on return."""

    def __init__(self, wrapped: users.Users, thread: LoopThread) -> None:
        self._users = wrapped
        self._thread = thread

    def all(self, *, timeout: float = 10.0) -> ListUsersResponse:
        """Return all users by name, and `*` if there are rules for everyone; a non-administrator gets only itself."""
        return self._thread.run(self._users.all(timeout=timeout))

    def export(self, *, timeout: float = 10.0) -> list[UserExport]:
        """Return everything the cluster stores of users, and of `*`, by name; of passwords and tokens the verifiers.

        Administrators only. NotAuthorized; RemoteError unsupported_version: the broker is older.
        """
        return self._thread.run(self._users.export(timeout=timeout))

    def get(self, name: str, *, timeout: float = 10.0) -> UserInfo | None:
        """Return one user; None: it does not exist, or the caller may not see it."""
        return self._thread.run(self._users.get(name, timeout=timeout))

    def create(
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
        self._thread.run(self._users.create(name, *credentials, rules=rules, quotas=quotas, timeout=timeout))

    def alter(
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
        self._thread.run(self._users.alter(name, add=add, drop=drop, quotas=quotas, timeout=timeout))

    def delete(self, name: str, *, timeout: float = 10.0) -> None:
        """Delete a user and its rules. RemoteError user_not_found; change_refused: it is the last administrator."""
        self._thread.run(self._users.delete(name, timeout=timeout))

    def change_rules(
        self, name: str = EVERYBODY, *, add: Iterable[Rule] = (), drop: Iterable[Rule] = (), timeout: float = 10.0
    ) -> None:
        """Add rules to a user and remove others, atomically; `*` means everyone. RemoteError user_not_found."""
        self._thread.run(self._users.change_rules(name, add=add, drop=drop, timeout=timeout))

    def may(
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
        asked = self._users.may(name, operation, stream=stream, subject=subject, group=group, timeout=timeout)
        return self._thread.run(asked)
