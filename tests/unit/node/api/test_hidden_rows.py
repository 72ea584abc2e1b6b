"""Requests on a partition with hidden rows: what clients get, and that a poll does not wait for what is hidden."""

from __future__ import annotations

import pytest

from penstock.base.errors import ErrorCode
from penstock.base.ids import Offset, PartitionId, PartitionKey
from penstock.batch import projecting
from penstock.live.row_set import RowSet
from penstock.messages import (
    CreateStreamResponse,
    FetchRequest,
    FetchResponse,
    GetRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.node.partition.partition import Partition
from penstock.node.partition.visible_rows import AppliedMarks
from tests.unit.node.harness import Broker, rows_of


def with_rows(count: int = 6) -> tuple[Broker, Partition]:
    """A stream of one row a batch."""
    broker = Broker().start()
    broker.answer(broker.create("orders"), CreateStreamResponse)
    for number in range(count):
        broker.publish("orders.a", b"value %d" % number)
    broker.settle()
    key = PartitionKey(broker.stream_id("orders"), PartitionId(0))
    return broker, broker.node._partitions[key]


def offsets(broker: Broker, start: int = 0) -> list[int]:
    """Fetch up to the end, as a client does."""
    found: list[int] = []
    end = broker.stream("orders").partitions[0].committed_end or 0
    while start < end:
        caller = broker.fetch("orders", start)
        answer = broker.answer(caller, FetchResponse)
        assert answer.base_offset <= start < answer.end_offset
        rows = rows_of(broker.payloads[caller], broker.stream_id("orders")) if caller in broker.payloads else []
        found += [row.offset for row in rows]
        start = answer.end_offset
    return found


def test_a_fetch_leaves_out_hidden_rows_and_goes_on_behind_them() -> None:
    broker, partition = with_rows()
    assert offsets(broker) == [0, 1, 2, 3, 4, 5]
    partition.hide(AppliedMarks(RowSet.of([0, 2, 3, 5])))
    assert offsets(broker) == [1, 4]
    partition.hide(AppliedMarks(RowSet.of(range(6))))
    assert offsets(broker) == []


def test_a_range_without_hidden_rows_is_sent_from_the_file() -> None:
    _, partition = with_rows()
    partition.hide(AppliedMarks(RowSet.of([0, 1])))
    view = partition.live_view()
    clean = view.slice(2, end=6, bytes_max=1 << 20)
    assert clean is not None
    assert view.readable(2, end=6, bytes_max=1 << 20) == clean
    assert not view.shows_all(clean._replace(base_offset=1))
    hole = view.readable(0, end=6, bytes_max=1 << 20)
    assert (hole.data, hole.base_offset, hole.end_offset) == (b"", 0, 2)  # type: ignore[union-attr]


def test_a_poll_at_hidden_rows_is_told_at_once_where_to_go_on() -> None:
    broker, partition = with_rows()
    partition.hide(AppliedMarks(RowSet.of([4, 5])))
    answer = broker.answer(broker.fetch("orders", 4, wait_ms_max=60_000), FetchResponse)
    assert (answer.base_offset, answer.end_offset) == (4, 6)
    waiting = broker.fetch("orders", 6, wait_ms_max=60_000)
    broker.publish("orders.a", b"more")
    assert broker.answer(waiting, FetchResponse).end_offset == 7


def test_a_hidden_message_is_not_found_by_any_way() -> None:
    broker, partition = with_rows()
    stream_id = broker.stream_id("orders")
    partition.hide(AppliedMarks(RowSet.of([3, 4, 5])))
    refused = broker.refusal(GetRequest(stream_id=stream_id, offset=Offset(4)))
    assert refused.code == ErrorCode.MESSAGE_NOT_FOUND
    assert "offset 4 was deleted" in str(refused)
    assert refused.details["deleted_end"] == 6
    caller = broker.request(GetRequest(stream_id=stream_id, subject="orders.a"))
    broker.settle()
    assert [row.offset for row in rows_of(broker.payloads[caller], stream_id)] == [2]
    listed = broker.ask(ListOffsetsRequest(stream_id=stream_id, at="earliest", counts_rows=True), ListOffsetsResponse)
    assert listed.live is not None
    assert (listed.live.rows, listed.live.deleted) == (3, 0)
    assert (listed.live.first_offset, listed.live.last_offset) == (0, 2)


@pytest.mark.parametrize(("offset", "rows"), [(0, 3), (2, 2), (3, 1), (5, 1), (6, 0), (100, 0)])
def test_messages_from_an_offset_on_are_counted_without_hidden_ones(offset: int, rows: int) -> None:
    broker, partition = with_rows()
    partition.hide(AppliedMarks(RowSet.of([0, 3, 4])))
    request = ListOffsetsRequest(stream_id=broker.stream_id("orders"), at="earliest", rows_from=Offset(offset))
    listed = broker.ask(request, ListOffsetsResponse)
    assert (listed.rows, listed.live) == (rows, None)
    assert partition.messages_from(offset) == rows


def test_messages_from_an_offset_on_are_not_counted_below_the_log_start() -> None:
    broker, partition = with_rows()
    partition.hide(AppliedMarks(RowSet.of([0, 3, 4])))
    truncated = TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(2))
    broker.ask(truncated, TruncateResponse)
    request = ListOffsetsRequest(stream_id=broker.stream_id("orders"), at="earliest", rows_from=Offset(0))
    assert broker.ask(request, ListOffsetsResponse).rows == 2
    assert partition.messages_from(0) == 2


def test_the_state_of_a_stream_has_its_messages_without_hidden_ones() -> None:
    broker, partition = with_rows()
    partition.hide(AppliedMarks(RowSet.of([0, 3, 4])))
    (info,) = broker.ask(MetadataRequest(names=("orders",)), MetadataResponse).streams
    assert (info.messages, info.partitions[0].messages, info.partitions[0].committed_end) == (3, 3, 6)


def test_a_projection_leaves_out_hidden_rows_though_it_has_no_offsets() -> None:
    broker, partition = with_rows()
    partition.hide(AppliedMarks(RowSet.of([1, 2, 5])))
    request = FetchRequest(stream_id=broker.stream_id("orders"), offset=Offset(0), columns=("value",))
    caller = broker.request(request)
    broker.settle()
    answer = broker.answer(caller, FetchResponse)
    assert answer.end_offset == 6
    schema = projecting.schema_of(["value"])
    (rows,) = projecting.from_stream(broker.payloads[caller], answer.raw_crc, schema, source="broker")
    assert rows.column(0).to_pylist() == [b"value 0", b"value 3", b"value 4"]


def test_replicas_and_what_a_leader_reads_of_its_log_have_all_rows() -> None:
    _, partition = with_rows()
    partition.hide(AppliedMarks(RowSet.of([1])))
    assert [header.base_offset for header, _ in partition.view().batches(0, 6)] == [0, 1, 2, 3, 4, 5]
    stored = partition.view().replica_range(0, bytes_max=1 << 20)
    assert stored is not None
    assert stored.end_offset == 6


def test_where_a_mark_is_not_understood_no_row_is_shown() -> None:
    broker, partition = with_rows()
    stream_id = broker.stream_id("orders")
    refusal = "a mark of kind 'forget' is not known here: upgrade this broker"
    partition.hide(AppliedMarks(RowSet.of([1]), refusal=refusal))
    for request in (
        FetchRequest(stream_id=stream_id, offset=Offset(0)),
        FetchRequest(stream_id=stream_id, offset=Offset(0), columns=("value",)),
        GetRequest(stream_id=stream_id, offset=Offset(0)),
        ListOffsetsRequest(stream_id=stream_id, at=1),
    ):
        refused = broker.refusal(request)
        assert refused.code == ErrorCode.UNSUPPORTED_VERSION
        assert "upgrade" in str(refused)
    partition.hide(AppliedMarks(RowSet.of([1])))
    assert offsets(broker) == [0, 2, 3, 4, 5]
