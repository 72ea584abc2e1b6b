"""Report archived offsets of a stream to the brokers, which may then delete those messages."""

from __future__ import annotations

from penstock.base.ids import LeaderEpoch, Offset
from penstock.client.checks import whole_number
from penstock.client.link.link import Link
from penstock.client.read.reading import partition_number
from penstock.messages import ReportArchivedRequest, ReportArchivedResponse, StreamInfo


async def report(
    link: Link,
    info: StreamInfo,
    partition: int,
    end_offset: int | None,
    archive: str,
    leader_epoch: int | None,
    timeout_s: float,
) -> int | None:
    """Return the end offset that all archives hold now. ValueError: a negative offset, or no such partition."""
    if end_offset is not None and (end_offset := whole_number("offset", end_offset)) < 0:
        raise ValueError(f"the offset {end_offset} is negative; offsets count from 0")
    request = ReportArchivedRequest(
        stream_id=info.stream_id,
        partition=partition_number(info, partition),
        archive=archive,
        end_offset=None if end_offset is None else Offset(end_offset),
        archived_epoch=None if leader_epoch is None else LeaderEpoch(leader_epoch),
    )
    answer, _ = await link.call(request, ReportArchivedResponse, timeout_s=timeout_s)
    return answer.archived_end
