"""The life of streams on this broker: made, opened, subscribed, altered, deleted.

Rules: each partition has a log and a subscription of its own. Creation is answered only when NATS has confirmed all of
them, so that what is published afterwards is stored. The files of a deleted stream go when none of its logs is in use.
A partition whose log cannot be opened, or has vanished, stays as it is; creating the stream again tries again.

    journaled → applied → logs opened → subscribed → confirmed → answered
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial

from penstock.base.clock import Now
from penstock.base.config import Storage
from penstock.base.errors import CorruptionError, ErrorCode, OperationalError, RemoteError
from penstock.base.ids import PartitionKey, StreamId
from penstock.commitlog import Log, LogConfig, LogMissingError, OpenFiles
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    CreateStreamRequest,
    DeleteStreamRequest,
    DeleteStreamResponse,
    StreamInfo,
)
from penstock.metadata.commands import AlterStream, CreateStream, DeleteStream
from penstock.metadata.image import Outcome, StreamState
from penstock.metadata.journal import JOURNAL_PATH
from penstock.metadata.streams import altered_config, check_create
from penstock.node.catalog import Catalog
from penstock.node.creations import Creation, Creations
from penstock.node.folders import Folders, log_path, mark_of, stream_path
from penstock.node.listening import Listening
from penstock.node.partition import Budget, Partition, label
from penstock.node.step import Lane, Outbox
from penstock.node.upkeep import Upkeep
from penstock.vfs import Vfs
from penstock.vfs.memory import MemoryVfs


def deleted_error(state: StreamState) -> RemoteError:
    """What those hear who still wait for a deleted stream."""
    return RemoteError(ErrorCode.STREAM_CHANGED, f"stream {state.name!r} was deleted", stream_id=int(state.stream_id))


def _check_epoch(log: Log, leader_epoch: int) -> None:
    if leader_epoch <= log.leader_epoch:
        # Two leaderships under one number would make two different messages look the same.
        expected = f"a leader epoch above {log.leader_epoch}, which the log has"
        raise CorruptionError(JOURNAL_PATH, 0, expected, f"{leader_epoch}: it has lost commands")


@dataclass(slots=True)
class _Removal:
    """A deleted stream whose files go once no log of it is in use."""

    state: StreamState
    used: set[PartitionKey]  # a sync is under way, or the log is still being opened
    logs: list[Log]


class Streams:
    """All partitions that this broker leads."""

    def __init__(
        self,
        vfs: Vfs,
        catalog: Catalog,
        outbox: Outbox,
        budget: Budget,
        upkeep: Upkeep,
        open_files: OpenFiles,
        *,
        listening: Listening,
        info: Callable[[StreamState], StreamInfo],
        closed: Callable[[PartitionKey, RemoteError], None],
    ) -> None:
        self.catalog = catalog
        self.partitions: dict[PartitionKey, Partition] = {}
        self.failures: dict[PartitionKey, str] = {}  # whose log cannot be opened, and why
        self._vfs = vfs
        self._outbox = outbox
        self._memory: Vfs = MemoryVfs()
        self._folders = Folders(vfs, outbox)
        self._budget = budget
        self._open_files = open_files
        self._upkeep = upkeep
        self._opening: dict[StreamId, set[PartitionKey]] = {}  # whose logs are being opened in disk threads
        self._removals: dict[StreamId, _Removal] = {}
        self._listening = listening
        self._info = info
        self._closed = closed  # tells the node that a partition is gone
        self._creations = Creations(outbox, self.partitions, info)

    # Start

    def start(self, deleted: Iterable[StreamState], now_us: int) -> None:
        """Open what the journal says is there; blocking."""
        if self.catalog.may_lead:
            self._upkeep.may_lead(())
        self._folders.tidy(self.catalog.image, deleted)
        for state in self.catalog.image.streams.values():
            for key in state.partition_keys():
                self._add(state, key, lambda state=state, key=key: self._open(state, key, now_us))  # type: ignore[misc]

    def led(self) -> None:
        """This start is journaled after all: every partition may begin its leadership."""
        for partition in self.partitions.values():
            partition.reconfigure(self.catalog.image.streams[partition.stream.stream_id])
        self._upkeep.may_lead(self.partitions.values())

    def _open(self, state: StreamState, key: PartitionKey, now_us: int) -> Log:
        made = self._folders.made
        mark = mark_of(state.stream_id, state.name, key.partition)
        # A log in memory is gone with its broker; one on the disk is only made once.
        was_made = mark in made
        try:
            log = Log.open(
                self._vfs_of(state),
                log_path(state, key.partition),
                *key,
                LogConfig.of(state.config),
                now_us=now_us,
                must_exist=was_made,
                open_files=self._open_files,
                noticed=self._upkeep.damage_found,
            )
        except LogMissingError as error:
            raise OperationalError(f"{error}; bring it back (is its disk mounted?) or delete the stream") from error
        if state.config.storage is Storage.FILE and not was_made:
            try:
                made.mark(mark)
            except OSError:
                log.close()
                raise
        return log

    def _vfs_of(self, state: StreamState) -> Vfs:
        return self._memory if state.config.storage is Storage.MEMORY else self._vfs

    def _add(self, state: StreamState, key: PartitionKey, opened: Callable[[], Log]) -> None:
        log: Log | None = None
        try:
            log = opened()
            _check_epoch(log, self.catalog.epoch_to_lead(state.partitions[key.partition]))
        except (OSError, OperationalError, CorruptionError, RemoteError) as error:
            if log is not None:
                with contextlib.suppress(OperationalError):
                    log.close()
            text = f"cannot open the log: {error}"
            self.failures[key] = text
            self._outbox.notice(f"{label(state, key.partition)}: {text}")
            self._creations.fail(key.stream_id, RemoteError(ErrorCode.STORAGE_FAILED, text))
            return
        log.configure(LogConfig.of(state.config))  # it may have been altered while the log was opened
        partition = Partition(state, key, log, self._vfs_of(state), self._budget)
        self.partitions[key] = partition
        self._upkeep.opened(partition)
        self._listening.subscriptions.add(partition)

    # Create

    def create(self, caller: Hashable, request: CreateStreamRequest, now: Now) -> None:
        """Make a stream, or find it there; answered when its subscriptions are confirmed."""
        deadline_us = now.elapsed_us + request.timeout_ms * 1_000
        existing = check_create(self.catalog.image, request.config, live_brokers=1)
        if existing is not None:
            self._answer_when_confirmed(existing, Creation(caller, False, deadline_us), now.wall_us)
            return

        def done(outcome: Outcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                self._outbox.reply(caller, outcome)
                return
            assert outcome.stream is not None
            if outcome.changed:
                for key in outcome.stream.partition_keys():
                    self._open_later(outcome.stream, key, now.wall_us)
            self._answer_when_confirmed(outcome.stream, Creation(caller, outcome.changed, deadline_us), now.wall_us)

        self.catalog.propose(CreateStream(config=request.config, created_us=now.wall_us), done)

    def _open_later(self, state: StreamState, key: PartitionKey, now_us: int) -> None:
        result: list[Log] = []
        opening = self._opening.setdefault(state.stream_id, set())
        opening.add(key)

        def done(error: Exception | None) -> None:
            opening.discard(key)
            if not opening:
                self._opening.pop(state.stream_id, None)
            removal = self._removals.get(state.stream_id)
            if removal is not None:
                self._let_go(removal, key, result[0] if result else None)
                return

            def opened() -> Log:
                if error is not None:
                    raise error
                return result[0]

            self._add(self.catalog.image.streams[state.stream_id], key, opened)

        self._outbox.work(Lane.WRITE, lambda: result.append(self._open(state, key, now_us)), done)

    def _answer_when_confirmed(self, state: StreamState, creation: Creation, now_us: int) -> None:
        for key in state.partition_keys():
            if self.failures.pop(key, None) is not None:
                self._open_later(state, key, now_us)
        self._creations.add(state, creation)

    def confirmed(self, partition: Partition) -> None:
        """NATS has the subscription of this partition."""
        partition.subscribed = True
        partition.refusal = ""
        self._creations.confirmed(partition.stream)

    def refused(self, partition: Partition, reason: str) -> None:
        """NATS does not let this broker subscribe to the partition's subject."""
        partition.subscribed = False
        state = partition.stream
        what = "the stream" if len(state.partitions) == 1 else "the partition"
        text = f"NATS refuses the subscription to {partition.subject!r}: {reason}; {what} stores nothing"
        if text != partition.refusal:  # it is asked for again and again
            partition.refusal = text
            self._outbox.notice(f"{partition.label}: {text}")
        creations = self._creations.take(state.stream_id)

        def answer(text: str) -> None:
            for creation in creations:
                self._outbox.reply(creation.caller, RemoteError(ErrorCode.NATS_REFUSED, text))

        def deleted(outcome: Outcome | RemoteError) -> None:
            # Answered only now, so that the name is free for another try.
            self._apply_delete(outcome)
            answer(text if isinstance(outcome, RemoteError) else f"{text}; so the stream was not created")

        if any(creation.created for creation in creations) and self._is_empty(state):
            # Just made, nothing in it: do not leave behind a stream that cannot work.
            self.catalog.propose(DeleteStream(stream_id=state.stream_id), deleted)
        else:
            answer(text)

    def _is_empty(self, state: StreamState) -> bool:
        found = (self.partitions.get(key) for key in state.partition_keys())
        return all(partition is None or partition.log.log_end == 0 for partition in found)

    def lost(self) -> None:
        """The connection to NATS is gone, and every subscription with it."""
        self._creations.lost()
        for partition in self.partitions.values():
            partition.subscribed = False
            partition.refusal = ""

    def expire(self, now_us: int) -> None:
        """Answer creations whose time is up."""
        self._creations.expire(now_us, self._opening)

    @property
    def next_deadline_us(self) -> int | None:
        """When `expire` has something to do, at the latest."""
        return self._creations.next_deadline_us

    def stop(self, error: RemoteError) -> None:
        """The broker stops: tell all that wait for a stream."""
        self._creations.stop(error)

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
            for key in outcome.stream.partition_keys():
                if (partition := self.partitions.get(key)) is not None:
                    self._reconfigure(partition, outcome.stream)
            self._outbox.reply(caller, AlterStreamResponse(stream=self._info(outcome.stream)))

        self.catalog.propose(AlterStream(stream_id=state.stream_id, changes=request.changes), done)

    def _reconfigure(self, partition: Partition, state: StreamState) -> None:
        partition.reconfigure(state)
        partition.log.configure(LogConfig.of(state.config))
        committed_end = partition.committed_end
        partition.advance(self._outbox.step)
        self._upkeep.moved(partition, committed_end)

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
        error = deleted_error(state)
        self._creations.fail(state.stream_id, error)
        removal = _Removal(state, set(self._opening.get(state.stream_id, ())), [])
        self._removals[state.stream_id] = removal
        partitions = []
        for key in state.partition_keys():
            self.failures.pop(key, None)
            if (partition := self.partitions.pop(key, None)) is not None:
                removal.used.add(key)
                partitions.append(partition)
        for partition in partitions:
            self._listening.remove(partition)
            partition.abandon(error, self._outbox.step)
            self._closed(partition.key, error)
            self._upkeep.discard(partition, partial(self._let_go, removal, partition.key, partition.log))
        if not partitions and not removal.used:
            self._remove_files(removal)

    def _let_go(self, removal: _Removal, key: PartitionKey, log: Log | None) -> None:
        """Nothing uses this log of a deleted stream any more."""
        removal.used.discard(key)
        if log is not None:
            removal.logs.append(log)
        if not removal.used:
            self._remove_files(removal)

    def _remove_files(self, removal: _Removal) -> None:
        state = removal.state
        del self._removals[state.stream_id]

        def run() -> None:
            for log in removal.logs:
                with contextlib.suppress(OperationalError):
                    log.close()
            self._folders.remove(self._vfs_of(state), state)

        def done(error: Exception | None) -> None:
            if error is not None:
                text = f"cannot remove {stream_path(state)} of the deleted stream {state.name!r}: {error}"
                self._outbox.notice(f"{text}; the next start tries again")

        self._outbox.work(Lane.WRITE, run, done)
