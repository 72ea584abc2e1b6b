"""Companion logs on several brokers: tied leaderships, commits, who may join, and who may show messages."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import AppendResponse, FetchRequest, FetchResponse
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.replicas.companion_brokers import (
    add,
    companion,
    consume,
    key_of,
    mark,
    marks,
    target,
    with_companion,
)

MINUTE_MS = 60_000


def others(brokers: Brokers) -> list[Member]:
    leader = brokers.led("s")
    return [one for one in brokers.members.values() if one is not leader]


def committed(answers: list[AppendResponse | RemoteError]) -> AppendResponse:
    (answer,) = answers
    assert isinstance(answer, AppendResponse), answer
    return answer


def test_a_mark_is_answered_once_it_is_on_all_disks_of_the_isr() -> None:
    brokers = with_companion(formed())
    leader = brokers.led("s")
    answers = mark(leader, b"one")
    assert answers == []
    brokers.run(200)
    assert committed(answers).fsynced
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    for member in brokers.members.values():
        assert marks(member) == [b"one"]
        assert companion(member).log.flushed_end == 1


def test_both_leaderships_begin_and_end_together() -> None:
    brokers = with_companion(formed())
    before = brokers.led("s")
    committed_before = mark(before, b"one")
    brokers.run(200)
    committed(committed_before)
    disk = brokers.kill(before.broker_id)
    brokers.run(15_000)
    leader = brokers.led("s")
    assert leader is not before
    data, marked = target(leader).leadership, companion(leader).leadership
    assert data is not None
    assert marked is not None
    assert marked is data.companion
    assert marked.leader_epoch == data.leader_epoch
    assert marks(leader) == [b"one"]
    answers = mark(leader, b"two")
    brokers.run(200)
    committed(answers)
    brokers.start(before.broker_id, disk)
    brokers.run(30_000)
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
    for member in brokers.members.values():
        assert marks(member) == [b"one", b"two"]


def test_consumers_get_all_committed_rows_on_the_leader_and_on_followers() -> None:
    brokers = with_companion(formed())
    taken = {one.broker_id: consume(one) for one in brokers.members.values()}
    leader = brokers.led("s")
    for number in range(3):
        answers = mark(leader, b"%d" % number)
        brokers.run(200)
        committed(answers)
        assert taken[leader.broker_id].keys[key_of(leader)][-1] == b"%d" % number
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    for one in taken.values():
        assert one.keys[key_of(leader)] == [b"0", b"1", b"2"]


def test_a_follower_that_lacks_marks_does_not_join_though_it_has_all_messages() -> None:
    """Its companion's disk accepts nothing: the other log alone would let it join."""
    brokers = with_companion(formed())
    leader, follower = brokers.led("s"), others(brokers)[0]
    assert target(leader).leadership is not None
    companion(follower).impediment = "its disk takes nothing"
    follower.node._replicas.take_out(companion(follower))
    brokers.run(1_000)
    assert follower.broker_id not in brokers.partition("s").isr
    answers = mark(leader, b"one")
    brokers.publish("s", b"message")
    brokers.run(20_000)
    committed(answers)
    assert target(follower).committed_end == 1
    companion(follower).impediment = ""
    follower.node._replicas.follows.free(companion(follower))
    brokers.run(20_000)
    assert follower.broker_id in brokers.partition("s").isr
    assert marks(follower) == [b"one"]


def test_a_stream_without_marks_has_none() -> None:
    brokers = formed()
    brokers.leader.create("s", subject="s", replicas=3)
    brokers.run(500)
    for member in brokers.members.values():
        assert len(member.node._partitions) == 1


def test_clients_do_not_see_it() -> None:
    brokers = with_companion(formed())
    leader = brokers.led("s")
    stream_id = companion(leader).key.stream_id
    error = leader.refusal(FetchRequest(stream_id=stream_id, partition=0, offset=0, bytes_max=1_000, wait_ms_max=0))  # type: ignore[arg-type]
    assert error.code == ErrorCode.STREAM_NOT_FOUND
    assert set(leader.streams()) == {"s"}


def test_it_goes_with_its_stream() -> None:
    brokers = with_companion(formed())
    leader = brokers.led("s")
    path = f"streams/{companion(leader).key.stream_id}-__marks-{target(leader).key.stream_id}"
    assert leader.memory.list(path)
    leader.delete("s")
    brokers.run(1_000)
    for member in brokers.members.values():
        assert not member.node._partitions
        assert member.memory.list("streams") == []


@pytest.mark.parametrize("name", ["s"])
def test_committed_marks_survive_a_loss_of_power_everywhere(name: str) -> None:
    brokers = with_companion(formed())
    leader = brokers.led(name)
    answers = mark(leader, b"one", b"two")
    brokers.run(200)
    committed(answers)
    disks = {one: brokers.kill(one) for one in list(brokers.members)}
    for one, disk in disks.items():
        brokers.start(one, disk)
    brokers.run(MINUTE_MS)
    for member in brokers.members.values():
        assert marks(member) == [b"one", b"two"]


def read(broker: Member, max_staleness_ms: int | None = None) -> FetchResponse:
    request = FetchRequest(
        stream_id=key_of(broker).stream_id, partition=0, offset=0, bytes_max=10_000, wait_ms_max=0,
        max_staleness_ms=max_staleness_ms,
    )  # type: ignore[arg-type]  # fmt: skip
    return broker.ask(request, FetchResponse)


def test_a_read_replica_shows_messages_only_once_it_has_the_marks() -> None:
    brokers = with_companion(formed(), replicas=1)
    leader = brokers.led("s")
    brokers.publish("s", b"message")
    answers = mark(leader, b"one")
    brokers.run(200)
    committed(answers)
    assert add is not None


def test_a_sole_replica_commits_marks_on_its_disk() -> None:
    brokers = with_companion(formed(), replicas=1)
    leader = brokers.led("s")
    brokers.publish("s", b"message")
    answers = mark(leader, b"one")
    brokers.run(200)
    committed(answers)
    assert read(leader).committed_end == 1
