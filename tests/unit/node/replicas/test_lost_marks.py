"""Followers of a stream with a limit by subject, where marks speak of messages that a power loss has taken."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.vfs.memory import Keep
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.replicas.companion_brokers import target
from tests.unit.node.replicas.test_companions import others, read


def limited(**config: object) -> Brokers:
    brokers = formed()
    caller = brokers.leader.create("s", subject="s.*", replicas=3, max_messages_per_subject=1, **config)
    brokers.run(1_000)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    return brokers


def decide(brokers: Brokers) -> None:
    brokers.run(limits.REPLICA_FETCH_WAIT_MS + 1_000)


def shown(member: Member) -> list[int]:
    """The offsets that a reader of this replica gets up to its end."""
    answer = read(member)
    partition = target(member)
    hidden = partition.log.hidden
    return [one for one in range(answer.committed_end) if hidden is None or one not in hidden]


@pytest.mark.parametrize("kept", [2, 0])
def test_followers_show_what_is_left_before_the_first_message_of_the_next_epoch(kept: int) -> None:
    brokers = limited(durability="os")
    for number in range(kept):
        brokers.publish(f"s.{number}", b"on all disks")
    decide(brokers)
    for _ in range(3):
        for number in range(2):
            brokers.publish(f"s.other{number}", b"lost")
    brokers.run(50)
    assert max(target(one).decided_end for one in brokers.members.values()) == kept + 6
    assert {target(one).log.flushed_end for one in brokers.members.values()} == {kept}
    disks = {one: brokers.kill(one, Keep.SYNCED) for one in list(brokers.members)}
    for one, disk in disks.items():
        brokers.start(one, disk)
    brokers.run(60_000)
    for member in brokers.members.values():
        assert shown(member) == list(range(kept))
    brokers.publish("s.0", b"after it")
    decide(brokers)
    for member in others(brokers):
        assert shown(member) == [*range(1, kept), kept]
