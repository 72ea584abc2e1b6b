"""Rows that are staged and published over the socket, as tests ask for them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from penstock.base.errors import RemoteError
from penstock.base.ids import LeaderEpoch, Offset, PartitionId
from penstock.base.staged import plan_mark, staged_name
from penstock.base.subjects import partition_subject
from penstock.messages import (
    PublishStagedRequest,
    PublishStagedResponse,
    StagedRange,
    StagedStreamRequest,
    StagedStreamResponse,
    StageRequest,
    StageResponse,
    StreamInfo,
)
from tests.unit.node.harness import Broker, batch_of

QUERY = bytes(range(16, 32))


def staged_stream(broker: Broker, name: str = "orders") -> StreamInfo:
    """The stream that holds what is staged for that one."""
    stream_id = broker.stream_id(name)
    if (found := broker.streams().get(staged_name(stream_id))) is not None:
        return found
    return broker.ask(StagedStreamRequest(stream_id=stream_id), StagedStreamResponse).stream


def staging(
    broker: Broker,
    *values: bytes,
    name: str = "orders",
    partition: int = 0,
    headers: bytes | None = None,
    query_id: bytes | None = None,
    batch_id: int = 0,
) -> Hashable:
    """Ask for rows to be staged; with `query_id` for that batch of it."""
    info = broker.stream(name)
    subject = partition_subject(info.subject, partition).replace(">", "x")
    return broker.request(
        StageRequest(
            stream_id=staged_stream(broker, name).stream_id,
            partition=PartitionId(partition),
            query_id=query_id,
            batch_id=batch_id,
        ),
        batch_of([(subject, b"k" + value, value, headers) for value in values]),
    )


def staged(broker: Broker, *values: bytes, **fields: Any) -> StagedRange:
    """Rows that are staged at once."""
    answer = broker.answer(staging(broker, *values, **fields), StageResponse)
    return range_of(answer)


def range_of(answer: StageResponse) -> StagedRange:
    """What an answer says was staged."""
    return StagedRange(answer.base_offset, answer.end_offset, answer.leader_epoch)


def plan(broker: Broker, name: str = "orders", partition: int = 0, **fields: Any) -> int:
    """The mark of a plan that says nothing."""
    return mark_of(broker.answer(planning(broker, name, partition, **fields), StageResponse))


def mark_of(answer: StageResponse) -> int:
    """What names a plan that was staged."""
    return plan_mark(answer.base_offset, answer.leader_epoch)


def planning(broker: Broker, name: str = "orders", partition: int = 0, **fields: Any) -> Hashable:
    """Ask for a plan to be staged."""
    info = staged_stream(broker, name)
    request = StageRequest(stream_id=info.stream_id, partition=PartitionId(partition), is_plan=True, **fields)
    raw = batch_of([(partition_subject(info.subject, partition), None, b"plan", None)])
    return broker.request(request, raw)


def publishing(
    broker: Broker,
    batch_id: int,
    ranges: StagedRange | Sequence[StagedRange],
    *,
    name: str = "orders",
    staged_name: str = "",
    **fields: Any,
) -> Hashable:
    """Ask for rows to be published."""
    request = PublishStagedRequest(
        **{
            "stream_id": broker.stream_id(name),
            "staged_stream_id": staged_stream(broker, staged_name or name).stream_id,
            "query_id": QUERY,
            "batch_id": batch_id,
            "staged": (ranges,) if isinstance(ranges, StagedRange) else tuple(ranges),
            **fields,
        }
    )
    return broker.request(request)


def published(broker: Broker, batch_id: int, ranges: Any, **fields: Any) -> PublishStagedResponse:
    """Rows that are published at once."""
    return broker.answer(publishing(broker, batch_id, ranges, **fields), PublishStagedResponse)


def refused(broker: Broker, caller: Hashable) -> str:
    """With which code that request was refused."""
    error = broker.replies[caller].response
    assert isinstance(error, RemoteError), error
    return error.code


def place(answer: PublishStagedResponse) -> tuple[int | None, int | None, bool]:
    """Where the rows are, and whether they were there before."""
    return answer.base_offset, answer.end_offset, answer.duplicate


def moved(one: StagedRange, by: int = 0, epoch: int = 0) -> StagedRange:
    """Another range, or another epoch."""
    return StagedRange(Offset(one.base_offset + by), Offset(one.end_offset + by), LeaderEpoch(one.leader_epoch + epoch))
