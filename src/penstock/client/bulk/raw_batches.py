"""Read the committed batches of one partition as stored by its leader, for programs that copy a log.

Rules: every batch is verified. Batches are contiguous: each begins where the one before it ends. The first one begins
at the requested offset: if that lies inside a stored batch, the rows from there on are encoded as a new batch.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, PartitionKey
from penstock.batch import codec
from penstock.batch.codec import Buffer
from penstock.batch.header import BatchHeader
from penstock.client.blocking import client as blocking
from penstock.client.errors import TimedOut
from penstock.client.link.link import Link
from penstock.client.read import batches
from penstock.client.read.batches import OffsetRange
from penstock.client.read.reading import checked_range
from penstock.messages import FetchRequest, FetchResponse, StreamInfo


class RawBatch(NamedTuple):
    """A stored batch. `leader_epoch`: the epoch in which it was written, even if `data` was encoded anew."""

    header: BatchHeader
    data: Buffer
    leader_epoch: int


def raw_batches(
    client: blocking.Client,
    stream: StreamInfo,
    partition: int,
    start: int,
    end: int,
    *,
    leader_epoch: int | None = None,
    timeout: float = 10.0,
) -> Generator[RawBatch, None, None]:
    """Yield the batches that hold `[start, end)`; the last one is whole. `leader_epoch`: that of the batch before
    `start`.

    OffsetOutOfRange: the log begins later now. LogTruncated: the messages before `start` were replaced by others.
    CorruptRange: the leader's file is corrupt there, and not repaired in time. CorruptionError: the answer is corrupted
    again and again. StreamChanged, TimedOut, Unavailable.
    """
    link = client._client._link  # noqa: SLF001 (the same client's asyncio API)
    source = _answers(link, stream, PartitionId(partition), start, end, leader_epoch, timeout)
    yield from client._thread.iterate(source)  # noqa: SLF001 (the same)


async def _answers(
    link: Link,
    stream: StreamInfo,
    partition: PartitionId,
    start: int,
    end: int,
    leader_epoch: int | None,
    timeout_s: float,
) -> AsyncGenerator[Iterator[RawBatch], None]:
    link.learn(stream)
    offset, corrupt_until = start, -1
    while offset < end:
        request = FetchRequest(
            stream_id=stream.stream_id,
            partition=partition,
            offset=Offset(offset),
            bytes_max=min(limits.READ_FETCH_BYTES_MAX, link.hello.limits.fetch_bytes_max),
            leader_epoch=None if leader_epoch is None else LeaderEpoch(leader_epoch),
        )
        answer, raw = await link.call(request, FetchResponse, timeout_s=timeout_s)
        batches.check_format(answer.format_version)
        if answer.end_offset <= offset:
            raise TimedOut(f"the broker sent nothing from offset {offset} of stream {stream.name} on", offset=offset)
        source = f"the answer of {link.server_of(stream.stream_id, partition)} from offset {offset} on"
        split = _Split(bytes(raw), offset, source)
        yield iter(split)
        if split.corruption is not None:
            if split.end >= end:
                return  # the corrupt batch lies behind what is read
            if split.end <= corrupt_until:
                raise split.corruption
            # The broker sent it unchecked from its file; this has it check, and repair.
            left = OffsetRange(split.end, min(end, answer.end_offset))
            key = PartitionKey(stream.stream_id, partition)
            checked = checked_range(link, key, left, answer.leader_epoch, ("offset",), split.corruption, timeout_s)
            await checked
            offset, leader_epoch = split.end, split.leader_epoch or leader_epoch
            corrupt_until = split.end
            continue
        leader_epoch = batches.last_epoch(raw, source=source) if raw else answer.leader_epoch
        offset = answer.end_offset


class _Split:
    """The batches of an answer, up to its end or the first corrupt one."""

    def __init__(self, raw: bytes, start: int, source: str) -> None:
        self._raw = raw
        self._start = start
        self._source = source
        self.end = start  # behind the last sound batch
        self.leader_epoch: int | None = None  # of that batch
        self.corruption: CorruptionError | None = None

    def __iter__(self) -> Iterator[RawBatch]:
        try:
            for batch in _split(self._raw, self._start, self._source):
                self.end, self.leader_epoch = batch.header.end_offset, batch.leader_epoch
                yield batch
        except CorruptionError as error:
            self.corruption = error


def _split(raw: bytes, start: int, source: str) -> Iterator[RawBatch]:
    view, position, offset = memoryview(raw), 0, start
    while position < len(view):
        header = codec.read_header(view[position:], file=source, position=position)
        message = view[position : position + header.size_bytes]
        codec.verify(message, file=source, position=position)
        if header.base_offset > offset or (header.base_offset < offset and position):
            raise CorruptionError(source, position, f"a batch from offset {offset}", f"from {header.base_offset}")
        if header.base_offset == offset:
            yield RawBatch(header, message, header.leader_epoch)
        elif header.end_offset > offset:
            rows = batches.rows(
                header, message, OffsetRange(offset, header.end_offset), source=source, position=position
            )
            if rows.num_rows:
                data = codec.encode_arrow_at(rows, offset, header.end_offset)
                yield RawBatch(codec.read_header(data), data, header.leader_epoch)
        position, offset = position + header.size_bytes, header.end_offset
