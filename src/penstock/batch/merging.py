"""Merges several batch messages into one, for the cleaner.

Rules: rows keep their offsets and timestamps, and the merged batch covers the same offsets. Only adjacent messages of
one leader epoch are merged, and none of a producer or a run, since their headers identify them. Merged rows are checked
one by one before they are returned: one bad value offset would corrupt all others.
"""

from __future__ import annotations

from functools import reduce
from itertools import accumulate
from operator import or_
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch import codec
from penstock.batch.codec import LAYOUT, Buffer
from penstock.batch.header import OF_ROWS, BatchHeader
from penstock.batch.layout import BODY_POSITION
from penstock.hot.columns import VarColumn
from penstock.hot.join import Gathered, Joiner
from penstock.hot.message import MessageChecker

_PIECE_BYTES = 1 * limits.MIB  # in one call: it holds the interpreter lock
_JOINER = Joiner(LAYOUT, MessageChecker(LAYOUT))


class _Piece(NamedTuple):
    """Some of the messages to merge."""

    offset: int  # base offset of the first
    gathered: Gathered

    @property
    def begins(self) -> list[int]:
        return self.gathered.begins

    @property
    def end(self) -> int:
        return self.gathered.end


class Merged(NamedTuple):
    """The next batch: `data` is one message, made of `sources` messages of `size_bytes` bytes in total."""

    data: Buffer
    header: BatchHeader
    sources: int
    size_bytes: int


def next_merged(raw: memoryview, offset: int, *, rows_max: int, bytes_max: int) -> Merged:
    """Merge the batches at the start of `raw`, as many as fit into `rows_max` rows and `bytes_max` bytes of body.

    A batch that cannot be merged is returned as a view of `raw`. The first batch is complete and begins at `offset`.
    CorruptionError, without a file and with its position in `raw`, if it is invalid.
    """
    first = codec.read_header(raw)
    pieces = _pieces(raw, offset, first.leader_epoch, rows_max, bytes_max)
    sources = sum(len(piece.begins) for piece in pieces)
    if sources < 2:
        size_bytes = first.size_bytes
        header = codec.verify(raw[:size_bytes])
        if header.base_offset != offset:
            raise CorruptionError("", 0, f"offset {offset}", str(header.base_offset))
        return Merged(raw[:size_bytes], header, 1, size_bytes)
    data, header = _joined(raw, pieces, first.leader_epoch)
    codec.check_values(data)
    return Merged(data, header, sources, pieces[-1].end)


def _pieces(raw: memoryview, offset: int, leader_epoch: int, rows_max: int, bytes_max: int) -> list[_Piece]:
    """Find the messages to merge, piece by piece."""
    pieces: list[_Piece] = []
    rows = position = count = 0
    while rows < rows_max:
        room = bytes_max - (position - BODY_POSITION * count)
        if room <= BODY_POSITION:
            break
        found = _JOINER.gather(
            raw,
            position,
            offset,
            (offset, limits.OFFSET_MAX),
            rows_max - rows,
            min(_PIECE_BYTES, room),
            _PIECE_BYTES,
            leader_epoch,
            OF_ROWS,
        )
        if not found.begins:
            break
        pieces.append(_Piece(offset, found))
        rows, count = rows + found.rows, count + len(found.begins)
        position, offset = found.end, found.end_offset
    return pieces


def _joined(raw: memoryview, pieces: list[_Piece], leader_epoch: int) -> tuple[Buffer, BatchHeader]:
    """Join all pieces into one message; each piece is joined separately first, so that no call takes long."""
    if len(pieces) > 1:
        messages = [_joined(raw, [piece], leader_epoch) for piece in pieces]
        raw = memoryview(b"".join([data for data, _ in messages]))
        ends = [*accumulate(header.size_bytes for _, header in messages)]
        whole = Gathered(
            [0, *ends[:-1]],
            sum(header.count for _, header in messages),
            ends[-1],
            messages[-1][1].end_offset,
            reduce(or_, (header.flags for _, header in messages)),
            messages[0][1].min_timestamp_us,
            messages[-1][1].max_timestamp_us,
        )
    else:
        whole = pieces[0].gathered
    joined = _JOINER.join(raw, whole)
    if isinstance(joined, int):
        raise CorruptionError("", joined, "value offsets from 0 to the end of the values", "others")
    columns = [
        VarColumn(one.null_count, memoryview(one.validity), memoryview(one.value_offsets), memoryview(one.data))
        for one in joined.columns
    ]
    return codec.assemble(
        joined.offsets,
        joined.timestamps,
        columns,
        whole.rows,
        offset_range=(pieces[0].offset, whole.end_offset),
        timestamp_range_us=(whole.min_timestamp_us, whole.max_timestamp_us),
        leader_epoch=leader_epoch,
        flags=whole.flags,
    )
