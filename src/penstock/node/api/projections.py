"""Fetches of some columns or subjects: a search in a disk thread, on an immutable view of the log.

Rules: a search goes batch by batch through committed rows, up to PROJECTED_SOURCE_BYTES_MAX, or until it has enough
rows. One of some subjects goes from each place where the subject indexes leave a match possible to the next; the answer
covers what lies between. It verifies what it reads before use; small batches are read and searched many at a time,
without per-batch work in the interpreter. Other batches (compressed, corrupt, wanted only in part, file removed) it
reads one by one from the view, which reports corruption as for any reader. Corruption after rows that were found is
left to the next fetch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.batch import codec, projecting
from penstock.batch.projecting import Projection
from penstock.commitlog import LogView, Slice, SubjectRanges
from penstock.commitlog.view import NEVER_OFFSET
from penstock.messages import FetchRequest
from penstock.node.partition.log_queries import Query, QueryGivenUpError
from penstock.vfs import File, Vfs

if TYPE_CHECKING:
    import pyarrow as pa


_PIECE_MESSAGES = 4
"""Number of larger messages per read: the last one of a piece is mostly cut off and read again."""


class Project(Query):
    """Runs `request` on a log up to `visible_end`; the result is `raw`, which covers the log up to `end_offset`."""

    def __init__(
        self,
        view: LogView,
        vfs: Vfs,
        visible_end: int,
        request: FetchRequest,
        *,
        is_indexed: bool = False,
        rows_max: int | None = None,
    ) -> None:
        """`is_indexed`: subject indexes tell which batches need not be read. `rows_max`: so many rows are enough."""
        super().__init__(view)
        self.raw = b""
        self.raw_crc: int | None = None  # None without rows
        self.end_offset = int(request.offset)
        self.last_epoch: int | None = None  # of the last batch read
        self._vfs = vfs
        self._file: File | None = None
        self._visible_end = visible_end
        self._request = request
        # the rows that are left
        self._wanted = (int(request.offset), visible_end if request.end is None else min(request.end, visible_end))
        self._projection = Projection(request.columns, request.subjects, view.hidden or None)
        self._found: list[pa.RecordBatch] = []
        self._found_bytes = self._found_rows = 0
        self._rows_max = rows_max
        subjects = request.subjects if is_indexed else None
        self._ranges = None if subjects is None else SubjectRanges(view, subjects)
        self._wanted_end = NEVER_OFFSET  # of the present range

    def run(self) -> None:
        """As `search`."""
        raw, crc = projecting.to_stream(self.search(), self._projection.schema)
        if raw:
            self.raw, self.raw_crc = raw, crc

    def search(self) -> list[pa.RecordBatch]:
        """Return the rows. Raise RemoteError if no batch can be read, or for an error other than corruption."""
        hidden = self._view.hidden
        start, end = self._wanted
        try:
            while not self._is_enough:
                if hidden and (beyond := hidden.first_absent(self.end_offset)) > self.end_offset:
                    self.end_offset, self.last_epoch = beyond, None  # which epoch it is there was not read
                    continue
                before = self.end_offset
                if self._has_skipped_enough and before > start:
                    break
                self._skip()
                if self.end_offset > before or self._pick():
                    continue
                self._project_segment()
                if self.end_offset == before:
                    break
        except (RemoteError, CorruptionError) as error:
            is_damage = isinstance(error, CorruptionError) or error.code == ErrorCode.CORRUPT_RANGE
            if not is_damage or self.end_offset == start:
                raise
        finally:
            if self._file is not None:
                self._file.close()
        self._view.check_not_cut(self.end_offset)  # other rows may be there by now
        self.end_offset = min(self.end_offset, end)
        found, self._found = self._found, []
        return found

    @property
    def _is_enough(self) -> bool:
        return (
            self.end_offset >= self._wanted[1]
            or self.looked_bytes - self._index_bytes >= limits.PROJECTED_SOURCE_BYTES_MAX
            or self._found_bytes >= min(self._request.bytes_max, limits.PROJECTED_BYTES_MAX)
            or (self._rows_max is not None and self._found_rows >= self._rows_max)
        )

    @property
    def _has_skipped_enough(self) -> bool:
        segments = 0 if self._ranges is None else self._ranges.looked_segments
        return segments >= limits.SKIPPED_SEGMENTS_MAX or self._index_bytes >= limits.PROJECTED_SOURCE_BYTES_MAX

    @property
    def _index_bytes(self) -> int:
        return 0 if self._ranges is None else self._ranges.looked_bytes

    def _skip(self) -> None:
        """Go on to where the next match may be."""
        if self._ranges is None or self.end_offset >= self._view.log_end:
            return
        if not self._is_wanted:
            raise QueryGivenUpError
        before = self._index_bytes
        begin, self._wanted_end = self._ranges.at(self.end_offset)
        self.looked_bytes += self._index_bytes - before
        if begin > self.end_offset:
            self.end_offset, self.last_epoch = begin, None

    def _pick(self) -> bool:
        """Continue by the next batch if it is large and only single rows of it have to be read."""
        end = min(self._wanted[1], self._visible_end)
        if self._ranges is None or self.end_offset >= self._view.log_end:
            return False
        if (picked := self._ranges.pick(self.end_offset, end, self._projecting())) is None:
            return False
        self._take(picked.rows)
        self.looked_bytes += picked.read_bytes
        self._go_on_at(picked.end_offset, picked.leader_epoch)
        return True

    def _go_on_at(self, offset: int, epoch: int | None) -> None:
        """Note what was taken: no row below `offset` is wanted again, should the cleaner merge its batch."""
        self.end_offset, self.last_epoch = offset, epoch
        self._wanted = offset, self._wanted[1]

    def _project_segment(self) -> None:
        """Continue in one segment as long as there are small, sound batches; otherwise by one other batch."""
        room = limits.PROJECTED_SOURCE_BYTES_MAX - self.looked_bytes + self._index_bytes
        found = self._view.slice(self.end_offset, end=self._visible_end, bytes_max=room, wanted_end=self._wanted_end)
        if found is None:
            return
        projection = self._projecting()
        position, offset = found.position, found.base_offset
        end_position = found.position + found.length
        size = limits.PROJECTED_PIECE_BYTES
        while position < end_position and not self._is_enough:
            if not self._is_wanted:
                raise QueryGivenUpError
            raw = self._read(found.path, position, min(size, end_position - position))
            try:
                taken = projection.of_messages(raw, 0, offset, self._wanted)
            except CorruptionError:
                taken = None  # read again, one by one
            if taken is None:
                if (needed := _size_of_first(raw)) > len(raw) and needed <= end_position - position:
                    size = _piece_bytes(needed)
                    continue
                self._project_batch(found)
                return
            self._take(taken.rows)
            self.looked_bytes += taken.end
            position, offset = position + taken.end, taken.end_offset
            self._go_on_at(offset, codec.read_header(raw[taken.last_begin :]).leader_epoch)
            size = _piece_bytes(taken.end - taken.last_begin)

    def _project_batch(self, near: Slice) -> None:
        """Continue by one batch of any kind."""
        for header, data in self._batches(self.end_offset, self._visible_end, as_stored=True):
            self._take(self._projecting().of_message(data, self._wanted, file=near.path, position=near.position))
            self._go_on_at(header.end_offset, header.leader_epoch)
            return

    def _projecting(self) -> Projection:
        """Return the projection for the segment that comes next, once its file is chosen: see `LogView.hidden_in`."""
        hidden = self._view.hidden_at(self.end_offset) or None
        if hidden is not self._projection.hidden:
            self._projection = Projection(self._request.columns, self._request.subjects, hidden)
        return self._projection

    def _take(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._found.append(rows)
            self._found_bytes += rows.nbytes
            self._found_rows += rows.num_rows

    def _read(self, path: str, position: int, length: int) -> memoryview:
        """Return the bytes; none if the file was removed."""
        if self._file is None or self._file.path != path:
            if self._file is not None:
                self._file.close()
                self._file = None
            try:
                self._file = self._vfs.open(path, read_only=True)
            except FileNotFoundError:
                return memoryview(b"")
        return memoryview(self._file.read_at(position, length))


def _piece_bytes(message_bytes: int) -> int:
    """Return the read size for messages of that size."""
    several = min(_PIECE_MESSAGES * message_bytes, limits.PROJECTED_PIECE_BYTES_MAX)
    return max(limits.PROJECTED_PIECE_BYTES, several, message_bytes)


def _size_of_first(raw: memoryview) -> int:
    """Return the size of the message at the beginning of `raw`; 0 if it cannot be read."""
    try:
        return codec.read_header(raw).size_bytes
    except CorruptionError:
        return 0
