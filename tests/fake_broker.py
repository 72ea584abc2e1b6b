"""A fake broker without disk and NATS, on a real socket, for tests of the client.

It uses the product's `messages` and `wire`. A test controls it: `intercept` gets every request first and can answer it,
refuse it (raise RemoteError), close the connection (raise Cut) or wait for the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.subjects import matches
from penstock.batch import codec, projecting
from penstock.ingest.producers import ProducerCollector, Producers
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendOnceRequest,
    AppendOnceResponse,
    AppendRequest,
    AppendResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    DeleteStreamResponse,
    FetchRequest,
    FetchResponse,
    FindStreamsRequest,
    FindStreamsResponse,
    GetRequest,
    GetResponse,
    HelloRequest,
    HelloResponse,
    KeyMark,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    NatsStatus,
    PartitionInfo,
    Request,
    Response,
    StatusRequest,
    StatusResponse,
    StreamInfo,
    api_versions,
)
from penstock.wire import Frame, FrameDecoder, decode_request, encode_answer
from tests.groups import Columns, encoded

Answer = tuple[Response, bytes]


_NOW_US = 2_000_000_000_000_000


def known_producers() -> Producers:
    """Return the producers of an empty log."""
    producers = Producers()
    producers.known(ProducerCollector(0))
    return producers


def batches_in(raw: bytes) -> list[bytes]:
    """Split the raw part of a fetch response into batch messages."""
    found = []
    while raw:
        size_bytes = codec.read_header(raw).size_bytes
        found.append(raw[:size_bytes])
        raw = raw[size_bytes:]
    return found


def projected(request: FetchRequest, raw: bytes, end: int) -> tuple[bytes, int | None]:
    """Return the projection of batches for a fetch of some columns or subjects, and its CRC-32C."""
    wanted = projecting.Projection(request.columns, request.subjects)
    rows = [wanted.of_message(batch, (request.offset, end)) for batch in batches_in(raw)]
    found, crc = projecting.to_stream(rows, wanted.schema)
    return found, crc if found else None


class Cut(Exception):  # noqa: N818
    """Raised by `intercept` to abort the connection in place of an answer."""


@dataclass
class FakeStream:
    stream_id: int
    config: StreamConfig
    batches: list[bytes] = field(default_factory=list)
    log_start: int = 0
    end: int = 0
    clock_us: int = 1_000_000
    leader_epoch: int = 1
    producers: Producers = field(default_factory=known_producers)
    added: list[FakeStream] = field(default_factory=list)  # partitions 1, 2, …
    counts: tuple[int, ...] = ()
    key_marks: list[KeyMark] = field(default_factory=list)

    @property
    def partitions(self) -> list[FakeStream]:
        return [self, *self.added]

    def grow(self, partitions: int) -> None:
        """Add partitions, without key boundaries."""
        self.counts = (*(self.counts or (len(self.partitions),)), partitions)
        while len(self.partitions) < partitions:
            self.added.append(FakeStream(self.stream_id, self.config))

    def mark(self) -> None:
        """Set the key boundaries of the older partitions to their ends."""
        older = self.partitions[: self.counts[-2]]
        self.key_marks += [KeyMark(self.counts[-1], number, one.end) for number, one in enumerate(older)]

    def append(self, columns: Columns) -> AppendResponse:
        base, epoch = self.end, self.leader_epoch
        self.clock_us += 1_000_000
        self.batches.append(bytes(encoded(columns, base_offset=base, timestamp_us=self.clock_us, leader_epoch=epoch)))
        self.end = base + len(columns.values)
        return AppendResponse(
            base_offset=base, end_offset=self.end, timestamp_us=self.clock_us, leader_epoch=epoch, fsynced=True
        )

    def info(self) -> StreamInfo:
        partitions = tuple(
            PartitionInfo(
                partition=number,
                leader_epoch=one.leader_epoch,
                log_start=one.log_start,
                committed_end=one.end,
                log_end=one.end,
            )
            for number, one in enumerate(self.partitions)
        )
        return StreamInfo(
            stream_id=self.stream_id,
            config=self.config,
            partitions=partitions,
            counts=self.counts,
            key_marks=tuple(self.key_marks),
        )


class FakeBroker:
    """`async with FakeBroker() as broker` listens on `broker.address`."""

    def __init__(self, **hello: Any) -> None:
        self.hello = {"broker_id": 1, "broker_version": "fake", "cluster_id": "c", "format_version": 1} | hello
        self.streams: dict[str, FakeStream] = {}
        self.requests: list[Request] = []
        self.raws: list[bytes] = []
        self.intercept: Callable[[Request], Awaitable[Answer | None]] | None = None
        self.fetch_bytes = limits.FETCH_BYTES_DEFAULT
        self.answer_bytes_max = 2**62  # the rest of a longer answer waits for `go_on`
        self.go_on = asyncio.Event()
        self.damaged_answers = 0  # number of next answers that get a flipped bit
        self.address = ""
        self.connections = 0
        self.appended = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_id = 1

    async def __aenter__(self) -> FakeBroker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut_connections()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cut_connections(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def create(self, name: str, subject: str = "s", **config: Any) -> FakeStream:
        stream = FakeStream(self._next_id, StreamConfig(name=name, subject=subject, **config))
        self._next_id += 1
        self.streams[name] = stream
        return stream

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)  # not in the task, which may be cancelled before it begins
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder(limits.HELLO_BYTES_MAX)
        try:
            while data := await reader.read(2**18):
                decoder.receive(data)
                while (frame := decoder.next_frame()) is not None:
                    decoder.frame_bytes_max = decoder.body_bytes_max = 2**30
                    answering = asyncio.get_running_loop().create_task(self._answer(frame, writer))
                    self._tasks.add(answering)
                    answering.add_done_callback(self._tasks.discard)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        try:
            request = decode_request(frame)
            self.requests.append(request)
            self.raws.append(bytes(frame.raw))
            answer = await self.intercept(request) if self.intercept is not None else None
            response, raw = answer or await self.handle(request, bytes(frame.raw))
        except Cut:
            writer.transport.abort()
        except RemoteError as error:
            writer.write(encode_answer(frame, error))
        else:
            head = encode_answer(frame, response, len(raw), (raw,))
            frame_bytes = bytearray(head + raw)
            if self.damaged_answers:
                self.damaged_answers -= 1
                frame_bytes[len(head) // 2] ^= 0x10
            writer.write(frame_bytes[: self.answer_bytes_max])
            if rest := frame_bytes[self.answer_bytes_max :]:
                await self.go_on.wait()
                writer.write(rest)

    async def handle(self, request: Request, raw: bytes = b"") -> Answer:
        match request:
            case HelloRequest():
                return HelloResponse(**({"api_versions": api_versions()} | self.hello)), b""
            case FetchRequest():
                return await self._fetch(request)
            case AppendOnceRequest():
                return await self._append_once(request, raw)
            case AppendRequest():
                return await self._append(request, raw)
            case GetRequest():
                return self._get(request)
            case ListOffsetsRequest():
                return self._list_offsets(request), b""
            case _:
                return self._manage(request), b""

    def _manage(self, request: Request) -> Response:
        match request:
            case MetadataRequest(names=names, after=after, streams_max=count):
                found = [self.streams[name] for name in sorted(self.streams) if names is None or name in names]
                found = [stream for stream in found if after is None or stream.config.name > after]
                page, more = found[:count], found[count:]
                return MetadataResponse(
                    streams=tuple(stream.info() for stream in page),
                    next_after=page[-1].config.name if more else None,
                )
            case FindStreamsRequest(subject=subject):
                found = [stream for stream in self.streams.values() if matches(stream.config.subject, subject)]
                return FindStreamsResponse(streams=tuple(stream.info() for stream in found))
            case CreateStreamRequest(config=config):
                there = self.streams.get(config.name)
                if there is None:
                    there = FakeStream(self._next_id, config)
                    self._next_id += 1
                    self.streams[config.name] = there
                    return CreateStreamResponse(stream=there.info(), created=True)
                if there.config != config:
                    raise RemoteError(ErrorCode.STREAM_EXISTS, f"{config.name} exists with another config")
                return CreateStreamResponse(stream=there.info(), created=False)
            case AlterStreamRequest(name=name, changes=changes):
                stream = self._named(name)
                values = {key: getattr(stream.config, key) for key in stream.config.__struct_fields__}
                stream.config = StreamConfig(**(values | changes))
                return AlterStreamResponse(stream=stream.info())
            case DeleteStreamRequest(name=name, stream_id=stream_id):
                stream = self._named(name)
                if stream_id not in (None, stream.stream_id):
                    raise RemoteError(ErrorCode.STREAM_CHANGED, "another stream by now")
                del self.streams[name]
                return DeleteStreamResponse(stream_id=stream.stream_id)
            case StatusRequest():
                return StatusResponse(
                    broker_id=self.hello["broker_id"],
                    broker_version="fake",
                    cluster_id="c",
                    address=self.address,
                    started_us=0,
                    uptime_ms=1,
                    nats=NatsStatus(state="connected"),
                )
        raise AssertionError(request)

    def _named(self, name: str) -> FakeStream:
        if name not in self.streams:
            raise RemoteError(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {name!r}")
        return self.streams[name]

    def _with_id(self, stream_id: int, partition: int = 0) -> FakeStream:
        for stream in self.streams.values():
            if stream.stream_id == stream_id:
                return stream.partitions[partition]
        raise RemoteError(ErrorCode.STREAM_CHANGED, f"there is no stream with id {stream_id}")

    async def _fetch(self, request: FetchRequest) -> Answer:
        stream = self._with_id(request.stream_id, request.partition)
        if request.offset < stream.log_start:
            raise RemoteError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                "gone",
                offset=request.offset,
                log_start=stream.log_start,
                committed_end=stream.end,
            )
        if request.offset >= stream.end and request.wait_ms_max:
            async with self.appended:
                try:
                    async with asyncio.timeout(request.wait_ms_max / 1000):
                        await self.appended.wait_for(lambda: request.offset < stream.end)
                except TimeoutError:
                    pass
        raw, base, end = b"", request.offset, request.offset
        for batch in stream.batches:
            header = codec.read_header(batch)
            if header.end_offset <= request.offset:
                continue
            if raw and len(raw) + len(batch) > min(self.fetch_bytes, request.bytes_max):
                break
            base = base if raw else header.base_offset
            raw, end = raw + batch, header.end_offset
            if request.end is not None and end >= request.end:
                break
        crc = last_epoch = None
        if request.is_projected and raw:
            last_epoch = codec.read_header(batches_in(raw)[-1]).leader_epoch
            end = end if request.end is None else min(end, request.end)
            base, raw, crc = request.offset, *projected(request, raw, end)
        response = FetchResponse(
            log_start=stream.log_start,
            committed_end=stream.end,
            base_offset=base,
            end_offset=end,
            format_version=1,
            leader_epoch=stream.leader_epoch,
            raw_crc=crc,
            last_epoch=last_epoch,
        )
        return response, raw

    async def _append_once(self, request: AppendOnceRequest, raw: bytes) -> Answer:
        stream = self._with_id(request.stream_id, request.partition)
        header = codec.verify(raw)
        producer = codec.BatchProducer(request.producer_id, request.producer_epoch, request.sequence)
        place = stream.producers.find(producer, header.count, _NOW_US)
        is_duplicate = place is not None
        if place is None:
            answer = self._store(stream, raw)
            stream.producers.appended(
                msgspec.structs.replace(
                    header,
                    **producer._asdict(),
                    base_offset=answer.base_offset,
                    end_offset=answer.end_offset,
                    max_timestamp_us=_NOW_US,
                )
            )
            place = stream.producers.find(producer, header.count, _NOW_US)
        assert place is not None
        response = AppendOnceResponse(
            base_offset=place.base_offset,
            end_offset=place.end_offset,
            timestamp_us=_NOW_US,
            leader_epoch=stream.leader_epoch,
            fsynced=True,
            duplicate=is_duplicate,
        )
        return response, b""

    async def _append(self, request: AppendRequest, raw: bytes) -> Answer:
        stream = self._with_id(request.stream_id, request.partition)
        codec.verify(raw)
        return await self._notify(self._store(stream, raw)), b""

    @staticmethod
    def _store(stream: FakeStream, raw: bytes) -> AppendResponse:
        batch = codec.check_rows(raw)
        return stream.append(
            Columns(
                [subject.encode() for subject in batch.column("subject").to_pylist()],
                batch.column("key").to_pylist(),
                batch.column("value").to_pylist(),
                batch.column("headers").to_pylist(),
            )
        )

    async def append(self, stream: FakeStream, columns: Columns) -> AppendResponse:
        return await self._notify(stream.append(columns))

    async def _notify(self, response: AppendResponse) -> AppendResponse:
        async with self.appended:
            self.appended.notify_all()
        return response

    def _get(self, request: GetRequest) -> Answer:
        stream = self._with_id(request.stream_id, request.partition)
        for batch in reversed(stream.batches):
            rows = codec.check_rows(batch).to_pylist()
            for row in reversed(rows):
                wanted = (
                    row["offset"] == request.offset
                    or (request.key is not None and row["key"] == request.key)
                    or (request.subject is not None and row["subject"] == request.subject)
                )
                if wanted:
                    response = GetResponse(
                        offset=row["offset"],
                        log_start=stream.log_start,
                        committed_end=stream.end,
                        format_version=1,
                        leader_epoch=stream.leader_epoch,
                    )
                    return response, batch
        raise RemoteError(ErrorCode.MESSAGE_NOT_FOUND, "no such message")

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        stream = self._with_id(request.stream_id, request.partition)
        offset, timestamp_us = stream.end, None
        if request.at == "earliest":
            offset = stream.log_start
        elif request.at != "latest":
            for batch in stream.batches:
                header = codec.read_header(batch)
                if header.min_timestamp_us >= request.at:
                    offset, timestamp_us = header.base_offset, header.min_timestamp_us
                    break
        return ListOffsetsResponse(
            offset=offset,
            timestamp_us=timestamp_us,
            log_start=stream.log_start,
            committed_end=stream.end,
            leader_epoch=stream.leader_epoch,
        )


def columns(*values: bytes | None, subject: bytes = b"s", keys: list[bytes | None] | None = None) -> Columns:
    """Return the rows of one batch, all on one subject."""
    return Columns([subject] * len(values), keys, list(values), None)
