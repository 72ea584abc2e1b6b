"""XXH64: known answers, an independent implementation, and the hash of a whole column."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.hot import keyhash
from penstock.hot.keymap import KeyMap
from tests import hot_modes

SANITY = bytes(n * 167 % 251 for n in range(222))

VECTORS = [  # a key, its XXH64 with seed 0; partition of 16
    (b"", 0xEF46DB3751D8E999),
    (b"a", 0xD24EC4F1A98C6E5B),
    (b"abc", 0x44BC2CF5AD770999),
    (b"customer-7", 0xAF814F0F339EDEFF),
    (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    (SANITY[:4], 0x1A3C34F47278040A),
    (SANITY[:8], 0x7A829B0E58AFBEC9),
    (SANITY[:31], 0xEF1277B8904D66DF),
    (SANITY[:32], 0xC70B8B39794F6D12),
    (SANITY[:33], 0xFC186531B735B293),
    (SANITY, 0x76C5478EF4A75B1F),
]


@pytest.mark.parametrize(
    ("key", "expected"), VECTORS, ids=lambda value: f"{len(value)}" if isinstance(value, bytes) else ""
)
def test_known_answers(key: bytes, expected: int) -> None:
    assert keyhash.xxh64(key) == expected
    assert keyhash.partition_of(key, 16) == expected % 16


@pytest.mark.parametrize("size", [*range(100), 255, 256, 257, 1000])
def test_every_size_is_hashed_as_the_reference_does(size: int) -> None:
    key = (SANITY * 5)[:size]
    assert keyhash.xxh64(key) == xxhash.xxh64_intdigest(key)


@given(st.lists(st.binary(max_size=80)), st.integers(1, 2**31 - 1))
def test_a_column_is_hashed_as_its_keys_are(keys: list[bytes], partitions: int) -> None:
    column = pa.array(keys, pa.binary())
    _, ends, values = column.buffers()
    found = KeyMap((partitions,)).partitions_of(values or b"", memoryview(ends)[: 4 * (len(keys) + 1)])
    expected = [xxhash.xxh64_intdigest(key) % partitions for key in keys]
    assert list(memoryview(found).cast("i")) == expected
    assert [keyhash.partition_of(key, partitions) for key in keys] == expected


def test_a_column_may_begin_in_the_middle_of_its_bytes() -> None:
    found = KeyMap((1_000,)).partitions_of(b"--abcd", struct.pack("<3i", 2, 4, 5))
    assert list(memoryview(found).cast("i")) == [keyhash.partition_of(b"ab", 1_000), keyhash.partition_of(b"c", 1_000)]


@pytest.mark.parametrize("ends", [(0, 7), (-1, 3), (3, 2), (0, 5, 4, 6), (0, -(2**31)), (2**31 - 1, 2**31 - 1)])
def test_value_offsets_outside_the_keys_are_refused(ends: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="value offsets"):
        KeyMap((4,)).partitions_of(b"123456", struct.pack(f"<{len(ends)}i", *ends))


@pytest.mark.parametrize("partitions", [0, -1])
def test_there_is_at_least_one_partition(partitions: int) -> None:
    with pytest.raises(ValueError, match="partitions"):
        keyhash.partition_of(b"k", partitions)
    with pytest.raises(ValueError, match="partitions"):
        KeyMap((partitions,)).partitions_of(b"k", struct.pack("<2i", 0, 1))


def test_a_column_has_at_least_one_value_offset() -> None:
    with pytest.raises(ValueError, match="value offsets"):
        KeyMap((4,)).partitions_of(b"", b"")


@hot_modes.needs_compiled
@given(st.binary(max_size=200), st.lists(st.integers(-3, 210), max_size=6), st.integers(-1, 2**31 - 1))
def test_both_modes_agree(data: bytes, ends: list[int], partitions: int) -> None:
    packed = struct.pack(f"<{len(ends)}i", *ends)
    plain, running = hot_modes.plain("keyhash"), hot_modes.running("keyhash")
    assert running.xxh64(data) == plain.xxh64(data)
    found = [hot_modes.outcome(module.partition_of, data, partitions) for module in (running, plain)]
    assert found[0] == found[1]

    def column(module: Any) -> object:
        return module.KeyMap((partitions,)).partitions_of(data, packed)

    found = [hot_modes.outcome(column, of("keymap")) for of in (hot_modes.running, hot_modes.plain)]
    assert found[0] == found[1]


@pytest.mark.parametrize("partitions", [0, -1, 2**31, 2**40])
def test_a_column_has_no_more_partitions_than_it_can_name(partitions: int) -> None:
    with pytest.raises(ValueError, match="partitions"):
        KeyMap((partitions,)).partitions_of(b"a", struct.pack("<2i", 0, 1))


@pytest.mark.parametrize("shift", range(8))
def test_value_offsets_may_lie_at_any_address(shift: int) -> None:
    ends = memoryview(bytes(shift) + struct.pack("<3i", 0, 2, 3))[shift:]
    found = KeyMap((1_000,)).partitions_of(b"abc", ends)
    assert list(memoryview(found).cast("i")) == [keyhash.partition_of(b"ab", 1_000), keyhash.partition_of(b"c", 1_000)]
