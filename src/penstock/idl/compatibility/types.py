"""Types where they are used: how they differ on the wire, through typedefs and includes."""

from __future__ import annotations

from typing import NamedTuple

from penstock.idl.compatibility.rules import Changes
from penstock.idl.compatibility.text import noun, type_text
from penstock.idl.compatibility.versions import Pair, Versions
from penstock.idl.model import (
    Enum,
    Found,
    ListOf,
    MapOf,
    Program,
    Reference,
    Scalar,
    ScalarKind,
    SetOf,
    Struct,
    Type,
    Typedef,
)


class TypeChange(NamedTuple):
    """The id of a rule, and what was and is."""

    rule: str
    text: str


class Types:
    """Comparison of types; each pair of types is compared once."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._known: dict[tuple[str, Type, str, Type], TypeChange | None] = {}

    def change(self, old_program: Program, old: Type, new_program: Program, new: Type) -> TypeChange | None:
        """Return how a type differs on the wire; None: it does not, or where it is declared says so."""
        key = (old_program.document.file, old, new_program.document.file, new)
        if key not in self._known:
            self._known[key] = self._resolved_change(old_program, old, new_program, new)
        return self._known[key]

    def _resolved_change(self, old_program: Program, old: Type, new_program: Program, new: Type) -> TypeChange | None:
        if isinstance(old, Reference) and isinstance(new, Reference):
            before, after = old_program.find(old.name), new_program.find(new.name)
            if before and after and _are_one_typedef(before, after) and self._versions.are_one(before, after):
                return None  # the typedef says what has changed
        text = f"{type_text(old)} is {type_text(new)} now"
        was_in, was = old_program.resolve(old)
        now_in, now = new_program.resolve(new)
        rule = None
        match was, now:
            case (Scalar(), Scalar()):
                rule = _rule_scalars(was.kind, now.kind)
            case (ListOf() | SetOf() | MapOf(), ListOf() | SetOf() | MapOf()) if type(was) is type(now):
                return self._parts_change(was_in, _parts(was), now_in, _parts(now), text)
            case (Enum() | Struct(), Enum() | Struct()) if type(was) is type(now):
                rule = None if self._versions.are_one(Found(was_in, was), Found(now_in, now)) else "type-replaced"
            case (Scalar(kind=ScalarKind.I32), Enum()):
                rule = "integer-became-enum"
            case (Enum(), Scalar(kind=ScalarKind.I32)):
                rule = "enum-became-integer"
            case _:
                rule = "type-changed"
        return None if rule is None else TypeChange(rule, text)

    def _parts_change(
        self,
        old_program: Program,
        old: tuple[Type, ...],
        new_program: Program,
        new: tuple[Type, ...],
        text: str,
    ) -> TypeChange | None:
        for was, now in zip(old, new, strict=True):
            found = self.change(old_program, was, new_program, now)
            if found is not None:
                return TypeChange(found.rule, text)
        return None


def compare_typedefs(changes: Changes, types: Types, pair: Pair) -> None:
    """Compare two declarations of types of which one at least is a typedef."""
    was, now = pair.old, pair.new
    old = was.type if isinstance(was, Typedef) else Reference(was.name)
    new = now.type if isinstance(now, Typedef) else Reference(now.name)
    found = types.change(pair.old_program, old, pair.new_program, new)
    if found is not None:
        changes.add(found.rule, was.name, f"{noun(was)}: {found.text}", was.position, now.position)


def _are_one_typedef(old: Found, new: Found) -> bool:
    was, now = old.definition, new.definition
    return isinstance(was, Typedef) and isinstance(now, Typedef) and was.name == now.name


def _parts(type_: ListOf | SetOf | MapOf) -> tuple[Type, ...]:
    return (type_.key, type_.value) if isinstance(type_, MapOf) else (type_.element,)


def _rule_scalars(old: ScalarKind, new: ScalarKind) -> str | None:
    if old is new:
        return None
    return "text-bytes-changed" if {old, new} == {ScalarKind.STRING, ScalarKind.BINARY} else "type-changed"
