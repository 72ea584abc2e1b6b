"""Append rows over the socket, each to the partition where it belongs.

Rules: the rows are split by what is known of the stream, at most PUBLISH_ROUTE_S old. If the name means another stream
by now, or a leader says that a key belongs elsewhere, and nothing is stored yet, they are split again by what the
brokers say then. Rows of several partitions are checked as far as a client can before the first of them is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId
from penstock.client import columns
from penstock.client.errors import OutcomeUnknown, StreamChanged
from penstock.client.link.link import Link
from penstock.client.read.reading import partition_number
from penstock.client.streams.named_streams import NamedStreams
from penstock.client.values import AppendResult, StreamName, datetime_of
from penstock.messages import AppendRequest, AppendResponse, StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa

Share = tuple[PartitionId, "pa.Table"]


class Appender:
    """Appends the rows of one client's calls."""

    def __init__(self, link: Link, streams: NamedStreams) -> None:
        self._link = link
        self._streams = streams

    async def append(self, stream: StreamName, data: Any, partition: int | None, timeout: float) -> list[AppendResult]:
        """Append rows; see `Client.append`."""
        info = await self._streams.info(stream, timeout, partition or 0, age_s_max=limits.PUBLISH_ROUTE_S)
        done: list[AppendResult] = []
        try:
            try:
                await self._append(info, self._shares(data, info, partition), timeout, done)
            except RemoteError as error:
                is_outdated = isinstance(error, StreamChanged) or (
                    error.code == ErrorCode.KEY_ELSEWHERE and partition is None
                )
                if not is_outdated or done or isinstance(stream, StreamInfo):
                    raise
                info = await self._streams.named(info.name, timeout)
                await self._append(info, self._shares(data, info, partition), timeout, done)
        except OutcomeUnknown as error:
            error.appended = done
            raise
        except RemoteError as error:
            if done:
                error.details["appended"] = done
                rows = sum(one.end_offset - one.base_offset for one in done)
                error.message = f"{rows} rows were stored before this, see details['appended']: {error.message}"
            raise
        return done

    @property
    def _bytes_max(self) -> int:
        return min(limits.APPEND_BYTES_MAX, self._link.hello.limits.append_bytes_max)

    def _shares(self, data: Any, info: StreamInfo, partition: int | None) -> Sequence[Share]:
        """Return the rows to append to each partition: all to the given one, else where `partitions_of` says."""
        from penstock.client.append.partitioning import check_shares, split_rows

        if partition is None and len(info.partitions) > 1:
            shares = split_rows(data, info)
            if len(shares) > 1:
                check_shares(shares, info, self._bytes_max)
            return shares
        number = partition_number(info, partition)
        return [(number, columns.to_table(data, stream_subject=info.config.subject_of(number)))]

    async def _append(
        self, info: StreamInfo, shares: Sequence[Share], timeout: float, done: list[AppendResult]
    ) -> None:
        for number, table in shares:
            for message in columns.batch_messages(table, bytes_max=self._bytes_max):
                request = AppendRequest(stream_id=info.stream_id, partition=number)
                answer, _ = await self._link.call(request, AppendResponse, timeout_s=timeout, raw=message)
                moment = datetime_of(answer.timestamp_us)
                done.append(AppendResult(answer.base_offset, answer.end_offset, moment, answer.fsynced, number))
