"""The blocking face of the client: the asyncio one, on an event loop of its own in a thread of its own.

Rules: a `Client` may be used from many threads at once. Each has one daemon thread, which ends with `close` (or at
exit). Ctrl-C interrupts a waiting call and cancels it. A client does not survive a fork: the child is told to connect
again. Calls, parameters and defaults are those of `client.aio`; a test compares them.

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
from penstock.client import aio, connecting
from penstock.client.asynchronous import End, close_soon, next_of
from penstock.client.batches import messages_of
from penstock.client.blocking_groups import Consumer, Groups
from penstock.client.blocking_producer import Producer
from penstock.client.blocking_staging import Staging
from penstock.client.blocking_table import Table
from penstock.client.blocking_users import Users
from penstock.client.credentials import Given
from penstock.client.filters import Filter
from penstock.client.keywords import ConsumerOptions, PublishOptions, StreamChanges, StreamOptions
from penstock.client.known_producers import KnownProducer
from penstock.client.of_this_process import OfThisProcess
from penstock.client.open_clients import OPEN_CLIENTS
from penstock.client.publish_format import Ack, Acked, Value
from penstock.client.read_from import ReadFrom, Which
from penstock.client.reading import answers
from penstock.client.threads import LoopThread, PublishQueue, close_client
from penstock.client.tls import TlsOptions
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
    """A client connected to the cluster of `server` ("HOST:PORT"; else $PENSTOCK_SERVER; else 127.0.0.1:7422).

    One broker leads to the others; several ("HOST:PORT,HOST:PORT", or a list) are tried in random order.
    `nats`: where to publish, if not where the broker says; `nats_options` go to `nats.connect` (credentials, TLS).
    `read_from`: which replicas readers read from; `rack`: where this program runs, for the nearest.
    `credentials`: a file, or a `penstock.Credentials`; else those of the environment (PENSTOCK_CREDENTIALS, …).
    `tls`: True, or with which files (`TlsOptions`); a server "tls://HOST:PORT" and $PENSTOCK_TLS_CA mean it, too.
    Unavailable: no broker answers there. TimedOut: not in time. Unauthenticated: it does not let in who shows them.
    """
    options: dict[str, Any] = {"rack": rack, "read_from": read_from, "credentials": credentials, "tls": tls}
    opening = connecting.connect(server, nats=nats, nats_options=nats_options, name=name, timeout=timeout, **options)
    thread = LoopThread()
    try:
        client = thread.run(opening.open())
    except BaseException:
        thread.stop()
        raise
    return Client(client, thread)


class Client(OfThisProcess):
    """A connection to Penstock, as `connect` makes it. See the module; `close` it, or use it in `with`."""

    def __init__(self, client: aio.Client, thread: LoopThread) -> None:
        self._client = client
        self._thread = thread
        self.groups = Groups(client.groups, thread)
        self.staging = Staging(client.staging, thread)
        self.users = Users(client.users, thread)
        self._publishes = PublishQueue(client, thread)
        OPEN_CLIENTS.add(self)
        self._forgotten = weakref.finalize(self, thread.stop_after, client.close)
        self._forgotten.atexit = False  # `open_clients` waits for it, which is better at exit

    @property
    def server(self) -> str:
        """HOST:PORT of the broker that is asked now; another one, once that does not answer."""
        return self._client.server

    @property
    def nats_urls(self) -> tuple[str, ...]:
        """Where messages are published."""
        return self._client.nats_urls

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connections and the thread. Unacked publishes and reads under way fail. Twice is fine."""
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
        """Create the stream `name` on `subject`, or give the one that is there with the same config.

        `config` has the other fields of `StreamConfig`, such as `max_age_ms=86_400_000` or `durability="os"`.
        A message published after this has returned is stored. InvalidConfig, StreamExists.
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
        """Give up what comes `before` a place in the log, of all partitions or of one; nothing of it comes back.

        An offset needs a `partition` where there are several. `dry_run`: tell only what would go.
        OffsetOutOfRange (beyond what is committed), StreamNotFound, StreamChanged, ReadOnly, StorageFailed.
        """
        return self._thread.run(
            self._client.truncate_stream(stream, before, partition=partition, dry_run=dry_run, timeout=timeout)
        )

    def report_archived(self, stream: StreamName, partition: int, end_offset: int | None, *, archive: str,
        leader_epoch: int | None = None, timeout: float = 10.0) -> int | None:  # fmt: skip
        """Tell that `archive` has a partition up to `end_offset` (None: it is no more); up to where do all have it?

        `leader_epoch`: of whoever told the archive that end; LogTruncated if the log was cut since. OffsetOutOfRange.
        """
        how: dict[str, Any] = {"archive": archive, "leader_epoch": leader_epoch, "timeout": timeout}
        return self._thread.run(self._client.report_archived(stream, partition, end_offset, **how))

    def pause_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Have nobody listen for a stream until it is resumed: publishers get no ack. ReadOnly: it is sealed."""
        return self._thread.run(self._client.pause_stream(stream, timeout=timeout))

    def resume_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Have a stream take messages again; what is published after this has returned is stored. ReadOnly: sealed."""
        return self._thread.run(self._client.resume_stream(stream, timeout=timeout))

    def make_read_only(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Refuse messages, each with an error, until the stream is resumed. ReadOnly: it is sealed."""
        return self._thread.run(self._client.make_read_only(stream, timeout=timeout))

    def seal_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Refuse messages for good, and keep all that is there: no retention, no truncation, until it is deleted."""
        return self._thread.run(self._client.seal_stream(stream, timeout=timeout))

    def delete_stream(self, stream: StreamName, *, timeout: float = 10.0) -> None:
        """Delete a stream and all its data. StreamNotFound."""
        self._thread.run(self._client.delete_stream(stream, timeout=timeout))

    def streams(self, *, timeout: float = 10.0) -> list[StreamInfo]:
        """All streams in the order of their names; what they hold is None where their leaders do not answer."""
        return self._thread.run(self._client.streams(timeout=timeout))

    def stream(self, name: str, *, timeout: float = 10.0) -> StreamInfo:
        """One stream as it is now; what it holds is None where its leaders do not answer. StreamNotFound."""
        return self._thread.run(self._client.stream(name, timeout=timeout))

    def streams_for(self, subject: str, *, timeout: float = 10.0) -> list[StreamInfo]:
        """The streams that store a message on this plain subject: those whose acks a publisher may expect."""
        return self._thread.run(self._client.streams_for(subject, timeout=timeout))

    def known_producers(
        self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0
    ) -> list[KnownProducer]:
        """Who has appended exactly once in the last ten minutes, as the leaders know. StreamNotFound, StorageFailed."""
        return self._thread.run(self._client.known_producers(stream, partition=partition, timeout=timeout))

    def status(self, *, timeout: float = 10.0) -> StatusResponse:
        """How the broker fares."""
        return self._thread.run(self._client.status(timeout=timeout))

    def cluster_id(self, *, timeout: float = 10.0) -> str:
        """The id of the cluster: offsets that a program stores mean nothing in another one. Unavailable: none yet."""
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
        wanted = (stream, start, end, partition, follow, batch_rows_max, columns, timeout, where, read_from)
        return self._iterate(answers(lambda: self._client._reader(*wanted)))  # noqa: SLF001 (the same client's face)

    def messages(self, stream: StreamName, start: Start = EARLIEST, *, end: Start | None = None,
        partition: int | None = None, follow: bool = False, where: Filter | None = None,
        read_from: ReadFrom | Which | None = None,
        timeout: float = 10.0) -> Generator[Message, None, None]:  # fmt: skip
        """As `read`, one `Message` at a time."""
        options = {"end": end, "partition": partition, "follow": follow, "where": where, "timeout": timeout}
        for batch in self.read(stream, start, read_from=read_from, **options):  # type: ignore[arg-type]
            yield from messages_of(batch)

    def table(self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0) -> Table:
        """The latest message of each key, in memory, once it has all that is there now; from then on kept up to date.

        `timeout` bounds each answer while it is read. Raises what `read` does.
        """
        return Table(self._thread.run(self._client.table(stream, partition=partition, timeout=timeout)), self._thread)

    def get(self, stream: StreamName, offset: int, *, partition: int = 0, timeout: float = 10.0) -> Message:
        """The message at `offset`. OffsetOutOfRange, MessageNotFound."""
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
        """The latest message of a key, or on a plain subject, in all partitions or in one. MessageNotFound.

        ValueError: a subject with wildcards; `read(where=Filter(subject=…))` takes those.
        """
        wanted: dict[str, Any] = {"key": key, "subject": subject, "partition": partition}
        return self._thread.run(self._client.last(stream, timeout=timeout, **wanted))

    def offsets(self, stream: StreamName, at: Start, *, partition: int = 0, timeout: float = 10.0) -> OffsetAt:
        """Where a place in the log is, such as the first message at or after a datetime; and which offsets it holds."""
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
        """What `read` yields, as one pyarrow table in memory; of several partitions with a column `partition`."""
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
        """What `read` yields, as a pandas DataFrame. ImportError without the extra `pandas`."""
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
        """What `read` yields, as a Polars DataFrame. ImportError without the extra `polars`."""
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
        """Read as `read` does, as the group of that name: from where it committed last, or from `start`, if nowhere.

        Use it in `with`, and iterate over it: over batches, or over `messages()`. How far it has come is committed
        every `checkpoint_interval` seconds (5), by `commit()` and at the end.
        Consumers of one group share the partitions: one that comes gets its part, and those of one that goes, or is
        silent for its `session` (10 seconds), go to the others. With `partition` it reads that one, and shares nothing.
        Other `options` are those of `read`: `follow`, `batch_rows_max`, `columns`.
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

        Waits only while PUBLISHES_IN_FLIGHT_MAX (4,096) earlier ones have no ack yet.
        """
        options = PublishOptions(
            key=key, headers=headers, stream=stream, envelope=envelope, retries=retries, timeout=timeout
        )
        call = {"ack": ack, **options}
        return self._publishes.put(subject, value, call)

    def flush(self, *, timeout: float = 60.0) -> None:
        """Return once every publish so far has its ack; raises the first failure of a `publish_nowait`."""
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
        """Publish one message and wait for an ack of each stream that stores it and acks; by the stream's name.

        StreamNotFound if there is none. The error of a publish that failed in part has the acks in `details["acks"]`.
        """
        return self._thread.run(
            self._client.publish_to_all(subject, value, key=key, headers=headers, envelope=envelope, timeout=timeout)
        )

    def append(self, stream: StreamName, data: Any, *, partition: int = 0, timeout: float = 60.0) -> list[AppendResult]:
        """Append rows straight to the log, past NATS: a pyarrow, pandas or Polars table, or a list of dicts.

        Columns: value (null: tombstone), subject, key, headers (a dict in a list of dicts, else NATS header blocks);
        see `client.columns`. An index of pandas is no column: `.reset_index()` makes it one. No rows: no results. Large
        data goes in several batches, each whole or not at all; an error in a later one has the results so far in
        `appended` (OutcomeUnknown) or `details["appended"]` (RemoteError). `timeout` is for each batch.
        It is not sent again where it may be stored, at once or later, then behind rows that are appended meanwhile:
        OutcomeUnknown (the connection broke), TimedOut, RemoteError `fenced_epoch` (its leader leads no more), and what
        docs/reference/errors.md says "perhaps" of. A `producer` sends again, and is stored once, in order.
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
        """What appends rows exactly once each, through lost answers and failovers; see its `append`.

        It has an id of its own, drawn by chance. Who gives one goes on where another one of that id was: it appends the
        same rows under the same `epoch` and `sequence` again, and those that are there are not stored twice; a higher
        epoch (with the sequence 0) has the other one refused from its first append on.
        """
        made = self._client.producer(
            stream, partition=partition, producer_id=producer_id, epoch=epoch, sequence=sequence
        )
        return Producer(made, self._thread)

    def _iterate(self, source: AsyncGenerator[Iterator[T], None]) -> Generator[T, None, None]:
        # Whole answers cross the threads: one hop for thousands of messages. What they hold is checked on this side,
        # mostly without the interpreter's lock, so that the loop receives the next one meanwhile.
        thread = self._thread
        try:
            while True:
                items = thread.run(next_of(source))
                if isinstance(items, End):
                    return
                yield from items
        finally:
            # Also when the garbage collector ends us, on whichever thread it runs: never wait here.
            if thread.is_running:
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    thread.loop.call_soon_threadsafe(close_soon, source)
