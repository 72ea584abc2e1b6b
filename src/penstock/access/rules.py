"""Permission rules: each allows one operation on the streams or subjects of a pattern.

Rules: what no rule allows is denied; no rule denies, so their order does not matter. A rule on streams has a pattern of
names: a name, a prefix such as `orders-*`, or `*` for all. A rule on subjects has a NATS pattern (`orders.>`) and
applies to those subjects only: to a stream all of whose subjects match, and in other streams to the rows whose subjects
match, if the request names those subjects. A subject that was removed from a stream still counts as one of it, because
its messages may be there. `admin` allows everything; `monitor` and `admin` name no stream.

| operation        | allows                                                                         |
|------------------|--------------------------------------------------------------------------------|
| `read`           | reading messages and offsets                                                   |
| `append`         | appending rows over the socket, staged or not (for NATS use its permissions)   |
| `create`         | creating streams; by subjects only, since a stream stores what comes there     |
| `alter`          | changing config, partitions and intake                                         |
| `delete`         | deleting the stream, or its oldest messages                                    |
| `commit_offsets` | consumer groups: offsets and members; archives: their reports; consumers of    |
|                  | JetStream's API, as the groups `consumer:NAME`: create, pause, reset, delete   |
| `register`       | registering schemas that are compatible; with `alter`: others, forgetting them |
| `monitor`        | seeing the state of brokers, all streams and groups; no messages, no changes   |
| `admin`          | all of this, users, rules, and the state of brokers                            |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from penstock.base import limits
from penstock.base.subjects import (
    begins_with_wildcard,
    is_reserved,
    is_within,
    overlap,
    stream_name_mistake,
    subject_mistake,
)

EVERYTHING = "*"
"""The pattern that matches every name."""


class Operation(StrEnum):
    """Operations that rules allow."""

    READ = "read"
    APPEND = "append"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    COMMIT_OFFSETS = "commit_offsets"
    REGISTER = "register"
    MONITOR = "monitor"
    ADMIN = "admin"


OF_CLUSTER = frozenset({Operation.MONITOR, Operation.ADMIN})
"""Operations on the cluster: their rules have no stream, subject or group."""


class Rule(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, order=True):
    """One permission. It names either `stream` or `subject`; for `monitor` and `admin` neither.

    `group`: pattern of consumer group names; only for `commit_offsets`.
    """

    operation: Operation
    stream: str = ""
    subject: str = ""
    group: str = EVERYTHING

    def __str__(self) -> str:
        if self.operation in OF_CLUSTER:
            return str(self.operation)
        where = f"stream {self.stream}" if self.stream else f"subject {self.subject}"
        group = "" if self.group == EVERYTHING else f" group {self.group}"
        return f"{self.operation} on {where}{group}"


def rule_mistake(rule: Rule) -> str | None:
    """Return why the rule is invalid; None if it is valid."""
    if rule.operation in OF_CLUSTER:
        is_bare = not (rule.stream or rule.subject) and rule.group == EVERYTHING
        return None if is_bare else f"{rule.operation} is for the whole cluster: it has no stream, subject or group"
    if rule.operation is Operation.CREATE and not rule.subject:
        return "create is allowed on subjects, whatever the name: a stream stores what is published on its subjects"
    if bool(rule.stream) == bool(rule.subject):
        return f"{rule.operation} is allowed on a stream or on a subject: give one of them"
    if rule.group != EVERYTHING and rule.operation is not Operation.COMMIT_OFFSETS:
        return f"{rule.operation} takes no group; only commit_offsets does"
    if (mistake := _name_pattern_mistake(rule.group)) is not None:
        return mistake
    if rule.subject:
        return subject_mistake(rule.subject, wildcards=True)
    return _name_pattern_mistake(rule.stream) or _stream_pattern_mistake(rule.stream)


def _name_pattern_mistake(pattern: str) -> str | None:
    if len(pattern) > limits.STREAM_NAME_CHARS_MAX:
        return f"the pattern is {len(pattern)} characters long; the limit is {limits.STREAM_NAME_CHARS_MAX}"
    if not pattern or "*" in pattern[:-1] or any(char.isspace() or not char.isprintable() for char in pattern):
        return f"the pattern {pattern!r} is neither a name, nor a beginning with a * behind it, nor * for all"
    return None


def _stream_pattern_mistake(pattern: str) -> str | None:
    beginning = pattern.removesuffix(EVERYTHING)
    if not beginning or stream_name_mistake(beginning) is None:
        return None
    text = f"no stream has such a name as {pattern!r}: those are of letters, digits, - and _"
    return f"{text}; a pattern of subjects is given as one" if "." in pattern else text


def name_matches(pattern: str, name: str) -> bool:
    """True if the name matches the pattern. Names that begin with `__` (Penstock's own) match only in full."""
    if pattern.endswith("*") and not name.startswith("__"):
        return name.startswith(pattern[:-1])
    return name == pattern


def refused_subject(subjects: Iterable[str], patterns: tuple[str, ...]) -> str | None:
    """Return the first subject that matches none of the patterns; None if all match one."""
    one_of = re.compile("|".join(map(_expression, patterns)) or r"(?!)")
    return next((subject for subject in subjects if one_of.fullmatch(subject) is None), None)


def _expression(pattern: str) -> str:
    parts = {"*": r"[^.]+", ">": r".+"}
    return r"\.".join(parts.get(token, re.escape(token)) for token in pattern.split("."))


class Scope(msgspec.Struct, frozen=True):
    """Extent of a permission: a whole stream, some of its subjects, or nothing."""

    is_all: bool = False
    subjects: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.is_all or bool(self.subjects)

    def covers(self, subjects: tuple[str, ...] | None) -> bool:
        """True if a request about these subjects is allowed; None: about all subjects."""
        if self.is_all:
            return True
        if not subjects:
            return False
        return all(any(is_within(one, pattern) for pattern in self.subjects) for one in subjects)


def scope(
    rules: tuple[Rule, ...],
    operation: Operation,
    stream: str,
    subjects: tuple[str, ...],
    *,
    group: str | None = None,
) -> Scope:
    """Return how far the rules allow an operation on a stream with these subjects; `group`: for that group only.

    Several rules may cover the subjects together.
    """
    some: list[str] = []
    left = set(subjects)
    for rule in rules:
        if rule.operation is Operation.ADMIN:
            return Scope(is_all=True)
        if rule.operation is not operation or (group is not None and not name_matches(rule.group, group)):
            continue
        if rule.stream:
            if name_matches(rule.stream, stream):
                return Scope(is_all=True)
            continue
        is_wide = begins_with_wildcard(rule.subject)
        # a leading wildcard matches no reserved subject, in streams neither
        near = [one for one in subjects if overlap(one, rule.subject) and not (is_wide and is_reserved(one))]
        if near:
            some.append(rule.subject)
            left.difference_update(one for one in near if is_within(one, rule.subject))
            if not left:
                return Scope(is_all=True)
    return Scope(subjects=tuple(some))


def may_monitor(rules: tuple[Rule, ...]) -> bool:
    """True if the rules allow to see the state of brokers, all streams and all groups."""
    return any(rule.operation in OF_CLUSTER for rule in rules)


def is_admin(rules: tuple[Rule, ...]) -> bool:
    """True if the rules allow everything."""
    return any(rule.operation is Operation.ADMIN for rule in rules)
