"""Removes rows from the messages of a segment, for compaction.

Rules: rows keep their offsets and timestamps, and the output covers the same offsets as the input. A message has at
least one row. So offsets left without rows are covered by the previous message of the same leader epoch, or by the next
one. If an epoch has no row left in a segment, its last row stays, and so does the last row of a producer's batch, which
is never merged: `forced_keys` has the keys of such rows. Of a hidden row only offset and timestamp stay: it becomes a
cover, with an empty subject and nulls, and `covers` has its offset. Hidden rows are taken for it before others.

    epoch 1   [0 1 2][3 4 5][6 7]   epoch 2   [8 9]        kept: 1, 7
              [1     0 to 6][7 ]              [9, forced]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.batch import codec
from penstock.batch.codec import Buffer
from penstock.batch.header import NO_RUN, BatchHeader
from penstock.batch.merging import next_merged

if TYPE_CHECKING:
    import pyarrow as pa


class SealedMessage(NamedTuple):
    """One complete, sealed message."""

    data: Buffer
    header: BatchHeader


class _Spare(NamedTuple):
    """A row that stays if nothing else can cover the offsets."""

    row: pa.RecordBatch
    is_hidden: bool


class Thinner:
    """Takes the messages of one segment in order, each verified and merged as far as possible.

    The output is merged again, up to `rows_max` rows and `bytes_max` bytes.
    """

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self.forced_keys: list[bytes] = []  # of rows that should be removed but must stay
        self.covers: list[int] = []  # offsets of hidden rows that cover the offsets of others
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._epoch: int | None = None  # of the current run of messages that may cover each other's offsets
        self._last: SealedMessage | None = None  # the run's last message: it may cover the offsets that follow
        self._empty_start: int | None = None  # the run begins there and has no row yet
        self._spare: tuple[_Spare, BatchHeader] | None = None  # the row to force if no other is kept; the last message
        self._waiting = bytearray()  # messages to merge
        self._waiting_start = self._waiting_rows = 0

    def add(
        self, data: Buffer, header: BatchHeader, keep: pa.BooleanArray, shown: pa.BooleanArray | None = None
    ) -> list[SealedMessage]:
        """Keep the rows for which `keep` is true; return the messages finished by now. `shown`: false for hidden rows,
        which are not kept; None: none is hidden.
        """
        return self._merged(self._thinned(data, header, keep, shown), rest=False)

    def end(self) -> list[SealedMessage]:
        """Return the remaining messages."""
        return self._merged(self._end_of_run(), rest=True)

    def _merged(self, messages: list[SealedMessage], *, rest: bool) -> list[SealedMessage]:
        for data, header in messages:
            if not self._waiting:
                self._waiting_start = header.base_offset
            self._waiting += data
            self._waiting_rows += header.count
        if not rest and not self._are_enough(len(self._waiting)):
            return []
        done = []
        raw = memoryview(bytes(self._waiting))
        while raw and (rest or self._are_enough(len(raw))):
            merged = next_merged(raw, self._waiting_start, rows_max=self._rows_max, bytes_max=self._bytes_max)
            done.append(SealedMessage(merged.data, merged.header))
            raw = raw[merged.size_bytes :]
            self._waiting_start = merged.header.end_offset
            self._waiting_rows -= merged.header.count
        self._waiting = bytearray(raw)
        return done

    def _are_enough(self, size_bytes: int) -> bool:
        return self._waiting_rows >= self._rows_max or size_bytes >= self._bytes_max

    def _thinned(
        self, data: Buffer, header: BatchHeader, keep: pa.BooleanArray, shown: pa.BooleanArray | None
    ) -> list[SealedMessage]:
        assert len(keep) == header.count, (len(keep), header.count)
        if header.producer_id or header.run_id != NO_RUN:
            return [*self._end_of_run(), self._alone(data, header, keep, shown)]
        done: list[SealedMessage] = []
        if self._epoch != header.leader_epoch:
            done = self._end_of_run()
            self._epoch = header.leader_epoch
        kept = keep.true_count
        if not kept:
            self._pass_over(data, header, shown)
            return done
        if self._last is not None:
            done.append(self._last)
        start = header.base_offset if self._empty_start is None else self._empty_start
        if kept == header.count and start == header.base_offset:
            self._last = SealedMessage(data, header)
        else:
            rows = codec.check_rows(data).filter(keep)
            self._last = message_of(rows, header, (start, header.end_offset))
        self._empty_start = self._spare = None
        return done

    def _pass_over(self, data: Buffer, header: BatchHeader, shown: pa.BooleanArray | None) -> None:
        """Handle a message of which no row is kept."""
        if self._last is not None:
            message = bytearray(self._last.data)
            self._last = SealedMessage(
                message, codec.covering(message, self._last.header.base_offset, header.end_offset)
            )
            return
        if self._empty_start is None:
            self._empty_start = header.base_offset
        spare = _spare_of(codec.check_rows(data), shown)
        if self._spare is not None and self._spare[0].is_hidden and not spare.is_hidden:
            spare = self._spare[0]
        self._spare = spare, header

    def _alone(
        self, data: Buffer, header: BatchHeader, keep: pa.BooleanArray, shown: pa.BooleanArray | None
    ) -> SealedMessage:
        if keep.true_count == header.count:
            return SealedMessage(data, header)
        rows = codec.check_rows(data)
        rows = rows.filter(keep) if keep.true_count else self._forced(_spare_of(rows, shown))
        return message_of(rows, header, (header.base_offset, header.end_offset))

    def _end_of_run(self) -> list[SealedMessage]:
        """End a run of messages that may cover each other; return its last message."""
        done: list[SealedMessage] = []
        if self._last is not None:
            done = [self._last]
        elif self._spare is not None:
            assert self._empty_start is not None
            spare, header = self._spare
            done = [message_of(self._forced(spare), header, (self._empty_start, header.end_offset))]
        self._epoch = self._last = self._empty_start = self._spare = None
        return done

    def _forced(self, spare: _Spare) -> pa.RecordBatch:
        if spare.is_hidden:
            self.covers.append(spare.row.column("offset")[0].as_py())
            return _cover(spare.row)
        self.forced_keys.append(spare.row.column("key")[0].as_py())
        return spare.row


def _spare_of(rows: pa.RecordBatch, shown: pa.BooleanArray | None) -> _Spare:
    """Return the last hidden row; without one, the last row."""
    import pyarrow.compute as pc

    if shown is not None and shown.false_count:
        last = pc.indices_nonzero(pc.invert(shown))[-1].as_py()
        return _Spare(rows.slice(last, 1), True)
    return _Spare(rows.slice(rows.num_rows - 1), False)


def last_as_cover(data: Buffer, header: BatchHeader) -> SealedMessage:
    """Return a verified, plain message with nothing but offset and timestamp of its last row."""
    import pyarrow as pa

    rows = codec.check_rows(data)
    parts = [rows.slice(0, header.count - 1), _cover(rows.slice(header.count - 1))]
    whole = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    return message_of(whole, header, (header.base_offset, header.end_offset))


def _cover(row: pa.RecordBatch) -> pa.RecordBatch:
    """Return the row with nothing but its offset and timestamp."""
    import pyarrow as pa

    subject, *others = row.schema.types[2:]
    empty = [pa.array([""], subject), *(pa.nulls(1, one) for one in others)]
    return pa.RecordBatch.from_arrays([*row.columns[:2], *empty], schema=row.schema)


def message_of(rows: pa.RecordBatch, header: BatchHeader, offset_range: tuple[int, int]) -> SealedMessage:
    """Assemble a message of these rows with the rest of the header unchanged."""
    offsets, timestamps = (_numbers(rows.column(number)) for number in (0, 1))
    times = timestamps.cast("q")
    data, new = codec.assemble(
        offsets,
        timestamps,
        [codec.var_column(rows.column(number)) for number in range(2, rows.num_columns)],
        rows.num_rows,
        offset_range=offset_range,
        timestamp_range_us=(times[0], times[-1]),
        leader_epoch=header.leader_epoch,
        flags=header.flags,
        producer=codec.producer_of(header),
    )
    return SealedMessage(data, new)


def _numbers(column: pa.Array) -> memoryview:
    """Return a numeric column's values as bytes."""
    _, data = column.buffers()
    begin = 8 * column.offset
    return memoryview(data).cast("B")[begin : begin + 8 * len(column)]
