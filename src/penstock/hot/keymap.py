"""Which partition a key belongs to, the same in broker, client and Spark: by its hash, or by the range it lies in.

Rules: of a stream that never got more partitions it is `XXH64(key, seed 0) mod partitions`. The map of one that did has
all the numbers of partitions that it ever had (`counts`, rising), and a key only ever moves to a new one: with its hash
h, it is in `h mod counts[0]`; then, for each later count c behind a count b, in `mix(h + step) mod c` if that is b or
more, else where it was. `step` counts from 1, sums wrap at 64 bits, `mix` is the last step of SplitMix64. So each
partition gives its fair share away, and old ones get nothing.

Ranges: partition 0 begins with the empty key, n with `bounds[n - 1]`; each goes up to the next greater bound, as bytes.
Bounds stand in any order: a new one splits a range, and what lies above it in there moves.

A column is placed from its Arrow buffers, without an object per row. What a null is placed as is what lies under it, in
general no bytes: where nulls go is the caller's to say.

| counts | key | partition                |
|--------|-----|--------------------------|
| 3      | abc | 0x44BC2CF5AD770999 mod 3 |
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.hot import keyhash, load

_int = int

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_MIX_1 = 0xBF58_476D_1CE4_E5B9
_MIX_2 = 0x94D0_49BB_1331_11EB
_COUNTS_MAX = limits.KEY_MAP_VERSIONS_MAX
_PARTITIONS_MAX = 2**31 - 1  # of a column: an int32


class KeyMap:
    """One version of the map of a stream. See the module's rules."""

    __slots__ = ("_bounds", "_by_range", "_counts", "_owners", "_versions", "partitions")

    def __init__(self, counts: Sequence[_int], bounds: Sequence[bytes] | None = None) -> None:
        """`bounds`: where ranges begin, one less than partitions; None: keys are hashed. ValueError."""
        if not 0 < len(counts) <= _COUNTS_MAX or not counts[0] > 0 or not counts[-1] <= _PARTITIONS_MAX:
            raise ValueError(f"{list(counts)} are no numbers of partitions that a stream had one after the other")
        if any(later <= earlier for earlier, later in pairwise(counts)):
            raise ValueError(f"{list(counts)} do not rise")
        if bounds is not None and len(bounds) != counts[-1] - 1:
            raise ValueError(f"{len(bounds)} bounds for {counts[-1]} ranges")
        self.partitions = int(counts[-1])
        self._versions = len(counts)
        if not cython.compiled:
            self._counts = [0] * self._versions
        for number, count in enumerate(counts):
            self._counts[number] = count
        self._by_range = bounds is not None
        order = sorted(range(len(bounds or ())), key=list(bounds or ()).__getitem__)
        self._bounds = [bytes((bounds or ())[number]) for number in order]
        self._owners = [number + 1 for number in order]

    def partition_of(self, key: bytes) -> _int:
        """The partition of one key."""
        return self.place(key, 0, len(key))

    def partitions_of(self, keys: bytes | memoryview, ends: bytes | memoryview) -> bytearray:
        """The partition of each key of an Arrow `binary` or `utf8` column, as an int32 buffer.

        `ends` holds the int32 value offsets, one more than rows. ValueError if they do not lie within `keys`.
        """
        text = bytes(keys)
        view = memoryview(ends).cast("B")
        rows = len(view) // 4 - 1
        if rows < 0:
            raise ValueError(f"{len(view)} bytes are no value offsets")
        numbers = load.int32s(view, 0, rows + 1)
        if numbers[0] < 0 or numbers[rows] > len(text) or load.falls(numbers, rows + 1):
            raise ValueError("value offsets that do not lie within the keys")
        found = bytearray(4 * rows)
        for row in range(rows):
            load.put_int32(found, 4 * row, self.place(text, numbers[row], numbers[row + 1]))
        return found

    def place(self, text: bytes, begin: _int, end: _int) -> _int:
        """The partition of the key text[begin:end], which the caller knows to be there."""
        if self._by_range:
            return self._in_range(text, begin, end)
        hashed = keyhash.hash_of(text, begin, end)
        counts = self._counts
        place = hashed % counts[0]
        for version in range(1, self._versions):
            there = _mix((hashed + version) & _MASK) % counts[version]
            if there >= counts[version - 1]:
                place = there
        return place

    def _in_range(self, text: bytes, begin: _int, end: _int) -> _int:
        low = 0
        high = len(self._bounds)
        while low < high:  # how many bounds are not above the key
            middle = (low + high) // 2
            if _is_below(text, begin, end, self._bounds[middle]):
                high = middle
            else:
                low = middle + 1
        owner: int = self._owners[low - 1] if low > 0 else 0
        return owner


def key_map_of(config: StreamConfig, counts: Sequence[_int] = (), version: _int = 0) -> KeyMap:
    """Which partition of a stream has which keys.

    `counts`: how many partitions it had, one after the other; none: it always had as many. `version`: that of now (0),
    or how many numbers of them count less, from the end (-1: the one before).
    """
    held = list(counts or (config.partitions,))
    held = held[: len(held) + version]
    bounds = [bound.encode() for bound in config.range_bounds[: held[-1] - 1]]
    return KeyMap(held, bounds if config.range_bounds else None)


def _mix(value: _int) -> _int:
    value = (value ^ value >> 30) * _MIX_1 & _MASK
    value = (value ^ value >> 27) * _MIX_2 & _MASK
    return value ^ value >> 31


def _is_below(text: bytes, begin: _int, end: _int, bound: bytes) -> bool:
    """Whether text[begin:end] comes before `bound`, byte by byte."""
    if not cython.compiled:
        return text[begin:end] < bound
    other = bound
    size = len(bound)
    common = min(end - begin, size)
    for at in range(common):
        if text[begin + at] != other[at]:
            return text[begin + at] < other[at]
    return end - begin < size
