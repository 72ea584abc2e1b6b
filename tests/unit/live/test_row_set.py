"""What a set of offsets takes, in memory and in bytes."""

from __future__ import annotations

from random import Random

import pytest

from penstock.base.errors import CorruptionError
from penstock.live.row_set import NONE, RowSet

MIB = 1024 * 1024


def test_ten_million_scattered_of_a_hundred_million_take_less_than_25_mb() -> None:
    chance = Random(1)
    one_in_eight = [int.from_bytes(chance.randbytes(8_192 * 4), "little") for _ in range(3)]
    bits = (one_in_eight[0] & one_in_eight[1] & one_in_eight[2]).to_bytes(8_192 * 4, "little")
    found = NONE
    for begin in range(0, 100_000_000, 8 * len(bits)):
        found |= RowSet.of_bits(begin, bits)
    assert found.count > 10_000_000
    assert found.size_bytes < 25_000_000
    assert len(found.encode()) < 25_000_000


def test_a_run_of_a_hundred_million_takes_nothing() -> None:
    found = RowSet.of_runs([(5, 100_000_005)])
    assert (found.count, found.size_bytes < 1_000, len(found.encode()) < 30) == (100_000_000, True, True)
    grown = found | RowSet.of_runs([(100_000_005, 200_000_000)])
    assert grown == RowSet.of_runs([(5, 200_000_000)])
    assert list(grown.runs()) == [(5, 200_000_000)]


def test_a_union_shares_what_it_leaves_and_changes_neither_set() -> None:
    one, other = RowSet.of(range(0, 1 << 20, 2)), RowSet.of([7])
    both = one | other
    assert both.boxes[5] is one.boxes[5]
    assert (7 in both, 7 in one, other.count) == (True, False, 1)
    assert one | NONE is one


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("", "a set of offsets"),
        ("0200", "a set of offsets of version 1"),
        ("0101", "a set of offsets"),
        ("010103", "a form of span"),
        ("01020000" + "0000", "full chunks in one span"),
        ("01018100", "a number up to"),
        ("0101010000ffff03", "a chunk that is not full"),
        ("01010100ffff03" + "01", "a run within its chunk"),
        ("010102" + "ff" * 8192, "8192 bytes of more than 2048 runs"),
        ("01010200", "8192 bytes"),
        ("0101000000", "the end"),
    ],
)
def test_bytes_that_are_no_set_are_refused_with_the_place(data: str, expected: str) -> None:
    with pytest.raises(CorruptionError) as caught:
        RowSet.decode(bytes.fromhex(data))
    assert str(caught.value.expected).startswith(expected), caught.value


@pytest.mark.parametrize("share", [2, 40, 2_000])
def test_members_between_two_offsets_are_counted(share: int) -> None:
    chance = Random(share)
    members = {at for begin in chance.sample(range(1 << 18), (1 << 18) // share) for at in (begin, begin + 1)}
    found = RowSet.of(sorted(members))
    for _ in range(100):
        begin, end = sorted(chance.choices(range(1 << 18), k=2))
        assert found.count_in(begin, end) == sum(begin <= at < end for at in members)


def test_the_first_absent_offset_behind_several_full_chunks() -> None:
    """A purge of 200,000 messages: each later read searched without end from the second chunk on."""
    some = RowSet.of_runs([(5, 200_000)])
    for begin in (5, 65_536, 131_072, 140_000, 199_999):
        assert some.first_absent(begin) == 200_000
    assert RowSet.of_runs([(0, 3 << 16)]).first_absent(70_000) == 3 << 16
