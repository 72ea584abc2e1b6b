"""Deduplication of message ids on a leader: which ids it knows, and how it learns them from its log.

Rules: the known ids are a function of the log: they are read from the log when the first message with an id comes under
a leadership, kept up to date while that lasts, and forgotten with it. So they are right after a start, a truncation and
a failover, and a partition that gets no ids never pays for it. Messages wait while the log is read (see
`ingest_backlog`).

| known   | since                                         | a message with an id           |
|---------|-----------------------------------------------|--------------------------------|
| nothing | the leadership began, or the window has grown | waits, and has the log read    |
| reading |                                               | waits                          |
| all     | the log was read                              | is looked up                   |
| nothing | the log could not be read                     | is refused; the next one waits |

A partition that was added to its stream has keys that were in older partitions before. While messages stored there are
within the window, the leaders of those partitions are asked for their ids as well (`node.replicas.remote_dedup`): a
message that was stored there and whose ack was lost comes here when it is sent again.

The log is read backwards from its end until the deduplication window begins, or until the limit of ids is reached. Of a
batch that has no ids only the header is read. The window is measured by the timestamps in the log, which never
decrease; so the time by which ids are forgotten never goes back, even if the clock does.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from penstock.base import limits
from penstock.base.partitioning import PartitionBy
from penstock.batch import codec
from penstock.batch.header import MAY_HOLD_IDS, BatchHeader
from penstock.commitlog import LogView
from penstock.hot.message_ids import MessageIds
from penstock.ingest.admission import AdmissionRules
from penstock.ingest.dedup import Dedup
from penstock.metadata.image import KeyBoundary, StreamState
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.step import DiskWork, Lane, Step


class ReadIds:
    """Read the ids of messages no older than `since_us` from the end of a log; in a disk thread."""

    def __init__(self, view: LogView, since_us: int, ids_max: int) -> None:
        self._view = view
        self._since_us = since_us
        self.ids = MessageIds(ids_max)

    def run(self) -> None:
        """RemoteError corrupt_range, OSError."""
        view, ids = self._view, self.ids
        if view.log_start == view.log_end:
            return
        # Include the last message in any case: a publisher may expect a certain last id, however old it is.
        start = min(view.offset_at(self._since_us, end=view.log_end), view.log_end - 1)
        for _, data in view.batches(start, view.log_end, reverse=True, wants=_may_hold_ids):
            rows = codec.check_values(data)
            ids.note_before(rows.asked().ids, codec.offsets(data), codec.timestamps(data), view.log_start)
            if ids.is_full:
                break
        ids.expire(self._since_us)


def _may_hold_ids(header: BatchHeader) -> bool:
    return bool(header.flags & MAY_HOLD_IDS)


def read_ids(
    stream: StreamState, number: int, view: LogView, rules: AdmissionRules, now_us: int, step: Step
) -> Dedup | None:
    """Have the message ids in a log read; return what is known of them so far, None without a window.

    `number`: the partition; `now_us`: timestamp that a message written now would get.
    """
    window_us, ids_max = rules.dedup
    if window_us is None:
        return None
    donors = _donors(stream, number, now_us - window_us)
    dedup = Dedup(window_us, ids_max, now_us, _marks(stream, number), donors)
    forget_purged(dedup, stream)
    work = ReadIds(view, dedup.since_us, dedup.ids_max)

    def done(error: Exception | None) -> None:
        if error is None:
            dedup.known(work.ids)
        else:
            dedup.failure = f"the message ids in the log cannot be read: {as_remote_error(error)}"

    step.disk.append(DiskWork(Lane.READ, work.run, done))
    return dedup


def is_outdated(dedup: Dedup, rules: AdmissionRules, stream: StreamState, number: int) -> bool:
    """True if the window, the limit or the marks have changed: older ids, or those of other partitions, may count."""
    return (dedup.window_us, dedup.ids_max) != rules.dedup or dedup.marks != _marks(stream, number)


def forget_purged(dedup: Dedup, stream: StreamState) -> None:
    """Forget ids of messages that were truncated on request in older partitions, as those partitions do.

    After an unclean election another message may stand at such an offset, and is stored twice if it is sent again. That
    is the lesser evil: a purged message that is sent again would otherwise be acked and not stored.
    """
    for one in stream.truncated:
        dedup.forget_elsewhere(one.partition, one.before)


def _step(stream: StreamState, number: int) -> tuple[int, int] | None:
    """Return the partition counts before and after this one was added; None if no keys have moved to it."""
    steps = pairwise(stream.counts) if stream.moves_keys else ()
    return next(((before, after) for before, after in steps if before <= number < after), None)


def _marks(stream: StreamState, number: int) -> tuple[KeyBoundary, ...]:
    step = _step(stream, number)
    return () if step is None else tuple(stream.marked(step[1]).values())


def _donors(stream: StreamState, number: int, since_us: int) -> Mapping[int, int]:
    """Return the older partitions whose messages no older than `since_us` may be sent again to this one, each with the
    offset below which that holds.

    With a subject for each partition, messages without a key are still taken where they came before.
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
