"""Changes of inputs: of their bytes, of pieces of them, of two of them joined."""

from __future__ import annotations

import struct
from random import Random

from tests.fuzz.target import INPUT_BYTES_MAX

NUMBERS: tuple[bytes, ...] = (
    *(struct.pack("B", number) for number in (0, 1, 0x7F, 0x80, 0xFF)),
    *(struct.pack("<H", number) for number in (0, 0xFF, 0x7FFF, 0x8000, 0xFFFF)),
    *(struct.pack("<I", number) for number in (0, 1, 16, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)),
    *(struct.pack("<Q", number) for number in (0, 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)),
    *(struct.pack(">I", number) for number in (0, 1, 0x7FFF_FFFF, 0xFFFF_FFFF)),
)
"""Where numbers begin to mean something else."""


def changed(chance: Random, data: bytes, other: bytes, pieces: tuple[bytes, ...] = NUMBERS) -> bytes:
    """`data` with one to four changes, some of which take from `other`."""
    random = chance.random
    out = bytearray(data)
    for _ in range(1 + int(random() * random() * 4)):
        kind = int(random() * 12)
        at = int(random() * (len(out) + 1))
        size = 1 + int(random() * random() * 16)
        if kind == 0:
            if at < len(out):
                out[at] ^= 1 << int(random() * 8)
        elif kind == 1:
            if at < len(out):
                out[at] = int(random() * 256)
        elif kind == 2:
            del out[at : at + size]
        elif kind == 3:
            out[at:at] = out[at : at + size]
        elif kind == 4:
            out[at:at] = pieces[int(random() * len(pieces))]
        elif kind == 5:
            piece = pieces[int(random() * len(pieces))]
            out[at : at + len(piece)] = piece
        elif kind == 6:
            begin = int(random() * (len(other) + 1))
            out[at : at + size] = other[begin : begin + 2 * size]
        elif kind == 7:
            out[at:] = other[int(random() * (len(other) + 1)) :]
        elif kind == 8:
            number = NUMBERS[int(random() * len(NUMBERS))]
            out[at : at + len(number)] = number
        elif kind == 9:
            del out[at:]
        elif kind == 10:  # two parts change their places
            middle = at + size * 4
            out[at : middle + size * 4] = out[middle : middle + size * 4] + out[at:middle]
        else:
            out[at:at] = out[at : at + size * 16]
    return bytes(out[:INPUT_BYTES_MAX])
