"""Rows that keep their offsets and times: a stream that is paused takes them, one batch behind the other.

Rules: what is put begins where the log ends, so nothing is stored twice: whoever asks again after a lost answer is told
that the log ends further on, and waits until that is committed. One program puts at a time; another one's rows are
noticed, and end it. What a batch covers beyond its rows is a gap.

For programs that bring a log from elsewhere: an import, a restore. Streams that others use are appended to.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.batch import codec
from penstock.client import blocking
from penstock.client.attempts import Doubt
from penstock.client.checks import milliseconds, seconds_of
from penstock.client.errors import OutcomeUnknown, TimedOut
from penstock.client.link import CREATE_GRACE_S, Link
from penstock.client.reading import find_place, partition_number
from penstock.client.values import LATEST
from penstock.messages import (
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
_OVERHEAD_BYTES = 64 * limits.KIB  # header, metadata and padding of one batch message, generously


def create_paused(client: blocking.Client, config: StreamConfig, *, timeout: float = 10.0) -> StreamInfo:
    """Make a stream for which nobody listens, or give the one that is there with the same config, as it is.

    InvalidConfig, StreamExists; RemoteError unsupported_version: the broker is older.
    """
    inner = client._client  # noqa: SLF001 (the same client's face)

    async def create() -> StreamInfo:
        request = CreateStreamRequest(config=config, timeout_ms=milliseconds(timeout), is_paused=True)
        wait_s = seconds_of(timeout) + CREATE_GRACE_S
        answer, _ = await inner._link.call(request, CreateStreamResponse, timeout_s=wait_s)  # noqa: SLF001
        return answer.stream

    client._thread.run(create())  # noqa: SLF001 (the same client's face)
    return client.stream(config.name, timeout=timeout)


class Placer:
    """Puts rows at the end of one partition; `end` is where the next ones begin."""

    def __init__(
        self, client: blocking.Client, stream: StreamInfo, partition: int = 0, *, timeout: float = 60.0
    ) -> None:
        """Looks up where the log ends. StreamNotFound, Unavailable, TimedOut."""
        self._thread = client._thread  # noqa: SLF001 (the same client's face)
        link = client._client._link  # noqa: SLF001 (the same)
        self._placing = _Placing(link, stream, partition_number(stream, partition), timeout)
        self._thread.run(self._placing.open())

    @property
    def end(self) -> int:
        """The offset behind all that is committed."""
        return self._placing.end

    @property
    def start(self) -> int:
        """The first offset that was kept when this one was made."""
        return self._placing.start

    def put(self, rows: pa.RecordBatch, end_offset: int | None = None, *, may_be_ahead: bool = False) -> None:
        """Put rows of the log's schema, which lie at `end` or behind it; up to `end_offset` nothing else will come.

        `may_be_ahead`: their times may be more than a minute ahead of the broker's clock, which is refused else.

        Returns once they are committed. RemoteError: out_of_sequence, another one has put rows here; bad_request, the
        stream is not paused, or offsets or times go back. OutcomeUnknown: the time passed, and they may be stored.
        """
        if rows.num_rows:
            self._thread.run(self._placing.put(rows, end_offset, may_be_ahead=may_be_ahead))

    def begin_at(self, offset: int) -> None:
        """Have an empty log begin, and end, there: what comes before was given up where it is from."""
        self._thread.run(self._placing.begin_at(offset))

    def give_up_before(self, offset: int) -> None:
        """Have the log begin there, at its end at most."""
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
        deadline_s, pause_s, doubt = clock.time() + seconds_of(self._timeout_s), _PAUSE_S_MIN, Doubt()
        while (left_s := deadline_s - clock.time()) > 0:
            try:
                answer, _ = await self._link.call(request, AppendAtResponse, timeout_s=left_s, raw=message, doubt=doubt)
                self.end = int(answer.end_offset)
                return
            except RemoteError as error:
                if error.code == ErrorCode.OUT_OF_SEQUENCE and doubt.exists and error.details.get("log_end") == end:
                    await self._committed(end, deadline_s)  # it was stored the first time
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
        """A batch has one row at least: here it is one that is given up at once."""
        if offset <= self.end:
            return
        if self.start != self.end:
            raise OperationalError(f"a log that holds rows ends at offset {self.end}, and cannot end at {offset}")
        import pyarrow as pa

        from penstock.batch.schema import arrow_schema

        tokens = self._stream.config.subject_of(self._partition).split(".")
        subject = ".".join("x" if token in ("*", ">") else token for token in tokens)
        row = {"offset": offset - 1, "timestamp": 0, "subject": subject, "key": None, "value": b"", "headers": None}
        columns = [pa.array([row[field.name]], field.type) for field in arrow_schema()]
        await self.put(pa.RecordBatch.from_arrays(columns, schema=arrow_schema()), offset)
        await self.give_up_before(offset)

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
    """Batch messages of at most `bytes_max` bytes that cover `[base_offset, end_offset)`, one behind the other.

    RemoteError (too_large) for a row that does not fit on its own; what was before it has then been yielded.
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
        # What is missing behind the rows belongs to them: the next ones begin there.
        covered = waiting[-1].column("offset")[0].as_py() if waiting else end
        message = codec.encode_arrow_at(part, base, covered)
        if len(message) > bytes_max:
            text = f"one row needs {len(message)} bytes; an append takes at most {bytes_max}"
            raise RemoteError(ErrorCode.TOO_LARGE, text, size_bytes=len(message), bytes_max=bytes_max)
        yield message
        base = covered
