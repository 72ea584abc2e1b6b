"""The life of streams on this broker: made, opened, subscribed, altered, deleted.

Rules: creation is answered only when NATS has confirmed the subscription, so that what is published afterwards is
stored. A folder that no stream of the journal owns is moved to `quarantine/`, never adopted and never deleted; the
folder of a stream that the journal deleted is removed.

    journaled → applied → log opened → subscribed → confirmed → answered
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from penstock.base.clock import Now
from penstock.base.config import Storage, StreamConfig
from penstock.base.errors import CorruptionError, ErrorCode, OperationalError, RemoteError
from penstock.commitlog import Log, LogConfig
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    DeleteStreamResponse,
    Response,
    StreamInfo,
)
from penstock.metadata.commands import AlterStream, CreateStream, DeleteStream
from penstock.metadata.image import Outcome, StreamState, altered_config, check_create
from penstock.node.catalog import Catalog
from penstock.node.partition import Budget, Partition
from penstock.node.step import Lane, Outbox
from penstock.vfs import Vfs
from penstock.vfs.memory import MemoryVfs

PARTITION = 0
STREAMS_PATH = "streams"
QUARANTINE_PATH = "quarantine"


def log_config(config: StreamConfig) -> LogConfig:
    """What the log of a stream needs to know of its config."""
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_age_us=_us(config.segment_age_ms),
        max_age_us=_us(config.max_age_ms),
        max_messages=config.max_messages,
        max_bytes=config.max_bytes,
    )


def _us(ms: int | None) -> int | None:
    return None if ms is None else ms * 1_000


def stream_path(stream: StreamState) -> str:
    """The folder of a stream: its id first, because a name can come again."""
    return f"{STREAMS_PATH}/{stream.stream_id:08d}-{stream.name}"


@dataclass(slots=True)
class _Creation:
    """Somebody who waits for a stream's subscription."""

    caller: Hashable
    created: bool
    deadline_us: int


class Streams:
    """All streams that this broker leads, by id."""

    def __init__(
        self,
        vfs: Vfs,
        catalog: Catalog,
        outbox: Outbox,
        budget: Budget,
        *,
        info: Callable[[StreamState], StreamInfo],
        closed: Callable[[int, RemoteError], None],
    ) -> None:
        self.catalog = catalog
        self.partitions: dict[int, Partition] = {}
        self.failures: dict[int, str] = {}  # streams whose log cannot be opened, and why
        self._vfs = vfs
        self._outbox = outbox
        self._memory: Vfs = MemoryVfs()
        self._budget = budget
        self._info = info
        self._closed = closed  # tells the node that a stream is gone
        self._creations: dict[int, list[_Creation]] = {}

    # Start

    def start(self, deleted: Iterable[int], now_us: int) -> None:
        """Open what the journal says is there; blocking."""
        known = {stream_path(state).partition("/")[2]: state for state in self.catalog.image.streams.values()}
        removed = set(deleted)
        for name in self._vfs.list(STREAMS_PATH):
            folder = name.rstrip("/")
            if folder in known:
                continue
            digits = folder.partition("-")[0]
            if digits.isdigit() and int(digits) in removed:
                self._vfs.remove(f"{STREAMS_PATH}/{folder}")
            else:
                target = self._free_quarantine_path(folder)
                self._vfs.rename(f"{STREAMS_PATH}/{folder}", target)
                self._vfs.sync_dir(QUARANTINE_PATH)
                self._outbox.notice(f"{STREAMS_PATH}/{folder} belongs to no stream of this broker; moved to {target}")
        for state in known.values():
            self._add(state, lambda state=state: self._open(state, now_us))  # type: ignore[misc]

    def _free_quarantine_path(self, folder: str) -> str:
        taken = {name.rstrip("/") for name in self._vfs.list(QUARANTINE_PATH)}
        number = 1
        while (name := folder if number == 1 else f"{folder}.{number}") in taken:
            number += 1
        return f"{QUARANTINE_PATH}/{name}"

    def _open(self, state: StreamState, now_us: int) -> Log:
        vfs = self._vfs_of(state)
        path = f"{stream_path(state)}/{PARTITION}"
        return Log.open(vfs, path, state.stream_id, PARTITION, log_config(state.config), now_us=now_us)

    def _vfs_of(self, state: StreamState) -> Vfs:
        return self._memory if state.config.storage is Storage.MEMORY else self._vfs

    def _add(self, state: StreamState, opened: Callable[[], Log]) -> None:
        try:
            log = opened()
            log.start_epoch(state.leader_epoch)
        except (OSError, OperationalError, CorruptionError, RemoteError) as error:
            self.failures[state.stream_id] = f"cannot open the log: {error}"
            self._outbox.notice(f"stream {state.name!r}: cannot open the log: {error}")
            self._fail_creations(state.stream_id, RemoteError(ErrorCode.STORAGE_FAILED, f"cannot open the log: {error}"))
            return
        self._outbox.step.notices += [f"stream {state.name!r}: {damage}" for damage in log.damage]
        self.partitions[state.stream_id] = Partition(state, log, self._vfs_of(state), self._budget)
        self._outbox.step.subscribe.append((state.stream_id, state.config.subject))

    # Create

    def create(self, caller: Hashable, request: CreateStreamRequest, now: Now) -> None:
        """Make a stream, or find it there; answered when its subscription is confirmed."""
        deadline_us = now.elapsed_us + request.timeout_ms * 1_000
        existing = check_create(self.catalog.image, request.config)
        if existing is not None:
            self._answer_when_confirmed(existing, _Creation(caller, False, deadline_us))
            return

        def done(outcome: Outcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                self._outbox.reply(caller, outcome)
                return
            assert outcome.stream is not None
            if outcome.changed:
                self._open_later(outcome.stream, now.wall_us)
            self._answer_when_confirmed(outcome.stream, _Creation(caller, outcome.changed, deadline_us))

        self.catalog.propose(CreateStream(config=request.config, created_us=now.wall_us), done)

    def _open_later(self, state: StreamState, now_us: int) -> None:
        result: list[Log] = []

        def done(error: Exception | None) -> None:
            if state.stream_id not in self.catalog.image.streams:
                if result:
                    result[0].close()
                self._remove_files(state)
                return

            def opened() -> Log:
                if error is not None:
                    raise error
                return result[0]

            self._add(self.catalog.image.streams[state.stream_id], opened)

        self._outbox.work(Lane.WRITE, lambda: result.append(self._open(state, now_us)), done)

    def _answer_when_confirmed(self, state: StreamState, creation: _Creation) -> None:
        failure = self.failures.get(state.stream_id)
        if failure is not None:
            self._outbox.reply(creation.caller, RemoteError(ErrorCode.STORAGE_FAILED, failure))
            return
        partition = self.partitions.get(state.stream_id)
        if partition is not None and partition.subscribed:
            self._outbox.reply(creation.caller, self._created(state, creation))
        elif partition is not None and partition.refusal:
            self._outbox.reply(creation.caller, RemoteError(ErrorCode.NATS_REFUSED, partition.refusal))
        else:
            self._creations.setdefault(state.stream_id, []).append(creation)

    def _created(self, state: StreamState, creation: _Creation) -> Response:
        return CreateStreamResponse(stream=self._info(state), created=creation.created)

    def confirmed(self, stream_ids: Iterable[int]) -> None:
        """NATS has the subscriptions of these streams."""
        for stream_id in stream_ids:
            partition = self.partitions.get(stream_id)
            if partition is None or partition.refusal:
                continue
            partition.subscribed = True
            for creation in self._creations.pop(stream_id, ()):
                self._outbox.reply(creation.caller, self._created(partition.stream, creation))

    def refused(self, stream_id: int, reason: str) -> None:
        """NATS does not let this broker subscribe to the stream's subject."""
        partition = self.partitions.get(stream_id)
        if partition is None:
            return
        partition.subscribed = False
        text = f"NATS refuses the subscription to {partition.stream.config.subject!r}: {reason}; the stream stores nothing"
        partition.refusal = text
        self._outbox.notice(f"stream {partition.stream.name!r}: {text}")
        creations = self._creations.pop(stream_id, [])
        if any(creation.created for creation in creations) and partition.log.log_end == 0:
            # Just made, nothing in it: do not leave behind a stream that cannot work.
            self.catalog.propose(DeleteStream(stream_id=stream_id), self._apply_delete)
            text += " and was not created"
        for creation in creations:
            self._outbox.reply(creation.caller, RemoteError(ErrorCode.NATS_REFUSED, text))

    def lost(self) -> None:
        """The connection to NATS is gone, and every subscription with it."""
        for partition in self.partitions.values():
            partition.subscribed = False
            partition.refusal = ""

    def expire(self, now_us: int) -> None:
        """Answer creations whose time is up."""
        for stream_id, creations in list(self._creations.items()):
            late = [creation for creation in creations if creation.deadline_us <= now_us]
            for creation in late:
                text = "the stream is there, but NATS has not confirmed its subscription in time; it stores once NATS is back"
                self._outbox.reply(creation.caller, RemoteError(ErrorCode.NATS_UNAVAILABLE, text))
                creations.remove(creation)
            if not creations:
                del self._creations[stream_id]

    @property
    def next_deadline_us(self) -> int | None:
        """When `expire` has something to do, at the latest."""
        return min(
            (creation.deadline_us for creations in self._creations.values() for creation in creations), default=None
        )

    def _fail_creations(self, stream_id: int, error: RemoteError) -> None:
        for creation in self._creations.pop(stream_id, ()):
            self._outbox.reply(creation.caller, error)

    # Alter

    def alter(self, caller: Hashable, request: AlterStreamRequest) -> None:
        """Change a stream's config."""
        state = self._named(request.name, request.stream_id)
        altered_config(state.config, request.changes)  # refuse what cannot be before it is journaled

        def done(outcome: Outcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                self._outbox.reply(caller, outcome)
                return
            assert outcome.stream is not None
            partition = self.partitions.get(outcome.stream.stream_id)
            if partition is not None:
                partition.reconfigure(outcome.stream)
                partition.log.configure(log_config(outcome.stream.config))
                partition.advance(self._outbox.step)
            self._outbox.reply(caller, AlterStreamResponse(stream=self._info(outcome.stream)))

        self.catalog.propose(AlterStream(stream_id=state.stream_id, changes=request.changes), done)

    def _named(self, name: str, stream_id: int | None) -> StreamState:
        state = self.catalog.image.by_name(name)
        if stream_id is not None and state.stream_id != stream_id:
            text = f"stream {name!r} was deleted and created again: its id is {state.stream_id}, not {stream_id}"
            raise RemoteError(ErrorCode.STREAM_CHANGED, text, stream_id=int(state.stream_id))
        return state

    # Delete

    def delete(self, caller: Hashable, request: DeleteStreamRequest) -> None:
        """Delete a stream; answered once that is durable."""
        state = self._named(request.name, request.stream_id)

        def done(outcome: Outcome | RemoteError) -> None:
            self._apply_delete(outcome)
            answer = outcome if isinstance(outcome, RemoteError) else DeleteStreamResponse(stream_id=state.stream_id)
            self._outbox.reply(caller, answer)

        self.catalog.propose(DeleteStream(stream_id=state.stream_id), done)

    def _apply_delete(self, outcome: Outcome | RemoteError) -> None:
        if isinstance(outcome, RemoteError):
            return
        assert outcome.stream is not None
        state = outcome.stream
        error = RemoteError(ErrorCode.STREAM_CHANGED, f"stream {state.name!r} was deleted", stream_id=int(state.stream_id))
        self._fail_creations(state.stream_id, error)
        self.failures.pop(state.stream_id, None)
        partition = self.partitions.pop(state.stream_id, None)
        if partition is None:
            return  # still being opened: removed when that comes back
        self._outbox.step.unsubscribe.append(state.stream_id)
        partition.abandon(error, self._outbox.step)
        self._closed(state.stream_id, error)
        partition.log.close()
        self._remove_files(state)

    def _remove_files(self, state: StreamState) -> None:
        vfs = self._vfs_of(state)

        def done(error: Exception | None) -> None:
            if error is not None:
                text = f"cannot remove {stream_path(state)} of the deleted stream {state.name!r}: {error}"
                self._outbox.notice(f"{text}; the next start tries again")

        self._outbox.work(Lane.WRITE, lambda: vfs.remove(stream_path(state)), done)
