"""Checks of a linked program: what each name means, and that types, constants, services and scopes make sense.

Rules: all mistakes of all files are noted. Whatever files say, no check recurses deeper than NESTING_MAX and none takes
time beyond the product of what is written and NESTING_MAX: typedefs, constants and services are followed in the order
in which they need each other.

| what                | rule                                                                                      |
|---------------------|-------------------------------------------------------------------------------------------|
| the name of a type  | a typedef, enum, struct, union or exception of this file or of an included one            |
| typedef             | not itself                                                                                |
| any type            | not deeper than NESTING_MAX nor larger than TYPE_PARTS_MAX, with its typedefs written out |
| struct              | a value can end: not itself through required fields (Thrift allows it, and never decodes) |
| keys and sets       | any type, as in Thrift; a language may refuse those that it cannot hash                   |
| constant, default   | see `constants`                                                                           |
| service             | extends a service, not itself; no method twice, those that it inherits included           |
| `throws`            | exceptions                                                                                |
| operation           | any type; its stream, key and split: see `streams`                                        |
| annotation          | its value: see `annotations`                                                              |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.idl import graphs
from penstock.idl.annotations import check_values
from penstock.idl.constants import Constants
from penstock.idl.mistakes import Mistakes
from penstock.idl.model import (
    Constant,
    Enum,
    Field,
    ListOf,
    MapOf,
    Method,
    Program,
    Reference,
    Requiredness,
    Scope,
    Service,
    SetOf,
    Struct,
    StructKind,
    Type,
    Typedef,
)
from penstock.idl.parser import NESTING_MAX
from penstock.idl.streams import check_streams

TYPE_PARTS_MAX = 1_000
"""Most parts of one type, with the typedefs in it written out: a tower of `map<T, T>` doubles with each typedef."""
EXTENDS_MAX = 32
"""Longest chain of services that extend each other."""

Key = tuple[str, str]
"""A definition of a program: its file and name."""


def check(program: Program, mistakes: Mistakes) -> None:
    """Check a program and all that it includes."""
    check_all(list(program.closure()), mistakes)


def check_all(programs: list[Program], mistakes: Mistakes, contradictions: Mistakes | None = None) -> None:
    """Check programs, among which are those that they include; `contradictions`: takes those of annotations."""
    types = _Types(mistakes)
    types.check(programs)
    if mistakes:
        return  # what follows relies on types that there are
    _Services(mistakes).check(programs)
    Constants(mistakes).check(programs)
    of_annotations = mistakes if contradictions is None else contradictions
    check_values(programs, of_annotations)
    check_streams(programs, of_annotations)


def references(type_: Type) -> Iterator[Reference]:
    """Yield the names in a type."""
    if isinstance(type_, Reference):
        yield type_
    elif isinstance(type_, ListOf | SetOf):
        yield from references(type_.element)
    elif isinstance(type_, MapOf):
        yield from references(type_.key)
        yield from references(type_.value)


@dataclass(frozen=True, slots=True)
class _Size:
    """Depth of a type, and the number of its parts."""

    depth: int
    parts: int

    def inside(self, other: _Size | None = None) -> _Size:
        """Return the size of a container or typedef of a type, or of a map of two."""
        other = other or _Size(0, 0)
        return _Size(1 + max(self.depth, other.depth), min(1 + self.parts + other.parts, TYPE_PARTS_MAX + 1))

    def mistake(self) -> str | None:
        if self.depth > NESTING_MAX:
            return f"is nested more than {NESTING_MAX} deep: the containers and typedefs in it count"
        if self.parts > TYPE_PARTS_MAX:
            return f"has more than {TYPE_PARTS_MAX:,} parts when the typedefs in it are written out"
        return None


class _Types:
    """Check of the names of types, and of their depth."""

    def __init__(self, mistakes: Mistakes) -> None:
        self._mistakes = mistakes
        self._sizes: dict[Key, _Size] = {}  # of typedefs

    def check(self, programs: list[Program]) -> None:
        for program in programs:
            for type_ in _types_of(program):
                for reference in references(type_):
                    self._reference(program, reference)
        if self._mistakes:
            return
        self._typedefs(programs)
        if self._mistakes:
            return
        for program in programs:
            for type_ in _types_of(program):
                self._use(program, type_)
        if not self._mistakes:
            self._endless(programs)

    def _reference(self, program: Program, reference: Reference) -> None:
        found = program.find(reference.name)
        if found is None:
            self._mistakes.add(reference.position, _nothing(program, reference.name, "type"))
        elif not isinstance(found.definition, Typedef | Enum | Struct):
            text = f'"{reference.name}" is {_sort(found.definition)}, and a type is expected'
            self._mistakes.add(reference.position, text)

    def _typedefs(self, programs: list[Program]) -> None:
        """Find typedefs that mean themselves, and compute how deep the others are."""
        places: dict[Key, tuple[Program, Typedef]] = {}
        needs: dict[Key, list[Key]] = {}
        for program in programs:
            for each in program.document.types:
                if isinstance(each, Typedef):
                    key = (program.document.file, each.name)
                    places[key] = program, each
                    named = (_key(program, reference) for reference in references(each.type))
                    needs[key] = [one for one in named if one is not None]
        order, cycles = graphs.sort(needs)
        for cycle in cycles:
            names = graphs.cycle_text([name for _, name in cycle], "is")
            self._mistakes.add(places[cycle[0]][1].position, f"the type means itself: {names}")
        for key in order if not cycles else ():
            program, each = places[key]
            size = self._size(program, each.type).inside()
            if (text := size.mistake()) is not None:
                self._mistakes.add(each.position, f'"{each.name}" {text}')
                size = _Size(1, 1)  # told once
            self._sizes[key] = size

    def _use(self, program: Program, type_: Type) -> None:
        if (text := self._size(program, type_).mistake()) is not None:
            place = next(references(type_), Reference("")).position
            self._mistakes.add(place, f"the type {text}")

    def _size(self, program: Program, type_: Type) -> _Size:
        """Return how large a type is with the typedefs in it written out."""
        if isinstance(type_, ListOf | SetOf):
            return self._size(program, type_.element).inside()
        if isinstance(type_, MapOf):
            return self._size(program, type_.key).inside(self._size(program, type_.value))
        key = _key(program, type_) if isinstance(type_, Reference) else None
        return _Size(1, 1) if key is None else self._sizes[key]

    def _endless(self, programs: list[Program]) -> None:
        """Find structs whose values cannot end, since their required fields need the struct itself."""
        fields: dict[tuple[Key, Key], Field] = {}
        needs: dict[Key, list[Key]] = {}
        for program in programs:
            for struct in program.document.types:
                if not isinstance(struct, Struct):
                    continue
                key = (program.document.file, struct.name)
                needs[key] = []
                for each in struct.fields:
                    owner, type_ = program.resolve(each.type)
                    if each.requiredness is Requiredness.REQUIRED and isinstance(type_, Struct):
                        needed = (owner.document.file, type_.name)
                        needs[key].append(needed)
                        fields.setdefault((key, needed), each)
        for cycle in graphs.sort(needs)[1]:
            names = graphs.cycle_text([name for _, name in cycle], "needs")
            field = fields[cycle[0], cycle[1 % len(cycle)]]
            self._mistakes.add(field.position, f"no value could end: {names}; make one of these fields optional")


class _Services:
    """Check of what services extend, and of what their methods throw."""

    def __init__(self, mistakes: Mistakes) -> None:
        self._mistakes = mistakes

    def check(self, programs: list[Program]) -> None:
        services: dict[Key, tuple[Program, Service]] = {}
        needs: dict[Key, list[Key]] = {}
        for program in programs:
            for service in program.document.services:
                key = (program.document.file, service.name)
                services[key] = program, service
                needs[key] = self._extended(program, service)
                for method in service.methods:
                    self._throws(program, method)
        order, cycles = graphs.sort(needs)
        for cycle in cycles:
            names = graphs.cycle_text([name for _, name in cycle], "extends")
            self._mistakes.add(services[cycle[0]][1].position, f"the service extends itself: {names}")
        if not cycles:
            self._inherited(services, needs, order)

    def _extended(self, program: Program, service: Service) -> list[Key]:
        if service.extends is None:
            return []
        found = program.find(service.extends.name)
        if found is not None and isinstance(found.definition, Service):
            return [(found.program.document.file, found.definition.name)]
        if found is None:
            text = _nothing(program, service.extends.name, "service")
        else:
            text = f'"{service.extends.name}" is {_sort(found.definition)}, and a service is expected'
        self._mistakes.add(service.extends.position, text)
        return []

    def _throws(self, program: Program, method: Method) -> None:
        for each in method.exceptions:
            _, type_ = program.resolve(each.type)
            if not isinstance(type_, Struct) or type_.kind is not StructKind.EXCEPTION:
                self._mistakes.add(each.position, f'"{method.name}" throws "{each.name}", whose type is no exception')

    def _inherited(
        self, services: dict[Key, tuple[Program, Service]], needs: dict[Key, list[Key]], order: list[Key]
    ) -> None:
        """Find methods that a service inherits already, and chains that are too long."""
        methods = {key: {_lower(each.name): each for each in service.methods} for key, (_, service) in services.items()}
        chains: dict[Key, tuple[Key, ...]] = {}  # what a service extends, from the nearest on
        for key in order:
            chain = tuple(one for needed in needs[key] for one in (needed, *chains[needed]))
            service = services[key][1]
            if len(chain) > EXTENDS_MAX:
                text = f'"{service.name}" extends a chain of more than {EXTENDS_MAX} services, the most'
                self._mistakes.add(service.position, text)
                chain = ()
            chains[key] = chain
            for name, method in methods[key].items():
                other = next((one for one in chain if name in methods[one]), None)
                if other is not None:
                    text = f'"{service.name}" inherits "{methods[other][name].name}" from "{other[1]}" already'
                    self._mistakes.add(method.position, text)


def _types_of(program: Program) -> Iterator[Type]:
    """Yield each type that a file writes."""
    for each in program.document.definitions:
        if isinstance(each, Typedef | Constant):
            yield each.type
        elif isinstance(each, Struct):
            yield from (one.type for one in each.fields)
        elif isinstance(each, Scope):
            yield from (one.type for one in each.operations)
        elif isinstance(each, Service):
            for method in each.methods:
                yield from (() if method.returns is None else (method.returns,))
                yield from (one.type for one in (*method.arguments, *method.exceptions))


def _key(program: Program, reference: Reference) -> Key | None:
    """Return the typedef that a name means, if it is one."""
    found = program.find(reference.name)
    if found is None or not isinstance(found.definition, Typedef):
        return None
    return found.program.document.file, found.definition.name


def _nothing(program: Program, name: str, sort: str) -> str:
    """Return what to say of a name that means nothing."""
    file, _, rest = name.rpartition(".")
    if not file:
        return f'there is no {sort} "{name}" in this file; of another file it is named "file.{name}"'
    included = program.includes.get(file)
    if included is None:
        return f'there is no {sort} "{name}": this file includes no "{file}"'
    return f'there is no {sort} "{rest}" in {included.document.file}'


def _sort(definition: object) -> str:
    name = type(definition).__name__.lower()
    return f"an {name}" if name == "enum" else f"a {name}"


def _lower(name: str) -> str:
    return name[:1].lower() + name[1:]
