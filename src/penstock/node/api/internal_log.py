"""The state of leaderships of one internal stream, such as `__offsets`: a function of the log, served from memory.

Rules: a leadership reads the log at the first request, keeps the state current, and drops it at its end. Only committed
rows are served: after a failover, not before all that the new leadership found is committed. A write is answered once
its rows are committed, like an append; if the leadership ends first, the client learns that the outcome is unknown. No
other component writes to these logs.

| known          | since                                         | a request                         |
|----------------|-----------------------------------------------|-----------------------------------|
| nothing        | the leadership began                          | gets `not_yet`; the log is read   |
| being read     |                                               | gets `not_yet`                    |
| all            | the log is read, and what was read committed  | is answered                       |
| nothing        | the log could not be read                     | gets the error; the next one reads|
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.batch import codec
from penstock.commitlog import LogView
from penstock.hot.message_group import MessageGroup
from penstock.messages import AppendResponse, CreateStreamRequest, CreateStreamResponse, Response, StreamInfo
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.partition.log_queries import Query, keys_and_values
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.security.access import Call
from penstock.node.step import InternalCaller, Lane
from penstock.replication.leader import Leadership

Rows = list[tuple[bytes, bytes | None]]
"""Keys and values to append; None deletes."""

Write = Callable[[Partition, InternalCaller, bytearray], None]
"""Appends one batch to a partition led here."""


class RowState(Protocol):
    """The state that the rows of a log come to."""

    def take(self, rows: Iterable[tuple[bytes | None, bytes | None, int]]) -> None:
        """Apply the next rows of the log, each a key, value and timestamp."""


S = TypeVar("S", bound=RowState)


class InternalStream(NamedTuple):
    """Name and config of an internal stream that is created when it is first needed, and what it holds."""

    config: StreamConfig
    content: str  # in the plural, for error texts


class ReadRows(Query, Generic[S]):
    """Reads a log from its beginning, in a disk thread."""

    def __init__(self, view: LogView, state: S) -> None:
        super().__init__(view)
        self.state = state

    def run(self) -> None:
        """Raise RemoteError (corrupt_range), OSError or QueryGivenUpError."""
        view = self._view
        last: dict[bytes | None, tuple[bytes, int]] = {}
        for _, data in self._batches(view.log_start, view.log_end):
            codec.check_values(data)
            for key, value, timestamp_us in zip(*keys_and_values(data), codec.timestamps(data), strict=True):
                if value is not None:
                    last[key] = value, timestamp_us
                else:
                    last.pop(key, None)
        self.state.take((key, value, timestamp_us) for key, (value, timestamp_us) in last.items())


class Kept(Generic[S]):
    """The state of one leadership of a partition."""

    def __init__(self, leadership: Leadership, reading: ReadRows[S], end: int) -> None:
        self.leadership = leadership
        self.reading: ReadRows[S] | None = reading
        self.end = end  # log end when the leadership began
        self.read: S | None = None
        self.failure: RemoteError | None = None

    @property
    def state(self) -> S:
        """The state; only of what `InternalLog.known` returns."""
        assert self.read is not None
        return self.read


class InternalLog(Generic[S]):
    """The state of all partitions of one internal stream that this broker leads, and writes to them."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        find: PartitionLookup,
        stream: InternalStream,
        fresh: Callable[[], S],
        write: Write,
    ) -> None:
        """`fresh` returns the state of an empty log."""
        self._outbox = context.outbox
        self._cluster = cluster
        self._find = find
        self._stream = stream
        self._name = stream.config.name
        self._fresh = fresh
        self._write = write
        self._kept: dict[PartitionKey, Kept[S]] = {}

    # The stream

    def create(self, call: Call, timeout_ms: int, answer: Callable[[StreamInfo], Response]) -> None:
        """Answer a call with the stream, which is created if it is missing. RemoteError: users have made it."""
        if self._name in self._cluster.image.names:
            self._outbox.reply(call.caller, answer(self._found()))
            return

        def made(response: Response | RemoteError) -> None:
            if isinstance(response, CreateStreamResponse):
                self._outbox.reply(call.caller, answer(response.stream))
            elif isinstance(response, RemoteError) and response.code == ErrorCode.STREAM_EXISTS:
                # A broker of another version created it differently; this broker may learn of it a moment later.
                text = f"the {self._stream.content} are being made; ask again"
                self._outbox.reply(call.caller, RemoteError(ErrorCode.NOT_YET, text))
            else:
                self._outbox.reply(call.caller, response)

        create = CreateStreamRequest(config=self._stream.config, timeout_ms=timeout_ms)
        self._cluster.link.administer(create, made, authorize=call.authorize)

    def _found(self) -> StreamInfo:
        state = self._cluster.image.by_name(self._name)
        if state.config.is_internal:
            return self._cluster.info(state)
        text = f"a user created a stream named {self._name!r} before that name was reserved"
        raise RemoteError(ErrorCode.STREAM_EXISTS, f"{self._stream.content} cannot be stored: {text}; delete it")

    # State of the leaderships

    def led(self, stream_id: int, number: int) -> Partition:
        """Return the partition that a request names, if this broker leads it. RemoteError."""
        partition = self._find.led(stream_id, number)
        if not (partition.stream.config.is_internal and partition.stream.name == self._name):
            raise RemoteError(ErrorCode.BAD_REQUEST, f"{partition.label} holds no {self._stream.content}")
        return partition

    def known(self, partition: Partition) -> Kept[S]:
        """Return the state of a partition's leadership. Raise RemoteError: not_yet, or why the log cannot be read."""
        leadership = partition.leadership
        if leadership is None:  # the only replica may be unregistered, as on a full disk
            raise RemoteError(ErrorCode.NOT_YET, f"{partition.label} is not led now; ask again in a moment")
        kept = self._kept.get(partition.key)
        if kept is None or kept.leadership is not leadership or kept.failure is not None:
            self._read(partition, leadership)
            if kept is not None and kept.leadership is leadership and kept.failure is not None:
                raise kept.failure
            raise self._being_read(partition)
        if kept.read is None or partition.committed_end < kept.end:
            raise self._being_read(partition)
        return kept

    def is_current(self, partition: Partition, kept: Kept[S]) -> bool:
        """True while the leadership of this state goes on."""
        return self._kept.get(partition.key) is kept and partition.leadership is kept.leadership

    def _being_read(self, partition: Partition) -> RemoteError:
        text = f"the {self._stream.content} in {partition.label} are being read; ask again in a moment"
        return RemoteError(ErrorCode.NOT_YET, text)

    def _read(self, partition: Partition, leadership: Leadership) -> None:
        self.ended(partition)
        reading = ReadRows(partition.view(), self._fresh())
        kept = self._kept[partition.key] = Kept(leadership, reading, partition.log.log_end)

        def done(error: Exception | None) -> None:
            kept.reading = None
            if error is None:
                kept.read = reading.state
            else:
                kept.failure = as_remote_error(error)

        self._outbox.work(Lane.READ, reading.run, done)

    def ended(self, partition: Partition) -> None:
        """Drop the state of a partition no longer led here."""
        kept = self._kept.pop(partition.key, None)
        if kept is not None and kept.reading is not None:
            kept.reading.give_up()

    def stop(self) -> None:
        """Cancel reads because the broker stops."""
        for kept in self._kept.values():
            if kept.reading is not None:
                kept.reading.give_up()

    # Writes

    def append(
        self,
        partition: Partition,
        kept: Kept[S],
        rows: Rows,
        heard: Callable[[Response | RemoteError], None],
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        """Append rows; they are applied once committed, in log order. `arrived` is called just before that."""

        def written(response: Response | RemoteError) -> None:
            arrived()
            if isinstance(response, AppendResponse):
                kept.state.take((key, value, response.timestamp_us) for key, value in rows)
            heard(response)

        self._write(partition, InternalCaller(written), encoded_rows(self._stream.config.subject.encode(), rows))


def encoded_rows(subject: bytes, rows: Rows) -> bytearray:
    """Return the rows as one batch, to be renumbered when it is appended."""
    group = MessageGroup.of([subject] * len(rows), [value for _, value in rows], keys=[key for key, _ in rows])
    return codec.encode(group, 0, len(rows), base_offset=0, timestamp_us=0, leader_epoch=0)[0]
