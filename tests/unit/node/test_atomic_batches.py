"""Atomic batches at the leader of their stream: stored as a whole or not at all, whatever comes between."""

from __future__ import annotations

import errno
import tracemalloc

import pytest

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.base.ids import PartitionId, PartitionKey
from penstock.ingest.atomic_batches import AtomicBatches, OpenBatches, Taken, message_at
from penstock.messages import AlterStreamRequest, AlterStreamResponse, CreateStreamResponse
from penstock.node.partition.partition import Partition
from penstock.vfs.faulty import FileFault, FileOperationKind, no_faults, nth
from penstock.vfs.memory import Keep
from tests.groups import Message, group_of
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers, Member, formed

INCOMPLETE, TOO_LARGE, TOO_MANY = 10176, 10199, 10210
ADVISORY = "$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.s"


def of_batch(batch_id: str, sequence: int, commit: str = "", *, more: str = "", value: bytes = b"v") -> Message:
    """One message of a batch on s.a, with the reply subject ID.SEQUENCE."""
    lines = f"Nats-Batch-Id: {batch_id}\r\nNats-Batch-Sequence: {sequence}\r\n"
    lines += f"Nats-Batch-Commit: {commit}\r\n" if commit else ""
    return b"s.a", f"{batch_id}.{sequence}".encode(), f"NATS/1.0\r\n{lines}{more}\r\n".encode(), value


def whole(batch_id: str, count: int) -> list[Message]:
    names = [b"%b.%d" % (batch_id.encode(), number) for number in range(1, count + 1)]
    return [
        of_batch(batch_id, number, "1" if number == count else "", value=name) for number, name in enumerate(names, 1)
    ]


def values_of(batch_id: str, count: int) -> list[bytes]:
    return [b"%b.%d" % (batch_id.encode(), number) for number in range(1, count + 1)]


def taking(**config: object) -> Broker:
    broker = Broker().start()
    broker.answer(broker.create("s", allow_atomic=True, **config), CreateStreamResponse)
    return broker


def told(broker: Broker) -> list[tuple[str, object]]:
    """What was published: error code, sequence, reason of an advisory, or empty; and forget it."""
    found = [(one.reply, one.err_code or one.body.get("seq") or one.body.get("reason") or "") for one in broker.acks]
    broker.acks.clear()
    return found


def test_a_batch_is_one_batch_of_the_log() -> None:
    broker = taking()
    plain = (b"s.b", b"plain", None, b"p")
    broker.deliver([plain, *whole("x", 3)[:2], plain, *whole("x", 3)[2:], plain])
    expected = [("plain", 1), ("plain", 2), ("plain", 6), ("x.1", ""), ("x.2", ""), ("x.3", 5)]
    assert sorted(told(broker), key=str) == expected
    assert broker.values("s") == [b"p", b"p", *values_of("x", 3), b"p"]
    sizes = [header.count for header, _ in partition_of(broker).view().batches(0, 6)]
    assert sizes == [1, 1, 3, 1]


def partition_of(broker: Broker) -> Partition:
    return broker.node._partitions[PartitionKey(broker.stream_id("s"), PartitionId(0))]


def test_a_limit_by_subject_is_decided_for_a_batch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers are shown what is decided; after so many rows a decision ended within a batch."""
    monkeypatch.setattr(limits, "DECIDED_ROWS_AT_ONCE", 6)
    monkeypatch.setattr(limits, "DECIDED_ON_LOOP_MAX", 0)
    broker = taking(max_messages_per_subject=1)
    partition, seen = partition_of(broker), set()
    broker.vfs.watcher = lambda _: seen.add(partition.visible_end)
    for name in ("a", "b"):
        broker.deliver([(b"s.b", None, None, b"p"), *whole(name, 4), *whole(f"{name}{name}", 4)])
    broker.tick(1_000)
    broker.vfs.watcher = None
    assert seen <= {0, 1, 5, 9, 10, 14, 18}
    assert len(seen) > 3
    assert broker.values("s") == [b"p", b"bb.4"]


def test_what_is_not_committed_is_nowhere() -> None:
    broker = taking()
    broker.deliver(whole("x", 5)[:4])
    assert told(broker) == [(f"x.{number}", "") for number in range(1, 5)]
    assert broker.values("s") == []
    again = broker.crash().start()
    again.deliver(whole("x", 5)[4:])
    assert told(again) == [("x.5", INCOMPLETE)]
    assert again.values("s") == []


def test_ten_seconds_without_a_message_abandon_a_batch() -> None:
    broker = taking()
    broker.deliver([of_batch("x", 1), of_batch("y", 1)])
    told(broker)
    broker.tick(limits.ATOMIC_BATCH_IDLE_MS - 1)
    broker.deliver([of_batch("y", 2)])
    assert told(broker) == [("y.2", "")]
    broker.tick(1)
    assert told(broker) == [(ADVISORY, "timeout")]
    broker.deliver([of_batch("x", 2, "1"), of_batch("y", 3, "1")])
    assert told(broker) == [("x.2", INCOMPLETE), ("y.3", 3)]
    broker.tick(limits.ATOMIC_BATCH_IDLE_MS)
    assert told(broker) == []


def test_the_node_wakes_for_the_first_of_them() -> None:
    broker = taking()
    broker.deliver([of_batch("x", 1)])
    due_us = broker.clock.elapsed_us + limits.ATOMIC_BATCH_IDLE_MS * 1_000
    while broker.node.next_wake_us < due_us:
        broker.clock.advance_ms((broker.node.next_wake_us - broker.clock.elapsed_us) / 1_000 or 1)
        broker.tick_node()
        assert (ADVISORY, "timeout") not in told(broker) or broker.clock.elapsed_us >= due_us
    assert broker.node.next_wake_us <= due_us + 1_000_000


def begin(broker: Broker, stream: str, count: int, value: bytes = b"v") -> int:
    """Begin batches in a stream on the subject of its name; return how many are kept."""
    told(broker)
    for batch in range(count):
        broker.deliver([(stream.encode(), *of_batch(f"{stream}-{batch}", 1, value=value)[1:])])
    return sum(answer == "" for _, answer in told(broker))


def also(broker: Broker, *names: str) -> None:
    for name in names:
        broker.answer(broker.create(name, subject=name, allow_atomic=True), CreateStreamResponse)


def test_a_broker_keeps_so_many_batches_of_all_its_streams() -> None:
    broker = taking()
    names = [f"t{number}" for number in range(24)]
    also(broker, *names)
    kept = [begin(broker, name, limits.ATOMIC_BATCHES_OF_STREAM_MAX + 1) for name in names]
    assert kept[:19] == [limits.ATOMIC_BATCHES_OF_STREAM_MAX] * 19
    assert kept[19:] == [25, 13, 6, 3, 2]  # no stream has more than what stays free
    assert sum(kept) == limits.ATOMIC_BATCHES_MAX - 1
    broker.deliver([of_batch("x", 1), of_batch("y", 1)])
    assert told(broker) == [("x.1", ""), ("y.1", TOO_MANY)]
    broker.delete("t0")  # with its batches
    assert begin(broker, "s.a", 10) == 10


def test_no_stream_takes_the_memory_of_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams of one user refused all others' batches until theirs were committed."""
    monkeypatch.setattr(limits, "ATOMIC_BATCHES_BYTES_MAX", 100_000)
    broker = taking()
    also(broker, "t", "u", "v")
    kept = [begin(broker, name, 50, b"v" * 2_000) for name in ("t", "u", "v")]
    assert kept == [22, 11, 5]  # of 2.2 kB, each stream half of what is free
    broker.deliver([of_batch("x", 1, value=b"v" * 2_000), of_batch("x", 2, "1", value=b"v" * 2_000)])
    assert told(broker) == [("x.1", ""), ("x.2", 2)]


def test_the_memory_of_a_batch_is_counted() -> None:
    """20 batches of 999 small messages took three times the memory that was counted."""
    count, messages = 10, limits.ATOMIC_BATCH_MESSAGES_MAX - 1
    counted = OpenBatches()
    batches = AtomicBatches(counted, "s")
    rules = partition_of(taking()).rules
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for batch in range(count):
        for number in range(1, messages + 1):
            group = group_of([of_batch(f"b{batch}", number, value=b"%d" % number)])
            assert batches.take(message_at(group, 0), rules, 0) == Taken()
    del group
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.85 * counted.size_bytes < after - before < counted.size_bytes
    batches.drop_all()
    assert (counted.count, counted.size_bytes) == (0, 0)


def test_a_batch_has_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ATOMIC_BATCH_BYTES_MAX", 10_000)
    broker = taking()
    broker.deliver([of_batch("x", 1, value=b"v" * 5_000), of_batch("x", 2, value=b"v" * 5_000)])
    assert told(broker) == [("x.1", ""), (ADVISORY, "large"), ("x.2", TOO_LARGE)]
    monkeypatch.setattr(limits, "ATOMIC_BATCHES_BYTES_MAX", 12_000)
    broker.deliver([of_batch("x", 1, value=b"v" * 5_000), of_batch("y", 1, value=b"v" * 5_000)])
    assert told(broker) == [("x.1", ""), (ADVISORY, "incomplete"), ("y.1", TOO_MANY)]
    broker.deliver([of_batch("x", 2, "1")])
    assert told(broker) == [("x.2", 2)]


@pytest.mark.parametrize(("spare", "code"), [(0, 0), (1, 10097)])
def test_an_end_needs_room_for_its_header_in_the_last_message(spare: int, code: int) -> None:
    """No message before the end is refused for it: another one may follow, or a commit of its own."""
    broker = taking()
    block = of_batch("x", 2)[2] or b""
    mark = len(b"Nats-Batch-Commit: 1\r\n")
    more = f"More: {'m' * (limits.HEADER_BLOCK_BYTES_MAX - mark - len(block) - len('More: ..') + spare)}\r\n"
    broker.deliver([of_batch("x", 1), of_batch("x", 2, more=more), of_batch("x", 3, "eob")])
    assert told(broker) == [("x.1", ""), ("x.2", ""), ("x.3", code or 2)]
    assert len(broker.values("s")) == (0 if code else 2)
    broker.deliver([of_batch("x", 1), of_batch("x", 2, more=more), of_batch("x", 3), of_batch("x", 4, "eob")])
    assert told(broker)[-1] == ("x.4", 3 if code else 5)


def test_a_stream_that_allows_none_any_more_forgets_them() -> None:
    broker = taking()
    broker.deliver([of_batch("x", 1)])
    for allowed in (False, True):
        broker.answer(
            broker.request(AlterStreamRequest(name="s", changes={"allow_atomic": allowed})), AlterStreamResponse
        )
    told(broker)
    broker.deliver([of_batch("x", 2, "1")])
    assert told(broker) == [("x.2", INCOMPLETE)]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"partitions": 2, "partition_by": "key"}, "the stream has 2 partitions"),
        ({"group": "g"}, "a random stream of the group"),
    ],
)
def test_a_stream_that_is_no_single_log_cannot_allow_them(config: dict[str, object], why: str) -> None:
    broker = Broker().start()
    refusal = broker.replies[broker.create("s", subject="s.*", allow_atomic=True, **config)].response
    assert isinstance(refusal, RemoteError)
    assert why in refusal.message
    assert "allow_atomic" in refusal.message


def test_ids_are_read_from_the_log_before_a_batch_is_stored() -> None:
    broker = taking()
    broker.publish("s.a", b"1", headers=b"NATS/1.0\r\nNats-Msg-Id: m\r\n\r\n", reply="r")
    again = broker.crash(Keep.ALL).start()
    again.deliver([of_batch("x", 1, more="Nats-Msg-Id: n\r\n"), of_batch("x", 2, "1", more="Nats-Msg-Id: m\r\n")])
    assert told(again) == [("x.1", ""), ("x.2", 10201)]
    again.deliver([of_batch("y", 1, more="Nats-Msg-Id: n\r\n"), of_batch("y", 2, "1", more="Nats-Msg-Id: o\r\n")])
    assert told(again) == [("y.1", ""), ("y.2", 3)]
    assert again.values("s") == [b"1", b"v", b"v"]


@pytest.mark.parametrize("written_bytes", [0, 300])
def test_a_disk_that_refuses_the_batch_has_none_of_it(written_bytes: int) -> None:
    broker = taking()
    broker.deliver(whole("x", 3)[:2])
    broker.vfs.plan = nth(0, FileFault(errno.EIO, written_bytes), FileOperationKind.WRITE, path_end=".arrows")
    broker.deliver(whole("x", 3)[2:])
    broker.vfs.plan = no_faults
    assert told(broker)[-1] == ("x.3", 10077)
    broker.deliver(whole("y", 2))
    broker.tick(1_000)
    assert broker.values("s") == values_of("y", 2)


def test_a_failover_loses_an_uncommitted_batch_as_a_whole() -> None:
    brokers, leader = replicated()
    leader.deliver(whole("x", 3)[:2])
    assert [one.reply for one in leader.acks] == ["x.1", "x.2"]
    brokers.kill(int(leader.broker_id))
    brokers.run(30_000)
    after = brokers.led("s")
    assert after is not leader
    after.deliver(whole("x", 3)[2:])
    brokers.run(1_000)
    assert told(after) == [("x.3", INCOMPLETE)]
    after.deliver(whole("y", 2))
    brokers.run(1_000)
    assert told(after)[-1] == ("y.2", 2)
    assert after.values("s") == values_of("y", 2)


def test_a_refusal_waits_until_the_leadership_is_confirmed() -> None:
    """A deposed leader does not know the batch that its successor keeps."""
    brokers, leader = replicated()
    others = [int(one) for one in brokers.ids if one != leader.broker_id]
    brokers.cut(int(leader.broker_id), others[0])
    brokers.cut(int(leader.broker_id), others[1])
    leader.deliver(whole("x", 3)[2:])
    brokers.run(limits.REFUSALS_CONFIRM_MS)
    assert told(leader) == []


def replicated() -> tuple[Brokers, Member]:
    brokers = formed()
    caller = brokers.leader.create("s", replicas=3, allow_atomic=True)
    brokers.run(1_000)
    brokers.leader.answer(caller, CreateStreamResponse)
    return brokers, brokers.led("s")
