"""A stream gets more partitions: each key stays in order, and one broker at a time answers for it."""

from __future__ import annotations

from typing import Any

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, PartitionId, PartitionKey
from penstock.hot.keymap import KeyMap
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    AppendResponse,
    CreateStreamResponse,
)
from penstock.node.partition.partition import Partition
from tests.batch_samples import with_buffer
from tests.extent import each_change
from tests.unit.node.harness import Ack, Broker, batch_of
from tests.unit.node.members import Brokers, formed
from tests.unit.node.partition.test_dedup import block

BEFORE, AFTER = KeyMap((2,)), KeyMap((2, 4))
NAMES = [f"k{number}" for number in range(40)]
MOVED = [name for name in NAMES if BEFORE.partition_of(name.encode()) != AFTER.partition_of(name.encode())]
STAYED = [name for name in NAMES if name not in MOVED]


def with_orders(**config: Any) -> Broker:
    broker = Broker().start()
    config = {"partitions": 2, "partition_by": "token:2", **config}
    broker.answer(broker.create("orders", "orders.*", **config), CreateStreamResponse)
    return broker


def grow(broker: Broker, **changes: Any) -> AlterStreamResponse:
    return broker.ask(AlterStreamRequest(name="orders", changes=changes or {"partitions": 4}), AlterStreamResponse)


def publish(broker: Broker, *names: str) -> list[Ack]:
    before = len(broker.acks)
    for name in names:
        broker.publish(f"orders.{name}", name.encode(), reply=f"r-{name}")
    return broker.acks[before:]


def where(acks: list[Ack]) -> dict[str, int]:
    """Name → the partition that has stored it."""
    assert all("error" not in ack.body for ack in acks), acks
    return {ack.reply.removeprefix("r-"): ack.body["partition"] for ack in acks}


def place(key_map: KeyMap, names: list[str]) -> dict[str, int]:
    return {name: key_map.partition_of(name.encode()) for name in names}


def test_some_keys_move_and_only_to_what_was_added() -> None:
    assert 0 < len(MOVED) < len(NAMES)
    broker = with_orders()
    assert where(publish(broker, *NAMES)) == place(BEFORE, NAMES)
    info = grow(broker).stream
    assert (info.counts, len(info.partitions)) == ((2, 4), 4)
    broker.tick(limits.KEYS_SETTLE_MS)
    assert where(publish(broker, *NAMES)) == place(AFTER, NAMES)
    for name in MOVED:
        assert AFTER.partition_of(name.encode()) >= 2
        assert name.encode() in broker.values("orders", BEFORE.partition_of(name.encode()))
    assert not broker.stream("orders").is_moving


def test_a_key_is_refused_until_what_its_old_partition_has_is_committed_and_a_while_longer() -> None:
    broker = with_orders()
    broker.syncs_hang = True
    assert publish(broker, MOVED[0], STAYED[0]) == []  # not committed: the disk hangs
    grow(broker)
    assert broker.stream("orders").is_moving
    (refused,) = publish(broker, MOVED[0])
    assert (refused.err_code, refused.body["reason"]) == (10008, ErrorCode.KEY_MOVING)
    broker.syncs_hang = False
    broker.turn()
    assert where(broker.acks[-2:]) == place(BEFORE, [MOVED[0], STAYED[0]])
    assert not broker.stream("orders").is_moving
    assert {one.end_offset for one in broker.stream("orders").key_marks} <= {0, 1, 2}
    (refused,) = publish(broker, MOVED[0])  # NATS servers may have something for each other still
    assert refused.body["reason"] == ErrorCode.KEY_MOVING
    broker.nats.confirms = False
    broker.tick(limits.KEYS_SETTLE_MS)
    (refused,) = publish(broker, MOVED[0])  # and this one may for this broker
    assert refused.body["reason"] == ErrorCode.KEY_MOVING
    broker.nats.confirms = True
    broker.turn()
    assert where(publish(broker, MOVED[0])) == place(AFTER, MOVED[:1])
    assert where(publish(broker, STAYED[0])) == place(BEFORE, STAYED[:1])


def test_a_connection_to_nats_that_is_lost_meanwhile_brings_nothing_old() -> None:
    broker = with_orders()
    broker.nats.confirms = False
    broker.request(AlterStreamRequest(name="orders", changes={"partitions": 4}))
    broker.tick(limits.KEYS_SETTLE_MS)
    broker.nats_down()
    broker.nats.confirms = True
    broker.nats_back()
    broker.tick(limits.KEYS_SETTLE_MS)
    assert where(publish(broker, *NAMES)) == place(AFTER, NAMES)


def test_a_restart_in_between_loses_no_message_and_no_order() -> None:
    broker = with_orders()
    publish(broker, *NAMES)
    broker.syncs_hang = True
    publish(broker, *NAMES)
    broker.request(AlterStreamRequest(name="orders", changes={"partitions": 4}))
    again = broker.crash().start()
    again.tick(limits.KEYS_SETTLE_MS)
    assert not again.stream("orders").is_moving
    assert where(publish(again, *NAMES)) == place(AFTER, NAMES)
    marks = {int(one.partition): one.end_offset for one in again.stream("orders").key_marks}
    for name in MOVED:
        partition = BEFORE.partition_of(name.encode())
        assert name.encode() not in again.values("orders", partition)[marks[partition] :]


def test_a_second_growth_waits_for_its_own_commits_without_waking_anybody() -> None:
    broker = with_orders()
    grow(broker)
    broker.tick(limits.KEYS_SETTLE_MS)
    broker.tick(limits.ISR_RETRY_MS)
    broker.syncs_hang = True
    publish(broker, *NAMES)
    grow(broker, partitions=5)
    assert broker.stream("orders").is_moving
    assert broker.node.next_wake_us > broker.clock.now.elapsed_us
    broker.syncs_hang = False
    broker.turn()
    broker.tick(limits.KEYS_SETTLE_MS)
    assert not broker.stream("orders").is_moving
    assert where(publish(broker, *NAMES)) == place(KeyMap((2, 4, 5)), NAMES)


def test_one_partition_becomes_several_and_its_subscription_another() -> None:
    for split in ("token:2", "group"):
        broker = with_orders(partitions=1, partition_by=split)
        publish(broker, *NAMES)
        grow(broker)
        broker.tick(limits.KEYS_SETTLE_MS)
        acks = publish(broker, *NAMES)
        if split == "group":  # the harness knows no queue groups: each partition has its copy
            assert len(broker.nats.sids("orders.*")) == 4
        else:
            assert where(acks) == place(KeyMap((1, 4)), NAMES)
            assert len(broker.nats.sids("orders.*")) == 1


def with_brokers() -> Brokers:
    brokers = formed()
    caller = brokers.leader.create("orders", "orders.*", partitions=2, partition_by="token:2", replicas=3)
    brokers.settle()
    brokers.leader.answer(caller, CreateStreamResponse)
    return brokers


def told(brokers: Brokers, value: bytes, names: list[str]) -> list[Ack]:
    for one in brokers.members.values():
        one.acks.clear()
    for name in names:
        brokers.publish(f"orders.{name}", value, reply=f"r-{name}")
    brokers.run(500)
    return [ack for one in brokers.members.values() for ack in one.acks]


def test_several_brokers_agree_and_each_message_is_stored_once() -> None:
    brokers = with_brokers()
    assert where(told(brokers, b"old", NAMES)) == place(BEFORE, NAMES)
    caller = brokers.leader.request(AlterStreamRequest(name="orders", changes={"partitions": 4}))
    brokers.run(500)
    brokers.leader.answer(caller, AlterStreamResponse)
    state = brokers.leader.image.by_name("orders")
    assert (state.counts, len(state.marks)) == ((2, 4), 2)
    acks = told(brokers, b"new", NAMES)
    assert sorted(ack.reply for ack in acks) == sorted(f"r-{name}" for name in NAMES)  # each by one alone
    assert where(acks) == place(AFTER, NAMES)


@each_change
def test_whoever_leads_next_says_where_the_keys_end() -> None:
    brokers = with_brokers()
    assert where(told(brokers, b"old", NAMES)) == place(BEFORE, NAMES)
    donor = brokers.leader.image.by_name("orders").partitions[1].leader
    assert donor is not None
    if donor == brokers.leader.broker_id:
        brokers.leader.node.hand_over(brokers.clock.now, lambda: None)
        brokers.settle()
        brokers.run(500)
    brokers.hang(donor)
    brokers.leader.request(AlterStreamRequest(name="orders", changes={"partitions": 4}))
    brokers.run(200)
    state = brokers.leader.image.by_name("orders")
    assert len(state.partitions) == 4
    assert 1 not in state.marked(4)
    (of_one, *_) = (name for name in MOVED if BEFORE.partition_of(name.encode()) == 1)
    assert told(brokers, b"between", [of_one]) == []  # who has not heard of it could still store it
    brokers.kill(donor)
    del brokers._hung[donor], brokers._unread[donor]
    brokers.run(limits.SESSION_MS + 2_000)
    mark = brokers.leader.image.by_name("orders").marked(4)[1]
    assert mark.end_offset == sum(BEFORE.partition_of(name.encode()) == 1 for name in NAMES)
    assert where(told(brokers, b"new", NAMES)) == place(AFTER, NAMES)


def test_with_a_subject_for_each_partition_a_leader_tells_where_a_key_is_now() -> None:
    broker = Broker().start()
    broker.answer(broker.create("orders", "orders", partitions=2), CreateStreamResponse)
    grow(broker)
    broker.tick()

    def send(subject: str, name: str | None) -> Ack:
        broker.publish(subject, b"v", reply="r", headers=None if name is None else block(f"Penstock-Key: {name}"))
        return broker.acks[-1]

    moved, to = MOVED[0], AFTER.partition_of(MOVED[0].encode())
    was = BEFORE.partition_of(MOVED[0].encode())
    old = "orders" if was == 0 else f"orders.{was}"
    ack = send(old, moved)
    assert (ack.err_code, ack.body["reason"]) == (10003, ErrorCode.KEY_ELSEWHERE)
    assert f"'orders.{to}'" in ack.body["error"]["description"]
    assert send(f"orders.{to}", moved).body["partition"] == to
    assert send(old, None).body["partition"] == was  # without a key it is where its publisher wants it
    assert broker.stream("orders").partitions[was].dropped == {"key_elsewhere": 1}


def test_appends_come_into_the_partition_of_their_keys() -> None:
    broker = with_orders()

    def append(name: str, partition: int) -> AppendRequest:
        return AppendRequest(stream_id=broker.stream_id("orders"), partition=partition)  # type: ignore[arg-type]

    def batch(*names: str) -> bytes:
        return bytes(batch_of([(f"orders.{name}", None, b"v", None) for name in names]))

    name, was, to = MOVED[0], BEFORE.partition_of(MOVED[0].encode()), AFTER.partition_of(MOVED[0].encode())
    other = broker.refusal(append(name, 1 - was), batch(name))
    assert (other.code, other.details["partition"]) == (ErrorCode.KEY_ELSEWHERE, was)
    assert broker.ask(append(name, was), AppendResponse, batch(name)).base_offset == 0
    grow(broker)
    moving = broker.refusal(append(name, to), batch(name))
    assert moving.code == ErrorCode.KEY_MOVING
    broker.tick(limits.KEYS_SETTLE_MS)
    assert broker.refusal(append(name, was), batch(name)).code == ErrorCode.KEY_ELSEWHERE
    assert broker.ask(append(name, to), AppendResponse, batch(name)).base_offset == 0


def test_what_was_checked_before_is_not_stored_afterwards() -> None:
    broker = with_orders()
    name, was = MOVED[0], BEFORE.partition_of(MOVED[0].encode())
    broker.disk_runs_at_once = False
    request = AppendRequest(stream_id=broker.stream_id("orders"), partition=was)  # type: ignore[arg-type]
    caller = broker.request(request, batch_of([(f"orders.{name}", None, b"v", None)]))
    (check,) = [broker.execute(number) for number in range(1)]
    broker.disk_runs_at_once = True
    grow(broker)
    broker.complete(check)
    refusal = broker.replies[caller].response
    assert isinstance(refusal, RemoteError)
    assert refusal.code == ErrorCode.KEY_ELSEWHERE
    assert broker.values("orders", was) == []


def test_a_sequence_of_a_subject_is_not_taken_for_none_in_a_partition_that_was_added() -> None:
    broker = with_orders()
    name = MOVED[0]
    publish(broker, name)
    grow(broker)
    broker.tick(limits.KEYS_SETTLE_MS)

    def expecting(sequence: int) -> Ack:
        headers = block(f"Nats-Expected-Last-Subject-Sequence: {sequence}")
        broker.publish(f"orders.{name}", b"v", reply="r", headers=headers)
        return broker.acks[-1]

    refused = expecting(0)
    assert refused.err_code == 10003
    assert "an older one may have" in refused.body["error"]["description"]
    assert where(publish(broker, name)) == place(AFTER, [name])
    assert expecting(1).body["seq"] == 2
    assert expecting(1).err_code == 10071


def test_what_was_on_its_way_to_the_only_partition_is_stored_though_it_listens_elsewhere_by_now() -> None:
    broker = with_orders(partitions=1)
    (old,) = broker.nats.sids("orders.*")
    grow(broker)
    now = dict(broker.nats.subscriptions)
    assert old not in now
    broker.nats.subscriptions = {old: "orders.*"}  # what nats-server had written before it came to the UNSUB
    split = KeyMap((1, 4))
    moves, stays = (
        next(name for name in NAMES if bool(split.partition_of(name.encode())) is so) for so in (True, False)
    )
    refused, stored = publish(broker, moves, stays)
    assert refused.body["reason"] == ErrorCode.KEY_MOVING
    assert where([stored]) == {stays: 0}
    broker.nats.subscriptions = now


def replica(brokers: Brokers, broker_id: int, number: int) -> Partition:
    member = brokers[broker_id]
    return member.node._partitions[PartitionKey(member.image.by_name("orders").stream_id, PartitionId(number))]


def without(brokers: Brokers, broker_id: int) -> None:
    """It is gone, and its followers of partition 1 were in the midst of cutting their logs when one came to lead."""
    cutting = [replica(brokers, one, 1) for one in brokers.members if one != broker_id]
    for one in cutting:
        one.cutting = lambda: None
    brokers.kill(broker_id)
    brokers._hung.pop(BrokerId(broker_id), None)
    brokers._unread.pop(BrokerId(broker_id), None)
    brokers.run(limits.SESSION_MS + 2_000)
    assert all(one.leadership is None for one in cutting)
    for one, member in zip(cutting, brokers.members.values(), strict=True):
        one.cutting = None
        member.node._replicas.roles.update(one)
        member.turn()
    brokers.run(500)
    assert any(one.leadership is not None for one in cutting)


def not_the_metadata_leader(brokers: Brokers, number: int) -> int:
    """Who leads the partition, once somebody else leads the metadata."""
    leader = brokers.leader.image.by_name("orders").partitions[number].leader
    assert leader is not None
    if leader == brokers.leader.broker_id:
        brokers.leader.node.hand_over(brokers.clock.now, lambda: None)
        brokers.settle()
        brokers.run(500)
    return int(leader)


def test_who_comes_to_lead_once_its_log_is_cut_knows_of_growth_too() -> None:
    brokers = with_brokers()
    told(brokers, b"old", NAMES)
    donor = not_the_metadata_leader(brokers, 1)
    brokers.hang(donor)
    brokers.leader.request(AlterStreamRequest(name="orders", changes={"partitions": 4}))
    brokers.run(200)
    without(brokers, donor)
    brokers.run(2_000)
    assert 1 in brokers.leader.image.by_name("orders").marked(4)
    assert where(told(brokers, b"new", NAMES)) == place(AFTER, NAMES)


def test_a_subject_for_each_partition_and_a_leader_whose_log_was_cut() -> None:
    brokers = formed()
    caller = brokers.leader.create("orders", "orders", partitions=2, replicas=3)
    brokers.settle()
    brokers.leader.answer(caller, CreateStreamResponse)
    brokers.leader.request(AlterStreamRequest(name="orders", changes={"partitions": 4}))
    brokers.run(500)
    without(brokers, not_the_metadata_leader(brokers, 1))
    leader = brokers.leader.image.by_name("orders").partitions[1].leader
    assert leader is not None
    name = next(one for one in MOVED if BEFORE.partition_of(one.encode()) == 1)
    brokers[leader].publish("orders.1", b"v", reply="r", headers=block(f"Penstock-Key: {name}"))
    brokers.settle()
    assert brokers[leader].acks[-1].body["reason"] == ErrorCode.KEY_ELSEWHERE


def test_nothing_is_refused_for_a_partition_to_which_it_may_have_come_before() -> None:
    """The marks are there, and what NATS has sent before them is not read yet: an older leader may have stored it."""
    broker = with_orders()
    broker.nats.confirms = False
    broker.request(AlterStreamRequest(name="orders", changes={"partitions": 4}))
    assert not broker.stream("orders").is_moving
    assert publish(broker, MOVED[0]) == []
    broker.nats.confirms = True
    broker.turn()
    (refused,) = publish(broker, MOVED[0])
    assert refused.body["reason"] == ErrorCode.KEY_MOVING


def test_nothing_is_left_of_a_stream_that_is_deleted_while_its_keys_move() -> None:
    broker = with_orders()
    broker.syncs_hang = True
    publish(broker, *NAMES)
    grow(broker)
    assert broker.stream("orders").is_moving
    broker.syncs_hang = False
    broker.delete("orders")
    broker.settle()
    moving = broker.node._replicas.key_migrator
    assert (moving._owing, moving._opening, moving._last) == ({}, {}, None)
    assert moving.next_deadline_us is None


def test_two_growths_at_once_come_to_their_ends_one_after_the_other() -> None:
    broker = with_orders()
    broker.nats.confirms = False
    broker.request(AlterStreamRequest(name="orders", changes={"partitions": 4}))
    broker.request(AlterStreamRequest(name="orders", changes={"partitions": 7}))
    assert broker.stream("orders").is_moving  # what was added first has not taken its keys, so it gives none up
    broker.nats.confirms = True
    broker.turn()
    for _ in range(4):
        broker.tick(limits.KEYS_SETTLE_MS)
    assert not broker.stream("orders").is_moving
    assert where(publish(broker, *NAMES)) == place(KeyMap((2, 4, 7)), NAMES)


def test_numbers_that_a_client_gave_its_rows_do_not_matter_where_keys_are_looked_at_either() -> None:
    broker = with_orders()
    name = NAMES[0]
    request = AppendRequest(stream_id=broker.stream_id("orders"), partition=BEFORE.partition_of(name.encode()))  # type: ignore[arg-type]
    for number in (1, 3):  # offsets, and timestamps
        batch = with_buffer(batch_of([(f"orders.{name}", None, b"v", None)] * 2), number, 0, b"\x09")
        answer = broker.ask(request, AppendResponse, batch)
        assert answer.end_offset == answer.base_offset + 2
