"""Looking up subjects in a membership filter and in a sorted column: written twice, here for plain Python.

Rules: `subject_search.pxd` has the same for compiled code, on pointers, without the interpreter's lock. The caller has
checked that the buffers are as long as they must be.
"""

from __future__ import annotations

from bisect import bisect_left

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


def wrong_page(bits: bytes, pages: int) -> int:
    """Return the number of the first of `pages` pages whose checksum is wrong; -1: there is none."""
    for number in range(pages):
        page = bits[_PAGE * number : _PAGE * (number + 1)]
        crc = crc32c(number.to_bytes(4, "little"), crc32c(page[: _BITS // 8]))
        if page[_BITS // 8 :] != crc.to_bytes(4, "little"):
            return number
    return -1


def may_hold_any(bits: bytes, pages: int, hashes: bytes | bytearray, count: int) -> bool:
    """True if all bits of one of `count` hashes are set, in a filter whose pages were checked."""
    return probe(bits, pages, hashes, count, bytearray(b"\1") * pages, found := bytearray(count)) < 0 and any(found)


def row_of(ends: memoryview, text: memoryview, count: int, subject: bytes) -> int:
    """Return the first of `count` rows, sorted, whose subject is this one or a later one.

    `ends`, `text`: value offsets, whose memory view has int32 items, and bytes, which were checked.
    """

    def at(row: int) -> bytes:
        return bytes(text[ends[row] : ends[row + 1]])

    return bisect_left(range(count), subject, key=at)
