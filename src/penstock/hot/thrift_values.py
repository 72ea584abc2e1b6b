"""Check a value against the type of its contract before it is encoded, and name the field that does not fit.

Theory: Apache thrift's encoder leaves out a field that is None, takes a dict for a list of its keys, and any object for
a bool. Readers then get a message that they cannot read, or another value. And what the encoder does refuse, it names
no field of.

Rules: a `Shape` is a type, made once of a `thrift_spec`; shapes of structs are filled when they are first used, since
structs hold each other. A misfit is None, or the path to the value and the reason: ".lines[3].price: a str, where …".
Of values only keys, elements of sets and integers are shown: a text may be a secret.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any

_BOOL, _BYTE, _DOUBLE, _I16, _I32, _I64 = 2, 3, 4, 6, 8, 10
_STRING, _STRUCT, _MAP, _SET, _LIST, _UUID = 11, 12, 13, 14, 15, 16
_DEPTH_MAX = 64  # structs in structs, as `codecs.DEPTH_MAX`
_SHAPES_KEPT = 1024
_KEY_CHARS_MAX = 40
_NAMES = {
    _BOOL: "bool", _BYTE: "i8", _DOUBLE: "double", _I16: "i16", _I32: "i32", _I64: "i64", _STRING: "string",
    _STRUCT: "struct", _MAP: "map", _SET: "set", _LIST: "list", _UUID: "uuid",
}  # fmt: skip
_BITS = {_BYTE: 7, _I16: 15, _I32: 31, _I64: 63}  # without the sign
_is_uuid = uuid.UUID

_int = int  # of C, when compiled


class Shape:
    """A type: its wire type, and what is in it. `places`: the fields by their ids. -1: no field."""

    __slots__ = (
        "element", "high", "is_binary", "is_filled", "is_union", "kind", "low", "name", "names", "other", "places",
        "required", "shapes", "struct",
    )  # fmt: skip

    def __init__(self, kind: _int, struct: Any) -> None:
        self.kind = kind
        self.struct = struct  # the class
        self.name = str(struct.__name__) if kind == _STRUCT else name_of(kind)
        self.is_binary = False
        self.is_filled = kind != _STRUCT
        self.is_union = False
        bits = _BITS.get(kind, 0)
        self.low = -(1 << bits)  # of integers
        self.high = (1 << bits) - 1
        self.element: Shape | None = None  # of lists and sets, and the keys of maps
        self.other: Shape | None = None  # the values of maps
        self.names: list[str] = []
        self.shapes: list[Shape] = []
        self.required: list[bool] = []
        self.places: list[int] = []

    def fill(self) -> None:
        """Learn the fields of a struct."""
        needed = getattr(self.struct, "thrift_required", ())
        self.is_union = getattr(self.struct, "thrift_is_union", False)
        for field in self.struct.thrift_spec:
            self.places.append(-1 if field is None else len(self.names))
            if field is not None:
                self.names.append(field[2])
                self.shapes.append(shape_of(field[1], field[3]))
                self.required.append(field[2] in needed)
        self.is_filled = True

    def misfit(self, value: Any, depth: _int) -> str | None:
        """Return the path within the value and the reason; None: it fits."""
        kind = self.kind
        if kind == _STRUCT:
            return self._struct_misfit(value, depth)
        if kind == _STRING:
            return self._string_misfit(value)
        if kind == _DOUBLE:
            return None if isinstance(value, float) else self._double_misfit(value)
        if kind == _BOOL:
            if value is True or value is False or (isinstance(value, int) and value in (0, 1)):
                return None
            return self._other_type(value)
        if kind == _UUID:
            return None if isinstance(value, _is_uuid) else self._other_type(value)
        if kind in (_LIST, _SET):
            return self._elements_misfit(value, depth)
        if kind == _MAP:
            return self._map_misfit(value, depth)
        return self._integer_misfit(value)

    def _struct_misfit(self, value: Any, depth: _int) -> str | None:
        if not isinstance(value, self.struct):
            return self._other_type(value)
        if not self.is_filled:
            self.fill()
        if depth >= _DEPTH_MAX:
            return f": structs nest deeper than {_DEPTH_MAX}"
        count = 0
        for place in range(len(self.names)):
            name = self.names[place]
            held = getattr(value, name)
            if held is None:
                if self.required[place]:
                    return f".{name}: None, and the field is required; give it a value"
                continue
            count += 1
            shape = self.shapes[place]
            found = shape.misfit(held, depth + 1)
            if found is not None:
                return f".{name}{found}"
        if self.is_union and count != 1:
            return self.union_misfit([name for name in self.names if getattr(value, name) is not None])
        return None

    def union_misfit(self, given: list[str]) -> str:
        """Return the reason of a union that has not exactly one field."""
        said = f"the fields {', '.join(given)}" if given else "no field"
        return f": the union {self.name} has {said}; give exactly one of {', '.join(self.names)}"

    def _string_misfit(self, value: Any) -> str | None:
        if self.is_binary:
            return None if isinstance(value, bytes) else self._other_type(value)
        if not isinstance(value, str):
            return self._other_type(value)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return ": the text has no form in UTF-8, it holds half of a surrogate pair"
        return None

    def _integer_misfit(self, value: Any) -> str | None:
        index = value
        if not isinstance(value, int):
            try:
                index = operator.index(value)
            except TypeError:
                return self._other_type(value)
        try:
            number = index  # of 64 bits, when compiled
        except OverflowError:
            return self._range_misfit(index)
        return None if self.low <= number <= self.high else self._range_misfit(index)

    def _range_misfit(self, number: Any) -> str:
        shown = str(number) if number.bit_length() <= 256 else f"a number of {number.bit_length():,} bits"
        return f": {shown} is out of the range of {self.name}"

    def _double_misfit(self, value: Any) -> str | None:
        if isinstance(value, str | bytes):
            return self._other_type(value)
        try:
            float(value)
        except (TypeError, ValueError, OverflowError):
            return self._other_type(value)
        return None

    def _elements_misfit(self, value: Any, depth: _int) -> str | None:
        fits = isinstance(value, (list, tuple)) if self.kind == _LIST else isinstance(value, (set, frozenset))
        if not fits:
            return self._other_type(value)
        shape = self.element
        assert shape is not None
        place = 0
        for each in value:
            found = shape._other_type(each) if each is None else shape.misfit(each, depth)  # noqa: SLF001 (a type too)
            if found is not None:
                return f"[{place if self.kind == _LIST else _shown(each)}]{found}"
            place += 1  # noqa: SIM113 (an index of C, when compiled)
        return None

    def _map_misfit(self, value: Any, depth: _int) -> str | None:
        if not isinstance(value, dict):
            return self._other_type(value)
        shape, other = self.element, self.other
        assert shape is not None
        assert other is not None
        for key, each in value.items():
            found = shape._other_type(key) if key is None else shape.misfit(key, depth)  # noqa: SLF001 (a type too)
            if found is not None:
                return f"[key {_shown(key)}]{found}"
            found = other._other_type(each) if each is None else other.misfit(each, depth)  # noqa: SLF001 (a type too)
            if found is not None:
                return f"[{_shown(key)}]{found}"
        return None

    def _other_type(self, value: Any) -> str:
        said = "binary" if self.is_binary else self.name
        if value is None or isinstance(value, bytes):
            return f": {'None' if value is None else 'bytes'}, where the contract says {said}"
        kind = type(value)
        name = kind.__name__
        if name == said and self.kind == _STRUCT:  # of two generated modules, or of one and of `load`
            return f": {said} of the module {kind.__module__}, where the contract says that of {self.struct.__module__}"
        return f": {'an' if name[0] in 'aeiou' else 'a'} {name}, where the contract says {said}"


def _shown(key: Any) -> str:
    """Return a key as the path shows it."""
    if not isinstance(key, int | str | bytes | float):
        return f"a {type(key).__name__}"
    if isinstance(key, int) and key.bit_length() > 256:
        return f"a number of {key.bit_length():,} bits"
    text = repr(key[:_KEY_CHARS_MAX]) if isinstance(key, str | bytes) else repr(key)
    return text if not isinstance(key, str | bytes) or len(key) <= _KEY_CHARS_MAX else f"{text}…"


def shape_of(kind: int, arguments: Any) -> Shape:
    """Return the shape of a type, given by its ttype and the arguments of it."""
    if kind == _STRUCT:
        return kept_shape(arguments[0])
    shape = Shape(kind, None)
    if kind in (_LIST, _SET):
        shape.element = shape_of(arguments[0], arguments[1])
    elif kind == _MAP:
        shape.element = shape_of(arguments[0], arguments[1])
        shape.other = shape_of(arguments[2], arguments[3])
    elif kind == _STRING:
        shape.is_binary = arguments == "BINARY"
    return shape


def _struct_shape(struct: Any) -> Shape:
    return Shape(_STRUCT, struct)


kept_shape: Callable[[Any], Shape] = lru_cache(_SHAPES_KEPT)(_struct_shape)
"""Returns the shape of a struct."""


def name_of(kind: int) -> str:
    """Return the name of a ttype."""
    return _NAMES.get(kind, f"type {kind}")


def find_misfit(shape: Shape, value: Any) -> str | None:
    """Return the path within a value and the reason why it does not fit its type; None: it fits."""
    if value is None:
        return shape._other_type(value)  # noqa: SLF001 (of this module)
    return shape.misfit(value, 0)
