"""The node: every message, request and event of one broker goes through here, and every effect comes out as a `Step`.

Rules: methods take what happened and the time (`now`), decide at once, and put what must be done into the outbox;
the driver takes the step and does it. Nothing here waits. One owner calls; disk work comes back through `complete`.

| event                           | method                   |
|---------------------------------|--------------------------|
| messages from NATS              | `messages`               |
| NATS confirmed subscriptions    | `confirmed`              |
| NATS refused one                | `refused`                |
| the connection to NATS was lost | `nats_lost`              |
| a request from a client         | `request`                |
| a client has gone               | `gone`                   |
| disk work is done               | `complete`               |
| time has passed                 | `tick`                   |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, TimestampUs
from penstock.commitlog import Flush, LogState
from penstock.fetch.waiters import Waiter, Waiters
from penstock.ingest.admission import MessageGroup
from penstock.messages import (
    AlterStreamRequest,
    AppendRequest,
    CreateStreamRequest,
    DeleteStreamRequest,
    FetchRequest,
    FetchResponse,
    FindStreamsRequest,
    FindStreamsResponse,
    GetRequest,
    GetResponse,
    HelloRequest,
    HelloResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    Request,
    StatusRequest,
    api_versions,
)
from penstock.metadata.commands import DeleteStream, StartBroker
from penstock.metadata.image import ClusterImage, apply
from penstock.metadata.journal import Journal
from penstock.node.catalog import Catalog
from penstock.node.gaps import Gaps
from penstock.node.partition import Budget, Partition
from penstock.node.queries import CheckAppend, FindOffset, GetMessage
from penstock.node.report import Report, Settings
from penstock.node.step import DiskWork, Extent, Lane, Outbox, Step
from penstock.node.streams import PARTITION, Streams
from penstock.vfs import Vfs

TICK_US = 1_000_000


@dataclass(slots=True)
class _Append:
    """An append on its way: checks may finish in any order, rows are appended in the order of the requests."""

    caller: Hashable
    check: CheckAppend
    error: Exception | None = None
    checked: bool = False


class Node:
    """One broker without its sockets. `start` first."""

    def __init__(self, vfs: Vfs, settings: Settings) -> None:
        self._vfs = vfs
        self._settings = settings
        self._outbox = Outbox()
        self._waiters = Waiters()
        self._gaps = Gaps(vfs)
        self._appends: dict[int, deque[_Append]] = {}
        self._budget = Budget(settings.partition_in_flight_bytes_max)
        self._append_bytes = 0  # of appends that are being checked
        self._next_tick_us = 0
        self._now = Now(0, 0)  # of the disk work that has just come back
        self._handlers: dict[type[Request], Callable[[Hashable, Any, bytes | memoryview, Now], None]] = {
            HelloRequest: self._hello,
            MetadataRequest: self._metadata,
            FindStreamsRequest: self._find_streams,
            CreateStreamRequest: lambda caller, request, _, now: self._streams.create(caller, request, now),
            AlterStreamRequest: self._alter,
            DeleteStreamRequest: lambda caller, request, _, __: self._streams.delete(caller, request),
            FetchRequest: self._fetch,
            GetRequest: self._get,
            ListOffsetsRequest: self._list_offsets,
            AppendRequest: self._append,
            StatusRequest: self._status,
        }

    # Life

    def start(self, now: Now) -> Step:
        """Recover everything from the disk; blocking. CorruptionError or OSError if the broker cannot start on it."""
        journal, entries, note = Journal.open(self._vfs)
        if note is not None:
            self._outbox.notice(note)
        image = ClusterImage()
        deleted = []
        last_start_us = 0
        for entry in entries:
            image, _ = apply(image, entry.index, entry.command)
            if isinstance(entry.command, DeleteStream):
                deleted.append(entry.command.stream_id)
            elif isinstance(entry.command, StartBroker):
                last_start_us = entry.command.started_us
        command = StartBroker(started_us=now.wall_us)
        index = journal.append(command)
        journal.flush().run()
        image, _ = apply(image, index, command)
        self._catalog = Catalog(journal, image, self._outbox)
        self._streams = Streams(
            self._vfs,
            self._catalog,
            self._outbox,
            self._budget,
            info=lambda state: self._report.stream(state),
            closed=self._stream_closed,
        )
        self._report = Report(self._settings, self._catalog, self._streams, self._gaps, started_us=now.wall_us)
        self._streams.start(deleted, now.wall_us)
        last_message_us = max((p.log.last_timestamp_us for p in self._streams.partitions.values()), default=0)
        self._gaps.load(last_sign_of_life_us=max(last_message_us, last_start_us), now_us=now.wall_us)
        for partition in self._streams.partitions.values():
            self._flush(partition)
        return self._outbox.take()

    def stop(self, now: Now) -> Step:
        """Refuse who waits, sync and close everything; blocking. The driver has drained NATS before."""
        error = RemoteError(ErrorCode.STOPPING, "the broker is stopping; connect again in a moment")
        for partition in self._streams.partitions.values():
            for waiter in self._waiters.waiting(partition.stream.stream_id):
                self._waiters.take(waiter)
                self._outbox.reply(waiter.caller, error)
            flush = partition.log.flush()
            if flush is not None:
                self._run_flush(partition, flush)
            partition.abandon(error, self._outbox.step)
            partition.log.close()
        self._gaps.begin(now.wall_us, "the broker was stopped")
        self._gaps.save()
        self._catalog.close()
        return self._outbox.take()

    def _run_flush(self, partition: Partition, flush: Flush) -> None:
        try:
            flush.run()
        except OSError as error:
            self._flush_failed(partition, flush, error)
        else:
            partition.log.flushed(flush)
            partition.advance(self._outbox.step)

    def take(self) -> Step:
        """What the driver must do now."""
        return self._outbox.take()

    # NATS

    @property
    def in_flight_bytes(self) -> int:
        """Bytes that are written or being checked, and not yet answered."""
        return self._append_bytes + self._budget.used_bytes

    def messages(self, groups: Mapping[int, MessageGroup], now: Now) -> None:
        """What one read of the NATS connection delivered, by subscription."""
        for stream_id, group in groups.items():
            partition = self._streams.partitions.get(stream_id)
            if partition is None:
                continue  # the last messages of a stream that was just deleted
            committed_end = partition.committed_end
            partition.ingest(group, now.wall_us, self._outbox.step)
            self._moved(partition, committed_end)

    def confirmed(self, stream_ids: Iterable[int], now: Now) -> None:
        """NATS has these subscriptions: what is published from now on arrives."""
        self._streams.confirmed(stream_ids)
        gap = self._gaps.end(now.wall_us)
        if gap is not None and gap.end_us is not None:
            seconds = (gap.end_us - gap.start_us) / 1e6
            self._outbox.notice(
                f"not subscribed for {seconds:.3f} s ({gap.reason}): what was published meanwhile was neither stored nor acked"
            )
            self._outbox.work(Lane.WRITE, self._gaps.save, self._ignore_gap_error)

    def refused(self, stream_id: int, reason: str) -> None:
        """NATS does not let the broker subscribe for this stream."""
        self._streams.refused(stream_id, reason)

    def nats_lost(self, now: Now, reason: str) -> None:
        """Nobody listens from `now_us` on."""
        self._streams.lost()
        self._gaps.begin(now.wall_us, reason)

    def _ignore_gap_error(self, error: Exception | None) -> None:
        if error is not None:
            self._outbox.notice(f"cannot save the list of gaps: {error}")

    # Disk

    def complete(self, work: DiskWork, error: Exception | None, now: Now) -> None:
        """A piece of disk work is done, or failed with `error`."""
        self._now = now
        work.done(error)

    def _moved(self, partition: Partition, committed_end: int) -> None:
        """After rows were appended or synced: wake readers, and see that what is unsynced gets synced."""
        if partition.committed_end != committed_end:
            self._wake(partition)
        if partition.waits_for_sync:
            self._flush(partition)

    def _flush(self, partition: Partition) -> None:
        flush = partition.log.flush()
        if flush is None:
            return

        def done(error: Exception | None) -> None:
            if error is not None:
                self._flush_failed(partition, flush, error)
                return
            committed_end = partition.committed_end
            partition.log.flushed(flush)
            partition.advance(self._outbox.step)
            self._moved(partition, committed_end)

        self._outbox.work(Lane.WRITE, flush.run, done)

    def _flush_failed(self, partition: Partition, flush: Flush, error: Exception) -> None:
        partition.log.flush_failed(flush, error if isinstance(error, OSError) else OSError(str(error)))
        text = f"cannot sync the log of stream {partition.stream.name!r} ({error}); it stores nothing until a restart"
        partition.fail_pending(text, self._outbox.step)
        self._outbox.notice(text)

    # Time

    def tick(self, now: Now) -> None:
        """Answer those whose time is up; once a second, roll and retain."""
        for waiter in self._waiters.expired(now.elapsed_us):
            partition = self._streams.partitions.get(waiter.request.stream_id)
            if partition is not None:
                self._answer_fetch(partition, waiter.caller, waiter.request, final=True)
        self._streams.expire(now.elapsed_us)
        if now.elapsed_us < self._next_tick_us:
            return
        self._next_tick_us = now.elapsed_us + TICK_US
        for partition in self._streams.partitions.values():
            self._tick_partition(partition, now.wall_us)

    def _tick_partition(self, partition: Partition, now_us: int) -> None:
        name = partition.stream.name
        if partition.log.state is not LogState.WRITABLE:
            return
        try:
            removal = partition.log.tick(now_us)
        except OSError as error:
            self._outbox.notice(f"stream {name!r}: cannot roll or retain: {error}")
            return
        if removal is not None:

            def done(error: Exception | None) -> None:
                if error is not None:
                    self._outbox.notice(f"stream {name!r}: cannot remove old segments: {error}")

            self._outbox.work(Lane.WRITE, removal.run, done)
        self._flush(partition)

    @property
    def next_wake_us(self) -> int:
        """When `tick` has something to do, at the latest."""
        deadlines = (self._waiters.next_deadline_us, self._streams.next_deadline_us)
        return min((deadline for deadline in deadlines if deadline is not None), default=self._next_tick_us)

    # Requests

    def request(self, caller: Hashable, request: Request, raw: bytes | memoryview, now: Now) -> None:
        """Answer a request, now or later; exactly one reply goes to `caller`."""
        try:
            self._handlers[type(request)](caller, request, raw, now)
        except RemoteError as error:
            self._outbox.reply(caller, error)

    def gone(self, callers: Iterable[Hashable]) -> None:
        """These callers' connection has closed: nothing waits for them any more."""
        self._waiters.drop(callers)

    def _partition(self, stream_id: int, number: int) -> Partition:
        partition = self._streams.partitions.get(stream_id)
        if partition is None:
            state = self._catalog.image.by_id(stream_id)
            reason = self._streams.failures.get(stream_id, "its log is being opened; try again in a moment")
            raise RemoteError(ErrorCode.STORAGE_FAILED, f"stream {state.name!r} cannot be used: {reason}")
        if number != PARTITION:
            text = f"stream {partition.stream.name!r} has 1 partition; there is no partition {number}"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)
        return partition

    def _hello(self, caller: Hashable, request: HelloRequest, raw: bytes | memoryview, now: Now) -> None:
        response = HelloResponse(
            broker_id=self._settings.broker_id,
            broker_version=self._settings.broker_version,
            cluster_id=self._settings.cluster_id,
            format_version=self._settings.format_version,
            nats_urls=self._settings.nats_urls,
            api_versions=api_versions(),
        )
        self._outbox.reply(caller, response)

    def _metadata(self, caller: Hashable, request: MetadataRequest, raw: bytes | memoryview, now: Now) -> None:
        image = self._catalog.image
        next_after = None
        if request.names is not None:
            names = [name for name in request.names[: limits.METADATA_STREAMS_MAX] if name in image.names]
        else:
            names = sorted(name for name in image.names if request.after is None or name > request.after)
            page = max(1, min(request.streams_max, limits.METADATA_STREAMS_MAX))
            if len(names) > page:
                names = names[:page]
                next_after = names[-1]
        streams = tuple(self._report.stream(image.by_name(name)) for name in names)
        self._outbox.reply(caller, MetadataResponse(streams=streams, brokers=self._report.brokers(), next_after=next_after))

    def _find_streams(self, caller: Hashable, request: FindStreamsRequest, raw: bytes | memoryview, now: Now) -> None:
        found = self._catalog.image.covering(request.subject)
        self._outbox.reply(caller, FindStreamsResponse(streams=tuple(map(self._report.stream, found))))

    def _alter(self, caller: Hashable, request: AlterStreamRequest, raw: bytes | memoryview, now: Now) -> None:
        self._streams.alter(caller, request)

    def _status(self, caller: Hashable, request: StatusRequest, raw: bytes | memoryview, now: Now) -> None:
        self._outbox.reply(caller, self._report.status(now.wall_us, in_flight_bytes=self.in_flight_bytes))

    def _stream_closed(self, stream_id: int, error: RemoteError) -> None:
        for waiter in self._waiters.waiting(stream_id):
            self._waiters.take(waiter)
            self._outbox.reply(waiter.caller, error)
        for append in self._appends.pop(stream_id, ()):
            self._append_bytes -= len(append.check.raw)
            self._outbox.reply(append.caller, error)

    # Fetch

    def _fetch(self, caller: Hashable, request: FetchRequest, raw: bytes | memoryview, now: Now) -> None:
        partition = self._partition(request.stream_id, request.partition)
        wait_us = min(request.wait_ms_max, limits.FETCH_WAIT_MS_MAX) * 1_000
        if not self._answer_fetch(partition, caller, request, final=wait_us == 0):
            self._waiters.park(Waiter(caller, request, request.stream_id, now.elapsed_us + wait_us))

    def _answer_fetch(self, partition: Partition, caller: Hashable, request: FetchRequest, *, final: bool) -> bool:
        """Answer with what there is; with too little (or an error) only if that is `final` (or an error)."""
        log = partition.log
        committed_end = partition.committed_end
        extent = None
        base_offset = end_offset = int(request.offset)
        try:
            if not log.log_start <= request.offset <= log.log_end:
                raise _out_of_range(partition, request.offset)
            if request.offset < committed_end:
                bytes_max = min(request.bytes_max, limits.FETCH_BYTES_MAX)
                found = log.view().slice(request.offset, end=committed_end, bytes_max=bytes_max)
                if found is not None:
                    enough = found.length >= request.bytes_min or found.end_offset < committed_end
                    if not enough and not final:
                        return False
                    extent = Extent(partition.vfs, found.path, found.position, found.length)
                    base_offset, end_offset = found.base_offset, found.end_offset
            if extent is None and not final:
                return False
        except RemoteError as error:
            self._outbox.reply(caller, error)
            return True
        response = FetchResponse(
            log_start=Offset(log.log_start),
            committed_end=Offset(committed_end),
            base_offset=Offset(base_offset),
            end_offset=Offset(end_offset),
            format_version=self._settings.format_version,
            leader_epoch=partition.stream.leader_epoch,
        )
        if extent is not None:
            partition.counters["fetched_bytes"] += extent.length
        self._outbox.reply(caller, response, extent)
        return True

    def _wake(self, partition: Partition) -> None:
        for waiter in self._waiters.waiting(partition.stream.stream_id):
            if self._answer_fetch(partition, waiter.caller, waiter.request, final=False):
                self._waiters.take(waiter)

    # Queries

    def _get(self, caller: Hashable, request: GetRequest, raw: bytes | memoryview, now: Now) -> None:
        partition = self._partition(request.stream_id, request.partition)
        if sum(wanted is not None for wanted in (request.offset, request.key, request.subject)) != 1:
            raise RemoteError(ErrorCode.BAD_REQUEST, "get: give exactly one of offset, key and subject")
        view = partition.log.view()
        query = GetMessage(view, partition.committed_end, offset=request.offset, key=request.key, subject=request.subject)

        def done(error: Exception | None) -> None:
            if error is not None:
                self._outbox.reply(caller, _as_remote(error))
                return
            response = GetResponse(
                offset=Offset(query.found_offset),
                log_start=Offset(partition.log.log_start),
                committed_end=Offset(partition.committed_end),
                format_version=self._settings.format_version,
                leader_epoch=partition.stream.leader_epoch,
            )
            self._outbox.reply(caller, response, query.data)

        self._outbox.work(Lane.READ, query.run, done)

    def _list_offsets(self, caller: Hashable, request: ListOffsetsRequest, raw: bytes | memoryview, now: Now) -> None:
        partition = self._partition(request.stream_id, request.partition)
        offset = {"earliest": partition.log.log_start, "latest": partition.committed_end}.get(str(request.at))
        timestamp_us = request.at if isinstance(request.at, int) else None
        query = FindOffset(partition.log.view(), partition.committed_end, offset=offset, timestamp_us=timestamp_us)

        def done(error: Exception | None) -> None:
            if error is not None:
                self._outbox.reply(caller, _as_remote(error))
                return
            response = ListOffsetsResponse(
                offset=Offset(query.offset),
                timestamp_us=None if query.timestamp_us is None else TimestampUs(query.timestamp_us),
                log_start=Offset(partition.log.log_start),
                committed_end=Offset(partition.committed_end),
                leader_epoch=partition.stream.leader_epoch,
            )
            self._outbox.reply(caller, response)

        self._outbox.work(Lane.READ, query.run, done)

    # Append

    def _append(self, caller: Hashable, request: AppendRequest, raw: bytes | memoryview, now: Now) -> None:
        partition = self._partition(request.stream_id, request.partition)
        if self._append_bytes + len(raw) > self._settings.partition_in_flight_bytes_max and self._append_bytes:
            raise RemoteError(ErrorCode.OVERLOADED, "too many appends at once; wait for some to be answered")
        config = partition.stream.config
        append = _Append(caller, CheckAppend(raw, config.subject, config.max_message_bytes))
        self._append_bytes += len(raw)
        self._appends.setdefault(request.stream_id, deque()).append(append)

        def done(error: Exception | None) -> None:
            append.error = error
            append.checked = True
            self._append_checked(request.stream_id, self._now.wall_us)

        self._outbox.work(Lane.READ, append.check.run, done)

    def _append_checked(self, stream_id: int, now_us: int) -> None:
        queue = self._appends.get(stream_id)
        while queue and queue[0].checked:
            append = queue.popleft()
            self._append_bytes -= len(append.check.raw)
            if append.error is not None:
                self._outbox.reply(append.caller, _as_remote(append.error))
                continue
            partition = self._streams.partitions[stream_id]
            committed_end = partition.committed_end
            partition.append(append.caller, append.check.raw, now_us, self._outbox.step)
            self._moved(partition, committed_end)
        if queue is not None and not queue:
            self._appends.pop(stream_id, None)


def _out_of_range(partition: Partition, offset: int) -> RemoteError:
    start, end = partition.log.log_start, partition.committed_end
    holds = f"offsets {start} to {end - 1}" if end > start else f"nothing; its next offset is {end}"
    text = f"offset {offset} is out of range: stream {partition.stream.name!r} holds {holds}"
    return RemoteError(ErrorCode.OFFSET_OUT_OF_RANGE, text, log_start=start, committed_end=end)


def _as_remote(error: Exception) -> RemoteError:
    if isinstance(error, RemoteError):
        return error
    return RemoteError(ErrorCode.STORAGE_FAILED, f"the broker could not read its log: {error}")
