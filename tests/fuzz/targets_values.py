"""Encoded values that become typed columns: what publishers write, whoever they are.

An input is values, each behind its size in two bytes, cut at the end of the input.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa

from penstock.idl.model import Reference
from penstock.schemas.thrift import ThriftProtocol
from tests.fuzz.target import Cover, Modules, Target
from tests.typed_readers import ENCODINGS, TREE, found_by
from tests.typed_values import thrift_bytes

VALUES_MAX = 50
MEMORY_BYTES = 32 * 1024 * 1024  # a value has many cells for a byte, see `hot.typed_columns`

_LEAF = {"n": 7, "t": "é"}
_TREES: tuple[dict[str, Any], ...] = (
    {},
    {"flag": True, "small": -1, "short": 300, "whole": -70_000, "long": 2**40, "real": 0.5, "color": 5},
    {"text": "text", "bytes": b"\xff\0", "words": ["", "word"], "flags": [True, False], "by_name": [("k", [1, -1])]},
    {"leaf": _LEAF, "all": [_LEAF, _LEAF], "next": {"leaf": _LEAF, "next": {"small": 1}}},
)
_PROTOBUF = (
    "08031202c3a9",
    "1a03010203180422070a0161120208012a020805" + "2a0412017832020801",
    "3a0801000000020000003d0300000041000000000000e03f",
    "4a0208014a004b0801" + "4c220022020a00",
)
_AVRO = (
    "02040002026104040e0000000102000000000000000000e03f01",
    "000002026100000204ff01ffee06000200",
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
        return tuple(map(bytes.fromhex, _AVRO))
    if encoding == "json":
        return tuple(json.dumps(each, ensure_ascii=number > 0).encode() for number, each in enumerate(_JSON))
    protocol = ThriftProtocol.COMPACT if encoding == "compact" else ThriftProtocol.BINARY
    made = tuple(thrift_bytes(TREE, Reference("Tree"), each, protocol, None) for each in _TREES)
    return tuple(map(_framed, made)) if encoding == "frugal" else made


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


def _target(encoding: str) -> Target:
    module = "thrift" if encoding in ("binary", "compact", "frugal") else encoding
    make: Callable[[Random], bytes] = partial(_make, _seeds(encoding))
    return Target(
        f"{encoding}_values",
        partial(_run, encoding),
        make,
        (Cover(f"penstock.hot.{module}_columns"), Cover("penstock.hot.typed_columns", ("Column", "RowReader"))),
        pieces=_PIECES,
        compares=True,
        memory_bytes=MEMORY_BYTES,
    )


TARGETS: tuple[Target, ...] = tuple(map(_target, ENCODINGS))
