"""Protobuf: a descriptor set, as `protoc` or `buf` write it, becomes programs of the same model.

`protoc --include_imports --include_source_info --descriptor_set_out=orders.pb orders.proto`

Rules: Google's library (the extra `protobuf`) reads and links the set, so what it refuses is refused here, with its
reason. It is imported when the first set is read. All files of a set become programs; each includes those whose types
it names, under their paths with dots: `google.protobuf.timestamp.Timestamp`. Text in a set need not be UTF-8: the
library then returns bytes, which name nothing here.

| Protobuf                          | model                                                                           |
|-----------------------------------|---------------------------------------------------------------------------------|
| `package shop.v1`                 | `Namespace("*", "shop.v1")`                                                     |
| message `Order.Line`              | `Struct` named "Order_Line", annotated with its full name as `protobuf.name`    |
| enum, `allow_alias` or not        | `Enum`; a nested one is named as a nested message is                            |
| `optional`, a message, `oneof`    | an optional field; one of a `oneof` is annotated with its name                  |
| proto3 scalar without `optional`  | a default field                                                                 |
| `required` of proto2              | a required field                                                                |
| `repeated`, `map<K, V>`           | `ListOf`, `MapOf`; annotated `packed = "false"` if numbers are written unpacked |
| `uint32`, `uint64`, `float`       | scalars that Thrift lacks                                                       |
| `sint32`, `fixed64`, `group`, …   | the scalar, and `Field.encoding`; of a map `map<sint32, fixed64>`               |
| default values of proto2          | defaults                                                                        |
| service, unary method             | `Service`; the request is the argument `request`                                |
| `idempotency_level`, `deprecated` | annotations `idempotent`, `deprecated`                                          |
| streaming method                  | `Method.streaming`; no code is made of it                                       |
| `reserved`, own `json_name`       | `Struct.reserved`, `Enum.reserved`, `Field.json_name`                           |
| extensions, options               | left out; bytes of extensions are unknown fields                                |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from penstock.base.extras import how_to_install
from penstock.idl import checks, graphs
from penstock.idl.files import PATH_CHARS_MAX
from penstock.idl.mistakes import Mistakes
from penstock.idl.model import (
    Annotation,
    Annotations,
    ConstantName,
    ConstantValue,
    Definition,
    Document,
    Enum,
    EnumValue,
    Field,
    Include,
    ListOf,
    Literal,
    MapOf,
    Method,
    Namespace,
    Position,
    Program,
    Reference,
    Requiredness,
    Reserved,
    Scalar,
    ScalarKind,
    Service,
    Streaming,
    Struct,
    StructKind,
    Type,
)

SET_BYTES_MAX = 4 << 20
"""Most bytes of a descriptor set."""
SET_FILES_MAX = 500
"""Most files in a descriptor set."""
IMPORT_DEPTH_MAX = 64
"""Longest chain of files that import each other."""
SET_MEMBERS_MAX = 100_000
"""Most messages, enums, fields, values and methods in a descriptor set together."""
FULL_NAME = "protobuf.name"
"""The annotation of a struct or enum with its full name in Protobuf."""

# By the number of the type in a descriptor: the scalar, and the encoding that the scalar does not tell.
_SCALARS: Final = {
    1: (ScalarKind.DOUBLE, ""),
    2: (ScalarKind.FLOAT, ""),
    3: (ScalarKind.I64, ""),
    4: (ScalarKind.U64, ""),
    5: (ScalarKind.I32, ""),
    6: (ScalarKind.U64, "fixed64"),
    7: (ScalarKind.U32, "fixed32"),
    8: (ScalarKind.BOOL, ""),
    9: (ScalarKind.STRING, ""),
    12: (ScalarKind.BINARY, ""),
    13: (ScalarKind.U32, ""),
    15: (ScalarKind.I32, "sfixed32"),
    16: (ScalarKind.I64, "sfixed64"),
    17: (ScalarKind.I32, "sint32"),
    18: (ScalarKind.I64, "sint64"),
}
_GROUP, _MESSAGE, _ENUM = 10, 11, 14
_PACKABLE = frozenset(_SCALARS) - {9, 12} | {_ENUM}
_REPEATED = 3
_STREAMING = {
    (False, False): Streaming.NONE,
    (True, False): Streaming.CLIENT,
    (False, True): Streaming.SERVER,
    (True, True): Streaming.BOTH,
}
"""By whether the client streams, and the server."""
_IDEMPOTENT = (1, 2)  # NO_SIDE_EFFECTS, IDEMPOTENT
# Numbers of fields in descriptors, of which the paths of source information consist.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _NESTED_ENUMS, _VALUES, _METHODS = 2, 3, 4, 2, 2

Path = tuple[int, ...]


def from_descriptor_set(data: bytes, name: str = "descriptor set") -> Mapping[str, Program]:
    """Return the linked programs of a serialized `FileDescriptorSet`, by the paths of their files.

    `name`: the file in mistakes of the set as a whole. IdlError: all mistakes, or why Google's
    library refuses the set. ImportError: it is not installed.
    """
    mistakes = Mistakes()
    protos = _files(data, name, mistakes)
    mistakes.raise_if_any()
    pool = _pool(protos, mistakes)
    mistakes.raise_if_any()
    names = _Names(mistakes)
    for proto in protos.values():
        names.add(proto)
    mistakes.raise_if_any()
    programs: dict[str, Program] = {}
    for path, proto in protos.items():
        reading = _File(proto, pool, names, mistakes)
        document = reading.document()
        programs[path] = Program(document, {each.name: programs[each.path] for each in document.includes})
    mistakes.raise_if_any()
    checks.check_all(list(programs.values()), mistakes)
    mistakes.raise_if_any()
    return programs


def _protobuf() -> tuple[ModuleType, ModuleType, type[Exception]]:
    """Return protobuf's modules of descriptors and their pool, and its error for wrong bytes."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
        from google.protobuf.message import DecodeError
    except ImportError:
        text = f"protobuf is not installed, which reads descriptor sets: {how_to_install('protobuf')}"
        raise ImportError(text) from None

    return descriptor_pb2, descriptor_pool, DecodeError


def _files(data: bytes, set_name: str, mistakes: Mistakes) -> dict[str, Any]:
    """Return the files of a set by their paths, each behind those that it imports."""
    descriptors, _, decode_error = _protobuf()
    place = Position(set_name, 1, 1)
    if len(data) > SET_BYTES_MAX:
        mistakes.add(place, f"the set has {len(data):,} bytes; {SET_BYTES_MAX:,} are the most")
        return {}
    try:
        found = descriptors.FileDescriptorSet.FromString(data)
    except decode_error as error:
        mistakes.add(place, f"these bytes are no descriptor set: {error}")
        return {}
    if len(found.file) > SET_FILES_MAX:
        mistakes.add(place, f"the set has {len(found.file):,} files; {SET_FILES_MAX} are the most")
        return {}
    protos = {proto.name: proto for proto in found.file}
    if len(protos) < len(found.file):
        mistakes.add(place, "the set has two files of one name")
    for name, proto in protos.items():
        if not _is_path(name) or not isinstance(proto.package, str):
            mistakes.add(place, f"{name[:40]!r} is no path of a file, or its package no name")
            return {}
        for needed in proto.dependency:
            if needed not in protos:
                text = f"it imports {needed!r}, which the set lacks; write the set with protoc --include_imports"
                mistakes.add(Position(name, 1, 1), text)
    order, cycles = graphs.sort({name: list(proto.dependency) for name, proto in protos.items()})
    for cycle in cycles:
        mistakes.add(Position(cycle[0], 1, 1), f"files import each other: {graphs.cycle_text(cycle, 'imports')}")
    depths: dict[str, int] = {}
    for name in order:
        depths[name] = 1 + max((depths.get(needed, 0) for needed in protos[name].dependency), default=0)
        if depths[name] > IMPORT_DEPTH_MAX:
            text = f"it is the head of a chain of more than {IMPORT_DEPTH_MAX} imports, the most"
            mistakes.add(Position(name, 1, 1), text)
            break
    return {name: protos[name] for name in order}


def _is_path(name: str | bytes) -> bool:
    """True if a file may be named so: a path that leads nowhere else."""
    if not isinstance(name, str) or not 0 < len(name) <= PATH_CHARS_MAX or not name.isprintable():
        return False
    return not name.startswith("/") and ".." not in name.split("/")


def _pool(protos: Mapping[str, Any], mistakes: Mistakes) -> Any:
    """Return the files, linked by Google's library."""
    _, pools, _ = _protobuf()
    pool = pools.DescriptorPool()
    for name, proto in protos.items():
        try:
            pool.AddSerializedFile(proto.SerializeToString())
        except (TypeError, ValueError) as error:
            mistakes.add(Position(name, 1, 1), f"Protobuf refuses the file: {error}")
            return pool
    return pool


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of a message or enum, and its name in the model."""

    file: str
    name: str


class _Names:
    """Names in the model of all messages and enums of a set, by their full names."""

    def __init__(self, mistakes: Mistakes) -> None:
        self._mistakes = mistakes
        self._places: dict[str, _Place] = {}
        self._files: dict[str, str] = {}  # by the names under which they are included
        self._left = SET_MEMBERS_MAX

    def __getitem__(self, full_name: str) -> _Place:
        return self._places[full_name]

    def add(self, proto: Any) -> None:
        """Add what a file declares."""
        place = Position(proto.name, 1, 1)
        other = self._files.setdefault(include_name(proto.name), proto.name)
        if other != proto.name:
            self._mistakes.add(place, f"{other!r} and {proto.name!r} would have the same name")
        self._left -= sum(1 + len(each.method) for each in proto.service)
        package = f"{proto.package}." if proto.package else ""
        declared = {each.name for each in proto.service}
        for full_name, name in self._types(proto.enum_type, proto.message_type, package, ""):
            if name in declared:
                self._mistakes.add(place, f'two types of the file would be named "{name}"; rename {full_name}')
            declared.add(name)
            self._places[full_name] = _Place(proto.name, name)
        if self._left < 0:
            self._mistakes.add(place, f"the set has more than {SET_MEMBERS_MAX:,} members, the most")

    def _types(
        self, enums: Iterable[Any], messages: Iterable[Any], scope: str, prefix: str
    ) -> Iterator[tuple[str, str]]:
        """Yield the full name of each message and enum, and its name in the model."""
        for enum in enums:
            self._left -= 1 + len(enum.value)
            yield f"{scope}{enum.name}", f"{prefix}{enum.name}"
        for message in messages:
            self._left -= 1 + len(message.field)
            if not message.options.map_entry:
                yield f"{scope}{message.name}", f"{prefix}{message.name}"
            inner = f"{scope}{message.name}.", f"{prefix}{message.name}_"
            yield from self._types(message.enum_type, message.nested_type, *inner)


def include_name(path: str) -> str:
    """Return the name under which a file is included: `google.protobuf.timestamp` for its path with slashes."""
    return path.removesuffix(".proto").replace("/", ".")


class _File:
    """One file on its way into the model."""

    def __init__(self, proto: Any, pool: Any, names: _Names, mistakes: Mistakes) -> None:
        self._proto = proto
        self._pool = pool
        self._names = names
        self._mistakes = mistakes
        self._package = f"{proto.package}." if proto.package else ""
        self._places = {tuple(each.path): each for each in proto.source_code_info.location}
        self._includes: dict[str, Include] = {}
        self._definitions: list[Definition] = []

    def document(self) -> Document:
        """Return the document: in the order of the file, a message in front of those that are nested in it."""
        for index, enum in enumerate(self._proto.enum_type):
            self._enum(enum, self._package, (_ENUMS, index))
        for index, message in enumerate(self._proto.message_type):
            self._message(message, self._package, (_MESSAGES, index))
        for index, service in enumerate(self._proto.service):
            self._service(service, (_SERVICES, index))
        package = self._proto.package
        namespaces = (Namespace("*", package, position=self._place(())),) if package else ()
        return Document(self._proto.name, namespaces, tuple(self._includes.values()), tuple(self._definitions))

    def _place(self, path: Path) -> Position:
        """Return the place of a declaration; without source information, the beginning of the file."""
        location = self._places.get(path)
        if location is None or len(location.span) < 2:
            return Position(self._proto.name, 1, 1)
        return Position(self._proto.name, location.span[0] + 1, location.span[1] + 1)

    def _comment(self, path: Path) -> str:
        location = self._places.get(path)
        if location is None:
            return ""
        comment: str | bytes = location.leading_comments or location.trailing_comments
        if isinstance(comment, bytes):
            comment = comment.decode(errors="replace")
        return "\n".join(line.removeprefix(" ").rstrip() for line in comment.split("\n")).strip("\n")

    def _reference(self, full_name: str, place: Position) -> Reference:
        """Return a reference to a message or enum, and include its file."""
        found = self._names[full_name]
        if found.file == self._proto.name:
            return Reference(found.name, place)
        name = include_name(found.file)
        self._includes.setdefault(name, Include(found.file, name, position=place))
        return Reference(f"{name}.{found.name}", place)

    def _enum(self, enum: Any, scope: str, path: Path) -> None:
        full_name = f"{scope}{enum.name}"
        values = tuple(
            EnumValue(
                value.name,
                value.number,
                self._comment(at := (*path, _VALUES, index)),
                _deprecated(value.options),
                self._place(at),
            )
            for index, value in enumerate(enum.value)
        )
        annotations = (Annotation(FULL_NAME, full_name), *_deprecated(enum.options))
        name = self._names[full_name].name
        reserved = _reserved(enum, last=1)
        self._definitions.append(Enum(name, values, self._comment(path), annotations, self._place(path), reserved))

    def _message(self, message: Any, scope: str, path: Path) -> None:
        if message.options.map_entry:
            return
        full_name = f"{scope}{message.name}"
        linked = self._pool.FindMessageTypeByName(full_name)
        fields = tuple(
            self._field(field, linked.fields_by_number[field.number], (*path, _FIELDS, index))
            for index, field in enumerate(message.field)
        )
        annotations = (Annotation(FULL_NAME, full_name), *_deprecated(message.options))
        name = self._names[full_name].name
        comment, place = self._comment(path), self._place(path)
        reserved = _reserved(message, last=0)
        self._definitions.append(Struct(name, StructKind.STRUCT, fields, comment, annotations, place, reserved))
        for index, enum in enumerate(message.enum_type):
            self._enum(enum, f"{full_name}.", (*path, _NESTED_ENUMS, index))
        for index, nested in enumerate(message.nested_type):
            self._message(nested, f"{full_name}.", (*path, _NESTED, index))

    def _field(self, field: Any, linked: Any, path: Path) -> Field:
        """Return a field; `linked` is that of Google's library, which knows presence and packing."""
        place = self._place(path)
        annotations = _deprecated(field.options)
        if linked.containing_oneof is not None and not field.proto3_optional:
            annotations += (Annotation("oneof", linked.containing_oneof.name),)
        if field.label == _REPEATED:
            type_, encoding = self._repeated(linked, place)
            if linked.type in _PACKABLE and not linked.is_packed:
                annotations += (Annotation("packed", "false"),)
            requiredness = Requiredness.DEFAULT
        else:
            type_, encoding = self._type(linked, place)
            presence = Requiredness.OPTIONAL if linked.has_presence else Requiredness.DEFAULT
            requiredness = Requiredness.REQUIRED if linked.is_required else presence
        default = self._default(linked, place) if field.HasField("default_value") else None
        return Field(
            field.number,
            field.name,
            type_,
            requiredness,
            default,
            self._comment(path),
            annotations,
            place,
            encoding,
            json_name="" if linked.json_name == json_name(field.name) else linked.json_name,
        )

    def _repeated(self, linked: Any, place: Position) -> tuple[Type, str]:
        """Return the type of a repeated field or map, and its encoding."""
        entry = linked.message_type
        if entry is None or not entry.GetOptions().map_entry:
            element, encoding = self._type(linked, place)
            return ListOf(element), encoding
        key, key_encoding = self._type(entry.fields_by_number[1], place)
        value, value_encoding = self._type(entry.fields_by_number[2], place)
        if not key_encoding and not value_encoding:
            return MapOf(key, value), ""
        return MapOf(key, value), f"map<{key_encoding or _shown(key)}, {value_encoding or _shown(value)}>"

    def _type(self, linked: Any, place: Position) -> tuple[Type, str]:
        """Return the type of one value, and its encoding."""
        if linked.type in (_MESSAGE, _GROUP):
            return self._reference(linked.message_type.full_name, place), "group" if linked.type == _GROUP else ""
        if linked.type == _ENUM:
            return self._reference(linked.enum_type.full_name, place), ""
        kind, encoding = _SCALARS[linked.type]
        return Scalar(kind), encoding

    def _default(self, linked: Any, place: Position) -> ConstantValue | None:
        try:
            value = linked.default_value
            value = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            self._mistakes.add(place, f'the default of "{linked.name}" is no UTF-8, so it cannot be a constant')
            return None
        if linked.type == _ENUM:
            enum = self._reference(linked.enum_type.full_name, place)
            return ConstantName(f"{enum.name}.{linked.enum_type.values_by_number[value].name}", place)
        return Literal(value, place)

    def _service(self, service: Any, path: Path) -> None:
        methods: dict[str, Method] = {}
        for index, method in enumerate(service.method):
            at = (*path, _METHODS, index)
            made = self._method(service, method, at)
            other = methods.setdefault(made.name[:1].lower() + made.name[1:], made)
            if other is not made:
                text = f'"{service.name}" has "{other.name}" already, and "{made.name}" is the same on the wire'
                self._mistakes.add(made.position, text)
        annotations = (Annotation(FULL_NAME, f"{self._package}{service.name}"), *_deprecated(service.options))
        comment, place = self._comment(path), self._place(path)
        self._definitions.append(Service(service.name, None, tuple(methods.values()), comment, annotations, place))

    def _method(self, service: Any, method: Any, path: Path) -> Method:
        place = self._place(path)
        linked = self._pool.FindServiceByName(f"{self._package}{service.name}").methods_by_name[method.name]
        request = Field(1, "request", self._reference(linked.input_type.full_name, place), position=place)
        returns = self._reference(linked.output_type.full_name, place)
        annotations = _deprecated(method.options)
        if method.options.idempotency_level in _IDEMPOTENT:
            annotations += (Annotation("idempotent"),)
        return Method(
            method.name,
            returns,
            (request,),
            comment=self._comment(path),
            annotations=annotations,
            position=place,
            streaming=_STREAMING[method.client_streaming, method.server_streaming],
        )


def json_name(name: str) -> str:
    """Return the name of a field in JSON, unless it has one of its own: "unit_price" is `unitPrice`."""
    first, *others = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in others)


def _reserved(declared: Any, *, last: int) -> Reserved:
    """Return what a message or enum reserves; `last`: 1 if its ranges end with their last number, 0 behind it."""
    numbers: list[tuple[int, int]] = []
    for start, end in sorted((each.start, each.end + last) for each in declared.reserved_range):
        if numbers and start <= numbers[-1][1]:
            numbers[-1] = numbers[-1][0], max(end, numbers[-1][1])
        elif start < end:
            numbers.append((start, end))
    return Reserved(tuple(numbers), tuple(each for each in declared.reserved_name if isinstance(each, str)))


def _deprecated(options: Any) -> Annotations:
    return (Annotation("deprecated"),) if options.deprecated else ()


def _shown(type_: Type) -> str:
    """Return a type without encoding of its own, as Protobuf writes it."""
    if isinstance(type_, Scalar):
        return SCALAR_NAMES[type_.kind]
    assert isinstance(type_, Reference)
    return type_.name


SCALAR_NAMES: Final = {
    ScalarKind.DOUBLE: "double",
    ScalarKind.FLOAT: "float",
    ScalarKind.I64: "int64",
    ScalarKind.U64: "uint64",
    ScalarKind.I32: "int32",
    ScalarKind.U32: "uint32",
    ScalarKind.BOOL: "bool",
    ScalarKind.STRING: "string",
    ScalarKind.BINARY: "bytes",
}
