"""Comparison of two programs: gives each pair of declarations to what compares their kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.idl.compatibility.constants import compare_constants
from penstock.idl.compatibility.enums import compare_enums
from penstock.idl.compatibility.rules import Change, Changes
from penstock.idl.compatibility.scopes import Scopes
from penstock.idl.compatibility.services import Services
from penstock.idl.compatibility.structs import Structs
from penstock.idl.compatibility.text import type_text
from penstock.idl.compatibility.types import Types, compare_typedefs
from penstock.idl.compatibility.versions import Versions
from penstock.idl.model import NOWHERE, Constant, Enum, Program, Reference, Scope, Service, Struct, Type


class Against(NamedTuple):
    """A change, and the version that it differs from: an index into the versions that were compared."""

    version: int
    change: Change


def compare(old: Program, new: Program) -> list[Change]:
    """Return what changed between two versions of a file and its includes, in the order of the old file."""
    return _Comparison(old, new).run()


def compare_types(old: Program, old_type: Type, new: Program, new_type: Type) -> list[Change]:
    """Return what changed in the values of a type: in it, and in all types that it is made of, and in nothing else.

    The types are written as in the programs' files: `Reference("Order")`. That one type is another is a change whose
    subject is the type.
    """
    return _Comparison(old, new, only_reached=True).run_types(old_type, new_type)


def compare_all(versions: Sequence[Program]) -> list[Against]:
    """Compare the last version with each older one (transitively); a change is listed once, with its latest version.

    `versions`: oldest first. An id that version 1 had, 2 lacks and 3 uses for something else is found only so.
    """
    found: dict[tuple[str, str, str], Against] = {}
    for version in range(len(versions) - 2, -1, -1):
        for change in compare(versions[version], versions[-1]):
            found.setdefault((change.rule.id, change.subject, change.text), Against(version, change))
    return list(found.values())


class _Comparison:
    """One run; each pair of declarations is compared once."""

    def __init__(self, old: Program, new: Program, *, only_reached: bool = False) -> None:
        self._root = old, new
        self._changes = Changes()
        self._versions = Versions(old, new, self._changes, only_reached=only_reached)
        self._types = Types(self._versions)
        self._structs = Structs(self._changes, self._types)
        self._scopes = Scopes(self._changes, self._types)
        self._services = Services(self._changes, self._versions, self._types, self._structs)

    def run(self) -> list[Change]:
        for pair in self._versions.pairs():
            match pair.old, pair.new:
                case (Struct() as was, Struct() as now):
                    self._structs.compare(pair, was, now)
                case (Enum() as was, Enum() as now):
                    compare_enums(self._changes, was, now)
                case (Constant() as was, Constant() as now):
                    compare_constants(self._changes, self._types, pair, was, now)
                case (Scope() as was, Scope() as now):
                    self._scopes.compare(pair, was, now)
                case (Service() as was, Service() as now):
                    self._services.compare(pair, was, now)
                case _:
                    compare_typedefs(self._changes, self._types, pair)
        return self._changes.in_order()

    def run_types(self, old: Type, new: Type) -> list[Change]:
        was, now = self._root
        found = self._types.change(was, old, now, new)
        if found is not None:
            at = (each.position if isinstance(each, Reference) else NOWHERE for each in (old, new))
            self._changes.add(found.rule, type_text(old), found.text, *at)
        return self.run()
