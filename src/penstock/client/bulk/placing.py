"""Append rows with given offsets and timestamps to a paused stream, one batch after the other.

Rules: a batch must begin at the log end offset, so nothing is stored twice: a retry after a lost answer learns that the
log ends further on, and waits until that is committed. One program writes at a time; rows of another one are detected
and raise an error. Offsets that a batch covers without a row are a gap.
For programs that copy a log (import, restore). Streams in normal use get appends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.batch import codec
from penstock.client.blocking import client as blocking
from penstock.client.checks import milliseconds, seconds_of
from penstock.client.errors import OutcomeUnknown, TimedOut
from penstock.client.link.attempts import OutcomeDoubt
from penstock.client.link.link import CREATE_GRACE_S, Link
from penstock.client.read.reading import find_place, partition_number
from penstock.client.values import LATEST, Message
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendAtRequest,
    AppendAtResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    StreamInfo,
    TruncateRequest,
    TruncateResponse,
)

if TYPE_CHECKING:
    import pyarrow as pa

_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 1.0
_PASSING = (ErrorCode.OVERLOADED, ErrorCode.NOT_ENOUGH_REPLICAS)
_DUMMY_HEADERS = b"NATS/1.0\r\nPenstock-Placeholder: 1\r\n\r\n"
_OVERHEAD_BYTES = 64 * limits.KIB  # header, metadata and padding of one batch message: an upper bound


def create_paused(client: blocking.Client, config: StreamConfig, *, timeout: float = 10.0) -> StreamInfo:
    """Create a paused stream, or return the existing one with the same config, unchanged.

    InvalidConfig, StreamExists; RemoteError unsupported_version: the broker is older.
    """
    inner = client._client  # noqa: SLF001 (the same client's asyncio API)

    async def create() -> StreamInfo:
        request = CreateStreamRequest(config=config, timeout_ms=milliseconds(timeout), is_paused=True)
        wait_s = seconds_of(timeout) + CREATE_GRACE_S
        answer, _ = await inner._link.call(request, CreateStreamResponse, timeout_s=wait_s)  # noqa: SLF001
        return answer.stream

    client._thread.run(create())  # noqa: SLF001 (the same client's asyncio API)
    return client.stream(config.name, timeout=timeout)


def alter_copied(
    client: blocking.Client, stream: StreamInfo, changes: dict[str, Any], *, timeout: float = 10.0
) -> None:
    """Alter the config of a stream into which rows are copied, but not `suspend_deletion` if a user has set `yes`.

    InvalidConfig, StreamChanged, StreamNotFound; RemoteError unsupported_version: a broker is older.
    """
    link = client._client._link  # noqa: SLF001 (the same client's asyncio API)
    request = AlterStreamRequest(name=stream.name, stream_id=stream.stream_id, changes=changes, keep_suspended=True)
    client._thread.run(link.call(request, AlterStreamResponse, timeout_s=timeout))  # noqa: SLF001 (the same)


class Placer:
    """Appends rows with their offsets at the end of one partition; `end` is the next offset."""

    def __init__(
        self, client: blocking.Client, stream: StreamInfo, partition: int = 0, *, timeout: float = 60.0
    ) -> None:
        """Query the log's range. StreamNotFound, Unavailable, TimedOut."""
        self._thread = client._thread  # noqa: SLF001 (the same client's asyncio API)
        link = client._client._link  # noqa: SLF001 (the same)
        self._placing = _Placing(link, stream, partition_number(stream, partition), timeout)
        self._thread.run(self._placing.open())

    @property
    def end(self) -> int:
        """The log's `committed_end`: the offset after the last committed message."""
        return self._placing.end

    @property
    def start(self) -> int:
        """The log start offset when this object was made."""
        return self._placing.start

    def put(self, rows: pa.RecordBatch, end_offset: int | None = None, *, may_be_ahead: bool = False) -> None:
        """Append rows of the log's schema with offsets from `end` on; up to `end_offset` there are no further rows.

        `may_be_ahead`: accept timestamps more than a minute ahead of the broker's clock, which are refused otherwise.
        Returns once the rows are committed. RemoteError: out_of_sequence, another program has written rows here;
        bad_request, the stream is not paused, or offsets or times decrease. OutcomeUnknown: the time-out passed, and
        they may be stored.
        """
        if rows.num_rows:
            self._thread.run(self._placing.put(rows, end_offset, may_be_ahead=may_be_ahead))

    def begin_at(self, offset: int) -> None:
        """Set the begin and end of an empty log to `offset`: earlier messages were deleted at the source.

        These are two requests. If a program ends between them, the log's last row is `is_dummy`: the next run gives up
        before its own end.
        """
        self._thread.run(self._placing.begin_at(offset))

    def is_dummy(self, row: Message) -> bool:
        """True if `row`, the last one of the log, is what an interrupted `begin_at(self.end)` has put."""
        *dummy, header_block = self._placing.dummy(self.end, row.timestamp_us).values()
        # Before 0.3 the row had no header, and always the time 0.
        is_marked = row.header_block == header_block or (row.header_block is None and not row.timestamp_us)
        return is_marked and [row.offset, row.timestamp_us, row.subject, row.key, row.value] == dummy

    def give_up_before(self, offset: int) -> None:
        """Truncate the log before `offset`, which is at most its end."""
        self._thread.run(self._placing.give_up_before(offset))


class _Placing:
    def __init__(self, link: Link, stream: StreamInfo, partition: PartitionId, timeout_s: float) -> None:
        self.start = self.end = 0
        self._link = link
        self._stream = stream
        self._partition = partition
        self._timeout_s = timeout_s
        self._bytes_max = limits.APPEND_BYTES_MAX

    async def open(self) -> None:
        self._link.learn(self._stream)
        await self._look()
        self._bytes_max = min(limits.APPEND_BYTES_MAX, self._link.hello.limits.append_bytes_max)

    async def _look(self) -> int:
        stream, partition = self._stream.stream_id, self._partition
        found = await find_place(self._link, stream, partition, LATEST, self._timeout_s)
        self.start, self.end = int(found.log_start), int(found.committed_end)
        return self.end

    async def put(self, rows: pa.RecordBatch, end_offset: int | None, *, may_be_ahead: bool = False) -> None:
        stream_id, partition = self._stream.stream_id, self._partition
        request = AppendAtRequest(stream_id=stream_id, partition=partition, may_be_ahead=may_be_ahead)
        for message in messages_at(rows, self.end, end_offset, bytes_max=self._bytes_max):
            await self._put(request, message, codec.read_header(message).end_offset)

    async def _put(self, request: AppendAtRequest, message: bytearray, end: int) -> None:
        clock = asyncio.get_running_loop()
        deadline_s, pause_s, doubt = clock.time() + seconds_of(self._timeout_s), _PAUSE_S_MIN, OutcomeDoubt()
        while (left_s := deadline_s - clock.time()) > 0:
            try:
                answer, _ = await self._link.call(request, AppendAtResponse, timeout_s=left_s, raw=message, doubt=doubt)
                self.end = int(answer.end_offset)
                return
            except RemoteError as error:
                if error.code == ErrorCode.OUT_OF_SEQUENCE and doubt.exists and error.details.get("log_end") == end:
                    await self._committed(end, deadline_s)  # it was stored by the first attempt
                    return
                if error.code not in _PASSING:
                    raise
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 (spreads load)
            pause_s = min(_PAUSE_S_MAX, 2 * pause_s)
        if doubt.exists:
            raise OutcomeUnknown(f"rows up to offset {end} were not confirmed in time, and may be stored")
        raise TimedOut(f"nothing was stored of the rows up to offset {end} within the time-out")

    async def _committed(self, end: int, deadline_s: float) -> None:
        pause_s = _PAUSE_S_MIN
        while await self._look() < end:
            if asyncio.get_running_loop().time() >= deadline_s:
                raise OutcomeUnknown(f"rows up to offset {end} were not confirmed in time, and may be stored")
            await asyncio.sleep(pause_s)
            pause_s = min(_PAUSE_S_MAX, 2 * pause_s)

    async def begin_at(self, offset: int) -> None:
        """Append one dummy row and truncate it, because a batch needs at least one row."""
        if offset <= self.end:
            return
        if self.start != self.end:
            raise OperationalError(f"a log that holds rows ends at offset {self.end}, and cannot end at {offset}")
        import pyarrow as pa

        from penstock.batch.schema import arrow_schema

        async def put(timestamp_us: int) -> None:
            row = self.dummy(offset, timestamp_us)
            columns = [pa.array([row[field.name]], field.type) for field in arrow_schema()]
            # Also behind a row whose time is in the future: the log has that time already.
            rows = pa.RecordBatch.from_arrays(columns, schema=arrow_schema())
            await self.put(rows, offset, may_be_ahead=timestamp_us > 0)

        try:
            await put(0)
        except RemoteError as error:  # the log had rows, and times never go back
            if error.code != ErrorCode.BAD_REQUEST or "last_timestamp_us" not in error.details:
                raise
            await put(int(error.details["last_timestamp_us"]))
        await self.give_up_before(offset)

    def dummy(self, offset: int, timestamp_us: int) -> dict[str, Any]:
        """Return the row that `begin_at` puts before `offset`; its header distinguishes it from any other."""
        tokens = self._stream.config.subject_of(self._partition).split(".")
        subject = ".".join("x" if token in ("*", ">") else token for token in tokens)
        columns = {"offset": offset - 1, "timestamp": timestamp_us, "subject": subject}
        return {**columns, "key": None, "value": b"", "headers": _DUMMY_HEADERS}

    async def give_up_before(self, offset: int) -> None:
        if offset <= self.start:
            return
        stream_id = self._stream.stream_id
        request = TruncateRequest(stream_id=stream_id, partition=self._partition, before=Offset(offset))
        answer, _ = await self._link.call(request, TruncateResponse, timeout_s=self._timeout_s)
        self.start = int(answer.log_start)


def messages_at(
    rows: pa.RecordBatch, base_offset: int, end_offset: int | None = None, *, bytes_max: int
) -> Iterator[bytearray]:
    """Yield batch messages of at most `bytes_max` bytes that cover `[base_offset, end_offset)` without holes.

    RemoteError (too_large) for a row that does not fit on its own; the rows before it have then been yielded.
    """
    offsets = rows.column("offset")
    end = offsets[-1].as_py() + 1 if end_offset is None else end_offset
    waiting = [rows.slice(begin, limits.BATCH_ROWS_MAX) for begin in range(0, rows.num_rows, limits.BATCH_ROWS_MAX)]
    waiting.reverse()  # the first part on top
    base = base_offset
    while waiting:
        part = waiting.pop()
        if part.nbytes + _OVERHEAD_BYTES > bytes_max and part.num_rows > 1:
            half = part.num_rows // 2
            waiting += (part.slice(half), part.slice(0, half))
            continue
        # The gap after the rows belongs to this batch: the next one begins after it.
        covered = waiting[-1].column("offset")[0].as_py() if waiting else end
        message = codec.encode_arrow_at(part, base, covered)
        if len(message) > bytes_max:
            text = f"one row needs {len(message)} bytes; an append takes at most {bytes_max}"
            raise RemoteError(ErrorCode.TOO_LARGE, text, size_bytes=len(message), bytes_max=bytes_max)
        yield message
        base = covered
