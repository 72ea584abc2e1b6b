"""Read a stream: from a position in the log to batches of committed rows, prefetched.

Rules: a reader gets each committed row of its range once, and never an uncommitted one. The rows of a partition are in
order, several partitions take turns, and a batch never has rows of two. While the caller processes one response the
next ones are fetched, at most `PREFETCHED_FETCHES_MAX` of them. The fetch tasks belong to the `Reader` and end with it.
If retention overtakes a reader, it raises an error; it never skips silently.
Corruption: whole batches come unchecked from the leader's file, so only their reader finds a corrupt one. It asks for
the rest of that answer again as a projection, for which the broker checks what it reads: so the broker learns of the
damage and repairs it, and the reader goes on once it is repaired.
A range that the broker itself finds corrupt, and says that it repairs, is waited for like a new leader (see
`link.attempts`); one that it does not repair is an error at once.
Added partitions: a reader that follows a stream polls its metadata every PARTITIONS_POLL_S. It reads an added partition
from its beginning once it has read the older ones up to their marks, that is, everything they hold of the keys that
moved. So the old messages of a key come before its new ones, and no tombstones have to be remembered.
Theory: an offset alone does not identify a row. A log can be truncated (power loss) or begin anew (a memory stream) and
then be written up to the same offset with other rows. So each fetch also names the leader epoch of the row before its
offset. The broker knows where each epoch ended, and refuses a reader that has read beyond that: `LogTruncated`.

| the row before the offset    | the epoch sent                                                           |
|------------------------------|--------------------------------------------------------------------------|
| was read                     | its batch's                                                              |
| was not (the first fetch)    | that of the leader that gave the offset: its log was valid up to there   |
| no longer exists (gaps)      | that of the leader that said so                                          |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.errors import CorruptionError, ErrorCode, OperationalError, RemoteError
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, PartitionKey, StreamId
from penstock.base.partitioning import PartitionBy
from penstock.client.checks import COLUMNS, place_of, seconds_of, whole_number
from penstock.client.errors import OffsetOutOfRange, TimedOut, Unavailable
from penstock.client.link.error_codes import AGAIN, OF_ONE_BROKER
from penstock.client.link.link import Link
from penstock.client.link.read_from import ReadFrom, ReplicaChoice
from penstock.client.read import batches, projecting
from penstock.client.read.batches import OffsetRange
from penstock.client.read.decoding import TypedColumns
from penstock.client.read.filters import Filter
from penstock.client.read.projecting import FetchedColumns, ProjectedFetches
from penstock.client.values import EARLIEST, LastMessages, Place, Start, microseconds_of
from penstock.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    StreamInfo,
)

if TYPE_CHECKING:
    import pyarrow as pa

END_OF_LOG = 2**63 - 1

_EMPTY_PAUSE_S = 0.1  # after an empty answer that did not wait
_ROW_BYTES_MARGIN = 1.25  # rows may be larger than those before, and the last batch reaches beyond the range
_REPAIR_PAUSE_S = 0.2  # before a corrupt range is asked for again
_BEING_REPAIRED = (ErrorCode.CORRUPT_RANGE, ErrorCode.OVERLOADED)  # overloaded: the file was replaced just then


class ReadPlan(NamedTuple):
    """The range that one reader reads. `leader_epoch`: that of the leader that gave the start of the range."""

    stream_id: StreamId
    name: str
    partition: PartitionId
    range: OffsetRange
    leader_epoch: LeaderEpoch
    follow: bool
    is_one_of_several: bool  # the stream has several partitions: batches name theirs


class _Fetched(NamedTuple):
    """The answer to a fetch of `what` from `offset` on."""

    what: ReadPlan
    offset: int
    response: FetchResponse
    raw: bytes | memoryview
    asked: FetchedColumns | None  # None: whole batches
    asking: ProjectedFetches


class _Corrupt(NamedTuple):
    """An answer with a corrupt batch: `reached` is the offset behind the last sound row before it."""

    fetched: _Fetched
    reached: int
    error: CorruptionError


_Queue = asyncio.Queue[_Fetched | BaseException | None]


class _FetchSize:
    """Adapts the size of fetches to the speed of the last answers, up to what the reader wants."""

    def __init__(self, rows_max: int = END_OF_LOG) -> None:
        self._bytes = limits.READ_FETCH_BYTES_FIRST
        self._rows_max = rows_max
        self._row_bytes = float(limits.READ_ROW_BYTES_GUESS)

    def bytes_for(self, rows: int, readers: int) -> int:
        """Return the size of the next fetch, for at most `rows` rows, beside `readers` concurrent fetches."""
        least = limits.READ_FETCH_BYTES_MIN
        share = max(least, limits.READ_FETCH_BYTES_MAX // readers)
        return int(min(self._bytes, share, max(least, min(rows, self._rows_max) * self._row_bytes)))

    def took(self, seconds: float, count: int) -> None:
        """Record that an answer of `count` bytes took `seconds`."""
        in_a_moment = int(count * limits.READ_FETCH_S / max(seconds, 1e-3))
        self._bytes = min(limits.READ_FETCH_BYTES_MAX, max(limits.READ_FETCH_BYTES_MIN, in_a_moment))

    def held(self, rows: int, count: int) -> None:
        """Record that an answer of `count` bytes was whole batches of `rows` rows: the next are expected to be like it.

        The end of a range would otherwise be fetched with megabytes of what lies behind it, if rows are small.
        """
        self._row_bytes = _ROW_BYTES_MARGIN * count / rows


async def find_place(
    link: Link, stream_id: StreamId, partition: PartitionId, place: Start, timeout_s: float
) -> ListOffsetsResponse:
    """Resolve a position to an offset. ValueError: text that is no position, or a naive datetime. OffsetOutOfRange."""
    place = place_of(place)
    at = _wire_place(place)
    request = ListOffsetsRequest(stream_id=stream_id, partition=partition, at=at)
    found, _ = await link.call(request, ListOffsetsResponse, timeout_s=timeout_s)
    if isinstance(place, LastMessages):
        begin = max(found.log_start, found.committed_end - place.message_count)
        return msgspec.structs.replace(found, offset=Offset(begin), timestamp_us=None)
    if isinstance(place, int):
        if not found.log_start <= place <= found.committed_end:
            raise out_of_range(place, found.log_start, found.committed_end)
        return msgspec.structs.replace(found, offset=Offset(place), timestamp_us=None)
    return found


def _wire_place(place: Start) -> Literal["earliest", "latest"] | int:
    if isinstance(place, Place):
        return place.value
    if isinstance(place, datetime):
        return microseconds_of(place)
    if isinstance(place, timedelta):
        if place < timedelta():
            raise ValueError(f"the timedelta {place} is negative: it says how long ago, and is in the future")
        try:
            return microseconds_of(datetime.now(UTC) - place)
        except OverflowError:
            text = f"the timedelta {place} is longer ago than the year 1"
            raise ValueError(f"{text}; EARLIEST is the beginning of the log") from None
    if isinstance(place, bool) or not isinstance(place, int | LastMessages):
        text = "is no place in the log: give EARLIEST, LATEST, an offset, a datetime, a timedelta or text ('5m ago')"
        raise TypeError(f"{place!r} {text}")
    return "earliest"  # its answer has the log's range


def out_of_range(offset: int, log_start: int, committed_end: int) -> OffsetOutOfRange:
    """Return the error that names the existing range."""
    there = f"holds {log_start} up to (not including) {committed_end}"
    if log_start == committed_end:
        there = f"is empty: the next message gets offset {committed_end}"
    return OffsetOutOfRange(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"offset {offset} is not in the log, which {there}",
        offset=offset,
        log_start=log_start,
        committed_end=committed_end,
    )


async def plans(
    link: Link,
    info: StreamInfo,
    partition: int | None,
    start: Start,
    end: Start | None,
    *,
    follow: bool,
    timeout_s: float,
) -> list[ReadPlan]:
    """Return the plans for all partitions, or for one. ValueError: an offset without a partition."""
    start, end = place_of(start), place_of(end)
    numbers = partition_numbers(info, partition, start, end)
    return [await plan(link, info, number, start, end, follow=follow, timeout_s=timeout_s) for number in numbers]


def partition_number(info: StreamInfo, partition: int | None) -> PartitionId:
    """Return the partition given by a caller; None: the first. ValueError: the stream has no such partition."""
    count = max(1, len(info.partitions))
    partition = None if partition is None else whole_number("partition", partition)
    if partition is not None and not 0 <= partition < count:
        text = "1 partition" if count == 1 else f"{count} partitions"
        raise ValueError(f"stream {info.name} has {text}, counted from 0; there is no partition {partition}")
    return PartitionId(partition or 0)


def partition_numbers(info: StreamInfo, partition: int | None, *places: Start | None) -> list[PartitionId]:
    """Return the partition given by a caller; None: all.

    ValueError: the stream has no such partition, or it has several and one of `places` is an offset in none of them.
    """
    number = partition_number(info, partition)
    if partition is not None or len(info.partitions) <= 1:
        return [number]
    if any(isinstance(place, int | LastMessages) for place in places):
        text = f"an offset is a place in one partition, and stream {info.name} has {len(info.partitions)}"
        raise ValueError(f"{text}: say which with partition=, or give a time")
    return [one.partition for one in info.partitions]


async def plan(
    link: Link,
    info: StreamInfo,
    partition: PartitionId,
    start: Start,
    end: Start | None,
    *,
    follow: bool,
    timeout_s: float,
) -> ReadPlan:
    """Return the plan for one partition, with the caller's positions resolved to offsets."""
    ends_at_offset = isinstance(end, int) and not isinstance(end, bool)
    if follow and end is not None and not ends_at_offset:
        raise ValueError("a reader that follows the log can end only at an offset")
    stream_id = info.stream_id
    begin = await find_place(link, stream_id, partition, start, timeout_s)
    stop = END_OF_LOG if follow else begin.committed_end
    if isinstance(end, int) and ends_at_offset:
        stop = min(end, stop)
    elif end is not None:
        finish = await find_place(link, stream_id, partition, end, timeout_s)
        while finish.leader_epoch != begin.leader_epoch:  # a new leader's log may differ
            begin = await find_place(link, stream_id, partition, start, timeout_s)
            finish = await find_place(link, stream_id, partition, end, timeout_s)
        stop = min(finish.offset, begin.committed_end)
    what = OffsetRange(begin.offset, stop)
    return ReadPlan(stream_id, info.name, partition, what, begin.leader_epoch, follow, len(info.partitions) > 1)


def readable(info: StreamInfo, ends: Mapping[PartitionId, int], count: int = 0) -> int:
    """Return how many partitions a reader that has read up to `ends` may read; `count` are already being read."""
    if not info.counts or info.config.split.how is PartitionBy.GROUP:
        return max(count, len(info.partitions))
    ready = info.counts[0]
    for before, after in pairwise(info.counts):
        marks = {one.partition: one.end_offset for one in info.key_marks if one.partitions == after}
        is_read = len(marks) == before and all(ends.get(number, 0) >= end for number, end in marks.items())
        if after > count and not is_read:
            break
        ready = after
    return max(count, ready)


class Reader:
    """Reads some partitions: in `async with`, call `next_batches` until None."""

    # Not a generator: of two nested generators, a loop that ends closes both at once, and one of them complains.

    def __init__(
        self,
        link: Link,
        what: Sequence[ReadPlan],
        *,
        batch_rows_max: int,
        columns: list[str] | None,
        timeout_s: float,
        where: Filter | None = None,
        read_from: ReadFrom | None = None,
        grows: StreamInfo | None = None,
        limit: int | None = None,
        typed: TypedColumns | None = None,
    ) -> None:
        """`grows`: the stream whose added partitions are read, too; None: the reader ends with `what`.

        `limit`: it ends after that many rows; None: it does not. `typed`: decodes the batches, outside the reader.
        """
        assert what
        self._read_from = link.read_from if read_from is None else read_from
        self._link = link
        self._what = what
        self._batch_rows_max = batch_rows_max
        self._columns = columns
        self._where = where
        self._timeout_s = timeout_s
        self._queue: _Queue = asyncio.Queue(max(1, limits.PREFETCHED_FETCHES_MAX - 1))
        self._fetching: list[asyncio.Task[None]] = []
        self._turns = _Turns()
        self._unfinished = 0
        self._grows = grows
        self._is_grown = False
        self.first_partition = what[0].partition  # the partition of batches without a partition number
        self.leader_epochs: dict[PartitionId, LeaderEpoch] = {}  # that sent the last rows delivered
        self.covered_ends: dict[PartitionId, int] = {}  # the end of the last answer, perhaps in a gap
        self._moved = asyncio.Event()  # set with each answer; a waiter clears it
        self._corrupt: _Corrupt | None = None  # found by the iterator that was returned last
        self.typed = typed
        self._rows_left = limit
        self._fetch_rows_max = END_OF_LOG if limit is None or where is not None else limit

    async def __aenter__(self) -> Reader:
        for one in self._what:
            self._begin(one)
        if self._grows is not None:
            self._fetching.append(asyncio.create_task(self._read_added(self._grows)))
        return self

    def _begin(self, what: ReadPlan) -> None:
        self._unfinished += 1
        self._turns.add()
        self.leader_epochs[what.partition] = what.leader_epoch
        self.covered_ends[what.partition] = what.range.start
        key = PartitionKey(what.stream_id, what.partition)
        choice = ReplicaChoice(self._link.view, key, self._read_from, self._link.rack)
        asking = ProjectedFetches(self._columns, self._where)
        size = _FetchSize(self._fetch_rows_max)
        fetching = _fetch_ahead(self._link, what, choice, asking, size, self._queue, self._turns, self._timeout_s)
        self._fetching.append(asyncio.create_task(fetching))

    async def _read_added(self, info: StreamInfo) -> None:
        """Poll for added partitions, and begin with each once it may be read."""
        count = len(self._what)
        due_s = asyncio.get_running_loop().time() + limits.PARTITIONS_POLL_S
        try:
            while True:
                ready = readable(info, self.covered_ends, count)
                if ready > count:
                    added = range(count, ready)
                    try:
                        found = [await self._plan_added(info, PartitionId(number)) for number in added]
                    except (TimedOut, Unavailable):  # for example, the new partition has no leader yet
                        await asyncio.sleep(limits.PARTITIONS_POLL_S)
                        continue
                    self._is_grown = True
                    for what in found:
                        self._begin(what)
                    count = ready
                    continue
                self._moved.clear()
                wakes = self._moved if len(info.partitions) > count else asyncio.Event()
                try:
                    async with asyncio.timeout_at(due_s):
                        await wakes.wait()
                except TimeoutError:
                    info = await self._known_now(info)
                    due_s = asyncio.get_running_loop().time() + limits.PARTITIONS_POLL_S
        except Exception as error:  # noqa: BLE001 (passed to the reader, which raises it)
            await self._queue.put(error)

    async def _plan_added(self, info: StreamInfo, number: PartitionId) -> ReadPlan:
        return await plan(self._link, info, number, EARLIEST, None, follow=True, timeout_s=self._timeout_s)

    async def _known_now(self, info: StreamInfo) -> StreamInfo:
        with contextlib.suppress(TimedOut, Unavailable):
            request = MetadataRequest(names=(info.name,))
            answer, _ = await self._link.call(request, MetadataResponse, timeout_s=self._timeout_s)
            for one in answer.streams:
                if one.stream_id == info.stream_id:  # else it was recreated; the next fetch reports that
                    return one
        return info

    async def __aexit__(self, *_: object) -> None:
        for task in self._fetching:
            task.cancel()
        await asyncio.gather(*self._fetching, return_exceptions=True)

    async def next_batches(self) -> Iterator[pa.RecordBatch] | None:
        """Return the batches of the next answer, or None at the end. The iterator may end before the answer does, at a
        corrupt batch; the next call goes on there.

        RemoteError (corrupt_range): no replica that was asked has sound rows there. CorruptionError: the same, of an
        older broker.
        """
        while self._rows_left != 0:
            if self._corrupt is not None:
                found = await self._ask_again(self._corrupt)
                self._moved.set()
                if found is not None and found.raw:
                    return self._batches(found)
                continue
            item = await self._queue.get()
            if item is None:
                self._unfinished -= 1
                if not self._unfinished:
                    return None
                continue
            if isinstance(item, BaseException):
                raise item
            self.leader_epochs[item.what.partition] = item.response.leader_epoch
            self.covered_ends[item.what.partition] = min(item.response.end_offset, item.what.range.end)
            self._moved.set()
            if item.raw:
                return self._batches(item)
        return None

    @property
    def offsets_to_read(self) -> int:
        """Number of offsets in the ranges that it was made to read."""
        return sum(one.range.end - one.range.start for one in self._what)

    @property
    def offsets_read(self) -> int:
        """Number of those that the answers so far cover."""
        return sum(self.covered_ends.get(one.partition, one.range.start) - one.range.start for one in self._what)

    def _batches(self, fetched: _Fetched) -> Iterator[pa.RecordBatch]:
        what = fetched.what
        for batch in self._wanted_rows(fetched):
            if self._rows_left is not None:
                batch = batch.slice(0, self._rows_left)
                self._rows_left -= batch.num_rows
            selected = batch if self._columns is None else batch.select(self._columns)
            is_told = what.is_one_of_several or self._is_grown
            yield batches.of_partition(selected, what.partition) if is_told else selected
            if self._rows_left == 0:
                return

    def _wanted_rows(self, fetched: _Fetched) -> Iterator[pa.RecordBatch]:
        what, offset, response, raw, asked, asking = fetched
        # Not from the range's start: a batch may begin below the offset asked for, and its first rows were yielded
        # earlier.
        wanted = OffsetRange(offset, min(what.range.end, response.committed_end))
        source = _source(self._link, what, offset)
        if asked is None:
            found = self._sound_rows(fetched, wanted, source)
        else:
            found = projecting.batches_of(raw, response, asked, wanted, source=source)
        seen = rows = 0
        for batch in found:
            seen += batch.num_rows
            if self._where is not None:
                # What was asked for again is of all subjects.
                is_on_subject = asked is not None and asked.subjects is not None
                batch = self._where.rows(batch, is_on_subject=is_on_subject)
            rows += batch.num_rows
            if batch.num_rows <= self._batch_rows_max:
                if batch.num_rows:
                    yield batch
                continue
            for start in range(0, batch.num_rows, self._batch_rows_max):
                yield batch.slice(start, self._batch_rows_max)
        asking.matched(rows, seen if asked is None else response.end_offset - offset)

    def _sound_rows(self, fetched: _Fetched, wanted: OffsetRange, source: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of whole batches up to the first corrupt one, which is noted."""
        covers = OffsetRange(fetched.response.base_offset, fetched.response.end_offset)
        last: pa.RecordBatch | None = None
        try:
            for last in batches.batches_of(fetched.raw, covers, wanted, self._batch_rows_max, source=source):
                yield last
        except CorruptionError as error:
            reached = wanted.start if last is None else last.column(0)[-1].as_py() + 1
            self._corrupt = _Corrupt(fetched, reached, error)
            self.covered_ends[fetched.what.partition] = reached

    async def _ask_again(self, corrupt: _Corrupt) -> _Fetched | None:
        """Fetch the rest of an answer with a corrupt batch in a way that has the broker check it; None if the corrupt
        batch lies behind what is read.
        """
        what, told, asking = corrupt.fetched.what, corrupt.fetched.response, corrupt.fetched.asking
        left = OffsetRange(corrupt.reached, min(what.range.end, told.end_offset))
        if left.start >= left.end:
            self._corrupt = None
            self.covered_ends[what.partition] = left.end
            return None
        key = PartitionKey(what.stream_id, what.partition)
        found = checked_range(self._link, key, left, told.leader_epoch, COLUMNS, corrupt.error, self._timeout_s)
        response, raw = await found
        is_whole = response.end_offset >= left.end
        self._corrupt = None if is_whole else corrupt._replace(reached=response.end_offset)
        self.leader_epochs[what.partition] = response.leader_epoch
        self.covered_ends[what.partition] = min(response.end_offset, left.end)
        return _Fetched(what, left.start, response, raw, FetchedColumns(COLUMNS, None), asking)


async def checked_range(
    link: Link,
    key: PartitionKey,
    wanted: OffsetRange,
    leader_epoch: LeaderEpoch,
    columns: tuple[str, ...],
    corruption: CorruptionError,
    timeout_s: float,
) -> tuple[FetchResponse, bytes | memoryview]:
    """Fetch a range in which the caller has found `corruption`, as a projection: the broker checks the batches, learns
    of the damage and repairs it, for which this waits.

    RemoteError (corrupt_range) if it is not repaired in time; `corruption` if the broker is too old to check it, or has
    nothing there in time.
    """
    clock = asyncio.get_running_loop()
    request = FetchRequest(
        stream_id=key.stream_id,
        partition=key.partition,
        offset=Offset(wanted.start),
        bytes_max=min(limits.READ_FETCH_BYTES_MAX, link.hello.limits.fetch_bytes_max),
        leader_epoch=leader_epoch,
        columns=columns,  # type: ignore[arg-type]
        end=Offset(wanted.end),
    )
    deadline_s = clock.time() + seconds_of(timeout_s)
    last: Exception = corruption
    while True:
        try:
            response, raw = await link.call(request, FetchResponse, timeout_s=max(0.0, deadline_s - clock.time()))
        except RemoteError as error:
            if error.code == ErrorCode.UNSUPPORTED_VERSION:
                raise corruption from None
            if error.code not in _BEING_REPAIRED:
                raise
            last = error
        else:
            if response.end_offset > wanted.start:
                return response, raw
            last = corruption  # a new leader may not know the high watermark yet
        if deadline_s - clock.time() <= 2 * _REPAIR_PAUSE_S:
            raise last
        await asyncio.sleep(_REPAIR_PAUSE_S)


async def answers(begin: Callable[[], Awaitable[Reader]]) -> AsyncGenerator[Iterator[pa.RecordBatch], None]:
    """Yield the batches of one answer at a time, decoded as they are taken; the reader ends with this generator."""
    async with await begin() as reader:
        while (found := await reader.next_batches()) is not None:
            yield found if reader.typed is None else map(reader.typed.batch, found)


class _Turns:
    """Limits how many partitions of a reader fetch at once, or have an answer waiting.

    A partition keeps its turn until its answer is in the queue, so memory is bounded. The partition that has waited
    longest is next, so none is starved.
    """

    def __init__(self) -> None:
        self._count = 0
        self.at_once = 0
        self.turn = asyncio.Semaphore(0)

    def add(self) -> None:
        """Register one more partition."""
        self._count += 1
        if self.at_once < limits.READ_PARTITIONS_AT_ONCE_MAX:
            self.at_once += 1
            self.turn.release()

    @property
    def wait_ms(self) -> int:
        """Duration of a long poll in milliseconds: at the end of one log, others must not wait for long."""
        return limits.READ_WAIT_MS * self.at_once // self._count


async def _fetch_ahead(
    link: Link,
    what: ReadPlan,
    choice: ReplicaChoice,
    asking: ProjectedFetches,
    size: _FetchSize,
    queue: _Queue,
    turns: _Turns,
    timeout_s: float,
) -> None:
    try:
        clock = asyncio.get_running_loop()
        offset, end = what.range
        leader_epoch = what.leader_epoch
        progress_s = clock.time()
        while offset < end:
            async with turns.turn:
                asked_s = clock.time()
                place = _Place(offset, leader_epoch, size.bytes_for(end - offset, turns.at_once), turns.wait_ms)
                response, raw, asked = await _fetch(link, what, choice, asking, place, timeout_s)
                now_s = clock.time()
                size.took(now_s - asked_s, len(raw))
                if raw and asked is None:
                    size.held(response.end_offset - response.base_offset, len(raw))
                if not raw and asked is not None:
                    asking.matched(0, response.end_offset - offset)
                if raw or response.end_offset > offset:
                    await queue.put(_Fetched(what, offset, response, raw, asked, asking))
            if response.end_offset > offset:
                leader_epoch = response.leader_epoch
                if asked is not None and response.last_epoch is not None:
                    leader_epoch = response.last_epoch
                elif raw:
                    # Of a corrupt batch the header tells nothing; the reader asks for it again.
                    with contextlib.suppress(CorruptionError):
                        leader_epoch = batches.last_epoch(raw, source=_source(link, what, offset))
                offset = response.end_offset
                progress_s = clock.time()
            elif not what.follow and now_s - progress_s >= timeout_s:
                raise TimedOut(f"the broker sent nothing from offset {offset} of stream {what.name} on", offset=offset)
            elif now_s - asked_s < _EMPTY_PAUSE_S:
                await asyncio.sleep(_EMPTY_PAUSE_S)
        await queue.put(None)
    except Exception as error:  # noqa: BLE001 (passed to the reader, which raises it)
        await queue.put(error)


class _Place(NamedTuple):
    """Offset, size and long poll of one fetch."""

    offset: int
    leader_epoch: LeaderEpoch
    bytes_max: int
    wait_ms_max: int


async def _fetch(
    link: Link, what: ReadPlan, choice: ReplicaChoice, asking: ProjectedFetches, place: _Place, timeout_s: float
) -> tuple[FetchResponse, bytes | memoryview, FetchedColumns | None]:
    broker_limits = link.hello.limits
    offset = place.offset
    wait_ms = min(place.wait_ms_max, broker_limits.fetch_wait_ms_max) if what.follow else 0
    request = FetchRequest(
        stream_id=what.stream_id,
        partition=what.partition,
        offset=Offset(offset),
        bytes_max=min(place.bytes_max, broker_limits.fetch_bytes_max),
        wait_ms_max=wait_ms,
        leader_epoch=place.leader_epoch,
    )
    wait_s = seconds_of(timeout_s) + wait_ms / 1000
    asked = asking.next(place.leader_epoch)
    if asked is not None:
        end = None if what.range.end == END_OF_LOG else Offset(what.range.end)
        narrow = msgspec.structs.replace(request, columns=asked.columns, subjects=asked.subjects, end=end)
        try:
            response, raw = await _ask(link, narrow, choice, wait_s)
        except RemoteError as error:
            if not asking.is_refused(error, place.leader_epoch):
                raise
            asked = None
    if asked is None:
        response, raw = await _ask(link, request, choice, wait_s)
    batches.check_format(response.format_version)
    if response.base_offset > offset or response.end_offset < offset or (raw and response.end_offset == offset):
        found = f"{response.base_offset} to {response.end_offset}"
        raise CorruptionError(_source(link, what, offset), 0, f"batches from offset {offset}", found)
    if raw and response.end_offset > response.committed_end:
        wanted = f"batches up to the committed end, {response.committed_end}"
        raise CorruptionError(_source(link, what, offset), 0, wanted, f"up to {response.end_offset}")
    return response, raw, asked


async def _ask(
    link: Link, request: FetchRequest, choice: ReplicaChoice, timeout_s: float
) -> tuple[FetchResponse, bytes | memoryview]:
    """Return the answer of a replica or of the leader, which gets the remaining time; see `read_from`."""
    clock = asyncio.get_running_loop()
    deadline_s = clock.time() + seconds_of(timeout_s)
    tried: set[str] = set()
    for _ in range(limits.READ_REPLICAS_TRIED_MAX):
        if (address := choice.address(clock.time())) is None:
            break
        tried.add(address)
        if (answer := await _ask_replica(link, request, choice, address, deadline_s)) is not None:
            choice.answered()
            return answer
        choice.failed(clock.time())
    left_s = max(0.0, deadline_s - clock.time())
    others = [] if choice.wanted.which == "leader" else choice.others(tried)
    if others and left_s >= 2 * limits.READ_REPLICA_S:
        left_s -= limits.READ_REPLICA_S
    try:
        return await link.call(request, FetchResponse, timeout_s=left_s)
    except (RemoteError, OperationalError) as error:
        if isinstance(error, RemoteError) and error.code not in OF_ONE_BROKER | AGAIN:
            raise
        choice.leader_failed(clock.time())
        for address in others:
            if (answer := await _ask_replica(link, request, choice, address, deadline_s)) is not None:
                return answer
        raise


async def _ask_replica(
    link: Link, request: FetchRequest, choice: ReplicaChoice, address: str, deadline_s: float
) -> tuple[FetchResponse, bytes | memoryview] | None:
    """Return the replica's answer; None: it failed, or has no committed message from that offset on."""
    clock = asyncio.get_running_loop()
    key = PartitionKey(request.stream_id, request.partition)
    link.refresh_if_old(key, clock.time())
    bounded = msgspec.structs.replace(request, max_staleness_ms=choice.wanted.max_staleness_ms)
    left_s = min(deadline_s - clock.time(), request.wait_ms_max / 1_000 + limits.READ_REPLICA_S)
    try:
        answer = await link.call_at(address, bounded, FetchResponse, timeout_s=left_s)
    except (RemoteError, OperationalError):  # the leader reports errors of the request itself
        link.refresh_if_old(key, clock.time(), is_wrong=True)
        return None
    # Without a message, the replica may not know the latest `committed_end`; the leader does.
    return answer if answer[0].end_offset > request.offset or request.wait_ms_max else None


def _source(link: Link, what: ReadPlan, offset: int) -> str:
    """Return the source for a CorruptionError, in place of a file: it lets the operator find the broken place."""
    partition = f", partition {what.partition}" if what.is_one_of_several else ""
    server = link.server_of(what.stream_id, what.partition)
    return f"the answer of {server} for stream {what.name}{partition} from offset {offset} on"
