"""Values of message types, made from the types themselves: within their bounds, at their bounds, beyond them.

Rules: a type that nothing is known of is a TypeError when its maker is asked for: no new message goes without inputs.
 What comes out is what an encoder takes: numbers, text, lists, maps. With a rate above 0, each place of it may be
something else: of another type, beyond its bounds, missing, twice, one too many, out of order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

from penstock.base.subjects import INTERNAL_NAME_PREFIX

Make = Callable[[Random, float], Any]

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(1.5, float("nan"), float("inf"), "", "x", "\0", "größe.→", "a" * 129, "a" * 1_025, "\ud7ff", "*", ">", "$SYS.>"),
    *(b"", b"\0", b"\xff" * 17, [], [[]], [None] * 3, {}, {"a": {}}, [1, 2, 3], {"tag": 1}, "1", "NaN", "../../x"),
)
"""What no field expects, or not always."""

_MATCHING = ("a", "archive-1", "0" * 64, "0123456789abcdef" * 4)
"""Texts that match the patterns of fields."""
_TEXTS = ("a", "orders", "orders.>", "a.b", "x1", "127.0.0.1:7422", "0", "key", "é", f"{INTERNAL_NAME_PREFIX}offsets")
_COUNTS = (0, 0, 1, 1, 1, 2, 3, 5)


class Twice(dict[Any, Any]):
    """A map in which one key stands twice: encoders that know of it write it so."""


def _pick(chance: Random, choices: tuple[Any, ...]) -> Any:
    return choices[int(chance.random() * len(choices))]


def _bounded(low: int, high: int) -> Make:
    edges = (low, low, min(low + 1, high), min(low + 2, high), min(low + 7, high), high, max(low, high - 1))

    def make(chance: Random, rate: float) -> Any:
        if rate and chance.random() < rate:
            return _pick(chance, (low - 1, high + 1, *HOSTILE))
        if chance.random() < 0.8:
            return _pick(chance, edges)
        return low + int(chance.random() * (high - low))

    return make


def _text(kind: inspect.StrType) -> Make:
    low, high = kind.min_length or 0, kind.max_length
    widest = "x" * min(high or 40, 1_024)
    choices = tuple(text for text in _TEXTS if len(text) >= low and (high is None or len(text) <= high))
    if kind.pattern is not None:
        choices = tuple(text for text in (*_MATCHING, "x" * min(high or 20, 64)) if re.search(kind.pattern, text))
        assert choices, f"add a text that matches {kind.pattern} to _MATCHING"
    else:
        choices = (*choices, widest)

    def make(chance: Random, rate: float) -> Any:
        if rate and chance.random() < rate:
            return _pick(chance, (widest + "x", *HOSTILE))
        return _pick(chance, choices)

    return make


def _bytes(kind: inspect.BytesType) -> Make:
    low, high = kind.min_length or 0, kind.max_length
    choices = tuple(b"k" * size for size in (low, low + 1, low + 16, min(high or 40, 300)) if not high or size <= high)

    def make(chance: Random, rate: float) -> Any:
        if rate and chance.random() < rate:
            return _pick(chance, HOSTILE)
        return _pick(chance, choices) if chance.random() < 0.7 else chance.randbytes(max(low, min(high or 20, 20)))

    return make


def _constants(*choices: Any) -> Make:
    def make(chance: Random, rate: float) -> Any:
        return _pick(chance, HOSTILE) if rate and chance.random() < rate else _pick(chance, choices)

    return make


def _sequence(kind: Any) -> Make:
    item = _of(kind.item_type)
    low, high = kind.min_length or 0, kind.max_length

    def make(chance: Random, rate: float) -> Any:
        if rate and chance.random() < rate:
            return _pick(chance, HOSTILE)
        count = max(low, _pick(chance, _COUNTS))
        if high is not None:
            count = min(count, high)
        out = [item(chance, rate) for _ in range(count)]
        if rate and out and chance.random() < rate:
            out.append(out[0])
        return out

    return make


def _tuple(kind: inspect.TupleType) -> Make:
    items = tuple(_of(one) for one in kind.item_types)
    return lambda chance, rate: [item(chance, rate) for item in items]


def _map(kind: inspect.DictType) -> Make:
    key, value = _of(kind.key_type), _of(kind.value_type)

    def make(chance: Random, rate: float) -> Any:
        if rate and chance.random() < rate:
            return _pick(chance, HOSTILE)
        return {_hashable(key(chance, 0.0)): value(chance, rate) for _ in range(_pick(chance, _COUNTS))}

    return make


def _hashable(key: Any) -> Any:
    return key if isinstance(key, str | int | bytes) else repr(key)


def _union(kind: inspect.UnionType) -> Make:
    kinds = tuple(_of(one) for one in kind.types)
    return lambda chance, rate: _pick(chance, kinds)(chance, rate)


def _struct(kind: inspect.StructType) -> Make:
    fields = tuple((one.encode_name, _of(one.type), one.required) for one in kind.fields)
    if kind.array_like:
        return _array_struct(kind, fields)
    tag = {} if kind.tag_field is None else {kind.tag_field: kind.tag}

    def make(chance: Random, rate: float) -> Any:
        random = chance.random
        if rate and random() < rate / 2:
            return _pick(chance, HOSTILE)
        out: dict[Any, Any] = dict(tag)
        for name, value, is_required in fields:
            if is_required or random() < 0.6:
                out[name] = value(chance, rate)
        if rate and random() < rate * 2 and out:
            name = _pick(chance, tuple(out))
            kind_of_mistake = int(random() * 4)
            if kind_of_mistake == 0:
                del out[name]
            elif kind_of_mistake == 1:
                out["unknown"] = _pick(chance, HOSTILE)
            elif kind_of_mistake == 2:
                out[name] = out[_pick(chance, tuple(out))]
            else:
                return Twice(out)
        return out

    return make


def _array_struct(kind: inspect.StructType, fields: tuple[tuple[str, Make, bool], ...]) -> Make:
    head = [] if kind.tag is None else [kind.tag]
    required = sum(is_required for _, _, is_required in fields)

    def make(chance: Random, rate: float) -> Any:
        if rate and chance.random() < rate / 2:
            return _pick(chance, HOSTILE)
        out = head + [value(chance, rate) for _, value, _ in fields]
        if len(fields) > required and chance.random() < 0.3:
            del out[len(head) + required + int(chance.random() * (len(fields) - required)) :]
        if rate and chance.random() < rate * 2 and out:
            kind_of_mistake = int(chance.random() * 3)
            if kind_of_mistake == 0:
                out.append(_pick(chance, HOSTILE))
            elif kind_of_mistake == 1:
                out.pop()
            else:
                chance.shuffle(out)
        return out

    return make


def _any() -> Make:
    return lambda chance, rate: _pick(chance, HOSTILE[:-8])


def _of(kind: inspect.Type) -> Make:
    match kind:
        case inspect.Metadata():
            return _of(kind.type)
        case inspect.IntType():
            low = kind.ge if kind.ge is not None else (kind.gt + 1 if kind.gt is not None else -(2**63))
            high = kind.le if kind.le is not None else (kind.lt - 1 if kind.lt is not None else 2**63 - 1)
            return _bounded(low, high)
        case inspect.StrType():
            return _text(kind)
        case inspect.BytesType():
            return _bytes(kind)
        case inspect.BoolType():
            return _constants(True, False)
        case inspect.NoneType():
            return _constants(None)
        case inspect.FloatType():
            return _constants(0.0, 1.5, -1.0, 1e308)
        case inspect.EnumType():
            return _constants(*(one.value for one in kind.cls))
        case inspect.LiteralType():
            return _constants(*kind.values)
        case inspect.ListType() | inspect.SetType() | inspect.FrozenSetType() | inspect.VarTupleType():
            return _sequence(kind)
        case inspect.TupleType():
            return _tuple(kind)
        case inspect.DictType():
            return _map(kind)
        case inspect.UnionType():
            return _union(kind)
        case inspect.StructType():
            return _struct(kind)
        case inspect.AnyType() | inspect.RawType():
            return _any()
    raise TypeError(f"no values are made for {kind}: say in tests/fuzz/shapes.py how")


@cache
def maker_of(kind: Any) -> Make:
    """Makes values of a type."""
    return _of(inspect.type_info(kind))


_msgpack = msgspec.msgpack.Encoder()
_json = msgspec.json.Encoder()


def as_msgpack(value: Any) -> bytes:
    """MessagePack of what a maker made; a key that stands twice does so here."""
    if type(value) is Twice and 0 < len(value) < 15:
        first, *_ = value.items()
        pairs = [*value.items(), (first[0], HOSTILE[len(value)])]
        return bytes((0x80 | len(pairs),)) + b"".join(as_msgpack(part) for pair in pairs for part in pair)
    try:
        return _msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError, TypeError, ValueError):
        return b"\xc1"  # which is never used


def as_json(value: Any) -> bytes:
    """The same as JSON."""
    if type(value) is Twice and value:
        first, *_ = value.items()
        text = as_json(dict(value))
        return text[:-1] + b"," + as_json({first[0]: first[1]})[1:]
    try:
        return _json.encode(value)
    except (OverflowError, UnicodeEncodeError, TypeError, ValueError):
        return b"nul"


RATES = (0.0, 0.0, 0.03, 0.1, 0.3)
"""How often a place of a made value is wrong: in every second value none is."""


def made_msgpack(chance: Random, make: Make) -> bytes:
    """A value, sound or not."""
    return as_msgpack(make(chance, RATES[int(chance.random() * len(RATES))]))


def made_json(chance: Random, make: Make) -> bytes:
    """The same as JSON."""
    return as_json(make(chance, RATES[int(chance.random() * len(RATES))]))


DEEP = b"\x91" * 2_000 + b"\xc0"
DEEP_JSON = b"[" * 1_500 + b"]" * 1_500
"""Nested more deeply than any message is."""
