"""Which replicas differ where, and whether they may."""

from __future__ import annotations

from penstock.base import limits
from penstock.commitlog.verify.checksums import RangeSum, Row
from penstock.commitlog.verify.replica_comparison import ComparedReplica, UnequalRange, compare_rows, unequal_ranges

STEP = limits.VERIFY_RANGE_OFFSETS


def replica(
    name: str, *checksums: int, begin: int = 0, end: int | None = None, damaged: tuple[tuple[int, int | None], ...] = ()
) -> ComparedReplica:
    """One with these checksums of its ranges, from the first one on."""
    sums = {
        number * STEP: RangeSum(number * STEP, (number + 1) * STEP, STEP, number * STEP, number * STEP, (checksum,))
        for number, checksum in enumerate(checksums)
        if checksum
    }
    return ComparedReplica(name, begin, STEP * len(checksums) if end is None else end, sums, damaged)


def row(offset: int, value: bytes = b"x") -> Row:
    return offset, 7, "a", None, value, None


def test_equal_replicas_do_not_differ() -> None:
    assert not list(unequal_ranges([replica(name, 1, 2, 3) for name in "abc"]))


def test_the_one_that_differs_stands_behind_those_that_agree() -> None:
    found = list(unequal_ranges([replica("a", 1, 2, 4), replica("b", 1, 2, 3), replica("c", 1, 2, 3)]))
    assert found == [UnequalRange(2 * STEP, 3 * STEP, (("b", "c"), ("a",)))]


def test_a_range_without_rows_differs_from_one_with_rows() -> None:
    assert [one.begin for one in unequal_ranges([replica("a", 1, 0), replica("b", 1, 2)])] == [STEP]


def test_what_is_not_there_yet_or_any_more_or_damaged_does_not_count() -> None:
    whole = replica("a", 1, 2, 3)
    assert not list(unequal_ranges([whole, replica("b", 9, 2, 3, begin=5)]))
    assert not list(unequal_ranges([whole, replica("b", 1, 2, 9, end=3 * STEP - 1)]))
    assert not list(unequal_ranges([whole, replica("b", 1, 9, 3, damaged=((STEP + 5, STEP + 7),))]))
    assert not list(unequal_ranges([whole, replica("b", 1, 9, 0, damaged=((STEP + 5, None),))]))
    found = list(unequal_ranges([whole, replica("b", 1, 9, 3, damaged=((STEP - 5, STEP),))]))
    assert [one.begin for one in found] == [STEP]


def test_rows_that_one_of_them_let_go_of() -> None:
    found = compare_rows([row(1), row(2), row(5)], [row(2), row(3), row(5), row(6)])
    assert (found.both, found.only_first, found.only_second, found.other) == (2, 1, 2, 0)
    assert found.offsets_only == [1, 3, 6]
    assert found.is_difference(may_lack=False)
    assert not found.is_difference(may_lack=True)


def test_another_row_at_the_same_offset_is_always_a_difference() -> None:
    found = compare_rows([row(1), row(2, b"")], [row(1), row(2, b"y")])
    assert (found.both, found.other, found.offsets_other) == (2, 1, [2])
    assert found.is_difference(may_lack=True)


def test_a_blank_row_counts_as_one_that_is_gone() -> None:
    """The cleaner has removed its content on one replica already, and not on the other."""
    blank = (2, 0, "", None, None, None)
    found = compare_rows([row(1), row(2), row(3)], [row(1), blank, row(3)])
    assert (found.both, found.only_first, found.other, found.offsets_only) == (2, 1, 0, [2])
    assert not found.is_difference(may_lack=True)


def test_only_the_first_offsets_are_named() -> None:
    found = compare_rows([row(offset) for offset in range(50)], [])
    assert found.only_first == 50
    assert found.offsets_only == list(range(limits.VERIFY_ROWS_LISTED_MAX))
