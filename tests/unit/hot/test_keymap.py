"""Which partition has a key: test vectors for whoever computes it elsewhere, and what growing moves."""

from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.hot.keymap import KeyMap
from tests import hot_modes

COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True).map(sorted)

VECTORS = {  # key: its partition of 4, of 7, of 4 that became 6, of 4 that became 6 and then 9
    b"": (1, 6, 5, 5),
    b"abc": (1, 0, 1, 7),
    b"customer-7": (3, 2, 3, 3),
}


def by_hand(key: bytes, counts: list[int]) -> int:
    """As the module says it, in plain numbers."""
    hashed = xxhash.xxh64_intdigest(key)
    place = hashed % counts[0]
    for step in range(1, len(counts)):
        mixed = (hashed + step) % 2**64
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        there = (mixed ^ (mixed >> 31)) % counts[step]
        place = there if there >= counts[step - 1] else place
    return place


@pytest.mark.parametrize("key", VECTORS)
def test_vectors(key: bytes) -> None:
    maps = ((4,), (7,), (4, 6), (4, 6, 9))
    assert tuple(KeyMap(counts).partition_of(key) for counts in maps) == VECTORS[key]


@given(st.binary(max_size=60), COUNTS)
def test_a_key_lies_where_the_text_says(key: bytes, counts: list[int]) -> None:
    assert KeyMap(counts).partition_of(key) == by_hand(key, counts)


@given(st.binary(max_size=60), COUNTS, st.integers(1, 9))
def test_a_key_only_ever_moves_to_a_new_partition(key: bytes, counts: list[int], more: int) -> None:
    before = KeyMap(counts).partition_of(key)
    after = KeyMap([*counts, counts[-1] + more]).partition_of(key)
    assert after == before or after >= counts[-1]


def test_growing_takes_from_each_its_share() -> None:
    keys = [b"%d" % number for number in range(30_000)]
    key_map = KeyMap((3, 4, 6))
    counts = [0] * 6
    for key in keys:
        counts[key_map.partition_of(key)] += 1
    assert all(4_500 < count < 5_500 for count in counts)  # 5,000 each; a hash that never changes: no chance in it


@given(st.lists(st.binary(min_size=1, max_size=4), unique=True, max_size=6), st.binary(max_size=5))
def test_ranges_begin_with_their_bounds_in_any_order(bounds: list[bytes], key: bytes) -> None:
    below = [bound for bound in bounds if bound <= key]
    expected = bounds.index(max(below)) + 1 if below else 0
    assert KeyMap((len(bounds) + 1,), bounds).partition_of(key) == expected


@pytest.mark.parametrize(
    ("counts", "bounds"),
    [((), None), ((0,), None), ((3, 3), None), ((4, 3), None), (tuple(range(1, 18)), None), ((3,), [b"a"])],
)
def test_maps_that_are_none_are_refused(counts: tuple[int, ...], bounds: list[bytes] | None) -> None:
    with pytest.raises(ValueError, match=r"partitions|rise|ranges"):
        KeyMap(counts, bounds)


@hot_modes.needs_compiled
@given(st.binary(max_size=80), COUNTS, st.lists(st.binary(max_size=4), unique=True, max_size=6))
def test_both_modes_agree(key: bytes, counts: list[int], bounds: list[bytes]) -> None:
    for arguments in ((counts,), ((len(bounds) + 1,), bounds)):
        found = [of("keymap").KeyMap(*arguments).partition_of(key) for of in (hot_modes.running, hot_modes.plain)]
        assert found[0] == found[1]
