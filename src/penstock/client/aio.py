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
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from penstock import __version__
from penstock.base import limits, notebook
from penstock.base.config import Acks, Intake
from penstock.base.errors import ErrorCode
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, StreamId
from penstock.base.nats_logins import nats_urls
from penstock.client.append.appending import Appender
from penstock.client.append.deleting import delete_messages, purge_subject
from penstock.client.append.producing import Producer
from penstock.client.append.staging import Staging
from penstock.client.checks import (
    check_asked_for,
    check_durations,
    check_plain,
    field_values,
    fixed_place_of,
    limit_of,
    milliseconds,
    name_and_id,
    require,
    rows_max,
    seconds_of,
    several,
    stream_config,
    wanted_columns,
    whole_number,
)
from penstock.client.consume.consumers import Consumer, consumer_settings
from penstock.client.consume.groups import Groups
from penstock.client.consume.positions import GroupPositions
from penstock.client.consume.stream_consumers import StreamConsumers
from penstock.client.consume.tables import Table
from penstock.client.errors import StreamChanged, StreamNotFound
from penstock.client.link.addresses import DEFAULT_SERVER, SERVER_VARIABLE, parse_servers
from penstock.client.link.credentials import Given, credentials_of
from penstock.client.link.keywords import ConsumerOptions, PublishOptions, QueueConfig, StreamChanges, StreamOptions
from penstock.client.link.link import CREATE_GRACE_S, Link
from penstock.client.link.of_this_process import OfThisProcess
from penstock.client.link.read_from import LEADER, ReadFrom, Which, read_from_of
from penstock.client.link.tls import ClientTls, TlsOptions, plain, settled
from penstock.client.publish.publications import Publications
from penstock.client.publish_format import Ack, Acked, Value, a_kind, published
from penstock.client.queues.queue import Queue, Source, queue_settings, sources_of
from penstock.client.read import batches
from penstock.client.read.decoding import Decode, decode_of, schemas_to_decode, typed_columns
from penstock.client.read.filters import Filter
from penstock.client.read.gathering import Gathering, WantedColumns, pandas_of, polars_of, warned
from penstock.client.read.latest import Got, latest
from penstock.client.read.reading import Reader, answers, find_place, partition_number, partition_numbers, plans
from penstock.client.read.subjects import count_messages, lasts, list_subjects, subjects_to_list
from penstock.client.read.tailing import last_messages
from penstock.client.schemas import (
    ContractPath,
    FramingName,
    ProtocolName,
    Schemas,
    contract_of,
    entry_of,
    operations_of,
    text_of,
)
from penstock.client.streams.named_streams import NamedStreams
from penstock.client.users import Users
from penstock.client.values import (
    EARLIEST,
    AppendResult,
    Deletion,
    Envelope,
    Erasure,
    KnownProducer,
    Message,
    OffsetAt,
    PubAck,
    Start,
    StreamName,
    SubjectPurge,
    SubjectState,
    Truncation,
    datetime_of,
)
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    ApiDecisionInfo,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    DeleteStreamResponse,
    GetRequest,
    GetResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListProducersRequest,
    ListProducersResponse,
    LiveRowsInfo,
    RaiseFeatureLevelRequest,
    RaiseFeatureLevelResponse,
    ReportArchivedRequest,
    ReportArchivedResponse,
    SetIntakeRequest,
    SetIntakeResponse,
    StatusRequest,
    StatusResponse,
    StreamInfo,
    TakeApiRequest,
    TakeApiResponse,
    TruncateRequest,
    TruncateResponse,
)

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from penstock.schemas.decoding import ValueFraming
    from penstock.schemas.kinds import Schema
    from penstock.schemas.registry import SchemaVersion, StreamSchemas
    from penstock.schemas.thrift import ThriftProtocol


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
) -> Connecting:
    """Connect to the cluster of `server` ("HOST:PORT"; default $PENSTOCK_SERVER, else 127.0.0.1:7422).

    One broker is enough to find the others; several ("HOST:PORT,HOST:PORT", or a list) are tried in random order.
    `nats`: NATS servers to publish to, if not those of the broker; `nats_options` are passed to `nats.connect`
    (credentials, TLS).
    `read_from`: which replicas to read from; `rack`: the rack of this program, to find the nearest replica.
    `credentials`: a file, or a `penstock.Credentials`; default: the environment (PENSTOCK_CREDENTIALS, …).
    `tls`: True, or the files to use (`TlsOptions`); a server "tls://HOST:PORT" or $PENSTOCK_TLS_CA also enables it.
    Unavailable: no broker answers there. TimedOut: no answer in time. Unauthenticated: the credentials are refused.
    """
    listed: Any = [server] if isinstance(server, str) else server
    if listed is not None and not (isinstance(listed, Sequence) and all(isinstance(one, str) for one in listed)):
        raise TypeError(f"the server is {a_kind(server)}; give 'HOST:PORT', such as {DEFAULT_SERVER!r}")
    if seconds_of(timeout) <= 0:
        raise ValueError(f"the time-out is {timeout:g} s; give it some time")
    servers = parse_servers(os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER if listed is None else listed)
    addresses, options = settled(servers, tls, os.environ)
    link = Link(
        addresses,
        name,
        __version__,
        rack=rack,
        read_from=read_from_of(read_from) or LEADER,
        show=credentials_of(credentials),
        dialling=plain if options is None else ClientTls(options).dialling,
    )
    return Connecting(link, Client(link, name, _urls(nats), dict(nats_options or {})), timeout)


def _urls(nats: Any) -> list[str] | None:
    """Return the NATS servers to publish to; None: those of the brokers. TypeError, ValueError."""
    if nats is None:
        return None
    if not isinstance(nats, str | Sequence) or not all(isinstance(one, str) for one in nats):
        raise TypeError(f"nats is {a_kind(nats)}; give 'nats://HOST:PORT', or a list of such")
    urls = nats_urls(nats) if isinstance(nats, str) else list(nats)
    if not urls:
        raise ValueError(f"nats is {nats!r}: no server is given; leave it out to publish where the brokers say")
    return urls


class Client(OfThisProcess):
    """A connection to Penstock, made by `penstock.aio.connect`. Call `close`, or use it in `async with`."""

    def __init__(self, link: Link, name: str, nats_urls: list[str] | None, nats_options: dict[str, Any]) -> None:
        self._link = link
        self._streams = NamedStreams(link)
        self._positions = GroupPositions(link, self._streams)
        self.groups = Groups(self._positions)
        self.consumers = StreamConsumers(link, self._streams)
        self.staging = Staging(link, self._streams)
        self._appender = Appender(link, self._streams)
        self.users = Users(link)
        self._schemas = Schemas(link, self._streams)
        self._publications = Publications(link, self._streams, name, nats_urls, nats_options)

    @property
    def server(self) -> str:
        """HOST:PORT of the broker currently used for requests; it changes if that broker stops answering."""
        return self._link.server

    @property
    def nats_urls(self) -> tuple[str, ...]:
        """NATS servers to which messages are published."""
        return self._publications.urls

    def __repr__(self) -> str:
        return f"Client({self.server!r}{', closed' if self._link.is_closed else ''})"

    def _repr_html_(self) -> str:
        hello = self._link.hello
        state = "closed" if self._link.is_closed else "open"
        pairs = {"server": self.server, "cluster": hello.cluster_id, "version": hello.broker_version, "client": state}
        return notebook.html_pairs(pairs)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._publications.finish()
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connections. Unacked publishes and running reads fail. May be called twice.

        It does not wait for acks: call `flush` first. The end of an `async with` block waits, unless an exception ends
        it, for the acks of all messages, each until its time-out. A `PublishWarning` tells how many messages of
        `publish_nowait` had failed before, if `flush` did not raise it and no caller asked their futures.
        """
        await self._end()
        self._publications.unseen.tell()

    async def _end(self) -> None:
        """Close the connections."""
        await self._publications.close()
        await self._positions.close()
        await self._link.close()

    # Streams

    async def create_stream(
        self, name: str, subject: str | Sequence[str], *, timeout: float = 10.0, **config: Unpack[StreamOptions]
    ) -> StreamInfo:
        """Create the stream `name` on `subject`, or return the existing stream if it has the same config.

        `subject`: one or several, of which no two may overlap: `["orders.>", "prices.*"]`.
        `config` takes the other fields of `StreamConfig`, such as `max_age_ms=86_400_000` or `durability="os"`.
        A message published after this call returned is stored. InvalidConfig, StreamExists.
        """
        first, *more = several(subject) or ("",)
        wanted = stream_config({**config, "name": name, "subject": first, "more_subjects": tuple(more)})
        request = CreateStreamRequest(config=wanted, timeout_ms=milliseconds(timeout))
        answer, _ = await self._link.call(request, CreateStreamResponse, timeout_s=seconds_of(timeout) + CREATE_GRACE_S)
        self._streams.routes.note(answer.stream)
        return await self._streams.completed(answer.stream, timeout)

    async def alter_stream(
        self,
        stream: StreamName,
        *,
        add_subjects: str | Sequence[str] = (),
        remove_subjects: str | Sequence[str] = (),
        timeout: float = 10.0,
        **changes: Unpack[StreamChanges],
    ) -> StreamInfo:
        """Change fields of a stream's config and its subjects, all or none. InvalidConfig, StreamNotFound.

        A message published on an added subject after this call returned is stored, one on a removed subject is not.
        """
        name, stream_id = name_and_id(stream)
        fields: dict[str, Any] = dict(changes)
        check_durations(fields)
        request = AlterStreamRequest(
            name=name,
            stream_id=stream_id,
            changes=field_values(fields),
            add_subjects=several(add_subjects),
            remove_subjects=several(remove_subjects),
        )
        answer, _ = await self._link.call(request, AlterStreamResponse, timeout_s=timeout)
        return await self._streams.completed(answer.stream, timeout)

    async def truncate_stream(
        self,
        stream: StreamName,
        before: Start,
        *,
        keep: int = 0,
        partition: int | None = None,
        dry_run: bool = False,
        timeout: float = 10.0,
    ) -> list[Truncation]:
        """Delete everything `before` a position in the log, in all partitions or in one; it cannot be undone.

        `keep`: the last messages before the position stay, so many of each partition. An offset requires `partition`
        if the stream has several. `dry_run`: only return what would be deleted.
        OffsetOutOfRange (beyond `committed_end`), StreamNotFound, StreamChanged, ReadOnly, StorageFailed.
        """
        info = await self._streams.now(stream, timeout)
        before = fixed_place_of(before)
        numbers = partition_numbers(info, partition, before)
        done = []
        for number in numbers:
            end = before
            if not isinstance(end, int):  # the messages before the first one at or after that time are deleted
                end = (await find_place(self._link, info.stream_id, number, before, timeout)).offset
            request = TruncateRequest(
                stream_id=info.stream_id, partition=number, before=Offset(end), keep=keep, is_dry_run=dry_run
            )
            answer, _ = await self._link.call(request, TruncateResponse, timeout_s=timeout)
            done.append(Truncation(int(number), answer.log_start, answer.messages, answer.size_bytes))
        return done

    async def delete(
        self,
        stream: StreamName,
        offsets: int | Sequence[int],
        *,
        partition: int | None = None,
        secure: bool = False,
        progress: Callable[[Erasure], None] | None = None,
        timeout: float = 10.0,
    ) -> Deletion:
        """Delete the messages at one or several offsets of a partition; it cannot be undone.

        Returns once no leader shows them any more. Other messages keep their offsets; the bytes leave the disks with
        the cleaner. `partition` is required if the stream has several. A message that was deleted before is no error.
        MessageNotFound: a single offset has no message; with several offsets the answer names those without.
        RemoteError unsupported_version: the cluster's feature level is lower. StreamNotFound, StreamChanged, ReadOnly,
        StorageFailed.

        `secure`: erase their bytes at once, also of messages that were deleted before. Returns once the files of no
        live broker hold them; the answer's `erasure` names absent brokers, which erase when they are back. Archives,
        backups, copies and tables keep what they have. `progress` is called with the state every few seconds. TimedOut
        after two minutes: the messages are deleted, and the erasing goes on; a repeated call waits for it.
        """
        info = await self._streams.now(stream, timeout)
        return await delete_messages(self._link, info, offsets, partition, timeout, is_secure=secure, progress=progress)

    async def purge_subject(
        self,
        stream: StreamName,
        subject: str,
        *,
        before: Start | None = None,
        keep: int = 0,
        partition: int | None = None,
        dry_run: bool = False,
        secure: bool = False,
        progress: Callable[[Erasure], None] | None = None,
        timeout: float = 10.0,
    ) -> list[SubjectPurge]:
        """Delete the messages on a subject, which may have wildcards, in all partitions or in one; for good.

        `before`: only those before a position; an offset requires `partition` if the stream has several. `keep`: the
        last ones of each partition stay. `dry_run`: only return what would be deleted. `timeout`: of each request, of
        which a large log takes several. `secure`, `progress` and errors: as of `delete`.
        """
        info = await self._streams.now(stream, timeout)
        place = None if before is None else fixed_place_of(before)
        return await purge_subject(
            self._link,
            info,
            subject,
            place,
            keep,
            partition,
            is_dry_run=dry_run,
            timeout_s=timeout,
            is_secure=secure,
            progress=progress,
        )

    async def report_archived(
        self,
        stream: StreamName,
        partition: int,
        end_offset: int | None,
        *,
        archive: str,
        leader_epoch: int | None = None,
        timeout: float = 10.0,
    ) -> int | None:
        """Report that `archive` holds a partition up to `end_offset` (exclusive); None: the archive is given up.

        Returns the end offset up to which all archives of the stream hold the partition; None: the stream has no
        archive. `leader_epoch`: that of the leader from which the archive got its end; LogTruncated if the log was
        truncated below that end since. OffsetOutOfRange.
        """
        info = await self._streams.now(stream, timeout)
        if end_offset is not None and (end_offset := whole_number("offset", end_offset)) < 0:
            raise ValueError(f"the offset {end_offset} is negative; offsets count from 0")
        request = ReportArchivedRequest(
            stream_id=info.stream_id,
            partition=partition_number(info, partition),
            archive=archive,
            end_offset=None if end_offset is None else Offset(end_offset),
            archived_epoch=None if leader_epoch is None else LeaderEpoch(leader_epoch),
        )
        return (await self._link.call(request, ReportArchivedResponse, timeout_s=timeout))[0].archived_end

    async def pause_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Unsubscribe the stream until it is resumed; publishers get no ack meanwhile. ReadOnly: it is sealed."""
        return await self._set_intake(stream, Intake.PAUSED, timeout)

    async def resume_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Accept messages again; a message published after this returned is stored. ReadOnly: the stream is sealed."""
        return await self._set_intake(stream, Intake.OPEN, timeout)

    async def make_read_only(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Refuse messages, each with an error, until the stream is resumed. ReadOnly: the stream is sealed."""
        return await self._set_intake(stream, Intake.READ_ONLY, timeout)

    async def seal_stream(self, stream: StreamName, *, timeout: float = 10.0) -> StreamInfo:
        """Refuse messages permanently and keep all data: no retention and no truncation until the stream is deleted."""
        return await self._set_intake(stream, Intake.SEALED, timeout)

    async def delete_stream(self, stream: StreamName, *, timeout: float = 10.0) -> None:
        """Delete a stream and all its data. StreamNotFound."""
        # By id: if the answer is lost and the request repeated, a stream created meanwhile is not deleted.
        info = stream if isinstance(stream, StreamInfo) else await self._streams.named(stream, timeout)
        self._streams.forget(info.name)
        request = DeleteStreamRequest(name=info.name, stream_id=info.stream_id)
        try:
            await self._link.call(request, DeleteStreamResponse, timeout_s=timeout)
        except (StreamNotFound, StreamChanged):
            if isinstance(stream, StreamInfo):
                raise

    async def streams(self, *, server: str | None = None, timeout: float = 10.0) -> list[StreamInfo]:
        """Return all streams, ordered by name; offsets and sizes are None if a leader does not answer.

        `server`: ask exactly the broker at HOST:PORT which streams there are; default: any broker.
        """
        return await self._streams.all(timeout, server)

    async def stream(self, name: str, *, timeout: float = 10.0) -> StreamInfo:
        """Return one stream's current state; offsets and sizes are None if a leader does not answer. StreamNotFound."""
        return await self._streams.completed(await self._streams.named(name, timeout), timeout)

    async def streams_for(self, subject: str, *, timeout: float = 10.0) -> list[StreamInfo]:
        """Return the streams that store messages on this subject (no wildcards): a publisher may expect their acks."""
        return await self._streams.storing(subject, timeout)

    async def row_count(self, stream: StreamName, *, timeout: float = 10.0) -> int | None:
        """Return the number of messages in a stream; `committed_end - log_start` counts offsets, deleted ones included.

        None if a leader would have to read too much; each call goes on where the one before ended. StreamNotFound.
        """
        counts = await self.live_rows(stream, timeout=timeout)
        return None if None in counts else sum(one.rows for one in counts if one is not None)

    async def live_rows(self, stream: StreamName, *, timeout: float = 10.0) -> list[LiveRowsInfo | None]:
        """Return, by partition, the number of messages, the first and the last one, and how many between are deleted.

        It is exact, also for what was acked or deleted just before. None as in `row_count`. StreamNotFound.
        """
        info = await self._streams.now(stream, timeout)
        requests = (
            ListOffsetsRequest(stream_id=info.stream_id, partition=number, at="latest", counts_rows=True)
            for number in partition_numbers(info, None)
        )
        asked = (self._link.call(one, ListOffsetsResponse, timeout_s=timeout) for one in requests)
        return [answer.live for answer, _ in await asyncio.gather(*asked)]

    async def known_producers(
        self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0
    ) -> list[KnownProducer]:
        """Return the idempotent producers that the leaders know (ten minutes back). StreamNotFound, StorageFailed."""
        info = await self._streams.now(stream, timeout)
        found = []
        for number in partition_numbers(info, partition):
            after = 0
            while True:
                request = ListProducersRequest(stream_id=info.stream_id, partition=number, after_producer_id=after)
                answer, _ = await self._link.call(request, ListProducersResponse, timeout_s=timeout)
                if not answer.producers:
                    break
                after = answer.producers[-1].producer_id
                found += [
                    KnownProducer(
                        int(number),
                        one.producer_id,
                        one.producer_epoch,
                        one.last_sequence,
                        one.last_offset,
                        datetime_of(one.timestamp_us),
                    )
                    for one in answer.producers
                ]
        return found

    async def status(self, *, server: str | None = None, timeout: float = 10.0) -> StatusResponse:
        """Return the status of the broker in use, or of exactly the one at HOST:PORT (`server`). NotAuthorized.

        Unavailable, TimedOut: it does not answer.
        """
        if server is not None:
            return (await self._link.call_at(server, StatusRequest(), StatusResponse, timeout_s=timeout))[0]
        return (await self._link.call(StatusRequest(), StatusResponse, timeout_s=timeout))[0]

    async def cluster_id(self, *, timeout: float = 10.0) -> str:
        """Return the cluster's id. Stored offsets are meaningless in another cluster. Unavailable: it has no id yet."""
        return await self._link.cluster_id(timeout)

    async def raise_feature_level(self, level: str | None = None, *, timeout: float = 10.0) -> str:
        """Raise the cluster's feature level, such as "0.4"; None: the newest of the metadata leader. Return the level.

        It is never lowered, and brokers of earlier versions do not start any more. `status().feature_level` tells the
        present one, to which raising changes nothing. NotAuthorized; RemoteError unsupported_version: a broker is
        older; change_refused: the level is lower; bad_request: it is unknown.
        """
        request = RaiseFeatureLevelRequest(feature_level=level)
        answer, _ = await self._link.call(request, RaiseFeatureLevelResponse, timeout_s=timeout)
        return answer.feature_level

    async def take_api(self, prefix: str | None = None, *, timeout: float = 10.0) -> tuple[ApiDecisionInfo, ...]:
        """Take back a prefix of JetStream's API, such as "$JS.API.", that the cluster has left to another service.

        None: all of these. A prefix that is named is also taken from brokers that hold it back and are away. All
        brokers look for that service again, and serve the prefix if there is none any more: `status().apis` says so.
        Return the decisions as they are now. NotAuthorized; RemoteError bad_request: no broker wants to serve the
        prefix.
        """
        answer, _ = await self._link.call(TakeApiRequest(prefix=prefix), TakeApiResponse, timeout_s=timeout)
        return answer.apis

    # Schemas

    async def register_schema(
        self,
        stream: StreamName,
        schema: Schema,
        *,
        subject: str | None = None,
        message: str = "",
        framing: ValueFraming | FramingName = "bare",
        protocol: ThriftProtocol | ProtocolName = "binary",
        force: bool = False,
        check_only: bool = False,
        timeout: float = 10.0,
    ) -> SchemaVersion:
        """Register the schema of the values on `subject` (a pattern; None: each subject of the stream).

        Returns its version, that for the first subject: a new one, or an earlier one with the same schema (`is_new`). A
        new version has to be compatible with all before it, in both directions, unless `force`. `check_only`: register
        nothing. `framing`: what stands before a value in its message; `protocol`: of Thrift; `message`: the name in
        Thrift's message begin. IncompatibleSchema, InvalidSchema, StreamNotFound, NotAuthorized.
        """
        found = await self._schemas.register(
            stream,
            text_of(schema),
            entry_of(schema, subject, message, framing, protocol),
            force=force,
            check_only=check_only,
            timeout_s=timeout,
        )
        return found[0]

    async def register_contract(
        self,
        stream: StreamName,
        contract: ContractPath,
        operations: Iterable[str] | None = None,
        *,
        include: Iterable[ContractPath] = (),
        protocol: ThriftProtocol | ProtocolName = "binary",
        force: bool = False,
        check_only: bool = False,
        timeout: float = 10.0,
    ) -> list[SchemaVersion]:
        """Register the scopes of a Frugal contract: each operation with the type and the subjects of its messages.

        `contract`: a `Path` to its file, or its text as a str. `operations`: names such as "Orders.Placed"; None: those
        whose subjects the stream stores. `include`: folders of included files, besides the file's own. All operations
        are registered or none. Else as `register_schema`.
        """
        text = contract_of(contract, include)
        return await self._schemas.register(
            stream,
            text,
            operations_of(text, operations, protocol),
            force=force,
            check_only=check_only,
            timeout_s=timeout,
        )

    async def schemas(self, stream: StreamName, *, timeout: float = 10.0) -> StreamSchemas:
        """Return the schemas of a stream, all versions, by subjects and number; it may have none. StreamNotFound."""
        return await self._schemas.of(stream, timeout)

    async def forget_schema(self, stream: StreamName, subject: str, *, timeout: float = 10.0) -> int:
        """Forget all versions for a pattern of subjects as it was registered, and return how many there were.

        Messages stay, and have no type any more. RemoteError schema_not_found; StreamNotFound, NotAuthorized.
        """
        return await self._schemas.forget(stream, subject, timeout)

    # Reading

    async def read(
        self,
        stream: StreamName,
        start: Start = EARLIEST,
        *,
        end: Start | None = None,
        partition: int | None = None,
        follow: bool = False,
        limit: int | None = None,
        batch_rows_max: int = limits.READ_BATCH_ROWS_DEFAULT,
        columns: Iterable[str] | None = None,
        where: Filter | None = None,
        decode: Literal["schema"] | StreamSchemas | bool | None = None,
        read_from: ReadFrom | Which | None = None,
        timeout: float = 10.0,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Read committed messages from `start` on as Arrow batches of 1 to `batch_rows_max` rows.

        It ends before `end`; without `end`, at the end of the log when the call was made. With `follow` it keeps
        waiting for new messages (up to the offset `end`, if given). It also ends after `limit` messages. After a lost
        connection or a leader change it resumes where it was; `timeout` bounds each answer, including that.
        All partitions are read unless `partition` names one, including partitions added while it follows: in turn, each
        in order. A batch has rows of one partition only, whose number `batch.schema.metadata[b"penstock.partition"]`
        has in hex. `where` returns only matching messages; a rare subject, or `columns` without `value`, costs less.
        `decode`: True or "schema" puts typed columns, by the schemas that the stream has when the call is made, and
        `decode_error` in place of `value`; a `StreamSchemas`: by these.
        `read_from`: which replicas to read from, as a `ReadFrom` or its word; None: the setting of the client.
        Raises StreamNotFound, StreamChanged, OffsetOutOfRange (also if retention overtakes a slow reader),
        LogTruncated (rows already read are no longer in the log: a memory stream after a restart, or a power loss),
        CorruptRange, CorruptionError (data was corrupted on the network), TimedOut, Unavailable.
        """
        async with await self._reader(
            stream,
            start,
            end=end,
            partition=partition,
            follow=follow,
            limit=limit,
            batch_rows_max=batch_rows_max,
            columns=columns,
            where=where,
            decode=decode,
            read_from=read_from,
            timeout=timeout,
        ) as reader:
            while (found := await reader.next_batches()) is not None:
                for batch in found:
                    yield batch if reader.typed is None else await asyncio.to_thread(reader.typed.batch, batch)

    async def messages(
        self,
        stream: StreamName,
        start: Start = EARLIEST,
        *,
        end: Start | None = None,
        partition: int | None = None,
        follow: bool = False,
        limit: int | None = None,
        where: Filter | None = None,
        read_from: ReadFrom | Which | None = None,
        timeout: float = 10.0,
    ) -> AsyncGenerator[Message, None]:
        """Read like `read`, but return one `Message` at a time."""
        async with await self._reader(
            stream,
            start,
            end=end,
            partition=partition,
            follow=follow,
            limit=limit,
            where=where,
            read_from=read_from,
            timeout=timeout,
        ) as reader:
            while (found := await reader.next_batches()) is not None:
                for batch in found:
                    for message in batches.messages_of(batch):
                        yield message

    async def table(self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0) -> Table:
        """Load the latest message of each key into memory and keep it up to date.

        A key-value bucket of JetStream's clients, the stream `KV_<bucket>`, has their keys, without what they deleted.
        Returns once everything that is in the stream now is loaded. `timeout` bounds each answer while it loads. Raises
        as `read` does.
        """
        info = await self._streams.now(stream, timeout)
        return await Table(self._link, timeout).load(info, partition)

    async def get(self, stream: StreamName, offset: int, *, partition: int = 0, timeout: float = 10.0) -> Message:
        """Return the message at `offset`. OffsetOutOfRange, MessageNotFound."""
        if (number := whole_number("offset", offset)) < 0:
            raise ValueError(f"the offset {number} is negative; offsets count from 0")
        return (await self._get(stream, {"offset": number}, partition, timeout)).message

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
        which = {"subject": subject} if key is None else {"key": key.encode() if isinstance(key, str) else key}
        if partition is not None:
            return (await self._get(stream, which, partition, timeout)).message
        return await latest(self._streams, self._get, stream, which, timeout)

    async def last_by_subjects(
        self,
        stream: StreamName,
        subject: str | Iterable[str],
        *,
        after: str = "",
        limit: int = 1_000,
        partition: int | None = None,
        timeout: float = 10.0,
    ) -> list[Message]:
        """Return the last message of each subject that matches, wildcards allowed: at most `limit`, as from `subjects`.

        In several partitions a subject has a last message in each. All are those of one moment, except where they were
        deleted before they were read. Errors as from `subjects`.
        """
        found = await self.subjects(stream, subject, after=after, limit=limit, partition=partition, timeout=timeout)
        return await lasts(found, lambda which, number: self._get(stream, which, number, timeout))

    async def subjects(
        self,
        stream: StreamName,
        subject: str | Iterable[str] = ">",
        *,
        after: str = "",
        limit: int = 1_000,
        partition: int | None = None,
        timeout: float = 10.0,
    ) -> list[SubjectState]:
        """Return the subjects of a stream that match, in byte order: at most `limit`, behind the subject `after`.

        Deleted messages do not count. A subject with messages in several partitions is there once for each. Ask for the
        next ones with `after` = the last one's subject. RemoteError unsupported_version: the cluster's feature level is
        lower than 0.4. StreamNotFound, NotAuthorized.
        """
        info = await self._streams.now(stream, timeout)
        wanted = subjects_to_list(subject)
        return await list_subjects(self._link, info, wanted, after, limit, partition, timeout)

    async def count(
        self, stream: StreamName, *, subject: str | Iterable[str], partition: int | None = None, timeout: float = 10.0
    ) -> int:
        """Return the number of messages on subjects that match, in all partitions or in one; deleted ones do not count.

        `timeout`: of each request, of which a large log takes several. Errors as from `subjects`.
        """
        info = await self._streams.now(stream, timeout)
        return await count_messages(self._link, info, subjects_to_list(subject), partition, timeout)

    async def offsets(self, stream: StreamName, at: Start, *, partition: int = 0, timeout: float = 10.0) -> OffsetAt:
        """Return the offset of a position, such as the first message at or after a datetime, and the log's range."""

        async def find(stream_id: StreamId) -> OffsetAt:
            number = PartitionId(whole_number("partition", partition))
            found = await find_place(self._link, stream_id, number, at, timeout)
            moment = None if found.timestamp_us is None else datetime_of(found.timestamp_us)
            return OffsetAt(found.offset, moment, found.log_start, found.committed_end)

        return await self._streams.with_id(stream, timeout, find)

    async def tail(
        self,
        stream: StreamName,
        n: int = 10,
        *,
        partition: int | None = None,
        where: Filter | None = None,
        timeout: float = 10.0,
    ) -> list[Message]:
        """Return the last `n` messages, oldest first: of all partitions together, those with the latest timestamps.

        With `where`, the last `n` that match, for which the whole log may have to be read. Raises as `read` does.
        """
        if (count := whole_number("number of messages", n)) < 0:
            raise ValueError(f"the number of messages is {count}; give how many to return at most")
        if not isinstance(where, Filter | None):
            raise TypeError(f"where is {a_kind(where)}; give a Filter, such as Filter(key=…) or Filter(subject=…)")
        info = await self._streams.now(stream, timeout)
        return await last_messages(
            self._link, info, partition_numbers(info, partition), count, where, seconds_of(timeout)
        )

    async def to_table(
        self,
        stream: StreamName,
        start: Start = EARLIEST,
        *,
        end: Start | None = None,
        partition: int | None = None,
        columns: Iterable[str] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
        decode: Decode | StreamSchemas | bool | None = None,
        progress: bool | None = None,
        timeout: float = 10.0,
    ) -> pa.Table:
        """Read like `read` into one pyarrow table; with several partitions it has a column `partition`.

        `decode`: the column `value` becomes columns. "schema" or True: those of the stream's schemas, and
        `decode_error`; a `StreamSchemas`: of these. "json": fields of JSON, of types inferred from all values. A
        `DecodeWarning` counts what is in none of them. `progress`: show a bar if it takes more than two seconds; None:
        only on a terminal and in a notebook. SchemaError: the stream has no schemas.
        """
        gathering = await self._gathering(
            stream,
            start,
            end=end,
            partition=partition,
            columns=columns,
            where=where,
            limit=limit,
            decode=decode,
            progress=progress,
            timeout=timeout,
        )
        with gathering:
            async for found in answers(gathering.reader):
                gathering.add(found)
        return warned(*await asyncio.to_thread(gathering.gathered))

    async def to_pandas(
        self,
        stream: StreamName,
        start: Start = EARLIEST,
        *,
        end: Start | None = None,
        partition: int | None = None,
        columns: Iterable[str] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
        decode: Decode | StreamSchemas | bool | None = None,
        progress: bool | None = None,
        timeout: float = 10.0,
    ) -> pandas.DataFrame:
        """Read like `to_table` into a pandas DataFrame. ImportError without the extra `pandas`."""
        require("pandas")
        return pandas_of(
            await self.to_table(
                stream,
                start,
                end=end,
                partition=partition,
                columns=columns,
                where=where,
                limit=limit,
                decode=decode,
                progress=progress,
                timeout=timeout,
            )
        )

    async def to_polars(
        self,
        stream: StreamName,
        start: Start = EARLIEST,
        *,
        end: Start | None = None,
        partition: int | None = None,
        columns: Iterable[str] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
        decode: Decode | StreamSchemas | bool | None = None,
        progress: bool | None = None,
        timeout: float = 10.0,
    ) -> polars.DataFrame:
        """Read like `to_table` into a Polars DataFrame. ImportError without the extra `polars`."""
        require("polars")
        return polars_of(
            await self.to_table(
                stream,
                start,
                end=end,
                partition=partition,
                columns=columns,
                where=where,
                limit=limit,
                decode=decode,
                progress=progress,
                timeout=timeout,
            )
        )

    async def _gathering(
        self,
        stream: StreamName,
        start: Start = EARLIEST,
        *,
        end: Start | None = None,
        partition: int | None = None,
        columns: Iterable[str] | None = None,
        where: Filter | None = None,
        limit: int | None = None,
        decode: Decode | StreamSchemas | bool | None = None,
        progress: bool | None = None,
        timeout: float = 10.0,
    ) -> Gathering:
        info = await self._streams.now(stream, timeout)
        schemas = await self._decoding(info, decode, timeout)
        wanted = WantedColumns(info, columns, schemas, None if where is None else where.subjects)
        reader = await self._reader(
            info,
            start,
            end=end,
            partition=partition,
            limit=limit,
            columns=wanted.fetched,
            where=where,
            timeout=timeout,
        )
        return Gathering(reader, wanted, limit_of(limit), progress)

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
        Other `options` are those of `read`: `follow`, `batch_rows_max`, `columns`, `decode` (of batches; the schemas
        are those at the begin of the block), `read_from`.
        """
        return Consumer(self._positions, self._schemas, consumer_settings(stream, group, start, timeout, options))

    # Writing

    def queue(
        self,
        stream: StreamName,
        name: str,
        *,
        create: bool = True,
        batch: int = limits.QUEUE_BATCH_DEFAULT,
        follow: bool = True,
        domain: str | None = None,
        timeout: float = 10.0,
        **config: Unpack[QueueConfig],
    ) -> Queue:
        """Work on the messages of a stream together with other clients: each until its ack. A context manager.

        It is the consumer `name` of JetStream's API, made if it is missing; `config` describes it, as in
        `client.consumers.create`: `subject`, `start`, `acks`, `ack_wait`, `deliveries_max`, `ack_pending_max`,
        `backoff`, `order_by` ("key", "subject", "token:N": messages alike in it are with one client at a time, in
        order), `dead_letters` (the stream for what it gives up), `inactive_after`, `description`. With `create=False`
        it has to be there. Messages come over NATS, with the rights of JetStream's API; up to `batch` of each partition
        are in this client's hand at a time. Without `follow` it ends where nothing is left. `domain`: of JetStream's
        API, such as "penstock", where brokers do not answer it as `$JS.API`. `timeout`: of connecting and of creating.
        ConsumerExists: it is there with another config. ConsumerNotFound, StreamNotFound, Unavailable; RemoteError
        bad_request: JetStream's API refuses it.
        """
        wanted, _ = name_and_id(stream)
        settings = queue_settings(
            wanted,
            name,
            batch=batch,
            follow=follow,
            domain=domain,
            timeout=timeout,
            config=dict(config) if create else None,
        )

        async def sources(timeout_s: float) -> list[Source]:
            return sources_of(await self._streams.now(stream, timeout_s))

        return Queue(settings, self._publications.apart, sources)

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
        needed while there is no subscriber. If only the ack was lost, or a time-out ended the waiting and the message
        is published again, it may be stored twice: give a `Nats-Msg-Id`. Raises StreamNotFound (no stream stores the
        subject), RemoteError (not_leader: a stream does, but has no subscriber now; too_large), Unavailable (NATS is
        away, or the subject has no subscriber and no broker can be asked), TimedOut (the outcome is unknown: the
        message may be stored later), NotEnoughReplicas, Overloaded, StorageFailed, ReadOnly.
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

        A clean end of the block of the client waits, too, and a `PublishWarning` then tells of failures.
        It blocks only while PUBLISHES_IN_FLIGHT_MAX (4,096) earlier messages have no ack.
        """
        publish = self._publications.publish
        future = await publish(
            subject, value, key, headers, stream, ack, envelope, retries, timeout, notes_failure=True
        )
        if future is None:
            done: asyncio.Future[PubAck | None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return future

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
        storing = await self._streams.storing(subject, timeout)
        acks = (Acks.REPLY,) if envelope is None else (Acks.REPLY, Acks.ENVELOPE)
        acking = [info for info in storing if info.config.acks in acks]
        listening = [info for info in acking if info.intake != Intake.PAUSED]
        expected = frozenset(info.name for info in listening or acking)
        if not expected:
            text = f"no stream that acks stores the subject {subject!r}"
            raise StreamNotFound(ErrorCode.STREAM_NOT_FOUND, text, subject=subject)
        value, all_headers = published(value, key, headers, None, "all", envelope)
        publisher = await self._publications.connected(timeout)
        return await publisher.publish_to_all(subject, value, all_headers, expected, timeout_s=timeout)

    async def append(
        self, stream: StreamName, data: Any, *, partition: int | None = None, timeout: float = 60.0
    ) -> list[AppendResult]:
        """Append rows to the log over the socket, without NATS: a pyarrow, pandas or Polars table, or a list of dicts.

        Columns: value (null: tombstone), subject, key, headers (dicts in a list of dicts, else NATS header blocks); see
        `client.columns`. The index of a pandas DataFrame is ignored: `.reset_index()` makes it a column. No rows: no
        results. Without `partition` each row goes where `penstock.partitions_of` says, in the order of the rows of each
        partition; a column `partition` is ignored. Rows of several partitions and large data are sent in several
        batches, one partition after the other, each batch stored completely or not at all: there is one result per
        batch, which names its partition. An error in a later batch has the results so far in `appended`
        (OutcomeUnknown) or `details["appended"]` (RemoteError). `timeout` applies to each batch. A batch that may
        already be stored, or may be stored later behind other rows, is not retried. Then the call raises OutcomeUnknown
        (the connection broke), TimedOut, RemoteError `fenced_epoch` (its leader lost its leadership), or an error whose
        row in docs/reference/errors.md says "perhaps". A `producer` retries, and stores rows once and in order.
        """
        return await self._appender.append(stream, data, partition, timeout)

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

    async def _set_intake(self, stream: StreamName, intake: Intake, timeout: float) -> StreamInfo:
        name, stream_id = name_and_id(stream)
        request = SetIntakeRequest(name=name, stream_id=stream_id, intake=intake)
        answer, _ = await self._link.call(request, SetIntakeResponse, timeout_s=timeout)
        return await self._streams.completed(answer.stream, timeout)

    async def _reader(
        self,
        stream: StreamName,
        start: Start,
        *,
        end: Start | None = None,
        partition: int | None = None,
        follow: bool = False,
        limit: int | None = None,
        batch_rows_max: int = limits.READ_BATCH_ROWS_DEFAULT,
        columns: Iterable[str] | None = None,
        where: Filter | None = None,
        decode: Literal["schema"] | StreamSchemas | bool | None = None,
        read_from: ReadFrom | Which | None = None,
        timeout: float = 10.0,
    ) -> Reader:
        batch_rows_max, rows_left = rows_max(batch_rows_max), limit_of(limit)
        wanted, chosen = wanted_columns(columns), read_from_of(read_from)
        if not isinstance(where, Filter | None):
            raise TypeError(f"where is {a_kind(where)}; give a Filter, such as Filter(key=…) or Filter(subject=…)")
        info = await self._streams.now(stream, timeout)
        subjects = None if where is None else where.subjects
        typed = await typed_columns(self._schemas, info, columns, decode, timeout, subjects=subjects)
        return Reader(
            self._link,
            await plans(self._link, info, partition, start, end, follow=follow, timeout_s=timeout),
            batch_rows_max=batch_rows_max,
            columns=wanted if typed is None else typed.fetched,
            timeout_s=timeout,
            where=where,
            read_from=chosen,
            grows=info if follow and partition is None and end is None else None,
            limit=rows_left,
            typed=typed,
        )

    async def _decoding(self, info: StreamInfo, decode: object, timeout: float) -> Decode | StreamSchemas | None:
        """Return by what values are decoded: the schemas themselves where the caller wants those of the stream."""
        wanted = decode_of(decode)
        return await schemas_to_decode(self._schemas, info, timeout) if wanted == "schema" else wanted

    async def _get(self, stream: StreamName, which: dict[str, Any], partition: int, timeout: float) -> Got:
        """Return the message with that `offset`, or the latest with that `key` or `subject`, as given in `which`."""

        async def ask(stream_id: StreamId) -> Got:
            number = PartitionId(whole_number("partition", partition))
            request = GetRequest(stream_id=stream_id, partition=number, **which)
            answer, raw = await self._link.call(request, GetResponse, timeout_s=timeout)
            batches.check_format(answer.format_version)
            source = f"the answer of {self._link.server_of(stream_id, number)}"
            found = batches.one_message(raw, answer.offset, partition, source=source)
            check_asked_for(request, found, source=source)
            return Got(found, answer.partitions)

        return await self._streams.with_id(stream, timeout, ask)


class Connecting(OfThisProcess):
    """A client that is not connected yet: `await` it, or use it in `async with`, which closes the client."""

    def __init__(self, link: Link, client: Client, timeout_s: float) -> None:
        self._link = link
        self._client = client
        self._timeout_s = timeout_s

    async def open(self) -> Client:
        """Connect and return the client."""
        await self._link.connect(self._timeout_s)
        return self._client

    def __await__(self) -> Generator[Any, None, Client]:
        return self.open().__await__()

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)
