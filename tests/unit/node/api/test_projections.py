"""Fetches of some columns, or of some subjects: what they bring, and that they wait and fail as others do."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pyarrow as pa
import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.batch import projecting
from penstock.messages import AlterStreamRequest, AlterStreamResponse, CreateStreamResponse, FetchResponse
from penstock.node.step import Lane
from tests.unit.node.harness import Broker


class Asked(Broker):
    """A broker with the stream `orders`."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.start()
        self.answer(self.create("orders", **config), CreateStreamResponse)

    def rows(self, caller: Hashable, *columns: str) -> pa.Table:
        """What an answer holds, checked as a client does it."""
        response = self.answer(caller, FetchResponse)
        schema = projecting.schema_of(columns)
        raw = self.payloads.get(caller) or b""
        assert (response.raw_crc is None) == (not raw)
        batches = projecting.from_stream(raw, response.raw_crc, schema, source="") if raw else []
        return pa.Table.from_batches(batches, schema=schema)

    def code(self, caller: Hashable) -> str:
        """Of the error that it got."""
        response = self.replies[caller].response
        assert isinstance(response, RemoteError), response
        return response.code


def test_columns_come_in_the_order_that_was_asked_for() -> None:
    broker = Asked()
    for value in (b"1", b"2"):
        broker.publish("orders.a", value)
    caller = broker.fetch("orders", columns=("value", "offset"))
    assert broker.rows(caller, "value", "offset").to_pylist() == [
        {"value": b"1", "offset": 0},
        {"value": b"2", "offset": 1},
    ]
    response = broker.answer(caller, FetchResponse)
    assert (response.base_offset, response.end_offset, response.last_epoch) == (0, 2, response.leader_epoch)


def test_only_rows_from_the_offset_on_and_before_the_end() -> None:
    broker = Asked()
    broker.append("orders", b"0", b"1", b"2", b"3", b"4")
    caller = broker.fetch("orders", 1, columns=("value",), end=4)
    assert broker.rows(caller, "value").column("value").to_pylist() == [b"1", b"2", b"3"]
    assert broker.answer(caller, FetchResponse).end_offset == 4


def test_subjects_that_match_any_of_the_patterns() -> None:
    broker = Asked()
    for subject in ("orders.a", "orders.b.c", "orders.b", "orders.c.d"):
        broker.publish(subject, subject.encode())
    caller = broker.fetch("orders", columns=("value",), subjects=("orders.*.d", "orders.a"))
    assert broker.rows(caller, "value").column("value").to_pylist() == [b"orders.a", b"orders.c.d"]
    caller = broker.fetch("orders", subjects=("orders.b.>",))
    names = projecting.schema_of(("offset", "timestamp", "subject", "key", "value", "headers")).names
    assert broker.rows(caller, *names).column("subject").to_pylist() == ["orders.b.c"]


def test_where_no_row_passes_the_answer_says_how_far_was_looked() -> None:
    broker = Asked()
    broker.publish("orders.a", b"1")
    caller = broker.fetch("orders", subjects=("orders.z",), wait_ms_max=60_000)
    response = broker.answer(caller, FetchResponse)
    assert (response.end_offset, response.raw_crc, response.last_epoch) == (1, None, response.leader_epoch)
    assert not broker.payloads.get(caller)


def test_it_waits_as_others_do() -> None:
    broker = Asked()
    caller = broker.fetch("orders", columns=("offset",), wait_ms_max=60_000)
    assert caller in broker.open_requests
    broker.publish("orders.a", b"1")
    assert broker.rows(caller, "offset").num_rows == 1
    late = broker.fetch("orders", 1, columns=("offset",), wait_ms_max=1_000)
    broker.tick(2_000)
    assert broker.answer(late, FetchResponse).end_offset == 1


def test_batches_are_looked_through_in_a_thread_for_queries() -> None:
    broker = Asked()
    broker.publish("orders.a", b"1")
    broker.disk_runs_at_once = False
    caller = broker.fetch("orders", columns=("offset",))
    assert [work.lane for work in broker.disk] == [Lane.QUERY]
    broker.settle()
    assert broker.rows(caller, "offset").num_rows == 1


@pytest.mark.parametrize(
    "wanted",
    [
        {"columns": ("offset", "offset")},
        {"columns": ("offset",), "end": 0},
        {"subjects": ("orders..a",)},
    ],
)
def test_what_cannot_be_asked_for(wanted: dict[str, Any]) -> None:
    broker = Asked()
    broker.publish("orders.a", b"1")
    assert broker.code(broker.fetch("orders", **wanted)) == ErrorCode.BAD_REQUEST


def test_an_offset_out_of_range() -> None:
    broker = Asked()
    assert broker.code(broker.fetch("orders", 5, columns=("offset",))) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_retention_that_is_quicker() -> None:
    broker = Asked(segment_bytes=4_096)
    for number in range(12):
        broker.publish("orders.a", bytes([number]) * 1_000)
    broker.settle()
    broker.disk_runs_at_once = False
    caller = broker.fetch("orders", 1, columns=("offset",))
    while caller in broker.open_requests and broker.disk[0].lane is not Lane.QUERY:
        broker.run_disk()
    looked = broker.execute()
    broker.disk_runs_at_once = True
    broker.ask(AlterStreamRequest(name="orders", changes={"max_messages": 3}), AlterStreamResponse)
    broker.tick(5_000)
    assert broker.stream("orders").partitions[0].log_start == 9
    broker.complete(looked)
    assert broker.code(caller) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_stream_that_is_deleted_meanwhile() -> None:
    broker = Asked()
    broker.publish("orders.a", b"1")
    broker.disk_runs_at_once = False
    caller = broker.fetch("orders", columns=("offset",))
    looked = broker.execute()
    broker.delete("orders")
    broker.settle()
    broker.complete(looked)
    assert broker.code(caller) == ErrorCode.STREAM_CHANGED


def test_more_than_may_wait_are_refused_and_who_has_gone_is_forgotten() -> None:
    broker = Asked()
    broker.publish("orders.a", b"1")
    broker.disk_runs_at_once = False
    many = limits.PROJECTIONS_WAITING_MAX + limits.PROJECTIONS_RUNNING_MAX + 1
    callers = [broker.fetch("orders", columns=("offset",)) for _ in range(many)]
    assert broker.code(callers[-1]) == ErrorCode.OVERLOADED
    assert len(broker.disk) == limits.PROJECTIONS_RUNNING_MAX
    broker.open_requests.difference_update(callers[:-2])
    broker.node.callers_disconnected(callers[:-2])
    broker.turn()
    broker.settle()
    assert broker.rows(callers[-2], "offset").num_rows == 1
    assert not broker.open_requests


def test_none_keeps_a_stop_waiting() -> None:
    broker = Asked()
    broker.publish("orders.a", b"1")
    broker.disk_runs_at_once = False
    callers = [broker.fetch("orders", columns=("offset",)) for _ in range(5)]
    broker.node.give_up_queries()
    broker.turn()
    late = broker.fetch("orders", columns=("offset",))
    assert {broker.code(caller) for caller in [*callers, late]} == {ErrorCode.STOPPING}
    broker.settle()
    broker.stop()


def test_no_more_is_looked_through_than_one_fetch_may(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Asked()
    for number in range(10):
        broker.publish("orders.a", bytes([number]) * 1_000)
    monkeypatch.setattr(limits, "PROJECTED_PIECE_BYTES", 1_000)
    monkeypatch.setattr(limits, "PROJECTED_SOURCE_BYTES_MAX", 4_000)
    first = broker.fetch("orders", subjects=("orders.z",))
    assert broker.answer(first, FetchResponse).end_offset == 3
    second = broker.fetch("orders", columns=("value",), bytes_max=1_500)
    assert broker.rows(second, "value").num_rows == 2


def test_damage_behind_sound_batches_is_told_by_the_next_fetch() -> None:
    broker = Asked()
    for number in range(3):
        broker.publish("orders.a", bytes([number]) * 1_000)
    broker.settle()
    path = next(path for path in broker.memory.files() if path.endswith(".arrows"))
    file = broker.memory.open(path)
    file.write_at(file.size() - 100, b"\xff")
    caller = broker.fetch("orders", columns=("offset",))
    assert broker.rows(caller, "offset").column("offset").to_pylist() == [0, 1]
    again = broker.fetch("orders", 2, columns=("offset",))
    assert broker.code(again) == ErrorCode.CORRUPT_RANGE
    refusal = broker.replies[again].response
    assert isinstance(refusal, RemoteError)
    assert refusal.details["file"] == path
    assert refusal.details["position"] > 0
    assert broker.stream("orders").partitions[0].log_end == 3
