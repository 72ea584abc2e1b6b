"""The life of streams on this broker: made, opened, subscribed, altered, deleted.

Rules: creation is answered only when NATS has confirmed the subscription, so that what is published afterwards is
stored. A folder that no stream of the journal owns is moved to `quarantine/`, never adopted and never deleted; the
folder of a stream that the journal deleted is removed. A stream whose log cannot be opened, or has vanished, stays as
it is; creating it again tries again.

    journaled → applied → log opened → subscribed → confirmed → answered
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from penstock.base.clock import Now
from penstock.base.config import Storage
from penstock.base.errors import CorruptionError, ErrorCode, OperationalError, RemoteError
from penstock.commitlog import Log, LogConfig, LogMissingError, OpenFiles
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
from penstock.metadata.image import Outcome, StreamState
from penstock.metadata.journal import JOURNAL_PATH
from penstock.metadata.streams import altered_config, check_create
from penstock.node.catalog import Catalog
from penstock.node.listening import Listening
from penstock.node.made import MadeLogs
from penstock.node.partition import Budget, Partition
from penstock.node.step import Lane, Outbox
from penstock.node.upkeep import Upkeep
from penstock.vfs import Vfs
from penstock.vfs.memory import MemoryVfs

PARTITION = 0
STREAMS_PATH = "streams"
QUARANTINE_PATH = "quarantine"


def stream_path(stream: StreamState) -> str:
    """The folder of a stream: its id first, because a name can come again."""
    return f"{STREAMS_PATH}/{_folder(stream)}"


def folder_of(stream_id: int, name: str) -> str:
    """The name of a stream's folder, without its path."""
    return f"{stream_id:08d}-{name}"


def _folder(stream: StreamState) -> str:
    return folder_of(stream.stream_id, stream.name)


def deleted_error(state: StreamState) -> RemoteError:
    """What those hear who still wait for a deleted stream."""
    return RemoteError(ErrorCode.STREAM_CHANGED, f"stream {state.name!r} was deleted", stream_id=int(state.stream_id))


def check_folders(vfs: Vfs, last_index: int) -> None:
    """CorruptionError if a folder was made by a command behind the journal's last: to go on would orphan its stream.

    A command is on the disk before its folder is made.
    """
    for folder in vfs.list(STREAMS_PATH):
        number = folder.partition("-")[0]
        if not last_index or (number.isdecimal() and int(number) > last_index):
            expected = f"the command that made {STREAMS_PATH}/{folder}"
            raise CorruptionError(JOURNAL_PATH, 0, expected, f"{last_index} commands")


def _check_epoch(log: Log, leader_epoch: int) -> None:
    if leader_epoch <= log.leader_epoch:
        # Two leaderships under one number would make two different messages look the same.
        expected = f"a leader epoch above {log.leader_epoch}, which the log has"
        raise CorruptionError(JOURNAL_PATH, 0, expected, f"{leader_epoch}: it has lost commands")


_NOT_CONFIRMED = "the stream is there, but NATS has not confirmed its subscription in time; it stores once NATS is back"
_NOT_OPENED = "the stream is there, but the disk has not made its files in time; it stores once they are there"


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
        upkeep: Upkeep,
        open_files: OpenFiles,
        *,
        listening: Listening,
        info: Callable[[StreamState], StreamInfo],
        closed: Callable[[int, RemoteError], None],
    ) -> None:
        self.catalog = catalog
        self.partitions: dict[int, Partition] = {}
        self.failures: dict[int, str] = {}  # streams whose log cannot be opened, and why
        self._vfs = vfs
        self._outbox = outbox
        self._memory: Vfs = MemoryVfs()
        self._made = MadeLogs(vfs)
        self._budget = budget
        self._open_files = open_files
        self._upkeep = upkeep
        self._opening: set[int] = set()  # streams whose log is being opened in a disk thread
        self._listening = listening
        self._info = info
        self._closed = closed  # tells the node that a stream is gone
        self._creations: dict[int, list[_Creation]] = {}

    # Start

    def start(self, deleted: Iterable[StreamState], now_us: int) -> None:
        """Open what the journal says is there; blocking."""
        self._made.read()
        if self.catalog.may_lead:
            self._upkeep.may_lead(())
        known = {stream_path(state) for state in self.catalog.image.streams.values()}
        # By its whole name: a folder that only shares the number of a deleted stream is somebody else's.
        removed = {stream_path(state) for state in deleted if state.config.storage is Storage.FILE}
        for name in self._vfs.list(STREAMS_PATH):
            path = f"{STREAMS_PATH}/{name.rstrip('/')}"
            if path in removed:
                self._remove_now(path)
            elif path not in known:
                self._quarantine(path)
        for state in self.catalog.image.streams.values():
            self._add(state, lambda state=state: self._open(state, now_us))  # type: ignore[misc]

    def led(self) -> None:
        """This start is journaled after all: every stream may begin its leadership."""
        for partition in self.partitions.values():
            partition.reconfigure(self.catalog.image.streams[partition.stream.stream_id])
        self._upkeep.may_lead(self.partitions.values())

    def _remove_now(self, path: str) -> None:
        try:
            self._vfs.remove(path)
            self._made.forget(path.rpartition("/")[2])
        except OSError as error:
            self._outbox.notice(f"cannot remove {path} of a deleted stream: {error}; the next start tries again")

    def _quarantine(self, path: str) -> None:
        target = self._free_quarantine_path(path.rpartition("/")[2])
        self._vfs.rename(path, target)
        self._vfs.sync_dir(QUARANTINE_PATH)
        self._vfs.sync_dir(STREAMS_PATH)
        self._outbox.notice(f"{path} belongs to no stream of this broker; moved to {target}")

    def _free_quarantine_path(self, folder: str) -> str:
        taken = {name.rstrip("/") for name in self._vfs.list(QUARANTINE_PATH)}
        number = 1
        while (name := folder if number == 1 else f"{folder}.{number}") in taken:
            number += 1
        return f"{QUARANTINE_PATH}/{name}"

    def _open(self, state: StreamState, now_us: int) -> Log:
        vfs = self._vfs_of(state)
        path = f"{stream_path(state)}/{PARTITION}"
        # A log in memory is gone with its broker; one on the disk is only made once.
        was_made = _folder(state) in self._made
        config = LogConfig.of(state.config)
        try:
            log = Log.open(
                vfs,
                path,
                state.stream_id,
                PARTITION,
                config,
                now_us=now_us,
                must_exist=was_made,
                open_files=self._open_files,
                noticed=self._upkeep.damage_found,
            )
        except LogMissingError as error:
            raise OperationalError(f"{error}; bring it back (is its disk mounted?) or delete the stream") from error
        if state.config.storage is Storage.FILE and not was_made:
            try:
                self._made.mark(_folder(state))
            except OSError:
                log.close()
                raise
        return log

    def _vfs_of(self, state: StreamState) -> Vfs:
        return self._memory if state.config.storage is Storage.MEMORY else self._vfs

    def _add(self, state: StreamState, opened: Callable[[], Log]) -> None:
        log: Log | None = None
        try:
            log = opened()
            _check_epoch(log, self.catalog.epoch_to_lead(state.partitions[PARTITION]))
        except (OSError, OperationalError, CorruptionError, RemoteError) as error:
            if log is not None:
                with contextlib.suppress(OperationalError):
                    log.close()
            text = f"cannot open the log: {error}"
            self.failures[state.stream_id] = text
            self._outbox.notice(f"stream {state.name!r}: {text}")
            self._fail_creations(state.stream_id, RemoteError(ErrorCode.STORAGE_FAILED, text))
            return
        log.configure(LogConfig.of(state.config))  # it may have been altered while the log was opened
        partition = Partition(state, log, self._vfs_of(state), self._budget)
        self.partitions[state.stream_id] = partition
        self._upkeep.opened(partition)
        self._listening.subscriptions.add(state.stream_id, state.config.subject)

    # Create

    def create(self, caller: Hashable, request: CreateStreamRequest, now: Now) -> None:
        """Make a stream, or find it there; answered when its subscription is confirmed."""
        deadline_us = now.elapsed_us + request.timeout_ms * 1_000
        existing = check_create(self.catalog.image, request.config, live_brokers=1)
        if existing is not None:
            self._answer_when_confirmed(existing, _Creation(caller, False, deadline_us), now.wall_us)
            return

        def done(outcome: Outcome | RemoteError) -> None:
            if isinstance(outcome, RemoteError):
                self._outbox.reply(caller, outcome)
                return
            assert outcome.stream is not None
            if outcome.changed:
                self._open_later(outcome.stream, now.wall_us)
            self._answer_when_confirmed(outcome.stream, _Creation(caller, outcome.changed, deadline_us), now.wall_us)

        self.catalog.propose(CreateStream(config=request.config, created_us=now.wall_us), done)

    def _open_later(self, state: StreamState, now_us: int) -> None:
        result: list[Log] = []
        self._opening.add(state.stream_id)

        def done(error: Exception | None) -> None:
            self._opening.discard(state.stream_id)
            if state.stream_id not in self.catalog.image.streams:
                self._remove_files(state, result[0] if result else None)
                return

            def opened() -> Log:
                if error is not None:
                    raise error
                return result[0]

            self._add(self.catalog.image.streams[state.stream_id], opened)

        self._outbox.work(Lane.WRITE, lambda: result.append(self._open(state, now_us)), done)

    def _answer_when_confirmed(self, state: StreamState, creation: _Creation, now_us: int) -> None:
        if self.failures.pop(state.stream_id, None) is not None:
            self._open_later(state, now_us)
        partition = self.partitions.get(state.stream_id)
        if partition is not None and partition.subscribed:
            self._outbox.reply(creation.caller, self._created(state, creation))
        elif partition is not None and partition.refusal:
            self._outbox.reply(creation.caller, RemoteError(ErrorCode.NATS_REFUSED, partition.refusal))
        else:
            self._creations.setdefault(state.stream_id, []).append(creation)

    def _created(self, state: StreamState, creation: _Creation) -> Response:
        return CreateStreamResponse(stream=self._info(state), created=creation.created)

    def confirmed(self, stream_id: int) -> None:
        """NATS has the subscription of this stream."""
        partition = self.partitions[stream_id]
        partition.subscribed = True
        partition.refusal = ""
        for creation in self._creations.pop(stream_id, ()):
            self._outbox.reply(creation.caller, self._created(partition.stream, creation))

    def refused(self, stream_id: int, reason: str) -> None:
        """NATS does not let this broker subscribe to the stream's subject."""
        partition = self.partitions[stream_id]
        partition.subscribed = False
        text = (
            f"NATS refuses the subscription to {partition.stream.config.subject!r}: {reason}; the stream stores nothing"
        )
        if text != partition.refusal:  # it is asked for again and again
            partition.refusal = text
            self._outbox.notice(f"stream {partition.stream.name!r}: {text}")
        creations = self._creations.pop(stream_id, [])

        def answer(text: str) -> None:
            for creation in creations:
                self._outbox.reply(creation.caller, RemoteError(ErrorCode.NATS_REFUSED, text))

        def deleted(outcome: Outcome | RemoteError) -> None:
            # Answered only now, so that the name is free for another try.
            self._apply_delete(outcome)
            answer(text if isinstance(outcome, RemoteError) else f"{text} and was not created")

        if any(creation.created for creation in creations) and partition.log.log_end == 0:
            # Just made, nothing in it: do not leave behind a stream that cannot work.
            self.catalog.propose(DeleteStream(stream_id=stream_id), deleted)
        else:
            answer(text)

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
                text = _NOT_OPENED if stream_id in self._opening else _NOT_CONFIRMED
                code = ErrorCode.TIMED_OUT if stream_id in self._opening else ErrorCode.NATS_UNAVAILABLE
                self._outbox.reply(creation.caller, RemoteError(code, text))
                creations.remove(creation)
            if not creations:
                del self._creations[stream_id]

    @property
    def next_deadline_us(self) -> int | None:
        """When `expire` has something to do, at the latest."""
        if not self._creations:  # as nearly always, and it is asked with every batch
            return None
        return min(
            (creation.deadline_us for creations in self._creations.values() for creation in creations), default=None
        )

    def stop(self, error: RemoteError) -> None:
        """The broker stops: tell all that wait for a stream."""
        for stream_id in list(self._creations):
            self._fail_creations(stream_id, error)

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
                partition.log.configure(LogConfig.of(outcome.stream.config))
                committed_end = partition.committed_end
                partition.advance(self._outbox.step)
                self._upkeep.moved(partition, committed_end)
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
        error = deleted_error(state)
        self._fail_creations(state.stream_id, error)
        self.failures.pop(state.stream_id, None)
        partition = self.partitions.pop(state.stream_id, None)
        if partition is None:
            if state.stream_id not in self._opening:  # else its files are removed when it has been opened
                self._remove_files(state, None)
            return
        self._listening.remove(state.stream_id)
        partition.abandon(error, self._outbox.step)
        self._closed(state.stream_id, error)
        self._upkeep.discard(partition, lambda: self._remove_files(state, partition.log))

    def _remove_files(self, state: StreamState, log: Log | None) -> None:
        vfs = self._vfs_of(state)

        def run() -> None:
            if log is not None:
                with contextlib.suppress(OperationalError):
                    log.close()
            vfs.remove(stream_path(state))
            self._made.forget(_folder(state))

        def done(error: Exception | None) -> None:
            if error is not None:
                text = f"cannot remove {stream_path(state)} of the deleted stream {state.name!r}: {error}"
                self._outbox.notice(f"{text}; the next start tries again")

        self._outbox.work(Lane.WRITE, run, done)
