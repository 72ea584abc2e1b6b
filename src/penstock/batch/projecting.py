"""Projection: selected columns of batches, optionally only rows on some subjects, as one Arrow stream.

Rules: only verified messages are read, CRC-32C included; value offsets and text are checked before Arrow follows them.
The stream has batches of up to BATCH_ROWS_MAX rows, however small the source batches were, without compression and
without schema metadata. The receiver trusts nothing of it: it checks the CRC-32C that came with it, then the schema,
then each batch.

Theory: most bytes of a log are values. Without them an answer is a small part of what was read, and costs mainly the
reading and checking.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch import codec, joining, masking
from penstock.batch.codec import Buffer
from penstock.batch.picking import RowPicker
from penstock.batch.schema import arrow_schema
from penstock.batch.subject_patterns import SubjectPatterns
from penstock.hot.crc import crc32c
from penstock.hot.join import Gathered
from penstock.live.row_set import RowSet

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSET = 0  # column numbers
_SUBJECT = 2


class Taken(NamedTuple):
    """Rows taken from adjacent messages."""

    rows: pa.RecordBatch  # may have no rows
    end: int  # position of the next message
    end_offset: int
    last_begin: int  # position of the last message taken


class Projection:
    """Selects `columns`, in this order, of rows on `subjects`; None: all. Rows in `hidden` are left out."""

    def __init__(
        self, columns: Sequence[str] | None, subjects: Sequence[str] | None, hidden: RowSet | None = None
    ) -> None:
        names = arrow_schema().names
        self.columns = list(names if columns is None else columns)
        self.schema = schema_of(self.columns)
        self._patterns = None if subjects is None else SubjectPatterns(subjects)
        numbers = [names.index(name) for name in self.columns]
        if self._patterns is not None and _SUBJECT not in numbers:
            numbers.append(_SUBJECT)
        self.hidden = hidden
        if hidden is not None and _OFFSET not in numbers:
            numbers.append(_OFFSET)
        self._numbers = tuple(numbers)
        is_all = len(numbers) == len(self.columns)
        self._read_schema = self.schema if is_all else schema_of([names[number] for number in numbers])

    def of_messages(self, raw: memoryview, position: int, base_offset: int, wanted: tuple[int, int]) -> Taken | None:
        """Project the valid, plain, contiguous messages from `position` on that lie completely within `wanted`.

        None: the first message is not among them, and the caller has to handle it. CorruptionError (without a file):
        its values are invalid.
        """
        found: Gathered = joining.gather_all(raw, position, base_offset, wanted)
        if not found.begins:
            return None
        rows = joining.join_some(raw, found, self._numbers, self._read_schema)
        return Taken(self._of(rows), found.end, found.end_offset, found.begins[-1])

    def of_message(self, data: Buffer, wanted: tuple[int, int], *, file: str = "", position: int = 0) -> pa.RecordBatch:
        """Project the rows of a verified, plain message with offsets in `wanted`. CorruptionError if invalid."""
        rows = codec.check_rows(data, file=file, position=position)
        offsets = codec.offsets(data)
        first, end = bisect_left(offsets, wanted[0]), bisect_left(offsets, wanted[1])
        return self._of(rows.slice(first, max(0, end - first)).select(list(self._numbers)))

    def of_rows(self, batch: RowPicker, places: Sequence[int]) -> pa.RecordBatch:
        """Project the rows at these places of a large batch, without the others; CorruptionError."""
        return self._of(batch.rows(places, self._numbers, self._read_schema))

    def places(self, batch: RowPicker) -> list[int]:
        """Return the places of the rows whose subjects match, hidden ones included; CorruptionError."""
        import pyarrow.compute as pc

        assert self._patterns is not None
        found: list[int] = pc.indices_nonzero(self._patterns.mask(batch.subjects())).to_pylist()
        return found

    def _of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.hidden and (shown := masking.shown(rows.column("offset"), self.hidden)) is not None:
            rows = rows.filter(shown)
        if self._patterns is not None:
            rows = rows.filter(self._patterns.mask(rows.column("subject")))
        return rows if self._read_schema is self.schema else rows.select(self.columns)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of a stream of these columns."""
    import pyarrow as pa

    schema = arrow_schema()
    return pa.schema([schema.field(name) for name in columns])


def to_stream(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> tuple[bytes, int]:
    """Encode batches of that schema as one Arrow stream; return it with its CRC-32C. Without rows: no bytes, and 0."""
    import pyarrow as pa

    table = pa.Table.from_batches(batches, schema=schema)
    if not table.num_rows:
        return b"", 0
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in table.combine_chunks().to_batches(max_chunksize=limits.BATCH_ROWS_MAX):
            writer.write_batch(batch)
    raw = sink.getvalue().to_pybytes()
    return raw, crc32c(raw)


def from_stream(
    raw: bytes | memoryview, crc: int | None, schema: pa.Schema, *, source: str
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of such a stream, as views of `raw`, each with at least one row and safe in any Arrow reader.

    CorruptionError, with `source` as the file, if the bytes were altered, have another schema, or are invalid.
    """
    import pyarrow as pa

    if crc is None or crc32c(raw) != crc:
        wanted = "no bytes" if crc is None else f"bytes with the CRC-32C {crc:08x}"
        raise CorruptionError(source, 0, wanted, "others")
    wanted = f"an Arrow stream of the columns {', '.join(schema.names)}"
    try:
        with pa.ipc.open_stream(pa.py_buffer(raw)) as reader:
            if not reader.schema.equals(schema, check_metadata=True):
                raise CorruptionError(source, 0, wanted, "one of another schema")
            for batch in reader:
                if not 0 < batch.num_rows <= limits.BATCH_ROWS_MAX or batch.nbytes > len(raw):
                    raise CorruptionError(source, 0, wanted, f"a batch of {batch.num_rows} rows, {batch.nbytes} bytes")
                batch.validate(full=True)
                yield batch
    except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
        raise CorruptionError(source, 0, wanted, str(error)[:200]) from None


def check_offsets(column: pa.Int64Array, offsets: tuple[int, int], *, source: str) -> None:
    """Raise CorruptionError unless the offsets of a batch rise from row to row within this half-open range."""
    import pyarrow.compute as pc

    count = len(column)
    rises = column.null_count == 0 and pc.all(pc.less(column.slice(0, count - 1), column.slice(1)), min_count=0).as_py()
    if not rises or column[0].as_py() < offsets[0] or column[count - 1].as_py() >= offsets[1]:
        raise CorruptionError(source, 0, f"offsets in order from {offsets[0]}, all below {offsets[1]}", "others")
