"""The fold of marks: what they hide, what is cut, and snapshots that replace them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.live.live_rows import LiveRows
from penstock.live.marks import (
    Decided,
    HideReason,
    HideRows,
    MadeUnder,
    Mark,
    Snapshot,
    TimeToLive,
    UnknownMarkError,
    decode,
    encode,
)
from penstock.live.row_set import NONE, RowSet
from tests.extent import examples

UNDER = MadeUnder(leader_epoch=1, log_end=1_000_000, at_us=5)


def hide(*offsets: int, reason: HideReason = HideReason.DELETE, under: MadeUnder = UNDER) -> HideRows:
    return HideRows(under, reason, RowSet.of(offsets))


def folded(marks: list[Mark], begin: int = 0) -> LiveRows:
    live = LiveRows(begin)
    for mark in marks:
        live.take(decode(mark.kind, encode(mark)))
    return live


def state_of(live: LiveRows) -> tuple[object, ...]:
    return live.hidden, live.secure, live.counts, live.decided_end, live.expired, live.leader_epoch, live.refusal


def test_marks_hide_and_each_row_counts_once() -> None:
    live = LiveRows()
    assert live.take(hide(3, 4, 9)) == 3
    assert live.take(hide(4, 5, reason=HideReason.PURGE)) == 1
    assert live.hidden == RowSet.of([3, 4, 5, 9])
    assert live.counts[:2] == [3, 1]
    assert live.live_in(0, 10) == 6
    assert live.live_in(4, 5) == 0


def test_secure_marks_name_what_must_be_erased() -> None:
    live = folded([hide(1), replace(hide(2), is_secure=True, user="ada")])
    assert live.secure == RowSet.of([2])


def test_the_first_mark_of_an_epoch_says_which_earlier_ones_still_hold() -> None:
    later = MadeUnder(leader_epoch=3, log_end=20, earlier_end=8)
    live = folded([hide(3, 7, 8), Decided(later), hide(9, under=later)])
    assert live.hidden == RowSet.of([3, 7, 9]), "row 9 is one of the later epoch"


def test_what_lies_below_the_log_start_is_forgotten() -> None:
    live = folded([hide(3, 7)])
    live.start_raised(5)
    assert live.hidden == RowSet.of([7])
    live.take(hide(4, 8))
    assert live.hidden == RowSet.of([7, 8])


def test_after_a_mark_that_is_not_known_no_row_is_shown_until_a_snapshot() -> None:
    live = LiveRows()
    for kind, value in (("forget", encode(Decided(UNDER))), ("delete", b"\2" + encode(hide(1))[1:])):
        with pytest.raises(UnknownMarkError, match="upgrade") as caught:
            decode(kind, value)
        live.take_unknown(caught.value, 6)
        assert live.refusal
        live.take(hide(2))
        assert live.refusal, "it may have hidden others"
        live.take(Snapshot(UNDER, 0, 1, rows=RowSet.of([1, 2]), marks_end=6))
        assert live.refusal, "it was made before"
        live.take(Snapshot(UNDER, 0, 1, rows=RowSet.of([1, 2]), marks_end=7))
        assert not live.refusal


def test_a_snapshot_counts_only_when_it_is_whole() -> None:
    parts = [Snapshot(UNDER, number, 2, rows=RowSet.of([number]), marks_end=3) for number in range(2)]
    live = folded([hide(5), parts[0]], 3)
    assert live.hidden == RowSet.of([5])
    live.take(parts[0])  # its writer began again
    live.take(parts[1])
    assert live.hidden == RowSet.of([0, 1, 5])
    assert live.is_whole
    live = folded([hide(5), parts[1], parts[0], Decided(replace(UNDER, leader_epoch=2)), parts[1]], 3)
    assert live.hidden == RowSet.of([5]), "neither the end of one nor one of two leaders is whole"
    assert not live.is_whole


def scattered(count: int) -> RowSet:
    """A set whose bytes are many: every chunk needs a bitmap."""
    bits = Random(1).randbytes(8_192)
    found = NONE
    for chunk in range(count):
        found |= RowSet.of_bits(chunk << 16, bits)
    return found


def test_a_large_set_is_split_into_marks_of_bounded_size() -> None:
    rows = scattered(200)
    under = replace(UNDER, log_end=rows.end)
    marks = list(HideRows(under, HideReason.PURGE, rows, user="a" * 1_000).split())
    assert len(marks) == 2
    assert max(len(encode(mark)) for mark in marks) <= limits.MARK_BYTES_MAX
    live = folded([*marks])
    assert live.hidden == rows
    parts = list(live.snapshot(under, 2))
    assert len(parts) == 2
    assert max(len(encode(part)) for part in parts) <= limits.MARK_BYTES_MAX
    assert state_of(folded([*parts], 2)) == state_of(live)


def test_a_snapshot_is_due_after_many_marks_or_many_bytes() -> None:
    live = LiveRows()
    for number in range(limits.MARKS_PER_SNAPSHOT_MAX - 1):
        live.take(hide(number), 60)
    assert not live.is_snapshot_due()
    live.take(hide(1), 60)
    assert live.is_snapshot_due()
    for part in live.snapshot(UNDER, 0):
        live.take(part, 100)
    assert not live.is_snapshot_due()
    live.take(hide(2), limits.SNAPSHOT_AFTER_BYTES)
    assert live.is_snapshot_due()


OFFSETS = st.lists(st.integers(0, 40) | st.integers(65_530, 65_545), min_size=1, max_size=5)


@st.composite
def histories(draw: st.DrawFn) -> list[Mark]:
    marks: list[Mark] = []
    under = UNDER
    for kind in draw(st.lists(st.sampled_from(["hide", "hide", "secure", "expired", "epoch"]), max_size=8)):
        if kind == "epoch":
            end = draw(st.integers(0, 70_000))
            under = replace(under, leader_epoch=under.leader_epoch + 1, earlier_end=end, decided_end=end)
        elif kind == "expired":
            marks.append(TimeToLive(under, 7, 30))
        else:
            rows = RowSet.of(draw(OFFSETS))
            marks.append(HideRows(under, draw(st.sampled_from(list(HideReason))), rows, kind == "secure", "ada"))
    return marks


@settings(max_examples=examples(200))
@given(histories(), st.integers(0, 8))
def test_a_snapshot_and_the_rest_are_as_all_marks(marks: list[Mark], at: int) -> None:
    before = folded(marks[:at])
    under = marks[min(at, len(marks)) - 1].under if marks[:at] else UNDER
    snapshot = list(before.snapshot(replace(under, decided_end=before.decided_end), at))
    first, *_ = snapshot
    replaced: list[Mark] = [*(snapshot if at else ()), *marks[at:]]
    assert state_of(folded(replaced, at))[:5] == state_of(folded(marks))[:5]
    assert first.part == 0


def test_a_mark_that_was_not_committed_when_a_snapshot_was_made_holds_on() -> None:
    leader = folded([hide(3)])
    marks = [hide(3), hide(7, 8), *leader.snapshot(UNDER, 0), hide(9)]
    found = folded(marks)
    assert found.hidden == RowSet.of([3, 7, 8, 9])
    assert found.counts[0] == 4


def test_a_snapshot_that_begins_an_epoch_leaves_out_what_an_election_lost() -> None:
    leader = folded([hide(3, 7, 8)])
    later = MadeUnder(leader_epoch=3, log_end=20, earlier_end=8)
    found = folded([hide(3, 7, 8), *leader.snapshot(later, 0)])
    assert found.hidden == RowSet.of([3, 7])


@pytest.mark.parametrize(
    "mark",
    [
        hide(1),
        replace(hide(1, 70_000), is_secure=True, user="ada"),
        Snapshot(UNDER, 1, 3, (1, 2, 3, 4, 5, 6, 0, 0), (7, 8), RowSet.of([1]), RowSet.of([2]), 9),
        Snapshot(UNDER, 1, 3, (1, 2, 3, 4, 5, 6, 7, 8), (7, 8), RowSet.of([1]), RowSet.of([2]), 9),
        hide(1, reason=HideReason.CONSUMED),
        replace(hide(1, reason=HideReason.UNWANTED), under=replace(UNDER, decided_end=7, interest=True)),
        TimeToLive(UNDER, 7, 8),
        Decided(replace(UNDER, decided_end=7, earlier_end=3)),
        replace(hide(1, reason=HideReason.ROLLUP), under=replace(UNDER, decided_end=7, limit=3, rollups=True)),
    ],
)
def test_a_mark_is_read_as_what_it_was_and_no_cut_or_longer_one_is(mark: Mark) -> None:
    value = encode(mark)
    assert decode(mark.kind, value) == mark
    for length in range(1, len(value)):
        with pytest.raises(CorruptionError):
            decode(mark.kind, value[:length])
    with pytest.raises(CorruptionError):
        decode(mark.kind, value + b"\0")


def test_a_mark_names_only_rows_that_its_leader_had() -> None:
    with pytest.raises(CorruptionError, match="rows before the log's end, 5"):
        decode("delete", encode(hide(5, under=replace(UNDER, log_end=5))))
    with pytest.raises(CorruptionError, match="at most"):
        decode("delete", bytes(limits.MARK_BYTES_MAX + 1))


def test_marks_of_the_first_version_are_read_and_written_as_they_were() -> None:
    under = MadeUnder(leader_epoch=3, log_end=300, decided_end=200, earlier_end=128, at_us=1_000)
    delete = HideRows(under, HideReason.DELETE, RowSet.of([2, 3, 130]), is_secure=True, user="ada")
    assert encode(delete).hex() == GOLDEN
    assert decode("delete", bytes.fromhex(GOLDEN)) == delete


def test_a_snapshot_has_the_counts_of_the_first_version_unless_there_are_others() -> None:
    counts = (1, 2, 3, 4, 5, 6, 0, 0)
    first = encode(Snapshot(UNDER, 0, 1, counts))
    assert (first[:1], first.hex()) == (b"\x01", FIRST_SNAPSHOT)
    assert decode("snapshot", first) == Snapshot(UNDER, 0, 1, counts)
    assert encode(Snapshot(UNDER, 0, 1, (*counts[:7], 1)))[:1] == b"\x02"
    with pytest.raises(UnknownMarkError):
        decode("snapshot", b"\x03" + first[1:])


def test_the_marks_say_whether_interest_was_decided() -> None:
    wanted = Decided(replace(UNDER, decided_end=5, interest=True))
    unwanted = replace(hide(3, reason=HideReason.UNWANTED), under=replace(UNDER, decided_end=9, interest=True))
    for mark in (wanted, unwanted):
        live = folded([mark])
        assert live.interest
        live.take(hide(4, reason=HideReason.CONSUMED))
        live.take(hide(5, reason=HideReason.LIMIT))  # a part of a decision says nothing about its end
        assert live.interest
        (part,) = live.snapshot(UNDER, 0)
        assert folded([part]).interest
        live.take(decided(20, 0))
        assert not live.interest


FIRST_SNAPSHOT = "0101c0843d00ffffffffffffffff7f05000000010001020304050600020100020100"
GOLDEN = "0103ac02c8018001e8070103616461" + "08" + "0101010102017d00"


def decided(end: int, limit: int, *, rollups: bool = False) -> Decided:
    return Decided(replace(UNDER, decided_end=end, limit=limit, rollups=rollups))


def test_a_stricter_limit_is_decided_from_the_beginning_and_a_wider_one_goes_on() -> None:
    live = folded([decided(50, 3), decided(80, 3)])
    assert (live.decided_end, live.limit) == (80, 3)
    live.take(decided(10, 2))
    assert (live.decided_end, live.limit) == (10, 2)
    live.take(hide(3))  # a deletion says nothing about decisions
    live.take(decided(90, 5))
    assert (live.decided_end, live.limit) == (90, 5)
    live.take(decided(20, 1))
    assert (live.decided_end, live.limit) == (20, 1)


def test_rollups_that_are_new_are_decided_from_the_beginning_and_with_or_without_a_limit_all_goes_on() -> None:
    live = folded([decided(50, 3), decided(10, 3, rollups=True)])
    assert (live.decided_end, live.limit, live.rollups) == (10, 3, True)
    live.take(decided(60, 0, rollups=True))
    assert (live.decided_end, live.limit, live.rollups) == (60, 0, True)
    assert live.covers(0, rollups=True)
    assert not live.covers(3, rollups=True)
    live.take(hide(3, reason=HideReason.ROLLUP))  # a part of a decision says nothing about its end
    live.take(decided(20, 3, rollups=True))
    assert (live.decided_end, live.limit, live.rollups) == (20, 3, True)
    live.take(decided(70, 3))
    assert (live.decided_end, live.rollups) == (70, False)
    (part,) = folded([decided(80, 0, rollups=True)]).snapshot(UNDER, 0)
    fresh = folded([part])
    assert (fresh.decided_end, fresh.limit, fresh.rollups) == (80, 0, True)


def test_there_is_room_for_what_is_hidden_already(monkeypatch: pytest.MonkeyPatch) -> None:
    live = folded([hide(*range(0, 200_000, 2))])
    monkeypatch.setattr(limits, "HIDDEN_ROWS_BYTES_MAX", live.size_bytes + 100)
    assert live.has_room_for(RowSet.of(range(0, 200_000, 2)))
    assert live.has_room_for(RowSet.of_runs([(0, 200_000)]))
    assert not live.has_room_for(RowSet.of(range(200_000, 400_000, 2)))
    monkeypatch.setattr(limits, "HIDDEN_ROWS_BYTES_MAX", live.size_bytes)
    assert not live.has_room_for(RowSet.of([0]))


def test_a_snapshot_that_a_change_of_the_limit_has_overtaken_decides_nothing() -> None:
    live = folded([hide(1, reason=HideReason.LIMIT), decided(80, 3)])
    (part,) = live.snapshot(UNDER, 0)
    assert (part.under.decided_end, part.under.limit) == (80, 3)
    live.take(decided(10, 2))
    live.take(part)
    assert (live.decided_end, live.limit) == (10, 2)
    fresh = folded([replace(part, marks_end=2)], 2)
    assert (fresh.decided_end, fresh.limit, fresh.hidden) == (80, 3, RowSet.of([1]))
