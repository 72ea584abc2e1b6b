"""Consumers and groups of the blocking client."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.client.blocking.threads import LoopThread
from penstock.client.consume import consumers, groups
from penstock.client.consume.groups import Group, GroupOffset
from penstock.client.link.of_this_process import OfThisProcess
from penstock.client.values import Message, Start, StreamName

if TYPE_CHECKING:
    import pyarrow as pa


class Consumer(OfThisProcess):
    """Reads a stream as a member of a consumer group and commits its offsets; use it in `with`, and iterate over it.

    A message counts as processed when the next one is requested. Processed offsets are committed every
    `checkpoint_interval` seconds, by `commit`, and at the end. If the block ends with an error, the message or batch in
    hand is not committed and will be redelivered.
    """

    def __init__(self, consumer: consumers.Consumer, thread: LoopThread) -> None:
        self._consumer = consumer
        self._thread = thread

    @property
    def group(self) -> str:
        """Name of the consumer group."""
        return self._consumer.group

    @property
    def positions(self) -> dict[int, int]:
        """By partition: the offset of the first message not yet processed."""
        return self._consumer.positions

    def __enter__(self) -> Consumer:
        self._thread.run(self._consumer.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._consumer.__aexit__(kind, error, trace))

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = self.next_batch()
        if batch is None:
            raise StopIteration
        return batch

    def next_batch(self) -> pa.RecordBatch | None:
        """Return the next batch; None at the end (never with `follow`). The previous batch counts as processed."""
        return self._thread.run(self._consumer.next_batch())

    def messages(self) -> Generator[Message, None, None]:
        """Yield one message at a time; each counts as processed when the next is requested."""
        while (batch := self._thread.run(self._consumer.take(whole=True))) is not None:
            for message in self._consumer.each(batch):
                yield message
                if self._consumer.is_due:
                    self._thread.run(self._consumer.checkpoint())

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit now, including the message in hand; or `offsets`: by partition, the offset of the next message.

        Returns when a failover cannot lose the commit. TimedOut, Unavailable: it may or may not be committed.
        MemberFenced: another member of the group may own the partition now; nothing is committed. OffsetOutOfRange: the
        log does not hold that offset; nothing is committed.
        """
        self._thread.run(self._consumer.commit(offsets))

    def close(self) -> None:
        """Commit, including the message in hand, and close. May be called twice."""
        self._thread.run(self._consumer.close())


class Groups:
    """`client.groups`: consumer groups and their committed offsets."""

    def __init__(self, groups: groups.Groups, thread: LoopThread) -> None:
        self._groups = groups
        self._thread = thread

    def all(self, *, timeout: float = 10.0) -> list[Group]:
        """Return all groups and the streams in which they have committed offsets, in order."""
        return self._thread.run(self._groups.all(timeout=timeout))

    def offsets(self, group: str, stream: StreamName, *, timeout: float = 10.0) -> list[GroupOffset]:
        """Return the group's committed offset and lag in each partition of a stream. StreamNotFound."""
        return self._thread.run(self._groups.offsets(group, stream, timeout=timeout))

    def commit(self, group: str, stream: StreamName, offsets: Mapping[int, int], *, timeout: float = 10.0) -> None:
        """Commit offsets for a group in some partitions, all or none: by partition, the offset of the next message.

        Meant for programs that keep their positions elsewhere and want them visible here. StreamNotFound, GroupInUse
        (the group has members).
        """
        self._thread.run(self._groups.commit(group, stream, offsets, timeout=timeout))

    def reset(
        self,
        group: str,
        stream: StreamName,
        to: Start,
        *,
        partition: int | None = None,
        dry_run: bool = False,
        timeout: float = 10.0,
    ) -> list[GroupOffset]:
        """Set a group's committed offsets to a position, in all partitions or in one. Stop its consumers first.

        Returns the new offsets. An offset requires `partition` if the stream has several. `dry_run`: only return the
        offsets. StreamNotFound, OffsetOutOfRange, GroupInUse (it has members; also with `dry_run`).
        """
        return self._thread.run(
            self._groups.reset(group, stream, to, partition=partition, dry_run=dry_run, timeout=timeout)
        )

    def delete(self, group: str, stream: StreamName | None = None, *, timeout: float = 10.0) -> list[Group]:
        """Delete a group's committed offsets, in a stream or in all; return the groups. GroupInUse: it has members."""
        return self._thread.run(self._groups.delete(group, stream, timeout=timeout))
