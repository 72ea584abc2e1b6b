"""What a publisher is told of a message that is not stored is held against it."""

from __future__ import annotations

from functools import cache

import pytest

from penstock.base.errors import ErrorCode, RemoteError
from penstock.ingest import acks
from penstock.node.step import NatsAnswers
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.checks.checks import PartitionHistory
from tests.sim.checks.refusals import DEPOSED_US_MAX, Refusals
from tests.sim.models.clients import SLOTS
from tests.sim.plan.plan import make_plan
from tests.sim.run.world import World

REPLY, VALUE = b"_INBOX.1", b"s0.g1.>/0/"
FEW = acks.not_enough_replicas(1, 2)


@cache
def world() -> World:
    """One that has run for a while, and shows who leads what."""
    made = World(make_plan(1, 3, SLOTS)._replace(end_us=1_000_000, operations=(), faults=()))
    assert not made.run().error
    return made


class Stage:
    """A history of its own, of a partition that broker 1 has, and a message that it got."""

    def __init__(self, *receivers: str) -> None:
        self.now_us = world()._scheduler.now_us
        self.checks, self.broker = world().checks, world().brokers[1]
        self.refusals = Refusals(world()._around, self.checks)
        there = self.checks.of("s0.g1.>", 0)
        self.history = PartitionHistory(there.config, 0, there.stream_id)
        self.checks.sent[VALUE] = there.config.subject
        self.checks._refused.clear()
        self.refusals.published(REPLY, (self.history,), VALUE, receivers or ("b1",))

    def refuse(self, error: acks.AckError) -> None:
        """Broker 1 does."""
        commands = acks.error_ack(b"s0", REPLY, error)
        self.refusals.answered(self.broker, [NatsAnswers(1, commands)])
        self.refusals.refused(REPLY, acks.error_body(b"s0", error))

    def comes(self) -> None:
        """It is in the log."""
        self.checks.promised(self.history, self.history.promised_end, 9, VALUE, fsynced=True)


def test_what_is_stored_after_it_was_refused() -> None:
    stage = Stage()
    stage.refuse(FEW)
    with pytest.raises(ViolationError, match="refused"):
        stage.comes()


def test_what_is_refused_after_it_was_stored() -> None:
    stage = Stage()
    stage.comes()
    with pytest.raises(ViolationError, match="refused"):
        stage.refuse(FEW)


def test_a_message_that_nobody_got_is_not_there() -> None:
    stage = Stage()
    stage.refusals.refused(REPLY, b"")
    with pytest.raises(ViolationError, match="no responders"):
        stage.comes()


def test_a_refusal_that_leaves_it_open_is_none() -> None:
    stage = Stage()
    stage.refuse(acks.outcome_unknown("the disk"))
    stage.comes()


def test_a_deposed_leader_is_held_to_what_it_says() -> None:
    stage = Stage("b1", "b2")
    stage.history.leaders[9], stage.history.led_us[9] = (2, 1), stage.now_us
    stage.refuse(FEW)
    with pytest.raises(ViolationError, match="refused"):
        stage.comes()


def test_a_leader_is_new_for_a_session() -> None:
    stage = Stage("b1", "b2")
    look = inspector.partition(stage.broker.node, stage.history.stream_id, 0)  # type: ignore[arg-type]
    assert look is not None
    stage.history.led_us[look.leader_epoch] = stage.now_us - DEPOSED_US_MAX - 1
    stage.refuse(FEW)
    with pytest.raises(ViolationError, match="refused"):
        stage.comes()


@pytest.mark.parametrize(("receivers", "is_excused"), [(("b1",), False), (("b1", "b2"), True)])
def test_a_new_leader_may_be_wrong_of_what_the_deposed_one_got(receivers: tuple[str, ...], is_excused: bool) -> None:
    stage = Stage(*receivers)
    look = inspector.partition(stage.broker.node, stage.history.stream_id, 0)  # type: ignore[arg-type]
    assert look is not None
    stage.history.led_us[look.leader_epoch] = stage.now_us
    stage.refuse(FEW)
    if is_excused:
        stage.comes()
    else:
        with pytest.raises(ViolationError, match="refused"):
            stage.comes()


@pytest.mark.parametrize(
    ("error", "is_held"),
    [
        (RemoteError(ErrorCode.NOT_LEADER, "another one"), True),
        (RemoteError(ErrorCode.STORAGE_FAILED, "full"), True),
        (RemoteError(ErrorCode.STORAGE_FAILED, "a sync failed", reason=ErrorCode.OUTCOME_UNKNOWN), False),
        (RemoteError(ErrorCode.FENCED_EPOCH, "another one"), False),
    ],
    ids=str,
)
def test_an_append_that_was_refused(error: RemoteError, is_held: bool) -> None:
    stage = Stage()
    stage.refusals.append_refused(stage.history, [VALUE], error)
    if is_held:
        with pytest.raises(ViolationError, match="refused"):
            stage.comes()
    else:
        stage.comes()


def test_what_one_of_a_queue_group_refuses_is_in_none_of_its_partitions() -> None:
    stage = Stage("b1")
    others = [PartitionHistory(stage.history.config, number, stage.history.stream_id) for number in (1, 2)]
    stage.refusals.published(REPLY, (stage.history, *others), VALUE, ("b1",))
    for one in others:
        one.leaders.update({1: (2, 1), 2: (3, 1)})  # whoever leads them now: nobody else got it
    stage.refuse(FEW)
    with pytest.raises(ViolationError, match="refused"):
        stage.checks.promised(others[1], 0, 9, VALUE, fsynced=True)
