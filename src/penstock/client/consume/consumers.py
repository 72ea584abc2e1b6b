"""A consumer: reads a stream as a member of a consumer group, commits its offsets, and resumes from them.

Rules: delivery is at least once: messages delivered but not committed when a consumer ends are redelivered. A message
counts as processed when the next one is requested, or when the consumer is closed without an error. The start offset of
a new group is committed immediately, so "latest" keeps meaning that moment even if no message arrives for long. Nothing
is skipped silently: a committed offset that retention has overtaken raises OffsetOutOfRange, lost messages raise
LogTruncated.
An idle member, without partitions and without `follow`, may inherit those of a dead one, which keeps them until its
session times out. So it waits for that time, and for the coordinator to reassign the partitions. If the group has no
lag left, it ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple

from penstock.base import limits, notebook
from penstock.base.ids import LeaderEpoch, PartitionId
from penstock.client.checks import (
    duration_s,
    fixed_place_of,
    name_and_id,
    rows_max,
    seconds_of,
    wanted_columns,
    whole_numbers,
)
from penstock.client.consume.groups import Groups
from penstock.client.consume.members import Member
from penstock.client.consume.positions import GroupPositions, check_group, mark_of, start_of
from penstock.client.consume.progress import Progress, ReadMark
from penstock.client.errors import MemberFenced, OffsetOutOfRange, TimedOut
from penstock.client.link.keywords import ConsumerOptions
from penstock.client.link.of_this_process import OfThisProcess
from penstock.client.link.read_from import ReadFrom, read_from_of
from penstock.client.read import batches
from penstock.client.read.decoding import TypedColumns, batches_decode_of, typed_columns
from penstock.client.read.reading import Reader, ReadPlan, find_place, partition_numbers, plan
from penstock.client.schemas import Schemas
from penstock.client.values import Message, Start, StreamName
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.schemas.registry import StreamSchemas

_JOIN_S = 1.0  # a new member waits this long for other members to give partitions back


class ConsumerSettings(NamedTuple):
    """Validated arguments of a consumer."""

    stream: StreamName
    group: str
    start: Start
    timeout_s: float
    partition: int | None
    follow: bool
    batch_rows_max: int
    columns: list[str] | None
    decode: Literal["schema"] | StreamSchemas | None
    checkpoint_interval_s: float
    session_s: float
    read_from: ReadFrom | None


def consumer_settings(
    stream: StreamName, group: str, start: Start, timeout_s: float, options: ConsumerOptions
) -> ConsumerSettings:
    """Validate a consumer's arguments. ValueError; TypeError: an unknown option."""
    if unknown := sorted(options.keys() - ConsumerOptions.__annotations__.keys()):
        raise TypeError(f"consumer() has no option {unknown[0]!r}")
    check_group(group)
    asked = ConsumerSettings(
        stream,
        group,
        fixed_place_of(start),
        seconds_of(timeout_s),
        options.get("partition"),
        options.get("follow", False),
        rows_max(options.get("batch_rows_max", limits.READ_BATCH_ROWS_DEFAULT)),
        wanted_columns(options.get("columns")),
        batches_decode_of(options.get("decode")),
        duration_s("checkpoint_interval", options.get("checkpoint_interval", 5.0)),
        duration_s("session", options.get("session", limits.GROUP_SESSION_MS_DEFAULT / 1_000)),
        read_from_of(options.get("read_from")),
    )
    if not asked.checkpoint_interval_s > 0:
        raise ValueError(f"checkpoint_interval is {asked.checkpoint_interval_s:g} s; give it some time")
    if not limits.GROUP_SESSION_MS_MIN <= asked.session_s * 1_000 <= limits.GROUP_SESSION_MS_MAX:
        bounds = f"{limits.GROUP_SESSION_MS_MIN / 1_000:g} and {limits.GROUP_SESSION_MS_MAX / 1_000:g} s"
        raise ValueError(f"session is {asked.session_s:g} s; it lies between {bounds}")
    return asked


class Consumer(OfThisProcess):
    """Reads a stream as a member of a consumer group and commits its offsets; use it in `async with` and `async for`.

    A message counts as processed when the next one is requested. Processed offsets are committed every
    `checkpoint_interval` seconds, by `commit`, and at the end. If the block ends with an error, the message or batch in
    hand is not committed and will be redelivered.
    """

    def __init__(self, positions: GroupPositions, schemas: Schemas, wanted: ConsumerSettings) -> None:
        self._committed = positions
        self._schemas = schemas
        self._wanted = wanted
        self._typed: TypedColumns | None = None  # decodes the batches
        self._info: StreamInfo | None = None
        self._progress = Progress(wanted.checkpoint_interval_s, time.monotonic())
        self._member: Member | None = None  # None: it reads only the partition that its caller named
        self._joined = ("", 0)  # member id and era for which the current partitions are read
        self._reader: Reader | None = None
        self._to_read: frozenset[int] | None = None  # partitions to resume with after a cancelled call
        self._answer: asyncio.Task[Iterator[pa.RecordBatch] | None] | None = None
        self._news: asyncio.Task[bool] | None = None  # waits for a change of the member
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._is_closed = False
        self._has_owned = False  # True once a partition was assigned
        self._patience_ends_s = 0.0  # until when it waits for its first partition
        columns = wanted.columns
        # The offset column is needed to track the consumer's position.
        is_narrow = columns is not None and "value" not in columns
        self._columns = [*dict.fromkeys(("offset", *columns))] if is_narrow and columns is not None else None

    @property
    def group(self) -> str:
        """Name of the consumer group."""
        return self._wanted.group

    @property
    def positions(self) -> dict[int, int]:
        """By partition: the offset of the first message not yet processed."""
        return self._progress.positions

    def __repr__(self) -> str:
        closed = ", closed" if self._is_closed else ""
        name, _ = name_and_id(self._wanted.stream)
        return f"Consumer({name!r}, group={self.group!r}, positions={self.positions}{closed})"

    def _repr_html_(self) -> str:
        name, _ = name_and_id(self._wanted.stream)
        positions = {f"next offset of partition {number}": offset for number, offset in self.positions.items()}
        return notebook.html_pairs({"stream": name, "group": self.group, **positions})

    async def open(self) -> None:
        """Fetch the committed offsets and begin to read. StreamNotFound, OffsetOutOfRange, LogTruncated, TimedOut."""
        if self._info is not None or self._is_closed:
            return
        wanted = self._wanted
        info = await self._committed.streams.now(wanted.stream, wanted.timeout_s)
        self._typed = await typed_columns(self._schemas, info, wanted.columns, wanted.decode, wanted.timeout_s)
        numbers = partition_numbers(info, wanted.partition, wanted.start)
        self._info = info
        try:
            if wanted.partition is not None:
                await self._read(frozenset(map(int, numbers)))
            else:
                await self._join(info)
        except BaseException:
            self._info = None
            await self._stop()
            raise

    async def _join(self, info: StreamInfo) -> None:
        """Join the group and read the partitions that are free now; others follow when their members give them back."""
        wanted = self._wanted
        self._member = member = Member(self._committed, wanted.group, info.stream_id, wanted.session_s)
        member.start()
        # One session, plus the heartbeat that brings its assignment.
        self._patience_ends_s = time.monotonic() + wanted.session_s + 2 * member.calm_s
        try:
            async with asyncio.timeout(wanted.timeout_s):
                await member.heard.wait()
        except TimeoutError:
            raise TimedOut(f"the coordinator of group {wanted.group!r} did not answer in time") from None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_JOIN_S):
                while not (member.is_settled or member.assigned or member.failure):
                    await member.changed.wait()
                    member.changed.clear()
        self._check_member()
        await self._rebalance()

    async def _read(self, numbers: frozenset[int]) -> None:
        """Read exactly these partitions from now on, known ones from their current position."""
        assert self._info is not None
        self._to_read = numbers
        await self._stop_reading()
        info, wanted, link = self._info, self._wanted, self._committed.link
        known = self._progress.marks()
        committed = {}
        if numbers - known.keys():
            committed = await self._committed.fetch(wanted.group, info.stream_id, wanted.timeout_s)
            if not (known or committed) and self._member is not None:
                await self._begin_beside(info, numbers)
        plans: list[ReadPlan] = []
        for number in sorted(numbers):
            mark = known.get(number)
            if mark is None and number in committed:
                mark = mark_of(committed[number])
            start = wanted.start if mark is None else mark.offset
            if mark is None and self._member is not None and number >= len(info.partitions):
                info = self._info = await self._committed.streams.now(info.name, wanted.timeout_s)
            if mark is None and self._member is not None:
                start = start_of(info, number, committed, start)
            what = await self._plan(PartitionId(number), start, mark)
            plans.append(what)
            if number not in known:
                begin = mark or ReadMark(what.range.start, what.leader_epoch)
                self._progress.begin(number, begin, is_committed=number in committed)
        await self._commit()
        if plans:
            reader = Reader(
                link,
                plans,
                batch_rows_max=wanted.batch_rows_max,
                columns=self._columns,
                timeout_s=wanted.timeout_s,
                read_from=wanted.read_from,
            )
            self._reader = await reader.__aenter__()
        self._to_read = None

    async def _begin_beside(self, info: StreamInfo, numbers: frozenset[int]) -> None:
        """For a new group, also commit the start offset of added partitions that are not assigned yet."""
        assert self._member is not None
        added = range(info.counts[0], len(info.partitions)) if info.counts else ()
        plans = [await self._plan(PartitionId(one), self._wanted.start, None) for one in added if one not in numbers]
        if not plans:
            return
        await self._committed.commit(
            self._wanted.group,
            info.stream_id,
            {one.partition: ReadMark(one.range.start, one.leader_epoch) for one in plans},
            self._wanted.timeout_s,
            member_id=self._joined[0],
            generation=self._member.generation,
            is_begin=True,
        )

    async def _plan(self, number: PartitionId, begin: Start, mark: ReadMark | None) -> ReadPlan:
        assert self._info is not None
        wanted = self._wanted
        try:
            what = await plan(
                self._committed.link, self._info, number, begin, None, follow=wanted.follow, timeout_s=wanted.timeout_s
            )
        except OffsetOutOfRange as error:
            if mark is None:
                raise
            text = f"group {wanted.group!r} is at an offset that no longer exists: {error.message}; reset it"
            raise OffsetOutOfRange(error.code, text, **error.details, group=wanted.group) from None
        if mark is not None and mark.leader_epoch is not None:
            what = what._replace(leader_epoch=mark.leader_epoch)  # to detect a log truncated meanwhile
        return what

    async def _stop_reading(self) -> None:
        """Stop the reader and drop rows that were fetched but not delivered."""
        self._batches = iter(())
        answer, self._answer = self._answer, None
        reader, self._reader = self._reader, None
        try:
            if answer is not None:
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)
        finally:
            if reader is not None:
                await reader.__aexit__()

    # Group membership

    def _check_member(self) -> None:
        if self._member is not None and self._member.failure is not None:
            raise self._member.failure

    @property
    def _is_out_of_date(self) -> bool:
        member = self._member
        if member is None:
            return False
        return self._joined != (member.member_id, member.era) or member.assigned != member.owned

    async def _rebalance(self) -> None:
        """Rebalance: commit and release revoked partitions, then begin with new ones. No message is in hand."""
        member = self._member
        assert member is not None
        while self._is_out_of_date:
            self._check_member()
            if self._joined != (member.member_id, member.era):
                for number in self._progress.positions:  # another member may have continued them
                    self._progress.forget(number)
                self._joined = member.member_id, member.era
            joined, assigned = self._joined, member.assigned
            revoked = member.owned - assigned
            if revoked:
                await self._commit()
                for number in revoked:
                    self._progress.forget(number)
            await self._stop_reading()
            if joined != (member.member_id, member.era) or assigned != member.assigned:
                continue  # the assignment changed while this member released partitions
            member.owned = assigned
            self._has_owned = self._has_owned or bool(assigned)
            member.send_heartbeat_now()
            await self._read(assigned)

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
        """Return the next batch; None at the end (never with `follow`). The previous batch counts as processed."""
        batch = await self.hand_over()
        return None if batch is None else self.shown(batch)

    async def hand_over(self) -> pa.RecordBatch | None:
        """Return the next batch for `shown`, and have it in hand; None at the end."""
        batch = await self.take()
        if batch is None:
            return None
        number = self._number(batch)
        self._progress.handed(number, ReadMark(batch.column("offset")[-1].as_py() + 1, self._epoch(number)))
        return batch

    def shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the columns that are wanted, decoded; may run on any thread."""
        if self._typed is not None:
            return self._typed.batch(batch)
        return batch if self._wanted.columns is None else batch.select(self._wanted.columns)

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Yield one message at a time; each counts as processed when the next is requested.

        ValueError: with `decode`, which makes columns of batches.
        """
        self.check_messages()
        while (batch := await self.take(whole=True)) is not None:
            for message in self.each(batch):
                yield message
                if self.is_due:
                    await self.checkpoint()

    def check_messages(self) -> None:
        """Raise ValueError if messages cannot have what is asked for."""
        if self._wanted.decode is not None:
            raise ValueError("messages have a value, not decoded columns: iterate over the consumer's batches")

    async def checkpoint(self) -> None:
        """Commit, including the message in hand; a member that was fenced does not, and rejoins."""
        self._progress.finish()
        await self._commit()

    async def take(self, *, whole: bool = False) -> pa.RecordBatch | None:
        """Return the next batch for `each`, with none of its messages in hand yet; None at the end.

        `whole`: return all columns from now on, whatever columns were requested.
        """
        self._progress.finish()
        if whole and self._columns is not None:
            self._columns = None
            if self._reader is not None:
                await self._read(frozenset(self._progress.positions))
        await self.open()
        if self._is_closed:
            return None
        if self.is_due:
            await self._commit()
        while True:
            self._check_member()
            if self._is_out_of_date:
                await self._rebalance()
            if self._to_read is not None:
                await self._read(self._to_read)
            if (batch := next(self._batches, None)) is not None:
                return batch
            if self._reader is None and not await self._waits_for_more():
                return None
            found = await self._next_answer()
            if found is not None:
                self._batches = found
            elif not self._is_out_of_date:
                await self._stop_reading()

    async def _waits_for_more(self) -> bool:
        """True if more may arrive although nothing is being read: with `follow`, or during a rebalance."""
        member = self._member
        if member is not None and (self._wanted.follow or not member.is_settled):
            if self._progress.uncommitted:  # other members, or added partitions, may wait for this commit
                await self._commit()
            return True
        await self._commit()
        if member is None or self._info is None or self._has_owned:
            return False
        return await self._may_inherit(member, self._info)

    async def _may_inherit(self, member: Member, info: StreamInfo) -> bool:
        """Wait until the idle member gets partitions; return False if no lag is left or others own everything."""
        groups = Groups(self._committed)
        while member.is_idle:
            left_s = self._patience_ends_s - time.monotonic()
            if left_s <= 0:
                return False
            if not any(one.lag for one in await groups.offsets(member.group, info, timeout=self._wanted.timeout_s)):
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, member.calm_s)):
                    await member.changed.wait()
            if member.is_idle:
                member.changed.clear()  # otherwise the caller's next wait must still see the change
        return True

    def each(self, batch: pa.RecordBatch) -> Iterator[Message]:
        """Yield the messages of a taken batch, one in hand at a time; may run on any thread."""
        number = self._number(batch)
        epoch = self._epoch(number)
        era = self._joined[1]
        for message in batches.messages_of(batch, number):
            if self._member is not None and self._member.era != era:
                return  # another member may be reading them now
            self._progress.finish()
            self._progress.handed(number, ReadMark(message.offset + 1, epoch))
            yield message

    @property
    def is_due(self) -> bool:
        """True if a periodic commit is due."""
        return self._progress.is_due(time.monotonic())

    async def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit now, including the message in hand; or `offsets`: by partition, the offset of the next message.

        Returns when a failover cannot lose the commit. TimedOut, Unavailable: it may or may not be committed.
        MemberFenced: another member of the group may own the partition now; nothing is committed. OffsetOutOfRange: the
        log does not hold that offset; nothing is committed.
        """
        await self.open()
        if offsets is None:
            self._progress.finish()
        else:
            assert self._info is not None
            offsets = whole_numbers(offsets)
            epochs = {}  # of leaders that hold what this consumer has not read
            for number, offset in self._progress.beyond(offsets).items():
                link, stream_id = self._committed.link, self._info.stream_id
                found = await find_place(link, stream_id, PartitionId(number), offset, self._wanted.timeout_s)
                epochs[number] = found.leader_epoch
            for number, offset in offsets.items():
                self._progress.seek(number, offset, epochs.get(number))
        await self._commit_or_fail()

    async def close(self) -> None:
        """Commit, including the message in hand, and close. May be called twice."""
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
            await self._stop()

    async def _stop(self) -> None:
        """Stop reading and leave the group."""
        news, self._news = self._news, None
        if news is not None:
            news.cancel()
            await asyncio.gather(news, return_exceptions=True)
        self._to_read = None
        await self._stop_reading()
        member, self._member = self._member, None
        if member is not None:
            await member.leave()

    async def _next_answer(self) -> Iterator[pa.RecordBatch] | None:
        """Wait for the next batches; None at the end of the log, an empty iterator if the member's state changed.

        Makes checkpoints that fall due meanwhile.
        """
        if self._answer is None and self._reader is not None:
            self._answer = asyncio.create_task(self._reader.next_batches())
        if self._news is None and self._member is not None:
            self._news = asyncio.create_task(self._member.changed.wait())
        waiting = {task for task in (self._answer, self._news) if task is not None}
        while True:
            due_s = self._progress.due_s
            timeout_s = None if due_s is None else max(0.0, due_s - time.monotonic())
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self._news is not None and self._news.done():
                assert self._member is not None
                self._news = None
                self._member.changed.clear()
                return iter(())
            if self._answer is not None and self._answer.done():
                answer, self._answer = self._answer, None
                return answer.result()
            await self._commit()

    async def _commit(self) -> None:
        """Commit processed offsets. A fenced member forgets its positions: other members read those messages again."""
        try:
            await self._commit_or_fail()
        except MemberFenced:
            if self._member is not None and self._joined == (self._member.member_id, self._member.era):
                self._member.lose()
            for number in self._progress.positions:
                self._progress.forget(number)

    async def _commit_or_fail(self) -> None:
        marks = self._progress.uncommitted
        if marks:
            assert self._info is not None
            wanted, member = self._wanted, self._member
            await self._committed.commit(
                wanted.group,
                self._info.stream_id,
                marks,
                wanted.timeout_s,
                member_id=None if member is None else self._joined[0],
                generation=0 if member is None else member.generation,
            )
        self._progress.committed(marks, time.monotonic())

    def _number(self, batch: pa.RecordBatch) -> PartitionId:
        said = batches.partition_of(batch)
        assert self._reader is not None
        return PartitionId(self._reader.first_partition if said is None else said)

    def _epoch(self, number: PartitionId) -> LeaderEpoch:
        assert self._reader is not None
        return self._reader.leader_epochs[number]
