"""Decodes JSON values to typed Arrow columns.

Rules: every row is kept, in order; what does not become a column is counted in `JsonReport`. The schema is inferred
once, and then fixed. Names of the log's columns stay theirs: a field of that name gets the prefix `data_`.

| JSON                                  | column                                                                |
|---------------------------------------|-----------------------------------------------------------------------|
| whole numbers of at most 64 bits      | int64; with fractions, exponents or larger numbers among them: double |
| ... that a double would change        | string: the JSON text; not if all are at most 64 bits                 |
| strings                               | string; timestamp[us, UTC] if all are ISO 8601 times (no zone: UTC)   |
| objects, arrays                       | struct, list                                                          |
| values of different kinds, or {} only | string: the JSON text                                                 |
| objects with fields that differ only  | string: the JSON text; other programs would confuse the fields        |
| in case, or with NUL in their names   |                                                                       |
| null, no such field, a tombstone      | null                                                                  |
| not an object, or not JSON, or deeper | all columns null, counted                                             |
| a value that the column cannot hold   | null, counted; a string column holds any value, as JSON text          |
| a field that the schema lacks         | left out, counted                                                     |

pyarrow parses many values at once, each wrapped as a line `{"v":…}`. A line ends with `}`, and the next begins with
`{`, which cannot follow it inside a value or, because of the line end, inside a string. So a text that parses has a
document at each line at least; if it has as many as lines, each value is one document. Otherwise, or if a value does
not fit, the rows are split into their fields one by one, and each field is parsed by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from math import isqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.units import counted
from penstock.client.checks import COLUMNS
from penstock.client.read.batches import partition_of

if TYPE_CHECKING:
    import pyarrow as pa

_VALUE = "value"
_RESERVED = {*COLUMNS, "partition"} - {_VALUE}
_PREFIX = "data_"
_DOUBLE_EXACT = 1 << 53  # from here on a double may change a whole number
_BIG = r"\d{16}"
_NUL = "\N{SYMBOL FOR NULL}"  # in names of columns: for other programs NUL ends a text
_OBJECT = r"^[ \t\r\n]*\{"
_TIME = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?$"
_OTHERS = "other fields"

_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Place = Callable[[int], str]
"""Function from a row's number to its position in the log, as text."""


class Counted(NamedTuple):
    """A number of values, and the position of the first one: "offset 17"."""

    values: int
    first: str


class JsonReport:
    """Counts of the decoded `rows`, and of what of them is not in columns.

    `not_objects`: values that are not JSON objects. By the name of the column, `unfit`: values that it cannot hold.
    By the path of the field, `left_out`: values of fields that the schema lacks.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.not_objects = Counted(0, "")
        self.unfit: dict[str, Counted] = {}
        self.left_out: dict[str, Counted] = {}

    def __bool__(self) -> bool:
        return bool(self.not_objects.values or self.unfit or self.left_out)

    def sentences(self) -> list[str]:
        """Return the report as sentences; empty if everything is in columns."""
        said = []
        if self.not_objects.values:
            count, first = self.not_objects
            of = f"{count:,} of {counted(self.rows, 'value')}"
            said.append(f"{of} {_are(count)} not {_a(count, 'JSON object')} (first: {first}): null in all columns")
        for name, (count, first) in self.unfit.items():
            said.append(f"{counted(count, 'value')} of {name!r} {_do(count)} not fit its type (first: {first}): null")
        for name, (count, first) in self.left_out.items():
            said.append(f"{counted(count, 'value')} of {name!r}, which the schema lacks, left out (first: {first})")
        return said

    def note_not_object(self, first: str) -> None:
        """Count a value that is not a JSON object."""
        count, earlier = self.not_objects
        self.not_objects = Counted(count + 1, earlier or first)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _do(count: int) -> str:
    return "does" if count == 1 else "do"


def _a(count: int, noun: str) -> str:
    return f"a {noun}" if count == 1 else f"{noun}s"


def _note(counts: dict[str, Counted], name: str, values: int, first: str) -> None:
    if name not in counts and len(counts) >= limits.JSON_REPORT_NAMES_MAX:
        name = _OTHERS
    earlier = counts.get(name, Counted(0, first))
    counts[name] = Counted(earlier.values + values, earlier.first)


class JsonColumns:
    """Replaces the column `value` of batches by columns of JSON; `report` has what is not in them."""

    def __init__(self) -> None:
        self.report = JsonReport()
        self._types: dict[str, pa.DataType] = {}

    def infer(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Infer the schema from the values of `batches`. ValueError: JSON_COLUMNS_MAX (1,000) fields are exceeded."""
        found: dict[str, pa.DataType | None] = {}
        for batch in batches:
            for values in _parts(_values(batch)):
                for name, kind in _types(values).items():
                    found[name] = _merged(found[name], kind) if name in found else kind
                if len(found) > limits.JSON_COLUMNS_MAX:
                    text = f"the values have more than {limits.JSON_COLUMNS_MAX:,} different fields"
                    raise ValueError(f"{text}, too many for columns; read them undecoded")
        self._types = {name: _settled(kind) for name, kind in found.items()}

    def schema(self, log_schema: pa.Schema) -> pa.Schema:
        """Return the schema of the decoded batches of a log read with the columns of `log_schema`."""
        import pyarrow as pa

        kept = [field for field in log_schema if field.name != _VALUE]
        columns = map(pa.field, _column_names(self._types), self._types.values())
        return pa.schema([*kept, *columns], log_schema.metadata)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the columns of JSON after the others. ValueError: it has no column `value`."""
        import pyarrow as pa

        place, first = _places(batch, self.report.rows), 0
        parts: list[list[pa.Array]] = [[] for _ in self._types]
        for values in _parts(_values(batch)):
            for part, column in zip(parts, self._decoded(values, place, first), strict=True):
                part.append(column)
            first += len(values)
        self.report.rows += batch.num_rows
        kept = [column for name, column in zip(batch.schema.names, batch.columns, strict=True) if name != _VALUE]
        made = [pa.concat_arrays(part) for part in parts]
        return pa.RecordBatch.from_arrays([*kept, *made], schema=self.schema(batch.schema))

    def batches(
        self,
        source: Iterable[pa.RecordBatch],
        *,
        inferred_rows: int = limits.DECODE_INFERRED_ROWS,
        as_text: bool = False,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the batches of `source` decoded; the first `inferred_rows` rows (64 MiB at most) fix the schema.

        `as_text`: all columns are strings, which hold any value, as JSON text.
        """
        import pyarrow as pa

        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        coming = iter(source)
        while rows < inferred_rows and size < limits.DECODE_INFERRED_BYTES:
            if (batch := next(coming, None)) is None:
                break
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        self.infer(waiting)
        if as_text:
            self._types = dict.fromkeys(self._types, pa.string())
        while waiting:
            yield self.batch(waiting.pop(0))
        for batch in coming:
            yield self.batch(batch)

    def _decoded(self, values: pa.Array, place: Place, first: int) -> Sequence[pa.Array]:
        """Return the columns of some values, which begin at row `first` of their batch."""
        import pyarrow as pa

        objects = _objects(values)
        bad = _rows_where(objects.is_null(), values.is_valid())
        kind, count = pa.struct(list(self._types.items())), len(objects)
        found, rows = pa.nulls(count, kind), []
        left_out = dict(self.report.left_out)
        if objects.null_count < count:
            found = self._parsed(_lines(objects), count, kind, "", _after(place, first))
            if found is not None and _may_be_changed(found, objects):
                found, self.report.left_out = None, left_out
        if found is None:
            rows = [None if value is None else _fields_of(value) for value in objects.to_pylist()]
            bad += [row for row in _rows_where(objects.is_valid()) if rows[row] is None]
        for row in sorted(bad):
            self.report.note_not_object(place(first + row))
        if found is not None:
            columns: Sequence[pa.Array] = found.flatten()
            return columns
        for number, one in enumerate(rows):
            for name in one or ():
                if name not in self._types:
                    _note(self.report.left_out, name, 1, place(first + number))
        return [
            self._column([None if one is None else one.get(name) for one in rows], name, kind, place, first)
            for name, kind in self._types.items()
        ]

    def _column(self, texts: list[bytes | None], name: str, kind: pa.DataType, place: Place, first: int) -> pa.Array:
        """Return one field of all rows, given as JSON texts."""
        import pyarrow as pa

        if kind == pa.string():
            return pa.array([None if text is None else _text(text) for text in texts], kind)
        kinds = _json_kinds(kind)
        fitting: list[pa.Array] = []
        ranges = [(0, len(texts))]
        usable = [
            text if text is None or (_json_kind(text) in kinds and not _is_changed(text, kind)) else None
            for text in texts
        ]
        unfit = [row for row, text in enumerate(texts) if text is not usable[row]]
        while ranges:  # those that do not parse are halved, until single rows remain
            start, end = ranges.pop()
            lines = b"".join(b'{"v":%b}\n' % (text or b"null") for text in usable[start:end])
            found = self._parsed(pa.py_buffer(lines), end - start, kind, name, _after(place, first + start))
            if found is not None:
                fitting.append(found)
            elif end - start == 1:
                fitting.append(pa.nulls(1, kind))
                unfit.append(start)
            else:
                middle = (start + end) // 2
                ranges += [(middle, end), (start, middle)]
        if unfit:
            _note(self.report.unfit, name, len(unfit), place(first + min(unfit)))
        return pa.concat_arrays(fitting)

    def _parsed(self, lines: pa.Buffer, rows: int, kind: pa.DataType, path: str, place: Place) -> pa.Array | None:
        """Return the values as an array of `kind`, None if they do not parse as that; count fields that it lacks."""
        found = _parsed(lines, rows, kind)
        if found is None or found.type == kind:
            return found
        for name, values in _fields_beyond(found, kind, path):
            if with_it := _rows_where(values.is_valid()):
                # The rows of a list's values are not those of the batch.
                first = place(with_it[0]) if len(values) == rows else f"at or after {place(0)}"
                _note(self.report.left_out, name, len(with_it), first)
        return _parsed(lines, rows, kind, unknown="ignore")


def json_table(table: pa.Table) -> tuple[pa.Table, JsonReport]:
    """Return the table with its column `value` replaced by columns of JSON, of a schema inferred from all its rows.

    ValueError: the table has no column `value`, or the values have more than JSON_COLUMNS_MAX (1,000) fields.
    """
    import pyarrow as pa

    decoder = JsonColumns()
    batches = table.to_batches()
    decoder.infer(batches)
    return pa.Table.from_batches(map(decoder.batch, batches), decoder.schema(table.schema)), decoder.report


def _values(batch: pa.RecordBatch) -> pa.Array:
    if _VALUE not in batch.schema.names:
        raise ValueError(f"the columns {batch.schema.names} have no {_VALUE!r}, which JSON is decoded from")
    return batch.column(_VALUE)


def _places(batch: pa.RecordBatch, rows_before: int) -> Place:
    """Return where in the log a row of the batch is; without its column `offset`, which row it is of all."""
    names = batch.schema.names
    if "offset" not in names:
        return lambda row: f"row {rows_before + row}"
    offsets, number = batch.column("offset"), partition_of(batch)
    if "partition" in names:
        return lambda row: f"partition {batch.column('partition')[row]}, offset {offsets[row]}"
    return lambda row: f"offset {offsets[row]}" if number is None else f"partition {number}, offset {offsets[row]}"


def _after(place: Place, first: int) -> Place:
    return lambda row: place(first + row)


def _parts(values: pa.Array) -> Iterator[pa.Array]:
    """Yield parts that are parsed at once: fewer rows the larger they are, as each may have fields of its own."""
    bytes_per_row = values.nbytes // max(1, len(values)) + 1
    rows = max(1, min(limits.JSON_PARSED_ROWS_MAX, isqrt(limits.JSON_PARSED_CELLS_MAX // bytes_per_row)))
    for start in range(0, len(values), rows):
        yield values.slice(start, rows)


def _objects(values: pa.Array) -> pa.Array:
    """Return the values that may be JSON objects; null for others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    may_be = pc.match_substring_regex(values, _OBJECT)
    opened = pc.add(pc.count_substring(values, "{"), pc.count_substring(values, "["))
    for row in _rows_where(may_be, pc.greater(opened, limits.JSON_DEPTH_MAX)):
        if _depth(values[row].as_py()) > limits.JSON_DEPTH_MAX:
            may_be = _without(may_be, row)
    found = pc.if_else(may_be, values, pa.scalar(None, values.type))
    try:
        found.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8
        found = pa.array([one if one is None or _is_utf8(one) else None for one in found.to_pylist()], found.type)
    return found


def _without(mask: pa.Array, row: int) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays([mask.slice(0, row), pa.array([False]), mask.slice(row + 1)])


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _depth(value: bytes) -> int:
    """Return how deep a text nests objects and arrays; also for a text that is no JSON."""
    depth = deepest = 0
    is_string = is_escaped = False
    for char in value:
        if is_string:
            if is_escaped:
                is_escaped = False
            elif char == 0x5C:
                is_escaped = True
            elif char == 0x22:
                is_string = False
        elif char == 0x22:
            is_string = True
        elif char in b"{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in b"}]":
            depth -= 1
    return deepest


def _rows_where(*masks: pa.Array) -> list[int]:
    """Return the rows at which all masks are true."""
    import functools

    import pyarrow.compute as pc

    rows: list[int] = pc.indices_nonzero(functools.reduce(pc.and_, masks)).to_pylist()
    return rows


def _lines(objects: pa.Array) -> pa.Buffer:
    """Return the values as lines `{"v":…}`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.fill_null(objects, b"null")
    lines = pc.binary_join_element_wise(b'{"v":', texts, b"}\n", b"")
    return pa.py_buffer(lines.buffers()[2])


def _parsed(lines: pa.Buffer, rows: int, kind: pa.DataType | None = None, unknown: str = "infer") -> pa.Array | None:
    """Return the array of the values in `lines`, None if they are not that many, or one cannot be of `kind`."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    schema = None if kind is None else pa.schema([pa.field("v", kind)])
    try:
        table = arrow_json.read_json(
            pa.BufferReader(lines),
            arrow_json.ReadOptions(use_threads=False, block_size=lines.size + 1),
            arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unknown),
        )
    except pa.ArrowException:
        return None
    # Another column, or another number of rows: a value closes the line's object and goes on.
    if table.num_rows != rows or table.column_names != ["v"]:
        return None
    column = table.column(0)
    # pyarrow cannot concatenate lists of nulls as its JSON reader makes them.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _fields_of(value: bytes) -> dict[str, bytes] | None:
    """Return the fields of a JSON object as JSON texts; of a repeated field the last. None: it is none."""
    try:
        return {name: bytes(text) for name, text in _split(value).items()}
    except (msgspec.DecodeError, RecursionError):
        pass
    try:  # NaN and Infinity, which Python and pyarrow know
        found = json.loads(value.decode())
        return {name.encode().decode(): json.dumps(one).encode() for name, one in found.items()}
    except (ValueError, RecursionError, AttributeError):
        return None


def _text(text: bytes) -> str | None:
    """Return a JSON string's characters, other JSON as it is."""
    if text == b"null":
        return None
    if text.startswith(b'"'):
        try:
            return str(msgspec.json.decode(text))
        except msgspec.DecodeError:  # half of a surrogate pair
            pass
    return text.decode()


def _json_kind(text: bytes) -> str:
    """Return the first character of a JSON value, "0" of all numbers, "t" of both booleans."""
    first = chr(text[0])
    return "0" if first in "-0123456789NI" else "t" if first == "f" else first


def _json_kinds(kind: pa.DataType) -> str:
    """Return which kinds of JSON values a column of that type can hold, as `_json_kind` names them."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return "{n"
    if pa.types.is_list(kind):
        return "[n"
    return {pa.int64(): "0n", pa.float64(): "0n", pa.bool_(): "tn"}.get(kind, '"n')


# Inference. A type None is that of values of different kinds, uint64 that of int64 which a double might change.


def _types(values: pa.Array) -> dict[str, pa.DataType | None]:
    """Return the types of the fields of some values."""
    import pyarrow as pa

    objects = _objects(values)
    if objects.null_count == len(objects):
        return {}
    found = _parsed(_lines(objects), len(objects))
    if found is not None and not _may_be_changed(found, objects):
        return {field.name: _type_of(found.field(at)) for at, field in enumerate(found.type)}
    columns: dict[str, list[bytes]] = {}
    for value in objects.to_pylist():
        for name, text in ((value is not None and _fields_of(value)) or {}).items():
            columns.setdefault(name, []).append(text)
    types: dict[str, pa.DataType | None] = {}
    for name, texts in columns.items():
        found = _parsed(pa.py_buffer(b"".join(b'{"v":%b}\n' % text for text in texts)), len(texts))
        if found is not None:
            types[name] = _type_of(found)
        else:  # different kinds, or a number or a string that no column holds
            types[name] = pa.float64() if {*map(_json_kind, texts)} <= {"0", "n"} else None
        if (kind := types[name]) is not None and any(_is_changed(text, kind) for text in texts):
            types[name] = None
    return types


def _type_of(array: pa.Array) -> pa.DataType:
    import pyarrow as pa

    kind, time = array.type, pa.timestamp("us", "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _type_of(array.field(at))) for at, field in enumerate(kind)])
    if pa.types.is_list(kind):
        return pa.list_(_type_of(array.values))
    if pa.types.is_int64(kind) and _reaches(array, _DOUBLE_EXACT):
        return pa.uint64()
    if pa.types.is_timestamp(kind) or (pa.types.is_string(kind) and _are_times(array)):
        return time
    return kind


def _are_times(texts: pa.Array) -> bool:
    """True if all texts are ISO 8601 times with fractions of a second, which pyarrow takes for strings."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = texts.drop_null()
    if not len(texts) or not pc.all(pc.match_substring_regex(texts, _TIME)).as_py():
        return False
    lines = pc.binary_join_element_wise('{"v":"', texts, '"}\n', "")
    return _parsed(pa.py_buffer(lines.buffers()[2]), len(texts), pa.timestamp("us", "UTC")) is not None


def _merged(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    """Return the type that holds values of both."""
    import pyarrow as pa

    if one is None or other is None:
        return None
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if {one, other} == {pa.int64(), pa.uint64()}:
        return pa.uint64()
    if {one, other} == {pa.string(), pa.timestamp("us", "UTC")}:
        return pa.string()
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _merged(one.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            kind = _merged(fields[field.name], field.type) if field.name in fields else field.type
            if kind is None:
                return None
            fields[field.name] = kind
        return pa.struct(list(fields.items()))
    return None


def _settled(kind: pa.DataType | None) -> pa.DataType:
    """Return the type of a column: one that files can hold. Where nothing was known but null, it is string."""
    import pyarrow as pa

    if kind is None or _leaves(kind) > limits.JSON_NESTED_FIELDS_MAX or _has_no_field(kind) or _is_ambiguous(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _settled(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type))
    if pa.types.is_uint64(kind):
        return pa.int64()
    return pa.string() if pa.types.is_null(kind) else kind


def _reaches(numbers: pa.Array, limit: int) -> bool:
    """True if a number is at least so far from zero."""
    import pyarrow.compute as pc

    found = pc.min_max(numbers).as_py()
    return found["min"] is not None and not -limit < found["min"] <= found["max"] < limit


def _may_be_changed(array: pa.Array, objects: pa.Array) -> bool:
    """True if doubles of the parsed objects may be whole numbers that are not the same in the JSON."""
    import pyarrow.compute as pc

    is_big = any(_reaches(numbers, _DOUBLE_EXACT) for numbers in _doubles(array))
    return is_big and bool(pc.any(pc.match_substring_regex(objects, _BIG)).as_py())


def _doubles(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays of doubles inside an array."""
    import pyarrow as pa

    if pa.types.is_struct(array.type):
        for field in array.flatten():
            yield from _doubles(field)
    elif pa.types.is_list(array.type):
        yield from _doubles(array.values)
    elif pa.types.is_float64(array.type):
        yield array


def _is_changed(text: bytes, kind: pa.DataType) -> bool:
    """True if a whole number in a JSON value would be another number in a column of that type."""
    if not re.search(_BIG.encode(), text):
        return False
    try:
        return _changes(json.loads(text), kind)
    except (ValueError, RecursionError):
        return False


def _changes(value: Any, kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return isinstance(value, dict) and any(_changes(value.get(one.name), one.type) for one in kind)
    if pa.types.is_list(kind):
        return isinstance(value, list) and any(_changes(one, kind.value_type) for one in value)
    if not pa.types.is_float64(kind) or type(value) is not int:
        return False
    try:
        return int(float(value)) != value
    except OverflowError:
        return True


def _leaves(kind: pa.DataType) -> int:
    return sum(_leaves(kind.field(at).type) for at in range(kind.num_fields)) or 1


def _has_no_field(kind: pa.DataType) -> bool:
    """True if there is an object without fields anywhere in it: no text can stand for it inside another type."""
    import pyarrow as pa

    if pa.types.is_struct(kind) and not kind.num_fields:
        return True
    return any(_has_no_field(kind.field(at).type) for at in range(kind.num_fields))


def _is_ambiguous(kind: pa.DataType) -> bool:
    """True if fields of one object are the same to programs that ignore case, or for which NUL ends a name."""
    fields = [kind.field(at) for at in range(kind.num_fields)]
    names = {field.name.lower() for field in fields}
    return (
        len(names) < len(fields)
        or any("\0" in name for name in names)
        or any(_is_ambiguous(one.type) for one in fields)
    )


def _fields_beyond(array: pa.Array, kind: pa.DataType, path: str) -> Iterator[tuple[str, pa.Array]]:
    """Yield the fields of `array` that `kind` lacks, with their paths."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        yield from _fields_beyond(array.values, kind.value_type, f"{path}[]")
        return
    if not pa.types.is_struct(kind):
        return
    known: dict[str, Any] = {field.name: field.type for field in kind}
    for field, values in zip(array.type, array.flatten(), strict=True):
        below = f"{path}.{field.name}" if path else field.name
        if field.name not in known:
            yield below, values
        elif field.type != known[field.name]:
            yield from _fields_beyond(values, known[field.name], below)


def _column_names(fields: Iterable[str]) -> list[str]:
    """Return the columns' names: no two are equal, and none is that of a column of the log. None has a NUL."""
    names, given = [], set(fields := list(fields))
    for name in fields:
        column = name.replace("\0", _NUL)
        while column != name and column in given:
            column += _NUL
        given.add(column)
        names.append(column)
    taken = _RESERVED | {name for name in names if name and name.lower() not in _RESERVED}
    made = []
    for name in names:
        column = name
        if not name or name.lower() in _RESERVED:
            column = _PREFIX + name
            while column in taken:
                column = _PREFIX + column
            taken.add(column)
        made.append(column)
    return made
