"""Append rows to the log over the socket: a table in, batches out, one request each."""

from __future__ import annotations

from typing import Any

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.base.ids import StreamId
from penstock.client import columns as column_data
from penstock.client.errors import OutcomeUnknown
from penstock.client.link.link import Link
from penstock.client.read import reading
from penstock.client.streams.named_streams import NamedStreams
from penstock.client.values import AppendResult, StreamName, datetime_of
from penstock.messages import AppendRequest, AppendResponse


async def append(
    link: Link, streams: NamedStreams, stream: StreamName, data: Any, partition: int, timeout: float
) -> list[AppendResult]:
    """Append `data` in batches; see `Client.append`."""
    info = await streams.info(stream, timeout, partition)
    number = reading.partition_number(info, partition)
    table = column_data.to_table(data, stream_subject=info.config.subject_of(number))
    bytes_max = min(limits.APPEND_BYTES_MAX, link.hello.limits.append_bytes_max)
    done: list[AppendResult] = []
    try:
        for message in column_data.batch_messages(table, bytes_max=bytes_max):

            async def ask(stream_id: StreamId, message: bytearray = message) -> AppendResult:
                request = AppendRequest(stream_id=stream_id, partition=number)
                answer, _ = await link.call(request, AppendResponse, timeout_s=timeout, raw=message)
                moment = datetime_of(answer.timestamp_us)
                return AppendResult(answer.base_offset, answer.end_offset, moment, answer.fsynced)

            done.append(await streams.with_id(info if done else stream, timeout, ask))
            info = streams.known(info)
    except OutcomeUnknown as error:
        error.appended = done
        raise
    except RemoteError as error:
        if done:
            error.details["appended"] = done
        raise
    return done
