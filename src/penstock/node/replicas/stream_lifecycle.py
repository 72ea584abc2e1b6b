"""The life cycle of streams on this broker: create, open, alter and delete logs, as the metadata image says.

Rules: a broker has the logs of the partitions that it holds a replica of, each in a folder of its own. `roles` decides
whether a log leads or follows. The files of a deleted stream are removed once none of its logs is in use. A partition
whose log is missing or cannot be opened stays as it is and is retried with backoff; creating the stream again retries
at once, and so does reading the encryption keys again, if a key was missing. A broker that no longer is a read replica
(observer) of a partition removes its files, also after a crash in between.

The companion logs of a stream are opened, dropped and deleted with it. A partition and its companions get a changed
image in one step.

    applied → logs opened → led or followed → subscribed → confirmed → requests that wait for the stream are answered
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import growing
from penstock.base.config import Intake, Storage
from penstock.base.errors import CorruptionError, ErrorCode, OperationalError, RemoteError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.commitlog import Deciding, FilterBudget, Log, LogConfig, LogFolder, LogMissingError, OpenFiles
from penstock.messages import ResignedLeadership
from penstock.metadata.companions import (
    companion_key,
    companion_of,
    find_stream,
    is_marks,
    target_id,
    target_key,
    with_companions,
)
from penstock.metadata.image import ClusterImage, CommandOutcome, StreamState
from penstock.node.context import Context
from penstock.node.data_dir.folders import LogFolders, log_path, marker_of, stream_path
from penstock.node.data_dir.log_creation_markers import MADE_PATH
from penstock.node.maintenance.log_maintenance import LogMaintenance
from penstock.node.partition.in_flight import InFlightBudget
from penstock.node.partition.leader_hints import not_leader
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import not_opened, partition_label
from penstock.node.partition.partition_events import PartitionEventKind, PartitionEvents
from penstock.node.quorum.stream_waiters import ANYHOW, ExpectedStream, StreamWaiters
from penstock.node.replicas.listened_file import ListenedTimes
from penstock.node.replicas.roles import Roles, expires_by_rows, leader_decides
from penstock.node.step import Lane
from penstock.vfs import Vfs
from penstock.vfs.memory import MemoryVfs


def deleted_error(state: StreamState) -> RemoteError:
    """Return the error for requests that wait for a deleted stream."""
    return RemoteError(ErrorCode.STREAM_CHANGED, f"stream {state.name!r} was deleted", stream_id=int(state.stream_id))


def _begin(log: Log, begin: int) -> None:
    """Let a new, empty log begin at an offset, durably; one that reaches so far has begun there. OSError."""
    if log.log_end >= begin:
        return
    reset = log.reset(begin)
    try:
        reset.run()
    except Exception as error:
        log.truncate_failed(reset, error)
        raise
    log.truncated(reset)


def _log_config(image: ClusterImage, state: StreamState, number: int) -> LogConfig:
    """Config of a log before its role is known."""
    config = LogConfig.of(state.config)
    config = replace(config, rolls_up=config.rolls_up and not state.decides_rollups)
    if expires_by_rows(image, state) or leader_decides(image, state, number):
        config = replace(config, deciding=Deciding.ELSEWHERE)
    return config.untouched() if state.intake is Intake.SEALED else config


@dataclass(slots=True)
class _Removal:
    """A deleted stream whose files are removed once no log of it is in use."""

    state: StreamState
    used: set[PartitionKey]  # logs being synced or opened
    logs: list[Log]


class _Retry(NamedTuple):
    """The retry state of a log that could not be opened."""

    failures: int
    due_us: int | None  # elapsed time of the next try; None while one is under way
    told: str  # last failure logged


class StreamLifecycle:
    """All partition replicas of this broker."""

    def __init__(
        self,
        context: Context,
        budget: InFlightBudget,
        upkeep: LogMaintenance,
        roles: Roles,
        partitions: dict[PartitionKey, Partition],
        events: PartitionEvents,
    ) -> None:
        self.partitions = partitions
        self.failures: dict[PartitionKey, RemoteError] = {}  # partitions whose logs cannot be opened, and why
        self._retries: dict[PartitionKey, _Retry] = {}  # of `failures`
        self._keys_reads = 0  # how often the keys were read again
        self._vfs = context.vfs
        self._broker_id = context.settings.broker_id
        self._context = context
        self._outbox = context.outbox
        self._memory: Vfs = MemoryVfs()
        self._encrypted = context.settings.encrypted
        self._folders = LogFolders(context.vfs, context.outbox)
        self.marks_ahead: Set[StreamId] = self._folders.marks_ahead
        self._level = context.image.feature_level  # by which all roles were updated
        self._budget = budget
        self._open_files = OpenFiles(context.settings.log_files_max)
        self.filters = FilterBudget()  # of look-ups by subject
        self._upkeep = upkeep
        self._roles = roles
        self._opening: dict[StreamId, set[PartitionKey]] = {}  # logs that disk threads are opening
        self._removals: dict[StreamId, _Removal] = {}
        self._listened = ListenedTimes()  # subscription times that earlier runs recorded
        self._dropping: set[PartitionKey] = set()  # partitions no longer observed here, until their files are removed
        self._events = events
        self.stream_waiters = StreamWaiters(
            self._keys_of,
            self._is_confirmed,
            self._opening.__contains__,
            lambda one: self._context.image.streams[one].intake_us,
        )

    # Start

    def start(self, deleted: Iterable[StreamState], listened: ListenedTimes) -> None:
        """Open the logs of all partitions held here; blocks. `listened`: subscription times earlier runs recorded."""
        self._listened = listened
        image = self._context.image
        self._folders.tidy(image, deleted)
        for state in (one for target in image.streams.values() for one in with_companions(target)):
            for key in self._held(state):
                self._add(state, key, lambda state=state, key=key: self._open(state, key))  # type: ignore[misc]
            for key in self._unheld(state):
                if marker_of(state.stream_id, state.name, key.partition) in self._folders.made:
                    try:
                        self._drop_files(state, key)
                    except OSError as error:
                        self._tell_not_dropped(state, key, error)

    def _held(self, state: StreamState) -> list[PartitionKey]:
        """Return the keys of the stream's partitions that this broker is a replica or observer of."""
        return [
            key
            for key, partition in zip(state.partition_keys(), state.partitions, strict=True)
            if self._broker_id in partition.holders
        ]

    def _unheld(self, state: StreamState) -> list[PartitionKey]:
        held = self._held(state)
        return [] if len(held) == len(state.partitions) else [one for one in state.partition_keys() if one not in held]

    def _open(self, state: StreamState, key: PartitionKey) -> Log:
        made = self._folders.made
        mark = marker_of(state.stream_id, state.name, key.partition)
        # A log in memory ends with the process; one on disk is created only once.
        was_made = mark in made
        try:
            log = Log.open(
                LogFolder(self._vfs_of(state), log_path(state, key.partition), *key),
                _log_config(self._context.image, state, key.partition),
                now_us=self._context.now.wall_us,
                must_exist=was_made,
                open_files=self._open_files,
                noticed=self._upkeep.damage_found,
                filters=self.filters,
            )
        except LogMissingError as error:
            text = f"{error}; bring it back (is its disk mounted?)"
            if len(state.partitions[key.partition].replicas) > 1:
                text += ", or start the broker with an empty data directory, which the others fill,"
            raise OperationalError(f"{text} or delete the stream") from error
        if state.config.storage is Storage.FILE and not was_made and log.log_end:
            self._outbox.notice(f"{MADE_PATH}/{mark} was missing, though its log exists: it is created again")
        if not was_made:
            try:
                _begin(log, state.config.log_begin)
                if state.config.storage is Storage.FILE:
                    made.add(mark)
            except Exception:
                log.close()
                raise
        return log

    def open_again(self, partition: Partition) -> Log:
        """Open a repaired log like at a start, in a disk thread. Raise what `Log.open` raises, or OSError.

        A rename whose sync failed may not be on disk: sync it first, or a power loss could undo it.
        """
        with contextlib.suppress(FileNotFoundError):  # `_open` reports a missing folder
            self._vfs_of(partition.stream).sync_dir(log_path(partition.stream, partition.key.partition))
        return self._open(partition.stream, partition.key)

    def _vfs_of(self, state: StreamState) -> Vfs:
        if state.config.storage is Storage.MEMORY:
            return self._memory
        if not state.config.is_encrypted:
            return self._vfs
        if self._encrypted is None:
            text = "the stream is encrypted, and this broker has no keys; set encryption_keys_file, and start it again"
            raise RemoteError(ErrorCode.NO_ENCRYPTION_KEY, text, key_id="")
        return self._encrypted

    def _folders_of(self, state: StreamState) -> Vfs:
        """Return the file system of its folders, without encryption: removing folders takes no key."""
        return self._memory if state.config.storage is Storage.MEMORY else self._vfs

    def _add(self, state: StreamState, key: PartitionKey, opened: Callable[[], Log]) -> None:
        try:
            log = opened()
        except (OSError, OperationalError, CorruptionError, RemoteError) as error:
            failure = self.failures[key] = not_opened(error)
            self._retry_later(state, key, failure)
            self.stream_waiters.fail(key.stream_id, failure)
            self._events.is_heartbeat_due = True
            return
        partition = Partition(state, key, log, self._vfs_of(state), self._budget)
        partition.image_index = self._context.image.index
        partition.domain_prefix = self._context.settings.domain_prefix
        partition.ack_domain = self._context.settings.ack_domain
        partition.listened_us = max(
            partition.listened_us, self._listened.until(key, is_replicated=partition.is_replicated)
        )
        self.partitions[key] = partition
        self._events.add(PartitionEventKind.OPENED, partition)
        self._retries.pop(key, None)
        self._upkeep.opened(partition)
        self._roles.update(partition)
        self.stream_waiters.answer_met(key.stream_id)
        if is_marks(key.stream_id) and partition.committed_end:
            self._events.add(PartitionEventKind.COMMITTED, partition)  # its rows are to be passed on

    def _retry_later(self, state: StreamState, key: PartitionKey, failure: RemoteError) -> None:
        """Schedule a retry with backoff; log a failure once."""
        before = self._retries.get(key)
        failures = 1 if before is None else before.failures + 1
        wait_ms = growing(limits.REPAIR_RETRY_MS, failures, limits.REPAIR_RETRY_MS_MAX)
        due_us = self._context.now.elapsed_us + wait_ms * 1_000
        self._retries[key] = _Retry(failures, due_us, failure.message)
        if before is None or before.told != failure.message:
            self._outbox.notice(f"{partition_label(state, key.partition)}: {failure.message}")

    @property
    def next_deadline_us(self) -> int | None:
        """Elapsed time at which `tick` must run; None if never."""
        return min((one.due_us for one in self._retries.values() if one.due_us is not None), default=None)

    def tick(self, now_us: int) -> None:
        """Retry the logs that are due; `now_us` is elapsed time."""
        due = [key for key, one in self._retries.items() if one.due_us is not None and one.due_us <= now_us]
        for key in due:
            state = find_stream(self._context.image, key.stream_id)
            if state is None or self.failures.pop(key, None) is None:
                del self._retries[key]  # the stream was deleted, or another caller retries already
            else:
                self._retries[key] = self._retries[key]._replace(due_us=None)
                self._open_later(state, key)

    # The metadata image

    def applied(self, outcome: CommandOutcome) -> None:
        """Apply one command's changes of the image."""
        for key in outcome.unclean:
            stream = self._context.image.streams[key.stream_id]
            if stream.partitions[key.partition].leader == self._broker_id:
                self._outbox.notice(
                    f"{partition_label(stream, key.partition)}: this broker leads by an unclean election: "
                    "what was acked by others may be lost"
                )
        state = outcome.stream
        if outcome.deleted:
            assert state is not None
            self._delete(state)
        elif state is not None:
            self._apply_stream(state)
        else:
            image = self._context.image
            for key in outcome.partitions:
                self._reconfigure(key, image.streams[key.stream_id])
        self._follow_level()

    def _follow_level(self) -> None:
        """Update all roles if the feature level was raised: what a leader does may depend on it."""
        level = self._context.image.feature_level
        if level != self._level:
            self._level = level
            for state in self._context.image.streams.values():
                if state.has_marks:  # the level may have brought them
                    self._apply_stream(state)
            for partition in list(self.partitions.values()):
                self._roles.update(partition)
                self._upkeep.touch(partition)

    def replaced(self, before: ClusterImage) -> None:
        """Apply a new image from a snapshot: any stream may have changed."""
        image = self._context.image
        for stream_id, state in before.streams.items():
            if stream_id not in image.streams:
                self._delete(state)
        for stream_id, state in image.streams.items():
            if before.streams.get(stream_id) != state:
                self._apply_stream(state)
        self._follow_level()

    def _apply_stream(self, state: StreamState) -> None:
        """Apply a new or changed stream."""
        for one in with_companions(state):
            opening = self._opening.get(one.stream_id, ())
            for key in self._held(one):
                is_known = key in opening or key in self.failures or key in self._dropping
                if key not in self.partitions and not is_known:
                    self._open_later(one, key)
            for key in self._unheld(one):
                if self.failures.pop(key, None) is not None or key in self.partitions:
                    self._drop(one, key)
        for key in self._held(state):
            self._reconfigure(key, state)
        self.stream_waiters.answer_met(state.stream_id)

    def _drop(self, state: StreamState, key: PartitionKey) -> None:
        """Remove the replica of a partition that this broker no longer observes."""
        self._dropping.add(key)
        self._retries.pop(key, None)
        partition = self.partitions.pop(key, None)
        if partition is None:
            self._drop_later(state, key, None)
            return
        error = not_leader(self._context.image, state, key.partition)
        self._roles.leave(partition)
        self._events.add(PartitionEventKind.CLOSED, partition, error)
        self._upkeep.discard(partition, partial(self._drop_later, state, key, partition.log))

    def _drop_later(self, state: StreamState, key: PartitionKey, log: Log | None) -> None:
        def run() -> None:
            if log is not None:
                with contextlib.suppress(OperationalError):
                    log.close()
            self._drop_files(state, key)

        def done(error: Exception | None) -> None:
            self._dropping.discard(key)
            if error is not None:
                self._tell_not_dropped(state, key, error)
            if (removal := self._removals.get(key.stream_id)) is not None:
                self._let_go(removal, key, None)
            elif (now := self._context.image.streams.get(target_id(key.stream_id))) is not None:
                self._apply_stream(now)  # the broker may be made an observer again meanwhile

        self._outbox.work(Lane.WRITE, run, done)

    def _drop_files(self, state: StreamState, key: PartitionKey) -> None:
        self._folders.drop(self._folders_of(state), state, key.partition)

    def _tell_not_dropped(self, state: StreamState, key: PartitionKey, error: Exception) -> None:
        text = f"is observed here no more, and its files cannot be removed: {error}; the next start tries again"
        self._outbox.notice(f"{partition_label(state, key.partition)} {text}")

    def registered(self) -> None:
        """Update all roles after this broker's incarnation has begun or ended."""
        image = self._context.image
        for key in {target_key(one): None for one in self.partitions}:
            if (state := image.streams.get(key.stream_id)) is not None:  # else it is about to be deleted
                self._reconfigure(key, state)

    def _reconfigure(self, key: PartitionKey, state: StreamState) -> None:
        """Apply the stream's state to a partition and its companion logs, as far as they are open."""
        partition = self.partitions.get(key)
        if partition is not None and partition.stream is not state:
            needed_decisions = partition.needs_decisions
            partition.reconfigure(state, self._context.image.index)
            if needed_decisions or partition.needs_decisions or state.config.allow_message_ttl:
                self._events.add(PartitionEventKind.SHOWN, partition)
        here = [] if partition is None else [partition]
        for kind in state.companions:
            if (companion := self.partitions.get(companion_key(key, kind))) is not None:
                companion.reconfigure(companion_of(state, kind), self._context.image.index)
                here.append(companion)
        for one in here if partition is None else here[:1]:
            self._roles.update(one)
        for one in here:
            if one.leadership is not None:
                self._upkeep.advance_high_watermark(one)

    @property
    def are_open(self) -> bool:
        """True if all logs that this broker should have are open."""
        return not self.failures and not self._opening

    def try_again(self, state: StreamState) -> None:
        """Retry the stream's failed logs at once, because a client asked for it."""
        for one in with_companions(state):
            for key in one.partition_keys():
                if self.failures.pop(key, None) is not None:
                    self._retries.pop(key, None)
                    self._open_later(one, key)

    def keys_read(self) -> None:
        """Retry the logs that lacked a key."""
        self._keys_reads += 1
        for key in list(self.failures):
            self._open_with_keys(key)

    def _open_with_keys(self, key: PartitionKey) -> None:
        failure = self.failures.get(key)
        if failure is not None and failure.code == ErrorCode.NO_ENCRYPTION_KEY:
            del self.failures[key]
            self._open_later(self._state_of(key), key)

    def unopened(self) -> Iterator[ResignedLeadership]:
        """Yield partitions that this broker is to lead, whose logs it cannot open, and that others could lead."""
        for key in self.failures:
            partition = self._state_of(key).partitions[key.partition]
            if partition.leader == self._broker_id and len(partition.replicas) > 1:
                stream_id = target_id(key.stream_id)
                yield ResignedLeadership(stream_id, PartitionId(key.partition), partition.leader_epoch)

    def _state_of(self, key: PartitionKey) -> StreamState:
        state = find_stream(self._context.image, key.stream_id)
        assert state is not None, key
        return state

    def _open_later(self, state: StreamState, key: PartitionKey) -> None:
        result: list[Log] = []
        opening = self._opening.setdefault(state.stream_id, set())
        opening.add(key)
        keys_reads = self._keys_reads

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

            now = self._state_of(key)
            self._add(now, key, opened)
            if keys_reads != self._keys_reads:  # read meanwhile: the attempt may have used the old keys
                self._open_with_keys(key)
            if key in self._unheld(now):
                self._apply_stream(self._context.image.streams[target_id(key.stream_id)])

        self._outbox.work(Lane.WRITE, lambda: result.append(self._open(state, key)), done)

    # Subscriptions

    def _keys_of(self, stream_id: StreamId) -> tuple[PartitionKey, ...] | None:
        state = self._context.image.streams.get(stream_id)
        return None if state is None else state.partition_keys()

    def _is_confirmed(self, key: PartitionKey) -> bool:
        state = self._context.image.streams[key.stream_id].partitions[key.partition]
        if state.leader != self._broker_id:
            return True  # its leader confirms it
        partition = self.partitions.get(key)
        return partition is not None and (partition.subscribed or partition.is_deaf)

    def wait_for(
        self,
        stream_id: StreamId,
        deadline_us: int,
        done: Callable[[RemoteError | None], None],
        awaited: ExpectedStream = ANYHOW,
    ) -> None:
        """Call `done(None)` once the stream is here and its partitions led here are subscribed, else with the error."""
        state = self._context.image.streams.get(stream_id)
        if state is None and stream_id <= self._context.image.index:
            done(RemoteError(ErrorCode.STREAM_CHANGED, f"stream {stream_id} was deleted", stream_id=int(stream_id)))
            return
        if state is not None:
            self.try_again(state)
            for key in state.partition_keys():
                if (partition := self.partitions.get(key)) is not None and partition.refusal:
                    done(self._refusal(partition))
                    return
        self.stream_waiters.wait(stream_id, deadline_us, done, awaited)

    def confirmed(self, partition: Partition) -> None:
        """Answer callers that wait for the partition's subscription."""
        self.stream_waiters.answer_met(partition.key.stream_id)

    def refused(self, partition: Partition, subject: str, reason: str) -> None:
        """Handle a subscription that NATS refused."""
        state = partition.stream
        what = "the stream" if len(state.partitions) == 1 else "the partition"
        lacks = "nothing" if len(partition.subjects) == 1 else "nothing of that subject"
        text = f"NATS refuses the subscription to {subject!r}: {reason}; {what} stores {lacks}"
        if text != partition.refusal:  # the retries would repeat it
            partition.refusal = text
            self._outbox.notice(f"{partition.label}: {text}")
        self.stream_waiters.fail(state.stream_id, self._refusal(partition))

    def _refusal(self, partition: Partition) -> RemoteError:
        """Return the error; `is_empty`: as far as this broker knows, the stream is empty and can be deleted again."""
        keys = partition.stream.partition_keys()
        here = (self.partitions.get(key) for key in keys)
        is_empty = len(keys) == len(self._held(partition.stream)) and all(
            one is None or one.log.log_end == 0 for one in here
        )
        return RemoteError(ErrorCode.NATS_REFUSED, partition.refusal, is_empty=is_empty)

    def lost(self) -> None:
        """Note that the NATS connection and all subscriptions are lost."""
        self.stream_waiters.lost()
        for partition in self.partitions.values():
            partition.subscribed = False
            partition.refusal = ""

    # Delete

    def _delete(self, state: StreamState) -> None:
        for one in with_companions(state):
            self._delete_logs(one)

    def _delete_logs(self, state: StreamState) -> None:
        error = deleted_error(state)
        self.stream_waiters.fail(state.stream_id, error)
        dropping = {key for key in self._dropping if key.stream_id == state.stream_id}
        removal = _Removal(state, dropping.union(self._opening.get(state.stream_id, ())), [])
        self._removals[state.stream_id] = removal
        partitions = []
        for key in state.partition_keys():
            self.failures.pop(key, None)
            self._retries.pop(key, None)
            if (partition := self.partitions.pop(key, None)) is not None:
                removal.used.add(key)
                partitions.append(partition)
        for partition in partitions:
            self._roles.leave(partition)
            partition.abandon(error, self._outbox.step)
            self._events.add(PartitionEventKind.CLOSED, partition, error)
            self._upkeep.discard(partition, partial(self._let_go, removal, partition.key, partition.log))
        if not partitions and not removal.used:
            self._remove_files(removal)

    def _let_go(self, removal: _Removal, key: PartitionKey, log: Log | None) -> None:
        """Note that a log of a deleted stream is no longer in use."""
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
            self._folders.remove(self._folders_of(state), state)

        def done(error: Exception | None) -> None:
            if error is not None:
                text = f"cannot remove {stream_path(state)} of the deleted stream {state.name!r}: {error}"
                self._outbox.notice(f"{text}; the next start tries again")

        self._outbox.work(Lane.WRITE, run, done)
