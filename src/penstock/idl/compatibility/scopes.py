"""Scopes of two versions: their subjects, their messages, and the streams and keys that annotations name."""

from __future__ import annotations

from penstock.idl.compatibility.rules import Changes
from penstock.idl.compatibility.structs import marked_keys
from penstock.idl.compatibility.text import like, lowered
from penstock.idl.compatibility.types import Types
from penstock.idl.compatibility.versions import Pair
from penstock.idl.model import Operation, Program, Scope, Struct
from penstock.idl.streams import annotation, said


class Scopes:
    """Comparison of scopes."""

    def __init__(self, changes: Changes, types: Types) -> None:
        self._changes = changes
        self._types = types

    def compare(self, pair: Pair, was: Scope, now: Scope) -> None:
        at = was.position, now.position
        if _subject_shape(was) != _subject_shape(now):
            text = f"prefix {was.prefix or '(none)'} is {now.prefix or '(none)'} now"
            self._changes.add("scope-prefix-changed", was.name, text, *at)
        else:
            self._variables(was, now)
        by_name = {each.name: each for each in now.operations}
        by_small_letters = lowered(by_name)
        for operation in was.operations:
            subject = f"{was.name}.{operation.name}"
            other = by_name.get(operation.name)
            if other is None:
                text = f"operation is removed{like(operation.name, by_small_letters)}"
                self._changes.add("operation-removed", subject, text, operation.position, now.position)
                continue
            found = self._types.change(pair.old_program, operation.type, pair.new_program, other.type)
            if found is not None:
                self._changes.add(found.rule, subject, f"message: {found.text}", operation.position, other.position)
            self._stored(subject, (was, operation), (now, other))
            self._operation_keys(subject, pair, operation, other)
        known = {each.name for each in was.operations}
        for added in now.operations:
            if added.name not in known:
                subject = f"{now.name}.{added.name}"
                self._changes.add("operation-added", subject, "operation is added", was.position, added.position)

    def _variables(self, was: Scope, now: Scope) -> None:
        """Compare the names of equally many variables: one that has another place takes the value of another."""
        changed = [(old, new) for old, new in zip(was.variables, now.variables, strict=False) if old != new]
        if any(old in now.variables or new in was.variables for old, new in changed):
            text = f"variables {', '.join(was.variables)} are {', '.join(now.variables)} now"
            self._changes.add("scope-variables-exchanged", was.name, text, was.position, now.position)
            return
        for old, new in changed:
            text = f"variable {old} is {new} now"
            self._changes.add("scope-variable-renamed", was.name, text, was.position, now.position)

    def _stored(self, subject: str, old: tuple[Scope, Operation], new: tuple[Scope, Operation]) -> None:
        """Compare the streams that store the messages of an operation."""
        at = old[1].position, new[1].position
        was, now = (said(*each, "stream") for each in (old, new))
        if was != now:
            rule = "operation-stream-changed" if was else "operation-stream-added"
            self._changes.add(rule, subject, f"stream {was or '(none)'} is {now or '(none)'} now", *at)

    def _operation_keys(self, subject: str, pair: Pair, was: Operation, now: Operation) -> None:
        """Compare the keys of two operations of which one at least names it; else their structs say what changed."""
        if annotation(was.annotations, "key") is None and annotation(now.annotations, "key") is None:
            return
        before, after = _key_of(pair.old_program, was), _key_of(pair.new_program, now)
        if before != after:
            text = f"key {before or '(none)'} is {after or '(none)'} now"
            self._changes.add("key-changed", subject, text, was.position, now.position)


def _key_of(program: Program, operation: Operation) -> str:
    """Return the key that an operation names, else the fields that its struct marks."""
    if (named := annotation(operation.annotations, "key")) is not None:
        return named
    struct = program.resolve(operation.type)[1]
    return ", ".join(each.name for each in marked_keys(struct.fields).values()) if isinstance(struct, Struct) else ""


def _subject_shape(scope: Scope) -> tuple[str, ...]:
    return tuple("{}" if token.startswith("{") else token for token in scope.prefix.split("."))
