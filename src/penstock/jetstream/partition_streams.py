"""The partitions of a stream as streams of their own, which are only read.

Rules: partition N of a stream that has several is the stream `<name>-p<N>`; where a stream has that name from below the
API's feature level, that stream comes first (`metadata/partition_names.py`). Its order is the partition's:
`seq = offset + 1`. In the gateway it is a StreamState of one partition, with an id that no stream has; a request to the
node gets the real stream's id and the partition's number, so that the rights are those on the real stream.

    id of a partition's stream = (partition + 1) << 48 | id of the stream
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.ids import PartitionId, StreamId
from penstock.messages import Request
from penstock.metadata.image import StreamState
from penstock.metadata.partition_names import partition_name

PARTITION_OF = "_penstock.partition_of"
"""Key of the metadata that the API shows for a partition's stream: the name of the real one."""
PARTITIONS = "_penstock.partitions"
"""Key of the metadata that the API shows for a stream of several partitions: the names of their streams."""
_ID_BITS = 48  # ids of streams, and of their companion logs, are smaller
_ID_END = 1 << _ID_BITS


def partition_names(state: StreamState, taken: Sequence[str] = ()) -> str:
    """Return the first and the last name of the streams of its partitions, for people; and those that others have."""
    names = f"{partition_name(state.name, 0)} to {partition_name(state.name, len(state.partitions) - 1)}"
    if not taken:
        return names
    what = f"{taken[0]} is another stream" if len(taken) == 1 else f"{len(taken)} such as {taken[0]} are other streams"
    return f"{names}, but {what}, which hides the partition from NATS clients"


def partition_stream(state: StreamState, partition: int) -> StreamState | None:
    """Return the stream of one partition of a stream; None if it has no such partition, or only one."""
    count = len(state.partitions)
    if not (count > 1 and 0 <= partition < count):
        return None
    first, *more = state.config.listening_patterns
    shown = {} if state.config.metadata is msgspec.UNSET else state.config.metadata
    config = msgspec.structs.replace(
        state.config,
        name=partition_name(state.name, partition),
        subject=first,
        more_subjects=tuple(more) or msgspec.UNSET,
        partitions=1,
        partition_by=_DEFAULTS.partition_by,
        range_bounds=(),
        metadata={**shown, PARTITION_OF: state.name},
    )
    return msgspec.structs.replace(
        state,
        stream_id=StreamId((partition + 1) << _ID_BITS | state.stream_id),
        config=config,
        partitions=(state.partitions[partition],),
    )


_DEFAULTS = StreamConfig(name="", subject="")


def is_partition_stream(state: StreamState) -> bool:
    """True if the stream is a partition of another one."""
    return state.stream_id >= _ID_END


def real_ids(stream_id: int) -> tuple[StreamId, PartitionId]:
    """Return the stream and the partition that an id in the gateway is about."""
    if stream_id < _ID_END:
        return StreamId(stream_id), PartitionId(0)
    return StreamId(stream_id & (_ID_END - 1)), PartitionId((stream_id >> _ID_BITS) - 1)


def addressed(request: Request) -> Request:
    """Return the request with the ids of the real stream and partition."""
    stream_id = getattr(request, "stream_id", None)
    if stream_id is None or stream_id < _ID_END:
        return request
    found, partition = real_ids(stream_id)
    return msgspec.structs.replace(request, stream_id=found, partition=partition)
