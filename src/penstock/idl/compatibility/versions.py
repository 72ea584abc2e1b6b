"""Versions of declarations: which declaration of the new program is that of the old one.

Rules: declarations of one name in files that are versions of one another are one; so are those that took the place of
one another where they are used, and those of one shape of which the other version lacks the name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from penstock.idl.compatibility.rules import Changes
from penstock.idl.compatibility.text import like, lowered, noun
from penstock.idl.model import NOWHERE, Constant, Definition, Enum, Found, Program, Scope, Service, Struct, Typedef


class Pair(NamedTuple):
    """A declaration in both versions, and the programs that resolve the names in it."""

    old_program: Program
    old: Definition
    new_program: Program
    new: Definition


_REMOVED: tuple[tuple[type[Definition], str], ...] = (
    (Struct, "struct-removed"),
    (Constant, "constant-removed"),
    (Scope, "scope-removed"),
    (Service, "service-removed"),
)
_SORTS: tuple[type[Definition], ...] = (Constant, Scope, Service)

_Shape = tuple[object, ...]


class Versions:
    """Pairs of declarations of two programs, those first that the files name alike; each pair is given once."""

    def __init__(self, old: Program, new: Program, changes: Changes, *, only_reached: bool) -> None:
        self._new = new
        self._changes = changes
        self._only_reached = only_reached  # by the types that are compared: else all that both versions declare
        self._matched: dict[str, Program] = {}  # the new program by the file of the old one
        self._matched_back: dict[str, Program] = {}
        self._new_names = lowered(each.name for each in new.document.definitions)
        self._by_name: dict[Program, dict[tuple[type[object], str], Definition]] = {}
        self._pairs: deque[Pair] = deque()
        self._paired: set[tuple[str, str, str, str, object]] = set()
        self._paired_old: set[tuple[str, str, object]] = set()
        self._paired_new: set[int] = set()  # id() of declarations, which the programs keep
        self._gone: deque[Found] = deque()  # declarations whose name the new version lacks
        self._unclaimed: dict[_Shape, list[Found]] | None = None  # declarations that the old version lacks
        self._match_all(old, new)

    def pairs(self) -> Iterator[Pair]:
        """Yield pairs to compare, also those that are found meanwhile; then note what is gone or new."""
        while self._pairs or self._gone:
            if self._pairs:
                yield self._pairs.popleft()
                continue
            found = self._gone.popleft()
            if (found.program.document.file, found.definition.name, sort(found.definition)) not in self._paired_old:
                self._missing(found)

        if not self._only_reached:
            self._added()

    def version_of(self, old: Found) -> Definition | None:
        """Return the declaration of the same sort and name in the file that is the new version of its file."""
        new = self._matched.get(old.program.document.file)
        return None if new is None else self._declared(new).get((sort(old.definition), old.definition.name))

    def are_one(self, old: Found, new: Found) -> bool:
        """Say whether two declarations are versions of one: equally named, moved or renamed; compare them then."""
        was, now = old.definition, new.definition
        old_file, new_file = old.program.document.file, new.program.document.file
        if was.name == now.name and old_file not in self._matched and new_file not in self._matched_back:
            self._match_all(old.program, new.program)  # the include has another name
        there = self._stands_for(self._matched.get(old_file), was.name, now)
        back = self._stands_for(self._matched_back.get(new_file), now.name, was)
        if there or back:
            self._pair(old.program, was, new.program, now)
        elif there is None and back is None:
            self._moved(old, new)
        else:
            return False
        return True

    def _match_all(self, old: Program, new: Program) -> None:
        """Take two files for versions of one, and what both include under one name."""
        todo = deque([(old, new)])
        while todo:
            was, now = todo.popleft()
            if was.document.file in self._matched or now.document.file in self._matched_back:
                continue
            self._match(was, now)
            todo.extend((each, now.includes[name]) for name, each in was.includes.items() if name in now.includes)

    def _match(self, old: Program, new: Program) -> None:
        self._matched[old.document.file] = new
        self._matched_back[new.document.file] = old
        if self._only_reached:
            return
        self._namespaces(old, new)
        for was in old.document.definitions:
            now = self._declared(new).get((sort(was), was.name))
            if now is None:
                self._gone.append(Found(old, was))
            else:
                self._pair(old, was, new, now)

    def _pair(self, old_program: Program, old: Definition, new_program: Program, new: Definition) -> None:
        key = (old_program.document.file, old.name, new_program.document.file, new.name, sort(old))
        if key not in self._paired:
            self._paired.add(key)
            self._paired_old.add((old_program.document.file, old.name, sort(old)))
            self._paired_new.add(id(new))
            self._pairs.append(Pair(old_program, old, new_program, new))

    def _stands_for(self, program: Program | None, name: str, definition: Definition) -> bool | None:
        """Say whether a name of a file is this definition, or a typedef of it; None: the file declares no such."""
        found = self._declared(program).get((sort(definition), name)) if program is not None else None
        if found is None or program is None:
            return None
        if found is definition:
            return True
        return isinstance(found, Typedef) and program.resolve(found.type)[1] is definition

    def _declared(self, program: Program) -> dict[tuple[type[object], str], Definition]:
        """Return what a file declares, by sort and name: a scope may have the name of a type."""
        if program not in self._by_name:
            self._by_name[program] = {(sort(each), each.name): each for each in program.document.definitions}
        return self._by_name[program]

    def _moved(self, old: Found, new: Found) -> None:
        was, now = old.definition, new.definition
        self._pair(old.program, was, new.program, now)
        if was.name != now.name:
            self._changes.add(
                "declaration-renamed", was.name, f"{noun(was)} is {now.name} now", was.position, now.position
            )
        else:
            text = f"{noun(was)} is in {new.program.document.file} now"
            self._changes.add("declaration-moved", was.name, text, was.position, now.position)

    def _missing(self, gone: Found) -> None:
        """Report a declaration that no version of it was found for, unless it has moved or has another name."""
        was = gone.definition
        if self._unclaimed is None:
            self._unclaimed = self._only_new()
        for shape in _shapes(was):
            if candidates := self._unclaimed.get(shape):
                self._moved(gone, candidates.pop())
                return
        rule = next((rule for sort, rule in _REMOVED if isinstance(was, sort)), "type-removed")
        text = f"{noun(was)} is removed{like(was.name, self._new_names)}"
        self._changes.add(rule, was.name, text, was.position, NOWHERE)

    def _added(self) -> None:
        """Note what the files declare that have an old version, and the old version lacks."""
        for program in self._new.closure():
            if program.document.file not in self._matched_back:
                continue
            for each in program.document.definitions:
                if id(each) not in self._paired_new:
                    self._changes.add("declaration-added", each.name, f"{noun(each)} is added", NOWHERE, each.position)

    def _only_new(self) -> dict[_Shape, list[Found]]:
        """Return the declarations of the new version that are of no old one, by their shapes."""
        found: dict[_Shape, list[Found]] = {}
        for program in self._new.closure():
            old = self._matched_back.get(program.document.file)
            for each in program.document.definitions:
                if old is None or self._stands_for(old, each.name, each) is None:
                    for shape in _shapes(each):
                        found.setdefault(shape, []).append(Found(program, each))
        return found

    def _namespaces(self, old: Program, new: Program) -> None:
        was = {each.language: each for each in old.document.namespaces}
        now = {each.language: each for each in new.document.namespaces}
        for language in {**was, **now}:
            before, after = (each.get(language, each.get("*")) for each in (was, now))
            names = tuple(each.name if each else "(none)" for each in (before, after))
            if names[0] != names[1]:
                at = (each[language].position if language in each else NOWHERE for each in (was, now))
                self._changes.add("namespace-changed", language, f"namespace {names[0]} is {names[1]} now", *at)


def sort(definition: Definition) -> type[object]:
    """Return what can be versions of one another: all types are, as a typedef may stand for what was a struct."""
    return next((sort for sort in _SORTS if isinstance(definition, sort)), object)


def _shapes(definition: Definition) -> Iterator[_Shape]:
    """Yield what another version of a declaration would have in common with it: its name, else its fields or values."""
    yield sort(definition), definition.name
    if isinstance(definition, Struct) and definition.fields:
        yield definition.kind, tuple((each.id, each.name, each.type) for each in definition.fields)
    if isinstance(definition, Enum) and definition.values:
        yield Enum, tuple((each.number, each.name) for each in definition.values)
