"""Who was started wrongly ends; who has its part goes on."""

from __future__ import annotations

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.node.control.startup_conflicts import (
    OLDER_COPY,
    StartupConflicts,
    is_cluster_mismatch,
    is_id_conflict,
    is_stale_data_dir,
)
from penstock.node.settings import Settings
from penstock.node.step import Outbox

VOTERS = (BrokerId(1), BrokerId(2), BrokerId(3))
STRANGER = RemoteError(ErrorCode.CLUSTER_MISMATCH, "it belongs to cluster b", cluster_id="b")
TAKEN = RemoteError(ErrorCode.CLUSTER_MISMATCH, "broker 3 is there already", taken=True)
OLDER = RemoteError(ErrorCode.CLUSTER_MISMATCH, "broker 3 has run since", older_copy=True)
TAKEN_US = limits.ID_CONFLICT_MS * 1_000


def belonging() -> tuple[StartupConflicts, Outbox]:
    outbox = Outbox()
    return StartupConflicts(Settings(broker_id=BrokerId(3), data_dir="/data"), outbox), outbox


def test_one_stranger_may_be_the_one_that_is_wrong() -> None:
    one, outbox = belonging()
    one.refused("b1:1", BrokerId(1), STRANGER, VOTERS)
    assert outbox.step.failure == ""
    one.same_cluster_confirmed(BrokerId(1))  # somebody else was at its address
    one.refused("b2:1", BrokerId(2), STRANGER, VOTERS)
    assert outbox.step.failure == ""
    one.refused("b1:1", BrokerId(1), STRANGER, VOTERS)
    assert "/data is a data directory of another cluster than b1:1" in outbox.step.failure
    assert "wrong --data-dir?" in outbox.step.failure


def test_who_has_its_part_goes_on_whoever_says_what() -> None:
    one, outbox = belonging()
    one.is_settled = True
    for broker_id in (1, 2):
        one.refused("there", BrokerId(broker_id), STRANGER, VOTERS)
    one.id_conflict_reported(TAKEN, 1)
    one.id_conflict_reported(TAKEN, 1 + TAKEN_US)
    assert outbox.step.failure == ""


def test_whose_place_a_copy_has_taken_ends_though_it_had_its_part() -> None:
    one, outbox = belonging()
    one.is_settled = True
    one.stale_data_dir_reported(OLDER)
    assert "another process took its place, with a copy of /data: broker 3 has run since" in outbox.step.failure


def test_whose_number_is_taken_ends_once_that_one_had_the_time_to_be_found_dead() -> None:
    one, outbox = belonging()
    for now_us in range(0, TAKEN_US, 1_000_000):
        one.id_conflict_reported(TAKEN, now_us)
        assert outbox.step.failure == ""
    one.id_conflict_reported(TAKEN, TAKEN_US)
    assert outbox.step.failure.startswith("broker 3 is there already; this one is broker 3")


def test_who_has_an_older_copy_ends_at_once() -> None:
    one, outbox = belonging()
    one.stale_data_dir_reported(OLDER)
    assert outbox.step.failure.startswith(f"the data directory /data is {OLDER_COPY} of that of broker 3")
    assert "broker 3 has run since. Put the newer one back, or start with an empty one" in outbox.step.failure


def test_voters_to_which_it_is_an_older_copy_end_it_where_no_majority_is_left() -> None:
    one, outbox = belonging()
    one.stale_data_dir_reported_by(BrokerId(1), OLDER, VOTERS)
    assert outbox.step.failure == ""  # it may be broker 1 that is wrong
    assert one.refusal.startswith(f"broker 3 has run since: it takes this one for {OLDER_COPY}. Put the newer one back")
    one.accepted_by(BrokerId(1))
    assert one.refusal == ""
    one.stale_data_dir_reported_by(BrokerId(2), OLDER, VOTERS)
    one.stale_data_dir_reported_by(BrokerId(2), OLDER, VOTERS)
    one.stale_data_dir_reported_by(BrokerId(4), OLDER, VOTERS)  # which does not vote
    assert outbox.step.failure == ""
    one.stale_data_dir_reported_by(BrokerId(1), OLDER, VOTERS)
    assert outbox.step.failure.startswith(f"the data directory /data is {OLDER_COPY} of that of broker 3: broker 3 has")
    assert "an empty one (--data-dir) only if most of the voters are there" in outbox.step.failure


def test_who_has_its_part_is_ended_by_no_voter() -> None:
    one, outbox = belonging()
    one.is_settled = True
    for broker_id in VOTERS[:2]:
        one.stale_data_dir_reported_by(broker_id, OLDER, VOTERS)
    assert outbox.step.failure == ""


def test_a_refusal_long_ago_does_not_count() -> None:
    one, outbox = belonging()
    one.id_conflict_reported(TAKEN, 0)
    one.id_conflict_reported(TAKEN, TAKEN_US)
    assert outbox.step.failure == ""


def test_refusals_are_told_apart() -> None:
    errors = (STRANGER, TAKEN, OLDER)
    assert [is_cluster_mismatch(error) for error in errors] == [True, False, False]
    assert [is_id_conflict(error) for error in errors] == [False, True, False]
    assert [is_stale_data_dir(error) for error in errors] == [False, False, True]
