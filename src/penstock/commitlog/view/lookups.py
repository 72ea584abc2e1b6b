"""Lookups in one segment: binary search over its entries."""

from __future__ import annotations

from bisect import bisect_left

from penstock.commitlog.files import index
from penstock.commitlog.files.index import BatchExtent, Entries
from penstock.commitlog.segment.segment import Segment


def start_keeping(segment: Segment, entries: Entries, room: int) -> int:
    """Return the base offset of the first batch from which the rest of the segment has at most `room` bytes."""
    # The first batch at or behind this position starts such a rest.
    number = bisect_left(
        range(entries.count), segment.size_bytes - room, key=lambda number: entries.extent(number).position
    )
    return segment.end_offset if number == entries.count else entries.extent(number).base_offset


def extent_of(entries: Entries, offset: int) -> BatchExtent | None:
    """Return the batch that holds `offset`, or the last one before it; None if there is none."""
    number = entries.last_at_or_below(offset)
    return entries.extent(number) if number >= 0 else None


def extents_from(entries: Entries, start: int, end: int, wanted: int) -> list[BatchExtent]:
    """Return the first batches, at most `wanted`, that hold offsets from `start` to `end`."""
    first = max(0, entries.last_at_or_below(start))
    found = [entries.extent(number) for number in range(first, min(first + wanted, entries.count))]
    return [extent for extent in found if extent.end_offset > start and extent.base_offset < end]


def extents_before(entries: Entries, start: int, end: int, wanted: int) -> list[BatchExtent]:
    """Return the last batches, at most `wanted`, that hold offsets from `start` to `end`, in reverse order."""
    last = entries.last_at_or_below(end - 1)
    found = [entries.extent(number) for number in range(last, max(last - wanted, -1), -1)]
    return [extent for extent in found if extent.end_offset > start and extent.base_offset < end]


def extent_across(entries: Entries, position: int) -> BatchExtent | None:
    """Return the first batch that ends behind `position`."""
    number = index.last_ending_at_or_below_position(entries, position) + 1
    return entries.extent(number) if number < entries.count else None
