"""Places where reading begins and ends, and the messages between them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.client.places import LastMessages as LastMessages
from penstock.ops.errors import ArgumentError
from penstock.ops.progress import Progress
from penstock.ops.reading.consuming import Consuming
from penstock.ops.reading.following import BATCH_ROWS_MAX, following

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.blocking.client import Client
    from penstock.client.read.filters import Filter
    from penstock.client.values import OffsetAt, Start
    from penstock.messages import StreamInfo

Batches = Generator["pa.RecordBatch", None, None]


class ReadOptions(NamedTuple):
    """The range of a stream to read; see `Reading`."""

    start: Start
    end: Start | None  # None: where the log ends now; not with a group
    follow: bool
    group: str | None  # start at its committed offsets, and commit
    partition: int | None  # None: all
    where: Filter | None = None  # not with a group


class Reading:
    """One pass over the `batches` of a stream; the caller closes them.

    If one partition is read without a group, `begin` is where, and `stop` the end offset (None: where the log ends).
    `consuming` is the membership in a group.
    """

    batches: Batches

    def __init__(
        self,
        client: Client,
        info: StreamInfo,
        wanted: ReadOptions,
        *,
        for_ever: bool,
        timeout_s: float,
        progress: Progress,
    ) -> None:
        """With `for_ever` outages of the broker may exceed the time-out. ArgumentError: places that do not fit."""
        self.begin: OffsetAt | None = None
        self.stop: int | None = None
        self.consuming: Consuming | None = None
        from penstock.client.checks import place_of

        start, end, follow, group, partition, where = wanted
        start, end = place_of(start), place_of(end)
        has_several = partition is None and len(info.partitions) > 1
        if group is not None:
            if isinstance(start, LastMessages):
                raise ArgumentError("with --group give an offset, an age or a time: -N changes with each new message")
            if end is not None or where is not None:
                what = "end" if where is None else "filter: the group would commit the excluded messages"
                raise ArgumentError(f"a group continues at its committed offsets and has no {what}")
            if has_several and isinstance(start, int):
                raise _needs_partition(info)
            self.consuming = Consuming(
                client, info, group, start=start, partition=partition, timeout_s=timeout_s, progress=progress
            )
            self.batches = self.consuming.batches(follow=follow, for_ever=for_ever)
            return
        options: dict[str, Any] = {"batch_rows_max": BATCH_ROWS_MAX, "where": where}
        if has_several:
            if isinstance(start, int | LastMessages) or isinstance(end, int | LastMessages):
                raise _needs_partition(info)
            self.batches = client.read(info, start, end=end, follow=follow, timeout=timeout_s, **options)
            return
        number = partition or 0
        self.begin = begin = client.offsets(info, start, partition=number, timeout=timeout_s)
        # An offset beyond the log end is a valid end.
        if isinstance(end, int | None):
            self.stop = end
        else:
            self.stop = client.offsets(info, end, partition=number, timeout=timeout_s).offset
        if follow:
            options = {"progress": progress, "for_ever": for_ever, "partition": partition, "where": where}
            self.batches = following(client, info, begin.offset, self.stop, timeout_s, **options)
        else:
            options |= {"end": self.stop, "partition": number}
            self.batches = client.read(info, begin.offset, timeout=timeout_s, **options)


def _needs_partition(info: StreamInfo) -> ArgumentError:
    text = f"{info.name} has {len(info.partitions)} partitions, each with offsets of its own"
    return ArgumentError(f"{text}: say which with --partition, or give a time")
