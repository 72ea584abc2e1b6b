"""Sets of offsets against Python's own sets, with runs, scattered members and full chunks; and their byte form."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import CorruptionError
from penstock.live.row_set import NONE, SPLIT_BYTES_MIN, RowSet
from tests.extent import examples

CHUNK = 65_536
BASES = (0, 3, CHUNK - 2, CHUNK, 3 * CHUNK + 5, 2**40, 2**62)


@st.composite
def members(draw: st.DrawFn) -> set[int]:
    """A few runs around chunk borders; some chunks have every second offset, which needs a bitmap."""
    base = draw(st.sampled_from(BASES))
    found: set[int] = set()
    lengths = st.sampled_from([1, 1, 2, 9, CHUNK + 1])
    for place, length in draw(st.lists(st.tuples(st.integers(0, 3 * CHUNK), lengths), max_size=4)):
        found.update(range(base + place, base + place + length))
    if draw(st.booleans()):
        begin = base + draw(st.integers(0, CHUNK))
        found.update(range(begin, begin + CHUNK + 10, 2))
    return found


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(members(), min_size=2, max_size=3), st.data())
def test_a_set_is_as_pythons(parts: list[set[int]], data: st.DataObject) -> None:
    wanted: set[int] = set().union(*parts)
    found = NONE
    for part in parts:
        found |= RowSet.of(part)
    assert found == RowSet.of(wanted)
    assert found.count_in(0, min(wanted, default=0)) == 0
    for one in parts:
        beside = one - parts[0]
        assert RowSet.of(one).count_beside(RowSet.of(parts[0])) == len(beside)
        assert RowSet.of(one).is_within(RowSet.of(parts[0])) == (not beside)
        assert RowSet.of(one).is_within(found)
    first, before = RowSet.of(parts[0]), RowSet.of(parts[1])
    later = before | RowSet.of(parts[-1])
    assert first.union(later, before, first | before) == first | later
    assert first.union(before, later, first | later) == first | before
    assert RowSet.of(parts[0]) | RowSet.of(parts[1]) == RowSet.of(parts[1]) | RowSet.of(parts[0])
    assert (found.count, bool(found)) == (len(wanted), bool(wanted))
    assert found.end == max(wanted, default=-1) + 1
    some = sorted(wanted)
    near = [0, *(some[:: max(1, len(some) // 8)]), *some[-1:], found.end, found.end + CHUNK]
    for _ in range(4):
        begin = max(0, data.draw(st.sampled_from(near)) + data.draw(st.integers(-2, 2)))
        end = begin + data.draw(st.sampled_from([0, 1, 7, CHUNK - 1, CHUNK, 3 * CHUNK]))
        inside = {one for one in wanted if begin <= one < end}
        assert found.between(begin, end) == RowSet.of(inside)
        assert found.count_in(begin, end) == len(inside)
        assert found.any_in(begin, end) == bool(inside)
        assert (begin in found) == (begin in wanted)
        assert found.first_present(begin) == min((one for one in wanted if one >= begin), default=None)
        absent = begin
        while absent in wanted:
            absent += 1
        assert found.first_absent(begin) == absent
        count = data.draw(st.sampled_from([1, 2, 40, CHUNK - 1, 3 * CHUNK]))
        behind, left = begin, count
        while left:
            left -= behind not in wanted
            behind += 1
        assert found.behind_absent(begin, count) == behind
        behind = begin
        while behind and behind - 1 in wanted:
            behind -= 1
        assert found.last_absent(begin) == behind
        runs = list(found.runs(begin, end))
        assert [one for run in runs for one in range(*run)] == sorted(inside)
        assert all(left[1] < right[0] for left, right in pairwise(runs)), "the longest ones"
        assert RowSet.of_bits(begin, found.bits(begin, end)) == RowSet.of(inside)


@settings(max_examples=examples(40), deadline=None)
@given(members())
def test_bytes_are_read_as_what_they_were_and_only_so(wanted: set[int]) -> None:
    found = RowSet.of(wanted)
    data = found.encode()
    assert RowSet.decode(data) == found
    for changed in (data[:-1], data + b"\0", b"\2" + data[1:]):
        with pytest.raises(CorruptionError):
            RowSet.decode(changed)
    parts = found.split(SPLIT_BYTES_MIN)
    assert all(len(part.encode()) <= SPLIT_BYTES_MIN for part in parts)
    again = NONE
    for part in parts:
        assert not any(again.any_in(*run) for run in part.runs())
        again |= part
    assert again == found


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=40))
def test_other_bytes_are_a_set_or_refused(data: bytes) -> None:
    try:
        found = RowSet.decode(b"\1" + data)
    except CorruptionError:
        return
    assert found.encode() == b"\1" + data, "each set has one form"
