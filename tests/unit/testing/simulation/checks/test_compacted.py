"""What may be missing where a stream is compacted: each rule can fail, and what it excuses is excused."""

from __future__ import annotations

import pytest

from penstock.live.row_set import NONE, RowSet
from penstock.testing.simulation.checks.compacted import Compacted, CompactedRow, DiskCopy, Moment, SeenRange

RETENTION_US = 1_000_000
X1, X2, GONE = CompactedRow(b"x", False), CompactedRow(b"x", False), CompactedRow(b"x", True)
NO_KEY = CompactedRow(None, False)


def known(*rows: CompactedRow) -> Compacted:
    """A partition in which these are committed, from offset 0 on."""
    compacted = Compacted(RETENTION_US)
    for offset, row in enumerate(rows):
        compacted.know(offset, row)
    return compacted


def compare(
    compacted: Compacted,
    replica: DiskCopy,
    *offsets: int,
    end: int,
    log_start: int = 0,
    begin: int | None = None,
    at_us: int = 0,
    steps: int = 0,
    hidden: RowSet | None = None,
) -> str:
    """What is wrong with a replica that has these of what is known."""
    first = log_start if begin is None else begin
    rows = {offset: compacted._rows[offset] for offset in offsets}
    return compacted.compare(replica, SeenRange(log_start, first, end, rows, Moment(at_us, steps), hidden))


def test_what_has_a_later_one_may_go() -> None:
    compacted = known(X1, NO_KEY, X2)
    replica = compacted.replica(1, 1)
    assert compare(compacted, replica, 0, 1, 2, end=3) == ""
    assert compare(compacted, replica, 1, 2, end=3) == ""
    assert compacted.taken == 1
    assert compacted.passed_over([0]) == ""


def test_what_has_no_key_stays() -> None:
    compacted = known(NO_KEY, X1)
    assert compare(compacted, compacted.replica(1, 1), 1, end=2) == "0 has no key, and is gone"
    assert compacted.passed_over([0]) == "0 has no key, and is passed over"


def test_the_last_one_of_its_key_stays() -> None:
    compacted = known(X1, X2)
    replica = compacted.replica(1, 1)
    assert compare(compacted, replica, 0, 1, end=2) == ""
    assert compare(compacted, replica, 0, end=2) == "1 is the last of key b'x', and is gone"
    assert compacted.passed_over([1]) == "1 is the last of key b'x', and is passed over"


def test_what_marks_hide_may_be_gone() -> None:
    compacted = known(X1, X2)
    replica = compacted.replica(1, 1)
    assert compare(compacted, replica, 1, end=2, hidden=NONE) == "[0] are gone, and no mark hides them"
    assert compare(compacted, replica, 1, end=2, hidden=RowSet.of([0])) == ""


def test_a_replica_gets_rows_without_what_only_its_leader_knows_to_be_hidden() -> None:
    """The leader has rewritten a batch before the replica fetches it; the marks reach the replica later."""
    compacted = known(X1, X2)
    assert compare(compacted, compacted.replica(1, 1), 0, 1, end=2, hidden=NONE) == ""
    assert compare(compacted, compacted.replica(2, 1), 1, end=2, hidden=RowSet.of([0])) == ""
    assert compare(compacted, compacted.replica(3, 1), 1, end=2, hidden=NONE) == ""
    compacted.cut(0)
    compacted.know(0, X1)
    compacted.know(1, X2)
    assert compare(compacted, compacted.replica(3, 1), 1, end=2, hidden=NONE) != ""


def test_what_nobody_has_seen_is_not_missed() -> None:
    compacted = Compacted(RETENTION_US)
    assert compare(compacted, compacted.replica(1, 1), end=2) == ""
    assert compacted.passed_over([0, 1]) == ""


def test_what_was_given_up_is_not_missed() -> None:
    compacted = known(X1, NO_KEY, CompactedRow(b"y", False))
    assert compare(compacted, compacted.replica(1, 1), 2, end=3, log_start=2) == ""


def test_a_later_one_counts_once_the_broker_knows_it_to_be_committed() -> None:
    """It looked beyond what is committed; and what it looked at is committed now."""
    compacted = known(X1, NO_KEY)
    replica = compacted.replica(1, 1)
    assert compare(compacted, replica, 0, 1, end=2) == ""
    compacted.know(2, X2)
    assert compare(compacted, replica, 1, end=2) == "0 is the last of key b'x', and is gone"


def test_who_never_had_it_may_have_to_wait_for_the_later_one() -> None:
    """What a follower fetches may be compacted already, by what its leader has told it to be committed since."""
    compacted = known(NO_KEY, X1, NO_KEY, X2)
    replica = compacted.replica(2, 1)
    assert compare(compacted, replica, 0, end=1) == ""
    assert compare(compacted, replica, end=2, begin=1) == ""
    assert compare(compacted, replica, 2, end=3, begin=2) == ""
    assert replica.awaited == {b"x": 3}
    assert compare(compacted, replica, end=4, begin=3) == "3 is the last of key b'x', and is gone"


def test_what_was_waited_for_has_come() -> None:
    compacted = known(X1, X2)
    replica = compacted.replica(2, 1)
    assert compare(compacted, replica, end=1) == ""
    assert compare(compacted, replica, 1, end=2, begin=1) == ""
    assert not replica.awaited


@pytest.mark.parametrize(
    ("after_us", "steps", "is_excused"),
    [(RETENTION_US, 0, True), (RETENTION_US - 1, 0, False), (0, 1, True)],
    ids=["in time", "too soon", "somebody has set the clock"],
)
def test_a_tombstone_stays_for_a_while_behind_what_it_ends(after_us: int, steps: int, is_excused: bool) -> None:
    compacted = known(X1, GONE)
    replica = compacted.replica(1, 1)
    assert compare(compacted, replica, 0, 1, end=2, at_us=5) == ""
    assert compare(compacted, replica, 1, end=2, at_us=10) == ""
    assert compacted.passed_over([1])
    mistake = compare(compacted, replica, end=2, at_us=10 + after_us, steps=steps)
    if is_excused:
        assert mistake == ""
    else:
        assert mistake == "1, a tombstone, is gone 1.000 s after what it ended"
    assert compacted.gone == {1}
    assert compacted.passed_over([0, 1]) == ""


def test_a_tombstone_does_not_go_together_with_what_it_ends() -> None:
    compacted = known(X1, GONE)
    replica = compacted.replica(1, 1)
    assert compare(compacted, replica, 0, 1, end=2) == ""
    mistake = compare(compacted, replica, end=2, at_us=5 * RETENTION_US)
    assert mistake == "1, a tombstone, is gone together with what it ended"


def test_a_tombstone_does_not_go_before_what_it_ends() -> None:
    compacted = known(X1, GONE)
    replica = compacted.replica(1, 1)
    assert compare(compacted, replica, 0, 1, end=2) == ""
    mistake = compare(compacted, replica, 0, end=2, at_us=5 * RETENTION_US)
    assert mistake == "1, the tombstone of key b'x', is gone, and 0 is there"


def test_what_it_ended_does_not_come_back_with_the_next_run() -> None:
    compacted = known(X1, GONE)
    replica = compacted.replica(1, 1)
    compare(compacted, replica, 1, end=2)
    compare(compacted, replica, end=2, at_us=RETENTION_US)
    replica.begin(2, 2)
    assert "is gone, and 0 is there" in compare(compacted, replica, 0, end=2, at_us=RETENTION_US)


def test_a_tombstone_that_is_back_waits_anew() -> None:
    compacted = known(X1, GONE)
    replica = compacted.replica(1, 1)
    compare(compacted, replica, 1, end=2)
    compare(compacted, replica, end=2, at_us=RETENTION_US)
    replica.begin(2, 2)
    assert compare(compacted, replica, 1, end=2, at_us=RETENTION_US) == ""
    assert "after what it ended" in compare(compacted, replica, end=2, at_us=RETENTION_US + 1)


def test_who_was_away_may_keep_what_others_have_ended() -> None:
    compacted = known(X1, GONE, NO_KEY)
    here, away = compacted.replica(1, 1), compacted.replica(2, 1)
    assert compare(compacted, away, 0, end=1) == ""
    assert compare(compacted, here, 1, 2, end=3) == ""
    assert compare(compacted, here, 2, end=3, at_us=RETENTION_US) == ""
    assert compare(compacted, away, 2, end=3, begin=1) == ""
    assert compare(compacted, away, 0, 2, end=3) == ""


def test_who_was_away_and_had_the_tombstone_keeps_it() -> None:
    compacted = known(X1, GONE, NO_KEY)
    here, away = compacted.replica(1, 1), compacted.replica(2, 1)
    assert compare(compacted, away, 0, 1, end=2) == ""
    compare(compacted, here, 1, 2, end=3)
    compare(compacted, here, 2, end=3, at_us=RETENTION_US)
    away.begin(2, log_end=2)
    assert "is gone, and 0 is there" in compare(compacted, away, 0, 2, end=3)


def test_who_has_lost_the_tombstone_with_its_power_may_not_find_it_again() -> None:
    compacted = known(X1, GONE, NO_KEY)
    here, away = compacted.replica(1, 1), compacted.replica(2, 1)
    assert compare(compacted, away, 0, 1, end=2) == ""
    compare(compacted, here, 1, 2, end=3)
    compare(compacted, here, 2, end=3, at_us=RETENTION_US)
    away.begin(2, log_end=1)
    assert compare(compacted, away, 0, 2, end=3) == ""


def test_what_was_lost_is_forgotten() -> None:
    compacted = known(X1, GONE)
    replica = compacted.replica(1, 1)
    compare(compacted, replica, 1, end=2)
    compare(compacted, replica, end=2, at_us=RETENTION_US)
    compacted.cut(1)
    assert not compacted.gone
    assert replica.is_blind
    assert replica.files is None
    compacted.know(1, NO_KEY)
    assert compacted.passed_over([0]) == "0 is the last of key b'x', and is passed over"
    assert compare(compacted, replica, 0, 1, end=2) == ""


def test_what_was_lost_behind_it_does_not_make_a_tombstone_younger() -> None:
    compacted = known(X1, GONE, NO_KEY)
    replica = compacted.replica(1, 1)
    compare(compacted, replica, 1, 2, end=3)
    compacted.cut(2)
    assert compare(compacted, replica, 1, end=2, at_us=RETENTION_US - 1) == ""
    assert compare(compacted, replica, end=2, at_us=RETENTION_US) == ""


def test_nobody_knows_since_when_a_tombstone_is_alone_that_became_so_unseen() -> None:
    compacted = known(X1, GONE)
    replica = compacted.replica(1, 1)
    assert compare(compacted, replica, 0, 1, end=2) == ""
    replica.lose_sight()
    assert compare(compacted, replica, 1, end=2, at_us=RETENTION_US) == ""
    assert compare(compacted, replica, end=2, at_us=RETENTION_US + 1) == ""


def test_nothing_is_said_of_what_went_while_nobody_could_look() -> None:
    compacted = known(X1, GONE)
    replica = compacted.replica(1, 1)
    assert compare(compacted, replica, 0, 1, end=2) == ""
    replica.lose_sight()
    assert compare(compacted, replica, end=2) == ""
    assert compacted.gone == {1}
    assert compacted.taken == 0
