"""Batches of producers over the socket: stored once, whatever happens to who stored them and to the answer."""

from __future__ import annotations

import errno
from collections.abc import Hashable
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId
from penstock.batch import codec
from penstock.messages import (
    AppendOnceRequest,
    AppendOnceResponse,
    AppendRequest,
    AppendResponse,
    CreateStreamResponse,
    ListProducersRequest,
    ListProducersResponse,
    SetIntakeRequest,
    SetIntakeResponse,
    StatusRequest,
    StatusResponse,
)
from penstock.vfs.faulty import FileFault, FileOperationKind, no_faults, nth
from penstock.vfs.memory import Keep
from tests.extent import each_change
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.members import Brokers
from tests.unit.node.test_members import with_stream

WINDOW_MS = limits.PRODUCER_WINDOW_MS


def with_orders(**config: Any) -> Broker:
    broker = Broker().start()
    broker.answer(broker.create("orders", **config), CreateStreamResponse)
    return broker


def produce(
    broker: Broker, sequence: int, *values: bytes, who: int = 7, epoch: int = 0, name: str = "orders"
) -> Hashable:
    request = AppendOnceRequest(
        stream_id=broker.stream_id(name),
        partition=PartitionId(0),
        producer_id=who,
        producer_epoch=epoch,
        sequence=sequence,
    )
    return broker.request(
        request, batch_of([("s" if name == "s" else f"{name}.x", None, value, None) for value in values])
    )


def stored(broker: Broker, caller: Hashable) -> tuple[int, int, bool]:
    answer = broker.answer(caller, AppendOnceResponse)
    return answer.base_offset, answer.end_offset, answer.duplicate


def refused(broker: Broker, caller: Hashable) -> tuple[str, dict[str, Any]]:
    error = broker.replies[caller].response
    assert isinstance(error, RemoteError), error
    return error.code, error.details


def test_what_comes_again_is_answered_as_the_first_time() -> None:
    broker = with_orders()
    first = produce(broker, 0, b"a", b"b")
    broker.clock.advance_ms(5)
    second = produce(broker, 2, b"c")
    again = produce(broker, 0, b"a", b"b")
    assert [stored(broker, one) for one in (first, second, again)] == [(0, 2, False), (2, 3, False), (0, 2, True)]
    answers = [broker.answer(one, AppendOnceResponse) for one in (first, again)]
    assert answers[0].timestamp_us == answers[1].timestamp_us
    assert broker.values("orders") == [b"a", b"b", b"c"]
    assert broker.ask(StatusRequest(), StatusResponse).counters["duplicates"] == 2


def test_a_gap_and_a_zombie_are_refused() -> None:
    broker = with_orders()
    produce(broker, 0, b"a", b"b")
    assert refused(broker, produce(broker, 3, b"d")) == (ErrorCode.OUT_OF_SEQUENCE, {"next_sequence": 2})
    assert refused(broker, produce(broker, 1, b"b", b"c")) == (ErrorCode.OUT_OF_SEQUENCE, {"next_sequence": 2})
    assert refused(broker, produce(broker, 1, b"b")) == (ErrorCode.ALREADY_APPENDED, {"next_sequence": 2})
    assert refused(broker, produce(broker, 2, b"c", epoch=1)) == (ErrorCode.OUT_OF_SEQUENCE, {"next_sequence": 0})
    assert refused(broker, produce(broker, 5, b"c", who=8)) == (ErrorCode.UNKNOWN_PRODUCER, {})
    assert stored(broker, produce(broker, 0, b"new life", epoch=1)) == (2, 3, False)
    assert refused(broker, produce(broker, 2, b"zombie")) == (ErrorCode.PRODUCER_FENCED, {"producer_epoch": 1})
    assert refused(broker, produce(broker, 0, b"a", b"b")) == (ErrorCode.PRODUCER_FENCED, {"producer_epoch": 1})
    assert broker.values("orders") == [b"a", b"b", b"new life"]


def test_the_numbers_are_stored_with_the_batch() -> None:
    broker = with_orders()
    produce(broker, 0, b"a", b"b", who=2**63 - 1, epoch=2**32 - 1)
    produce(broker, 2, b"c", who=2**63 - 1, epoch=2**32 - 1)
    broker.fetch("orders")
    data = broker.payloads[broker.fetch("orders")]
    first = codec.verify(data[: codec.read_header(data).size_bytes])
    second = codec.verify(data[first.size_bytes :])
    assert codec.producer_of(first) == codec.BatchProducer(2**63 - 1, 2**32 - 1, 0)
    assert codec.producer_of(second) == codec.BatchProducer(2**63 - 1, 2**32 - 1, 2)


def test_who_does_not_ask_for_it_cannot_write_a_producers_numbers() -> None:
    broker = with_orders()
    batch = bytes(batch_of([("orders.x", None, b"a", None)]))
    forged = bytearray(codec.own_copy(batch))
    producer = codec.BatchProducer(7, 3, 0, b"r" * 16)
    codec.renumber(forged, base_offset=0, timestamp_us=0, leader_epoch=0, producer=producer)
    broker.ask(AppendRequest(stream_id=broker.stream_id("orders")), AppendResponse, bytes(forged))
    assert codec.verify(broker.payloads[broker.fetch("orders")]).producer_id == 0
    assert codec.verify(broker.payloads[broker.fetch("orders")]).run_id == bytes(16)
    after = broker.crash().start()
    assert stored(after, produce(after, 0, b"b")) == (1, 2, False)


def test_the_answer_waits_until_the_first_is_committed() -> None:
    broker = with_orders()
    first = produce(broker, 0, b"a")
    broker.syncs_hang = True
    second, again, old = produce(broker, 1, b"b"), produce(broker, 1, b"b"), produce(broker, 0, b"a")
    broker.disk_runs_at_once = True
    assert stored(broker, old) == (0, 1, True)  # of these alone the first is committed
    assert stored(broker, first) == (0, 1, False)
    assert not {second, again} & broker.replies.keys()
    broker.settle()
    assert (stored(broker, second), stored(broker, again)) == ((1, 2, False), (1, 2, True))
    assert broker.node.in_flight_bytes == 0


def test_a_sync_that_fails_leaves_the_outcome_open() -> None:
    broker = with_orders()
    produce(broker, 0, b"a")
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC, path_end=".arrows")
    failed = produce(broker, 1, b"b")
    again = produce(broker, 1, b"b")
    for caller in (failed, again):
        code, details = refused(broker, caller)
        assert (code, details["reason"]) == (ErrorCode.STORAGE_FAILED, ErrorCode.OUTCOME_UNKNOWN)
    assert stored(broker, produce(broker, 0, b"a")) == (0, 1, True)


def test_what_the_disk_refuses_was_not_there() -> None:
    broker = with_orders()
    produce(broker, 0, b"a")
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    assert refused(broker, produce(broker, 1, b"b"))[0] == ErrorCode.STORAGE_FAILED
    broker.vfs.plan = no_faults
    assert refused(broker, produce(broker, 2, b"c"))[0] == ErrorCode.OUT_OF_SEQUENCE
    assert stored(broker, produce(broker, 1, b"b")) == (1, 2, False)


@pytest.mark.parametrize("keep", [Keep.SYNCED, Keep.ALL])
def test_producers_are_known_again_after_a_crash(keep: Keep) -> None:
    broker = with_orders(segment_bytes=4096)
    for number in range(20):
        produce(broker, number, bytes(900))
        broker.append("orders", b"of somebody else")
    broker.syncs_hang = True
    produce(broker, 20, b"lost")
    after = broker.crash(keep).start()
    kept = [stored(after, produce(after, number, bytes(900))) for number in range(16 if keep is Keep.ALL else 15, 20)]
    assert kept == [(2 * number, 2 * number + 1, True) for number in range(20 - len(kept), 20)]
    assert refused(after, produce(after, 14, bytes(900))) == (
        ErrorCode.ALREADY_APPENDED,
        {"next_sequence": 21 if keep is Keep.ALL else 20},
    )
    assert stored(after, produce(after, 20, b"lost")) == (40, 41, keep is Keep.ALL)
    assert len(after.values("orders")) == 41


def test_a_window_has_an_end_also_for_who_reads_the_log() -> None:
    broker = with_orders()
    produce(broker, 0, b"a")
    broker.clock.advance_ms(WINDOW_MS)
    for one in (broker, broker.crash().start()):
        assert stored(one, produce(one, 0, b"a")) == (0, 1, True)
    broker.clock.advance_ms(1)
    for one in (broker, broker.crash().start()):
        assert refused(one, produce(one, 1, b"b"))[0] == ErrorCode.UNKNOWN_PRODUCER
        assert stored(one, produce(one, 0, b"b", epoch=1)) == (1, 2, False)


def test_appends_keep_their_order_while_producers_are_read() -> None:
    broker = with_orders()
    produce(broker, 0, b"0")
    broker = broker.crash().start()
    broker.disk_runs_at_once = False
    callers = [
        produce(broker, 1, b"1"),
        broker.append("orders", b"2"),
        produce(broker, 2, b"3"),
        produce(broker, 0, b"0"),
    ]
    broker.publish("orders.x", b"from NATS", reply="r")
    assert broker.node.in_flight_bytes
    broker.settle()
    found = [broker.answer(caller, AppendResponse) for caller in callers]
    assert sorted(one.base_offset for one in found[:3]) == [one.base_offset for one in found[:3]]
    assert stored(broker, callers[3]) == (0, 1, True)
    assert [value for value in broker.values("orders") if value != b"from NATS"] == [b"0", b"1", b"2", b"3"]
    assert broker.node.in_flight_bytes == 0


def test_who_names_no_producer_has_nothing_read() -> None:
    broker = with_orders()
    produce(broker, 0, b"0")
    broker = broker.crash().start()
    reads = []
    broker.vfs.plan = lambda call: (
        reads.append(call) if call.kind is FileOperationKind.READ and call.path.endswith(".arrows") else None
    )
    broker.append("orders", b"1")
    assert reads == []
    produce(broker, 1, b"2")
    assert reads


def test_producers_that_cannot_be_read_are_read_again() -> None:
    broker = with_orders()
    produce(broker, 0, b"a")
    broker = broker.crash().start()
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.READ, path_end=".arrows")
    assert refused(broker, produce(broker, 1, b"b"))[0] == ErrorCode.STORAGE_FAILED
    broker.vfs.plan = no_faults
    assert stored(broker, produce(broker, 1, b"b")) == (1, 2, False)


def test_a_stream_that_takes_nothing_still_says_what_is_there() -> None:
    broker = with_orders()
    produce(broker, 0, b"a")
    broker.ask(SetIntakeRequest(name="orders", intake=Intake.READ_ONLY), SetIntakeResponse)
    assert stored(broker, produce(broker, 0, b"a")) == (0, 1, True)
    assert refused(broker, produce(broker, 1, b"b"))[0] == ErrorCode.READ_ONLY


def test_a_stream_that_is_deleted_while_producers_are_read() -> None:
    broker = with_orders()
    broker.disk_runs_at_once = False
    waiting = produce(broker, 0, b"a")
    broker.delete("orders")
    broker.settle()
    assert refused(broker, waiting)[0] == ErrorCode.STREAM_CHANGED


# Several brokers


def produced(brokers: Brokers, sequence: int, *values: bytes) -> Hashable:
    caller = produce(brokers.led("s"), sequence, *values, name="s")
    brokers.settle()
    return caller


def test_the_next_leader_knows_the_producers() -> None:
    brokers = with_stream()
    for number in range(5):
        produced(brokers, number, b"%d" % number)
    brokers.run(500)
    old = brokers.led("s").broker_id
    brokers.kill(old)
    brokers.run(8_000)
    new = brokers.led("s")
    assert new.broker_id != old
    callers = [produced(brokers, number, b"%d" % number) for number in range(6)]
    brokers.run(200)
    assert [stored(new, caller) for caller in callers] == [(number, number + 1, number < 5) for number in range(6)]


@each_change
def test_what_was_cut_off_is_unknown_again() -> None:
    """A leader that nobody reaches takes a batch; later it leads again, without it."""
    brokers = with_stream()
    produced(brokers, 0, b"a")
    brokers.run(500)
    old = brokers.led("s")
    others = [one for one in brokers.ids if one != old.broker_id]
    for number in others:
        brokers.cut(old.broker_id, number)
    lost = [produce(old, 1, b"cut off", name="s") for _ in range(2)]
    brokers.run(8_000)
    new = brokers.led("s")
    assert new is not old
    brokers.join(old.broker_id, *others)
    brokers.run(60_000)  # the preferred leader leads again
    assert brokers.led("s") is old
    assert {refused(old, caller)[0] for caller in lost} <= {ErrorCode.FENCED_EPOCH, ErrorCode.NOT_LEADER}
    callers = [produced(brokers, 1, b"here"), produced(brokers, 1, b"here"), produced(brokers, 0, b"a")]
    brokers.run(500)
    assert [stored(old, caller) for caller in callers] == [(1, 2, False), (1, 2, True), (0, 1, True)]
    assert old.values("s") == [b"a", b"here"]


def test_who_repeats_what_nobody_has_yet_waits_as_well() -> None:
    brokers = with_stream(min_isr=2)
    produced(brokers, 0, b"a")
    brokers.run(500)
    old = brokers.led("s")
    others = [one for one in brokers.ids if one != old.broker_id]
    for number in others:
        brokers.hang(number)
    waiting = [produce(old, 1, b"b", name="s"), produce(old, 1, b"b", name="s")]
    known = produce(old, 0, b"a", name="s")
    assert stored(old, known) == (0, 1, True)
    assert not set(waiting) & old.replies.keys()
    for number in others:
        brokers.wake(number)
    brokers.run(1_000)
    assert [stored(old, caller) for caller in waiting] == [(1, 2, False), (1, 2, True)]


# Who is known


def asked(broker: Broker, after: int = 0, name: str = "orders") -> Hashable:
    return broker.request(ListProducersRequest(stream_id=broker.stream_id(name), after_producer_id=after))


def known(broker: Broker, after: int = 0) -> list[tuple[int, int, int, int]]:
    answer = broker.answer(asked(broker, after), ListProducersResponse)
    return [(one.producer_id, one.producer_epoch, one.last_sequence, one.last_offset) for one in answer.producers]


def test_who_has_appended_is_told_with_the_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = with_orders()
    assert broker.stream("orders").partitions[0].producers == 0
    produce(broker, 0, b"a", b"b", who=9)
    produce(broker, 0, b"c", who=2**63 - 1)
    produce(broker, 0, b"d", who=7, epoch=3)
    produce(broker, 2, b"e", who=9)
    everyone = [(7, 3, 0, 3), (9, 0, 2, 4), (2**63 - 1, 0, 0, 2)]
    assert known(broker) == everyone
    assert broker.stream("orders").partitions[0].producers == 3
    monkeypatch.setattr(limits, "PRODUCERS_PER_ANSWER_MAX", 2)
    assert [known(broker, after) for after in (0, 9, 2**63 - 1)] == [everyone[:2], everyone[2:], []]


def test_they_are_read_for_who_asks_first() -> None:
    broker = with_orders()
    produce(broker, 0, b"a")
    broker.clock.advance_ms(WINDOW_MS - 1)
    broker = broker.crash().start()
    broker.disk_runs_at_once = False
    assert refused(broker, asked(broker))[0] == ErrorCode.NOT_YET
    assert refused(broker, asked(broker))[0] == ErrorCode.NOT_YET
    broker.settle()
    broker.disk_runs_at_once = True
    assert known(broker) == [(7, 0, 0, 0)]
    broker.clock.advance_ms(2)
    assert known(broker) == []  # its window is over, though nobody has appended since


def test_producers_that_cannot_be_read_are_told_as_such() -> None:
    broker = with_orders()
    produce(broker, 0, b"a")
    broker = broker.crash().start()
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.READ, path_end=".arrows")
    asked(broker)
    assert refused(broker, asked(broker))[0] == ErrorCode.STORAGE_FAILED
    broker.vfs.plan = no_faults
    asked(broker)
    assert known(broker) == [(7, 0, 0, 0)]


def test_who_does_not_lead_tells_nobody() -> None:
    brokers = with_stream()
    leader = brokers.led("s")
    other = next(one for one in brokers.members.values() if one is not leader)
    assert refused(other, asked(other, name="s"))[0] == ErrorCode.NOT_LEADER
