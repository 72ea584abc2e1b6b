"""What a follower was sent by its leader: whole batches, looked at before any of them is written.

Rules: bytes of a peer are hostile. All of them are checked first, so that a range is either good as a whole or refused
as a whole, with the place of the first mistake: a corrupt answer is no damage of this log. What is good is written as
it came, byte for byte.

| checked of each batch | against                                                            |
|-----------------------|--------------------------------------------------------------------|
| bounds, layout, CRC   | itself                                                             |
| base offset           | the end of the one before it; of the first one, log_end            |
| timestamps            | those of the one before it: they never fall                        |
| leader epoch          | that of the one before it: it never falls, and is 1 at least       |

A leader's cleaner merges batches, so its first batch may begin before log_end and end behind it: of that one only the
rest is taken (`without_overlap`). What the follower has is not cut for it: that may be merged as well, in other places,
and readers have seen it. Where compaction has left no row of that rest, the follower's own last batch comes to cover it
(`extended`): it is cut off, and appended anew. Where there is none, `truncate_to` says from where on the log is to be
taken anew. It may be below log_start: then `Log.reset` to it.
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


class Appended(NamedTuple):
    """What was appended of a range, and where the log ends now. It may be a part of it, if the disk took no more."""

    log_end: int
    size_bytes: int
    batches: int


class Before(NamedTuple):
    """What the next batch must go on from."""

    end_offset: int
    max_timestamp_us: int
    leader_epoch: int  # 0: there was no batch yet


def checked(data: memoryview, before: Before) -> list[BatchHeader]:
    """The headers of the batches that `data` is made of, all of them sound and in order, or RangeRefusedError."""
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
        before = Before(header.end_offset, header.max_timestamp_us, header.leader_epoch)
    return headers


def without_overlap(data: memoryview, end_offset: int) -> memoryview | None:
    """The range without the rows of its first batch that come before `end_offset`, if that lies in the midst of it;
    None: it has no others.

    Batches of producers and runs are left whole: they are never merged, and a part would say something else. What is
    left of a compressed one is plain. RangeRefusedError if its rows are not sound.
    """
    try:
        prefix = codec.read_header(data[: codec.PREFIX_BYTES])
        is_inside = prefix.base_offset < end_offset < prefix.end_offset
        if not is_inside or prefix.producer_id or prefix.run_id != NO_RUN:
            return data
        codec.verify(data[: prefix.size_bytes])
    except CorruptionError:
        return data  # whoever checks it says what is wrong
    try:
        rest = codec.rest_of(data[: prefix.size_bytes], end_offset)
    except CorruptionError as error:  # what is here is not to be cut for it
        raise RangeRefusedError(error.position, f"expected {error.expected}, found {error.found}") from None
    return None if rest is None else memoryview(rest + data[prefix.size_bytes :])


def extended(data: memoryview, last: tuple[BatchHeader, Buffer] | None) -> RangeRefusedError:
    """What is to be done with a range whose first batch has no row behind the end of this log, whose last batch is
    `last`, plain; None: it has none.
    """
    first = codec.read_header(data[: codec.PREFIX_BYTES])
    reason = f"no row behind the end of this log, of those from {first.base_offset} to {first.end_offset}"
    if last is None:
        return RangeRefusedError(0, reason, truncate_to=first.base_offset)
    header, rows = last
    if header.leader_epoch != first.leader_epoch or header.producer_id or header.run_id != NO_RUN:
        return RangeRefusedError(0, f"{reason}, which come from another leadership here, or from a producer")
    message = bytearray(rows)
    codec.covering(message, header.base_offset, first.end_offset)
    return RangeRefusedError(
        0, reason, truncate_to=header.base_offset, instead=bytes(message + data[first.size_bytes :])
    )


def _misfit(header: BatchHeader, before: Before) -> str | None:
    if header.base_offset != before.end_offset:
        return f"expected offset {before.end_offset}, found {header.base_offset}"
    if header.min_timestamp_us < before.max_timestamp_us:
        return f"expected a timestamp from {before.max_timestamp_us} on, found {header.min_timestamp_us}"
    if header.leader_epoch < max(1, before.leader_epoch):
        return f"expected leader epoch {max(1, before.leader_epoch)} or a later one, found {header.leader_epoch}"
    return None


def by_epoch(data: memoryview, headers: list[BatchHeader]) -> Iterator[tuple[int, memoryview, list[BatchHeader]]]:
    """The range in parts of one leader epoch each: the epoch, the bytes, the headers."""
    position = 0
    for leader_epoch, group in groupby(headers, key=_leader_epoch):
        part = list(group)
        end = position + sum(header.size_bytes for header in part)
        yield leader_epoch, data[position:end], part
        position = end


def as_bytes(data: Buffer) -> memoryview:
    """`data` as single bytes, whatever it is a view of."""
    return memoryview(data).cast("B")
