"""Partition of a key, the same in broker, client and Spark: by hash, or by range.

Rules: in a stream that never got more partitions it is `XXH64(key, seed 0) mod partitions`. The map of a stream that
grew has all its partition counts (`counts`, rising), and a key only ever moves to a new partition: with its hash h, it
is in `h mod counts[0]`; then, for each later count c after a count b, in `mix(h + step) mod c` if that is b or more,
else it stays. `step` counts from 1, sums wrap at 64 bits, `mix` is the last step of SplitMix64. So each partition gives
up its fair share, and old ones get nothing.

Ranges: partition 0 begins with the empty key, n with `bounds[n - 1]`; each ends at the next greater bound, as bytes.
Bounds are in any order: a new one splits a range, and the keys above it in that range move.

A column is mapped from its Arrow buffers, without an object per row. A null is mapped by the bytes under it, usually
none: the caller decides where nulls go.

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
    """One version of a stream's key map; see the module's rules."""

    __slots__ = ("_bounds", "_by_range", "_counts", "_owners", "_versions", "partitions")

    def __init__(self, counts: Sequence[_int], bounds: Sequence[bytes] | None = None) -> None:
        """`bounds`: range bounds, one less than partitions; None: keys are hashed. Raise ValueError."""
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
        return self.place(key, 0, len(key))

    def partitions_of(self, keys: bytes | memoryview, ends: bytes | memoryview) -> bytearray:
        """Return the partition of each key of an Arrow `binary` or `utf8` column, as an int32 buffer.

        `ends` holds the int32 value offsets, one more than rows. Raise ValueError if they do not lie within `keys`.
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
        """Return the partition of the key text[begin:end]; the caller has checked the bounds."""
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
        while low < high:  # number of bounds that are not above the key
            middle = (low + high) // 2
            if _is_below(text, begin, end, self._bounds[middle]):
                high = middle
            else:
                low = middle + 1
        owner: int = self._owners[low - 1] if low > 0 else 0
        return owner


def key_map_of(config: StreamConfig, counts: Sequence[_int] = (), version: _int = 0) -> KeyMap:
    """Return the key map of a stream.

    `counts`: its partition counts, in order; empty: never changed. `version`: 0 for the present one, or how many counts
    to drop from the end, negated (-1: the one before).
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
    """True if text[begin:end] sorts before `bound`, byte by byte."""
    if not cython.compiled:
        return text[begin:end] < bound
    other = bound
    size = len(bound)
    common = min(end - begin, size)
    for at in range(common):
        if text[begin + at] != other[at]:
            return text[begin + at] < other[at]
    return end - begin < size
