"""Converts plain frames to frames with checksums, for tests that write a connection's bytes themselves."""

from __future__ import annotations

import struct

from penstock.wire import encode_checked_head

_HEAD = struct.Struct("<IHHII")


def checked(data: bytes) -> bytes:
    """Return the frames in `data` with checksums. An incomplete raw part is not covered by one."""
    out = b""
    while data:
        frame_bytes, api, version, correlation_id, body_bytes = _HEAD.unpack_from(data)
        raw_bytes = frame_bytes - (_HEAD.size - 4) - body_bytes
        body, rest = data[_HEAD.size : _HEAD.size + body_bytes], data[_HEAD.size + body_bytes :]
        raw, data = rest[:raw_bytes], rest[raw_bytes:]
        covered = (raw,) if len(raw) == raw_bytes else None
        out += encode_checked_head(api, version, correlation_id, body, raw_bytes, covered) + raw
    return out
