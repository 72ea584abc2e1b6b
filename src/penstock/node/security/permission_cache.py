"""Permission cache of one user: decisions are kept until the user's rules change.

Rules: the cache is keyed by the rules themselves, so changes of other users or of credentials do not affect it. A
stream keeps its name for life, but not its subjects, so a decision is cached by stream id and subjects. The cache is
bounded; a decision that was dropped is made again.
"""

from __future__ import annotations

from bisect import bisect_left

from penstock.access import Operation, Rule
from penstock.access.rules import OF_CLUSTER, Scope, is_admin, may_monitor, name_matches, scope
from penstock.base import limits
from penstock.groups.rows import OFFSETS_STREAM
from penstock.metadata.image import ClusterImage, StreamState
from penstock.schemas.rows import SCHEMAS_STREAM

_Rules = tuple[Rule, ...]
_SHOWS = tuple(one for one in Operation if one not in OF_CLUSTER)  # operations of which one makes a stream visible


class PermissionCache:
    """The permissions of one user, by its own rules and those for every user."""

    def __init__(self, own: _Rules, of_all: _Rules) -> None:
        self._own, self._of_all = own, of_all
        self.rules = (*own, *of_all)
        self.is_admin = is_admin(self.rules)
        self.may_monitor = may_monitor(self.rules)
        by_operation = {one: tuple(rule for rule in self.rules if rule.operation is one) for one in _SHOWS}
        self._by_operation: dict[Operation, _Rules] = {one: rules for one, rules in by_operation.items() if rules}
        self.has_groups = Operation.COMMIT_OFFSETS in self._by_operation or Operation.READ in self._by_operation
        self.registers = Operation.REGISTER in self._by_operation
        # Internal streams that hold something for this user: groups; schemas of the streams that it sees.
        self._shared = frozenset(
            ({OFFSETS_STREAM} if self.has_groups else set()) | ({SCHEMAS_STREAM} if self._by_operation else set())
        )
        self._scopes: dict[tuple[Operation, int, tuple[str, ...]], Scope] = {}
        self._is_seen: dict[tuple[int, tuple[str, ...]], bool] = {}
        self._names: tuple[object, list[str]] = (None, [])  # visible names of one image

    def goes_by(self, own: _Rules, of_all: _Rules) -> bool:
        """True if these are its rules; compared by identity."""
        return own is self._own and of_all is self._of_all

    def scope(self, operation: Operation, state: StreamState) -> Scope:
        """Return how far an operation is allowed on a stream, for any group."""
        key = (operation, state.stream_id, state.config.held_subjects)
        found = self._scopes.get(key)
        if found is None:
            if len(self._scopes) >= limits.PERMISSION_CACHE_STREAMS_MAX:
                self._scopes.clear()
            found = self._scopes[key] = self.scope_of(operation, state.name, key[-1])
        return found

    def scope_of(self, operation: Operation, name: str, subjects: tuple[str, ...], group: str | None = None) -> Scope:
        """Return the same for a stream that may not exist yet; uncached."""
        if self.is_admin:
            return Scope(is_all=True)
        return scope(self._by_operation.get(operation, ()), operation, name, subjects, group=group)

    def commits(self, group: str) -> bool:
        """True if the user may commit offsets of any stream for the group."""
        rules = self._by_operation.get(Operation.COMMIT_OFFSETS, ())
        return self.is_admin or any(name_matches(rule.group, group) for rule in rules)

    def sees(self, state: StreamState) -> bool:
        """True if the user has any permission on the stream, or may monitor the cluster."""
        if self.may_monitor:
            return True
        key = (state.stream_id, state.config.held_subjects)
        found = self._is_seen.get(key)
        if found is None:
            if len(self._is_seen) >= limits.PERMISSION_CACHE_STREAMS_MAX:
                self._is_seen.clear()
            is_shared = state.name in self._shared
            found = is_shared or any(self.scope_of(one, state.name, key[-1]) for one in self._by_operation)
            self._is_seen[key] = found
        return found

    def seen_names(self, image: ClusterImage, names: list[str]) -> list[str]:
        """Return those of an image's sorted stream names on which the user has any permission, sorted."""
        if self._names[0] is not image.names:
            self._names = (image.names, sorted(self._seen(image, names)))
        return self._names[1]

    def _seen(self, image: ClusterImage, names: list[str]) -> set[str]:
        if self.may_monitor:
            return set(names)
        found = {name for name in self._shared if name in image.names}
        for rule in self.rules:
            if rule.subject:
                return {name for name in names if self.sees(image.by_name(name))}  # that applies all rules
            if rule.stream.endswith("*"):
                beginning = rule.stream[:-1]
                begin = bisect_left(names, beginning)
                end = bisect_left(names, beginning + "\U0010ffff") if beginning else len(names)
                found.update(name for name in names[begin:end] if not name.startswith("__"))
            elif rule.stream in image.names:
                found.add(rule.stream)
        return found
