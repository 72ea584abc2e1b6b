"""The blocking face of consumers and groups: the asyncio one, on the client's thread."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.client import consumers, groups
from penstock.client.groups import Group, GroupOffset
from penstock.client.of_this_process import OfThisProcess
from penstock.client.threads import LoopThread
from penstock.client.values import Message, Start, StreamName

if TYPE_CHECKING:
    import pyarrow as pa


class Consumer(OfThisProcess):
    """Reads a stream as a group, and commits how far it has come; use it in `with`, and iterate over it.

    What was handed out last is done when the next is asked for. It is committed every `checkpoint_interval` seconds, by
    `commit`, and at the end; when the block ends with an error, what was in hand then is not, and comes again.
    """

    def __init__(self, consumer: consumers.Consumer, thread: LoopThread) -> None:
        self._consumer = consumer
        self._thread = thread

    @property
    def group(self) -> str:
        """The group's name."""
        return self._consumer.group

    @property
    def positions(self) -> dict[int, int]:
        """By partition: the offset of the first message that is not done."""
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
        """The next messages; None at the end, which with `follow` never comes. What came before is done."""
        return self._thread.run(self._consumer.next_batch())

    def messages(self) -> Generator[Message, None, None]:
        """One message at a time; each is done when the next is asked for."""
        while (batch := self._thread.run(self._consumer.take(whole=True))) is not None:
            for message in self._consumer.each(batch):
                yield message
                if self._consumer.is_due:
                    self._thread.run(self._consumer.checkpoint())

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit now, with what is in hand; or `offsets`, each that of the next message, by partition.

        Returns when a failover cannot lose it. TimedOut, Unavailable: it may or may not be committed. MemberFenced:
        another member of the group may have it by now, and nothing is committed. OffsetOutOfRange: the log does not
        hold so much, and nothing is committed.
        """
        self._thread.run(self._consumer.commit(offsets))

    def close(self) -> None:
        """Commit, with what is in hand, and end. Twice is fine."""
        self._thread.run(self._consumer.close())


class Groups:
    """`client.groups`: which groups there are, and where they are."""

    def __init__(self, groups: groups.Groups, thread: LoopThread) -> None:
        self._groups = groups
        self._thread = thread

    def all(self, *, timeout: float = 10.0) -> list[Group]:
        """All groups and the streams in which they have committed offsets, in their order."""
        return self._thread.run(self._groups.all(timeout=timeout))

    def offsets(self, group: str, stream: StreamName, *, timeout: float = 10.0) -> list[GroupOffset]:
        """Where a group is in each partition of a stream, and how far behind. StreamNotFound."""
        return self._thread.run(self._groups.offsets(group, stream, timeout=timeout))

    def commit(self, group: str, stream: StreamName, offsets: Mapping[int, int], *, timeout: float = 10.0) -> None:
        """Say where a group is, in some partitions: the offset of the next message of each, all or none.

        For who keeps his position elsewhere, and wants it seen here. StreamNotFound, GroupInUse (it has members).
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
        """Have a group go on at a place, in all partitions or in one; where that is. Stop its consumers before.

        An offset needs a `partition` where there are several. `dry_run`: tell only where it would be.
        StreamNotFound, OffsetOutOfRange, GroupInUse (it has members), with `dry_run`, too.
        """
        return self._thread.run(
            self._groups.reset(group, stream, to, partition=partition, dry_run=dry_run, timeout=timeout)
        )

    def delete(self, group: str, stream: StreamName | None = None, *, timeout: float = 10.0) -> list[Group]:
        """Forget where a group is, in a stream or in all; what is forgotten. GroupInUse: it has members."""
        return self._thread.run(self._groups.delete(group, stream, timeout=timeout))
