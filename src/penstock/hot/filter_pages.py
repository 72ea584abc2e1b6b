"""Looking up many subjects in the pages of a membership filter: written twice, here for plain Python.

Rules: `filter_pages.pxd` has the same for compiled code, on pointers, without the interpreter's lock. The caller has
checked that the buffers are as long as they must be.
"""

from __future__ import annotations

from crc32c import crc32c

_PAGE = 256
_BITS = 8 * 252
_PROBES = 7
_MASK_32 = 0xFFFF_FFFF
_REMIX = 0x9E37_79B9


def probe(bits: bytes, pages: int, hashes: bytes | bytearray, count: int, seen: bytearray, found: bytearray) -> int:
    """Set `found` to 1 for each of `count` hashes whose bits are all set; return -1, or the number of a wrong page.

    `seen`: a byte for each page, 1 once its checksum was compared.
    """
    for row in range(count):
        hashed = int.from_bytes(hashes[8 * row : 8 * row + 8], "little")
        number = (hashed >> 32) * pages >> 32
        page = bits[_PAGE * number : _PAGE * (number + 1)]
        if not seen[number]:
            crc = crc32c(number.to_bytes(4, "little"), crc32c(page[: _BITS // 8]))
            if page[_BITS // 8 :] != crc.to_bytes(4, "little"):
                return number
            seen[number] = 1
        value = hashed & _MASK_32
        step = (value * _REMIX & _MASK_32) >> 3 | 1
        for _ in range(_PROBES):
            bit = value * _BITS >> 32
            if not page[bit >> 3] >> (bit & 7) & 1:
                break
            value = (value + step) & _MASK_32
        else:
            found[row] = 1
    return -1
