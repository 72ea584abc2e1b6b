"""The model of a contract: types, constants, services and scopes, as an IDL file declares them.

A front end (the Frugal and Thrift parser, Protobuf descriptors) makes a `Document` of each file and links them to a
`Program`. Generators, the check of breaking changes and the decoders of values read a linked program only.

Rules: immutable, in the order of the file. A `Reference` keeps the name as it is written ("base.Thing"); it is resolved
by the program of the file that it stands in (`Program.find`), so recursive types need no cycles of objects. In a linked
program each reference resolves to a definition of the right sort, ids and names are unique, and each constant fits its
type.

| IDL                                  | model                                          |
|--------------------------------------|------------------------------------------------|
| `bool`, `i64`, `string`, `uuid`, …   | `Scalar`                                       |
| `list<T>`, `set<T>`, `map<K, V>`     | `ListOf`, `SetOf`, `MapOf`                     |
| a name, `file.Name`                  | `Reference` to a `Typedef`, `Enum` or `Struct` |
| `struct`, `union`, `exception`       | `Struct` with its `StructKind`                 |
| `service S extends base.S { … }`     | `Service` of `Method`s                         |
| `scope S prefix a.{b} { Op: T }`     | `Scope` of `Operation`s                        |
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file: line and column count from 1, the column in characters."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


NOWHERE = Position("", 0, 0)
"""The position of what no file declares."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """`(name = "value")` behind a declaration, or `(name)`, whose value is empty."""

    name: str
    value: str = ""
    position: Position = field(default=NOWHERE, compare=False)


Annotations = tuple[Annotation, ...]


class ScalarKind(StrEnum):
    """Types without parts. Thrift has no unsigned ones and no float: those come from Protobuf."""

    BOOL = "bool"
    I8 = "i8"  # `byte` is its older name
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U32 = "u32"
    U64 = "u64"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BINARY = "binary"
    UUID = "uuid"


@dataclass(frozen=True, slots=True)
class Scalar:
    kind: ScalarKind
    annotations: Annotations = ()


@dataclass(frozen=True, slots=True)
class ListOf:
    element: Type
    annotations: Annotations = ()


@dataclass(frozen=True, slots=True)
class SetOf:
    element: Type
    annotations: Annotations = ()


@dataclass(frozen=True, slots=True)
class MapOf:
    key: Type
    value: Type
    annotations: Annotations = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """The name of a type, constant or service, as written: "Thing", or `base.Thing` for one of an included file."""

    name: str
    position: Position = field(default=NOWHERE, compare=False)
    annotations: Annotations = ()


Type = Scalar | ListOf | SetOf | MapOf | Reference


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant number, text or truth value. Binary constants are text."""

    value: bool | int | float | str
    position: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class ConstantList:
    items: tuple[ConstantValue, ...]
    position: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class ConstantMap:
    """`{key: value}`: a map, or a struct by the names of its fields; an unquoted key is a `ConstantName`.

    Thrift allows `{}` for a list or set without items, too.
    """

    entries: tuple[tuple[ConstantValue, ConstantValue], ...]
    position: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class ConstantName:
    """The name of another constant, or of a value of an enum: `DEFAULT_ID`, "Color.RED", `base.Color.RED`."""

    name: str
    position: Position = field(default=NOWHERE, compare=False)


ConstantValue = Literal | ConstantList | ConstantMap | ConstantName


@dataclass(frozen=True, slots=True)
class Namespace:
    """`namespace py shop.orders`: the package for a language; `*` is any language."""

    language: str
    name: str
    annotations: Annotations = ()
    position: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Include:
    """`include "sub/base.frugal"`: its names begin with `base.`."""

    path: str
    name: str
    annotations: Annotations = ()
    position: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Typedef:
    name: str
    type: Type
    comment: str = ""
    annotations: Annotations = ()
    position: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Constant:
    name: str
    type: Type
    value: ConstantValue
    comment: str = ""
    annotations: Annotations = ()
    position: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Reserved:
    """Numbers and names that a message or enum of Protobuf keeps from use.

    `numbers`: half-open ranges, in order, none next to another.
    """

    numbers: tuple[tuple[int, int], ...] = ()
    names: tuple[str, ...] = ()

    def has(self, number: int) -> bool:
        """True if the number is reserved."""
        behind = bisect_right(self.numbers, number, key=itemgetter(0))
        return behind > 0 and number < self.numbers[behind - 1][1]


@dataclass(frozen=True, slots=True)
class EnumValue:
    name: str
    number: int
    comment: str = ""
    annotations: Annotations = ()
    position: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Enum:
    """`reserved`: None where the language has no such thing, as Frugal."""

    name: str
    values: tuple[EnumValue, ...]
    comment: str = ""
    annotations: Annotations = ()
    position: Position = field(default=NOWHERE, compare=False)
    reserved: Reserved | None = None


class Requiredness(StrEnum):
    """Requiredness of a field when written and read; fields of unions and of `throws` are optional."""

    DEFAULT = "default"  # always written, may be missing when read
    REQUIRED = "required"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct, argument of a method, or exception of its `throws`.

    `encoding`: the type of Protobuf that the wire needs and `type` does not tell, such as `sint64` or `fixed32`.
    `json_name`: the name in Protobuf's JSON, if it is not made of `name`.
    """

    id: int
    name: str
    type: Type
    requiredness: Requiredness = Requiredness.DEFAULT
    default: ConstantValue | None = None
    comment: str = ""
    annotations: Annotations = ()
    position: Position = field(default=NOWHERE, compare=False)
    encoding: str = ""
    json_name: str = ""


class StructKind(StrEnum):
    STRUCT = "struct"
    UNION = "union"
    EXCEPTION = "exception"


@dataclass(frozen=True, slots=True)
class Struct:
    """`reserved`: None where the language has no such thing, as Frugal."""

    name: str
    kind: StructKind
    fields: tuple[Field, ...]
    comment: str = ""
    annotations: Annotations = ()
    position: Position = field(default=NOWHERE, compare=False)
    reserved: Reserved | None = None


class Streaming(StrEnum):
    """Sides of a method that send several messages; Protobuf's only."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service; `returns` is None for `void`. A oneway method returns nothing and throws nothing."""

    name: str
    returns: Type | None
    arguments: tuple[Field, ...]
    exceptions: tuple[Field, ...] = ()
    is_oneway: bool = False
    comment: str = ""
    annotations: Annotations = ()
    position: Position = field(default=NOWHERE, compare=False)
    streaming: Streaming = Streaming.NONE


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    extends: Reference | None
    methods: tuple[Method, ...]
    comment: str = ""
    annotations: Annotations = ()
    position: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a scope: its name is the last token of the subject, `type` the type of the message."""

    name: str
    type: Type
    comment: str = ""
    annotations: Annotations = ()
    position: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Scope:
    """A namespace of publish and subscribe. `prefix`: tokens of its subjects, "orders.{region}", or empty."""

    name: str
    prefix: str
    variables: tuple[str, ...]
    operations: tuple[Operation, ...]
    comment: str = ""
    annotations: Annotations = ()
    position: Position = field(default=NOWHERE, compare=False)


TypeDefinition = Typedef | Enum | Struct
Definition = Typedef | Enum | Struct | Constant | Service | Scope


@dataclass(frozen=True, slots=True)
class Document:
    """One file as it is written; references are not resolved."""

    file: str
    namespaces: tuple[Namespace, ...] = ()
    includes: tuple[Include, ...] = ()
    definitions: tuple[Definition, ...] = ()

    @property
    def types(self) -> Iterator[TypeDefinition]:
        """Typedefs, enums and structs, in the order of the file."""
        return (each for each in self.definitions if isinstance(each, Typedef | Enum | Struct))

    @property
    def constants(self) -> Iterator[Constant]:
        return (each for each in self.definitions if isinstance(each, Constant))

    @property
    def services(self) -> Iterator[Service]:
        return (each for each in self.definitions if isinstance(each, Service))

    @property
    def scopes(self) -> Iterator[Scope]:
        return (each for each in self.definitions if isinstance(each, Scope))

    def namespace(self, language: str) -> str | None:
        """Return the package for a language, or that for any language."""
        named = {each.language: each.name for each in self.namespaces}
        return named.get(language, named.get("*"))


@dataclass(frozen=True, slots=True)
class Found:
    """A definition and the program of the file that declares it, which resolves the references in it."""

    program: Program
    definition: Definition


@dataclass(frozen=True, slots=True)
class FoundValue:
    """A value of an enum, and the program of the file that declares it."""

    program: Program
    enum: Enum
    value: EnumValue


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A linked file: its document, and the programs of the files that it includes, by their names."""

    document: Document
    includes: Mapping[str, Program]
    _by_name: Mapping[str, Definition] = field(init=False, repr=False)
    _values: Mapping[str, Mapping[str, EnumValue]] = field(init=False, repr=False)  # of enums, by their names

    def __post_init__(self) -> None:
        # Frugal's own files have a scope and a service of one name: the name means the service, which types can use.
        scopes = {each.name: each for each in self.document.scopes}
        others = {each.name: each for each in self.document.definitions if not isinstance(each, Scope)}
        object.__setattr__(self, "_by_name", {**scopes, **others})
        enums = (each for each in self.document.definitions if isinstance(each, Enum))
        object.__setattr__(self, "_values", {each.name: {one.name: one for one in each.values} for each in enums})

    def find(self, name: str) -> Found | None:
        """Return what a name of this file means: "Thing", or "base.Thing" of an included one; None: nothing."""
        if (own := self._by_name.get(name)) is not None:
            return Found(self, own)
        file, _, rest = name.rpartition(".")  # of "v1.base.Thing" it is the included file v1.base.thrift
        included = self.includes.get(file)
        return None if included is None else included.find(rest)

    def find_value(self, name: str) -> FoundValue | None:
        """Return the value of an enum that a name means: "Color.RED", or "base.Color.RED" of an included file."""
        enum, _, value = name.rpartition(".")
        found = self.find(enum)
        if found is None or not isinstance(found.definition, Enum):
            return None
        one = found.program._values[found.definition.name].get(value)  # noqa: SLF001  # of its own class
        return None if one is None else FoundValue(found.program, found.definition, one)

    def resolve(self, type_: Type) -> tuple[Program, Scalar | ListOf | SetOf | MapOf | Enum | Struct]:
        """Follow names and typedefs of a linked program to what a type is, and the program that it stands in."""
        program = self
        while isinstance(type_, Reference):
            found = program.find(type_.name)
            assert found is not None, f"{type_.name} is not linked"
            program = found.program
            if not isinstance(found.definition, Typedef):
                assert isinstance(found.definition, Enum | Struct), f"{type_.name} is no type"
                return program, found.definition
            type_ = found.definition.type
        return program, type_

    def closure(self) -> Iterator[Program]:
        """Yield this program and all that it includes, each file once, included ones first."""
        return iter(closure([self]))


def closure(programs: Iterable[Program]) -> list[Program]:
    """Return programs and all that they include, each file once, included ones first."""
    found: dict[str, Program | None] = {}

    def walk(program: Program) -> None:
        if program.document.file in found:
            return
        found[program.document.file] = None
        for included in program.includes.values():
            walk(included)
        del found[program.document.file]
        found[program.document.file] = program

    for each in programs:
        walk(each)
    return [each for each in found.values() if each is not None]
