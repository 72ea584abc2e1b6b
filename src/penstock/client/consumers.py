"""A consumer: reads a stream, keeps in the log how far it has come, and goes on there when it is started again.

Rules: each message comes at least once: what was handed out and not committed when a consumer ends comes again. What
was handed out last is done when the next is asked for, or when the consumer is closed without an error. Where a group
begins is committed when it begins, so that "latest" means that moment also if nothing comes for long. Nothing is
skipped silently: a committed offset that retention has overtaken is OffsetOutOfRange, and what was lost is
LogTruncated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.ids import LeaderEpoch, PartitionId
from penstock.client import batches
from penstock.client.checks import wanted_columns
from penstock.client.errors import OffsetOutOfRange
from penstock.client.keywords import ConsumerOptions
from penstock.client.positions import Positions, check_group, mark_of
from penstock.client.progress import Mark, Progress
from penstock.client.reading import Plan, Reader, partition_number, plan
from penstock.client.values import Message, Start, StreamName
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa


class Wanted(NamedTuple):
    """What a caller asks of a consumer."""

    stream: StreamName
    group: str
    start: Start
    timeout_s: float
    partition: int | None
    follow: bool
    batch_rows_max: int
    columns: list[str] | None
    checkpoint_interval_s: float


def wanted(stream: StreamName, group: str, start: Start, timeout_s: float, options: ConsumerOptions) -> Wanted:
    """The same, checked. ValueError, TypeError: an option that there is not."""
    if unknown := sorted(options.keys() - ConsumerOptions.__annotations__.keys()):
        raise TypeError(f"consumer() has no option {unknown[0]!r}")
    check_group(group)
    asked = Wanted(
        stream,
        group,
        start,
        timeout_s,
        options.get("partition"),
        options.get("follow", False),
        options.get("batch_rows_max", limits.READ_BATCH_ROWS_DEFAULT),
        wanted_columns(options.get("columns")),
        options.get("checkpoint_interval", 5.0),
    )
    if asked.batch_rows_max < 1:
        raise ValueError(f"batch_rows_max is {asked.batch_rows_max}; a batch has at least one row")
    if not asked.checkpoint_interval_s > 0:
        raise ValueError(f"checkpoint_interval is {asked.checkpoint_interval_s:g} s; give it some time")
    return asked


class Consumer:
    """Reads a stream as a group, and commits how far it has come; use it in `async with` and `async for`.

    What was handed out last is done when the next is asked for. It is committed every `checkpoint_interval` seconds, by
    `commit`, and at the end; when the block ends with an error, what was in hand then is not, and comes again.
    """

    def __init__(self, positions: Positions, wanted: Wanted) -> None:
        self._committed = positions
        self._wanted = wanted
        self._info: StreamInfo | None = None
        self._progress = Progress(wanted.checkpoint_interval_s, 0.0)
        self._reader: Reader | None = None
        self._answer: asyncio.Task[Iterator[pa.RecordBatch] | None] | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._is_closed = False

    @property
    def group(self) -> str:
        """The group's name."""
        return self._wanted.group

    @property
    def positions(self) -> dict[int, int]:
        """By partition: the offset of the first message that is not done."""
        return self._progress.positions

    async def open(self) -> None:
        """Find out where the group is, and begin there. StreamNotFound, OffsetOutOfRange, LogTruncated, TimedOut."""
        if self._reader is not None or self._is_closed:
            return
        wanted, link = self._wanted, self._committed.link
        info = await self._committed.streams.now(wanted.stream, wanted.timeout_s)
        numbers = [partition_number(info, wanted.partition)]
        if wanted.partition is None and len(info.partitions) > 1:
            if isinstance(wanted.start, int):
                text = f"an offset is a place in one partition, and stream {info.name} has {len(info.partitions)}"
                raise ValueError(f"{text}: say which with partition=")
            numbers = [one.partition for one in info.partitions]
        committed = await self._committed.fetch(wanted.group, info.stream_id, wanted.timeout_s)
        plans: list[Plan] = []
        for number in numbers:
            found = committed.get(number)
            mark = None if found is None else mark_of(found)
            begin = wanted.start if mark is None else mark.offset
            try:
                what = await plan(link, info, number, begin, None, follow=wanted.follow, timeout_s=wanted.timeout_s)
            except OffsetOutOfRange as error:
                if mark is None:
                    raise
                text = f"group {wanted.group!r} is at an offset that is gone: {error.message}; reset it"
                raise OffsetOutOfRange(error.code, text, **error.details) from None
            if mark is not None and mark.leader_epoch is not None:
                what = what._replace(leader_epoch=mark.leader_epoch)  # so that it is told if what came before is lost
            plans.append(what)
            self._progress.begin(
                number, mark or Mark(what.range.start, what.leader_epoch), is_committed=mark is not None
            )
        self._info = info
        await self._commit()
        reader = Reader(link, plans, batch_rows_max=wanted.batch_rows_max, columns=None, timeout_s=wanted.timeout_s)
        self._reader = await reader.__aenter__()

    async def __aenter__(self) -> Consumer:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(is_done=error is None)

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        batch = await self.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def next_batch(self) -> pa.RecordBatch | None:
        """The next messages; None at the end, which with `follow` never comes. What came before is done."""
        batch = await self.take()
        if batch is None:
            return None
        number = self._number(batch)
        self._progress.handed(number, Mark(batch.column("offset")[-1].as_py() + 1, self._epoch(number)))
        return batch if self._wanted.columns is None else batch.select(self._wanted.columns)

    async def messages(self) -> AsyncGenerator[Message, None]:
        """One message at a time; each is done when the next is asked for."""
        while (batch := await self.take()) is not None:
            for message in self.each(batch):
                yield message
                if self.is_due:
                    await self.commit()

    async def take(self) -> pa.RecordBatch | None:
        """The next messages, for `each`: none of them is in hand yet; None at the end."""
        await self.open()
        self._progress.finish()
        if self.is_due:
            await self._commit()
        if self._is_closed:
            return None
        while (batch := next(self._batches, None)) is None:
            found = await self._next_answer()
            if found is None:
                await self._commit()
                return None
            self._batches = found
        return batch

    def each(self, batch: pa.RecordBatch) -> Iterator[Message]:
        """The messages of what was taken, one in hand at a time; on any thread."""
        number = self._number(batch)
        epoch = self._epoch(number)
        for message in batches.messages_of(batch, number):
            self._progress.finish()
            self._progress.handed(number, Mark(message.offset + 1, epoch))
            yield message

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is to be made."""
        return self._progress.is_due(monotonic())

    async def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit now, with what is in hand; or `offsets`, each that of the next message, by partition.

        Returns when a failover cannot lose it. TimedOut, Unavailable: it may or may not be committed.
        """
        await self.open()
        if offsets is None:
            self._progress.finish()
        else:
            for number, offset in offsets.items():
                self._progress.seek(number, offset)
        await self._commit()

    async def close(self) -> None:
        """Commit, with what is in hand, and end. Twice is fine."""
        await self._end(is_done=True)

    async def _end(self, *, is_done: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if is_done:
                self._progress.finish()
                await self._commit()
            else:
                with contextlib.suppress(Exception):  # the error that ends the block says more
                    await self._commit()
        finally:
            if self._answer is not None:
                self._answer.cancel()
                await asyncio.gather(self._answer, return_exceptions=True)
            if self._reader is not None:
                await self._reader.__aexit__()

    async def _next_answer(self) -> Iterator[pa.RecordBatch] | None:
        """What comes next; a checkpoint that falls due meanwhile is made."""
        assert self._reader is not None
        if self._answer is None:
            self._answer = asyncio.create_task(self._reader.next_batches())
        while True:
            due_s = self._progress.due_s
            await asyncio.wait({self._answer}, timeout=None if due_s is None else max(0.0, due_s - monotonic()))
            if self._answer.done():
                answer, self._answer = self._answer, None
                return answer.result()
            await self._commit()

    async def _commit(self) -> None:
        marks = self._progress.uncommitted
        if marks:
            assert self._info is not None
            wanted = self._wanted
            await self._committed.commit(wanted.group, self._info.stream_id, marks, wanted.timeout_s)
        self._progress.committed(marks, monotonic())

    def _number(self, batch: pa.RecordBatch) -> PartitionId:
        said = batches.partition_of(batch)
        assert self._reader is not None
        return PartitionId(self._reader.first_partition if said is None else said)

    def _epoch(self, number: PartitionId) -> LeaderEpoch:
        assert self._reader is not None
        return self._reader.leader_epochs[number]
