"""One block of a subject index: an Arrow record batch, compressed with LZ4, and what it holds as a table in memory.

Rules: bytes reach Arrow only after their metadata was compared with a template, and after the size of each buffer was
checked, so nothing large is unpacked. A block that was read holds valid text and strictly rising subjects.

Theory: a look-up unpacks one block. LZ4 does it in a quarter of the time of ZSTD, which takes 0.6 of the room. The
reader of Arrow refuses a buffer that unpacks to another length than it says; `pyarrow.Codec` does not.

The metadata of a message, 320 bytes, differs between blocks in these places only:

| byte | what                             | byte | what                                           |
|------|----------------------------------|------|------------------------------------------------|
| 40   | size of the body                 | 104  | 9 buffers: position in the body, size          |
| 80   | rows                             | 256  | 4 columns: rows, nulls (0)                     |
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.commitlog.subjects import layout
from penstock.hot import subject_filter
from penstock.hot.crc import crc32c

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.commitlog.subjects.reading import WantedSubjects

_TEMPLATE = bytes.fromhex(
    "ffffffff3801000014000000000000000c0018000600050008000c000c000000000304001c0000000000000000000000000000000c001c00"
    "1000040008000c000c000000b80000001c00000014000000000000000000000000000000040004000400000009000000"
    + "00" * 144
    + "0000000004000000"
    + "00" * 64
)
BODY_POSITION = len(_TEMPLATE)
_BODY_BYTES_POSITION, _ROWS_POSITION, _BUFFERS_POSITION, _NODES_POSITION = 40, 80, 104, 256
_INT64 = struct.Struct("<q")
_BUFFERS = struct.Struct("<18q")
_NODES = struct.Struct("<8q")
_PATCHED = ((_BODY_BYTES_POSITION, 8), (_ROWS_POSITION, 8), (_BUFFERS_POSITION, 144), (_NODES_POSITION, 64))
_AS_IT_IS = -1
_TEXT = 2  # number of the buffer of the subjects' bytes
assert _NODES_POSITION + _NODES.size == BODY_POSITION


class SubjectRow(NamedTuple):
    """One subject in a range of offsets: number of its messages, and the first and last of them."""

    subject: str
    messages: int
    first: int
    last: int


class OffsetSpan(NamedTuple):
    """First and last offset of a subject in a range."""

    first: int
    last: int


@cache
def schema() -> pa.Schema:
    """Return the four columns."""
    import pyarrow as pa

    numbers = [pa.field(name, pa.int64(), nullable=False) for name in ("count", "first_offset", "last_offset")]
    return pa.schema([pa.field("subject", pa.utf8(), nullable=False), *numbers])


@cache
def _codec() -> Any:
    import pyarrow as pa

    return pa.Codec("lz4")


class SubjectRows:
    """Subjects in byte order, each once, in memory: a block, or a sum of rows."""

    __slots__ = ("_ends", "_spans", "_text", "batch")

    def __init__(self, batch: pa.RecordBatch) -> None:
        """`batch` has the columns of `schema`."""
        self.batch = batch
        self._spans: tuple[memoryview, memoryview] | None = None  # first and last offsets, once they were asked for
        _, ends, text = batch.column(0).buffers()
        first = batch.column(0).offset
        count = batch.num_rows
        self._ends = memoryview(ends).cast("B").cast("i")[first : first + count + 1] if count else memoryview(b"")
        self._text = memoryview(b"" if text is None else text).cast("B")

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def subject(self, row: int) -> bytes:
        """Return the subject of a row."""
        return bytes(self._text[self._ends[row] : self._ends[row + 1]])

    def at_or_behind(self, subject: bytes) -> int:
        """Return the number of the first row whose subject is this one or a later one."""
        return subject_filter.row_of(self._ends, self._text, len(self), subject)

    def find(self, subject: bytes) -> SubjectRow | None:
        """Return the row of one subject; None if there is none."""
        row = self.at_or_behind(subject)
        return self.row(row) if row < len(self) and self.subject(row) == subject else None

    def find_each(self, subjects: WantedSubjects) -> dict[bytes, OffsetSpan]:
        """Return the first and the last offset of those subjects that are there."""
        return self.spans(subjects.names)

    def spans(self, subjects: Iterable[bytes]) -> dict[bytes, OffsetSpan]:
        """Return the first and the last offset of those subjects that are there."""
        found: dict[bytes, OffsetSpan] = {}
        count = len(self)
        for one in subjects:
            row = self.at_or_behind(one)
            if row < count and self.subject(row) == one:
                if self._spans is None:
                    self._spans = self._numbers(2), self._numbers(3)
                firsts, lasts = self._spans
                found[one] = OffsetSpan(firsts[row], lasts[row])
        return found

    def _numbers(self, column: int) -> memoryview:
        """Return the numbers of one column."""
        numbers = self.batch.column(column)
        begin, count = numbers.offset, len(numbers)
        return memoryview(numbers.buffers()[1]).cast("B").cast("q")[begin : begin + count]

    def row(self, number: int) -> SubjectRow:
        """Return one row."""
        return SubjectRow(*(column[number].as_py() for column in self.batch.columns))

    def between(self, begin: bytes, end: bytes | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows with subjects from `begin` to `end`, if any; None: to the last."""
        first = self.at_or_behind(begin)
        stop = len(self) if end is None else self.at_or_behind(end)
        if first < stop:
            yield self.batch.slice(first, stop - first)

    @property
    def rows(self) -> int:
        """Sum of the counts."""
        import pyarrow.compute as pc

        return int(pc.sum(self.batch.column(1)).as_py() or 0)

    def offsets_mistake(self, low: int, high: int) -> str | None:
        """Return the first row whose offsets do not lie from `low` to `high`, or do not fit its count; None: all do."""
        import pyarrow.compute as pc

        count, first, last = self.batch.columns[1:]
        span = pc.subtract(last, first)
        sound = pc.and_(pc.greater_equal(first, low), pc.less(last, high))
        for one in (pc.greater_equal(span, 0), pc.greater(count, 0), pc.less_equal(count, pc.add(span, 1))):
            sound = pc.and_(sound, one)
        row = pc.index(sound, value=False).as_py()
        return None if row < 0 else str(self.row(row))

    def text(self, first: int, count: int) -> tuple[memoryview, memoryview]:
        """Return the buffers of an Arrow array of so many subjects: value offsets from 0 on, and the bytes."""
        ends = self._ends[first : first + count + 1]
        begin = ends[0]
        moved = memoryview(struct.pack(f"<{len(ends)}i", *[end - begin for end in ends]))
        return moved, self._text[begin : ends[-1]]

    def room(self, first: int) -> int:
        """Return how many rows from `first` on make a block."""
        limit = self._ends[first] + limits.SUBJECT_BLOCK_TEXT_BYTES
        ends = range(first + 1, min(len(self), first + limits.SUBJECT_BLOCK_ROWS) + 1)
        return max(1, bisect_left(ends, limit + 1, key=self._ends.__getitem__))


def encode(rows: SubjectRows, first: int, count: int) -> bytes:
    """Return `count` rows from `first` on as an encapsulated Arrow message."""
    parts: list[bytes | memoryview] = [b"", *rows.text(first, count)]
    for column in rows.batch.columns[1:]:
        begin = 8 * (column.offset + first)
        parts += (b"", memoryview(column.buffers()[1]).cast("B")[begin : begin + 8 * count])
    head, body = bytearray(_TEMPLATE), bytearray()
    places: list[int] = []
    for part in parts:
        packed = b""
        if part:
            content = _codec().compress(part, asbytes=True)
            packed = _INT64.pack(len(part)) + content
            if len(content) >= len(part):
                packed = _INT64.pack(_AS_IT_IS) + bytes(part)
        places += (len(body), len(packed))
        body += packed + bytes(-len(packed) & 7)
    _INT64.pack_into(head, _BODY_BYTES_POSITION, len(body))
    _INT64.pack_into(head, _ROWS_POSITION, count)
    _BUFFERS.pack_into(head, _BUFFERS_POSITION, *places)
    _NODES.pack_into(head, _NODES_POSITION, *(count, 0) * 4)
    return bytes(head + body)


def decode(data: bytes, rows: int, crc: int, *, file: str, position: int) -> SubjectRows:
    """Return the rows of a block, which must have so many; CorruptionError."""
    import pyarrow as pa
    import pyarrow.compute as pc

    batch = _read(data, rows, crc, file=file, position=position)
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise _wrong(rows, error, file=file, position=position) from None
    subjects = batch.column(0)
    if not pc.all(pc.less(subjects.slice(0, rows - 1), subjects.slice(1)), min_count=0).as_py():
        raise CorruptionError(file, position, "subjects in order", "others")
    return SubjectRows(batch)


def spans(
    data: bytes, rows: int, crc: int, first: bytes, wanted: Iterable[bytes], *, file: str, position: int
) -> dict[bytes, OffsetSpan]:
    """Return the first and the last offset of those subjects that are in a block which begins with `first`.

    Only what a look-up needs is checked; CorruptionError.
    """
    import pyarrow as pa

    batch = _read(data, rows, crc, file=file, position=position)
    try:
        batch.column(0).validate(full=True)
    except pa.ArrowException as error:
        raise _wrong(rows, error, file=file, position=position) from None
    block = SubjectRows(batch)
    if (begin := block.subject(0)) != first:
        raise CorruptionError(file, position, f"a block from {first!r} on", repr(begin))
    return block.spans(wanted)


def _read(data: bytes, rows: int, crc: int, *, file: str, position: int) -> pa.RecordBatch:
    """Return the content of a block whose layout was checked, but no value; CorruptionError."""
    import pyarrow as pa

    if (found := crc32c(data)) != crc:
        raise CorruptionError(file, position, f"a block with CRC-32C {crc:08x}", f"{found:08x}")
    if (wrong := _layout_mistake(data, rows)) is not None:
        raise CorruptionError(file, position, f"a block of {rows} subjects", wrong)
    try:
        return pa.ipc.open_stream(layout.SCHEMA + data, options=_options()).read_next_batch()
    except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
        raise _wrong(rows, error, file=file, position=position) from None


@cache
def _options() -> Any:
    """Return how a block is read: a pool of threads would take longer."""
    import pyarrow as pa

    return pa.ipc.IpcReadOptions(use_threads=False)


def _wrong(rows: int, error: Exception, *, file: str, position: int) -> CorruptionError:
    return CorruptionError(file, position, f"a block of {rows} subjects", str(error)[:200])


def _layout_mistake(data: bytes, rows: int) -> str | None:
    """Return why Arrow must not read this message; None: it may."""
    if len(data) < BODY_POSITION:
        return f"{len(data)} bytes"
    head = bytearray(data[:BODY_POSITION])
    for position, size in _PATCHED:
        head[position : position + size] = bytes(size)
    (body_bytes,), (count,) = (_INT64.unpack_from(data, at) for at in (_BODY_BYTES_POSITION, _ROWS_POSITION))
    if head != _TEMPLATE or body_bytes != len(data) - BODY_POSITION:
        return "other metadata"
    if count != rows or _NODES.unpack_from(data, _NODES_POSITION) != (rows, 0) * 4:
        return f"{count} rows"
    places = _BUFFERS.unpack_from(data, _BUFFERS_POSITION)
    wanted = (0, 4 * (rows + 1), None, 0, 8 * rows, 0, 8 * rows, 0, 8 * rows)
    end = 0
    for number, (begin, size, exact) in enumerate(zip(places[::2], places[1::2], wanted, strict=True)):
        if begin != end or size < 0 or begin + size > body_bytes:
            return f"buffer {number} of {size} bytes at {begin}"
        end = begin + (size + 7) // 8 * 8
        length = 0
        if size:
            if size <= _INT64.size:
                return f"buffer {number} of {size} bytes"
            (length,) = _INT64.unpack_from(data, BODY_POSITION + begin)
            length = size - _INT64.size if length == _AS_IT_IS else length
        if length < 0 or (number == _TEXT and length > limits.SUBJECT_BLOCK_BYTES_MAX):
            return f"{length} bytes out of buffer {number}"
        if exact is not None and length != exact:
            return f"{length} bytes out of buffer {number}, not {exact}"
    return None if end == body_bytes else f"a body of {body_bytes} bytes whose buffers end at {end}"
