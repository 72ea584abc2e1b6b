"""Encodes defaults of Avro fields, which a schema has as JSON: bytes as text of code points below 256.

Rules: the default of a union is of any of its branches, as Avro 1.12 says; earlier versions wanted the first one. A
value is tried in one branch after another, so a small schema could take hours: the steps of one schema are bounded.
"""

from __future__ import annotations

import struct
from typing import Any

from penstock.base import limits
from penstock.hot import avro_columns, cells
from penstock.schemas.plans import Node, SchemaError

_MISFITS = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, struct.error)
_LIMITS = {cells.INT32: 31, cells.INT64: 63}


class _TooMuchError(Exception):
    """A default is too large, or takes too many steps, whatever branch of a union it is for."""


class DefaultEncoder:
    """Encodes the defaults of one schema, in SCHEMA_DEFAULT_STEPS_MAX steps."""

    def __init__(self) -> None:
        self._steps_left = limits.SCHEMA_DEFAULT_STEPS_MAX

    def encode(self, field: Node, value: Any) -> bytes:
        """Return a default of a field in Avro's binary encoding.

        SchemaError: it does not fit its type, is too large, or takes too many steps. NotImplementedError: a record
        inside itself is in it.
        """
        try:
            text = self._encoded(field, value)
        except _MISFITS as error:
            raise SchemaError(f"{field.name}: the default {_shown(value)} does not fit the field's type") from error
        except _TooMuchError as error:
            raise SchemaError(f"{field.name}: {error}") from error
        if len(text) > limits.SCHEMA_DEFAULT_BYTES_MAX:
            raise SchemaError(f"{field.name}: {_too_large(len(text))}")
        return text

    def _encoded(self, node: Node, value: Any) -> bytes:
        """Return an encoded value. One of _MISFITS: it does not fit. _TooMuchError."""
        self._steps_left -= 1
        if self._steps_left < 0:
            most = limits.SCHEMA_DEFAULT_STEPS_MAX
            raise _TooMuchError(f"the defaults of the schema take more than {most:,} steps to encode")
        if isinstance(value, str) and len(value) > limits.SCHEMA_DEFAULT_BYTES_MAX:
            raise _TooMuchError(_too_large(len(value)))
        kind = node.kind
        if kind == cells.RAW:
            raise NotImplementedError
        if kind == cells.CHOICE:
            return self._encoded_branch(node, value)
        if kind == cells.STRUCT:
            return b"".join(self._encoded(child, value.get(child.name, child.avro.default)) for child in node.children)
        if kind == cells.LIST and isinstance(value, list):
            items = b"".join(self._encoded(node.children[0], each) for each in value)
            return _varint(len(value)) + items + _varint(0) if value else _varint(0)
        if kind == cells.MAP and isinstance(value, dict):
            key, item = node.children
            items = b"".join(self._encoded(key, name) + self._encoded(item, each) for name, each in value.items())
            return _varint(len(value)) + items + _varint(0) if value else _varint(0)
        if node.avro.symbols:
            return _varint(node.avro.symbols.index(value))
        if kind == cells.NOTHING and value is None:
            return b""
        if kind == cells.BOOL and isinstance(value, bool):
            return bytes([value])
        if kind in _LIMITS and type(value) is int and -(1 << _LIMITS[kind]) <= value < 1 << _LIMITS[kind]:
            return _varint(value)
        if kind in (cells.FLOAT, cells.DOUBLE) and type(value) in (int, float):
            return struct.pack("<f" if kind == cells.FLOAT else "<d", value)
        if kind == cells.TEXT and isinstance(value, str):
            text = value.encode()
            return _varint(len(text)) + text
        if kind in (cells.BINARY, cells.DECIMAL) and isinstance(value, str):
            text = value.encode("latin-1")
            if not node.flags & avro_columns.FIXED:
                return _varint(len(text)) + text
            if len(text) == node.wire:
                return text
        raise ValueError("it is not of the type")

    def _encoded_branch(self, node: Node, value: Any) -> bytes:
        """Return a value of a union: of the first branch that takes it."""
        if value is None and node.wire >= 0:
            return _varint(node.wire)
        for child in node.children:
            try:
                branch = 1 - node.wire if node.flags & avro_columns.ALONE else child.id
                return _varint(branch) + self._encoded(child, value)
            except _MISFITS:
                continue
        raise ValueError("it is in no branch")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= limits.SCHEMA_REASON_CHARS_MAX else text[: limits.SCHEMA_REASON_CHARS_MAX] + "..."


def _too_large(size: int) -> str:
    return f"a default of {size:,} bytes; {limits.SCHEMA_DEFAULT_BYTES_MAX:,} at most"


def _varint(number: int) -> bytes:
    """Return a number as a zigzag varint."""
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])
