"""Membership filter of the subjects of a segment: a Bloom filter in pages, each of which is read and checked alone.

Rules: a subject that was added is always found; of others, about one in 250 is found at 12 bits for each subject.
The bytes are part of a file format (see `commitlog.subjects`) and never change.

Theory: the upper half of a subject's XXH64 chooses its page, the lower half and a remix of it the bits within (Kirsch
and Mitzenmacher: two hashes stand for all). So a look-up reads 256 bytes, however many subjects there are.
"""

from __future__ import annotations

from penstock.hot import keyhash, load, subject_search

_int = int

PAGE_BYTES = 256
BITS_BYTES = PAGE_BYTES - 4
"""The rest of a page is its checksum."""

_PAGE = 256  # the same for compiled code
_BITS = 8 * 252
_PROBES = 7
_MASK_32 = 0xFFFF_FFFF
_REMIX = 0x9E37_79B9


class WrongPageError(ValueError):
    """A page whose checksum is wrong; `number`: which."""

    def __init__(self, number: _int) -> None:
        super().__init__(f"page {number} of a filter is in error")
        self.number = number


def page_of(subject: bytes, pages: _int) -> int:
    """Return the number of the page that holds the subject's bits."""
    return (keyhash.hash_of(subject, 0, len(subject)) >> 32) * pages >> 32


def may_hold(page: bytes, subject: bytes) -> bool:
    """True if the subject may have been added to this page; IndexError if the page is too short."""
    if len(page) < BITS_BYTES:
        raise IndexError(f"a page of {len(page)} bytes")
    bits = page
    value = keyhash.hash_of(subject, 0, len(subject)) & _MASK_32
    step = (value * _REMIX & _MASK_32) >> 3 | 1
    for _ in range(_PROBES):
        bit = value * _BITS >> 32
        if not bits[bit >> 3] >> (bit & 7) & 1:
            return False
        value = (value + step) & _MASK_32
    return True


def hashes(subjects: list[bytes]) -> bytearray:
    """Return the hashes of subjects, for `may_hold_each`."""
    out = bytearray(8 * len(subjects))
    target = out
    for row, one in enumerate(subjects):
        text = one
        hashed = keyhash.hash_of(text, 0, len(one))
        load.put_int32(target, 8 * row, _signed(hashed & _MASK_32))
        load.put_int32(target, 8 * row + 4, _signed(hashed >> 32))
    return out


def _signed(half: _int) -> _int:
    """Return the number whose 32 bits are those of `half`."""
    return half - (half >> 31 << 32)


def may_hold_each(filter_bytes: bytes, wanted: bytearray) -> list[int]:
    """Return the numbers of the subjects that may have been added to a whole filter; `wanted` is from `hashes`.

    WrongPageError: a page that is needed is in error. IndexError: no filter.
    """
    pages = len(filter_bytes) // _PAGE
    if pages == 0 or len(filter_bytes) % _PAGE or len(wanted) % 8:
        raise IndexError(f"a filter of {len(filter_bytes)} bytes, and {len(wanted)} bytes of hashes")
    count = len(wanted) // 8
    found = bytearray(count)
    wrong = subject_search.probe(filter_bytes, pages, wanted, count, bytearray(pages), found)
    if wrong >= 0:
        raise WrongPageError(wrong)
    return [row for row in range(count) if found[row]]


def check_pages(filter_bytes: bytes) -> None:
    """Check all pages of a filter. WrongPageError; IndexError: no filter."""
    pages = len(filter_bytes) // _PAGE
    if pages == 0 or len(filter_bytes) % _PAGE:
        raise IndexError(f"a filter of {len(filter_bytes)} bytes")
    wrong = subject_search.wrong_page(filter_bytes, pages)
    if wrong >= 0:
        raise WrongPageError(wrong)


def holding(filters: list[bytes | None], wanted: bytearray) -> list[int]:
    """Return the numbers of the filters to which one of the subjects may have been added; None: to it, too.

    The filters were checked by `check_pages`; `wanted` is from `hashes`. IndexError: no filter.
    """
    if len(wanted) % 8:
        raise IndexError(f"{len(wanted)} bytes of hashes")
    count = len(wanted) // 8
    found: list[int] = []
    for number in range(len(filters)):
        one = filters[number]
        if one is None:
            found.append(number)
            continue
        pages = len(one) // _PAGE
        if pages == 0:
            raise IndexError(f"a filter of {len(one)} bytes")
        if subject_search.may_hold_any(one, pages, wanted, count):
            found.append(number)
    return found


def row_of(ends: memoryview, text: memoryview, count: _int, subject: bytes) -> _int:
    """Return the first of `count` rows of a sorted column whose subject is this one or a later one.

    `ends`, `text`: its value offsets, as a view of int32 items, and its bytes, which Arrow has checked.
    """
    if subject is None:
        raise TypeError("a subject is expected")
    return subject_search.row_of(ends, text, count, subject)


def add(target: bytearray, pages: _int, offsets: memoryview, data: memoryview, count: _int) -> None:
    """Add `count` subjects, at least one, of an Arrow string array to a filter of so many pages.

    `offsets`, `data`: the buffers of the array. ValueError: an offset is not within the data. IndexError: a buffer is
    too short for the rows, or the filter for the pages.
    """
    if pages <= 0 or len(target) < _PAGE * pages:
        raise IndexError(f"{len(target)} bytes for {pages} pages")
    text = bytes(data)
    size = len(text)
    bits = target
    ends = load.int32s(offsets, 0, count + 1)
    for row in range(count):
        begin = ends[row]
        end = ends[row + 1]
        if begin < 0 or end < begin or end > size:
            raise ValueError(f"value {row} is from {begin} to {end} of {size} bytes")
        hashed = keyhash.hash_of(text, begin, end)
        base = ((hashed >> 32) * pages >> 32) * _PAGE
        value = hashed & _MASK_32
        step = (value * _REMIX & _MASK_32) >> 3 | 1
        for _ in range(_PROBES):
            bit = value * _BITS >> 32
            at = base + (bit >> 3)
            bits[at] = bits[at] | 1 << (bit & 7)
            value = (value + step) & _MASK_32
