"""Several byte strings in one input, so that mutations and splices go across them: files of a folder, frames, keys.

u16 number of bytes, little-endian | these | u16 | these | …       the last part may be short
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

_SIZE = struct.Struct("<H")
_SIZE_MAX = 0xFFFF
PARTS_MAX = 64


def joined(parts: Iterable[bytes]) -> bytes:
    """One input of them."""
    return b"".join([_SIZE.pack(min(len(part), _SIZE_MAX)) + part[:_SIZE_MAX] for part in parts])


def parted(data: bytes) -> list[bytes]:
    """The parts of an input, whatever it is."""
    out: list[bytes] = []
    position = 0
    while position + _SIZE.size <= len(data) and len(out) < PARTS_MAX:
        (size,) = _SIZE.unpack_from(data, position)
        position += _SIZE.size
        out.append(data[position : position + size])
        position += size
    return out
