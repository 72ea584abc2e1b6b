"""A table of a stream: the latest message of each key, in memory, kept up to date.

Rules: the table reads the log from its beginning and then follows it; it is ready once it has everything that was
committed at the call, as far as compaction has kept it. A tombstone removes its key; messages without a key are
ignored. Arrow finds the latest row of each key in a batch, and only those become objects. For a reader of changes only
the latest pending message of each key is kept: a slow reader misses overwritten messages, and pending messages never
exceed the number of keys.
Of a key-value bucket of JetStream's clients, the stream `KV_<bucket>` on `$KV.<bucket>.>`, the key is what follows the
bucket in the subject. A message that its clients write or read as a deletion (`KV-Operation`, `Nats-Marker-Reason`) is
a tombstone.
Added partitions are followed, too, each once the older ones are read up to the marks of the keys that moved
(`client.read.reading`), so the row of a key that is read last is the latest. If a key is in several partitions for
other reasons, which publishers with keys avoid, the row read last still wins.

| what happens                                      | the table                                                      |
|---------------------------------------------------|----------------------------------------------------------------|
| no broker answers                                 | stays unchanged, and resumes once a broker answers             |
| retention overtakes it, the log lost rows that it | raises that from every call: make another one                  |
| read, the stream is deleted, data are corrupted   |                                                                |
| the table or its client is closed                 | look-ups raise; iterators over changes end                     |

Idea: Kafka Streams' KTable, without its joins.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar, overload

from penstock.base import limits, notebook
from penstock.base.errors import OperationalError, PenstockError
from penstock.base.ids import LeaderEpoch, PartitionId
from penstock.batch.keys import have_key
from penstock.client.checks import seconds_of, whole_number
from penstock.client.errors import ClientClosed, TimedOut, Unavailable
from penstock.client.link.link import Link
from penstock.client.link.of_this_process import OfThisProcess
from penstock.client.read import batches
from penstock.client.read.batches import OffsetRange
from penstock.client.read.gathering import pandas_of, polars_of, table_of
from penstock.client.read.reading import END_OF_LOG, Reader, ReadPlan, find_place, partition_numbers, readable
from penstock.client.values import EARLIEST, Headers, Message, messages_html
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from penstock.schemas.registry import StreamSchemas

T = TypeVar("T")

_AGAIN_S = 0.5
_BUCKET = "KV_"
_DELETIONS = ("DEL", "PURGE")  # values of KV-Operation
_MARKERS = ("MaxAge", "Purge", "Remove")  # values of Nats-Marker-Reason


class Table(OfThisProcess, Mapping[bytes, Message]):
    """The latest message of each key of a stream, made by `Client.table`. Call `close`, or use it in `async with`.

    A read-only mapping of a key to its latest message: `table["k"]`, `table.items()`. A key is looked up as text, too.
    """

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._name = ""  # of the stream
        self._has_partition = False  # it has several
        self._bucket_prefix = ""  # what precedes the key in the subjects of a key-value bucket; "": it is none
        self._latest: dict[bytes, Message] = {}
        self._ends: dict[PartitionId, int] = {}  # by partition: end of the rows applied
        self._epochs: dict[PartitionId, LeaderEpoch] = {}  # by partition: leader epoch of that end
        self._is_whole = True  # it covers all partitions, including added ones
        self._moved = asyncio.Event()  # replaced by a new event at each change
        self._readers: weakref.WeakSet[Changes] = weakref.WeakSet()
        self._failure: Exception | None = None
        self._is_closed = False
        self._following: asyncio.Task[None] | None = None

    async def load(self, info: StreamInfo, partition: int | None) -> Table:
        """Read everything that is in the stream now, then follow it; `timeout_s` bounds each answer."""
        self._name = info.name
        self._has_partition = len(info.partitions) > 1
        self._bucket_prefix = _bucket_prefix_of(info)
        self._is_whole = partition is None
        there: dict[PartitionId, int] = {}
        for at, number in enumerate(partition_numbers(info, partition)):
            found = await find_place(self._link, info.stream_id, number, EARLIEST, self._timeout_s)
            if not self._is_whole or at < max(1, readable(info, {})):
                self._ends[number], self._epochs[number] = found.offset, found.leader_epoch
            if found.offset < found.committed_end:
                there[number] = found.committed_end
        self._following = asyncio.create_task(self._follow(info))
        try:
            for number, end in there.items():
                await self._until(number, end)
        except BaseException:
            await self.close()
            raise
        return self

    def __getitem__(self, key: bytes | str) -> Message:
        """Return the latest message of a key. KeyError if there is none, or it is a tombstone."""
        self._check_open()
        return self._latest[key.encode() if isinstance(key, str) else key]

    @overload
    def get(self, key: bytes | str) -> Message | None: ...
    @overload
    def get(self, key: bytes | str, default: Message | T) -> Message | T: ...

    def get(self, key: bytes | str, default: Message | T | None = None) -> Message | T | None:
        """Return the latest message of a key; `default` if there is none, or it is a tombstone."""
        self._check_open()
        return self._latest.get(key.encode() if isinstance(key, str) else key, default)

    def __contains__(self, key: object) -> bool:
        """True if `get` would return a message for the key."""
        return isinstance(key, bytes | str) and self.get(key) is not None

    def __len__(self) -> int:
        """Return the number of keys."""
        self._check_open()
        return len(self._latest)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the current keys, in the order in which they first appeared."""
        self._check_open()
        return iter(list(self._latest))

    def items(self) -> ItemsView[bytes, Message]:
        """Return the keys and messages as they are now."""
        self._check_open()
        return dict(self._latest).items()

    def values(self) -> ValuesView[Message]:
        """Return the messages as they are now."""
        self._check_open()
        return dict(self._latest).values()

    def to_table(self, *, decode: Literal["json"] | StreamSchemas | None = None) -> pa.Table:
        """Return the messages as a pyarrow table; `decode`: "json", or the schemas that `Client.schemas` returned."""
        return table_of(self.values(), has_partition=self._has_partition, decode=decode)

    def to_pandas(self, *, decode: Literal["json"] | StreamSchemas | None = None) -> pandas.DataFrame:
        """Return the messages as a pandas DataFrame. ImportError without the extra `pandas`."""
        return pandas_of(self.to_table(decode=decode))

    def to_polars(self, *, decode: Literal["json"] | StreamSchemas | None = None) -> polars.DataFrame:
        """Return the messages as a Polars DataFrame. ImportError without the extra `polars`."""
        return polars_of(self.to_table(decode=decode))

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"keys={len(self._latest)}"
        return f"Table({self._name!r}, {state})"

    def _repr_html_(self) -> str:
        latest = dict(self._latest)
        return f"<p>{notebook.escaped(repr(self))}</p>{messages_html(latest.values(), count=len(latest))}"

    def changes(self) -> Changes:
        """Iterate over messages that change the table from this call on, tombstones included; only the latest of each
        key.

        Ends when the table is closed.
        """
        made = Changes(self)
        self._readers.add(made)
        return made

    async def wait_for(self, offset: int, *, partition: int = 0, timeout: float = 10.0) -> None:
        """Wait until the table has applied that offset, such as that of an ack, or has passed its gap. TimedOut.

        Also waits for a partition that was just added.
        """
        try:
            async with asyncio.timeout(seconds_of(timeout)):
                await self._until(PartitionId(whole_number("partition", partition)), whole_number("offset", offset) + 1)
        except TimeoutError:
            if self._failure is not None:
                raise
            raise TimedOut(f"the table has not come to offset {offset} of partition {partition} in time") from None

    async def close(self) -> None:
        """Stop following the stream and free the memory. May be called twice."""
        self._is_closed = True
        task, self._following = self._following, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._latest.clear()
        self._wake()

    async def __aenter__(self) -> Table:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def moved(self) -> bool:
        """Wait until more was applied and return True; return False if the table is closed."""
        self._check()
        if not self._is_closed:
            await self._moved.wait()
        return not self._is_closed

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _check_open(self) -> None:
        """Raise OperationalError if the table is no longer kept up to date, since its messages may be stale."""
        self._check()
        if self._is_closed:
            raise OperationalError("the table is closed")
        if self._link.is_closed:
            raise ClientClosed

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _until(self, partition: PartitionId, end: int) -> None:
        if partition not in self._ends and not (self._is_whole and partition >= 0):
            raise ValueError(f"the table is not made of partition {partition}")
        while self._ends.get(partition, 0) < end:
            self._check()
            if self._is_closed:
                raise OperationalError("the table is closed")
            await self._moved.wait()

    async def _follow(self, info: StreamInfo) -> None:
        """Read the stream for ever; retry while no broker answers."""
        try:
            while True:
                try:
                    await self._read(info)
                except (TimedOut, Unavailable):
                    if self._link.is_closed:
                        raise
                    await asyncio.sleep(_AGAIN_S)
        except PenstockError as error:
            self._failure = error
            self._wake()

    async def _read(self, info: StreamInfo) -> None:
        what = [
            ReadPlan(info.stream_id, info.name, number, OffsetRange(end, END_OF_LOG), self._epochs[number], True, True)
            for number, end in self._ends.items()
        ]
        async with Reader(
            self._link,
            what,
            batch_rows_max=limits.READ_BATCH_ROWS_DEFAULT,
            columns=None,
            timeout_s=self._timeout_s,
            grows=info if self._is_whole else None,
        ) as reader:
            while (found := await reader.next_batches()) is not None:
                for batch in found:
                    self._take(batch, reader.leader_epochs)
                self._ends.update(reader.covered_ends)  # an answer may end in a gap
                self._epochs.update(reader.leader_epochs)
                self._wake()

    def _take(self, batch: pa.RecordBatch, epochs: dict[PartitionId, LeaderEpoch]) -> None:
        number = PartitionId(batches.partition_of(batch) or 0)
        prefix = self._bucket_prefix
        for message in batches.messages_of(_latest_of(_keyed_by_subject(batch, prefix) if prefix else batch)):
            key = message.key
            assert key is not None
            if prefix and _is_deletion(message):
                message.value = None
            if message.is_tombstone:
                self._latest.pop(key, None)
            else:
                self._latest[key] = message
            for reader in self._readers:
                reader.pending.pop(key, None)
                reader.pending[key] = message
        self._ends[number] = batch.column("offset")[-1].as_py() + 1
        self._epochs[number] = epochs[number]
        self._wake()


class Changes:
    """Iterates over the messages that change a table: `async for`."""

    def __init__(self, table: Table) -> None:
        self.pending: dict[bytes, Message] = {}  # not yet returned, the latest of each key
        self._table = table

    def __aiter__(self) -> Changes:
        return self

    async def __anext__(self) -> Message:
        while not self.pending:
            if not await self._table.moved():
                raise StopAsyncIteration
        return self.pending.pop(next(iter(self.pending)))


def _bucket_prefix_of(info: StreamInfo) -> str:
    """Return what precedes the key in each subject; "" if the stream is no key-value bucket."""
    prefix = f"$KV.{info.name.removeprefix(_BUCKET)}."
    return prefix if info.name.startswith(_BUCKET) and info.subjects == (f"{prefix}>",) else ""


def _keyed_by_subject(batch: pa.RecordBatch, prefix: str) -> pa.RecordBatch:
    """Return the rows of a key-value bucket with the end of their subjects as keys."""
    import pyarrow.compute as pc

    number = batch.schema.get_field_index("key")
    field = batch.schema.field(number)
    keys = pc.utf8_slice_codeunits(batch.column("subject"), len(prefix)).cast(field.type)
    return batch.set_column(number, field, keys)


def _is_deletion(message: Message) -> bool:
    """True if clients of a key-value bucket take the message as a deletion of its key."""
    block = message.header_block
    if block is None or not (b"KV-Operation" in block or b"Nats-Marker-Reason" in block):
        return False
    headers = Headers(block)  # not the message's own, which would stay in memory
    return headers.get("KV-Operation") in _DELETIONS or headers.get("Nats-Marker-Reason") in _MARKERS


def _latest_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the last row of each key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keyed = batch.filter(have_key(batch.column("key")))
    table = pa.table({"key": keyed.column("key"), "offset": keyed.column("offset")})
    last = table.group_by("key").aggregate([("offset", "max")]).column("offset_max")
    return keyed.filter(pc.is_in(keyed.column("offset"), last.combine_chunks()))
