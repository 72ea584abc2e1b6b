"""Fetches: looked up off the loop where they are not in memory, woken only for enough, answered exactly once."""

from __future__ import annotations

from typing import Any

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import AlterStreamRequest, AlterStreamResponse, CreateStreamResponse, FetchRequest, FetchResponse
from penstock.node.step import Lane
from tests.unit.node.harness import Broker, rows_of


def with_sealed(**config: Any) -> Broker:
    """A stream whose first segments are sealed; their indexes are on the disk only. The disk waits to be told."""
    broker = Broker().start()
    broker.answer(broker.create("orders", segment_bytes=4_096, **config), CreateStreamResponse)
    for number in range(12):
        broker.publish("orders.a", bytes([number]) * 1_000)
    broker.settle()
    broker.disk_runs_at_once = False
    return broker


def test_what_is_not_in_memory_is_looked_up_in_a_disk_thread() -> None:
    broker = with_sealed()
    opened: list[str] = []
    broker.vfs.plan = lambda one: opened.append(one.path)
    caller = broker.fetch("orders", 1)
    assert [work.lane for work in broker.disk] == [Lane.READ]
    assert not [path for path in opened if path.endswith(".index")]
    broker.settle()
    assert broker.answer(caller, FetchResponse).base_offset == 1
    assert rows_of(broker.payloads[caller], 2)[0].offset == 1


def test_a_stream_deleted_while_its_index_is_read() -> None:
    broker = with_sealed()
    caller = broker.fetch("orders", 1)
    lookup = broker.execute()
    broker.delete("orders")
    broker.settle()
    broker.complete(lookup)
    response = broker.replies[caller].response
    assert isinstance(response, RemoteError)
    assert response.code == ErrorCode.STREAM_CHANGED


def test_a_client_that_goes_while_its_index_is_read() -> None:
    broker = with_sealed()
    caller = broker.fetch("orders", 1)
    broker.node.callers_disconnected([caller])
    broker.open_requests.discard(caller)
    broker.settle()
    assert caller not in broker.replies


def test_a_poll_for_much_is_not_looked_at_for_little() -> None:
    broker = Broker().start()
    broker.answer(broker.create("orders"), CreateStreamResponse)
    broker.publish("orders.a", b"1")
    caller = broker.fetch("orders", 0, bytes_min=3_000, wait_ms_max=60_000)
    broker.publish("orders.a", b"2")
    assert caller in broker.open_requests
    broker.publish("orders.a", b"x" * 3_000)
    assert broker.answer(caller, FetchResponse).end_offset == 3


def test_more_than_a_slice_can_hold_is_enough() -> None:
    broker = Broker().start()
    broker.answer(broker.create("orders"), CreateStreamResponse)
    broker.publish("orders.a", b"x" * 1_000)
    caller = broker.fetch("orders", 0, bytes_min=2**60, bytes_max=2_000, wait_ms_max=60_000)
    broker.publish("orders.a", b"y" * 1_000)
    assert broker.answer(caller, FetchResponse).end_offset == 1


def test_what_was_recovered_and_then_synced_wakes_a_poll() -> None:
    before = Broker().start()
    before.answer(before.create("orders"), CreateStreamResponse)
    before.disk_runs_at_once = False
    before.publish("orders.a", b"written, not synced")
    after = Broker(before.memory, clock=before.clock)
    after.disk_runs_at_once = False
    after.start()
    caller = after.fetch("orders", 0, wait_ms_max=60_000)
    after.settle()
    assert after.answer(caller, FetchResponse).end_offset == 1


def test_retention_that_is_quicker_than_the_lookup_is_told_as_out_of_range() -> None:
    broker = with_sealed()
    caller = broker.fetch("orders", 1)
    lookup = broker.execute()
    broker.disk_runs_at_once = True
    broker.ask(AlterStreamRequest(name="orders", changes={"max_messages": 3}), AlterStreamResponse)
    broker.tick(5_000)
    assert broker.stream("orders").partitions[0].log_start == 9
    broker.complete(lookup)
    response = broker.replies[caller].response
    assert isinstance(response, RemoteError)
    assert response.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_acks_are_sent_before_readers_are_looked_after() -> None:
    broker = Broker().start()
    broker.answer(broker.create("orders", durability="os"), CreateStreamResponse)
    caller = broker.fetch("orders", 0, wait_ms_max=60_000)
    broker.steps.clear()
    broker.publish("orders.a", b"1", reply="r")
    first, second = broker.steps
    assert (len(first.publish), first.replies) == (1, [])
    assert ([reply.caller for reply in second.replies], second.publish) == ([caller], [])


def test_a_partition_whose_log_is_being_opened_is_not_there_yet() -> None:
    """So that clients ask again by themselves."""
    broker = Broker().start()
    broker.disk_runs_at_once = False
    broker.create("orders")
    broker.run_disk()  # the metadata; the log is opened next
    fetch = FetchRequest(stream_id=broker.node.image.by_name("orders").stream_id, offset=0)
    assert broker.refusal(fetch).code == ErrorCode.NOT_YET
    broker.disk_runs_at_once = True
    broker.turn()
    broker.ask(fetch, FetchResponse)


def test_of_very_many_who_wait_for_one_message_a_few_are_answered_in_one_turn() -> None:
    broker = Broker().start()
    broker.answer(broker.create("orders"), CreateStreamResponse)
    count = 5 * limits.FETCHES_WOKEN_MAX // 2
    callers = [broker.fetch("orders", 0, wait_ms_max=60_000) for _ in range(count)]
    broker.publish("orders.a", b"1")
    answered = []
    for _ in range(3):
        answered.append(sum(caller in broker.replies for caller in callers))
        assert broker.node.next_wake_us <= broker.clock.now.elapsed_us or answered[-1] == count
        broker.tick()
    assert answered == [limits.FETCHES_WOKEN_MAX, 2 * limits.FETCHES_WOKEN_MAX, count]
    assert broker.node.next_wake_us > broker.clock.now.elapsed_us


def test_of_very_many_whose_time_is_up_a_few_are_answered_in_one_turn() -> None:
    broker = Broker().start()
    broker.answer(broker.create("orders"), CreateStreamResponse)
    count = limits.FETCHES_WOKEN_MAX + 1
    callers = [broker.fetch("orders", 0, wait_ms_max=1_000) for _ in range(count)]
    broker.tick(1_000)
    assert sum(caller in broker.replies for caller in callers) == limits.FETCHES_WOKEN_MAX
    broker.tick()
    assert not broker.open_requests


def test_who_waits_for_a_turn_hears_when_the_stream_goes() -> None:
    broker = Broker().start()
    broker.answer(broker.create("orders"), CreateStreamResponse)
    callers = [broker.fetch("orders", 0, wait_ms_max=60_000) for _ in range(limits.FETCHES_WOKEN_MAX + 1)]
    broker.publish("orders.a", b"1")
    broker.delete("orders")
    broker.tick()
    response = broker.replies[callers[-1]].response
    assert isinstance(response, RemoteError)
    assert response.code == ErrorCode.STREAM_CHANGED
