"""Numbers of the stored consumers that a broker leads, for its metrics. Nothing is asked or changed.

Rules: counters begin anew with each leadership. What is pending is known from memory: exactly, but for consumers with
filters while what was counted last does not hold any more, because messages were deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.jetstream.readers.feed import Feed
from penstock.jetstream.readers.reader import Reader
from penstock.jetstream.readers.running.registry import ReaderRegistry
from penstock.jetstream.readers.stored.led import LedConsumer
from penstock.node.partition.partition import Shown


class ConsumerNumbers(NamedTuple):
    """Numbers of one consumer under one leadership."""

    stream_id: int  # as JetStream's API has it: of one partition
    name: str
    is_durable: bool
    pending: int | None  # not delivered yet; None: not counted under this leadership
    ack_pending: int
    is_full: bool  # no new message is delivered until one is acked
    redelivered: int  # of those in hand, delivered more than once
    floor_offset: int
    pulls_waiting: int
    delivered: int
    redeliveries: int
    acks: dict[str, int]  # those that counted, by kind
    refused: dict[str, int]  # those that changed nothing, by reason
    letters_waiting: int
    letters: int


def consumer_numbers(registry: ReaderRegistry) -> Iterator[ConsumerNumbers]:
    """Yield the stored consumers of all streams; they may come and go between two of them."""
    for feed in registry.feeds():
        shown = feed.look()
        for reader in [*feed.readers.values()]:
            if (led := reader.led) is not None and shown is not None and not led.is_deleted:
                yield _numbers(feed, reader, led, shown)


def _numbers(feed: Feed, reader: Reader, led: LedConsumer, shown: Shown) -> ConsumerNumbers:
    table, letters = led.state.table, led.letters
    kinds = {"nak": table.naks, "in_progress": table.progressed, "term": table.terms}
    return ConsumerNumbers(
        stream_id=feed.stream_id,
        name=reader.name,
        is_durable=reader.config.is_durable,
        pending=_pending(reader, shown, table.parked),
        ack_pending=table.ack_pending,
        is_full=table.has_no_room(),
        redelivered=table.redelivered,
        floor_offset=table.floor_offset(),
        pulls_waiting=len(reader.pulls),
        delivered=table.delivered,
        redeliveries=table.redeliveries,
        acks={"ack": table.acked - sum(kinds.values()), **kinds},
        refused={"forged": table.forged, "stale": table.unknown, "late": table.late},
        letters_waiting=0 if letters is None else len(letters),
        letters=0 if letters is None else letters.stored,
    )


def _pending(reader: Reader, shown: Shown, parked: int) -> int | None:
    """Return how many messages a consumer has not delivered; None: it has filters, and nothing was counted yet."""
    cursor = reader.cursor
    start = max(cursor.next_offset, shown.log_start)
    if start >= shown.end:
        return parked
    left = shown.end - start - (0 if shown.hidden is None else shown.hidden.count_in(start, shown.end))
    if not reader.config.filters and cursor.next_offset >= cursor.resume_offset:
        return left + parked
    if reader.counted_under is None:
        return None
    return min(left, max(0, cursor.pending + cursor.filter.seen)) + parked
