"""Consumes as a consumer group: starts at the committed offsets and commits while the caller iterates.

Rules: consumed messages are committed at the latest when the iteration ends; those being used when it is interrupted
may be delivered again (at-least-once). With a limit exactly the consumed messages are committed. Without `follow` it
waits for partitions of another member until the session of a dead member has expired. Broker outages are waited out as
in `following`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from penstock.base.units import counted
from penstock.ops.errors import ArgumentError
from penstock.ops.progress import Progress
from penstock.ops.reading.following import BATCH_ROWS_MAX, wait_until_back

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.blocking.client import Client, Consumer
    from penstock.client.errors import OffsetOutOfRange
    from penstock.client.values import Start
    from penstock.messages import StreamInfo


class Consuming:
    """Consumes one stream as a member of a consumer group; `partition` None means all partitions."""

    def __init__(
        self,
        client: Client,
        info: StreamInfo,
        group: str,
        *,
        start: Start,
        partition: int | None,
        timeout_s: float,
        progress: Progress,
    ) -> None:
        """Raise ArgumentError for an invalid name."""
        from penstock.groups.rows import group_mistake

        if (mistake := group_mistake(group)) is not None:
            raise ArgumentError(mistake)
        self._client = client
        self._progress = progress
        self._info = info
        self._group = group
        self._start = start
        self._partition = partition
        self._timeout_s = timeout_s
        self._consumer: Consumer | None = None

    def batches(self, *, follow: bool, for_ever: bool) -> Generator[pa.RecordBatch, None, None]:
        """Yield batches. Without `for_ever`, raise Unavailable or TimedOut if an outage exceeds the time-out."""
        from penstock.client.errors import ClientClosed, OffsetOutOfRange, TimedOut, Unavailable

        client, number = self._client, self._partition or 0
        while True:
            self._consumer = client.consumer(
                self._info,
                self._group,
                start=self._start,
                partition=self._partition,
                follow=follow,
                batch_rows_max=BATCH_ROWS_MAX,
                timeout=self._timeout_s,
            )
            try:
                with self._consumer as consumer:
                    # `yield from` would close the consumer if the caller fails, and that would commit unused rows.
                    for batch in consumer:  # noqa: UP028
                        yield batch
                return
            except OffsetOutOfRange as error:
                error.add_note(self._advice(error))
                raise
            except (Unavailable, TimedOut) as error:
                if not for_ever or isinstance(error, ClientClosed):
                    raise
                reason = error.message if isinstance(error, TimedOut) else str(error)
                self._progress.note(f"waiting for the broker at {client.server}: {reason.partition(';')[0]}")
            wait_until_back(client, self._info, number, self._timeout_s)
            self._progress.note(f"the broker at {client.server} answers again; going on where the group has committed")

    def why_nothing(self) -> str:
        """Return why no message came: all are read, or other members are assigned the partitions with lag."""
        text = f"group {self._group} has read all messages"
        places = self._client.groups.offsets(self._group, self._info, timeout=self._timeout_s)
        held = [one for one in places if one.lag and one.member and self._partition in (None, one.partition)]
        if held:
            members = sorted({one.member for one in held if one.member})
            who = (
                f"member {members[0]} of it reads" if len(members) == 1 else f"members {', '.join(members)} of it read"
            )
            left = counted(sum(one.lag for one in held), "message")
            partitions = ", ".join(str(one.partition) for one in held)
            text = f"{who} partition {partitions}, with {left} to go (`penstock group show {self._group}`)"
        return f"{text}; --follow waits for what comes"

    def _advice(self, error: OffsetOutOfRange) -> str:
        has_begun = self._consumer is not None and self._consumer.positions
        if has_begun or "group" in error.details:
            again = f"penstock group reset {self._group} {self._info.name} --to earliest"
            return f"stop the group's consumers; then `{again}` resets it to the start of the stream"
        return "the group has committed nothing there yet: give --from an offset in that range"

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield `batches` and, at their end, commit the offset after the last yielded row of each partition."""
        from penstock.client.read.batches import partition_of

        ends: dict[int, int] = {}
        for batch in batches:
            yield batch
            said = partition_of(batch)
            ends[(self._partition or 0) if said is None else said] = batch.column("offset")[-1].as_py() + 1
        if self._consumer is not None and ends:
            self._consumer.commit(ends)
