"""Explanation of a refusal: in which field of one value, what is expected there and what was found.

Rules: the decoder reads the value once more, alone, and notes where it gives up, so an explanation never contradicts
the decision. It has names of the schema, kinds and numbers of bytes, and nothing of the value, since errors reach logs.
A value of more than SCHEMA_EXPLAINED_BYTES_MAX bytes is not explained.

| path            | part of a value                                |
|-----------------|------------------------------------------------|
| `price`         | a field                                        |
| `lines[3]`      | an element of a list, the first is 0           |
| `prices{3}`     | the value of an entry of a map, the first is 0 |
| `prices{3}.key` | the key of the entry                           |
"""

from __future__ import annotations

from penstock.base import limits
from penstock.hot import cells, json_columns
from penstock.hot.json_columns import JsonReader
from penstock.hot.typed_columns import Column, RowReader
from penstock.schemas.decoding import Decoder

_ELLIPSIS = "…"
_JSON_KINDS = {
    cells.BOOL: "true or false",
    cells.FLOAT: "a number",
    cells.DOUBLE: "a number",
    cells.TEXT: "a string",
    cells.BINARY: "a string",
    cells.LIST: "an array",
    cells.MAP: "an object",
    cells.STRUCT: "an object",
    cells.NOTHING: "null",
}
_KINDS = {
    cells.BOOL: "a boolean",
    cells.INT8: "a whole number of 8 bits",
    cells.INT16: "a whole number of 16 bits",
    cells.INT32: "a whole number of 32 bits",
    cells.INT64: "a whole number of 64 bits",
    cells.FLOAT: "a number of 4 bytes",
    cells.DOUBLE: "a number of 8 bytes",
    cells.DECIMAL: "a decimal",
    cells.TEXT: "a string",
    cells.BINARY: "bytes",
    cells.UUID: "a UUID",
    cells.RAW: "a struct",
    cells.LIST: "a list",
    cells.MAP: "a map",
    cells.STRUCT: "a struct",
    cells.CHOICE: "a union",
    cells.NOTHING: "null",
}
_FOUND = {b'"': "a string", b"[": "an array", b"{": "an object", b"t": "true", b"f": "false", b"n": "null"}
_SCHEMA_ID_BYTES = 5  # with the zero before it
_DIGITS = b"0123456789"


def explained(decoder: Decoder, value: bytes) -> str:
    """Return why a decoder refuses a value, in a few words; "" if there is no more to say than the reason."""
    if len(value) > limits.SCHEMA_EXPLAINED_BYTES_MAX:
        return ""
    reader, code = decoder.traced(value)
    if code == cells.DECODED:
        return ""
    if not value:
        return "the value is empty"
    if code == cells.FRAME:
        is_of_registry = reader.has_schema_id and (len(value) < _SCHEMA_ID_BYTES or value[0] != 0)
        return "a zero byte and a schema id of 4 bytes are expected first" if is_of_registry else ""
    trail = reader.trail or []
    path = _path(trail)
    innermost = trail[0][1] if trail else None
    if isinstance(reader, JsonReader):
        return _of_json(reader, code, path, innermost or decoder.plan.root.column(), value)
    place = _place(value, reader.refused_at)
    if innermost is None:
        return place
    if code == cells.MISSING:
        return f"{path}: {_KINDS[innermost.kind]} is required, and is missing or of another type"
    return f"{path}: {_KINDS[innermost.kind]} is expected, {place}"


def _of_json(reader: RowReader, code: int, path: str, column: Column, value: bytes) -> str:
    at = reader.refused_at
    where = f"{path}: " if path else ""
    if code == cells.MISSING:
        return f"{where}{_json_kind(column)} is required, and is missing or null"
    if code == cells.FORM:
        return f"{where}{_json_kind(column)} is expected, {_found(column, value, at)} is found"
    if code == cells.NUMBER:
        return f"{where}{_json_kind(column)}{_bounds(column)} is expected, one beyond its range is found"
    if code == cells.ENCODING:
        at = _not_utf8(value, at)
    return f"{where}{_place(value, at)}"


def _json_kind(column: Column) -> str:
    """Return what a column takes."""
    if column.flags & json_columns.DATE:
        return "a date string like 2026-11-29"
    if column.flags & json_columns.TIME:
        return "a time string like 2026-11-29T12:00:00Z"
    return "a whole number" if _is_whole(column) else _JSON_KINDS[column.kind]


def _bounds(column: Column) -> str:
    if not _is_whole(column) or column.flags & json_columns.TIME:
        return ""
    bits = 8 * column.width
    if column.flags & json_columns.UNSIGNED:
        return f" from 0 to {2**bits - 1}"
    return f" from {-(2 ** (bits - 1))} to {2 ** (bits - 1) - 1}"


def _is_whole(column: Column) -> bool:
    return cells.INT8 <= column.kind <= cells.INT64


def _place(value: bytes, at: int) -> str:
    """Return where the reader was when it gave up; it may have gone behind the byte that is wrong."""
    return f"near byte {min(at, len(value))} of {len(value)}"


def _found(column: Column, value: bytes, at: int) -> str:
    """Return what stands at `at`, or was read there: behind a number or a string that its column does not take."""
    before = value[at - 1 : at] if at else b""
    if before == b'"' and column.flags & (json_columns.DATE | json_columns.TIME):
        return "another string"
    if _is_whole(column) and before and before in _DIGITS:
        return "a fraction"
    byte = value[at : at + 1]
    return "a number" if byte and byte in b"-" + _DIGITS else _FOUND.get(byte, "something that is no JSON")


def _not_utf8(value: bytes, at: int) -> int:
    """Return where a value's first byte is that is no UTF-8; `at` if all are, as an escape may be wrong."""
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return error.start
    return at


def _path(trail: list[tuple[Column, Column, int]]) -> str:
    """Return the path of a trail, which is from the inside out; of a long one its end."""
    path = ""
    for parent, column, place in reversed(trail):
        if parent.kind == cells.LIST:
            path += f"[{place}]"
        elif parent.kind == cells.MAP:
            path += f"{{{place}}}" + (".key" if column is parent.children[0] else "")
        elif parent.kind == cells.STRUCT:
            name = column.name.decode()
            path += ("." if path else "") + (name if name and name.isprintable() else ascii(name))
    encoded = path.encode()
    over = len(encoded) - limits.SCHEMA_EXPLAINED_PATH_BYTES_MAX
    return path if over <= 0 else _ELLIPSIS + encoded[over:].decode(errors="ignore")
