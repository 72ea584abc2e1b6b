"""Read a segment file directly from disk: complete, verified batches only, also while a broker appends to it.

Any Arrow reader can open the file, too, but it cannot know where the last complete batch ends while a writer is active,
nor whether a bit has flipped. This reader checks each batch's CRC-32C before Arrow sees it.

A file differs from its stream at both ends: it may hold rows below the log start offset, which are removed with the
whole file, and rows that are not committed yet. Only the broker knows these two offsets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.base.errors import CorruptionError
from penstock.batch.codec import PREFIX_BYTES, check_rows, read_header, verify
from penstock.batch.header import BatchHeader
from penstock.batch.schema import SCHEMA_BYTES, arrow_schema, check_schema_message

if TYPE_CHECKING:
    import pyarrow as pa


_SEGMENT = re.compile(r"(\d{20})(?:\.([1-9]\d{0,8}))?\.arrows")


def open_segment(path: str | os.PathLike[str]) -> SegmentReader:
    """Open one segment file (`.arrows`) for reading; see SegmentReader.

    The file may hold more rows than the stream: rows below the log start offset, and rows not committed yet. OSError if
    it cannot be read, CorruptionError if it is no segment, RemoteError (unsupported_version) if it is newer.
    """
    return SegmentReader(Path(path))


def segment_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the segment files (`.arrows`) in a partition's folder that make up its log, in offset order.

    If the cleaner has just rewritten a segment, both versions may exist; only the newer one is returned. A last file
    that the broker has created, but not written to, is left out: it holds no messages. OSError.
    """
    newest: dict[int, tuple[int, Path]] = {}
    for path in Path(folder).iterdir():
        if (match := _SEGMENT.fullmatch(path.name)) is not None:
            base_offset, generation = int(match[1]), int(match[2] or 0)
            newest[base_offset] = max(newest.get(base_offset, (generation, path)), (generation, path))
    files = [newest[base_offset][1] for base_offset in sorted(newest)]
    # An index is written with the first sync: beside it, an empty file has lost what it held.
    if files and not files[-1].stat().st_size and not files[-1].with_suffix(".index").exists():
        files.pop()
    return files


class SegmentReader:
    """The batches of one segment file, in order. Iterating again continues where the last iteration ended.

    An incomplete batch (a writer is active, or the tail is torn) ends the iteration; a later iteration yields it once
    it is complete. A corrupt batch raises CorruptionError with the file and the position.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Unbuffered: a buffer could return bytes read before the writer had written them.
        self._file: FileIO = path.open("rb", buffering=0)
        try:
            self.stream_id, self.partition = check_schema_message(self._read(0, SCHEMA_BYTES), file=str(path))
        except BaseException:
            self._file.close()
            raise
        self._position = SCHEMA_BYTES

    @property
    def schema(self) -> pa.Schema:
        """Schema with the six columns of the log."""
        return arrow_schema()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield each complete batch as a pyarrow RecordBatch."""
        for header, data in self.messages():
            position = self._position - header.size_bytes
            try:
                rows = check_rows(data, file=str(self._path), position=position)
            except CorruptionError:
                self._position = position  # corruption is not skipped: the next iteration raises again
                raise
            yield rows

    def messages(self) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yield the header and the verified bytes of each complete batch."""
        while True:
            size = os.fstat(self._file.fileno()).st_size
            if size - self._position < PREFIX_BYTES:
                return
            prefix = self._read(self._position, PREFIX_BYTES)
            try:
                header = read_header(prefix, file=str(self._path), position=self._position)
            except CorruptionError:
                if self._unwritten(prefix):
                    return
                raise
            if size - self._position < header.size_bytes:
                return
            data = self._read(self._position, header.size_bytes)
            verify(data, file=str(self._path), position=self._position)
            self._position += header.size_bytes
            yield header, data

    def _read(self, position: int, length: int) -> bytes:
        self._file.seek(position)
        parts = []
        while length > 0 and (part := self._file.read(length)):
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _unwritten(self, prefix: bytes) -> bool:
        # A file extended before its bytes arrived (a crash, or a file system's write order) reads as zeros.
        return not any(prefix)

    def read_all(self) -> pa.Table:
        """Return all remaining complete batches as one table."""
        import pyarrow as pa

        return pa.Table.from_batches(list(self), schema=self.schema)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
