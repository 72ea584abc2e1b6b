"""Assemble staged rows into one batch; a disk thread does it for each piece of a run.

Rules: rows are published only from the offsets that their publisher names, under the leader epoch it was told: other
rows may stand at the same offsets after an unclean election, and those are never published instead. The publisher's
order is kept. Everything is verified, and checked again against the rules of the target stream, whose config may have
changed. The result is a batch of our own making; nothing that a client has built is stored.
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
from penstock.hot.rows import HeaderRequests
from penstock.ingest.published import RunPiece
from penstock.messages import StagedRange
from penstock.node.partition.log_queries import RowRules, check_fit

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_COLUMNS = ("subject", "key", "value", "headers")


class AssemblePiece:
    """After `run`, `message` holds all rows in a batch of our own, and `asked` what the rows request."""

    def __init__(self, view: LogView, staged: Sequence[StagedRange], rules: RowRules, piece: RunPiece) -> None:
        """`view`: of the log with all the staged rows; `piece`: the identity under which they are published."""
        self.message = bytearray()
        self.asked: HeaderRequests | None = None
        self._view = view
        self._staged = staged
        self._rules = rules
        self._piece = piece

    def run(self) -> None:
        """Assemble the batch. RemoteError staged_lost, too_large, bad_request, corrupt_range; OSError."""
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
        if self._rules.values is not None:
            check_fit(codec.read_rows(self.message), self._rules.values)

    def _parts(self, staged: StagedRange) -> list[tuple[Buffer, int, int]]:
        """Return the batches that hold the rows, with the first row and the row end to take from each."""
        view, base, end = self._view, staged.base_offset, staged.end_offset
        if base < view.log_start:
            raise staged_rows_lost(staged, f"it has expired: what is staged begins at {view.log_start}")
        parts = []
        rows = 0
        for header, data in view.batches(base, end):
            if header.leader_epoch != staged.leader_epoch:
                raise staged_rows_lost(staged, f"other rows have these offsets, of leader epoch {header.leader_epoch}")
            self._check_batch(header)
            offsets = codec.offsets(data)
            first, last = bisect_left(offsets, base), bisect_left(offsets, end)
            parts.append((data, first, last))
            rows += last - first
        if rows != end - base:
            raise staged_rows_lost(staged, f"{rows} rows of {end - base} are left")
        return parts

    def _check_batch(self, header: BatchHeader) -> None:
        """Raise RemoteError bad_request if the rows were staged for another batch
        (`node.replicas.staged_retention`).
        """
        own = self._piece.query_id, self._piece.batch_id
        if header.run_id != NO_RUN and (header.run_id, header.producer_sequence) != own:
            batch = f"batch {header.producer_sequence} of query {header.run_id.hex()}"
            text = f"nothing was published: rows at {header.base_offset} were staged for {batch}, and for no other"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)


def check_size(staged: Sequence[StagedRange]) -> None:
    """Raise RemoteError bad_request if there are no rows, too_large if there are more than a batch may hold."""
    if any(one.end_offset <= one.base_offset for one in staged):
        raise RemoteError(ErrorCode.BAD_REQUEST, "nothing was published: a range of staged rows is empty")
    rows = sum(one.end_offset - one.base_offset for one in staged)
    if rows > limits.BATCH_ROWS_MAX:
        text = f"nothing was published: a piece of {rows} rows; the limit is {limits.BATCH_ROWS_MAX}"
        raise RemoteError(ErrorCode.TOO_LARGE, text, rows=rows)


def staged_rows_lost(staged: StagedRange, why: str) -> RemoteError:
    """Return the error for staged rows that can no longer be published."""
    place = f"what was staged from {staged.base_offset} to {staged.end_offset} in leader epoch {staged.leader_epoch}"
    return RemoteError(ErrorCode.STAGED_LOST, f"nothing was published: {place} no longer exists: {why}")


def _joined(parts: list[tuple[Buffer, int, int]]) -> pa.RecordBatch:
    import pyarrow as pa

    batches = [codec.check_rows(data).slice(first, last - first) for data, first, last in parts]
    (batch,) = pa.Table.from_batches(batches).select(_ROW_COLUMNS).combine_chunks().to_batches()
    return batch
