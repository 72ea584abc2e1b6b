"""The logs of consumers beside the partitions that this broker leads: read once for each leadership, then appended to.

Rules: a log is read when a leadership of it begins, a few at a time. It is known once it is read, and all that was
found is committed; then the caller takes the last value of each key, and nothing is kept here. Only the leadership that
is current appends; a batch counts as stored once the high watermark of this log has passed it, in this leadership. At
the end of a leadership all open appends are told that their outcome is unknown: the next leader may have them, or not.

| the log of consumers                  | `ConsumerLogs.known`                                                       |
|---------------------------------------|----------------------------------------------------------------------------|
| the stream has none                   | not_yet                                                                    |
| of a partition that is led elsewhere  | not_leader                                                                 |
| is being opened, or does not lead yet | not_yet                                                                    |
| is being read, or not all is committed| not_yet                                                                    |
| cannot be opened or read              | why: corrupt_range with file and position, storage_failed, …; the next     |
|                                       | call tries again                                                           |
| is read, and all is committed         | is answered                                                                |

Nothing else waits for these logs: messages are stored, read and replicated while they cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, TypeAlias

from penstock.base import limits
from penstock.base.companion_kinds import CompanionKind
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, PartitionKey, StreamId
from penstock.messages import AddCompanionRequest, AppendResponse, Response
from penstock.metadata.companions import consumers_key, is_consumers, target_key
from penstock.metadata.feature_levels import CONSUMERS_WITH_ACKS
from penstock.metadata.feature_versions import missing
from penstock.node.api.internal_log import ReadRows, encoded_rows
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.partition.log_queries import QueryGivenUpError
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.replicas.companion_troubles import CompanionTroubles
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.step import InternalCaller, Lane
from penstock.replication.leader import Leadership

Rows: TypeAlias = list[tuple[bytes, bytes | None]]
"""Keys and values to append; None deletes."""

Done: TypeAlias = Callable[[RemoteError | None], None]
"""Called once, perhaps before the call returns that it was given to, and in the midst of an event of the node: it may
note what happened, and calls nothing of the node."""


class _Append(Protocol):
    """Appends one batch of the node's own to a partition led here."""

    def __call__(self, partition: Partition, caller: InternalCaller, data: bytearray) -> None: ...


class _LastValues:
    """The last value of each key of a log."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def take(self, rows: Iterable[tuple[bytes | None, bytes | None, int]]) -> None:
        """Take them, each with its timestamp."""
        self.rows = {key: value for key, value, _ in rows if key is not None and value is not None}


class KnownConsumers:
    """The log of consumers of one partition, in one leadership of this broker."""

    __slots__ = ("_leadership", "_logs", "_partition", "_rows", "batches", "leader_epoch", "messages_end")

    def __init__(
        self,
        logs: ConsumerLogs,
        partition: Partition,
        leadership: Leadership,
        rows: dict[bytes, bytes],
        messages_end: Offset,
    ):
        self._logs = logs
        self._partition = partition
        self._leadership = leadership
        self._rows: dict[bytes, bytes] | None = rows
        self.messages_end = messages_end
        """End of the messages that the rows may name: what is behind it was lost by an unclean election, and what has
        come there since is another message."""
        self.batches = 0
        """Appended, and not yet told."""
        self.leader_epoch: LeaderEpoch = leadership.leader_epoch

    @property
    def is_current(self) -> bool:
        """True while the leadership goes on; after it no append is taken."""
        is_led = self._partition.leadership is self._leadership
        return is_led and self._logs.is_known(self._partition.key, self)

    @property
    def is_certain(self) -> bool:
        """True while no other broker may lead; may become true again in the same leadership.

        What is delivered while it is false may contradict what the next leader has told.
        """
        return self.is_current and not self._partition.is_mute

    def take_rows(self) -> Mapping[bytes, bytes]:
        """Return the last value of each key, all committed: what it had when the leadership began.

        Only once: who lost them asks `ConsumerLogs.known` again, which reads the log again. RemoteError not_yet: so.
        """
        rows, self._rows = self._rows, None
        if rows is None:
            raise self._logs.read_again(self._partition)
        return rows

    def append(self, rows: Rows, done: Done) -> None:
        """Append one batch in this leadership. Batches are stored, and told, in the order of their calls.

        `done(None)`: it is committed, by the stream's durability. fenced_epoch: the leadership has ended, and it may be
        stored or not; storage_failed: it may be stored or not. With every other error nothing was stored: not_leader
        (also while another broker may lead by now), overloaded, too_large, not_enough_replicas, read_only, and
        corrupt_range with file and position.
        """
        try:
            self._check(rows)
        except RemoteError as refusal:
            done(refusal)
            return
        self.batches += 1
        self._logs.append(self._partition, rows, partial(self._answered, done))

    def _answered(self, done: Done, response: Response | RemoteError) -> None:
        self.batches -= 1
        assert isinstance(response, (AppendResponse, RemoteError)), response
        done(response if isinstance(response, RemoteError) else None)

    def _check(self, rows: Rows) -> None:
        label = self._partition.label
        if not self.is_certain:
            text = f"nothing was stored: {label} is led by another broker, or may be by now"
            raise RemoteError(ErrorCode.NOT_LEADER, text)
        if self._partition.log.damage:
            self._logs.check_usable(self._partition)
        if self.batches >= limits.CONSUMER_BATCHES_MAX:
            text = f"nothing was stored: {self.batches} batches of {label} are not committed yet"
            raise RemoteError(ErrorCode.OVERLOADED, text)
        largest = max((len(value or b"") for _, value in rows), default=0)
        size_bytes = sum(len(key) + len(value or b"") for key, value in rows)
        is_too_large = largest > limits.CONSUMER_ROW_BYTES_MAX or size_bytes > limits.CONSUMER_BATCH_BYTES_MAX
        if is_too_large or len(rows) > limits.BATCH_ROWS_MAX:
            text = (
                f"nothing was stored: {len(rows)} rows of {size_bytes} bytes, the largest of {largest}, are more than"
            )
            most = f"{limits.BATCH_ROWS_MAX} of {limits.CONSUMER_BATCH_BYTES_MAX} bytes with one batch"
            raise RemoteError(ErrorCode.TOO_LARGE, f"{text} {most}, or {limits.CONSUMER_ROW_BYTES_MAX} with one row")


class _Kept:
    """State of one leadership: its read, and the log once that is known."""

    __slots__ = ("end", "failure", "known", "leadership", "partition", "reading", "rows")

    def __init__(self, partition: Partition, leadership: Leadership) -> None:
        self.partition = partition
        self.leadership = leadership
        self.end = partition.log.log_end  # all before it is found by the read, and has to be committed
        self.reading: ReadRows[_LastValues] | None = None
        self.rows: dict[bytes, bytes] | None = None  # read, and not all committed
        self.failure: RemoteError | None = None
        self.known: KnownConsumers | None = None


class ConsumerLogs:
    """The logs of consumers that this broker leads."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        find: PartitionLookup,
        partitions: Mapping[PartitionKey, Partition],
        troubles: CompanionTroubles,
        *,
        append: _Append,
    ) -> None:
        self.version = 0
        """Grows when one has become known, cannot be read, or its leadership has ended."""
        self._context = context
        self._cluster = cluster
        self._find = find
        self._partitions = partitions
        self._troubles = troubles
        self._append = append
        self._kept: dict[PartitionKey, _Kept] = {}  # of each leadership of such a log
        self._waiting: dict[PartitionKey, None] = {}  # to be read, in this order
        self._reading_count = 0
        self._known_epochs: dict[PartitionKey, LeaderEpoch] = {}  # in which a log was last known

    # What the gateway uses

    def led(self) -> list[PartitionKey]:
        """Return the partitions whose log of consumers this broker leads; it need not be known yet."""
        return [target_key(key) for key in self._kept]

    def known(self, stream_id: StreamId, partition: PartitionId) -> KnownConsumers:
        """Return the log of this leadership. Raise RemoteError; see the module's table."""
        target = self._find.led(stream_id, partition)
        if not target.stream.has_consumers:
            raise RemoteError(ErrorCode.NOT_YET, f"{target.label} has no log of consumers yet; ask again in a moment")
        if (trouble := self._troubles.find(target, CompanionKind.CONSUMERS)) is not None:
            raise trouble
        kept = self._kept.get(consumers_key(target.key))
        if kept is None or kept.leadership.target is not target.leadership:
            raise RemoteError(ErrorCode.NOT_YET, f"consumers of {target.label} begin to be led; ask again in a moment")
        if kept.failure is not None:
            failure = kept.failure
            self._read(kept.partition, kept.leadership)
            raise failure
        if kept.known is None:
            raise _being_read(kept.partition)
        return kept.known

    def add(self, stream_id: StreamId, done: Done) -> None:
        """Give the stream logs of consumers, unless it has them; `done` once the metadata say so.

        The logs are opened a moment later: `known` answers not_yet until then. RemoteError: stream_not_found,
        stream_changed, bad_request (an internal stream), unsupported_version (feature level), too_large (partitions of
        the cluster), …
        """

        def heard(response: Response | RemoteError) -> None:
            done(response if isinstance(response, RemoteError) else None)

        try:
            state = self._context.image.by_id(stream_id)
            if state.config.is_internal:
                raise RemoteError(ErrorCode.BAD_REQUEST, f"stream {state.name!r} is internal: it has no consumers")
            if (error := missing(self._context.image, CONSUMERS_WITH_ACKS)) is not None:
                raise error
        except RemoteError as refusal:
            done(refusal)
            return
        if state.has_consumers:
            done(None)
            return
        self._cluster.link.ask(AddCompanionRequest(stream_id=stream_id, kind=CompanionKind.CONSUMERS), heard)

    # What the known logs use

    def is_known(self, key: PartitionKey, known: KnownConsumers) -> bool:
        """True if this is what `known` returns."""
        kept = self._kept.get(key)
        return kept is not None and kept.known is known

    def check_usable(self, partition: Partition) -> None:
        """Raise RemoteError (corrupt_range) if a log that has damage takes nothing because of it."""
        target = self._partitions.get(target_key(partition.key))
        trouble = None if target is None else self._troubles.find(target, CompanionKind.CONSUMERS)
        if trouble is not None:
            raise trouble

    def append(self, partition: Partition, rows: Rows, heard: Callable[[Response | RemoteError], None]) -> None:
        """Append a batch to a log that is led here."""
        subject = partition.stream.config.subject.encode()
        self._append(partition, InternalCaller(heard), encoded_rows(subject, rows))

    def read_again(self, partition: Partition) -> RemoteError:
        """Read a log again whose rows were lost by the caller; the log that is known ends. Return not_yet."""
        kept = self._kept.get(partition.key)
        if kept is not None and partition.leadership is kept.leadership:
            self._read(partition, kept.leadership)
        return _being_read(partition)

    # Events

    def began(self, partition: Partition) -> None:
        """Read the log of a leadership that has begun, if it is one of consumers."""
        if is_consumers(partition.key.stream_id) and partition.leadership is not None:
            self._read(partition, partition.leadership)

    def committed(self, partition: Partition) -> None:
        """Tell that a log is known, once all that was found in it is committed."""
        kept = self._kept.get(partition.key)
        if kept is not None and kept.rows is not None:
            self._note_known(kept)

    def ended(self, partition: Partition) -> None:
        """Forget a leadership that has ended; its open appends were told by the partition."""
        kept = self._kept.pop(partition.key, None)
        if kept is not None:
            target = self._partitions.get(target_key(partition.key))
            if target is None or target.leadership is None:
                self._known_epochs.pop(partition.key, None)
            self._give_up(kept)
            self.version += 1

    def stop(self) -> None:
        """Cancel reads because the broker stops."""
        for kept in self._kept.values():
            self._give_up(kept)

    # Reads

    def _read(self, partition: Partition, leadership: Leadership) -> None:
        before = self._kept.get(partition.key)
        if before is not None:
            self._give_up(before)
        self._kept[partition.key] = _Kept(partition, leadership)
        self._waiting[partition.key] = None
        self._read_next()

    def _give_up(self, kept: _Kept) -> None:
        self._waiting.pop(kept.partition.key, None)
        if kept.reading is not None:
            kept.reading.give_up()

    def _read_next(self) -> None:
        while self._waiting and self._reading_count < limits.CONSUMER_LOG_READS_MAX:
            key = next(iter(self._waiting))
            del self._waiting[key]
            kept = self._kept[key]
            reading = kept.reading = ReadRows(kept.partition.view(), _LastValues())
            self._reading_count += 1
            self._context.outbox.work(Lane.READ, reading.run, partial(self._was_read, kept, reading))

    def _was_read(self, kept: _Kept, reading: ReadRows[_LastValues], error: Exception | None) -> None:
        self._reading_count -= 1
        kept.reading = None
        if self._kept.get(kept.partition.key) is kept and not isinstance(error, QueryGivenUpError):
            if error is None:
                kept.rows = reading.state.rows
                self._note_known(kept)
            else:
                kept.failure = as_remote_error(error)
                kept.partition.tell(f"cannot be read: {error}", self._context.outbox)
                self.version += 1
        self._read_next()

    def _note_known(self, kept: _Kept) -> None:
        """Go on once all that was found is committed: rows that are not may be lost with this leadership."""
        if kept.rows is not None and kept.partition.committed_end >= kept.end:
            kept.known = KnownConsumers(self, kept.partition, kept.leadership, kept.rows, self._messages_end(kept))
            kept.rows = None
            self.version += 1

    def _messages_end(self, kept: _Kept) -> Offset:
        """Return the end of the messages that rows of earlier leaders may name, or of this one if it wrote some.

        Not the end of what is shown: a new leader may know of fewer commits, and marks, than the last one had told.
        """
        target, key, epoch = kept.leadership.target, kept.partition.key, kept.leadership.leader_epoch
        assert target is not None
        is_again = self._known_epochs.get(key) == epoch
        self._known_epochs[key] = epoch
        return Offset(target.log_end if is_again else target.epoch_start)


def _being_read(partition: Partition) -> RemoteError:
    return RemoteError(ErrorCode.NOT_YET, f"{partition.label} is being read; ask again in a moment")
