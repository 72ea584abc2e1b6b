"""Validates batches that a follower fetched from the leader, before any of them is written.

Rules: bytes from a peer are untrusted. All are checked first, so a range is accepted or rejected as a whole, with the
place of the first error: a corrupt answer is no corruption of this log. Accepted batches are written byte for byte.

| checked of each batch | against                                                            |
|-----------------------|--------------------------------------------------------------------|
| bounds, layout, CRC   | itself                                                             |
| base offset           | the end of the previous batch; of the first one, log_end           |
| timestamps            | those of the previous batch: they never decrease                   |
| leader epoch          | that of the previous batch: it never decreases, and is at least 1  |

A leader's cleaner merges batches, so its first batch may begin before log_end and end behind it: only the rest of it is
taken (`without_overlap`). The follower's own batches are not truncated for it: they may be merged, too, at other
places, and readers have seen them. If compaction has left no row in that rest, the follower's last batch is extended to
cover it (`extended`): it is truncated and appended again. If the log is empty, `truncate_to` says from where to fetch
again. It may be below log_start: then call `Log.reset` with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from penstock.base.errors import CorruptionError
from penstock.batch import codec
from penstock.batch.header import NO_RUN, BatchHeader
from penstock.commitlog.errors import RangeRefusedError
from penstock.vfs import Buffer

_leader_epoch = attrgetter("leader_epoch")


class FetchedAppend(NamedTuple):
    """Result of appending a range: the new log end offset and what was written, perhaps only a part."""

    log_end: int
    size_bytes: int
    batches: int


class AppendPoint(NamedTuple):
    """State that the next batch must continue."""

    end_offset: int
    max_timestamp_us: int
    leader_epoch: int  # 0: there was no batch yet


def checked(data: memoryview, before: AppendPoint) -> list[BatchHeader]:
    """Return the headers of the batches in `data` if all are valid and in order; otherwise raise RangeRefusedError."""
    headers: list[BatchHeader] = []
    position = 0
    while position < len(data):
        try:
            prefix = codec.read_header(data[position : position + codec.PREFIX_BYTES])
            header = codec.verify(data[position : position + prefix.size_bytes])
        except CorruptionError as error:
            reason = f"expected {error.expected}, found {error.found}"
            raise RangeRefusedError(position + error.position, reason) from None
        if (misfit := _misfit(header, before)) is not None:
            is_merged = not headers and header.base_offset < before.end_offset < header.end_offset
            raise RangeRefusedError(position, misfit, truncate_to=header.base_offset if is_merged else None)
        headers.append(header)
        position += header.size_bytes
        before = AppendPoint(header.end_offset, header.max_timestamp_us, header.leader_epoch)
    return headers


def without_overlap(data: memoryview, end_offset: int) -> memoryview | None:
    """Drop the first batch's rows before `end_offset` if that lies inside it; None if no row of it is left.

    Batches of producers and runs are left whole: they are never merged, and a part of one would claim something else.
    The rest of a compressed batch is plain. RangeRefusedError if the batch's rows are invalid.
    """
    try:
        prefix = codec.read_header(data[: codec.PREFIX_BYTES])
        is_inside = prefix.base_offset < end_offset < prefix.end_offset
        if not is_inside or prefix.producer_id or prefix.run_id != NO_RUN:
            return data
        codec.verify(data[: prefix.size_bytes])
    except CorruptionError:
        return data  # `checked` reports the error
    try:
        rest = codec.rest_of(data[: prefix.size_bytes], end_offset)
    except CorruptionError as error:  # own batches are not truncated for it
        raise RangeRefusedError(error.position, f"expected {error.expected}, found {error.found}") from None
    return None if rest is None else memoryview(rest + data[prefix.size_bytes :])


def extended(data: memoryview, last: tuple[BatchHeader, Buffer] | None) -> RangeRefusedError:
    """Return the error for a range whose first batch has no row beyond this log's end. `last`: this log's last batch,
    uncompressed; None if it is empty.
    """
    first = codec.read_header(data[: codec.PREFIX_BYTES])
    reason = f"the batch from {first.base_offset} to {first.end_offset} has no row beyond this log's end"
    if last is None:
        return RangeRefusedError(0, reason, truncate_to=first.base_offset)
    header, rows = last
    if header.leader_epoch != first.leader_epoch or header.producer_id or header.run_id != NO_RUN:
        return RangeRefusedError(0, f"{reason}; this log's last batch is of another leader epoch, or a producer's")
    message = bytearray(rows)
    codec.covering(message, header.base_offset, first.end_offset)
    return RangeRefusedError(
        0, reason, truncate_to=header.base_offset, instead=bytes(message + data[first.size_bytes :])
    )


def _misfit(header: BatchHeader, before: AppendPoint) -> str | None:
    if header.base_offset != before.end_offset:
        return f"expected offset {before.end_offset}, found {header.base_offset}"
    if header.min_timestamp_us < before.max_timestamp_us:
        return f"expected a timestamp from {before.max_timestamp_us} on, found {header.min_timestamp_us}"
    if header.leader_epoch < max(1, before.leader_epoch):
        return f"expected leader epoch {max(1, before.leader_epoch)} or a later one, found {header.leader_epoch}"
    return None


def by_epoch(data: memoryview, headers: list[BatchHeader]) -> Iterator[tuple[int, memoryview, list[BatchHeader]]]:
    """Split the range by leader epoch: yield the epoch, the bytes and the headers."""
    position = 0
    for leader_epoch, group in groupby(headers, key=_leader_epoch):
        part = list(group)
        end = position + sum(header.size_bytes for header in part)
        yield leader_epoch, data[position:end], part
        position = end


def as_bytes(data: Buffer) -> memoryview:
    """Return `data` as a view of single bytes."""
    return memoryview(data).cast("B")
