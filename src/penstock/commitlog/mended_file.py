"""The file that takes a damaged segment's place, while it is written: batch after batch, each of which must go on."""

from __future__ import annotations

from penstock.base.errors import CorruptionError, OperationalError
from penstock.batch import codec
from penstock.batch.header import NO_RUN, BatchHeader
from penstock.batch.schema import SCHEMA_BYTES
from penstock.vfs import Buffer, File


class MendingError(OperationalError):
    """The log cannot be mended with what was offered; it is as it was."""


class NoRowError(MendingError):
    """Compaction has left no row from `offset` up to `end_offset`, or to the end of the file (None), and no batch in it
    may cover them: one of the segment before, or behind it, may.
    """

    def __init__(self, offset: int, end_offset: int | None) -> None:
        super().__init__(f"no row is left from {offset} {'on' if end_offset is None else f'to {end_offset}'}")
        self.end_offset = end_offset


class MendedFile:
    """Writes batches one after the other. Offsets of which compaction has left no row are covered by the batch before
    them, or by the one behind: so the last one waits until it is known what follows.

    Where the log begins in the midst of a batch, the file begins where that one does, as in a log that was never
    damaged: a producer's batch says what it holds, and of another one the rows before may be all that is left.
    """

    def __init__(self, file: File, lowest_offset: int) -> None:
        """It begins no lower than at `lowest_offset`."""
        self.base_offset: int | None = None  # of the first one
        self._file = file
        self._lowest_offset = lowest_offset
        self._position = SCHEMA_BYTES
        self._waiting: tuple[BatchHeader, Buffer] | None = None
        self._empty_start: int | None = None  # from there on no row has come yet
        self._last_timestamp_us = 0
        self._last_epoch = 0

    def add(self, header: BatchHeader, data: Buffer) -> None:
        """The next one, as it is. MendingError if it does not go on."""
        if header.min_timestamp_us < self._last_timestamp_us or header.leader_epoch < self._last_epoch:
            raise MendingError(
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
        """The next one, or what of it lies from offset `begin` up to `end`; of the first one, all up to there.
        MendingError.
        """
        if self.base_offset is None and self._empty_start is None:
            begin = max(header.base_offset, self._lowest_offset)
        if (header.base_offset, header.end_offset) == (begin, end):
            self.add(header, data)
            return
        if not _may_cover(header, header):
            raise MendingError(f"a producer's batch from {header.base_offset} on lies across what is here")
        try:
            part = codec.part_of(data, begin, end)
        except CorruptionError as error:
            raise MendingError(f"what a replica offers is not sound: {error}") from None
        if part is not None:
            self.add(codec.read_header(part), part)
        elif self._waiting is None:
            self._empty_start = begin if self._empty_start is None else self._empty_start
        elif _may_cover(self._waiting[0], header):
            message = bytearray(self._waiting[1])
            self._waiting = codec.covering(message, self._waiting[0].base_offset, end), message
        else:  # what comes next may cover it: `add` looks
            self._write_waiting()
            self._empty_start = begin

    def end(self) -> None:
        """That was all. NoRowError."""
        if self._empty_start is not None:
            raise NoRowError(self._empty_start, None)
        self._write_waiting()

    def cut(self) -> int | None:
        """That was all, and nothing comes behind it: what has no row goes, if that was left to be covered; from where
        on.
        """
        offset, self._empty_start = self._empty_start, None
        self._write_waiting()
        return offset

    def restart(self) -> None:
        """What was written is given up: nothing of it counts."""
        self._waiting = self._empty_start = self.base_offset = None
        self._position = SCHEMA_BYTES
        self._file.truncate(SCHEMA_BYTES)

    def _write_waiting(self) -> None:
        if self._waiting is not None:
            self._file.write_at(self._position, self._waiting[1])
            self._position += len(self._waiting[1])
            self._waiting = None


def _may_cover(covering: BatchHeader, covered: BatchHeader) -> bool:
    """Whether one may cover the offsets of the other: a producer's batch, or one of a run, says what it holds."""
    is_plain = not covering.producer_id and covering.run_id == NO_RUN
    return is_plain and covering.leader_epoch == covered.leader_epoch
