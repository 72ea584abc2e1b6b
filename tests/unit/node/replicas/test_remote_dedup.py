"""A message that is sent again once its key has moved: known by its id, whoever leads what, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, TimestampUs
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    CreateStreamResponse,
    KnownId,
    MessageIdsRequest,
    MessageIdsResponse,
    Response,
    StatusRequest,
    StatusResponse,
    StopBrokerResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.node.replicas.remote_dedup import ReadIdPage
from penstock.node.step import PeerRequest
from tests.extent import each_change
from tests.groups import Columns, encoded
from tests.unit.node.harness import Ack, Broker
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.partition.test_dedup import block, named
from tests.unit.node.replicas.test_key_migration import (
    AFTER,
    BEFORE,
    MOVED,
    grow,
    place,
    where,
    with_brokers,
    with_orders,
)

WINDOW_MS = 120_000


def send(broker: Broker, *names: str, suffix: str = "") -> list[Ack]:
    """A message of each key, with the id `id-<key>`."""
    before = len(broker.acks)
    for name in names:
        headers = named(f"id-{name}{suffix}")
        broker.publish(f"orders.{name}", name.encode(), reply=f"r-{name}", headers=headers)
    return broker.acks[before:]


def grown(**config: Any) -> Broker:
    """A broker that has stored a message of each of `MOVED` before they moved."""
    broker = with_orders(**config)
    assert where(send(broker, *MOVED)) == place(BEFORE, MOVED)
    grow(broker)
    broker.tick(limits.KEYS_SETTLE_MS)
    return broker


def stored(broker: Broker, partitions: int = 4) -> list[bytes]:
    return [value or b"" for number in range(partitions) for value in broker.values("orders", number)]


def are_known(acks: list[Ack], names: list[str]) -> None:
    """They are acked as duplicates of what is stored where the key was before."""
    assert [ack.reply for ack in acks] == [f"r-{name}" for name in names]
    at: dict[int, list[str]] = {}
    for name in MOVED:
        at.setdefault(BEFORE.partition_of(name.encode()), []).append(name)
    for ack, name in zip(acks, names, strict=True):
        partition = BEFORE.partition_of(name.encode())
        seq = at[partition].index(name) + 1
        assert ack.body == {"stream": "orders", "seq": seq, "duplicate": True, "partition": partition}


def test_what_an_older_partition_has_is_acked_with_its_place_there() -> None:
    broker = grown()
    are_known(send(broker, *MOVED), MOVED)
    assert sorted(stored(broker)) == sorted(name.encode() for name in MOVED)
    info = broker.stream("orders").partitions[AFTER.partition_of(MOVED[0].encode())]
    assert (info.dropped, info.dedup_ids) == ({}, len(MOVED))
    counters = broker.ask(StatusRequest(), StatusResponse).counters
    assert (counters["duplicates"], counters.get("dropped", 0)) == (len(MOVED), 0)
    assert where(send(broker, *MOVED, suffix="-2")) == place(AFTER, MOVED)
    again = send(broker, *MOVED, suffix="-2")  # its own by now
    assert where(again) == place(AFTER, MOVED)
    assert all(ack.body["duplicate"] for ack in again)


def test_with_the_window_they_go_and_a_message_counts_anew() -> None:
    broker = grown()
    broker.clock.advance_ms(WINDOW_MS - 2 * limits.KEYS_SETTLE_MS)
    are_known(send(broker, MOVED[0]), MOVED[:1])
    broker.clock.advance_ms(2 * limits.KEYS_SETTLE_MS)
    assert where(send(broker, MOVED[0])) == place(AFTER, MOVED[:1])
    (again,) = send(broker, MOVED[0])
    assert (again.body["partition"], again.body["duplicate"]) == (AFTER.partition_of(MOVED[0].encode()), True)


def purge(broker: Broker, partition: int) -> None:
    """All of a partition."""
    end = broker.stream("orders").partitions[partition].committed_end
    assert end
    stream_id = broker.stream_id("orders")
    request = TruncateRequest(stream_id=stream_id, partition=PartitionId(partition), before=Offset(end))
    broker.ask(request, TruncateResponse)


def test_a_purge_of_an_older_partition_forgets_its_ids_in_those_that_were_added() -> None:
    broker = grown()
    are_known(send(broker, *MOVED), MOVED)
    purge(broker, 0)
    of_0 = [name for name in MOVED if BEFORE.partition_of(name.encode()) == 0]
    others = [name for name in MOVED if name not in of_0]
    are_known(send(broker, *others), others)
    acks = send(broker, *of_0)
    assert where(acks) == place(AFTER, of_0)
    assert not any(ack.body.get("duplicate") for ack in acks)
    assert all(ack.body["duplicate"] and ack.body["partition"] > 1 for ack in send(broker, *of_0))
    again = broker.crash().start()
    again.tick(limits.KEYS_SETTLE_MS)
    are_known(send(again, *others), others)
    assert all(ack.body["duplicate"] and ack.body["partition"] > 1 for ack in send(again, *of_0))


def test_a_purge_while_ids_are_asked_for_forgets_them_too() -> None:
    broker = grown()
    broker.disk_runs_at_once = False
    name = MOVED[0]
    donor, before = BEFORE.partition_of(name.encode()), len(broker.acks)
    broker.publish(f"orders.{name}", name.encode(), reply="r", headers=named(f"id-{name}"))
    end = broker.stream("orders").partitions[donor].committed_end
    assert end
    request = TruncateRequest(stream_id=broker.stream_id("orders"), partition=PartitionId(donor), before=Offset(end))
    owners = [getattr(work.run, "__self__", None) for work in broker.disk]
    read = [number for number, owner in enumerate(owners) if isinstance(owner, ReadIdPage)]
    assert read
    pages = [broker.execute(number) for number in reversed(read)]  # before the purge, and told after it
    caller = broker.request(request)
    while caller in broker.open_requests:
        broker.run_disk(0)
    for page in pages:
        broker.complete(page)
    broker.disk_runs_at_once = True
    broker.settle()
    (ack,) = broker.acks[before:]
    assert (ack.body["partition"], ack.body.get("duplicate", False)) == (AFTER.partition_of(name.encode()), False)


def asked(broker: Broker) -> int:
    return sum(
        isinstance(getattr(work.run, "__self__", None), ReadIdPage) for step in broker.steps for work in step.disk
    )


def test_nobody_is_asked_once_the_window_is_over() -> None:
    broker = grown()
    broker.clock.advance_ms(WINDOW_MS + 1)
    assert where(send(broker, *MOVED)) == place(AFTER, MOVED)
    assert asked(broker) == 0
    after = broker.crash().start()
    send(after, *MOVED)
    assert asked(after) == 0


def test_a_broker_that_is_started_again_asks_again() -> None:
    broker = grown()
    send(broker, *MOVED)
    assert asked(broker) == 2 * len({AFTER.partition_of(name.encode()) for name in MOVED})
    again = broker.crash().start()
    again.tick(limits.KEYS_SETTLE_MS)
    are_known(send(again, *MOVED), MOVED)


def test_a_stream_that_grows_twice_finds_what_was_stored_before_both() -> None:
    broker = grown()
    grow(broker, partitions=9)
    broker.tick(limits.ISR_RETRY_MS)
    broker.tick(limits.KEYS_SETTLE_MS)
    are_known(send(broker, *MOVED), MOVED)
    assert len(stored(broker, 9)) == len(MOVED)


def test_messages_wait_in_their_order_while_ids_are_asked_for() -> None:
    broker = grown()
    broker.disk_runs_at_once = False
    new, old = block("Nats-Msg-Id: new"), named(f"id-{MOVED[0]}")
    subject = f"orders.{MOVED[0]}".encode()
    for number, headers in enumerate((new, old, None, new)):
        broker.deliver([(subject, b"r%d" % number, headers, b"%d" % number)])
    before = len(broker.acks)
    broker.disk_runs_at_once = True
    broker.turn()
    told = {ack.reply: (ack.body["seq"], ack.body.get("duplicate", False)) for ack in broker.acks[before:]}
    assert told == {"r0": (1, False), "r1": (1, True), "r2": (2, False), "r3": (1, True)}
    assert broker.values("orders", AFTER.partition_of(MOVED[0].encode())) == [b"0", b"2"]


def test_ids_come_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MESSAGE_IDS_PER_ANSWER_MAX", 3)
    rows = [f"orders.{MOVED[0]}".encode()] * 10  # of one batch
    broker = with_orders()
    partition = BEFORE.partition_of(MOVED[0].encode())
    batch = encoded(Columns(rows, None, [b"v"] * 10, [named(f"row-{number}") for number in range(10)]))
    request = AppendRequest(stream_id=broker.stream_id("orders"), partition=PartitionId(partition))
    broker.request(request, batch)
    grow(broker)
    broker.tick(limits.KEYS_SETTLE_MS)
    for number in range(10):
        broker.publish(rows[0].decode(), b"v", reply="r", headers=named(f"row-{number}"))
        assert (broker.acks[-1].body["seq"], broker.acks[-1].body["duplicate"]) == (number + 1, True)
    assert asked(broker) == 4


@pytest.mark.parametrize(("limit", "value"), [("MESSAGE_IDS_READ_BYTES_MAX", 1), ("MESSAGE_IDS_READ_BATCHES_MAX", 1)])
def test_one_answer_looks_at_no_more_than_so_much(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(limits, limit, value)
    broker = with_orders()
    name = MOVED[0]
    partition = BEFORE.partition_of(name.encode())
    for number in range(6):
        headers = named(f"id-{number}") if number % 2 else None
        broker.publish(f"orders.{name}", b"v", reply="r", headers=headers)
    pages, end = [], Offset(limits.OFFSET_MAX)
    while True:
        page = broker.ask(request_for(broker, partition, end_offset=end), MessageIdsResponse)
        pages.append([int(one.offset) for one in page.ids])
        if page.end_offset is None:
            break
        end = page.end_offset
    assert [offset for page in pages for offset in page] == [5, 3, 1]
    assert len(pages) == (4 if limit.endswith("BYTES_MAX") else 6)


def request_for(broker: Broker, partition: int, **fields: Any) -> MessageIdsRequest:
    wanted = {"leader_epoch": LeaderEpoch(1), "since_us": TimestampUs(0), "end_offset": Offset(100), **fields}
    return MessageIdsRequest(stream_id=broker.stream_id("orders"), partition=PartitionId(partition), **wanted)


def test_a_leader_tells_what_is_committed_below_the_offset_and_no_older() -> None:
    broker = with_orders()
    name = MOVED[0]
    partition = BEFORE.partition_of(name.encode())
    send(broker, name, suffix="-0")
    broker.clock.advance_ms(10)
    since_us = TimestampUs(broker.clock.wall_us)
    send(broker, name, suffix="-1")
    send(broker, name, suffix="-2")
    broker.syncs_hang = True
    send(broker, name, suffix="-3")

    def offsets(**fields: Any) -> list[int]:
        page = broker.ask(request_for(broker, partition, **fields), MessageIdsResponse)
        assert page.end_offset is None
        return [int(one.offset) for one in page.ids]

    assert offsets() == [2, 1, 0]
    assert offsets(since_us=since_us) == [2, 1]
    assert offsets(since_us=since_us, end_offset=Offset(2)) == [1]
    assert offsets(end_offset=Offset(0)) == []
    assert offsets(since_us=TimestampUs(2**63 - 1)) == []
    (one,) = broker.ask(request_for(broker, partition, end_offset=Offset(1)), MessageIdsResponse).ids
    assert one.key == f"id-{name}-0".encode()
    broker.settle()


def test_what_cannot_be_answered_is_refused() -> None:
    broker = with_orders()
    assert broker.refusal(request_for(broker, 9)).code == ErrorCode.BAD_REQUEST
    assert broker.refusal(request_for(broker, 0, leader_epoch=LeaderEpoch(2))).code == ErrorCode.UNKNOWN_EPOCH


def test_few_pages_are_read_at_once_and_few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MESSAGE_IDS_WAITING_MAX", 3)
    broker = with_orders()
    send(broker, MOVED[0])
    broker.disk_runs_at_once = False
    callers = [broker.request(request_for(broker, 0)) for _ in range(limits.MESSAGE_IDS_RUNNING_MAX + 3)]
    assert len(broker.disk) == limits.MESSAGE_IDS_RUNNING_MAX
    assert broker.refusal(request_for(broker, 0)).code == ErrorCode.OVERLOADED
    broker.node.callers_disconnected(callers[1:3])  # one that runs, and one that waits
    broker.open_requests -= set(callers[1:3])
    broker.settle()
    for caller in (callers[0], *callers[3:]):
        broker.answer(caller, MessageIdsResponse)
    broker.disk_runs_at_once = False
    callers = [broker.request(request_for(broker, 0)) for _ in range(4)]
    broker.node.give_up_queries()
    broker.settle()
    codes = [response.code for one in callers if isinstance(response := broker.replies[one].response, RemoteError)]
    assert codes == [ErrorCode.STOPPING] * 4


def test_with_a_subject_for_each_partition_messages_without_a_key_are_known_as_well() -> None:
    broker = Broker().start()
    broker.answer(broker.create("orders", "orders", partitions=1), CreateStreamResponse)

    def heard(subject: str, name: str) -> tuple[int, int, bool]:
        broker.publish(subject, b"v", reply="r", headers=named(name))
        body = broker.acks[-1].body
        return body["partition"], body["seq"], body.get("duplicate", False)

    assert heard("orders", "x") == (0, 1, False)
    broker.ask(AlterStreamRequest(name="orders", changes={"partitions": 2}), AlterStreamResponse)
    broker.tick()
    assert heard("orders", "y") == (0, 2, False)  # who has not heard of it yet; behind the mark
    assert heard("orders.1", "x") == (0, 1, True)
    assert heard("orders.1", "y") == (0, 2, True)
    assert heard("orders.1", "z") == (1, 1, False)


def test_a_mark_that_comes_later_has_them_asked_for_again() -> None:
    """What has no key is stored while the keys are still on their way."""
    broker = Broker().start()
    broker.answer(broker.create("orders", "orders", partitions=1), CreateStreamResponse)
    broker.publish("orders", b"v", reply="r", headers=named("x"))
    broker.syncs_hang = True
    broker.publish("orders", b"v", reply="late", headers=named("late"))
    broker.ask(AlterStreamRequest(name="orders", changes={"partitions": 2}), AlterStreamResponse)
    broker.publish("orders.1", b"v", reply="r1", headers=named("x"))
    assert broker.acks[-1].body == {"stream": "orders", "seq": 1, "duplicate": True, "partition": 0}
    broker.syncs_hang = False
    broker.turn()
    assert not broker.stream("orders").is_moving
    broker.publish("orders.1", b"v", reply="r2", headers=named("late"))
    assert broker.acks[-1].body == {"stream": "orders", "seq": 2, "duplicate": True, "partition": 0}


# Several brokers


def told(brokers: Brokers, *names: str) -> list[Ack]:
    """What publishers hear of a message of each key, with the id `id-<key>`."""
    for one in brokers.members.values():
        one.acks.clear()
    for name in names:
        for member in list(brokers.members.values()):
            if member.broker_id not in brokers._hung:
                headers = named(f"id-{name}")
                member.publish(f"orders.{name}", name.encode(), reply=f"r-{name}", headers=headers)
        brokers.settle()
    brokers.run(500)
    return [ack for name in names for one in brokers.members.values() for ack in one.acks if ack.reply == f"r-{name}"]


def leader_of(brokers: Brokers, partition: int) -> Member:
    leader = brokers.leader.image.by_name("orders").partitions[partition].leader
    assert leader is not None
    return brokers.members[leader]


def with_grown() -> Brokers:
    brokers = with_brokers()
    assert where(told(brokers, *MOVED)) == place(BEFORE, MOVED)
    caller = brokers.leader.request(AlterStreamRequest(name="orders", changes={"partitions": 4}))
    brokers.run(500)
    brokers.leader.answer(caller, AlterStreamResponse)
    return brokers


def test_who_leads_a_new_partition_asks_who_leads_the_older_ones() -> None:
    brokers = with_grown()
    assert len({leader_of(brokers, number).broker_id for number in range(4)}) == 3
    are_known(told(brokers, *MOVED), MOVED)
    assert sum(asked(member) for member in brokers.members.values()) == 2 * len(set(place(AFTER, MOVED).values()))


@pytest.mark.parametrize("of_an_older_one", [False, True])
def test_the_next_leader_knows_as_much(of_an_older_one: bool) -> None:
    brokers = with_grown()
    are_known(told(brokers, *MOVED), MOVED)
    key_map = BEFORE if of_an_older_one else AFTER
    gone = leader_of(brokers, key_map.partition_of(MOVED[0].encode())).broker_id
    brokers.kill(gone)
    brokers.run(limits.SESSION_MS + 2_000)
    are_known(told(brokers, *MOVED), MOVED)


def test_where_an_older_partition_has_no_leader_messages_with_ids_are_refused() -> None:
    brokers = formed()
    caller = brokers.leader.create("orders", "orders.*", partitions=2, partition_by="token:2", replicas=1)
    brokers.settle()
    brokers.leader.answer(caller, CreateStreamResponse)
    told(brokers, *MOVED)
    brokers.leader.request(AlterStreamRequest(name="orders", changes={"partitions": 4}))
    brokers.run(500)
    donors = {leader_of(brokers, number).broker_id for number in (0, 1)}
    (name, *_) = [
        name for name in MOVED if leader_of(brokers, AFTER.partition_of(name.encode())).broker_id not in donors
    ]
    donor = next(iter(donors))
    disk = brokers.kill(donor)
    brokers.run(limits.SESSION_MS + 2_000)
    (refused,) = told(brokers, name)
    assert refused.err_code == 10077
    assert "from where keys have moved: it has no leader now" in refused.body["error"]["description"]
    plain = leader_of(brokers, AFTER.partition_of(name.encode()))
    plain.publish(f"orders.{name}", b"v", reply="plain")  # without an id
    brokers.run(500)
    assert plain.acks[-1].body["partition"] == AFTER.partition_of(name.encode())
    brokers.start(donor, disk)
    brokers.run(3_000)
    are_known(told(brokers, name), [name])


def test_a_leader_that_does_not_answer_is_not_waited_for_long() -> None:
    brokers = with_grown()
    donor = leader_of(brokers, 0)
    name = next(name for name in MOVED if leader_of(brokers, AFTER.partition_of(name.encode())) is not donor)
    taker = leader_of(brokers, AFTER.partition_of(name.encode()))
    brokers.hang(donor.broker_id)
    taker.acks.clear()
    taker.publish(f"orders.{name}", b"v", reply="r", headers=named(f"id-{name}"))
    brokers.settle()
    assert taker.acks == []
    brokers.run(limits.MESSAGE_IDS_WAIT_MS - 100)
    assert taker.acks == []
    brokers.run(150)
    (refused,) = taker.acks
    assert refused.err_code == 10077
    assert "has not answered for 2 s" in refused.body["error"]["description"]
    brokers.wake(donor.broker_id)
    brokers.run(5_000)
    are_known(told(brokers, name), [name])


def page(*offsets: int, end: int | None = None) -> MessageIdsResponse:
    ids = tuple(KnownId(Offset(offset), TimestampUs(1), b"x") for offset in offsets)
    return MessageIdsResponse(ids=ids, end_offset=None if end is None else Offset(end))


@each_change
@pytest.mark.parametrize(
    "answer",
    [page(10), page(4, 5), page(5, end=6), page(end=10), page(end=11), StopBrokerResponse()],
    ids=["behind the end", "out of order", "asks again for the same", "at a stand", "backwards", "another answer"],
)
def test_an_answer_that_makes_no_sense_ends_in_a_refusal(answer: Response) -> None:
    brokers = with_grown()
    donor = leader_of(brokers, 0)
    name = next(name for name in MOVED if leader_of(brokers, AFTER.partition_of(name.encode())) is not donor)
    taker = leader_of(brokers, AFTER.partition_of(name.encode()))
    end = brokers.leader.image.by_name("orders").marked(4)[0].end_offset
    brokers.hang(donor.broker_id)
    taker.acks.clear()
    taker.publish(f"orders.{name}", b"v", reply="r", headers=named(f"id-{name}"))
    brokers.settle()
    (asked_for,) = [one for _, one in brokers._hung[donor.broker_id] if _is_for_ids(one)]
    assert asked_for.request.end_offset == end
    shift = end - 10  # the answers above are of an end of 10
    if isinstance(answer, MessageIdsResponse):
        ids = tuple(KnownId(Offset(one.offset + shift), one.timestamp_us, one.key) for one in answer.ids)
        later = None if answer.end_offset is None else Offset(answer.end_offset + shift)
        answer = MessageIdsResponse(ids=ids, end_offset=later)
    taker.node.answered(donor.broker_id, asked_for.token, answer, b"", brokers.clock.now)
    taker.turn()
    brokers.wake(donor.broker_id)
    brokers.run(50)
    (refused,) = taker.acks
    assert "answer is invalid" in refused.body["error"]["description"]


def _is_for_ids(carried: Any) -> bool:
    return isinstance(carried, PeerRequest) and isinstance(carried.request, MessageIdsRequest)


def test_many_ids_are_asked_for_in_as_many_pages_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MESSAGE_IDS_PER_ANSWER_MAX", 2)
    brokers = with_grown()
    are_known(told(brokers, *MOVED), MOVED)
    takers = len(set(place(AFTER, MOVED).values()))
    assert sum(asked(member) for member in brokers.members.values()) > 2 * takers
