"""Plans and decoders of JSON values, from an Arrow schema or a JSON Schema.

Rules: a value is one JSON object, in UTF-8. A row in which a column has another type than its schema says, or lacks one
that is not nullable, is refused as a whole; other members are skipped. So the columns themselves are all nullable. Of a
JSON Schema only types are read: patterns, bounds and the like are for a validator. What has no column type is `string`:
the characters of a JSON string, the JSON of anything else; the metadata `penstock.json` of such a field is `text`.

| JSON Schema                                         | Arrow type                                              |
|-----------------------------------------------------|---------------------------------------------------------|
| `integer`, `number`, `boolean`, `null`              | `int64`, `float64`, `bool`, `null`                      |
| `string`; of format `date-time`, `date`             | `string`; `timestamp[us, UTC]`, `date32`                |
| `object` with `properties`                          | `struct`                                                |
| `object` with `additionalProperties` alone          | `map<string, …>`                                        |
| `array` with `items`                                | `list`                                                  |
| `["…", "null"]`, `anyOf` or `oneOf` with a null     | the other, nullable                                     |
| `$ref` into this schema                             | what it refers to                                       |
| anything else, and a schema inside itself           | `string`, the JSON                                      |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.hot import cells, json_columns
from penstock.hot.json_columns import JsonReader
from penstock.hot.typed_columns import Column
from penstock.schemas.decoding import Decoder, ValueFraming
from penstock.schemas.plans import Budget, Node, Plan, SchemaError

JSON_TEXT = {b"penstock.json": b"text"}
"""The metadata of a field whose column is the JSON of any value."""

_WIDTHS = {
    pa.int8(): (cells.INT8, 0),
    pa.int16(): (cells.INT16, 0),
    pa.int32(): (cells.INT32, 0),
    pa.int64(): (cells.INT64, 0),
    pa.uint8(): (cells.INT8, json_columns.UNSIGNED),
    pa.uint16(): (cells.INT16, json_columns.UNSIGNED),
    pa.uint32(): (cells.INT32, json_columns.UNSIGNED),
    pa.uint64(): (cells.INT64, json_columns.UNSIGNED),
    pa.float32(): (cells.FLOAT, 0),
    pa.float64(): (cells.DOUBLE, 0),
    pa.bool_(): (cells.BOOL, 0),
    pa.string(): (cells.TEXT, 0),
    pa.binary(): (cells.BINARY, 0),
    pa.date32(): (cells.INT32, json_columns.DATE),
    pa.null(): (cells.NOTHING, 0),
}
_UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_SIMPLE = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "null": pa.null()}
_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}


def json_plan(schema: pa.Schema) -> Plan:
    """Return the columns of an Arrow schema. SchemaError: it has a type that JSON cannot be decoded to."""
    budget = Budget("the schema")
    children = tuple(_node(field, field.name, budget, 1) for field in schema)
    if len({child.name for child in children}) < len(children):
        raise SchemaError("the schema has two fields of one name")
    children = tuple(replace(child, id=place) for place, child in enumerate(children))
    return Plan(Node("", cells.STRUCT, _struct(schema, children), children))


def json_decoder(plan: Plan, framing: ValueFraming = ValueFraming.BARE) -> Decoder:
    """Return a decoder of values, BARE or CONFLUENT."""
    if framing not in (ValueFraming.BARE, ValueFraming.CONFLUENT):
        raise SchemaError(f"JSON values are not framed as {framing}")
    return Decoder(plan, partial(_reader, framing is ValueFraming.CONFLUENT))


def _reader(is_confluent: bool, root: Column) -> JsonReader:
    reader = JsonReader(root)
    reader.has_schema_id = is_confluent
    return reader


def _node(field: pa.Field, path: str, budget: Budget, depth: int) -> Node:
    """Return the node of a field."""
    budget.take(path, depth)
    kind, name, is_needed = field.type, field.name, not field.nullable
    if (field.metadata or {}).get(b"penstock.json") == b"text" and kind == pa.string():
        return Node(name, cells.TEXT, kind, flags=json_columns.ANY, is_needed=is_needed)
    if kind in _WIDTHS:
        code, flags = _WIDTHS[kind]
        return Node(name, code, kind, flags=flags, is_needed=is_needed)
    if pa.types.is_timestamp(kind):
        digits = _UNIT_DIGITS[kind.unit]
        return Node(name, cells.INT64, kind, wire=digits, flags=json_columns.TIME, is_needed=is_needed)
    if pa.types.is_struct(kind):
        inner = list(kind)
        if len({each.name for each in inner}) < len(inner):
            raise SchemaError(f"{path} has two fields of one name")
        below = tuple(
            replace(_node(each, f"{path}.{each.name}", budget, depth + 1), id=place) for place, each in enumerate(inner)
        )
        return Node(name, cells.STRUCT, _struct(inner, below), below, is_needed=is_needed)
    if pa.types.is_list(kind):
        element = _node(kind.value_field, f"{path}[]", budget, depth + 1)
        arrow = pa.list_(pa.field(element.name, element.type))
        return Node(name, cells.LIST, arrow, (element,), is_needed=is_needed)
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        key = Node("key", cells.TEXT, pa.string())
        value = _node(kind.item_field, f"{path}{{}}", budget, depth + 1)
        return Node(name, cells.MAP, pa.map_(pa.string(), value.type), (key, value), is_needed=is_needed)
    raise SchemaError(f"{path}: JSON is not decoded to the type {kind}")


def _struct(fields: Iterable[pa.Field], nodes: Sequence[Node]) -> pa.DataType:
    """Return the type of a struct in which all can be null: a row that is refused is null as a whole."""
    pairs = zip(fields, nodes, strict=True)
    return pa.struct([pa.field(node.name, node.type, metadata=field.metadata) for field, node in pairs])


def arrow_of_json_schema(text: str | bytes) -> pa.Schema:
    """Return the Arrow schema of a JSON Schema. SchemaError: it is no JSON, or describes no object with properties."""
    try:
        schema = json.loads(text)
        found = _Reading(schema).type_of(schema, "", 0)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the JSON Schema is no JSON: {error}") from error
    except (TypeError, AttributeError, KeyError) as error:
        raise SchemaError(f"the JSON Schema is malformed: {type(error).__name__} {error}") from error
    if found is None or not pa.types.is_struct(found):
        raise SchemaError("the JSON Schema describes no object with properties, so there are no columns")
    return pa.schema(list(found))


class _Reading:
    """Reads the types of one JSON Schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._budget = Budget("the JSON Schema")
        self._open: list[int] = []  # the schemas around a schema, by identity

    def type_of(self, schema: Any, path: str, depth: int) -> pa.DataType | None:
        """Return the type of what a schema describes; None: it has none as a column."""
        self._budget.take(path or "its root", depth)
        if not isinstance(schema, dict) or id(schema) in self._open:
            return None
        self._open.append(id(schema))
        try:
            return self._typed(schema, path, depth)
        finally:
            self._open.pop()

    def _typed(self, schema: dict[str, Any], path: str, depth: int) -> pa.DataType | None:
        if "$ref" in schema:
            return self.type_of(self._referred(schema["$ref"]), path, depth + 1)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                others = [each for each in schema[word] if each != {"type": "null"}]
                return self.type_of(others[0], path, depth + 1) if len(others) == 1 else None
        if "allOf" in schema:
            only = schema["allOf"]
            return self.type_of(only[0], path, depth + 1) if len(only) == 1 and "properties" not in schema else None
        kind = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(kind, list):
            kinds = [each for each in kind if each != "null"]
            kind = kinds[0] if len(kinds) == 1 else None
        if kind == "string":
            return _FORMATS.get(str(schema.get("format")), pa.string())
        if kind == "array":
            inner = self._field("item", schema.get("items"), f"{path}[]", depth, True)
            return pa.list_(inner)
        return self._object(schema, path, depth) if kind == "object" else _SIMPLE.get(str(kind))

    def _object(self, schema: dict[str, Any], path: str, depth: int) -> pa.DataType | None:
        properties = schema.get("properties")
        if not properties:
            values = schema.get("additionalProperties")
            if not isinstance(values, dict):
                return None
            return pa.map_(pa.string(), self._field("value", values, f"{path}{{}}", depth, True))
        needed = set(map(str, schema.get("required", ())))
        return pa.struct(
            [
                self._field(str(name), each, f"{path}.{name}".lstrip("."), depth, name not in needed)
                for name, each in properties.items()
            ]
        )

    def _field(self, name: str, schema: Any, path: str, depth: int, is_nullable: bool) -> pa.Field:
        found = self.type_of(schema, path, depth + 1)
        is_nullable = is_nullable or found is None or _takes_null(schema) or "$ref" in schema
        if found is None:
            return pa.field(name, pa.string(), metadata=JSON_TEXT)
        return pa.field(name, found, nullable=is_nullable)

    def _referred(self, reference: Any) -> Any:
        """Return what `#/$defs/Name` names in this schema. SchemaError: it is elsewhere, or nothing."""
        found, steps = self._root, str(reference).split("/")
        for step in steps[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, dict) else None
        if steps[0] != "#" or found is None:
            raise SchemaError(f"the JSON Schema refers to {reference!r}, which is not in it")
        return found


def _takes_null(schema: Any) -> bool:
    """True if a schema allows null, as far as types say."""
    kind = schema.get("type")
    branches = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return kind == "null" or (isinstance(kind, list) and "null" in kind) or {"type": "null"} in branches
