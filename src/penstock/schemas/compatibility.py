"""Which versions of an Arrow schema, a JSON Schema or an Avro schema can read each other's values.

Rules: `reads(reader, writer)` says why values of the writer's schema cannot all be read by the reader's; nothing means
that they can. A new version is BACKWARD compatible if it reads the values of the old one, FORWARD if the old one reads
its values, FULL if both. Each reason has the path of the field, as `order.lines[].price`.

| Arrow and JSON Schema (values are JSON) | the reader takes                                                           |
|-----------------------------------------|----------------------------------------------------------------------------|
| whole numbers                           | those of a type that its own holds; a double takes any of at most 53 bits  |
| doubles, decimals of JSON               | floats that are not wider                                                  |
| strings                                 | strings, times and dates                                                   |
| times                                   | times of a unit that is not finer                                          |
| JSON of any value                       | anything                                                                   |
| objects, lists, maps                    | the same of what it takes; members that it lacks are skipped               |
| a member that is needed                 | one that the writer always has                                             |

| Avro                                    | the reader takes, as "Schema Resolution" of the specification says         |
|-----------------------------------------|----------------------------------------------------------------------------|
| int, long, float                        | what it promotes them to                                                   |
| string, bytes                           | each other                                                                 |
| record                                  | one of its name or alias; a field that the writer lacks needs a default    |
| enum                                    | one whose symbols it has; any, if it has a default                         |
| fixed                                   | one of its name and size                                                   |
| union                                   | what some branch takes; of a writer's union, every branch                  |
| a logical type                          | the same one; a decimal of the same precision and scale                    |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from penstock.idl.compatibility import Mode
from penstock.schemas.avro import LOGICAL
from penstock.schemas.json_values import JSON_TEXT
from penstock.schemas.plans import PLAN_DEPTH_MAX, SchemaError

COMPARISONS_MAX = 100_000  # of types of two Avro schemas with each other
REASONS_MAX = 100  # of one comparison; more of them say no more

S = TypeVar("S")


def between(old: S, new: S, mode: Mode, reads: Callable[[S, S], Sequence[str]]) -> list[str]:
    """Return why two versions are not compatible in a mode, by a function that compares a reader with a writer."""
    found: list[str] = []
    if mode in (Mode.BACKWARD, Mode.FULL):
        found += (f"the new schema cannot read old values: {reason}" for reason in reads(new, old))
    if mode in (Mode.FORWARD, Mode.FULL):
        found += (f"the old schema cannot read new values: {reason}" for reason in reads(old, new))
    return found


# Arrow


def arrow_reads(reader: pa.Schema, writer: pa.Schema) -> list[str]:
    """Return why the reader's schema cannot read JSON values of the writer's."""
    return _capped(_struct_reasons(reader, writer, ""))


def _capped(reasons: Iterator[str]) -> list[str]:
    return [reason for reason, _ in zip(reasons, range(REASONS_MAX), strict=False)]


def _struct_reasons(reader: Any, writer: Any, path: str) -> Iterator[str]:
    """Compare the fields of two schemas or structs."""
    written = {field.name: field for field in writer}
    for field in reader:
        below = f"{path}.{field.name}" if path else field.name
        other = written.get(field.name)
        if other is not None:
            yield from _field_reasons(field, other, below)
        elif not field.nullable:
            yield f"{below} is needed, but the other does not have it"


def _field_reasons(reader: pa.Field, writer: pa.Field, path: str) -> Iterator[str]:
    if writer.nullable and not reader.nullable:
        yield f"{path} is needed, but may be null in the other"
    if reader.type == pa.string() and (reader.metadata or {}).items() >= JSON_TEXT.items():
        return
    if writer.type == pa.string() and (writer.metadata or {}).items() >= JSON_TEXT.items():
        yield f"{path} is {reader.type}, and any JSON in the other"
        return
    yield from _type_reasons(reader.type, writer.type, path)


def _type_reasons(reader: pa.DataType, writer: pa.DataType, path: str) -> Iterator[str]:
    types = pa.types
    if types.is_struct(reader) and types.is_struct(writer):
        yield from _struct_reasons(reader, writer, path)
    elif types.is_list(reader) and types.is_list(writer):
        yield from _field_reasons(reader.value_field, writer.value_field, f"{path}[]")
    elif types.is_map(reader) and types.is_map(writer):
        yield from _field_reasons(reader.item_field, writer.item_field, f"{path}{{}}")
    elif types.is_map(reader) and types.is_struct(writer):
        for field in writer:
            yield from _field_reasons(reader.item_field, field, f"{path}.{field.name}")
    elif not _takes(reader, writer):
        yield f"{path} is {reader}, and {writer} in the other"


_TEXT_TYPES = (pa.string(), pa.binary(), pa.date32())
_UNITS = ("s", "ms", "us", "ns")


def _takes(reader: pa.DataType, writer: pa.DataType) -> bool:
    """True if a column takes all values of another type without parts."""
    types = pa.types
    if reader == writer or types.is_null(writer):
        return True
    if types.is_integer(reader) and types.is_integer(writer):
        if types.is_signed_integer(reader) and types.is_unsigned_integer(writer):
            return bool(reader.bit_width > writer.bit_width)
        same = types.is_signed_integer(reader) == types.is_signed_integer(writer)
        return bool(same and reader.bit_width >= writer.bit_width)
    if types.is_floating(reader):
        exact_bits = 53 if reader == pa.float64() else 24
        is_whole = types.is_integer(writer) and writer.bit_width <= exact_bits
        return bool(is_whole or (types.is_floating(writer) and reader.bit_width >= writer.bit_width))
    if reader in (pa.string(), pa.binary()):
        return writer in _TEXT_TYPES or types.is_timestamp(writer)
    if types.is_timestamp(reader) and types.is_timestamp(writer):
        return _UNITS.index(reader.unit) >= _UNITS.index(writer.unit) and reader.tz == writer.tz
    return False


# Avro

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def avro_reads(reader: Any, writer: Any) -> list[str]:
    """Return why the reader's schema, which is parsed JSON, cannot read values of the writer's.

    SchemaError: one is malformed, or they are too large to compare.
    """
    try:
        return _Comparing(_Names(reader), _Names(writer)).reasons(reader, "", writer, "", "the value", 0)[:REASONS_MAX]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SchemaError(f"an Avro schema is malformed: {type(error).__name__} {error}") from error


class _Names:
    """The named types of a schema, with the namespaces that they stand in."""

    def __init__(self, schema: Any) -> None:
        self._found: dict[str, tuple[Any, str]] = {}
        self._collect(schema, "")

    def _collect(self, schema: Any, space: str) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, space)
        if not isinstance(schema, dict):
            return
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            full = full_name(schema, space)
            space = full.rpartition(".")[0]
            self._found[full] = (schema, space)
            for field in schema.get("fields", ()):
                self._collect(field["type"], space)
        elif kind in ("array", "map"):
            self._collect(schema["items" if kind == "array" else "values"], space)
        else:
            self._collect(kind, space)

    def resolved(self, schema: Any, space: str) -> tuple[Any, str]:
        """Return what a schema is, without names and wrappers, and the namespace that its parts stand in."""
        for _ in range(PLAN_DEPTH_MAX):
            if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
                schema = schema["type"]
            elif isinstance(schema, dict) and schema["type"] in ("record", "error", "enum", "fixed"):
                return schema, full_name(schema, space).rpartition(".")[0]
            elif isinstance(schema, dict) and schema["type"] in ("array", "map"):
                return schema, space
            elif isinstance(schema, dict) and (logical := _logical(schema)):
                return _Plain(schema["type"], logical), space
            elif isinstance(schema, dict):
                schema = schema["type"]
            elif isinstance(schema, str) and (found := self._named(schema, space)) is not None:
                return found
            else:
                return schema, space
        raise SchemaError(f"an Avro schema has types nested more than {PLAN_DEPTH_MAX} deep")

    def _named(self, name: str, space: str) -> tuple[Any, str] | None:
        return self._found.get(name if "." in name or not space else f"{space}.{name}") or self._found.get(name)


def full_name(schema: Any, space: str) -> str:
    """Return the full name of a definition that stands in a namespace."""
    name = str(schema["name"])
    space = str(schema.get("namespace", space))
    return name if "." in name or not space else f"{space}.{name}"


class _Comparing:
    """Compares two schemas; pairs of types that are being compared count as compatible, for recursive types."""

    def __init__(self, readers: _Names, writers: _Names) -> None:
        self._readers = readers
        self._writers = writers
        self._done: dict[tuple[int, int], list[str]] = {}
        self._count = 0

    def reasons(self, reader: Any, space: str, writer: Any, written_in: str, path: str, depth: int) -> list[str]:
        """Return why a reader's type does not take a writer's; both stand in their namespaces."""
        self._count += 1
        if self._count > COMPARISONS_MAX or depth > 4 * PLAN_DEPTH_MAX:
            raise SchemaError("the Avro schemas are too large to compare")
        reader, space = self._readers.resolved(reader, space)
        writer, written_in = self._writers.resolved(writer, written_in)
        if isinstance(reader, str) or isinstance(writer, str):
            return self._compared(reader, space, writer, written_in, path, depth)
        pair = (id(reader), id(writer))
        if pair not in self._done:
            self._done[pair] = []
            self._done[pair] = self._compared(reader, space, writer, written_in, path, depth)
        return self._done[pair]

    def _compared(self, reader: Any, space: str, writer: Any, written_in: str, path: str, depth: int) -> list[str]:
        if isinstance(writer, list):
            found = []
            for branch in writer:
                found += self.reasons(reader, space, branch, written_in, path, depth + 1)
            return found
        if isinstance(reader, list):
            if any(not self.reasons(branch, space, writer, written_in, path, depth + 1) for branch in reader):
                return []
            return [f"{path} is {_shown(writer)} in the other, which no branch takes"]
        logical, written_logical = _logical(reader), _logical(writer)
        if logical != written_logical:
            return [f"{path} is {logical or 'plain'}, and {written_logical or 'plain'} in the other"]
        kind, written = _kind(reader), _kind(writer)
        if kind != written:
            takes = isinstance(reader, str) and kind in _PROMOTED.get(written, ())
            return [] if takes else [f"{path} is {_shown(reader)}, and {_shown(writer)} in the other"]
        if kind in ("array", "map"):
            part, mark = ("items", "[]") if kind == "array" else ("values", "{}")
            return self.reasons(reader[part], space, writer[part], written_in, path + mark, depth + 1)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named(reader, space, writer, written_in, path, depth)
        return []

    def _named(self, reader: Any, space: str, writer: Any, written_in: str, path: str, depth: int) -> list[str]:
        aliases = [full_name({"name": each}, space) for each in reader.get("aliases", ())]
        name, written = (str(each["name"]).rpartition(".")[2] for each in (reader, writer))
        if written != name and full_name(writer, written_in) not in aliases:
            return [f"{path} is {name}, and {written} in the other"]
        kind = reader["type"]
        if kind == "fixed":
            sizes = reader["size"], writer["size"]
            return [] if sizes[0] == sizes[1] else [f"{path} has {sizes[0]} bytes, and {sizes[1]} in the other"]
        if kind == "enum":
            missing = [str(each) for each in writer["symbols"] if each not in reader["symbols"]]
            takes = not missing or "default" in reader
            return [] if takes else [f"{path} lacks {', '.join(missing[:5])} of the other's symbols"]
        return self._fields(reader, space, writer, written_in, path, depth)

    def _fields(self, reader: Any, space: str, writer: Any, written_in: str, path: str, depth: int) -> list[str]:
        written = {field["name"]: field for field in writer["fields"]}
        found = []
        for field in reader["fields"]:
            names = (field["name"], *field.get("aliases", ()))
            other = next((written[name] for name in names if name in written), None)
            below = str(field["name"]) if path == "the value" else f"{path}.{field['name']}"
            if other is not None:
                found += self.reasons(field["type"], space, other["type"], written_in, below, depth + 1)
            elif "default" not in field:
                found.append(f"{below} has no default, and the other does not have it")
        return found


class _Plain(str):
    """A primitive type with a logical one."""

    logical: str

    __slots__ = ("logical",)

    def __new__(cls, name: str, logical: str) -> _Plain:
        made = super().__new__(cls, name)
        made.logical = logical
        return made


def _logical(schema: Any) -> str:
    """Return the logical type of a schema with what its values depend on: "decimal(9, 2)"; empty for none.

    One that Avro does not know, or that does not go with its type, is none.
    """
    if isinstance(schema, _Plain):
        return str(schema.logical)
    if not isinstance(schema, dict) or not isinstance(schema.get("logicalType"), str):
        return ""
    kind, logical = schema["type"], schema["logicalType"]
    if logical == "decimal":
        return f"decimal({schema.get('precision')}, {schema.get('scale', 0)})" if kind in ("bytes", "fixed") else ""
    return str(logical) if (kind, logical) in LOGICAL else ""


def _kind(schema: Any) -> str:
    return str(schema if isinstance(schema, str) else schema["type"])


def _shown(schema: Any) -> str:
    return str(schema.get("name", schema["type"])) if isinstance(schema, dict) else str(schema)
