"""Fingerprint of an Avro schema, by which a value in the single-object encoding names the schema of its writer.

Rules: the fingerprint is CRC-64-AVRO (Rabin) of the schema's Parsing Canonical Form, as the specification says: JSON
without what does not matter to reading bytes, with full names. Versions that differ in defaults, aliases, documentation
or logical types alone have one fingerprint.

    c3 01 │ fingerprint: 8 bytes, little-endian │ value
"""

from __future__ import annotations

import json
from typing import Any

from penstock.schemas.avro import NAMED, PRIMITIVES, full_name
from penstock.schemas.plans import PLAN_DEPTH_MAX, SchemaError

SINGLE_OBJECT = b"\xc3\x01"
MARK_BYTES = len(SINGLE_OBJECT) + 8

_EMPTY = 0xC15D213AA4D7A795


def _entry(number: int) -> int:
    for _ in range(8):
        number = number >> 1 ^ (_EMPTY if number & 1 else 0)
    return number


_TABLE = tuple(map(_entry, range(256)))


def single_object_mark(schema: str) -> bytes:
    """Return the bytes in front of a value in the single-object encoding. SchemaError: the schema is malformed."""
    try:
        form = _Canonical().form(json.loads(schema), "", 0)
        text = json.dumps(form, separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SchemaError(f"the Avro schema is malformed: {type(error).__name__} {error}") from error
    found = _EMPTY
    for byte in text:
        found = found >> 8 ^ _TABLE[(found ^ byte) & 255]
    return SINGLE_OBJECT + found.to_bytes(8, "little")


class _Canonical:
    """Makes the Parsing Canonical Form of one schema."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def form(self, schema: Any, space: str, depth: int) -> Any:
        """Return the form of a schema that stands in a namespace, as JSON whose members are in their order."""
        if depth > 4 * PLAN_DEPTH_MAX:
            raise ValueError("its types are nested too deep")
        if isinstance(schema, list):
            return [self.form(each, space, depth + 1) for each in schema]
        if isinstance(schema, str):
            inner = schema if "." in schema or not space else f"{space}.{schema}"
            return schema if schema in PRIMITIVES or inner not in self._names else inner
        kind = schema["type"]
        if kind == "array":
            return {"type": kind, "items": self.form(schema["items"], space, depth + 1)}
        if kind == "map":
            return {"type": kind, "values": self.form(schema["values"], space, depth + 1)}
        if not isinstance(kind, str) or kind not in NAMED:
            return self.form(kind, space, depth + 1)
        name, space = full_name(schema, space)
        self._names.add(name)
        if kind == "enum":
            return {"name": name, "type": kind, "symbols": list(map(str, schema["symbols"]))}
        if kind == "fixed":
            return {"name": name, "type": kind, "size": int(schema["size"])}
        fields = [
            {"name": str(field["name"]), "type": self.form(field["type"], space, depth + 1)}
            for field in schema["fields"]
        ]
        return {"name": name, "type": "record", "fields": fields}
