"""Encodes constants of a contract in Thrift's binary protocol: the defaults of fields, for whatever decodes them.

Rules: the program is linked, so each constant fits its type; a constant that does not is a SchemaError all the same.
"""

from __future__ import annotations

import struct

from penstock.hot import thrift_columns
from penstock.idl.model import (
    Constant,
    ConstantList,
    ConstantMap,
    ConstantName,
    ConstantValue,
    Enum,
    ListOf,
    Literal,
    MapOf,
    Program,
    Scalar,
    ScalarKind,
    SetOf,
    Type,
)
from penstock.schemas.plans import PLAN_DEPTH_MAX, SchemaError

DEFAULT_BYTES_MAX = 64 * 1024  # of one field; each message without it has that much more to decode

_FORMATS = {
    ScalarKind.BOOL: (thrift_columns.BOOL, ">?"),
    ScalarKind.I8: (thrift_columns.I8, ">b"),
    ScalarKind.I16: (thrift_columns.I16, ">h"),
    ScalarKind.I32: (thrift_columns.I32, ">i"),
    ScalarKind.I64: (thrift_columns.I64, ">q"),
    ScalarKind.U32: (thrift_columns.I32, ">I"),
    ScalarKind.U64: (thrift_columns.I64, ">Q"),
    ScalarKind.FLOAT: (thrift_columns.I32, ">f"),
    ScalarKind.DOUBLE: (thrift_columns.DOUBLE, ">d"),
}


def encoded(program: Program, type_: Type, value: ConstantValue) -> bytes:
    """Return a constant of a type that stands in the program. SchemaError: it does not fit, or is too large."""
    try:
        _, text = _encoded(program, type_, program, value, 0)
    except (struct.error, TypeError, ValueError, OverflowError, LookupError) as error:
        raise SchemaError(f"{program.document.file}: a default does not fit its type: {error}") from error
    if len(text) > DEFAULT_BYTES_MAX:
        raise SchemaError(f"{program.document.file}: a default of {len(text):,} bytes; {DEFAULT_BYTES_MAX:,} at most")
    return text


def _encoded(types: Program, type_: Type, constants: Program, value: ConstantValue, depth: int) -> tuple[int, bytes]:
    """Return the type id and the bytes of a value whose type stands in `types`, and its names in `constants`."""
    if depth > PLAN_DEPTH_MAX:
        raise ValueError(f"it is nested more than {PLAN_DEPTH_MAX} deep")
    types, what = types.resolve(type_)
    constants, value = _resolved(constants, value)
    if isinstance(what, Enum):
        number = {each.name: each.number for each in what.values}[_last(value)] if _is_name(value) else _plain(value)
        return thrift_columns.I32, struct.pack(">i", number)
    if isinstance(what, Scalar):
        return _scalar(what.kind, _enum_number(constants, value) if _is_name(value) else _plain(value))
    if isinstance(what, ListOf | SetOf):
        items = _items(value)
        made = [_encoded(types, what.element, constants, item, depth + 1) for item in items]
        kind = thrift_columns.LIST if isinstance(what, ListOf) else thrift_columns.SET
        return kind, struct.pack(">bi", made[0][0] if made else 0, len(made)) + b"".join(text for _, text in made)
    entries = value.entries if isinstance(value, ConstantMap) else ()
    if isinstance(what, MapOf):
        keys = [_encoded(types, what.key, constants, key, depth + 1) for key, _ in entries]
        values = [_encoded(types, what.value, constants, each, depth + 1) for _, each in entries]
        head = struct.pack(">bbi", keys[0][0] if keys else 0, values[0][0] if values else 0, len(keys))
        pairs = zip(keys, values, strict=True)
        return thrift_columns.MAP, head + b"".join(key + each for (_, key), (_, each) in pairs)
    fields = {field.name: field for field in what.fields}
    out = bytearray()
    for key, each in entries:
        field = fields[str(_last(key) if _is_name(key) else _plain(key))]
        kind, text = _encoded(types, field.type, constants, each, depth + 1)
        out += struct.pack(">bh", kind, field.id) + text
    return thrift_columns.STRUCT, bytes(out) + b"\0"


def _scalar(kind: ScalarKind, value: bool | int | float | str) -> tuple[int, bytes]:
    if kind in (ScalarKind.STRING, ScalarKind.BINARY):
        text = str(value).encode()
        return thrift_columns.TEXT, struct.pack(">i", len(text)) + text
    if kind is ScalarKind.UUID:
        digits = bytes.fromhex(str(value).strip("{}").replace("-", ""))
        if len(digits) != 16:
            raise ValueError(f"{value!r} is no UUID")
        return thrift_columns.UUID, digits
    wire, form = _FORMATS[kind]
    return wire, struct.pack(form, value)


def _resolved(program: Program, value: ConstantValue) -> tuple[Program, ConstantValue]:
    """Follow the names of constants; the name of an enum's value stays."""
    for _ in range(PLAN_DEPTH_MAX):
        if not isinstance(value, ConstantName):
            break
        found = program.find(value.name)
        if found is None or not isinstance(found.definition, Constant):
            break
        program, value = found.program, found.definition.value
    return program, value


def _enum_number(program: Program, value: ConstantValue) -> int:
    """Return the number of an enum's value, which a whole number may be given as: `base.Color.RED`."""
    enum, _, name = value.name.rpartition(".") if isinstance(value, ConstantName) else ("", "", "")
    found = program.find(enum)
    if found is None or not isinstance(found.definition, Enum):
        raise ValueError(f"{value} is no constant")
    return {each.name: each.number for each in found.definition.values}[name]


def _is_name(value: ConstantValue) -> bool:
    return isinstance(value, ConstantName)


def _last(value: ConstantValue) -> str:
    """Return the last part of a name: RED of base.Color.RED."""
    if not isinstance(value, ConstantName):
        raise TypeError(f"{value} is no name")
    return value.name.rpartition(".")[2]


def _plain(value: ConstantValue) -> bool | int | float | str:
    if not isinstance(value, Literal):
        raise TypeError(f"{value} is no number, text or truth value")
    return value.value


def _items(value: ConstantValue) -> tuple[ConstantValue, ...]:
    if isinstance(value, ConstantMap) and not value.entries:  # an empty list may be written as {}
        return ()
    if not isinstance(value, ConstantList):
        raise TypeError(f"{value} is no list")
    return value.items
