"""Writes the file that replaces a corrupt segment, batch by batch, checking that each continues the previous one."""

from __future__ import annotations

from penstock.base.errors import CorruptionError, OperationalError
from penstock.batch import codec
from penstock.batch.header import NO_RUN, BatchHeader
from penstock.batch.schema import SCHEMA_BYTES
from penstock.vfs import Buffer, File


class RepairError(OperationalError):
    """The log cannot be repaired with what was offered; it is unchanged."""


class NoRowError(RepairError):
    """Compaction has left no row from `offset` to `end_offset`, or to the end of the file (None), and no batch in the
    file may cover these offsets: a batch of a neighbouring segment may.
    """

    def __init__(self, offset: int, end_offset: int | None) -> None:
        super().__init__(f"no row is left from {offset} {'on' if end_offset is None else f'to {end_offset}'}")
        self.end_offset = end_offset


class RepairedFile:
    """Writes batches in order. Offsets without rows after compaction are covered by the previous batch or by the next
    one, so the last batch is held back until the next one is known.

    Where the log starts inside a batch, the file starts where that batch starts, as in a log that was never corrupt: a
    producer's batch cannot be split, and of another batch the earlier rows may be the only ones left.
    """

    def __init__(self, file: File, lowest_offset: int) -> None:
        """`lowest_offset`: the file starts no lower."""
        self.base_offset: int | None = None  # of the first batch
        self._file = file
        self._lowest_offset = lowest_offset
        self._position = SCHEMA_BYTES
        self._waiting: tuple[BatchHeader, Buffer] | None = None
        self._empty_start: int | None = None  # no row was added from there on
        self._last_timestamp_us = 0
        self._last_epoch = 0

    def add(self, header: BatchHeader, data: Buffer) -> None:
        """Add the next batch unchanged. RepairError if it does not continue the previous one."""
        if header.min_timestamp_us < self._last_timestamp_us or header.leader_epoch < self._last_epoch:
            raise RepairError(
                f"the batch from {header.base_offset} on is of an earlier time or leader epoch than the one before"
            )
        self._last_timestamp_us, self._last_epoch = header.max_timestamp_us, header.leader_epoch
        if self._empty_start is not None:
            if not _may_cover(header, header):
                raise NoRowError(self._empty_start, header.base_offset)
            message = bytearray(data)
            header, data = codec.covering(message, self._empty_start, header.end_offset), message
            self._empty_start = None
        self._write_waiting()
        if self.base_offset is None:
            self.base_offset = header.base_offset
        self._waiting = header, data

    def add_part(self, header: BatchHeader, data: Buffer, begin: int, end: int) -> None:
        """Add the batch's part from offset `begin` to `end`; of the first batch, all before, too. RepairError."""
        if self.base_offset is None and self._empty_start is None:
            begin = max(header.base_offset, self._lowest_offset)
        if (header.base_offset, header.end_offset) == (begin, end):
            self.add(header, data)
            return
        if not _may_cover(header, header):
            raise RepairError(f"a producer's batch from {header.base_offset} on overlaps a batch that is here")
        try:
            part = codec.part_of(data, begin, end)
        except CorruptionError as error:
            raise RepairError(f"a replica offers an invalid batch: {error}") from None
        if part is not None:
            self.add(codec.read_header(part), part)
        elif self._waiting is None:
            self._empty_start = begin if self._empty_start is None else self._empty_start
        elif _may_cover(self._waiting[0], header):
            message = bytearray(self._waiting[1])
            self._waiting = codec.covering(message, self._waiting[0].base_offset, end), message
        else:  # the next batch may cover it: `add` checks
            self._write_waiting()
            self._empty_start = begin

    def end(self) -> None:
        """End the file. NoRowError."""
        if self._empty_start is not None:
            raise NoRowError(self._empty_start, None)
        self._write_waiting()

    def cut(self) -> int | None:
        """End the last file of the log; return the offset from which the log is truncated for lack of rows, or None."""
        offset, self._empty_start = self._empty_start, None
        self._write_waiting()
        return offset

    def restart(self) -> None:
        """Discard everything written so far."""
        self._waiting = self._empty_start = self.base_offset = None
        self._position = SCHEMA_BYTES
        self._file.truncate(SCHEMA_BYTES)

    def _write_waiting(self) -> None:
        if self._waiting is not None:
            self._file.write_at(self._position, self._waiting[1])
            self._position += len(self._waiting[1])
            self._waiting = None


def _may_cover(covering: BatchHeader, covered: BatchHeader) -> bool:
    """True if one batch may cover the other's offsets; batches of producers and runs may not."""
    is_plain = not covering.producer_id and covering.run_id == NO_RUN
    return is_plain and covering.leader_epoch == covered.leader_epoch
