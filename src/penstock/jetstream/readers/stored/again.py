"""Messages that are delivered again: before new ones, in their order, and read in few bytes."""

from __future__ import annotations

from penstock.base import limits
from penstock.base.ids import Offset, StreamId
from penstock.jetstream.readers.chunks import COLUMNS, Chunk
from penstock.jetstream.readers.feed import Feed
from penstock.jetstream.readers.stored.led import LedConsumer
from penstock.messages import FetchRequest
from penstock.node.partition.partition import Shown

SPAN_MAX = 1_000
"""Offsets from the first to the last one that one read takes: between two that are farther apart nothing is read."""
READ_BYTES = 256 * limits.KIB
"""Values of one read at most, or one message."""
OFFSETS_AT_ONCE = 256
RUNS_LOOKED_AT = 10_000
"""Runs of deleted messages in one look for those that are gone."""


def request_of(led: LedConsumer, stream_id: int) -> FetchRequest:
    """Return the request for the next messages that are delivered again."""
    offsets = led.state.table.ready_offsets(0, OFFSETS_AT_ONCE)
    end = max(offset for offset in offsets if offset < offsets[0] + SPAN_MAX) + 1
    return FetchRequest(
        stream_id=StreamId(stream_id), offset=Offset(offsets[0]), end=Offset(end), bytes_max=READ_BYTES, columns=COLUMNS
    )


def chunk_of(feed: Feed, led: LedConsumer, offset: int) -> Chunk | None:
    """Return rows in memory in which a message is, if it still is there; None: they have to be read."""
    if (chunk := led.again) is not None and chunk.begin <= offset < chunk.end:
        chunk.mask(feed.hidden)
        return chunk
    led.again = None
    return feed.recent(offset)


def step_over(feed: Feed, led: LedConsumer, shown: Shown) -> bool:
    """Take messages that are gone out of those in hand; True if any were."""
    if led.checked_under is feed.version:
        return False
    led.checked_under = feed.version
    table = led.state.table
    if not table.count:
        return False
    gone = 0
    begin, end = table.floor_offset(), table.next_offset
    if begin < shown.log_start:
        gone += led.state.remove_range(begin, min(end, shown.log_start))
        begin = shown.log_start
    if shown.hidden is not None and begin < end and shown.hidden.any_in(begin, end):
        for number, (first, last) in enumerate(shown.hidden.runs(begin, end)):
            if number >= RUNS_LOOKED_AT:
                break  # the others are found when they are to be delivered again
            gone += led.state.remove_range(first, last)
    return gone > 0
