"""Whoever waits for a stream is answered once, whatever comes first."""

from __future__ import annotations

import pytest

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.node.quorum.stream_waiters import Done, ExpectedStream, StreamWaiters

STREAM, OTHER = StreamId(4), StreamId(5)
FIRST, SECOND = (PartitionKey(STREAM, PartitionId(number)) for number in (0, 1))


class World:
    """What is known, confirmed and being opened; and who has heard what."""

    def __init__(self) -> None:
        self.known: dict[StreamId, tuple[PartitionKey, ...]] = {STREAM: (FIRST, SECOND)}
        self.confirmed: set[PartitionKey] = set()
        self.opening: set[StreamId] = set()
        self.looked: list[PartitionKey] = []
        self.heard: list[tuple[str, str]] = []
        self.intake_us = 0
        self.all = StreamWaiters(
            self.known.get, self._is_confirmed, self.opening.__contains__, lambda _: self.intake_us
        )

    def _is_confirmed(self, key: PartitionKey) -> bool:
        self.looked.append(key)
        return key in self.confirmed

    def done(self, name: str) -> Done:
        def done(error: RemoteError | None) -> None:
            self.heard.append((name, "" if error is None else error.code))

        return done

    def wait(self, name: str, stream_id: StreamId = STREAM, deadline_us: int = 100) -> None:
        self.all.wait(stream_id, deadline_us, self.done(name))

    def confirm(self, key: PartitionKey) -> None:
        self.confirmed.add(key)
        self.all.answer_met(key.stream_id)


@pytest.fixture
def world() -> World:
    return World()


def test_who_waits_hears_once_all_partitions_are_there(world: World) -> None:
    world.wait("a")
    world.confirm(SECOND)
    assert world.heard == []
    world.confirm(FIRST)
    world.all.answer_met(STREAM)
    world.wait("late")
    assert world.heard == [("a", ""), ("late", "")]
    assert world.all.next_deadline_us is None


def test_a_stream_that_is_not_known_yet_is_waited_for(world: World) -> None:
    world.wait("a", OTHER)
    world.all.answer_met(OTHER)
    assert world.heard == []
    world.known[OTHER] = ()  # nothing of it is led here
    world.all.answer_met(OTHER)
    assert world.heard == [("a", "")]


def test_each_partition_is_looked_at_once(world: World) -> None:
    world.wait("a")
    world.confirm(FIRST)
    world.confirm(SECOND)
    assert world.looked == [FIRST, FIRST, SECOND, SECOND]


def test_a_lost_connection_takes_back_what_was_confirmed(world: World) -> None:
    world.wait("a")
    world.confirm(FIRST)
    world.all.lost()
    world.confirmed.clear()
    world.confirm(SECOND)
    assert world.heard == []
    world.confirm(FIRST)
    assert world.heard == [("a", "")]


def test_those_whose_time_is_up_hear_what_is_missing(world: World) -> None:
    world.wait("unknown", OTHER, 10)
    world.wait("unconfirmed", STREAM, 20)
    world.wait("patient", STREAM, 40)
    assert world.all.next_deadline_us == 10
    world.all.expire(9)
    assert world.heard == []
    world.all.expire(20)
    assert world.heard == [("unknown", ErrorCode.TIMED_OUT), ("unconfirmed", ErrorCode.NATS_UNAVAILABLE)]
    world.opening.add(STREAM)
    world.all.expire(40)
    assert world.heard[2:] == [("patient", ErrorCode.TIMED_OUT)]
    assert world.all.next_deadline_us is None


def test_a_failure_and_the_end_tell_all_who_wait_for_it(world: World) -> None:
    for name in ("a", "b"):
        world.wait(name)
    world.wait("c", OTHER)
    world.all.fail(STREAM, RemoteError(ErrorCode.STREAM_CHANGED, "deleted"))
    assert world.heard == [("a", ErrorCode.STREAM_CHANGED), ("b", ErrorCode.STREAM_CHANGED)]
    world.all.stop(RemoteError(ErrorCode.STOPPING, "stopping"))
    assert world.heard[2:] == [("c", ErrorCode.STOPPING)]


def test_who_asks_for_more_while_being_answered_is_heard(world: World) -> None:
    world.all.wait(STREAM, 100, lambda error: world.wait("second", OTHER))
    world.confirmed |= {FIRST, SECOND}
    world.all.answer_met(STREAM)
    world.known[OTHER] = ()
    world.all.answer_met(OTHER)
    assert world.heard == [("second", "")]


def test_a_change_of_the_intake_is_waited_for_though_all_was_confirmed_before(world: World) -> None:
    world.confirmed = {FIRST, SECOND}
    world.all.wait(STREAM, 100, world.done("a"), ExpectedStream(intake_us=7))
    world.intake_us = 6
    world.all.answer_met(STREAM)
    assert world.heard == []
    world.confirmed.discard(SECOND)  # it is resumed, and listens again only in a moment
    world.intake_us = 7
    world.all.answer_met(STREAM)
    assert world.heard == []
    world.confirm(SECOND)
    assert world.heard == [("a", "")]
