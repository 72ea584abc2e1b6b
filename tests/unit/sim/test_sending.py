"""Publishers: who waits goes on once, and nothing of a message is sent after that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.testing.errors import ViolationError
from penstock.testing.simulation.checks.checks import SentMessage
from tests.sim.models.clients import SLOTS
from tests.sim.models.sending import Sender
from tests.sim.plan.plan import make_plan
from tests.sim.run.world import World

NAME = b"s0.g1.>/9/"
ACK = b'{"stream":"s0","seq":%d,"partition":0,"offset":%d,"epoch":1,"fsynced":true}'


class Stage:
    """One message of a world that stands still; `replies`: on what it was sent."""

    def __init__(self) -> None:
        world = World(make_plan(1, 1, SLOTS)._replace(end_us=1_000_000, operations=(), faults=()))
        assert not world.run().error
        self.scheduler, self.checks = world._scheduler, world.checks
        self.history = self.checks.of("s0.g1.>", 0)
        self.message = SentMessage(b"s0.g1.x", NAME, NAME)
        self.checks.sends(self.history.config, self.message)
        self.replies: list[tuple[bytes, Callable[[bytes], None]]] = []
        world._around.nats.publish = self.published  # type: ignore[method-assign]
        self.sender = Sender(world._around, self.checks, world._refusals)
        self.went_on = 0

    def published(
        self, subject: bytes, value: bytes, reply: bytes, inbox: Callable[[bytes], None], headers: bytes = b""
    ) -> tuple[str, ...]:
        assert (subject, value, headers) == (b"s0.g1.x", NAME, b"")
        self.replies.append((reply, inbox))
        return ("b1",)

    def send(self, tries: int) -> None:
        self.sender.send((self.history,), self.message, tries, self.goes_on)

    def goes_on(self) -> None:
        self.went_on += 1

    def passes(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now_us + int(seconds * 1e6))

    def hears(self, number: int, body: bytes) -> None:
        self.replies[number][1](body)


def test_who_hears_nothing_sends_again_and_gives_up() -> None:
    stage = Stage()
    stage.send(3)
    stage.passes(14)
    assert (len(stage.replies), stage.went_on) == (3, 0)
    stage.passes(2)
    assert (len(stage.replies), stage.went_on) == (3, 1)


def test_what_is_answered_late_is_not_sent_again() -> None:
    stage = Stage()
    stage.send(3)
    stage.passes(6)
    assert len(stage.replies) == 2
    stage.hears(0, b"")
    assert stage.went_on == 1
    stage.passes(20)
    assert (len(stage.replies), stage.went_on) == (2, 1)


@pytest.mark.parametrize("body", [b"", b'{"stream":"s0","seq":0,"error":{"code":503,"err_code":1,"description":"no"}}'])
def test_who_is_refused_goes_on(body: bytes) -> None:
    stage = Stage()
    stage.send(0)
    stage.passes(1)
    stage.hears(0, body)
    assert stage.went_on == 1
    with pytest.raises(ViolationError, match="was refused"):
        stage.checks.promised(stage.history, stage.history.promised_end, 1, NAME, fsynced=True)


@pytest.mark.parametrize(
    "body",
    [
        ACK.replace(b'"partition":0', b'"partition":1') % (1, 0),
        ACK.replace(b'"s0"', b'"s1"') % (1, 0),
        ACK % (3, 1),
    ],
)
def test_an_ack_of_something_else(body: bytes) -> None:
    stage = Stage()
    stage.send(0)
    stage.passes(1)
    with pytest.raises(ViolationError, match="not an ack for s0"):
        stage.hears(0, body)
