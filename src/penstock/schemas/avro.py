"""Plans and decoders of Avro values that stand without their schema: the schema is that of their writer.

Rules: the schema is JSON, as the specification of Avro 1.12 says; named types are found by full name. Values of
another version of a schema are decoded by that version's own plan, and `resolution` makes this one's columns of them.

| Avro                                    | Arrow type                                                               |
|-----------------------------------------|--------------------------------------------------------------------------|
| null, boolean, int, long, float, double | `null`, `bool`, `int32`, `int64`, `float32`, `float64`                   |
| string, bytes, fixed                    | `string`, `binary`, `binary`                                             |
| enum                                    | by `EnumStyle`                                                           |
| array, map, record                      | `list`, `map<string, …>`, `struct`                                       |
| union of null and one more              | the other, nullable                                                      |
| union of null alone                     | `null`                                                                   |
| any other union                         | `struct` with a field for each branch but null, named by the branch       |
| a record inside itself                  | `binary`, as it is encoded                                               |
| decimal                                 | `decimal128`; `binary` beyond 38 digits                                  |
| date, time-millis, time-micros          | `date32`, `time32[ms]`, `time64[us]`                                     |
| timestamp-millis, -micros, -nanos       | `timestamp` of that unit, UTC; `local-…`: without a zone                 |
| uuid and other logical types            | that of the type below                                                   |
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.hot import avro_columns, cells
from penstock.hot.avro_columns import AvroReader
from penstock.hot.typed_columns import Column
from penstock.schemas.avro_defaults import DefaultEncoder
from penstock.schemas.decoding import Decoder, ValueFraming
from penstock.schemas.plans import NO_DEFAULT, VALUE, AvroPart, Budget, EnumStyle, Node, Plan, SchemaError

FIXED_BYTES_MAX = 1 << 20
DECIMAL_DIGITS_MAX = 38  # of Arrow's decimal128

PRIMITIVES: dict[str, tuple[int, pa.DataType]] = {
    "null": (cells.NOTHING, pa.null()),
    "boolean": (cells.BOOL, pa.bool_()),
    "int": (cells.INT32, pa.int32()),
    "long": (cells.INT64, pa.int64()),
    "float": (cells.FLOAT, pa.float32()),
    "double": (cells.DOUBLE, pa.float64()),
    "string": (cells.TEXT, pa.string()),
    "bytes": (cells.BINARY, pa.binary()),
}
LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
NAMED = ("record", "error", "enum", "fixed")


def avro_plan(schema: str | bytes, enums: EnumStyle = EnumStyle.DICTIONARY) -> Plan:
    """Return the columns of a schema in JSON. SchemaError: it is no schema, or it has too many columns."""
    try:
        parsed = json.loads(schema)
        node = _Making(enums).node(parsed, VALUE, "", 0)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the Avro schema is no JSON: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise SchemaError(f"the Avro schema is malformed: {type(error).__name__} {error}") from error
    if node.kind == cells.STRUCT:
        return Plan(node)
    return Plan(Node("", cells.STRUCT, pa.struct([(VALUE, node.type)]), (node,)), is_value=True)


def avro_layout(schema: str) -> object:
    """Return what the bytes of values depend on, and the names of columns: equal for schemas that read each other's.

    SchemaError as `avro_plan`.
    """
    return layout(avro_plan(schema).root)


def layout(node: Node) -> tuple[object, ...]:
    """Return the name of a node, and behind it what its values' bytes and the names of columns in it depend on."""
    symbols = node.avro.symbols
    return (node.name, node.kind, node.type, node.id, node.wire, node.flags, symbols, *map(layout, node.children))


def avro_decoder(plan: Plan, framing: ValueFraming = ValueFraming.BARE) -> Decoder:
    """Return a decoder of values, BARE or CONFLUENT."""
    if framing not in (ValueFraming.BARE, ValueFraming.CONFLUENT):
        raise SchemaError(f"Avro values are not framed as {framing}")
    return Decoder(plan, partial(_reader, framing is ValueFraming.CONFLUENT))


def _reader(is_confluent: bool, root: Column) -> AvroReader:
    reader = AvroReader(root)
    reader.has_schema_id = is_confluent
    return reader


class _Making:
    """Makes the nodes of one plan."""

    def __init__(self, enums: EnumStyle) -> None:
        self._enums = enums
        self._budget = Budget("the Avro schema")
        self._names: dict[str, Any] = {}  # definitions by full name
        self._open: list[str] = []  # the records around a type
        self._recursive: dict[str, int] = {}
        self._defaults = DefaultEncoder()

    def node(self, schema: Any, name: str, space: str, depth: int) -> Node:
        """Return the node of a schema that stands in a namespace."""
        self._budget.take(name, depth)
        if isinstance(schema, list):
            return self._union(schema, name, space, depth)
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                kind, arrow = PRIMITIVES[schema]
                return Node(name, kind, arrow)
            schema, space = self._named(schema, space)
            return self._complex(schema, name, space, depth)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.node(kind, name, space, depth + 1)
        if kind in PRIMITIVES:
            return _logical(Node(name, *PRIMITIVES[kind]), kind, schema)
        if kind in NAMED:
            full, space = full_name(schema, space)
            if full in self._names:
                raise SchemaError(f"the Avro schema defines {full} twice")
            self._names[full] = (schema, space)
            return self._complex(schema, name, space, depth)
        if kind == "array":
            element = self.node(schema["items"], "item", space, depth + 1)
            return Node(name, cells.LIST, pa.list_(pa.field("item", element.type)), (element,))
        if kind == "map":
            value = self.node(schema["values"], "value", space, depth + 1)
            key = Node("key", cells.TEXT, pa.string())
            return Node(name, cells.MAP, pa.map_(pa.string(), value.type), (key, value))
        schema, space = self._named(kind, space)
        return self._complex(schema, name, space, depth)

    def _named(self, name: str, space: str) -> tuple[Any, str]:
        full = name if "." in name or not space else f"{space}.{name}"
        found = self._names.get(full) or self._names.get(name)
        if found is None:
            raise SchemaError(f"the Avro schema has no type {name!r}")
        definition: tuple[Any, str] = found
        return definition

    def _complex(self, schema: Any, name: str, space: str, depth: int) -> Node:
        """Return the node of a named type, whose own namespace is `space`."""
        kind = schema["type"]
        if kind == "fixed":
            size = schema["size"]
            if not isinstance(size, int) or not 0 <= size <= FIXED_BYTES_MAX:
                raise SchemaError(f"{name}: a fixed type of {size} bytes; {FIXED_BYTES_MAX:,} at most")
            part = AvroPart(_type_names(schema))
            node = Node(name, cells.BINARY, pa.binary(), wire=size, flags=avro_columns.FIXED, avro=part)
            return _logical(node, kind, schema)
        if kind == "enum":
            symbols = schema["symbols"]
            if len(set(map(str, symbols))) < len(symbols) or ("default" in schema and schema["default"] not in symbols):
                raise SchemaError(f"{name}: an enum has a symbol twice, or a default that is none of its symbols")
            names = None if self._enums is EnumStyle.NUMBER else dict(enumerate(map(str, symbols)))
            flags = avro_columns.ENUM
            part = AvroPart(_type_names(schema), tuple(map(str, symbols)), schema.get("default"))
            return Node(name, cells.INT32, self._enums.type, wire=len(symbols), flags=flags, names=names, avro=part)
        full, _ = full_name(schema, space)
        if full in self._open:
            place = self._recursive.setdefault(full, len(self._recursive))
            return Node(name, cells.RAW, pa.binary(), wire=place, avro=AvroPart(_type_names(schema)))
        self._open.append(full)
        children = tuple(self._field(field, place, space, depth + 1) for place, field in enumerate(schema["fields"]))
        self._open.pop()
        if len({child.name for child in children}) < len(children):
            raise SchemaError(f"{full} has two fields of one name")
        arrow = pa.struct([(child.name, child.type) for child in children])
        flags = avro_columns.NAMED if full in self._recursive else 0
        wire, part = self._recursive.get(full, 0), AvroPart(_type_names(schema))
        return Node(name, cells.STRUCT, arrow, children, wire=wire, flags=flags, avro=part)

    def _field(self, field: Any, place: int, space: str, depth: int) -> Node:
        node = self.node(field["type"], str(field["name"]), space, depth)
        aliases, default = tuple(map(str, field.get("aliases", ()))), field.get("default", NO_DEFAULT)
        if default is not NO_DEFAULT:
            with contextlib.suppress(NotImplementedError):
                self._defaults.encode(node, default)
        return replace(node, id=place, avro=replace(node.avro, aliases=aliases, default=default))

    def _union(self, schema: list[Any], name: str, space: str, depth: int) -> Node:
        null = schema.index("null") if "null" in schema else -1
        branches = [(place, each) for place, each in enumerate(schema) if place != null]
        if null >= 0 and len(branches) == 1:
            child = self.node(branches[0][1], name, space, depth + 1)
            return Node(name, cells.CHOICE, child.type, (child,), wire=null, flags=avro_columns.ALONE)
        if not branches:
            if null < 0:
                raise SchemaError(f"{name}: a union without branches")
            return Node(name, cells.CHOICE, pa.null(), wire=null)
        children = tuple(
            replace(self.node(each, _branch_name(each), space, depth + 1), id=place) for place, each in branches
        )
        arrow = pa.struct([(child.name, child.type) for child in children])
        return Node(name, cells.CHOICE, arrow, children, wire=null)


def _branch_name(schema: Any) -> str:
    """Return the name of a union's branch: of a named type without its namespace."""
    if isinstance(schema, dict):
        schema = schema["name"] if schema["type"] in NAMED else schema["type"]
    return str(schema).rpartition(".")[2]


def _type_names(schema: Any) -> tuple[str, ...]:
    """Return the name of a named type without its namespace, and its aliases."""
    return tuple(str(each).rpartition(".")[2] for each in (schema["name"], *schema.get("aliases", ())))


def full_name(schema: Any, space: str) -> tuple[str, str]:
    """Return the full name of a definition, and the namespace of what stands in it."""
    name = str(schema["name"])
    if "." in name:
        return name, name.rpartition(".")[0]
    space = str(schema.get("namespace", space))
    return (f"{space}.{name}" if space else name), space


def _logical(node: Node, kind: str, schema: Any) -> Node:
    """Return the node with the type that a logical type gives it; an unknown one gives none, as Avro says."""
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        digits, scale = schema.get("precision"), schema.get("scale", 0)
        fits = isinstance(digits, int) and isinstance(scale, int) and 0 <= scale <= digits <= DECIMAL_DIGITS_MAX
        if fits and digits > 0 and node.wire <= 16:
            bounds = b"".join(bound.to_bytes(16, "little", signed=True) for bound in (10**digits, -(10**digits)))
            return replace(node, kind=cells.DECIMAL, type=pa.decimal128(digits, scale), filling=bounds)
        return node
    found = LOGICAL.get((kind, logical)) if isinstance(logical, str) else None
    return node if found is None else replace(node, type=found)
