"""The bytes of the snapshot file. It is written aside, synced and renamed, so a bad checksum is always corruption.

file  "PNRS" | u32 version 1 | u32 CRC-32C of what follows | u64 index | u64 term | u32 bytes of the membership |
      membership (MessagePack) | data                                                             little-endian
"""

from __future__ import annotations

import struct

import msgspec

from penstock.base.errors import CorruptionError
from penstock.hot.crc import crc32c
from penstock.raft.membership import decode_membership, encode_membership
from penstock.raft.records import check_head
from penstock.raft.values import NUMBER_MAX, Snapshot

SNAPSHOT_VERSION = 1

_MAGIC = b"PNRS"
_HEAD = struct.Struct("<4sII")
_NUMBERS = struct.Struct("<QQI")


def encode_snapshot(snapshot: Snapshot) -> tuple[bytes, bytes]:
    """Return the file's bytes, in two pieces."""
    membership = encode_membership(snapshot.membership)
    head = _NUMBERS.pack(snapshot.index, snapshot.term, len(membership)) + membership
    return _HEAD.pack(_MAGIC, SNAPSHOT_VERSION, crc32c(snapshot.data, crc32c(head))) + head, snapshot.data


def decode_snapshot(data: bytes, path: str) -> Snapshot:
    """Decode a snapshot file. Raise CorruptionError, RemoteError (unsupported_version)."""
    check_head(data, path, _MAGIC, SNAPSHOT_VERSION)
    if len(data) < _HEAD.size + _NUMBERS.size:
        raise CorruptionError(path, len(data), "a snapshot", "the end of the file")
    (_, _, crc) = _HEAD.unpack_from(data)
    view = memoryview(data)
    found = crc32c(view[_HEAD.size :])
    if found != crc:
        raise CorruptionError(path, _HEAD.size, f"CRC-32C {crc:08x}", f"{found:08x}")
    index, term, membership_bytes = _NUMBERS.unpack_from(data, _HEAD.size)
    if max(index, term) > NUMBER_MAX:
        raise CorruptionError(path, _HEAD.size, f"an index and a term up to {NUMBER_MAX}", f"{index} and {term}")
    start = _HEAD.size + _NUMBERS.size
    try:
        membership = decode_membership(data[start : start + membership_bytes])
    except msgspec.DecodeError as error:
        raise CorruptionError(path, start, "a membership", str(error)) from None
    return Snapshot(index, term, membership, data[start + membership_bytes :])
