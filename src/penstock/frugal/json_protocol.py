"""Thrift's JSON protocol: values by their specs, over the JSON parser of msgspec.

| type              | value                                   | as the key of a map |
|-------------------|-----------------------------------------|---------------------|
| bool              | `1` or `0`                              | `"1"`               |
| i8, i16, i32, i64 | `-5`                                    | `"-5"`              |
| double            | `1.5`, `"NaN"`, `"Infinity"`            | `"1.5"`             |
| string, uuid      | `"text"`                                | the same            |
| binary            | base64 of it, padded or not             | the same            |
| list, set         | `["i32", 2, 5, 6]`                      | no form             |
| map               | `["str", "i32", 1, {"a": 5}]`           | no form             |
| struct            | `{"1": {"i32": 5}}`: fields by their id | no form             |
| message           | `[1, name, kind, sequence, value]`      |                     |

Rules: numbers are checked against the size of their type, the number of elements against what a container says. Of two
fields with one id the last counts. Apache thrift's own reader of JSON in Python takes a Python loop for each character
and checks no ranges, and its writer writes NaN and control characters in a form that no reader takes: so this is ours.
"""

from __future__ import annotations

import binascii
import math
import operator
import re
import uuid
from base64 import b64encode
from typing import Any, Final

import msgspec

from penstock.frugal.contracts import Spec
from penstock.frugal.errors import CodecError
from penstock.frugal.fitting import check_fit, placed, root_of
from penstock.hot.thrift_values import name_of

_VERSION = 1
_DEPTH_MAX = 64  # structs in structs, as `codecs.DEPTH_MAX`
JSON_OBJECTS_MAX = 200_000
"""Most objects and arrays of one value in JSON: each struct is one, and each field of it one more."""

_BOOL, _BYTE, _DOUBLE, _I16, _I32, _I64, _STRING, _STRUCT, _MAP, _SET, _LIST, _UUID = (
    2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15, 16,
)  # fmt: skip
_NAMES: Final = {
    _BOOL: "tf",
    _BYTE: "i8",
    _I16: "i16",
    _I32: "i32",
    _I64: "i64",
    _DOUBLE: "dbl",
    _STRING: "str",
    _STRUCT: "rec",
    _MAP: "map",
    _SET: "set",
    _LIST: "lst",
    _UUID: "uid",
}
_BITS: Final = {_BYTE: 8, _I16: 16, _I32: 32, _I64: 64}
_KNOWN = frozenset(_NAMES.values())
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_FIELD_ID = re.compile(r"-?[0-9]{1,5}")


def encode_json_message(name: str, kind: int, sequence: int, spec: Spec, value: Any) -> bytes:
    """Return a message of this name and kind."""
    return _dump([_VERSION, name, int(kind), sequence, _encode_top(spec, value)])


def encode_json(spec: Spec, value: Any) -> bytes:
    """Return a value without a message header. CodecError: it does not fit its type."""
    return _dump(_encode_top(spec, value))


def decode_json_message(data: bytes) -> tuple[str, int, int, int]:
    """Return name, kind and sequence number of a message, and where its value begins; `]` follows that."""
    try:
        version, name, kind, sequence, value = msgspec.json.decode(data, type=tuple[int, str, int, int, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise CodecError(f"the bytes are no message in JSON: {error}") from None
    if version != _VERSION:
        raise CodecError(f"the message has version {version}, and {_VERSION} is known")
    if not -(2**31) <= sequence < 2**31:
        raise CodecError(f"the sequence number {sequence} has more than 32 bits")
    start = data.rstrip()[:-1].rstrip()
    return name, kind, sequence, len(start) - len(bytes(value))


def decode_json(data: bytes, spec: Spec) -> Any:
    """Return the value that the bytes are. CodecError: they are none of the type."""
    try:
        tree = msgspec.json.decode(data)
        if data.count(b"{") + data.count(b"[") > JSON_OBJECTS_MAX:  # some may stand in texts
            _check_objects(tree)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise error if isinstance(error, CodecError) else CodecError(f"the bytes are no JSON: {error}") from None
    try:
        return _decode(spec[0], spec[1], tree, 0)
    except Exception as error:  # of the struct's own code, too
        raise CodecError(placed(spec, str(_within("", error)))) from error


class _MisreadError(Exception):
    """A path within a value, and why what is there cannot be read."""


def _within(step: str, error: Exception) -> _MisreadError:
    """Return the error with a step in front of its path."""
    return _MisreadError(f"{step}{error}" if isinstance(error, _MisreadError) else f"{step}: {error}")


def _check_objects(tree: Any) -> None:
    """Raise CodecError if a tree has more than `JSON_OBJECTS_MAX` objects and arrays."""
    count = 0
    waiting: list[Any] = [tree]
    while waiting:
        each = waiting.pop()
        if type(each) not in {dict, list}:
            continue
        count += 1
        if count > JSON_OBJECTS_MAX:
            raise CodecError(f"the value has more than {JSON_OBJECTS_MAX:,} objects and arrays, the most of one")
        inner = each.values() if type(each) is dict else each
        waiting += [part for part in inner if type(part) in {dict, list}]


def _dump(tree: Any) -> bytes:
    try:
        return msgspec.json.encode(tree)
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise CodecError(f"the value has no form in JSON: {error}") from None


def _encode_top(spec: Spec, value: Any) -> Any:
    """Return the tree of a value. CodecError: it does not fit its type."""
    check_fit(spec, value)
    try:
        return _encode(spec[0], spec[1], value)
    except CodecError:
        raise
    except Exception as error:  # of the struct's own code, too
        raise CodecError(f"{root_of(spec)} does not fit its type: {error}") from error


def _encode(wire_type: int, arguments: Any, value: Any) -> Any:
    match wire_type:
        case 12:
            return {
                str(field[0]): {_NAMES[field[1]]: _encode(field[1], field[3], held)}
                for field in arguments[1]
                if field is not None and (held := getattr(value, field[2])) is not None
            }
        case 14 | 15:
            kind, inner = arguments[0], arguments[1]
            return [_NAMES[kind], len(value), *[_encode(kind, inner, each) for each in value]]
        case 13:
            key_type, key_arguments, kind, inner = arguments[:4]
            entries = {_key(key_type, key_arguments, key): _encode(kind, inner, each) for key, each in value.items()}
            return [_NAMES[key_type], _NAMES[kind], len(entries), entries]
    return _scalar(wire_type, arguments, value)


def _scalar(wire_type: int, arguments: Any, value: Any) -> Any:
    match wire_type:
        case 2:
            return 1 if value else 0
        case 4:
            number = float(value)
            return number if math.isfinite(number) else _NOT_FINITE[str(number)]
        case 11:
            return b64encode(value).decode() if arguments == "BINARY" else value
        case 16:
            return str(value)
    return operator.index(value)


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _key(wire_type: int, arguments: Any, value: Any) -> str:
    if wire_type in {_STRUCT, _LIST, _SET, _MAP}:
        raise CodecError("JSON has no form for a map whose keys are structs or containers; use binary or compact")
    key = _scalar(wire_type, arguments, value)
    return key if isinstance(key, str) else repr(key)


def _check_range(wire_type: int, number: int) -> int:
    bits = _BITS[wire_type]
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise CodecError(f"{number} does not fit into {bits} bits")
    return number


def _decode(wire_type: int, arguments: Any, tree: Any, depth: int) -> Any:
    match wire_type:
        case 12:
            return _decode_struct(arguments[0], arguments[1], tree, depth + 1)
        case 14 | 15:
            return _decode_elements(wire_type, arguments, tree, depth)
        case 13:
            return _decode_map(arguments, tree, depth)
    return _decode_scalar(wire_type, arguments, tree)


def _decode_struct(kind: type[Any], fields: Any, tree: Any, depth: int) -> Any:
    """Return a struct. A field with an unknown id, or of another type, is skipped."""
    if depth > _DEPTH_MAX:
        raise CodecError(f"structs nest deeper than {_DEPTH_MAX}")
    if type(tree) is not dict:
        raise CodecError(f"a struct is an object, not {_shown(tree)}")
    values: dict[str, Any] = {}
    for key, entry in tree.items():
        if not _FIELD_ID.fullmatch(key) or type(entry) is not dict or len(entry) != 1:
            raise CodecError(f"{_shown(key)}: {_shown(entry)} is no field of a struct")
        ((name, inner),) = entry.items()
        if name not in _KNOWN:
            raise CodecError(f"{_shown(name)} is no type")
        number = int(key)
        field = fields[number] if 0 <= number < len(fields) else None
        if field is not None and _NAMES[field[1]] == name:
            try:
                values[field[2]] = _decode(field[1], field[3], inner, depth)
            except Exception as error:  # noqa: BLE001 (of the struct's own code, too)
                raise _within(f".{field[2]}", error) from None
    try:
        return kind(**values)
    except Exception:
        for name in getattr(kind, "thrift_required", ()):
            if name not in values:
                raise _within(f".{name}", CodecError("the required field is missing")) from None
        raise


def _decode_elements(wire_type: int, arguments: Any, tree: Any, depth: int) -> Any:
    kind, inner, is_immutable = arguments[0], arguments[1], arguments[2]
    if type(tree) is not list or len(tree) < 2:
        raise CodecError(f"a list is [type, size, …], not {_shown(tree)}")
    _check_container(tree[1], len(tree) - 2)
    if len(tree) > 2 and tree[0] != _NAMES[kind]:
        raise CodecError(f"the elements are {_shown(tree[0])}, not {_NAMES[kind]}")
    elements: list[Any] = []
    try:
        elements.extend(_decode(kind, inner, each, depth) for each in tree[2:])
    except Exception as error:  # noqa: BLE001 (of the struct's own code, too)
        raise _within(f"[{len(elements)}]", error) from None
    if wire_type == _LIST:
        return tuple(elements) if is_immutable else elements
    return frozenset(elements) if is_immutable else set(elements)


def _decode_map(arguments: Any, tree: Any, depth: int) -> dict[Any, Any]:
    key_type, key_arguments, kind, inner = arguments[:4]
    if type(tree) is not list or len(tree) != 4 or type(tree[3]) is not dict:
        raise CodecError(f"a map is [type, type, size, {{…}}], not {_shown(tree)}")
    entries = tree[3]
    _check_container(tree[2], len(entries))
    if entries and (tree[0] != _NAMES[key_type] or tree[1] != _NAMES[kind]):
        raise CodecError(
            f"the entries are {_shown(tree[0])} to {_shown(tree[1])}, not {_NAMES[key_type]} to {_NAMES[kind]}"
        )
    made = {}
    for key, each in entries.items():
        try:
            decoded = _decode_key(key_type, key_arguments, key)
        except Exception as error:  # noqa: BLE001 (of the struct's own code, too)
            raise _within(f"[key {_shown(key)}]", error) from None
        try:
            made[decoded] = _decode(kind, inner, each, depth)
        except Exception as error:  # noqa: BLE001 (of the struct's own code, too)
            raise _within(f"[{_shown(key)}]", error) from None
    if not arguments[4]:
        return made
    from penstock.frugal.structs import FrozenMap  # JSON itself works without Apache thrift

    return FrozenMap(made)


def _check_container(said: Any, found: int) -> None:
    if type(said) is not int or said != found:
        raise CodecError(f"a container says that it has {_shown(said)} elements, and has {found}")


def _decode_key(wire_type: int, arguments: Any, key: str) -> Any:
    if wire_type in _BITS or wire_type == _BOOL:
        if not _INTEGER.fullmatch(key):
            raise CodecError(f"the key {_shown(key)} is no whole number")
        return _decode_scalar(wire_type, arguments, int(key))
    if wire_type == _DOUBLE:
        return float(key)
    if wire_type in {_STRING, _UUID}:
        return _decode_scalar(wire_type, arguments, key)
    raise CodecError("JSON has no form for a map whose keys are structs or containers")


def _decode_scalar(wire_type: int, arguments: Any, tree: Any) -> Any:
    match wire_type:
        case 2:
            if type(tree) is int or type(tree) is bool:
                return tree != 0
        case 3 | 6 | 8 | 10:
            if type(tree) is int:
                return _check_range(wire_type, tree)
        case 4:
            if type(tree) is float or type(tree) is int:
                return float(tree)
            if type(tree) is str:
                return float(tree)  # "NaN", "Infinity", and numbers in quotes, which other readers take too
        case 11:
            if type(tree) is str:
                return _decode_base64(tree) if arguments == "BINARY" else tree
        case 16:
            if type(tree) is str:
                return uuid.UUID(tree)
    raise CodecError(f"{_shown(tree)} is no {name_of(wire_type)}")


def _decode_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), strict_mode=True)
    except ValueError:
        raise CodecError(f"{_shown(text)} is no base64") from None


def _shown(tree: Any) -> str:
    text = repr(tree) if not isinstance(tree, list | dict) else type(tree).__name__
    return text if len(text) <= 40 else f"{text[:40]}…"
