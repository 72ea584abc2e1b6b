"""Staged rows put together to one batch: what a disk thread does for a piece of a run.

Rules: only rows that were staged where their publisher says, under the leader epoch that he was told: others may lie at
the same offsets after an unclean election, and those are never published for them. They come in his order. All is
verified, and the rules of the stream that they are for are checked again: its config may be another one by now. What
comes out is a batch of our own making; nothing that a client has built is stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.batch import codec
from penstock.batch.codec import Buffer
from penstock.batch.header import NO_RUN, BatchHeader
from penstock.commitlog import LogView
from penstock.hot.rows import Asked
from penstock.ingest.published import Piece
from penstock.messages import StagedRange
from penstock.node.queries import RowRules

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_COLUMNS = ("subject", "key", "value", "headers")


class AssemblePiece:
    """`message` is then one of our own that holds all rows, and `asked` what they ask for."""

    def __init__(self, view: LogView, staged: Sequence[StagedRange], rules: RowRules, piece: Piece) -> None:
        """`view` is of the log in which they are staged, and has all of them; `piece`: what they are published as."""
        self.message = bytearray()
        self.asked: Asked | None = None
        self._view = view
        self._staged = staged
        self._rules = rules
        self._piece = piece

    def run(self) -> None:
        """RemoteError staged_lost, too_large, bad_request, corrupt_range; OSError."""
        check_size(self._staged)
        parts = [part for one in self._staged for part in self._parts(one)]
        size_bytes = sum(len(data) for data, _, _ in parts)
        if size_bytes > limits.BATCH_ROWS_BYTES_MAX and len(parts) > 1:
            text = f"nothing was published: a piece of {size_bytes} bytes; the limit is {limits.BATCH_ROWS_BYTES_MAX}"
            raise RemoteError(ErrorCode.TOO_LARGE, text, size_bytes=size_bytes)
        if len(parts) == 1 and parts[0][2] - parts[0][1] == codec.read_header(parts[0][0]).count:
            self.message = codec.own_copy(parts[0][0])
            rows = codec.check_values(self.message)
        else:
            self.message = codec.encode_arrow(_joined(parts))
            rows = codec.check_values(self.message)
        self.asked = self._rules.check(rows)

    def _parts(self, staged: StagedRange) -> list[tuple[Buffer, int, int]]:
        """Batches, and from which of their rows to which they are meant."""
        view, base, end = self._view, staged.base_offset, staged.end_offset
        if base < view.log_start:
            raise lost(staged, f"it has expired: what is staged begins at {view.log_start}")
        parts = []
        rows = 0
        for header, data in view.batches(base, end):
            if header.leader_epoch != staged.leader_epoch:
                raise lost(staged, f"other rows are there, of leader epoch {header.leader_epoch}")
            self._check_batch(header)
            offsets = codec.offsets(data)
            first, last = bisect_left(offsets, base), bisect_left(offsets, end)
            parts.append((data, first, last))
            rows += last - first
        if rows != end - base:
            raise lost(staged, f"{rows} rows of {end - base} are left")
        return parts

    def _check_batch(self, header: BatchHeader) -> None:
        """RemoteError bad_request: they were staged for another batch, with which they go (`node.staged_rows`)."""
        own = self._piece.query_id, self._piece.batch_id
        if header.run_id != NO_RUN and (header.run_id, header.producer_sequence) != own:
            batch = f"batch {header.producer_sequence} of query {header.run_id.hex()}"
            text = f"nothing was published: rows at {header.base_offset} were staged for {batch}, and for no other"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)


def check_size(staged: Sequence[StagedRange]) -> None:
    """RemoteError bad_request, too_large: no rows, or more than a batch may have."""
    if any(one.end_offset <= one.base_offset for one in staged):
        raise RemoteError(
            ErrorCode.BAD_REQUEST, "nothing was published: staged rows are named that end where they begin"
        )
    rows = sum(one.end_offset - one.base_offset for one in staged)
    if rows > limits.BATCH_ROWS_MAX:
        text = f"nothing was published: a piece of {rows} rows; the limit is {limits.BATCH_ROWS_MAX}"
        raise RemoteError(ErrorCode.TOO_LARGE, text, rows=rows)


def lost(staged: StagedRange, why: str) -> RemoteError:
    """What was staged cannot be published any more."""
    place = f"what was staged from {staged.base_offset} to {staged.end_offset} in leader epoch {staged.leader_epoch}"
    return RemoteError(ErrorCode.STAGED_LOST, f"nothing was published: {place} is not there any more: {why}")


def _joined(parts: list[tuple[Buffer, int, int]]) -> pa.RecordBatch:
    import pyarrow as pa

    batches = [codec.check_rows(data).slice(first, last - first) for data, first, last in parts]
    (batch,) = pa.Table.from_batches(batches).select(_ROW_COLUMNS).combine_chunks().to_batches()
    return batch
