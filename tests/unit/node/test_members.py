"""Several brokers together: what no part can show alone."""

from __future__ import annotations

from tests.unit.node.members import Brokers


def formed() -> Brokers:
    brokers = Brokers(1, 2, 3)
    brokers.run(5_000)
    assert len(brokers.leader.image.live_brokers()) == 3
    return brokers


def with_stream(**config: object) -> Brokers:
    brokers = formed()
    caller = brokers.leader.create("s", subject="s", replicas=3, **config)
    brokers.run(500)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    return brokers


def test_three_brokers_ack_what_all_have() -> None:
    brokers = with_stream()
    brokers.led("s").publish("s", b"one", reply="r")
    brokers.run(200)
    (ack,) = brokers.led("s").acks
    assert ack.body["replicas"] == 3


def test_a_slow_save_does_not_make_a_follower_doubt_its_leader() -> None:
    brokers = formed()
    leader = brokers.leader
    follower = next(member for member in brokers.members.values() if member is not leader)
    follower.disk_runs_at_once = False
    leader.create("s", subject="s", replicas=3)
    brokers.run(3_000)
    assert follower.disk  # a save of Raft, for all that time
    follower.disk_runs_at_once = True
    brokers.settle()
    assert follower.quorum.leader == leader.broker_id


def test_a_stream_is_deleted_while_its_log_is_being_cut() -> None:
    brokers = with_stream()
    brokers.led("s").publish("s", b"one", reply="r")
    brokers.run(500)
    old = brokers.led("s")
    others = [one for one in brokers.ids if one != old.broker_id]
    for other in others:
        brokers.cut(old.broker_id, other)
    old.publish("s", b"never committed", reply="r")
    brokers.run(8_000)
    assert brokers.led("s") is not old
    brokers.led("s").publish("s", b"two", b"three")
    old.disk_runs_at_once = False
    brokers.join(old.broker_id, *others)
    for _ in range(200):
        brokers.run(50)
        cuts = [work for work in old.disk if "Truncation" in work.run.__qualname__]
        if cuts:
            break
        old.settle()
    (cut,) = cuts
    old.disk.remove(cut)
    brokers.leader.delete("s")
    for _ in range(20):
        brokers.run(50)
        for work in [one for one in old.disk if one is not cut]:
            old.run_disk(old.disk.index(work))
    assert not old.image.streams
    old.disk.append(cut)
    old.settle()
    assert not old.open_requests
