"""A plan of typed columns: what a decoder builds, made once from a schema.

Rules: a plan is immutable and has at most PLAN_NODES_MAX nodes in at most PLAN_DEPTH_MAX levels, since a schema of a
few lines can name a type in a type in a type many times over. A type that contains itself has no end as columns: where
it comes again, its column is `binary` and has the value as it is encoded.

| value                        | Arrow type                                                                          |
|------------------------------|-------------------------------------------------------------------------------------|
| bool, whole numbers, doubles | of the same size                                                                    |
| string, binary               | `string`, `binary`                                                                  |
| UUID                         | `string`, its text in lower case                                                    |
| enum                         | by `EnumStyle`; a number without a name is the text of the number                   |
| list, set                    | `list`                                                                              |
| map                          | `map`, entries in the order of the message, also of keys that come twice            |
| struct, exception            | `struct`                                                                            |
| union                        | `struct`, in which the field that is set is not null; none, if it is one unknown    |
| a type inside itself         | `binary`, as it is encoded                                                          |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import PenstockError
from penstock.hot import avro_columns, cells
from penstock.hot.typed_columns import Column

PLAN_NODES_MAX = 4_096  # columns, nested ones included
PLAN_DEPTH_MAX = 32  # levels of nested types
VALUE = "value"
"""The only column of values that are no structs."""


class SchemaError(PenstockError):
    """A schema that cannot be used: what is wrong with it, and where."""


class EnumStyle(StrEnum):
    """Form of enums as columns: `dictionary<int32, string>`, `string`, or their numbers as `int32`."""

    DICTIONARY = "dictionary"
    STRING = "string"
    NUMBER = "number"

    @property
    def type(self) -> pa.DataType:
        """The Arrow type."""
        if self is EnumStyle.DICTIONARY:
            return pa.dictionary(pa.int32(), pa.string())
        return pa.string() if self is EnumStyle.STRING else pa.int32()


NO_DEFAULT: Any = object()


@dataclass(frozen=True, slots=True)
class AvroPart:
    """Parts of an Avro type, and of the field that it stands in, which schema resolution needs.

    `type_names`: of a named type without its namespace, then its aliases. `symbols`: of an enum, whose `default_symbol`
    stands for others. `aliases`: of the field; `default`: of the field, as JSON.
    """

    type_names: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    aliases: tuple[str, ...] = ()
    default: Any = NO_DEFAULT


_NO_PART = AvroPart()


@dataclass(frozen=True, slots=True)
class Node:
    """A column of a plan. `kind`: of `hot.cells`; `type`: of the finished array; `children`: in the schema's order.

    `id`, `wire` and `flags` are what the reader of the encoding needs (`hot.typed_columns.Column`). `filling`: the
    default of a missing field, in Thrift's binary protocol; of a decimal its bounds. `names`: of an enum's numbers, for
    all styles but NUMBER.
    """

    name: str
    kind: int
    type: pa.DataType
    children: tuple[Node, ...] = ()
    id: int = 0
    wire: int = 0
    flags: int = 0
    is_needed: bool = False
    filling: bytes | None = None
    names: Mapping[int, str] | None = field(default=None, compare=False)
    avro: AvroPart = field(default=_NO_PART, compare=False)

    def column(self) -> Column:
        """Return an empty column to build; fields of structs in the order of their ids."""
        children = [child.column() for child in self.ordered]
        name = self.name.encode()
        return Column(self.kind, children, self.id, self.wire, self.flags, self.is_needed, self.filling, name)

    @property
    def ordered(self) -> Sequence[Node]:
        """The children as the column has them."""
        return sorted(self.children, key=lambda child: child.id) if self.kind == cells.STRUCT else self.children


@dataclass(frozen=True, slots=True)
class Plan:
    """The columns of a type. `root` is a struct; `is_value`: its only field `value` is the value itself."""

    root: Node
    is_value: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The schema of the decoded columns."""
        return pa.schema(list(self.root.type))


class Budget:
    """Counts the nodes of a plan that is being made; `root` is what errors call it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.nodes = 0

    def take(self, what: str, depth: int) -> None:
        """Count a node. SchemaError: it is one too many, or too deep."""
        self.nodes += 1
        if self.nodes > PLAN_NODES_MAX:
            raise SchemaError(f"{self.root} has more than {PLAN_NODES_MAX:,} columns, nested ones included")
        if depth > PLAN_DEPTH_MAX:
            raise SchemaError(f"{self.root} has types nested more than {PLAN_DEPTH_MAX} deep, at {what}")


def array_of(column: Column, node: Node) -> pa.Array:
    """Return the finished array of a column; the column is done then."""
    nulls = column.nulls()
    valid = pa.py_buffer(column.validity()) if nulls else None
    below = {child.id: child for child in column.children} if node.kind == cells.STRUCT else {}
    parts = [
        array_of(below[child.id] if below else column.children[place], child)
        for place, child in enumerate(node.children)
    ]
    if node.kind == cells.CHOICE and node.flags & avro_columns.ALONE:
        return parts[0]
    kind, count = node.type, column.count
    if pa.types.is_null(kind):
        return pa.nulls(count)
    values, data = column.buffers()
    if node.kind in (cells.STRUCT, cells.CHOICE):
        return pa.Array.from_buffers(kind, count, [valid], nulls, children=parts)
    if node.kind == cells.LIST:
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(values)], nulls, children=parts)
    if node.kind == cells.MAP:
        entries = pa.struct([kind.key_field, kind.item_field])
        both = pa.Array.from_buffers(entries, len(parts[0]), [None], 0, children=parts)
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(values)], nulls, children=[both])
    if node.kind in (cells.TEXT, cells.BINARY, cells.UUID, cells.RAW):
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(values), pa.py_buffer(data)], nulls)
    if node.names is not None:
        numbers = pa.Array.from_buffers(pa.int32(), count, [valid, pa.py_buffer(values)], nulls)
        return _named(numbers, node.names, kind)
    return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(values)], nulls)


def _named(numbers: pa.Array, names: Mapping[int, str], kind: pa.DataType) -> pa.Array:
    """Return the names of an enum's numbers; of other numbers their digits."""
    known = pa.array(list(names), pa.int32())
    texts = list(names.values())
    places = pc.index_in(numbers, known)
    if places.null_count > numbers.null_count:
        unknown = pc.unique(numbers.filter(pc.and_(places.is_null(), numbers.is_valid())))
        texts += [str(number) for number in unknown.to_pylist()]
        places = pc.index_in(numbers, pa.concat_arrays([known, unknown]))
    named = pa.DictionaryArray.from_arrays(places, pa.array(texts, pa.string()))
    return named if pa.types.is_dictionary(kind) else named.cast(kind)
