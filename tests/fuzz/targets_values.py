"""Encoded values that become typed columns: what publishers write, whoever they are.

An input is values, each behind its size in two bytes, cut at the end of the input.
"""

from __future__ import annotations

import io
import json
import struct
import uuid
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import fastavro
import pyarrow as pa

from penstock.idl.model import Reference
from penstock.schemas.thrift import ThriftProtocol
from tests.fuzz.target import Cover, Modules, Target
from tests.typed_readers import AVRO, ENCODINGS, TREE, found_by
from tests.typed_values import thrift_bytes

VALUES_MAX = 50
MEMORY_BYTES = 32 * 1024 * 1024  # a value has many cells for a byte, see `hot.typed_columns`

_LEAF = {"n": 7, "t": "é"}
_TREES: tuple[dict[str, Any], ...] = (
    {},
    {"flag": True, "small": -1, "short": 300, "whole": -70_000, "long": 2**40, "real": 0.5, "color": 5},
    {"text": "text", "bytes": b"\xff\0", "words": ["", "word"], "flags": [True, False], "by_name": [("k", [1, -1])]},
    {"id": uuid.UUID(int=5), "leaf": _LEAF, "all": [_LEAF, _LEAF], "next": {"leaf": _LEAF, "next": {"small": 1}}},
)
_PROTOBUF = (
    "08031202c3a9",
    "1a03010203180422070a0161120208012a020805" + "2a0412017832020801",
    "3a0801000000020000003d0300000041000000000000e03f",
    "4a0208014a004b0801" + "4c220022020a00",
    "5a0208025a02080450045a020806" + "5003",
)
_INNER: dict[str, Any] = {"e": "A", "a": [], "m": {}, "d": b"", "f": b"ab", "n": [], "r": None, "b": False}
_AVRO: tuple[dict[str, Any], ...] = (
    _INNER,
    {**_INNER, "a": [None, "é", 7], "n": [None] * 3, "d": b"\xff\x01", "r": 0.5, "e": "B", "b": True},
    {**_INNER, "m": {"x": None, "y": {**_INNER, "a": ["t", None, -7], "m": {"z": _INNER}, "n": [None]}}},
)
_JSON = (
    {"a": 1, "b": 0.5, "c": "é\n", "d": "2026-11-29T12:00:00.5+01:00", "h": "2026-11-29", "i": 2**53},
    {"e": [{"a": 2**64 - 1, "é": True}, None], "f": {"x": 1e300, "y": None}, "g": {"any": [1, "x", None]}},
    {"x": [[], {}, -1.5e-7, "\ud83d\ude00"], "g": "text", "a": None},
)
_PIECES = (
    bytes.fromhex("0b0007"),
    bytes.fromhex("0c000e"),
    bytes.fromhex("0f000b0c00000001"),
    bytes.fromhex("80010001"),
    bytes.fromhex("7fffffff"),
    bytes.fromhex("ffffffffffffffffff01"),
    b"\x19\x1c",
    b'"a":',
    b'{"e":[',
    b"\\ud83d",
    b"1e400",
    b"2026-02-29T",
)


def _seeds(encoding: str) -> tuple[bytes, ...]:
    if encoding == "protobuf":
        return tuple(map(bytes.fromhex, _PROTOBUF))
    if encoding == "avro":
        return tuple(map(_avro, _AVRO))
    if encoding == "json":
        return tuple(json.dumps(each, ensure_ascii=number > 0).encode() for number, each in enumerate(_JSON))
    protocol = ThriftProtocol.COMPACT if encoding == "compact" else ThriftProtocol.BINARY
    made = tuple(thrift_bytes(TREE, Reference("Tree"), each, protocol, None) for each in _TREES)
    return tuple(map(_framed, made)) if encoding == "frugal" else made


def _avro(value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(AVRO))), value)
    return out.getvalue()


def _framed(value: bytes) -> bytes:
    headers = struct.pack(">i4si2s", 4, b"_cid", 2, b"c1")
    message = struct.pack(">iI4si", -0x7FFEFFFF, 4, b"Made", 0) + value
    return struct.pack(">ibi", len(headers) + len(message) + 5, 0, len(headers)) + headers + message


def _make(seeds: tuple[bytes, ...], chance: Random) -> bytes:
    out = bytearray()
    for _ in range(int(chance.random() * 5)):
        value = seeds[int(chance.random() * len(seeds))]
        if chance.random() < 0.3:
            value = value[: int(chance.random() * (len(value) + 1))]
        out += struct.pack(">H", len(value)) + value
    return bytes(out)


def _run(encoding: str, modules: Modules, data: bytes) -> object:
    """The values of an input as columns, a null before the last."""
    values: list[bytes | None] = []
    at = 0
    while at + 2 <= len(data) and len(values) < VALUES_MAX:
        (size,) = struct.unpack_from(">H", data, at)
        values.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    values[-1:-1] = [None]
    return found_by(modules, encoding, pa.array(values, pa.binary()))


def _methods(reader: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{reader}.{name}" for name in names)


_SHARED = _methods("ThriftReader", "fill", "_close_struct", "_has_room")
_BINARY = _methods(
    "ThriftReader",
    *("_binary_struct", "_binary_value", "_binary_list", "_binary_map"),
    *("_skip_binary", "_skip_binary_struct", "_skip_binary_values"),
)
_COMPACT = _methods(
    "ThriftReader",
    *("_varint", "_size", "_compact_struct", "_compact_value", "_compact_sizes", "_compact_list", "_compact_map"),
    *("_skip_compact", "_skip_compact_struct", "_skip_compact_list", "_skip_compact_values"),
)
_COVERS = {
    "binary": Cover("penstock.hot.thrift_columns", (*_SHARED, *_BINARY)),
    "compact": Cover("penstock.hot.thrift_columns", (*_SHARED, *_COMPACT)),
    "frugal": Cover("penstock.hot.thrift_columns", (*_methods("ThriftReader", "_open", "_binary_begin"), *_SHARED)),
    "protobuf": Cover(
        "penstock.hot.protobuf_columns", but={"ProtobufReader._skip_indexes": "only a registry's header asks for it"}
    ),
    "avro": Cover("penstock.hot.avro_columns"),
    "json": Cover("penstock.hot.json_columns"),
}


def _target(encoding: str) -> Target:
    make: Callable[[Random], bytes] = partial(_make, _seeds(encoding))
    return Target(
        f"{encoding}_values",
        partial(_run, encoding),
        make,
        (_COVERS[encoding],),
        pieces=_PIECES,
        compares=True,
        memory_bytes=MEMORY_BYTES,
    )


TARGETS: tuple[Target, ...] = tuple(map(_target, ENCODINGS))
