"""Some columns of batches, and of their rows those on some subjects, as one Arrow stream.

Rules: nothing is taken of a message that is not verified, CRC-32C included; value offsets and text are looked at
before Arrow follows them. The stream has batches of up to BATCH_ROWS_MAX rows, however small those were that they come
from, nothing in it is compressed, and its schema has no metadata. Who receives one trusts nothing of it: the CRC-32C
that came with it is compared first, then the schema, then each batch is looked through.

Theory: the bulk of a log is its values. To leave them where they are makes an answer a small part of what was looked
at, and what that costs is to read it and to check it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch import codec, joining
from penstock.batch.codec import Buffer
from penstock.batch.schema import arrow_schema
from penstock.batch.subject_patterns import SubjectPatterns
from penstock.hot.crc import crc32c
from penstock.hot.join import Gathered

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSET = 0  # which columns they are
_SUBJECT = 2


class Taken(NamedTuple):
    """What was taken of messages that lie behind each other."""

    rows: pa.RecordBatch  # perhaps none
    end: int  # where the next message lies
    end_offset: int
    last_begin: int  # where the last of them lies


class Projection:
    """What is wanted: `columns`, in this order, of the rows on `subjects`; None: all."""

    def __init__(self, columns: Sequence[str] | None, subjects: Sequence[str] | None) -> None:
        names = arrow_schema().names
        self.columns = list(names if columns is None else columns)
        self.schema = schema_of(self.columns)
        self._patterns = None if subjects is None else SubjectPatterns(subjects)
        numbers = [names.index(name) for name in self.columns]
        if self._patterns is not None and _SUBJECT not in numbers:
            numbers.append(_SUBJECT)
        self._numbers = tuple(numbers)
        self._read_schema = self.schema if len(numbers) == len(self.columns) else schema_of([*self.columns, "subject"])

    def of_messages(self, raw: memoryview, position: int, base_offset: int, wanted: tuple[int, int]) -> Taken | None:
        """Of the messages from `position` on, as many as are sound, plain, in their place, and whole within `wanted`.

        None: the first one is not, and is for the caller to look at; CorruptionError without a file: nor its values.
        """
        found: Gathered = joining.gather_all(raw, position, base_offset, wanted)
        if not found.begins:
            return None
        rows = joining.join_some(raw, found, self._numbers, self._read_schema)
        return Taken(self._of(rows), found.end, found.end_offset, found.begins[-1])

    def of_message(self, data: Buffer, wanted: tuple[int, int], *, file: str = "", position: int = 0) -> pa.RecordBatch:
        """Of one verified, plain message, the rows with offsets in `wanted`. CorruptionError if they are not sound."""
        rows = codec.check_rows(data, file=file, position=position)
        offsets = codec.offsets(data)
        first, end = bisect_left(offsets, wanted[0]), bisect_left(offsets, wanted[1])
        return self._of(rows.slice(first, max(0, end - first)).select(list(self._numbers)))

    def _of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self._patterns is not None:
            rows = rows.filter(self._patterns.mask(rows.column("subject")))
        return rows if self._read_schema is self.schema else rows.select(self.columns)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Of a stream of these columns."""
    import pyarrow as pa

    schema = arrow_schema()
    return pa.schema([schema.field(name) for name in columns])


def to_stream(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> tuple[bytes, int]:
    """Batches of that schema as one Arrow stream, and its CRC-32C; of batches without a row: no byte, and 0."""
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
    """The batches of such a stream, which lie on `raw`, each with a row at least and safe in any Arrow reader.

    CorruptionError, with `source` as the file, where it is not what was sent, of another schema, or not sound.
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
    """CorruptionError unless the offsets of a batch rise from row to row, and lie in this half-open range."""
    import pyarrow.compute as pc

    count = len(column)
    rises = column.null_count == 0 and pc.all(pc.less(column.slice(0, count - 1), column.slice(1)), min_count=0).as_py()
    if not rises or column[0].as_py() < offsets[0] or column[count - 1].as_py() >= offsets[1]:
        raise CorruptionError(source, 0, f"offsets in order from {offsets[0]}, all below {offsets[1]}", "others")
