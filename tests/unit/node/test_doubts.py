"""Refusals of offset commits wait until the leader is confirmed: no longer than told, and at a bounded cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.base import limits
from penstock.base.clock import Now
from penstock.node.partition.deferred_refusals import DeferredRefusals
from penstock.node.quorum.registration import HeartbeatNumbers
from penstock.node.step import Step

A_MOMENT_US = 1_000


@dataclass
class Doubt:
    """One that notes what it is asked and told."""

    leads: bool = True
    over: bool = False
    looks: int = 0
    settled: list[bool] = field(default_factory=list)

    def is_led(self) -> bool:
        return self.leads

    def is_over(self) -> bool:
        self.looks += 1
        return self.over

    def settle(self, *, is_certain: bool) -> None:
        self.settled.append(is_certain)


def at(elapsed_us: int) -> Now:
    return Now(elapsed_us, elapsed_us)


def wait(refusals: DeferredRefusals, *doubts: Doubt, by: str = "ann/1") -> None:
    for one in doubts:
        refusals.doubt(one, by, at(0))


def settle(refusals: DeferredRefusals, *, confirmed: int, at_us: int = A_MOMENT_US) -> None:
    refusals.settle(HeartbeatNumbers(sent=7, confirmed=confirmed), at(at_us), Step())


def test_one_is_certain_once_a_later_heartbeat_is_confirmed_and_the_leader_leads() -> None:
    refusals, good, deposed = DeferredRefusals(), Doubt(), Doubt(leads=False)
    wait(refusals, good, deposed)
    settle(refusals, confirmed=7)
    assert (good.settled, deposed.settled) == ([], [])
    settle(refusals, confirmed=8)
    assert (good.settled, deposed.settled) == ([True], [False])


def test_one_whose_epoch_is_over_is_told_at_once_and_one_that_nobody_confirms_in_time() -> None:
    refusals, over, waits = DeferredRefusals(), Doubt(over=True), Doubt()
    wait(refusals, over, waits)
    settle(refusals, confirmed=0)
    assert (over.settled, waits.settled) == ([False], [])
    assert refusals.next_deadline_us == limits.COMMIT_REFUSAL_WAIT_MS * 1_000
    settle(refusals, confirmed=0, at_us=limits.COMMIT_REFUSAL_WAIT_MS * 1_000)
    assert waits.settled == [False]
    assert refusals.next_deadline_us is None


def test_those_that_wait_cost_a_step_no_more_than_one_look() -> None:
    refusals, doubts = DeferredRefusals(), [Doubt() for _ in range(100)]
    wait(refusals, *doubts)
    for _ in range(10):
        settle(refusals, confirmed=0)
    assert sum(one.looks for one in doubts) == 10


def test_one_user_leaves_room_for_others() -> None:
    refusals = DeferredRefusals()
    many = [Doubt() for _ in range(limits.DEFERRED_COMMIT_REFUSALS_MAX)]
    wait(refusals, *many)
    judged = [one for one in many if not one.settled]
    assert len(judged) == limits.DEFERRED_COMMIT_REFUSALS_MAX // 2
    assert {tuple(one.settled) for one in many} == {(), (False,)}  # what is over is taken without a judgement
    other = Doubt()
    wait(refusals, other, by="bob/2")
    assert other.settled == []
    settle(refusals, confirmed=8)
    assert other.settled == [True]
    assert {tuple(one.settled) for one in judged} == {(True,)}
    again = Doubt()
    wait(refusals, again)
    assert again.settled == [], "what was settled counts no more"
