"""`client.users` for programs without an event loop."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.access import Operation, Quotas, Rule
from penstock.access.users import EVERYBODY
from penstock.client import users
from penstock.client.threads import LoopThread
from penstock.client.users import Made, Operations
from penstock.messages import ListUsersResponse, TestAccessResponse, UserExport, UserInfo


class Users:
    """Who may log in to a cluster, and what they may do. What is changed counts on all live brokers on return."""

    def __init__(self, wrapped: users.Users, thread: LoopThread) -> None:
        self._users = wrapped
        self._thread = thread

    def all(self, *, timeout: float = 10.0) -> ListUsersResponse:
        """All users by name, and `*`, if everybody has rules; who is no administrator hears of himself."""
        return self._thread.run(self._users.all(timeout=timeout))

    def export(self, *, timeout: float = 10.0) -> list[UserExport]:
        """All that the cluster keeps of users, and of `*`, by name: of passwords and tokens what checks them.

        For administrators. NotAuthorized; RemoteError unsupported_version: the broker is older.
        """
        return self._thread.run(self._users.export(timeout=timeout))

    def get(self, name: str, *, timeout: float = 10.0) -> UserInfo | None:
        """One of them; None: there is none, or it is not for whoever asks."""
        return self._thread.run(self._users.get(name, timeout=timeout))

    def create(
        self,
        name: str,
        *credentials: Made,
        rules: Iterable[Rule] = (),
        quotas: Quotas | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Make a user. The first one needs the rule `admin`: from then on everybody has to log in.

        RemoteError user_exists, change_refused; NotAuthorized. ValueError: nobody can have that name.
        """
        self._thread.run(self._users.create(name, *credentials, rules=rules, quotas=quotas, timeout=timeout))

    def alter(
        self,
        name: str,
        *,
        add: Iterable[Made] = (),
        drop: Iterable[str] = (),
        quotas: Quotas | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Give a user credentials and take some away, by their ids, at once; or other quotas.

        Whoever has logged in with one that is gone has to log in anew. RemoteError user_not_found, change_refused.
        """
        self._thread.run(self._users.alter(name, add=add, drop=drop, quotas=quotas, timeout=timeout))

    def delete(self, name: str, *, timeout: float = 10.0) -> None:
        """Delete a user, and its rules. RemoteError user_not_found, change_refused: the last administrator stays."""
        self._thread.run(self._users.delete(name, timeout=timeout))

    def change_rules(
        self, name: str = EVERYBODY, *, add: Iterable[Rule] = (), drop: Iterable[Rule] = (), timeout: float = 10.0
    ) -> None:
        """Give a user rules and take some away, at once; `*` is everybody. RemoteError user_not_found."""
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
        """Whether a user may do that, and which rule says so. Nothing is done."""
        asked = self._users.may(name, operation, stream=stream, subject=subject, group=group, timeout=timeout)
        return self._thread.run(asked)
