"""Frames with checksums, out of plain ones: for who plays the other side of a connection byte by byte."""

from __future__ import annotations

import struct

from penstock.wire import encode_checked_head

_HEAD = struct.Struct("<IHHII")


def checked(data: bytes) -> bytes:
    """The plain frames in `data`, each with checksums; the raw part of one that is cut short is not covered."""
    out = b""
    while data:
        frame_bytes, api, version, correlation_id, body_bytes = _HEAD.unpack_from(data)
        raw_bytes = frame_bytes - (_HEAD.size - 4) - body_bytes
        body, rest = data[_HEAD.size : _HEAD.size + body_bytes], data[_HEAD.size + body_bytes :]
        raw, data = rest[:raw_bytes], rest[raw_bytes:]
        covered = (raw,) if len(raw) == raw_bytes else None
        out += encode_checked_head(api, version, correlation_id, body, raw_bytes, covered) + raw
    return out
