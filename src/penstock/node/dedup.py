"""What a leader knows of the message ids in its log, and how it comes to know them.

Rules: what is known is a function of the log: it is read from the log when the first message with an id comes under a
leadership, kept up to date while that lasts, and forgotten with it. So it is right after a start, a truncation and a
failover, and a partition to which nobody sends ids never pays for it. Messages wait while it is read (see `arrivals`).

| what is known  | since                                          | a message with an id           |
|----------------|------------------------------------------------|--------------------------------|
| nothing        | the leadership began, or the window has grown  | waits, and has the log read    |
| it is read     |                                                | waits                          |
| all            | that is done                                   | is looked up                   |
| nothing        | the log could not be read                      | is refused; the next one waits |

A partition that was added to its stream has keys that were elsewhere before. While what was stored there is within the
window, its ids are asked for as well, of the leaders of the older partitions (`node.ids_elsewhere`): a message that was
stored there, and whose ack was lost, comes here when it is sent again.

The log is read from its end back to where the window begins, or until there are as many ids as may be kept. Of a batch
that has none, no more than the header is read. The window is measured by the timestamps in the log, which never go
back: neither does the time by which ids are forgotten, even if the clock does.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.partitioning import PartitionBy
from penstock.batch import codec
from penstock.batch.header import MAY_HOLD_IDS, BatchHeader
from penstock.commitlog import LogView
from penstock.hot.message_ids import MessageIds
from penstock.ingest.admission import Rules
from penstock.ingest.dedup import Dedup
from penstock.metadata.image import Mark, StreamState
from penstock.node.step import DiskWork, Lane, Step
from penstock.node.wording import as_remote

if TYPE_CHECKING:
    from penstock.node.partition import Partition


class ReadIds:
    """Look through the end of a log for the ids of messages no older than `since_us`; in a disk thread."""

    def __init__(self, view: LogView, since_us: int, ids_max: int) -> None:
        self._view = view
        self._since_us = since_us
        self.ids = MessageIds(ids_max)

    def run(self) -> None:
        """Read them; RemoteError corrupt_range, OSError."""
        view, ids = self._view, self.ids
        if view.log_start == view.log_end:
            return
        # The last message in any case: one may be expected to have a certain id, however old it is.
        start = min(view.offset_at(self._since_us, end=view.log_end), view.log_end - 1)
        for _, data in view.batches(start, view.log_end, reverse=True, wants=_may_hold_ids):
            rows = codec.check_values(data)
            ids.note_before(rows.asked().ids, codec.offsets(data), codec.timestamps(data), view.log_start)
            if ids.is_full:
                break
        ids.expire(self._since_us)


def _may_hold_ids(header: BatchHeader) -> bool:
    return bool(header.flags & MAY_HOLD_IDS)


def read_ids(partition: Partition, rules: Rules, now_us: int, step: Step) -> None:
    """Have the ids in the log of a partition read, unless that is under way; it knows when it is done.

    `now_us` is what a message written now would have for a timestamp.
    """
    window_us, ids_max = rules.dedup
    if partition.dedup is not None or window_us is None:
        return
    stream, number = partition.stream, partition.key.partition
    donors = _donors(stream, number, now_us - window_us)
    partition.dedup = dedup = Dedup(window_us, ids_max, now_us, _marks(stream, number), donors)
    forget_purged(dedup, stream)
    work = ReadIds(partition.view(), dedup.since_us, dedup.ids_max)

    def done(error: Exception | None) -> None:
        if error is None:
            dedup.known(work.ids)
        else:
            dedup.failure = f"the message ids in the log cannot be read: {as_remote(error)}"

    step.disk.append(DiskWork(Lane.READ, work.run, done))


def is_outdated(dedup: Dedup, rules: Rules, stream: StreamState, number: int) -> bool:
    """Whether what is known is not what should be: with a larger window older ones count again, and with other marks
    other ones of other partitions.
    """
    return (dedup.window_us, dedup.ids_max) != rules.dedup or dedup.marks != _marks(stream, number)


def forget_purged(dedup: Dedup, stream: StreamState) -> None:
    """What was given up by request in older partitions is unknown here as it is there.

    After an unclean election another message may stand at such an offset: if it is sent again, it is stored again,
    where a message that was purged would else be acked and not stored.
    """
    for one in stream.truncated:
        dedup.forget_elsewhere(one.partition, one.before)


def _step(stream: StreamState, number: int) -> tuple[int, int] | None:
    """How many partitions there were before and after this one was added; None: no keys have come to it."""
    steps = pairwise(stream.counts) if stream.moves_keys else ()
    return next(((before, after) for before, after in steps if before <= number < after), None)


def _marks(stream: StreamState, number: int) -> tuple[Mark, ...]:
    step = _step(stream, number)
    return () if step is None else tuple(stream.marked(step[1]).values())


def _donors(stream: StreamState, number: int, since_us: int) -> Mapping[int, int]:
    """Whose messages may be sent again to this partition, if they are no older than `since_us`, and below which offset.

    With a subject for each partition messages without a key are still taken where they came before.
    """
    step = _step(stream, number)
    if step is None:
        return {}
    before, after = step
    marked = stream.marked(after)
    if len(marked) == before and all(one.marked_us < since_us for one in marked.values()):
        return {}
    ends = {donor: int(one.end_offset) for donor, one in marked.items()}
    if stream.config.split.how is PartitionBy.PUBLISHER:
        ends = {}
    return {donor: end for donor in range(before) if (end := ends.get(donor, limits.OFFSET_MAX)) > 0}
