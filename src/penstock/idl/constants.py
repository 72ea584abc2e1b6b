"""Constants and defaults: what their names mean, and whether each fits its type.

Rules: a name is that of a constant or of an enum's value, or of a field where a struct is written as a map. It is
followed, not copied: sizes and depths are computed from those of what it names, so that ten constants of ten names each
cannot grow to ten billion values.

| type                 | constant                                                                              |
|----------------------|---------------------------------------------------------------------------------------|
| `bool`               | `true`, `false`, `1`, `0`                                                             |
| integers             | a number that fits, or the value of an enum                                           |
| `double`             | a number                                                                              |
| `string`, `binary`   | text                                                                                  |
| `uuid`               | text of 32 hexadecimal digits with hyphens, braces around them or not                 |
| enum                 | its value ("Color.RED", or "RED" alone), or the number of one; in a `.thrift` file    |
|                      | the last word is enough, as in Thrift: "Colour.RED" where there is no "Colour"        |
| struct, exception    | a map by the names of fields, quoted or not; required fields without default in it    |
| union                | a map of one field                                                                    |
| list, set            | a list; Thrift allows `{}`, too, for one without items                                |
| map                  | a map without a key twice; a bare word is the name of a constant, not text            |
| any                  | the name of a constant of the same type; of another number or text type, if it fits   |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.idl import graphs
from penstock.idl.mistakes import Mistakes
from penstock.idl.model import (
    Constant,
    ConstantList,
    ConstantMap,
    ConstantName,
    ConstantValue,
    Enum,
    Field,
    Found,
    FoundValue,
    ListOf,
    Literal,
    MapOf,
    Position,
    Program,
    Requiredness,
    Scalar,
    ScalarKind,
    Service,
    SetOf,
    Struct,
    StructKind,
)
from penstock.idl.parser import NESTING_MAX

CONSTANT_VALUES_MAX = 100_000
"""Most values in one constant, those of the constants and defaults that it names included."""

Resolved = tuple[Program, Scalar | ListOf | SetOf | MapOf | Enum | Struct]
"""Result of `Program.resolve`: a type that is no typedef, and the program that its references stand in."""

_INTEGERS: Final = {
    ScalarKind.I8: range(-(2**7), 2**7),
    ScalarKind.I16: range(-(2**15), 2**15),
    ScalarKind.I32: range(-(2**31), 2**31),
    ScalarKind.I64: range(-(2**63), 2**63),
    ScalarKind.U32: range(2**32),
    ScalarKind.U64: range(2**64),
}
_TEXTS: Final = (ScalarKind.STRING, ScalarKind.BINARY)
_UUID = re.compile(r"\{H{8}-H{4}-H{4}-H{4}-H{12}\}|H{8}-H{4}-H{4}-H{4}-H{12}".replace("H", "[0-9A-Fa-f]"))


def find_constant(program: Program, name: str, enum: Resolved | None = None) -> Found | FoundValue | None:
    """Return what the name of a constant means: a `Found` whose definition is a Constant, or the value of an enum.

    `enum`: the type that is expected, whose values may be named without it: "RED". In a `.thrift` file what stands in
    front of the last dot does not matter then, as in Thrift, unless it means something.
    """
    found = program.find(name)
    if found is not None and isinstance(found.definition, Constant):
        return found
    value = program.find_value(name)
    if value is None and enum is not None and isinstance(enum[1], Enum):
        before, _, last = name.rpartition(".")
        if not before or program.document.file.endswith(".thrift"):
            return enum[0].find_value(f"{enum[1].name}.{last}")
    return value


@dataclass(frozen=True, slots=True)
class _Node:
    """A constant, or a struct or method ("Orders.place") for the defaults of its fields, in the graph of needs."""

    file: str
    name: str


@dataclass(slots=True)
class _Written:
    """Size of one constant, or of the defaults of one struct: number of values, depth, and names in them."""

    place: Position
    values: int = 0
    depth: int = 0
    needs: list[_Node] | None = None


class Constants:
    """The checks of one run."""

    def __init__(self, mistakes: Mistakes) -> None:
        self._mistakes = mistakes
        self._written: dict[_Node, _Written] = {}
        self._fields: dict[_Node, dict[str, Field]] = {}
        self._required: dict[_Node, list[str]] = {}
        self._same: dict[tuple[int, int], bool] = {}  # by the identity of types, which the programs keep
        self._numbers: dict[_Node, set[int]] = {}

    def check(self, programs: list[Program]) -> None:
        """Note each constant and default that does not fit its type, needs itself or grows too large."""
        for program in programs:
            for each in program.document.definitions:
                if isinstance(each, Constant):
                    written = self._begin(program, each.name, each.position)
                    _Writing(self, program, written).value(each.value, program.resolve(each.type))
                elif isinstance(each, Struct):
                    self._defaults(program, each.name, each.position, each.fields)
                elif isinstance(each, Service):
                    for method in each.methods:
                        fields = (*method.arguments, *method.exceptions)
                        self._defaults(program, f"{each.name}.{method.name}", method.position, fields)
        self._measure()

    def _defaults(self, program: Program, name: str, place: Position, fields: Iterable[Field]) -> None:
        written = self._begin(program, name, place)
        for field in fields:
            if field.default is not None:
                _Writing(self, program, written).value(field.default, program.resolve(field.type))

    def mistake(self, place: Position, text: str) -> None:
        self._mistakes.add(place, text)

    def fields(self, struct: Resolved) -> dict[str, Field]:
        """Return the fields of a struct by their names."""
        program, type_ = struct
        assert isinstance(type_, Struct)
        node = _Node(program.document.file, type_.name)
        if node not in self._fields:
            self._fields[node] = {each.name: each for each in type_.fields}
        return self._fields[node]

    def missing(self, struct: Resolved, given: set[str]) -> str | None:
        """Return a field that a value of a struct must have, and that is not given."""
        program, type_ = struct
        assert isinstance(type_, Struct)
        node = _Node(program.document.file, type_.name)
        if node not in self._required:
            needed = (each for each in type_.fields if each.requiredness is Requiredness.REQUIRED)
            self._required[node] = [each.name for each in needed if each.default is None]
        return next((name for name in self._required[node] if name not in given), None)

    def same(self, one: Resolved, other: Resolved) -> bool:
        """True if two types are the same, but for annotations and typedefs."""
        (program, left), (owner, right) = one, other
        if left is right:
            return True
        key = id(left), id(right)
        if (known := self._same.get(key)) is not None:
            return known
        if isinstance(left, Scalar) and isinstance(right, Scalar):
            same = left.kind is right.kind
        elif isinstance(left, ListOf | SetOf) and isinstance(right, ListOf | SetOf):
            element = program.resolve(left.element), owner.resolve(right.element)
            same = type(left) is type(right) and self.same(*element)
        elif isinstance(left, MapOf) and isinstance(right, MapOf):
            same = self.same(program.resolve(left.key), owner.resolve(right.key))
            same = same and self.same(program.resolve(left.value), owner.resolve(right.value))
        else:
            same = False
        self._same[key] = same
        return same

    def numbers(self, enum: Resolved) -> set[int]:
        """Return the numbers of an enum."""
        program, type_ = enum
        assert isinstance(type_, Enum)
        node = _Node(program.document.file, type_.name)
        if node not in self._numbers:
            self._numbers[node] = {each.number for each in type_.values}
        return self._numbers[node]

    def _begin(self, program: Program, name: str, place: Position) -> _Written:
        return self._written.setdefault(_Node(program.document.file, name), _Written(place, needs=[]))

    def _measure(self) -> None:
        """Add up values and depths of what constants name."""
        order, cycles = graphs.sort({node: written.needs or [] for node, written in self._written.items()})
        for cycle in cycles:
            names = graphs.cycle_text([node.name for node in cycle], "needs")
            self.mistake(self._written[cycle[0]].place, f"the constant or default needs itself: {names}")
        if cycles:
            return
        for node in order:
            written = self._written[node]
            named = [self._written[one] for one in written.needs or () if one in self._written]
            written.values = min(written.values + sum(one.values for one in named), CONSTANT_VALUES_MAX + 1)
            written.depth += max((one.depth for one in named), default=0)
            if written.values > CONSTANT_VALUES_MAX:
                text = f"with all that it names it has more than {CONSTANT_VALUES_MAX:,} values"
            elif written.depth > NESTING_MAX:
                text = f"with all that it names it is nested more than {NESTING_MAX} deep"
            else:
                continue
            self.mistake(written.place, f'"{node.name}" is too large: {text}')
            written.values = written.depth = 0  # told once


class _Writing:
    """One constant or default, checked against its type; recursion is as deep as its text is nested."""

    def __init__(self, constants: Constants, program: Program, written: _Written) -> None:
        self._all = constants
        self._program = program
        self._written = written

    def value(self, value: ConstantValue, type_: Resolved, depth: int = 1) -> None:
        """Check a value, and note what it names."""
        self._written.values += 1
        self._written.depth = max(self._written.depth, depth)
        kind = type_[1]
        if isinstance(value, ConstantName):
            self._name(value, type_)
        elif isinstance(kind, Scalar):
            self._scalar(value, kind.kind, value.position)
        elif isinstance(kind, Enum):
            self._enum(value, type_, value.position)
        elif isinstance(kind, Struct):
            self._struct(value, type_, depth)
        elif isinstance(kind, MapOf):
            self._map(value, type_, depth)
        elif not isinstance(value, ConstantList):
            if value == ConstantMap(()):
                return
            self._refuse(value, "a list, such as [1, 2], is expected")
        else:
            element = type_[0].resolve(kind.element)
            for item in value.items:
                self.value(item, element, depth + 1)

    def _refuse(self, value: ConstantValue, text: str) -> None:
        self._all.mistake(value.position, f"{text}, not {shown(value)}")

    def _scalar(self, value: ConstantValue, kind: ScalarKind, place: Position) -> None:
        """Check a value against a scalar; the mistake is at `place`."""
        literal = value.value if isinstance(value, Literal) else None
        if (text := _scalar_mistake(literal, kind)) is not None:
            self._all.mistake(place, f"{text}, not {shown(value)}")

    def _enum(self, value: ConstantValue, type_: Resolved, place: Position) -> None:
        name = type_[1].name if isinstance(type_[1], Enum) else ""
        if not isinstance(value, Literal) or type(value.value) is not int:
            self._all.mistake(place, f'a value of "{name}" is expected, not {shown(value)}')
        elif value.value not in self._all.numbers(type_):
            self._all.mistake(place, f'"{name}" has no value with the number {value.value}')

    def _struct(self, value: ConstantValue, type_: Resolved, depth: int) -> None:
        struct = type_[1]
        assert isinstance(struct, Struct)
        if not isinstance(value, ConstantMap):
            self._refuse(value, f'a map with the fields of "{struct.name}" is expected')
            return
        self._need(_Node(type_[0].document.file, struct.name))
        fields = self._all.fields(type_)
        given: set[str] = set()
        for key, item in value.entries:
            name = _field_name(key)
            if name is None:
                self._refuse(key, f'the name of a field of "{struct.name}" is expected')
            elif name not in fields:
                self._all.mistake(key.position, f'"{struct.name}" has no field "{name}"')
            elif name in given:
                self._all.mistake(key.position, f'the field "{name}" is given twice')
            else:
                given.add(name)
                self.value(item, type_[0].resolve(fields[name].type), depth + 1)
        if struct.kind is StructKind.UNION and len(value.entries) != 1:
            self._all.mistake(value.position, f'"{struct.name}" is a union: give one field, not {len(value.entries)}')
        if len(given) < len(value.entries):
            return  # a required field may be the one that is spelt wrongly
        if (missing := self._all.missing(type_, given)) is not None:
            self._all.mistake(value.position, f'the field "{missing}" of "{struct.name}" is required; give it')

    def _map(self, value: ConstantValue, type_: Resolved, depth: int) -> None:
        map_ = type_[1]
        assert isinstance(map_, MapOf)
        if not isinstance(value, ConstantMap):
            self._refuse(value, 'a map, such as {"a": 1}, is expected')
            return
        key_type, value_type = type_[0].resolve(map_.key), type_[0].resolve(map_.value)
        seen: set[object] = set()
        for key, item in value.entries:
            self.value(key, key_type, depth + 1)
            self.value(item, value_type, depth + 1)
            plain = self._plain(key, key_type)
            if plain is not None and plain in seen:
                self._all.mistake(key.position, f"the map has the key {shown(key)} already")
            seen.add(plain)

    def _plain(self, key: ConstantValue, type_: Resolved) -> object:
        """Return what makes a key the same as another; None: it is not a number, text or value of an enum."""
        if isinstance(key, ConstantName):
            found = find_constant(self._program, key.name, type_)
            if isinstance(found, FoundValue):
                return found.value.number
            key = _followed(found) or key
        return key.value if isinstance(key, Literal) else None

    def _name(self, value: ConstantName, type_: Resolved) -> None:
        """Check the name of a constant or of an enum's value."""
        found = find_constant(self._program, value.name, type_)
        if found is None:
            hint = " (text is written in quotes)" if _is_text(type_) else ""
            self._all.mistake(value.position, f'there is no constant or value of an enum "{value.name}"{hint}')
        elif isinstance(found, FoundValue):
            self._value_of_enum(value, found, type_)
        else:
            constant = found.definition
            assert isinstance(constant, Constant)
            self._need(_Node(found.program.document.file, constant.name))
            self._constant(value, found, found.program.resolve(constant.type), type_)

    def _value_of_enum(self, value: ConstantName, found: FoundValue, type_: Resolved) -> None:
        expected = type_[1]
        if isinstance(expected, Scalar) and expected.kind in _INTEGERS:
            self._scalar(Literal(found.value.number), expected.kind, value.position)
        elif found.enum is not expected:
            self._all.mistake(value.position, f'{_expected(expected)} is expected, not a value of "{found.enum.name}"')

    def _constant(self, value: ConstantName, found: Found, declared: Resolved, type_: Resolved) -> None:
        """Check a constant of one type where another is expected."""
        if self._all.same(declared, type_):
            return
        literal = _followed(found) if isinstance(declared[1], Scalar) else None
        expected = type_[1]
        if isinstance(expected, Scalar) and literal is not None:
            self._scalar(literal, expected.kind, value.position)
        elif isinstance(expected, Enum) and literal is not None:
            self._enum(literal, type_, value.position)
        elif not (isinstance(declared[1], Enum) and isinstance(expected, Scalar) and expected.kind in _INTEGERS):
            self._all.mistake(value.position, f'{_expected(expected)} is expected, and "{value.name}" has another type')

    def _need(self, node: _Node) -> None:
        assert self._written.needs is not None
        self._written.needs.append(node)


def _scalar_mistake(literal: object, kind: ScalarKind) -> str | None:
    """Return what is expected instead of a literal, or None if it fits."""
    if kind is ScalarKind.BOOL:
        return (
            None
            if type(literal) is bool or (type(literal) is int and literal in (0, 1))
            else "true or false is expected"
        )
    if kind in _INTEGERS:
        if type(literal) is not int:
            return f"a whole number ({kind}) is expected"
        numbers = _INTEGERS[kind]
        return None if literal in numbers else f"a number from {numbers[0]:,} to {numbers[-1]:,} ({kind}) is expected"
    if kind in (ScalarKind.DOUBLE, ScalarKind.FLOAT):
        return None if type(literal) in (int, float) else f"a number ({kind}) is expected"
    if type(literal) is not str:
        return f"text in quotes ({kind}) is expected"
    if kind is ScalarKind.UUID and not _UUID.fullmatch(literal):
        return "a UUID, such as 00000000-0000-0000-0000-000000000000, is expected"
    return None


def _followed(found: Found | FoundValue | None) -> Literal | None:
    """Return the literal that a constant is by way of others; None: it is none, or the chain is too long."""
    for _ in range(NESTING_MAX):
        if not isinstance(found, Found) or not isinstance(found.definition, Constant):
            break
        value = found.definition.value
        if isinstance(value, Literal):
            return value
        if not isinstance(value, ConstantName):
            return None
        found = find_constant(found.program, value.name, found.program.resolve(found.definition.type))
    return Literal(found.value.number) if isinstance(found, FoundValue) else None


def _field_name(key: ConstantValue) -> str | None:
    if isinstance(key, ConstantName):
        return key.name
    return key.value if isinstance(key, Literal) and isinstance(key.value, str) else None


def _is_text(type_: Resolved) -> bool:
    return isinstance(type_[1], Scalar) and type_[1].kind in (*_TEXTS, ScalarKind.UUID)


def _expected(type_: Scalar | ListOf | SetOf | MapOf | Enum | Struct) -> str:
    if isinstance(type_, Scalar):
        return f"a constant of type {type_.kind}"
    if isinstance(type_, Enum | Struct):
        return f'a constant of type "{type_.name}"'
    return f"a {'list' if isinstance(type_, ListOf) else 'set' if isinstance(type_, SetOf) else 'map'} of the same type"


def shown(value: ConstantValue) -> str:
    """Return a short text for a constant."""
    if isinstance(value, Literal):
        text = str(value.value).lower() if isinstance(value.value, bool) else repr(value.value)
        return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
    if isinstance(value, ConstantName):
        return f'"{value.name}"'
    return "a list" if isinstance(value, ConstantList) else "a map"


_SHOWN_MAX = 40  # characters
