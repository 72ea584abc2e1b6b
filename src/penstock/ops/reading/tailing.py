"""The last messages of a stream, by time, and then the new ones, as `tail -f` shows lines.

Rules: no message between the last ones and the new ones is skipped or repeated: following begins at the offsets up to
which the last ones were looked for. Each partition is followed by a thread of its own.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import groupby
from queue import Full, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.base import limits
from penstock.client.read.batches import partition_of
from penstock.client.read.last_rows import LastRows
from penstock.client.values import LATEST
from penstock.ops.errors import ArgumentError
from penstock.ops.progress import Progress
from penstock.ops.reading.following import following

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.blocking.client import Client
    from penstock.client.read.filters import Filter
    from penstock.messages import StreamInfo

_POLL_S = 0.5  # how soon a thread notices that its reader has ended


class TailOptions(NamedTuple):
    """Options of `Tail`."""

    messages: int = 10  # the last ones, of all partitions together
    follow: bool = True
    partition: int | None = None  # None: all
    where: Filter | None = None


class Tail:
    """One pass over the last messages of a stream, oldest first, and the new ones; the caller closes `batches`.

    ArgumentError: the stream has more partitions than are followed at once.
    """

    def __init__(
        self,
        client: Client,
        info: StreamInfo,
        wanted: TailOptions,
        *,
        for_ever: bool,
        timeout_s: float,
        progress: Progress,
    ) -> None:
        count = max(1, len(info.partitions))
        self._partitions = range(count) if wanted.partition is None else [wanted.partition]
        if wanted.follow and len(self._partitions) > limits.TAIL_PARTITIONS_MAX:
            text = f"{info.name} has {count} partitions, and at most {limits.TAIL_PARTITIONS_MAX} are followed"
            raise ArgumentError(f"{text}: say which with --partition, or use --no-follow")
        self._client = client
        self._info = info
        self._wanted = wanted
        self._for_ever = for_ever
        self._timeout_s = timeout_s
        self._progress = progress
        self.batches = self._batches()

    def _batches(self) -> Generator[pa.RecordBatch, None, None]:
        import pyarrow as pa

        ends: dict[int, int] = {}
        rows: list[tuple[int, pa.RecordBatch]] = []
        for partition in self._partitions:
            found, ends[partition] = self._last(partition)
            for batch in found:
                times = batch.column("timestamp").cast("int64").to_pylist()
                rows += ((time, batch.slice(at, 1)) for at, time in enumerate(times))
        rows.sort(key=lambda row: row[0])
        last = [batch for _, batch in rows[max(0, len(rows) - self._wanted.messages) :]]
        for _, run in groupby(last, partition_of):
            yield pa.concat_batches(list(run))
        if not self._wanted.follow:
            return
        if len(ends) == 1:
            (partition,) = ends
            yield from self._new(partition, ends[partition])
        else:
            yield from self._new_of_all(ends)

    def _last(self, partition: int) -> tuple[list[pa.RecordBatch], int]:
        """Return the last rows of a partition, and the offset before which they were looked for."""
        place = self._client.offsets(self._info, LATEST, partition=partition, timeout=self._timeout_s)
        last = LastRows(place.log_start, place.committed_end, self._wanted.messages)
        options: dict[str, Any] = {"partition": partition, "where": self._wanted.where, "timeout": self._timeout_s}
        while (offsets := last.next_range()) is not None:
            with closing(self._client.read(self._info, offsets.start, end=offsets.end, **options)) as source:
                for batch in source:
                    last.append(batch)
        return last.batches, place.committed_end

    def _new(self, partition: int, start: int) -> Generator[pa.RecordBatch, None, None]:
        return following(
            self._client,
            self._info,
            start,
            None,
            self._timeout_s,
            progress=self._progress,
            for_ever=self._for_ever,
            partition=partition,
            where=self._wanted.where,
        )

    def _new_of_all(self, starts: dict[int, int]) -> Generator[pa.RecordBatch, None, None]:
        found: Queue[pa.RecordBatch | BaseException] = Queue(len(starts))
        ended = Event()

        def put(one: pa.RecordBatch | BaseException) -> None:
            while not ended.is_set():
                try:
                    found.put(one, timeout=_POLL_S)
                except Full:
                    continue
                return

        def follow(partition: int, start: int) -> None:
            try:
                for batch in self._new(partition, start):
                    put(batch)
                    if ended.is_set():
                        return
            except BaseException as error:  # noqa: BLE001 (the reader raises it)
                put(error)

        for partition, start in starts.items():
            Thread(target=follow, args=(partition, start), name=f"penstock-tail-{partition}", daemon=True).start()
        try:
            while True:
                one = found.get()
                if isinstance(one, BaseException):
                    raise one
                yield one
        finally:
            ended.set()
