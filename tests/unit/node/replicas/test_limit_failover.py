"""What a limit has pushed out on one leader stays so on the next, though a deletion has left fewer messages."""

from __future__ import annotations

from penstock.base.ids import Offset
from penstock.messages import DeleteMessagesRequest, DeleteMessagesResponse
from tests.unit.node.members import Brokers, Member


def shown(member: Member, name: str) -> list[int]:
    partition = member.node._partitions[member.image.by_name(name).partition_keys()[0]]
    hidden = partition.log.hidden
    offsets = range(partition.log_start, partition.committed_end)
    return [offset for offset in offsets if hidden is None or offset not in hidden]


def test_the_next_leader_shows_nothing_in_the_place_of_deleted_messages() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.run(5_000)
    caller = brokers.leader.create("s", subject="s", replicas=3, max_messages=4)
    brokers.run(500)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    deposed = brokers.led("s")
    stream_id = deposed.image.by_name("s").stream_id
    deposed.publish("s", b"first")
    brokers.run(500)
    caller = deposed.request(DeleteMessagesRequest(stream_id=stream_id, offsets=(Offset(0),)))
    brokers.run(5_000)
    assert deposed.answer(caller, DeleteMessagesResponse).deleted == 1  # the companion log is there
    deposed.publish("s", *(b"%d" % number for number in range(10)))
    brokers.run(50)
    assert shown(deposed, "s") == [7, 8, 9, 10]
    caller = deposed.request(DeleteMessagesRequest(stream_id=stream_id, offsets=(Offset(8), Offset(9))))
    for _ in range(50):
        if caller in deposed.replies:
            break
        brokers.run(100)
    assert deposed.answer(caller, DeleteMessagesResponse).deleted == 2
    for other in brokers.ids:
        if other != deposed.broker_id:
            brokers.cut(deposed.broker_id, other)
    brokers.run(15_000)
    others = [one for one in brokers.members.values() if one is not deposed]
    (leader,) = (one for one in others if one.node._listener.subscriptions.by_sid)
    assert shown(leader, "s") == [7, 10]
    leader.publish("s", b"10", b"11", b"12")
    brokers.run(3_000)
    assert shown(leader, "s") == [10, 11, 12, 13]
