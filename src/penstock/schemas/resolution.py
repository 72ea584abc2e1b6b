"""Columns of one version of an Avro schema as those of another: Avro's schema resolution, on columns.

Rules: what becomes of a row does not depend on the rows beside it. A value that the reader does not take is null, and
its row is marked; the registry lets no such versions in unless they are forced. A null where the reader knows none
stays null. A record inside itself stays as its writer has encoded it.

| reader                | gets                                                                                         |
|-----------------------|----------------------------------------------------------------------------------------------|
| field of a record     | the writer's of its name, else of the first of its aliases, else its default, else null      |
| enum                  | the symbol; its default for a symbol that it lacks                                           |
| float, double         | the writer's number, rounded                                                                 |
| union                 | in the branch of the same type and name, else in the first one that the value is promoted to |
| any type, of a union  | the value of whichever branch was written                                                    |
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base import limits
from penstock.hot import avro_columns, cells
from penstock.schemas.avro import avro_decoder, layout
from penstock.schemas.avro_defaults import DefaultEncoder
from penstock.schemas.plans import NO_DEFAULT, VALUE, Node, Plan
from penstock.schemas.projection import cast, either, list_of, map_of, marked

Resolved = tuple[pa.Array, pa.BooleanArray | None]
"""Columns of the reader's type, and which rows have a value that is lost; None: none has."""

_NUMBERS = (cells.INT32, cells.INT64, cells.FLOAT, cells.DOUBLE)  # each is promoted to those behind it
_PLAIN_NUMBERS = (pa.int32(), pa.int64(), pa.float32())
_TEXTS = (cells.TEXT, cells.BINARY)


class Resolution:
    """The columns of a reader's plan for columns of a writer's."""

    def __init__(self, writer: Plan, reader: Plan) -> None:
        self._writer = writer
        self._reader = reader
        self._same: dict[tuple[int, int], bool] = {}  # by the identities of nodes, which the plans keep
        self._defaults: dict[int, pa.Array | None] = {}

    def columns(self, array: pa.StructArray) -> Resolved:
        """Return columns of the reader."""
        values, writer, reader = array, self._writer.root, self._reader.root
        if self._writer.is_value:
            values, writer = array.field(0), writer.children[0]
        if not self._reader.is_value:
            return self._resolved(values, writer, reader)
        made, lost = self._resolved(values, writer, reader.children[0])
        return _struct(array, reader.type, [made]), lost

    def _resolved(self, array: pa.Array, writer: Node, reader: Node) -> Resolved:
        if self._is_same(writer, reader):
            return array, None
        kinds = writer.kind, reader.kind
        if pa.types.is_null(writer.type):
            return pa.nulls(len(array), reader.type), None
        if writer.kind == cells.CHOICE:
            return self._of_choice(array, writer, reader)
        if reader.kind == cells.CHOICE:
            return self._into_choice(array, writer, reader)
        if kinds == (cells.STRUCT, cells.STRUCT):
            return self._record(array, writer, reader)
        if kinds == (cells.LIST, cells.LIST):
            values, lost = self._resolved(array.values, writer.children[0], reader.children[0])
            return list_of(array, reader.type, values, lost)
        if kinds == (cells.MAP, cells.MAP):
            items, lost = self._resolved(array.items, writer.children[1], reader.children[1])
            return map_of(array, reader.type, array.keys, items, lost)
        if writer.avro.symbols and reader.avro.symbols:
            return _enum(array, writer, reader)
        if writer.type in _PLAIN_NUMBERS and reader.kind in (cells.FLOAT, cells.DOUBLE):
            return array.cast(reader.type, safe=False), None
        return cast(array, reader.type)

    def _is_same(self, writer: Node, reader: Node) -> bool:
        key = id(writer), id(reader)
        if key not in self._same:
            self._same[key] = layout(writer)[1:] == layout(reader)[1:]
        return self._same[key]

    def _record(self, array: pa.StructArray, writer: Node, reader: Node) -> Resolved:
        places = {child.name: place for place, child in enumerate(writer.children)}
        parts, marks = [], []
        for child in reader.children:
            names = (child.name, *child.avro.aliases)
            place = next((places[name] for name in names if name in places), None)
            if place is None:
                part, lost = self._default(child, len(array))
            else:
                part, lost = self._resolved(array.field(place), writer.children[place], child)
            parts.append(part)
            if lost is not None:
                marks.append(pc.and_(lost, array.is_valid()))
        return _struct(array, reader.type, parts), either(marks)

    def _default(self, field: Node, count: int) -> Resolved:
        """Return so many defaults of a field; nulls if it has none. They are lost if all together are too large."""
        if id(field) not in self._defaults:
            self._defaults[id(field)] = _default(field)
        found = self._defaults[id(field)]
        if found is None:
            return pa.nulls(count, field.type), None
        if count * found.nbytes > limits.SCHEMA_DEFAULTS_BYTES_MAX:
            return pa.nulls(count, field.type), pa.repeat(pa.scalar(True), count)
        return found.take(pa.repeat(pa.scalar(0), count)), None

    def _of_choice(self, array: pa.Array, writer: Node, reader: Node) -> Resolved:
        """Return values of a writer's union."""
        if writer.flags & avro_columns.ALONE:
            return self._resolved(array, writer.children[0], reader)
        count, made, marks = len(array), [], []
        rows = pa.array(range(count), pa.int64())
        places = pa.nulls(count, pa.int64())
        for place, child in enumerate(writer.children):
            branch = array.field(place)
            part, lost = self._resolved(branch, child, reader)
            made.append(part)
            places = pc.if_else(branch.is_valid(), pc.add(rows, place * count), places)
            if lost is not None:
                marks.append(lost)
        return pa.concat_arrays(made).take(places), either(marks)

    def _into_choice(self, array: pa.Array, writer: Node, reader: Node) -> Resolved:
        """Return values that are no union for a reader's union."""
        if reader.flags & avro_columns.ALONE:
            return self._resolved(array, writer, reader.children[0])
        chosen = _branch(writer, reader)
        if chosen is None:
            return marked(pa.nulls(len(array), reader.type), array)
        part, lost = self._resolved(array, writer, chosen)
        parts = [part if each is chosen else pa.nulls(len(array), each.type) for each in reader.children]
        return _struct(array, reader.type, parts), lost


def _struct(array: pa.Array, kind: pa.DataType, parts: list[pa.Array]) -> pa.StructArray:
    """Return a struct that is null where an array is."""
    mask = array.is_null() if array.null_count else None
    if not parts:
        valid = array.is_valid().buffers()[1] if array.null_count else None
        return pa.Array.from_buffers(kind, len(array), [valid], array.null_count, children=[])
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)


def _enum(array: pa.Array, writer: Node, reader: Node) -> Resolved:
    known = reader.avro.symbols
    symbols = [one if one in known else reader.avro.default_symbol for one in writer.avro.symbols]
    if reader.names is None:
        places = [None if one is None else known.index(one) for one in symbols]
        return marked(pa.array(places, pa.int32()).take(array), array)
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    taken = dict(zip(writer.avro.symbols, symbols, strict=True))
    texts = pa.array([taken[one] for one in encoded.dictionary.to_pylist()], pa.string()).take(encoded.indices)
    is_dictionary = pa.types.is_dictionary(reader.type)
    return marked(texts.dictionary_encode().cast(reader.type) if is_dictionary else texts, array)


def _branch(writer: Node, reader: Node) -> Node | None:
    """Return the branch of a reader's union that takes a writer's type."""
    for fits in (_is_alike, _is_promoted):
        for child in reader.children:
            if fits(writer, child):
                return child
    return None


def _is_alike(writer: Node, reader: Node) -> bool:
    """True if both are the same type, by name if they have names."""
    if writer.avro.type_names or reader.avro.type_names:
        return any(name in reader.avro.type_names for name in writer.avro.type_names[:1])
    is_plain = writer.kind not in (cells.LIST, cells.MAP)
    return writer.kind == reader.kind and (writer.type == reader.type or not is_plain)


def _is_promoted(writer: Node, reader: Node) -> bool:
    if writer.avro.type_names or reader.avro.type_names:
        return False
    if writer.kind in _TEXTS and reader.kind in _TEXTS:
        return True
    return writer.kind in _NUMBERS and reader.kind in _NUMBERS[_NUMBERS.index(writer.kind) :]


def _default(field: Node) -> pa.Array | None:
    """Return a field's default as an array of one value; None: none, or one with a record inside itself."""
    if field.avro.default is NO_DEFAULT:
        return None
    try:
        text = DefaultEncoder().encode(field, field.avro.default)
    except NotImplementedError:
        return None
    root = Node("", cells.STRUCT, pa.struct([(VALUE, field.type)]), (field,))
    found = avro_decoder(Plan(root, is_value=True)).decode(pa.array([text], pa.binary()))
    return None if found.refused.count else found.columns.field(0)
