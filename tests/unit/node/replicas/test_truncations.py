"""Giving up the beginning of a partition, on one broker: who is answered when, and what the disk may do meanwhile."""

from __future__ import annotations

import errno

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch, Offset
from penstock.messages import (
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    ListOffsetsRequest,
    TruncateRequest,
    TruncateResponse,
)
from penstock.vfs.faulty import FileFault, FileOperationKind, Plan
from tests.unit.node.harness import Broker

CHECKPOINT = "streams/00000004-orders/0/checkpoint"


def truncate(broker: Broker, before: int) -> TruncateRequest:
    return TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(before))


def with_messages(count: int = 12) -> Broker:
    broker = Broker().start()
    broker.create("orders", segment_bytes=4096)
    for number in range(count):
        broker.publish("orders.a", b"%d" % number + b"." * 900)
    return broker


def segments(broker: Broker) -> int:
    return sum(path.endswith(".arrows") and "orders" in path for path in broker.memory.files())


def full(path: str) -> Plan:
    return lambda one: FileFault(errno.ENOSPC) if one.kind is FileOperationKind.WRITE and one.path == path else None


def test_files_go_with_the_next_tick_and_a_crash_brings_nothing_back() -> None:
    broker = with_messages()
    before = segments(broker)
    answer = broker.ask(truncate(broker, 9), TruncateResponse)
    assert (answer.log_start, answer.messages) == (9, 9)
    assert answer.size_bytes > 9 * 900
    after = broker.crash()
    assert [row.offset for row in after.start().read("orders")] == [9, 10, 11]
    broker.tick(1_000)
    assert segments(broker) < before
    assert broker.stream("orders").partitions[0].size_bytes < 4 * 2_048


def test_it_is_gone_for_readers_while_the_disk_does_not_take_the_new_beginning() -> None:
    broker = with_messages()
    broker.vfs.plan = full(CHECKPOINT)
    caller = broker.request(truncate(broker, 9))
    assert caller in broker.open_requests
    assert [row.offset for row in broker.read("orders")] == [9, 10, 11]
    info = broker.stream("orders")
    request = ListOffsetsRequest(stream_id=info.stream_id, at="earliest")
    assert broker.replies[broker.request(request)].response.offset == 9  # type: ignore[union-attr]
    assert info.partitions[0].log_start == 9
    for _ in range(3):
        broker.tick(1_000)
    assert len(broker.notices) == 1
    assert "cannot note where its log begins" in broker.notices[0]
    broker.vfs.plan = lambda one: None
    broker.tick(1_000)
    assert broker.answer(caller, TruncateResponse).log_start == 9


def test_a_disk_that_stays_full_is_told_in_time_and_what_was_agreed_holds() -> None:
    broker = with_messages()
    broker.vfs.plan = full(CHECKPOINT)
    caller = broker.request(truncate(broker, 9))
    broker.tick(limits.TRUNCATION_TIMEOUT_MS - 1)
    assert caller in broker.open_requests
    broker.tick(1)
    error = broker.replies[caller].response
    assert isinstance(error, RemoteError)
    assert error.code == ErrorCode.TIMED_OUT
    assert [row.offset for row in broker.read("orders")] == [9, 10, 11]


def test_two_who_ask_are_answered_each_and_nobody_who_has_gone() -> None:
    broker = with_messages()
    broker.disk_runs_at_once = False
    callers = [broker.request(truncate(broker, before)) for before in (9, 4, 6)]
    broker.node.callers_disconnected([callers[1]])
    broker.open_requests.discard(callers[1])
    broker.settle()
    found = [broker.answer(callers[number], TruncateResponse).messages for number in (0, 2)]
    assert found == [9, 6]
    assert callers[1] not in broker.replies
    assert broker.stream("orders").partitions[0].log_start == 9


def test_a_stream_that_is_deleted_meanwhile_is_told_so() -> None:
    broker = with_messages()
    broker.disk_runs_at_once = False
    caller = broker.request(truncate(broker, 9))
    broker.delete("orders")
    broker.settle()
    error = broker.replies[caller].response
    assert isinstance(error, RemoteError)
    assert error.code == ErrorCode.STREAM_CHANGED


def test_a_broker_that_stops_says_so() -> None:
    broker = with_messages()
    broker.vfs.plan = full(CHECKPOINT)
    caller = broker.request(truncate(broker, 9))
    broker.vfs.plan = lambda one: None
    broker.stop()
    error = broker.replies[caller].response
    assert isinstance(error, RemoteError)
    assert error.code == ErrorCode.STOPPING


@pytest.mark.parametrize(("before", "code"), [(13, ErrorCode.OFFSET_OUT_OF_RANGE), (2**63 - 1, "offset_out_of_range")])
def test_what_is_not_committed_cannot_go(before: int, code: str) -> None:
    broker = with_messages()
    error = broker.refusal(truncate(broker, before))
    assert (error.code, error.details) == (code, {"log_start": 0, "committed_end": 12})
    assert broker.ask(truncate(broker, 12), TruncateResponse).messages == 12
    assert broker.read("orders") == []
    broker.publish("orders.a", b"x", reply="r")
    assert broker.acks[-1].body["offset"] == 12


def test_a_client_that_names_an_epoch_is_asked_nothing_more() -> None:
    """The field is for a leader's own request; from a client it changes nothing."""
    broker = with_messages()
    request = TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(99), leader_epoch=LeaderEpoch(1))
    assert broker.refusal(request).code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_more_than_a_broker_keeps_in_mind_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRUNCATIONS_WAITING_MAX", 2)
    broker = with_messages()
    broker.disk_runs_at_once = False
    for before in (3, 4):
        broker.request(truncate(broker, before))
    assert broker.refusal(truncate(broker, 5)).code == ErrorCode.OVERLOADED
    broker.settle()
    assert broker.stream("orders").partitions[0].log_start == 4


def test_deleted_messages_are_not_counted_again() -> None:
    broker = with_messages()
    caller = broker.request(DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=(Offset(2), Offset(3))))
    broker.tick(1_000)
    broker.answer(caller, DeleteMessagesResponse)
    dry = TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(9), is_dry_run=True)
    assert broker.ask(dry, TruncateResponse).messages == 7
    assert broker.ask(truncate(broker, 9), TruncateResponse).messages == 7


def kept(broker: Broker, keep: int, before: int = 12) -> TruncateResponse:
    request = TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(before), keep=keep, is_dry_run=True)
    return broker.ask(request, TruncateResponse)


@pytest.mark.parametrize(
    ("keep", "start", "gone"), [(1, 10, 8), (2, 8, 7), (3, 7, 6), (8, 1, 1), (9, 0, 0), (99, 0, 0)]
)
def test_the_last_messages_are_kept_whatever_was_deleted_between_them(keep: int, start: int, gone: int) -> None:
    broker = with_messages()
    offsets = tuple(Offset(one) for one in (3, 9, 11))
    caller = broker.request(DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=offsets))
    broker.tick(1_000)
    broker.answer(caller, DeleteMessagesResponse)
    dry = kept(broker, keep)
    assert (dry.log_start, dry.messages) == (start, gone)
    request = TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(12), keep=keep)
    answer = broker.ask(request, TruncateResponse)
    assert (answer.log_start, answer.messages) == (start, gone)
    assert [row.offset for row in broker.read("orders")] == [
        one for one in range(start, 12) if Offset(one) not in offsets
    ]


def test_messages_that_are_not_decided_on_are_not_kept_in_place_of_others() -> None:
    broker = Broker().start()
    broker.create("orders", segment_bytes=4096, max_messages_per_subject=1)
    broker.settle()
    for subject in "abccccc":
        broker.publish(f"orders.{subject}", b"x")
    request = TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(7), keep=3)
    assert broker.refusal(request).code == ErrorCode.NOT_YET
    for _ in range(2):
        broker.settle()
        broker.tick(limits.DECISION_PAUSE_MS_MAX)
    assert kept(broker, 3, before=7).log_start == 0
    assert kept(broker, 2, before=7).log_start == 1
