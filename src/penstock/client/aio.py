"""The asyncio face of the client.

Rules: a `Client` belongs to one event loop. Every call takes `timeout` in seconds. A stream is named by its name, or by
the `StreamInfo` that a call returned; the latter means that very stream and no later one of the same name.

    async with penstock.aio.connect() as client:
        await client.create_stream("orders", "orders.>")
        await client.publish("orders.eu", b"42", key="customer-7")
        async for batch in client.read("orders"):
            print(batch.num_rows)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.ids import PartitionId, StreamId
from penstock.client import added, appending, archives, batches, getting, reading, truncating, whole
from penstock.client.checks import check_plain, require, rows_max, stream_config, wanted_columns, whole_number
from penstock.client.consumers import Consumer, wanted
from penstock.client.filters import Filter
from penstock.client.groups import Groups
from penstock.client.keywords import ConsumerOptions, PublishOptions, StreamChanges, StreamOptions
from penstock.client.known_producers import KnownProducer, known_producers
from penstock.client.link import Link
from penstock.client.named_streams import NamedStreams
from penstock.client.of_this_process import OfThisProcess
from penstock.client.positions import Positions
from penstock.client.producing import Producer
from penstock.client.publications import Publications
from penstock.client.publish_format import Ack, Acked, Value, a_kind
from penstock.client.read_from import ReadFrom, Which, read_from_of
from penstock.client.routing import Routes
from penstock.client.staging import Staging
from penstock.client.tables import Table
from penstock.client.users import Users
from penstock.client.values import (
    EARLIEST,
    AppendResult,
    Envelope,
    Message,
    OffsetAt,
    PubAck,
    Start,
    StreamName,
    Truncation,
    datetime_of,
)
from penstock.messages import StatusRequest, StatusResponse, StreamInfo

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

T = TypeVar("T")


class Client(OfThisProcess):
    """A connection to Penstock, as `penstock.aio.connect` makes it; `close` it, or use it in `async with`."""

    def __init__(self, link: Link, name: str, nats_urls: list[str] | None, nats_options: dict[str, Any]) -> None:
        self._link = link
        routes = Routes()
        self._streams = NamedStreams(link, routes)
        self._positions = Positions(link, self._streams)
        self.groups = Groups(self._positions)
        self.staging = Staging(link, self._streams)
        self.users = Users(link)
        self._publications = Publications(link, self._streams, routes, name, nats_urls, nats_options)

    @property
    def server(self) -> str:
        """HOST:PORT of the broker that is asked now; another one, once that does not answer."""
        return self._link.server

    @property
    def nats_urls(self) -> tuple[str, ...]:
        """Where messages are published."""
        return self._publications.urls

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back the connections. Publishes without an ack and reads under way fail. Twice is fine."""
        await self._publications.close()
        await self._positions.close()
        await self._link.close()

    # Streams

    async def create_stream(
        self, name: str, subject: str, *, timeout: float = 10.0, **config: Unpack[StreamOptions]
    ) -> StreamInfo:
        """Create the stream `name` on `subject`, or give the one that is there with the same config.

        `config` has the other fields of `StreamConfig`, such as `max_age_ms=86_400_000` or `durability="os"`.
        A message published after this has returned is stored. InvalidConfig, StreamExists.
        """
        wanted = stream_config({**config, "name": name, "subject": subject})
        return await self._streams.create(wanted, timeout)

    async def alter_stream(
        self, stream: StreamName, *, timeout: float = 10.0, **changes: Unpack[StreamChanges]
    ) -> StreamInfo:
        """Change fields of a stream's config, all or none. InvalidConfig, StreamNotFound."""
        return await self._streams.alter(stream, dict(changes), timeout)

    async def truncate_stream(
        self,
        stream: StreamName,
        before: Start,
        *,
        partition: int | None = None,
        dry_run: bool = False,
        timeout: float = 10.0,
    ) -> list[Truncation]:
        """Give up what comes `before` a place in the log, of all partitions or of one; nothing of it comes back.

        An offset needs a `partition` where there are several. `dry_run`: tell only what would go.
        OffsetOutOfRange (beyond what is committed), StreamNotFound, StreamChanged, ReadOnly, StorageFailed.
        """
        info = await self._streams.now(stream, timeout)
        return await truncating.truncate(self._link, info, before, partition, dry_run=dry_run, timeout_s=timeout)

    async def report_archived(self, stream: StreamName, partition: int, end_offset: int | None, *, archive: str,
        leader_epoch: int | None = None, timeout: float = 10.0) -> int | None:  # fmt: skip
        """Tell that `archive` has a partition up to `end_offset` (None: it is no more); up to where do all have it?

        `leader_epoch`: of whoever told the archive that end; LogTruncated if the log was cut since. OffsetOutOfRange.
        """
        info = await self._streams.now(stream, timeout)
        return await archives.report(self._link, info, partition, end_offset, archive, leader_epoch, timeout)

    async def pause_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Have nobody listen for a stream until it is resumed: publishers get no ack. ReadOnly: it is sealed."""
        return await self._streams.set_intake(stream, Intake.PAUSED, timeout)

    async def resume_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Have a stream take messages again; what is published after this has returned is stored. ReadOnly: sealed."""
        return await self._streams.set_intake(stream, Intake.OPEN, timeout)

    async def make_read_only(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Refuse messages, each with an error, until the stream is resumed. ReadOnly: it is sealed."""
        return await self._streams.set_intake(stream, Intake.READ_ONLY, timeout)

    async def seal_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Refuse messages for good, and keep all that is there: no retention, no truncation, until it is deleted."""
        return await self._streams.set_intake(stream, Intake.SEALED, timeout)

    async def delete_stream(self, stream: StreamName, *, timeout: float = 10.0) -> None:
        """Delete a stream and all its data. StreamNotFound."""
        await self._streams.delete(stream, timeout)

    async def streams(self, *, timeout: float = 10.0) -> list[StreamInfo]:
        """All streams in the order of their names; what they hold is None where their leaders do not answer."""
        return await self._streams.all(timeout)

    async def stream(self, name: str, *, timeout: float = 10.0) -> StreamInfo:
        """One stream as it is now; what it holds is None where its leaders do not answer. StreamNotFound."""
        return await self._streams.one(name, timeout)

    async def streams_for(self, subject: str, *, timeout: float = 10.0) -> list[StreamInfo]:
        """The streams that store a message on this plain subject: those whose acks a publisher may expect."""
        return await self._streams.storing(subject, timeout)

    async def known_producers(
        self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0
    ) -> list[KnownProducer]:
        """Who has appended exactly once in the last ten minutes, as the leaders know. StreamNotFound, StorageFailed."""
        return await known_producers(self._link, await self._streams.now(stream, timeout), partition, timeout)

    async def status(self, *, timeout: float = 10.0) -> StatusResponse:
        """How the broker fares."""
        return (await self._link.call(StatusRequest(), StatusResponse, timeout_s=timeout))[0]

    async def cluster_id(self, *, timeout: float = 10.0) -> str:
        """The id of the cluster: offsets that a program stores mean nothing in another one. Unavailable: none yet."""
        return await self._link.cluster_id(timeout)

    # Reading

    async def read(
        self,
        stream: StreamName,
        start: Start = EARLIEST,
        *,
        end: Start | None = None,
        partition: int | None = None,
        follow: bool = False,
        batch_rows_max: int = limits.READ_BATCH_ROWS_DEFAULT,
        columns: Iterable[str] | None = None,
        where: Filter | None = None,
        read_from: ReadFrom | Which | None = None,
        timeout: float = 10.0,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Committed messages from `start` on as Arrow batches of 1 to `batch_rows_max` rows.

        Ends before `end`, or without one where the log ended when the call was made; with `follow` it waits for more
        for ever (or up to the offset `end`). It goes on where it was when a connection breaks or another broker leads;
        `timeout` bounds each answer, that included.
        Of several partitions all are read, also those added while it follows, unless `partition` names one: in turn,
        each in order. No batch has rows of two; `batch.schema.metadata[b"penstock.partition"]` says which, in hex.
        With `where` only the messages that it lets through; a rare subject, and columns but `value`, cost less.
        `read_from` says which replicas are read from: `ReadFrom`, or one of its words; None: as the client was told.
        Raises StreamNotFound, StreamChanged, OffsetOutOfRange (also when retention overtakes a slow reader),
        LogTruncated (rows that were read are not in the log any more: a memory stream after a restart, a power loss),
        CorruptRange, CorruptionError (what came over the network is damaged), TimedOut, Unavailable.
        """
        asked = (follow, batch_rows_max, columns, timeout, where, read_from)
        async with await self._reader(stream, start, end, partition, *asked) as reader:
            while (found := await reader.next_batches()) is not None:
                for batch in found:
                    yield batch

    async def messages(self, stream: StreamName, start: Start = EARLIEST, *, end: Start | None = None,
        partition: int | None = None, follow: bool = False, where: Filter | None = None,
        read_from: ReadFrom | Which | None = None, timeout: float = 10.0) -> AsyncGenerator[Message, None]:  # fmt: skip
        """As `read`, one `Message` at a time."""
        asked = (follow, limits.READ_BATCH_ROWS_DEFAULT, None, timeout, where, read_from)
        async with await self._reader(stream, start, end, partition, *asked) as reader:
            while (found := await reader.next_batches()) is not None:
                for batch in found:
                    for message in batches.messages_of(batch):
                        yield message

    async def table(self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0) -> Table:
        """The latest message of each key, in memory, once it has all that is there now; from then on kept up to date.

        `timeout` bounds each answer while it is read. Raises what `read` does.
        """
        info = await self._streams.now(stream, timeout)
        return await Table(self._link, timeout).load(info, partition)

    async def get(self, stream: StreamName, offset: int, *, partition: int = 0, timeout: float = 10.0) -> Message:
        """The message at `offset`. OffsetOutOfRange, MessageNotFound."""
        if (number := whole_number("offset", offset)) < 0:
            raise ValueError(f"the offset {number} is negative; offsets count from 0")
        return await self._get(stream, {"offset": number}, partition, timeout)

    async def last(
        self,
        stream: StreamName,
        *,
        key: bytes | str | None = None,
        subject: str | None = None,
        partition: int | None = None,
        timeout: float = 10.0,
    ) -> Message:
        """The latest message of a key, or on a plain subject, in all partitions or in one. MessageNotFound.

        ValueError: a subject with wildcards; `read(where=Filter(subject=…))` takes those.
        """
        if (key is None) == (subject is None):
            raise ValueError("give either key= or subject=")
        if subject is not None:
            check_plain(subject)
        wanted = {"subject": subject} if key is None else {"key": key.encode() if isinstance(key, str) else key}
        return await getting.last(self._link, self._streams, stream, wanted, partition, timeout)

    async def offsets(self, stream: StreamName, at: Start, *, partition: int = 0, timeout: float = 10.0) -> OffsetAt:
        """Where a place in the log is, such as the first message at or after a datetime; and which offsets it holds."""

        async def find(stream_id: StreamId) -> OffsetAt:
            found = await reading.find_place(
                self._link, stream_id, PartitionId(whole_number("partition", partition)), at, timeout
            )
            moment = None if found.timestamp_us is None else datetime_of(found.timestamp_us)
            return OffsetAt(found.offset, moment, found.log_start, found.committed_end)

        return await self._streams.with_id(stream, timeout, find)

    async def to_table(
        self,
        stream: StreamName,
        start: Start = EARLIEST,
        *,
        end: Start | None = None,
        partition: int | None = None,
        columns: Iterable[str] | None = None,
        timeout: float = 10.0,
    ) -> pa.Table:
        """What `read` yields, as one pyarrow table in memory; of several partitions with a column `partition`."""
        info = await self._streams.now(stream, timeout)

        def read(wanted: list[str] | None) -> AsyncIterator[pa.RecordBatch]:
            return self.read(info, start, end=end, partition=partition, columns=wanted, timeout=timeout)

        return await whole.as_table(info, columns, read)

    async def to_pandas(
        self,
        stream: StreamName,
        start: Start = EARLIEST,
        *,
        end: Start | None = None,
        partition: int | None = None,
        columns: Iterable[str] | None = None,
        timeout: float = 10.0,
    ) -> pandas.DataFrame:
        """What `read` yields, as a pandas DataFrame. ImportError without the extra `pandas`."""
        require("pandas")
        return (
            await self.to_table(stream, start, end=end, partition=partition, columns=columns, timeout=timeout)
        ).to_pandas()

    async def to_polars(
        self,
        stream: StreamName,
        start: Start = EARLIEST,
        *,
        end: Start | None = None,
        partition: int | None = None,
        columns: Iterable[str] | None = None,
        timeout: float = 10.0,
    ) -> polars.DataFrame:
        """What `read` yields, as a Polars DataFrame. ImportError without the extra `polars`."""
        require("polars")
        import polars as pl

        frame = pl.from_arrow(
            await self.to_table(stream, start, end=end, partition=partition, columns=columns, timeout=timeout)
        )
        assert isinstance(frame, pl.DataFrame)
        return frame

    def consumer(
        self,
        stream: StreamName,
        group: str,
        *,
        start: Start = EARLIEST,
        timeout: float = 10.0,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """Read as `read` does, as the group of that name: from where it committed last, or from `start`, if nowhere.

        Use it in `with`, and iterate over it: over batches, or over `messages()`. How far it has come is committed
        every `checkpoint_interval` seconds (5), by `commit()` and at the end.
        Consumers of one group share the partitions: one that comes gets its part, and those of one that goes, or is
        silent for its `session` (10 seconds), go to the others. With `partition` it reads that one, and shares nothing.
        Other `options` are those of `read`: `follow`, `batch_rows_max`, `columns`.
        """
        return Consumer(self._positions, wanted(stream, group, start, timeout, options))

    # Writing

    @overload
    async def publish(
        self, subject: str, value: Value, *, ack: Acked = ..., **options: Unpack[PublishOptions]
    ) -> PubAck: ...
    @overload
    async def publish(
        self, subject: str, value: Value, *, ack: Literal["none"], **options: Unpack[PublishOptions]
    ) -> None: ...
    @overload
    async def publish(
        self, subject: str, value: Value, *, ack: Ack = ..., **options: Unpack[PublishOptions]
    ) -> PubAck | None: ...

    async def publish(
        self,
        subject: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        stream: str | None = None,
        ack: Ack = "all",
        envelope: Envelope | None = None,
        retries: int = 0,
        timeout: float = 10.0,
    ) -> PubAck | None:
        """Publish one message through NATS and wait for its ack (None for `ack="none"`); value None is a tombstone.

        Where several streams store the subject, the first ack counts, or that of `stream` if it is named (the others
        then do not store the message).
        On the subject of a stream with several partitions a message goes to the partition of its key, or without one of
        its `Nats-Msg-Id`; those with neither go to all in turn, once this client has made, or asked for, the stream.
        While a leader changes, an ack may be lost, or nobody be subscribed for seconds:
        with `retries` the message is sent again, so many times within `timeout`, while no ack comes, and for as long as
        nobody is subscribed. If only the ack was lost, it is stored twice then. Raises StreamNotFound (nobody stores
        the subject), RemoteError (not_leader: a stream does, but nobody listens for it now; too_large), TimedOut (the
        outcome is unknown), NotEnoughReplicas, Overloaded, StorageFailed, ReadOnly.
        With `envelope` all of it goes in a Liftbridge-compatible envelope: streams with acks="envelope" ack only those.
        RemoteError nats_10071: its expected offset is not the next one. ImportError without the extra `protobuf`.
        """
        publish = self._publications.publish
        future = await publish(subject, value, key, headers, stream, ack, envelope, retries, timeout)
        return await future if future is not None else None

    async def publish_nowait(
        self,
        subject: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        stream: str | None = None,
        ack: Ack = "all",
        envelope: Envelope | None = None,
        retries: int = 0,
        timeout: float = 10.0,
    ) -> asyncio.Future[PubAck | None]:
        """Publish one message and return the future of its ack; `flush` waits for all and raises the first failure.

        Waits only while PUBLISHES_IN_FLIGHT_MAX (4,096) earlier ones have no ack yet.
        """
        publish = self._publications.publish
        future = await publish(subject, value, key, headers, stream, ack, envelope, retries, timeout)
        if future is None:
            done: asyncio.Future[PubAck | None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        self._publications.note_failures(future)
        return future  # type: ignore[return-value]  # a Future[PubAck] gives what a Future[PubAck | None] promises

    async def flush(self, *, timeout: float = 60.0) -> None:
        """Return once every publish so far has its ack; raises the first failure of a `publish_nowait`."""
        await self._publications.flush(timeout)

    async def publish_to_all(
        self,
        subject: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        envelope: Envelope | None = None,
        timeout: float = 10.0,
    ) -> dict[str, PubAck]:
        """Publish one message and wait for an ack of each stream that stores it and acks; by the stream's name.

        StreamNotFound if there is none. The error of a publish that failed in part has the acks in `details["acks"]`.
        """
        return await self._publications.publish_to_all(subject, value, key, headers, envelope, timeout)

    async def append(
        self, stream: StreamName, data: Any, *, partition: int = 0, timeout: float = 60.0
    ) -> list[AppendResult]:
        """Append rows straight to the log, past NATS: a pyarrow, pandas or Polars table, or a list of dicts.

        Columns: value (null: tombstone), subject, key, headers (a dict in a list of dicts, else NATS header blocks);
        see `client.columns`. An index of pandas is no column: `.reset_index()` makes it one. No rows: no results. Large
        data goes in several batches, each whole or not at all; an error in a later one has the results so far in
        `appended` (OutcomeUnknown) or `details["appended"]` (RemoteError). `timeout` is for each batch.
        It is not sent again where it may be stored, at once or later, then behind rows that are appended meanwhile:
        OutcomeUnknown (the connection broke), TimedOut, RemoteError `fenced_epoch` (its leader leads no more), and what
        docs/reference/errors.md says "perhaps" of. A `producer` sends again, and is stored once, in order.
        """
        return await appending.append(self._link, self._streams, stream, data, partition, timeout)

    def producer(
        self,
        stream: StreamName,
        *,
        partition: int = 0,
        producer_id: int | None = None,
        epoch: int = 0,
        sequence: int = 0,
    ) -> Producer:
        """What appends rows exactly once each, through lost answers and failovers; see its `append`.

        It has an id of its own, drawn by chance. Who gives one goes on where another one of that id was: it appends the
        same rows under the same `epoch` and `sequence` again, and those that are there are not stored twice; a higher
        epoch (with the sequence 0) has the other one refused from its first append on.
        """
        return Producer(self._link, self._streams, stream, partition, producer_id, epoch, sequence)

    async def _reader(
        self,
        stream: StreamName,
        start: Start,
        end: Start | None,
        partition: int | None,
        follow: bool,
        batch_rows_max: int,
        columns: Iterable[str] | None,
        timeout: float,
        where: Filter | None = None,
        read_from: ReadFrom | Which | None = None,
    ) -> reading.Reader:
        batch_rows_max = rows_max(batch_rows_max)
        wanted, chosen = wanted_columns(columns), read_from_of(read_from)
        if not isinstance(where, Filter | None):
            raise TypeError(f"where is {a_kind(where)}; give a Filter, such as Filter(key=…) or Filter(subject=…)")
        info = await self._streams.now(stream, timeout)
        link = self._link
        what = await reading.plans(link, info, partition, start, end, follow=follow, timeout_s=timeout)
        grows = follow and partition is None and end is None
        more = added.Added(link, info, len(what), timeout).next if grows else None
        return reading.Reader(link, what, batch_rows_max=batch_rows_max, columns=wanted, timeout_s=timeout, where=where,
            read_from=chosen, more=more)  # fmt: skip

    async def _get(self, stream: StreamName, which: dict[str, Any], partition: int, timeout: float) -> Message:
        return await getting.get(self._link, self._streams, stream, which, partition, timeout)
