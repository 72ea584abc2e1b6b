"""The asyncio client.

Rules: a `Client` belongs to one event loop. Every call takes `timeout` in seconds. A stream is given by its name, or by
the `StreamInfo` that a call returned; the latter means that very stream, not a later one of the same name.

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
from penstock.client.append import appending
from penstock.client.append.known_producers import KnownProducer, known_producers
from penstock.client.append.producing import Producer
from penstock.client.append.staging import Staging
from penstock.client.checks import check_plain, require, rows_max, stream_config, wanted_columns, whole_number
from penstock.client.consume import getting, new_partitions, whole_table
from penstock.client.consume.consumers import Consumer, consumer_settings
from penstock.client.consume.groups import Groups
from penstock.client.consume.positions import GroupPositions
from penstock.client.consume.tables import Table
from penstock.client.link.keywords import ConsumerOptions, PublishOptions, StreamChanges, StreamOptions
from penstock.client.link.link import Link
from penstock.client.link.of_this_process import OfThisProcess
from penstock.client.link.read_from import ReadFrom, Which, read_from_of
from penstock.client.publish.publications import Publications
from penstock.client.publish_format import Ack, Acked, Value, a_kind
from penstock.client.read import batches, reading
from penstock.client.read.filters import Filter
from penstock.client.streams import archives, truncating
from penstock.client.streams.named_streams import NamedStreams
from penstock.client.streams.routing import Routes
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
    """A connection to Penstock, made by `penstock.aio.connect`. Call `close`, or use it in `async with`."""

    def __init__(self, link: Link, name: str, nats_urls: list[str] | None, nats_options: dict[str, Any]) -> None:
        self._link = link
        routes = Routes()
        self._streams = NamedStreams(link, routes)
        self._positions = GroupPositions(link, self._streams)
        self.groups = Groups(self._positions)
        self.staging = Staging(link, self._streams)
        self.users = Users(link)
        self._publications = Publications(link, self._streams, routes, name, nats_urls, nats_options)

    @property
    def server(self) -> str:
        """HOST:PORT of the broker currently used for requests; it changes if that broker stops answering."""
        return self._link.server

    @property
    def nats_urls(self) -> tuple[str, ...]:
        """NATS servers to which messages are published."""
        return self._publications.urls

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Unacked publishes and running reads fail. May be called twice."""
        await self._publications.close()
        await self._positions.close()
        await self._link.close()

    # Streams

    async def create_stream(
        self, name: str, subject: str, *, timeout: float = 10.0, **config: Unpack[StreamOptions]
    ) -> StreamInfo:
        """Create the stream `name` on `subject`, or return the existing stream if it has the same config.

        `config` takes the other fields of `StreamConfig`, such as `max_age_ms=86_400_000` or `durability="os"`.
        A message published after this call returned is stored. InvalidConfig, StreamExists.
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
        """Delete everything `before` a position in the log, in all partitions or in one; it cannot be undone.

        An offset requires `partition` if the stream has several. `dry_run`: only return what would be deleted.
        OffsetOutOfRange (beyond `committed_end`), StreamNotFound, StreamChanged, ReadOnly, StorageFailed.
        """
        info = await self._streams.now(stream, timeout)
        return await truncating.truncate(self._link, info, before, partition, dry_run=dry_run, timeout_s=timeout)

    async def report_archived(self, stream: StreamName, partition: int, end_offset: int | None, *, archive: str,
        leader_epoch: int | None = None, timeout: float = 10.0) -> int | None:  # fmt: skip
        """Report that `archive` holds a partition up to `end_offset` (exclusive); None: the archive is given up.

        Returns the end offset up to which all archives of the stream hold the partition; None: the stream has no
        archive. `leader_epoch`: that of the leader from which the archive got its end; LogTruncated if the log was
        truncated below that end since. OffsetOutOfRange.
        """
        info = await self._streams.now(stream, timeout)
        return await archives.report(self._link, info, partition, end_offset, archive, leader_epoch, timeout)

    async def pause_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Unsubscribe the stream until it is resumed; publishers get no ack meanwhile. ReadOnly: it is sealed."""
        return await self._streams.set_intake(stream, Intake.PAUSED, timeout)

    async def resume_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Accept messages again; a message published after this returned is stored. ReadOnly: the stream is sealed."""
        return await self._streams.set_intake(stream, Intake.OPEN, timeout)

    async def make_read_only(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Refuse messages, each with an error, until the stream is resumed. ReadOnly: the stream is sealed."""
        return await self._streams.set_intake(stream, Intake.READ_ONLY, timeout)

    async def seal_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Refuse messages permanently and keep all data: no retention and no truncation until the stream is deleted."""
        return await self._streams.set_intake(stream, Intake.SEALED, timeout)

    async def delete_stream(self, stream: StreamName, *, timeout: float = 10.0) -> None:
        """Delete a stream and all its data. StreamNotFound."""
        await self._streams.delete(stream, timeout)

    async def streams(self, *, timeout: float = 10.0) -> list[StreamInfo]:
        """Return all streams, ordered by name; offsets and sizes are None if a leader does not answer."""
        return await self._streams.all(timeout)

    async def stream(self, name: str, *, timeout: float = 10.0) -> StreamInfo:
        """Return one stream's current state; offsets and sizes are None if a leader does not answer. StreamNotFound."""
        return await self._streams.one(name, timeout)

    async def streams_for(self, subject: str, *, timeout: float = 10.0) -> list[StreamInfo]:
        """Return the streams that store messages on this subject (no wildcards): a publisher may expect their acks."""
        return await self._streams.storing(subject, timeout)

    async def known_producers(
        self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0
    ) -> list[KnownProducer]:
        """Return the idempotent producers that the leaders know (ten minutes back). StreamNotFound, StorageFailed."""
        return await known_producers(self._link, await self._streams.now(stream, timeout), partition, timeout)

    async def status(self, *, timeout: float = 10.0) -> StatusResponse:
        """Return the broker's status."""
        return (await self._link.call(StatusRequest(), StatusResponse, timeout_s=timeout))[0]

    async def cluster_id(self, *, timeout: float = 10.0) -> str:
        """Return the cluster's id. Stored offsets are meaningless in another cluster. Unavailable: it has no id yet."""
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
        """Read committed messages from `start` on as Arrow batches of 1 to `batch_rows_max` rows.

        It ends before `end`; without `end`, at the end of the log when the call was made. With `follow` it keeps
        waiting for new messages (up to the offset `end`, if given). After a lost connection or a leader change it
        resumes where it was; `timeout` bounds each answer, including that.
        All partitions are read unless `partition` names one, including partitions added while it follows: in turn, each
        in order. A batch has rows of one partition only, whose number `batch.schema.metadata[b"penstock.partition"]`
        has in hex. `where` returns only matching messages; a rare subject, or `columns` without `value`, costs less.
        `read_from`: which replicas to read from, as a `ReadFrom` or its word; None: the setting of the client.
        Raises StreamNotFound, StreamChanged, OffsetOutOfRange (also if retention overtakes a slow reader),
        LogTruncated (rows already read are no longer in the log: a memory stream after a restart, or a power loss),
        CorruptRange, CorruptionError (data was corrupted on the network), TimedOut, Unavailable.
        """
        asked = (follow, batch_rows_max, columns, timeout, where, read_from)
        async with await self._reader(stream, start, end, partition, *asked) as reader:
            while (found := await reader.next_batches()) is not None:
                for batch in found:
                    yield batch

    async def messages(self, stream: StreamName, start: Start = EARLIEST, *, end: Start | None = None,
        partition: int | None = None, follow: bool = False, where: Filter | None = None,
        read_from: ReadFrom | Which | None = None, timeout: float = 10.0) -> AsyncGenerator[Message, None]:  # fmt: skip
        """Read like `read`, but return one `Message` at a time."""
        asked = (follow, limits.READ_BATCH_ROWS_DEFAULT, None, timeout, where, read_from)
        async with await self._reader(stream, start, end, partition, *asked) as reader:
            while (found := await reader.next_batches()) is not None:
                for batch in found:
                    for message in batches.messages_of(batch):
                        yield message

    async def table(self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0) -> Table:
        """Load the latest message of each key into memory and keep it up to date.

        Returns once everything that is in the stream now is loaded. `timeout` bounds each answer while it loads. Raises
        as `read` does.
        """
        info = await self._streams.now(stream, timeout)
        return await Table(self._link, timeout).load(info, partition)

    async def get(self, stream: StreamName, offset: int, *, partition: int = 0, timeout: float = 10.0) -> Message:
        """Return the message at `offset`. OffsetOutOfRange, MessageNotFound."""
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
        """Return the latest message of a key or of a subject, in all partitions or in one. MessageNotFound.

        ValueError: the subject has wildcards; use `read(where=Filter(subject=…))` for those.
        """
        if (key is None) == (subject is None):
            raise ValueError("give either key= or subject=")
        if subject is not None:
            check_plain(subject)
        wanted = {"subject": subject} if key is None else {"key": key.encode() if isinstance(key, str) else key}
        return await getting.last(self._link, self._streams, stream, wanted, partition, timeout)

    async def offsets(self, stream: StreamName, at: Start, *, partition: int = 0, timeout: float = 10.0) -> OffsetAt:
        """Return the offset of a position, such as the first message at or after a datetime, and the log's range."""

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
        """Read like `read` into one pyarrow table; with several partitions it has a column `partition`."""
        info = await self._streams.now(stream, timeout)

        def read(wanted: list[str] | None) -> AsyncIterator[pa.RecordBatch]:
            return self.read(info, start, end=end, partition=partition, columns=wanted, timeout=timeout)

        return await whole_table.as_table(info, columns, read)

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
        """Read like `read` into a pandas DataFrame. ImportError without the extra `pandas`."""
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
        """Read like `read` into a Polars DataFrame. ImportError without the extra `polars`."""
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
        """Read a stream as a member of a consumer group, from its committed offsets, or from `start` if it has none.

        Use it in `with` and iterate over it (batches) or over its `messages()`. Processed offsets are committed every
        `checkpoint_interval` seconds (5), by `commit()` and at the end.
        The members of a group share the partitions: a new member causes a rebalance, and the partitions of a member
        that leaves, or sends no heartbeat for its `session` (10 seconds), go to the others. With `partition` the
        consumer reads that partition alone and does not join the group.
        Other `options` are those of `read`: `follow`, `batch_rows_max`, `columns`, `read_from`.
        """
        return Consumer(self._positions, consumer_settings(stream, group, start, timeout, options))

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

        If several streams store the subject, the first ack counts, or that of `stream` if it is given (the other
        streams then do not store the message).
        If the stream has several partitions, the message goes to the partition of its key, or else of its
        `Nats-Msg-Id`. Messages with neither go to the partitions in turn, provided that this client created or looked
        up the stream. During a leader change an ack may be lost, or the subject have no subscriber for seconds. With
        `retries` the message is sent again within `timeout`: that many times while no ack arrives, and as often as
        needed while there is no subscriber. If only the ack was lost, the message is then stored twice. Raises
        StreamNotFound (no stream stores the subject), RemoteError (not_leader: a stream does, but has no subscriber
        now; too_large), TimedOut (the outcome is unknown), NotEnoughReplicas, Overloaded, StorageFailed, ReadOnly.
        With `envelope` the message is sent in a Liftbridge-compatible envelope; streams with acks="envelope" ack only
        those. RemoteError nats_10071: its expected offset is not the next one. ImportError without the extra
        `protobuf`.
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

        It blocks only while PUBLISHES_IN_FLIGHT_MAX (4,096) earlier messages have no ack.
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
        """Wait until every publish so far has its ack; raise the first failure of a `publish_nowait`."""
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
        """Publish one message and wait for an ack of each stream that stores it and acks; returns the acks by stream
        name.

        StreamNotFound if there is no such stream. If only some acks arrive, the error has them in `details["acks"]`.
        """
        return await self._publications.publish_to_all(subject, value, key, headers, envelope, timeout)

    async def append(
        self, stream: StreamName, data: Any, *, partition: int = 0, timeout: float = 60.0
    ) -> list[AppendResult]:
        """Append rows to the log over the socket, without NATS: a pyarrow, pandas or Polars table, or a list of dicts.

        Columns: value (null: tombstone), subject, key, headers (dicts in a list of dicts, else NATS header blocks); see
        `client.columns`. The index of a pandas DataFrame is ignored: `.reset_index()` makes it a column. No rows: no
        results. Large data is sent in several batches, each stored completely or not at all; an error in a later batch
        has the results so far in `appended` (OutcomeUnknown) or `details["appended"]` (RemoteError). `timeout` applies
        to each batch. A batch that may already be stored, or may be stored later behind other rows, is not retried.
        Then the call raises OutcomeUnknown (the connection broke), TimedOut, RemoteError `fenced_epoch` (its leader
        lost its leadership), or an error whose row in docs/reference/errors.md says "perhaps". A `producer` retries,
        and stores rows once and in order.
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
        """Return a producer, which appends rows exactly once across lost answers and failovers; see `Producer.append`.

        By default it draws a random `producer_id`. Pass an id to continue another producer's work: append the same rows
        with the same `epoch` and `sequence` again, and rows already stored are not stored twice. A higher epoch (with
        sequence 0) fences the other producer from its first append on.
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
        more = new_partitions.NewPartitions(link, info, len(what), timeout).next if grows else None
        return reading.Reader(link, what, batch_rows_max=batch_rows_max, columns=wanted, timeout_s=timeout, where=where,
            read_from=chosen, more=more)  # fmt: skip

    async def _get(self, stream: StreamName, which: dict[str, Any], partition: int, timeout: float) -> Message:
        return await getting.get(self._link, self._streams, stream, which, partition, timeout)
