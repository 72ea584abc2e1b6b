"""The fingerprint of a type: the same for two contracts whose values have the same form, names and defaults.

Rules: it is made of what is reached from the type, through typedefs and includes, and of nothing else in the files. So
comments, annotations, other declarations, names and places of files do not change it. Types are numbered in the order
in which they are reached; so recursive ones have one, too. The text that is hashed has a line for each:

    penstock type 1
    0
    0 struct Order 1:required:i64:id: 2:optional:list<1>:lines: 3:default:string:note:="none"
    1 struct Line 1:default:string:item:
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from penstock.idl.constants import find_constant
from penstock.idl.model import (
    Constant,
    ConstantList,
    ConstantMap,
    ConstantName,
    ConstantValue,
    Enum,
    Field,
    FoundValue,
    ListOf,
    MapOf,
    Program,
    Scalar,
    SetOf,
    Struct,
    Type,
)
from penstock.idl.printer import value_text

_FORM = "penstock type 1"


def fingerprint(program: Program, type_: Type) -> str:
    """Return the SHA-256 of a type of a linked program: 64 hex digits."""
    return _hash("\n".join([_FORM, *_Reaching().lines(program, type_)]))


class _Reaching:
    """The types that are reached from one, with their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by the identity of definitions, which the program keeps
        self._waiting: list[tuple[Program, Enum | Struct]] = []
        self._constants: dict[int, str] = {}

    def lines(self, program: Program, type_: Type) -> Iterator[str]:
        yield self._type(program, type_)
        done = 0
        while done < len(self._waiting):
            place, what = self._waiting[done]
            yield f"{done} {self._definition(place, what)}"
            done += 1

    def _type(self, program: Program, type_: Type) -> str:
        program, what = program.resolve(type_)
        if isinstance(what, Scalar):
            return what.kind.value
        if isinstance(what, ListOf | SetOf):
            return f"{'list' if isinstance(what, ListOf) else 'set'}<{self._type(program, what.element)}>"
        if isinstance(what, MapOf):
            return f"map<{self._type(program, what.key)},{self._type(program, what.value)}>"
        number = self._numbers.get(id(what))
        if number is None:
            number = self._numbers[id(what)] = len(self._waiting)
            self._waiting.append((program, what))
        return str(number)

    def _definition(self, program: Program, what: Enum | Struct) -> str:
        if isinstance(what, Enum):
            return " ".join(["enum", what.name, *(f"{each.name}={each.number}" for each in what.values)])
        return " ".join([what.kind.value, what.name, *(self._field(program, each) for each in what.fields)])

    def _field(self, program: Program, field: Field) -> str:
        parts = (str(field.id), field.requiredness.value, self._type(program, field.type), field.name, field.encoding)
        return ":".join(parts) + (
            "" if field.default is None else f"={self._value(program, field.default, field.type)}"
        )

    def _value(self, program: Program, value: ConstantValue, type_: Type) -> str:
        """Return a default; the hash of its value in place of the name of a constant."""
        if isinstance(value, ConstantName):
            found = find_constant(program, value.name, program.resolve(type_))
            if isinstance(found, FoundValue):
                return str(found.value.number)
            if found is None or not isinstance(found.definition, Constant):
                return value.name
            return self._constant(found.program, found.definition)
        if isinstance(value, ConstantList):
            return f"[{','.join(self._value(program, each, type_) for each in value.items)}]"
        if isinstance(value, ConstantMap):
            parts = [(self._value(program, key, type_), self._value(program, one, type_)) for key, one in value.entries]
            return f"{{{','.join(map(':'.join, parts))}}}"
        return value_text(value)

    def _constant(self, program: Program, constant: Constant) -> str:
        """Return the hash of a constant, which is looked at once however often it is named."""
        known = self._constants.get(id(constant))
        if known is None:
            text = self._value(program, constant.value, constant.type)
            known = self._constants[id(constant)] = _hash(text)
        return known


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
