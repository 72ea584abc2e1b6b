"""What readers of a follower see while its log takes another shape."""

from __future__ import annotations

from penstock.node.step import Step
from tests.unit.node.members import Brokers, Member, formed


def ends(member: Member, name: str) -> tuple[int, int]:
    partition = member.node._partitions[member.image.by_name(name).partition_keys()[0]]
    return partition.log.log_start, partition.committed_end


def test_what_a_follower_shows_never_steps_back_where_its_log_is_to_begin_inside_a_batch() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.run(5_000)
    caller = brokers.leader.create("s", subject="s", replicas=3, max_messages=2)
    brokers.run(500)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    deposed = brokers.led("s")
    deposed.publish("s", b"all have it")
    brokers.run(500)
    for other in brokers.ids:
        if other != deposed.broker_id:
            brokers.cut(deposed.broker_id, other)
    deposed.publish("s", b"nobody else has it")
    brokers.run(10_000)
    others = [one for one in brokers.members.values() if one is not deposed]
    (leader,) = (one for one in others if one.node._listener.subscriptions.by_sid)
    leader.publish("s", *(b"of the next leader" for _ in range(4)))
    brokers.run(3_000)
    assert ends(leader, "s") == (3, 5)
    shown = [ends(deposed, "s")]
    do = deposed.do

    def look(step: Step) -> None:
        do(step)
        shown.append(ends(deposed, "s"))

    deposed.do = look  # type: ignore[method-assign]
    brokers.join(deposed.broker_id, *(other for other in brokers.ids if other != deposed.broker_id))
    brokers.run(5_000)
    assert shown[-1] == (3, 5)
    committed_ends = [committed_end for _, committed_end in shown]
    assert committed_ends == sorted(committed_ends)
    assert deposed.values("s") == leader.values("s")


def test_a_replica_that_does_not_reach_its_leader_says_so() -> None:
    brokers = formed()
    for name in ("a", "b", "c"):
        brokers.leader.create(name, subject=name, replicas=3)
    brokers.run(1_000)
    name = next(one for one in ("a", "b", "c") if brokers.led(one) is not brokers.leader)
    leader = brokers.led(name)
    (follower,) = (one for one in brokers.members.values() if one not in (leader, brokers.leader))
    brokers.cut(follower.broker_id, leader.broker_id)
    brokers.publish(name, b"1")
    brokers.run(20_000)
    assert follower.broker_id not in brokers.partition(name).isr
    report = follower.node._router.report
    part = report.stream(follower.image.by_name(name)).partitions[0]
    assert part.state == "not_following"
    assert part.state_reason == f"broker {leader.broker_id}, which leads it, does not answer this broker"
    assert report.status(0, in_flight_bytes=0).partitions_by_state["not_following"] >= 1
    brokers.join(follower.broker_id, leader.broker_id)
    brokers.run(5_000)
    assert follower.broker_id in brokers.partition(name).isr
    assert report.stream(follower.image.by_name(name)).partitions[0].state == "online"
