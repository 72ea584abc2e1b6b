"""The key of a message: the field that a contract names, as the bytes that a stream partitions and compacts by.

| field           | key                      |
|-----------------|--------------------------|
| string, binary  | the text in UTF-8, bytes |
| integer, enum   | decimal digits           |
| bool            | `true`, `false`          |
| uuid            | its 36 characters        |
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from penstock.base import limits
from penstock.frugal.contracts import OperationType


class MissingKeyError(ValueError):
    """A message has no key although its operation names one; nothing was published."""


def key_of(scope: str, operation: OperationType, message: Any) -> bytes | None:
    """Return the key of a message; None: its operation names none. MissingKeyError; TypeError: no type for a key."""
    if not operation.key:
        return None
    found = message
    for number, name in enumerate(operation.key):
        found = _field(found, name)
        if found is None:
            path, whole = ".".join(operation.key[: number + 1]), ".".join(operation.key)
            what = f"its field {path} is None" if path == whole else f"{path} is None, of its key {whole}"
            raise MissingKeyError(f"{scope}.{operation.name}: the message has no key: {what}")
    which = f"{scope}.{operation.name}: the key {'.'.join(operation.key)}"
    key = _bytes_of(found, which)
    if not 0 < len(key) <= limits.KEY_BYTES_MAX:
        raise MissingKeyError(f"{which} has {len(key)} bytes; a key has 1 to {limits.KEY_BYTES_MAX}")
    return key


def _field(struct: Any, name: str) -> Any:
    """Return a field by its name in the contract; in Python a name that is taken has an underscore behind it."""
    for attribute in (name, f"{name}_"):
        if hasattr(struct, attribute):
            return getattr(struct, attribute)
    raise TypeError(f"{type(struct).__name__} has no field {name}, which the contract names as a key")


def _bytes_of(value: Any, which: str) -> bytes:
    match value:
        case bool():
            return b"true" if value else b"false"
        case int():
            return b"%d" % value
        case str():
            return value.encode()
        case bytes():
            return value
        case UUID():
            return str(value).encode()
    raise TypeError(f"{which} is of type {type(value).__name__}, which makes no key")
