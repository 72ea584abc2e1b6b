"""The blocking client: runs the asyncio client on an event loop in a thread of its own.

Rules: a `Client` may be used from many threads at once. Each has one daemon thread, which ends with `close` (or at
exit). Ctrl-C interrupts a waiting call and cancels it. A client cannot be used after a fork: in the child its calls
fail with the advice to connect again. Calls, parameters and defaults are those of `client.aio`; a test compares them.

    with penstock.connect() as client:
        for batch in client.read("orders", start=penstock.EARLIEST):
            print(batch.num_rows)
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import weakref
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.client import aio
from penstock.client.blocking.asynchronous import End, close_soon, next_of
from penstock.client.blocking.groups import Consumer, Groups
from penstock.client.blocking.open_clients import OPEN_CLIENTS
from penstock.client.blocking.producer import Producer
from penstock.client.blocking.staging import Staging
from penstock.client.blocking.table import Table
from penstock.client.blocking.threads import LoopThread, PublishQueue, close_client
from penstock.client.blocking.users import Users
from penstock.client.link.credentials import Given
from penstock.client.link.keywords import ConsumerOptions, PublishOptions, StreamChanges, StreamOptions
from penstock.client.link.of_this_process import OfThisProcess
from penstock.client.link.read_from import ReadFrom, Which
from penstock.client.link.tls import TlsOptions
from penstock.client.publish_format import Ack, Acked, Value
from penstock.client.read.batches import messages_of
from penstock.client.read.filters import Filter
from penstock.client.read.reading import answers
from penstock.client.values import (
    EARLIEST,
    AppendResult,
    Envelope,
    KnownProducer,
    Message,
    OffsetAt,
    PubAck,
    Start,
    StreamName,
    Truncation,
)
from penstock.messages import StatusResponse, StreamInfo

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

T = TypeVar("T")


def connect(
    server: str | Sequence[str] | None = None,
    *,
    nats: str | Sequence[str] | None = None,
    nats_options: Mapping[str, Any] | None = None,
    name: str = "penstock-python",
    rack: str | None = None,
    read_from: ReadFrom | Which = "leader",
    credentials: Given = None,
    tls: bool | TlsOptions | None = None,
    timeout: float = 10.0,
) -> Client:
    """Connect to the cluster of `server` ("HOST:PORT"; default $PENSTOCK_SERVER, else 127.0.0.1:7422).

    One broker is enough to find the others; several ("HOST:PORT,HOST:PORT", or a list) are tried in random order.
    `nats`: NATS servers to publish to, if not those of the broker; `nats_options` are passed to `nats.connect`
    (credentials, TLS).
    `read_from`: which replicas to read from; `rack`: the rack of this program, to find the nearest replica.
    `credentials`: a file, or a `penstock.Credentials`; default: the environment (PENSTOCK_CREDENTIALS, …).
    `tls`: True, or the files to use (`TlsOptions`); a server "tls://HOST:PORT" or $PENSTOCK_TLS_CA also enables it.
    Unavailable: no broker answers there. TimedOut: no answer in time. Unauthenticated: the credentials are refused.
    """
    options: dict[str, Any] = {"rack": rack, "read_from": read_from, "credentials": credentials, "tls": tls}
    opening = aio.connect(server, nats=nats, nats_options=nats_options, name=name, timeout=timeout, **options)
    thread = LoopThread()
    try:
        client = thread.run(opening.open())
    except BaseException:
        thread.stop()
        raise
    return Client(client, thread)


class Client(OfThisProcess):
    """A connection to Penstock, made by `connect`. Thread-safe. Call `close`, or use it in `with`."""

    def __init__(self, client: aio.Client, thread: LoopThread) -> None:
        self._client = client
        self._thread = thread
        self.groups = Groups(client.groups, thread)
        self.staging = Staging(client.staging, thread)
        self.users = Users(client.users, thread)
        self._publishes = PublishQueue(client, thread)
        OPEN_CLIENTS.add(self)
        self._forgotten = weakref.finalize(self, thread.stop_after, client.close)
        self._forgotten.atexit = False  # at exit `open_clients` closes it and waits

    @property
    def server(self) -> str:
        """HOST:PORT of the broker currently used for requests; it changes if that broker stops answering."""
        return self._client.server

    @property
    def nats_urls(self) -> tuple[str, ...]:
        """NATS servers to which messages are published."""
        return self._client.nats_urls

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and the thread. Unacked publishes and running reads fail. May be called twice."""
        OPEN_CLIENTS.discard(self)
        self._forgotten.detach()
        if self._thread.is_running:
            with contextlib.suppress(OperationalError, TimeoutError):
                self._thread.run(close_client(self._client))
            self._thread.stop()

    # Streams

    def create_stream(
        self, name: str, subject: str, *, timeout: float = 10.0, **config: Unpack[StreamOptions]
    ) -> StreamInfo:
        """Create the stream `name` on `subject`, or return the existing stream if it has the same config.

        `config` takes the other fields of `StreamConfig`, such as `max_age_ms=86_400_000` or `durability="os"`.
        A message published after this call returned is stored. InvalidConfig, StreamExists.
        """
        return self._thread.run(self._client.create_stream(name, subject, timeout=timeout, **config))

    def alter_stream(
        self, stream: StreamName, *, timeout: float = 10.0, **changes: Unpack[StreamChanges]
    ) -> StreamInfo:
        """Change fields of a stream's config, all or none. InvalidConfig, StreamNotFound."""
        return self._thread.run(self._client.alter_stream(stream, timeout=timeout, **changes))

    def truncate_stream(
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
        return self._thread.run(
            self._client.truncate_stream(stream, before, partition=partition, dry_run=dry_run, timeout=timeout)
        )

    def report_archived(self, stream: StreamName, partition: int, end_offset: int | None, *, archive: str,
        leader_epoch: int | None = None, timeout: float = 10.0) -> int | None:  # fmt: skip
        """Report that `archive` holds a partition up to `end_offset` (exclusive); None: the archive is given up.

        Returns the end offset up to which all archives of the stream hold the partition; None: the stream has no
        archive. `leader_epoch`: that of the leader from which the archive got its end; LogTruncated if the log was
        truncated below that end since. OffsetOutOfRange.
        """
        how: dict[str, Any] = {"archive": archive, "leader_epoch": leader_epoch, "timeout": timeout}
        return self._thread.run(self._client.report_archived(stream, partition, end_offset, **how))

    def pause_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Unsubscribe the stream until it is resumed; publishers get no ack meanwhile. ReadOnly: it is sealed."""
        return self._thread.run(self._client.pause_stream(stream, timeout=timeout))

    def resume_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Accept messages again; a message published after this returned is stored. ReadOnly: the stream is sealed."""
        return self._thread.run(self._client.resume_stream(stream, timeout=timeout))

    def make_read_only(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Refuse messages, each with an error, until the stream is resumed. ReadOnly: the stream is sealed."""
        return self._thread.run(self._client.make_read_only(stream, timeout=timeout))

    def seal_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Refuse messages permanently and keep all data: no retention and no truncation until the stream is deleted."""
        return self._thread.run(self._client.seal_stream(stream, timeout=timeout))

    def delete_stream(self, stream: StreamName, *, timeout: float = 10.0) -> None:
        """Delete a stream and all its data. StreamNotFound."""
        self._thread.run(self._client.delete_stream(stream, timeout=timeout))

    def streams(self, *, timeout: float = 10.0) -> list[StreamInfo]:
        """Return all streams, ordered by name; offsets and sizes are None if a leader does not answer."""
        return self._thread.run(self._client.streams(timeout=timeout))

    def stream(self, name: str, *, timeout: float = 10.0) -> StreamInfo:
        """Return one stream's current state; offsets and sizes are None if a leader does not answer. StreamNotFound."""
        return self._thread.run(self._client.stream(name, timeout=timeout))

    def streams_for(self, subject: str, *, timeout: float = 10.0) -> list[StreamInfo]:
        """Return the streams that store messages on this subject (no wildcards): a publisher may expect their acks."""
        return self._thread.run(self._client.streams_for(subject, timeout=timeout))

    def known_producers(
        self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0
    ) -> list[KnownProducer]:
        """Return the idempotent producers that the leaders know (ten minutes back). StreamNotFound, StorageFailed."""
        return self._thread.run(self._client.known_producers(stream, partition=partition, timeout=timeout))

    def status(self, *, timeout: float = 10.0) -> StatusResponse:
        """Return the broker's status."""
        return self._thread.run(self._client.status(timeout=timeout))

    def cluster_id(self, *, timeout: float = 10.0) -> str:
        """Return the cluster's id. Stored offsets are meaningless in another cluster. Unavailable: it has no id yet."""
        return self._thread.run(self._client.cluster_id(timeout=timeout))

    # Reading

    def read(
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
    ) -> Generator[pa.RecordBatch, None, None]:
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
        wanted: dict[str, Any] = {"end": end, "partition": partition, "follow": follow, "columns": columns}
        wanted |= {"batch_rows_max": batch_rows_max, "where": where, "read_from": read_from, "timeout": timeout}
        return self._iterate(answers(lambda: self._client._reader(stream, start, **wanted)))  # noqa: SLF001 (same client)

    def messages(self, stream: StreamName, start: Start = EARLIEST, *, end: Start | None = None,
        partition: int | None = None, follow: bool = False, where: Filter | None = None,
        read_from: ReadFrom | Which | None = None,
        timeout: float = 10.0) -> Generator[Message, None, None]:  # fmt: skip
        """Read like `read`, but return one `Message` at a time."""
        options = {"end": end, "partition": partition, "follow": follow, "where": where, "timeout": timeout}
        for batch in self.read(stream, start, read_from=read_from, **options):  # type: ignore[arg-type]
            yield from messages_of(batch)

    def table(self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0) -> Table:
        """Load the latest message of each key into memory and keep it up to date.

        Returns once everything that is in the stream now is loaded. `timeout` bounds each answer while it loads. Raises
        as `read` does.
        """
        return Table(self._thread.run(self._client.table(stream, partition=partition, timeout=timeout)), self._thread)

    def get(self, stream: StreamName, offset: int, *, partition: int = 0, timeout: float = 10.0) -> Message:
        """Return the message at `offset`. OffsetOutOfRange, MessageNotFound."""
        return self._thread.run(self._client.get(stream, offset, partition=partition, timeout=timeout))

    def last(
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
        wanted: dict[str, Any] = {"key": key, "subject": subject, "partition": partition}
        return self._thread.run(self._client.last(stream, timeout=timeout, **wanted))

    def offsets(self, stream: StreamName, at: Start, *, partition: int = 0, timeout: float = 10.0) -> OffsetAt:
        """Return the offset of a position, such as the first message at or after a datetime, and the log's range."""
        return self._thread.run(self._client.offsets(stream, at, partition=partition, timeout=timeout))

    def to_table(
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
        return self._thread.run(
            self._client.to_table(stream, start, end=end, partition=partition, columns=columns, timeout=timeout)
        )

    def to_pandas(
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
        return self._thread.run(
            self._client.to_pandas(stream, start, end=end, partition=partition, columns=columns, timeout=timeout)
        )

    def to_polars(
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
        return self._thread.run(
            self._client.to_polars(stream, start, end=end, partition=partition, columns=columns, timeout=timeout)
        )

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
        return Consumer(self._client.consumer(stream, group, start=start, timeout=timeout, **options), self._thread)

    # Writing

    @overload
    def publish(self, subject: str, value: Value, *, ack: Acked = ..., **options: Unpack[PublishOptions]) -> PubAck: ...
    @overload
    def publish(
        self, subject: str, value: Value, *, ack: Literal["none"], **options: Unpack[PublishOptions]
    ) -> None: ...
    @overload
    def publish(
        self, subject: str, value: Value, *, ack: Ack = ..., **options: Unpack[PublishOptions]
    ) -> PubAck | None: ...

    def publish(
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
        call = PublishOptions(
            key=key, headers=headers, stream=stream, envelope=envelope, retries=retries, timeout=timeout
        )
        return self._thread.run(self._client.publish(subject, value, ack=ack, **call))

    def publish_nowait(
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
    ) -> concurrent.futures.Future[PubAck | None]:
        """Publish one message and return the future of its ack; `flush` waits for all and raises the first failure.

        It blocks only while PUBLISHES_IN_FLIGHT_MAX (4,096) earlier messages have no ack.
        """
        options = PublishOptions(
            key=key, headers=headers, stream=stream, envelope=envelope, retries=retries, timeout=timeout
        )
        call = {"ack": ack, **options}
        return self._publishes.put(subject, value, call)

    def flush(self, *, timeout: float = 60.0) -> None:
        """Wait until every publish so far has its ack; raise the first failure of a `publish_nowait`."""
        self._publishes.wait_until_sent(timeout)
        self._thread.run(self._client.flush(timeout=timeout))

    def publish_to_all(
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
        return self._thread.run(
            self._client.publish_to_all(subject, value, key=key, headers=headers, envelope=envelope, timeout=timeout)
        )

    def append(self, stream: StreamName, data: Any, *, partition: int = 0, timeout: float = 60.0) -> list[AppendResult]:
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
        return self._thread.run(self._client.append(stream, data, partition=partition, timeout=timeout))

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
        made = self._client.producer(
            stream, partition=partition, producer_id=producer_id, epoch=epoch, sequence=sequence
        )
        return Producer(made, self._thread)

    def _iterate(self, source: AsyncGenerator[Iterator[T], None]) -> Generator[T, None, None]:
        # A whole answer crosses the threads at once: one hop for thousands of messages. Their checks run on this side,
        # mostly without the GIL, so that the loop can receive the next answer meanwhile.
        thread = self._thread
        try:
            while True:
                items = thread.run(next_of(source))
                if isinstance(items, End):
                    return
                yield from items
        finally:
            # Also when the garbage collector closes this generator, on any thread: never wait here.
            if thread.is_running:
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    thread.loop.call_soon_threadsafe(close_soon, source)
