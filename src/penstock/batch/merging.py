"""Several batch messages as one, for good: what the cleaner writes in their place.

Rules: rows keep their offsets and timestamps, and the merged batch covers what the others covered. Merged are only
messages that lie behind each other, of one leader epoch, none of them a producer's or of a run: those are asked for by
what their headers say. What was merged is checked row by row before it is handed out: one bad value offset would take
all the others with it.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch import codec
from penstock.batch.codec import LAYOUT, Buffer
from penstock.batch.header import MAY_HOLD_IDS, BatchHeader
from penstock.batch.layout import BODY_POSITION
from penstock.hot.columns import VarColumn
from penstock.hot.join import Gathered, Joiner
from penstock.hot.message import Checker

_PIECE_BYTES = 1 * limits.MIB  # gathered in one call: other threads of Python wait for its end
_JOINER = Joiner(LAYOUT, Checker(LAYOUT))


class Merged(NamedTuple):
    """The next batch: `data` is one message, made of `sources` of them that had `size_bytes` bytes together."""

    data: Buffer
    header: BatchHeader
    sources: int
    size_bytes: int


def next_merged(raw: memoryview, offset: int, *, rows_max: int, bytes_max: int) -> Merged:
    """The batches that `raw` begins with as one, as many as go into `rows_max` rows and `bytes_max` bytes of body.

    One that cannot be merged comes as it is: a view of `raw`. They begin at `offset`, and the first one is whole.
    CorruptionError, without a file and with its position in `raw`, if that is not sound.
    """
    first = codec.read_header(raw)
    gathered = _gathered(raw, offset, first.leader_epoch, rows_max, bytes_max)
    if len(gathered.begins) < 2:
        size_bytes = first.size_bytes
        header = codec.verify(raw[:size_bytes])
        if header.base_offset != offset:
            raise CorruptionError("", 0, f"offset {offset}", str(header.base_offset))
        return Merged(raw[:size_bytes], header, 1, size_bytes)
    joined = _JOINER.join(raw, gathered)
    if isinstance(joined, int):
        raise CorruptionError("", joined, "value offsets from 0 to the end of the values", "others")
    data, header = codec.assemble(
        joined.offsets,
        joined.timestamps,
        [
            VarColumn(one.null_count, memoryview(one.validity), memoryview(one.value_offsets), memoryview(one.data))
            for one in joined.columns
        ],
        gathered.rows,
        offset_range=(offset, gathered.end_offset),
        timestamp_range_us=(gathered.min_timestamp_us, gathered.max_timestamp_us),
        leader_epoch=first.leader_epoch,
        flags=gathered.flags,
    )
    codec.check_values(data)
    return Merged(data, header, len(gathered.begins), gathered.end)


def _gathered(raw: memoryview, offset: int, leader_epoch: int, rows_max: int, bytes_max: int) -> Gathered:
    """Those that go together, found piece by piece."""
    begins: list[int] = []
    rows = position = flags = min_timestamp_us = max_timestamp_us = 0
    end_offset = offset
    while rows < rows_max:
        room = bytes_max - (position - BODY_POSITION * len(begins))
        if room <= BODY_POSITION:
            break
        piece = _JOINER.gather(
            raw,
            position,
            end_offset,
            (offset, limits.OFFSET_MAX),
            rows_max - rows,
            min(_PIECE_BYTES, room),
            _PIECE_BYTES,
            leader_epoch,
            MAY_HOLD_IDS,
        )
        if not piece.begins:
            break
        if not begins:
            min_timestamp_us = piece.min_timestamp_us
        begins += piece.begins
        rows += piece.rows
        flags |= piece.flags
        position, end_offset, max_timestamp_us = piece.end, piece.end_offset, piece.max_timestamp_us
    return Gathered(begins, rows, position, end_offset, flags, min_timestamp_us, max_timestamp_us)
