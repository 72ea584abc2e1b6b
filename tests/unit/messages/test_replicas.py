"""What replicas tell each other: compact enough for many partitions, and bounded."""

from __future__ import annotations

import msgspec
import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    Api,
    Divergence,
    FetchPosition,
    FlushedEnd,
    PartitionName,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaNews,
    ReplicaProgressRequest,
)
from penstock.wire import HEAD_BYTES, Frame, decode_request, encode_request

LARGEST = FetchPosition(2**63 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63 - 1, 2**32 - 1)
MANY = limits.REPLICA_POSITIONS_MAX


def test_as_many_positions_as_may_be_named_fit_a_request_with_the_largest_numbers() -> None:
    name = PartitionName(LARGEST.stream_id, LARGEST.partition)
    request = ReplicaFetchRequest(
        broker_id=1, incarnation=1, session=1, is_first=True, changed=(LARGEST,) * MANY, forgotten=(name,) * MANY
    )
    assert len(encode_request(request, 1)) - HEAD_BYTES <= limits.REQUEST_BODY_BYTES_MAX
    flushed = FlushedEnd(LARGEST.stream_id, LARGEST.partition, LARGEST.leader_epoch, LARGEST.flushed_end)
    progress = ReplicaProgressRequest(broker_id=1, incarnation=1, session=1, flushed=(flushed,) * MANY)
    assert len(encode_request(progress, 1)) - HEAD_BYTES <= limits.REQUEST_BODY_BYTES_MAX


def test_more_positions_than_that_are_refused() -> None:
    request = ReplicaFetchRequest(broker_id=1, incarnation=1, session=1, changed=(LARGEST,) * (MANY + 1))
    frame = Frame(Api.REPLICA_FETCH, 1, 1, msgspec.msgpack.encode(request), b"")
    with pytest.raises(RemoteError, match=f"length <= {MANY}") as raised:
        decode_request(frame)
    assert raised.value.code == ErrorCode.BAD_REQUEST


@pytest.mark.parametrize("position", [(0, 0, 1, 0, 0, 0), (1, 0, 1, -1, 0, 0), (1, 0, 1, 0, 0), (1, 0, 1, 0, 0, 2**32)])
def test_a_position_with_a_number_out_of_bounds_is_refused(position: tuple[int, ...]) -> None:
    body = {"broker_id": 1, "incarnation": 1, "session": 1, "changed": [position]}
    with pytest.raises(RemoteError, match="changed"):
        decode_request(Frame(Api.REPLICA_FETCH, 1, 1, msgspec.msgpack.encode(body), b""))


def test_news_survive_the_wire_and_may_gain_fields() -> None:
    news = ReplicaNews(
        7,
        0,
        3,
        committed_end=5,
        log_start=1,
        size_bytes=99,
        diverging=Divergence(2, 4),
        replica_start=6,
        is_settled=True,
        image_index=12,
    )
    told = msgspec.msgpack.encode(ReplicaFetchResponse(partitions=(news,)))
    assert msgspec.msgpack.decode(told, type=ReplicaFetchResponse).partitions == (news,)
    longer = msgspec.msgpack.encode({"partitions": [[7, 0, 3, 5, 1, 99, None, "", 6, True, 12, "a field of later"]]})
    assert msgspec.msgpack.decode(longer, type=ReplicaFetchResponse).partitions[0].size_bytes == 99
    older = msgspec.msgpack.encode({"partitions": [[7, 0, 3, 5, 1, 99]]})
    assert msgspec.msgpack.decode(older, type=ReplicaFetchResponse).partitions[0].replica_start == 0
    assert not msgspec.msgpack.decode(older, type=ReplicaFetchResponse).partitions[0].is_settled
