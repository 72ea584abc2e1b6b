"""Queries by subject of a view: last message of a subject, subjects of a filter with counts, next match of a filter.

Rules: queries are about rows as they are stored, but for the last message of a subject: there a hidden row is none. A
sealed segment answers from its subject index, which is built on the way if it is missing, of other messages or damaged.
A query that looks for the last messages of subjects asks the kept filters of all segments first (`kept_filters`), and
opens the indexes of those only that may hold one. What has no index, the active segment and a part of a sealed one, is
read once and remembered as sums by subject; later queries read only what was appended since. So memory grows with the
subjects of the active segment that is asked about, and with the kept filters, which have a limit; not with the subjects
of the log. All of it reads files: run it in a disk thread. At most one index is open at a time.

    sealed ··· sealed  | cut by log_start: summed | sealed: index, index, index | active: summed |

An index that is in error is reported in `LogView.wrong_indexes`, and rebuilt; one of an unknown version is kept aside.
If the disk has no room for an index, the segment is summed up for each query, and so is one that `end` cuts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from penstock.base import limits
from penstock.base.errors import CorruptionError, RemoteError
from penstock.base.subjects import is_wildcard
from penstock.batch import codec, compression, joining, masking
from penstock.batch.projecting import Projection
from penstock.batch.schema import SCHEMA_BYTES, check_schema_message
from penstock.batch.subject_patterns import SubjectPatterns
from penstock.commitlog.errors import LogCutError, mistake_of
from penstock.commitlog.files import files
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.subjects import layout, reading, writing
from penstock.commitlog.subjects.block_sums import BlockSums
from penstock.commitlog.subjects.blocks import OffsetSpan, SubjectRow, SubjectRows
from penstock.commitlog.subjects.kept_filters import size_of
from penstock.commitlog.subjects.layout import SegmentIdentity
from penstock.commitlog.subjects.reading import SubjectIndex, WantedSubjects
from penstock.commitlog.subjects.summing import SubjectSum, sum_of
from penstock.commitlog.view import LogView
from penstock.hot import subject_filter
from penstock.live.row_set import NONE
from penstock.vfs import File
from penstock.vfs.keys import NoHeaderError
from penstock.vfs.page_cache import ColdError

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
_TRIES = 3  # the cleaner may rewrite a segment again and again; corruption comes once
_SUBJECT = 1  # column of the rows that are summed up


class SubjectSource(Protocol):
    """Rows by subject: an index, or a sum."""

    def find(self, subject: bytes) -> SubjectRow | None:
        """Return the row of one subject; None if there is none."""

    def find_each(self, subjects: WantedSubjects) -> dict[bytes, OffsetSpan]:
        """Return the first and the last offset of those subjects that are there."""

    def between(self, begin: bytes, end: bytes | None) -> Iterator[pa.RecordBatch]:
        """Yield the subjects from `begin` to `end` in order; None: to the last."""


class SegmentReplacedError(Exception):
    """The cleaner rewrote the segment, or a truncation cut it, while it was read."""


# Reading rows, and making an index.


def subject_rows(view: LogView, begin: int, end: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield offset and subject of all rows from `begin` to `end`, with the bytes read for them.

    RemoteError as in `LogView.batches`; CorruptionError, OSError.
    """
    projection = Projection(("offset", "subject"), None)
    offset = begin
    while offset < end:
        at = offset
        found = view.slice(offset, end=end, bytes_max=limits.CLEANING_SLICE_BYTES)
        if found is not None:
            raw = memoryview(_read(view, found.path, found.position, found.length))
            position, base_offset = 0, found.base_offset
            while position < len(raw):
                try:
                    taken = projection.of_messages(raw, position, base_offset, (offset, end))
                except CorruptionError:
                    break  # read again below, which reports it
                if taken is None:
                    break
                yield taken.rows, taken.end - position
                position, base_offset = taken.end, taken.end_offset
                offset = base_offset
        if offset == at:  # compressed, corrupt, wanted in part, or its file was removed
            for header, data in view.batches(offset, end):
                yield projection.of_message(data, (offset, end)), header.size_bytes
                offset = header.end_offset
                break
        view.check_not_cut(min(offset, end))


def _read(view: LogView, path: str, position: int, length: int) -> bytes:
    try:
        file = view.vfs.open(path, read_only=True)
    except FileNotFoundError:
        return b""
    try:
        return file.read_at(position, length)
    finally:
        file.close()


def sum_segment(view: LogView, segment: Segment) -> Generator[int, None, SubjectSum]:
    """Sum up all rows of a sealed segment; yield the bytes read. SegmentReplacedError; errors as in `subject_rows`."""
    whole = view.starting_at(min(view.log_start, segment.base_offset))
    total = SubjectSum()
    for rows, size_bytes in subject_rows(whole, segment.base_offset, segment.end_offset):
        total.add(rows)
        yield size_bytes
    _check_still(view, segment)
    return total


def _check_still(view: LogView, segment: Segment) -> None:
    if not view.is_still(segment):
        raise SegmentReplacedError(segment.path)


def identity_of(view: LogView, segment: Segment) -> SegmentIdentity:
    """Return what an index of a sealed segment must say of it. SegmentReplacedError, CorruptionError, OSError."""
    whole = view.starting_at(min(view.log_start, segment.base_offset))
    _, extent = whole.batch_at(segment.end_offset - 1)
    try:
        file = view.vfs.open(segment.path, read_only=True)
    except FileNotFoundError:
        raise SegmentReplacedError(segment.path) from None
    try:
        ids = check_schema_message(file.read_at(0, SCHEMA_BYTES), file=segment.path)
        prefix = file.read_at(extent.position, codec.PREFIX_BYTES)
    finally:
        file.close()
    _check_still(view, segment)
    last = codec.read_header(prefix, file=segment.path, position=extent.position)
    name = files.parsed(segment.path.rpartition("/")[2])
    assert name is not None, segment.path
    return SegmentIdentity(name.generation, *ids, last.crc, segment.base_offset, segment.end_offset, segment.size_bytes)


def build_index(view: LogView, segment: Segment) -> Generator[int, None, None]:
    """Write the index of a sealed segment with at least one row; yield the bytes read or written, now and then.

    SegmentReplacedError: there is none now; errors as in `sum_segment` and `write`.
    """
    total = yield from sum_segment(view, segment)
    if not total.rows:
        return
    identity = identity_of(view, segment)
    sums = BlockSums()
    sum_pages = sums.pages() if (yield from _sum_blocks(view, segment, sums)) else []
    path = files.subjects_path(segment.path)
    unfinished = f"{path}.new"
    try:
        file = view.vfs.open(unfinished, create=True, make_folders=False)
        try:
            yield from writing.write(file, total, identity, sum_pages)
            file.sync()  # before the rename, or a power loss would leave an index in error
        finally:
            file.close()
        _check_still(view, segment)
    except BaseException:
        with contextlib.suppress(OSError):
            view.vfs.remove(unfinished)
        raise
    with contextlib.suppress(FileNotFoundError):  # another thread wrote the same
        view.vfs.rename(unfinished, path)
    if not view.is_still(segment):  # a truncation does not wait for readers, see `segment_scan.write_while`
        with contextlib.suppress(OSError):
            view.vfs.remove(path)
        raise SegmentReplacedError(segment.path)


def _sum_blocks(view: LogView, segment: Segment, sums: BlockSums) -> Generator[int, None, bool]:
    """Sum up the blocks of a sealed segment while its batches are verified; yield the bytes read.

    False: not worth it, as the batches are small or compressed. SegmentReplacedError, CorruptionError, OSError.
    """
    whole = view.starting_at(min(view.log_start, segment.base_offset))
    batches, length = 0, limits.CLEANING_SLICE_BYTES
    position, offset = SCHEMA_BYTES, segment.base_offset
    try:
        file = view.vfs.open(segment.path, read_only=True)
    except FileNotFoundError:
        raise SegmentReplacedError(segment.path) from None
    try:
        head = file.read_at(0, SCHEMA_BYTES)
        check_schema_message(head, file=segment.path)
        sums.add(head)
        while position < segment.size_bytes:
            raw = memoryview(file.read_at(position, length))
            found = joining.gather_all(raw, 0, offset, (segment.base_offset, segment.end_offset))
            verified, count = raw[: found.end], len(found.begins)
            if not count:
                header = codec.read_header(raw, file=segment.path, position=position)
                if compression.is_compressed(raw):
                    return False
                length = max(length, header.size_bytes)
                verified = memoryview(file.read_at(position, header.size_bytes))
                codec.verify(verified, file=segment.path, position=position)
                found, count = found._replace(end_offset=header.end_offset), 1
            sums.add(verified)
            batches += count
            if batches * limits.SUMMED_BATCH_BYTES > segment.size_bytes:
                return False
            yield len(verified)
            position, offset = position + len(verified), found.end_offset
    finally:
        file.close()
    _check_still(whole, segment)
    return offset == segment.end_offset


def has_index(view: LogView, segment: Segment) -> bool:
    """True if a sealed segment has an index of its messages; errors in it are reported, and it is removed.

    SegmentReplacedError, CorruptionError of the segment, OSError.
    """
    path = files.subjects_path(segment.path)
    try:
        with contextlib.closing(_open(view, path)) as file:
            trailer = reading.read_trailer(file)
    except FileNotFoundError:
        return False
    except CorruptionError as error:
        _discard(view, segment, error)
        return False
    if trailer.segment != identity_of(view, segment):  # left behind by a version that does not know these files
        view.vfs.remove(path)
        return False
    segment.subjects.trailer = trailer
    if trailer.sum_pages:  # it has checksums of all blocks
        segment.subjects.batches = ()
    return True


def _open(view: LogView, path: str) -> File:
    """Open an index. FileNotFoundError, OSError; CorruptionError: the log is encrypted, and the file has no header."""
    try:
        return view.vfs.open(path, read_only=True)
    except NoHeaderError as error:  # nothing is lost with it, unlike with a segment
        raise CorruptionError(path, 0, "the header of an encrypted file", error.strerror) from None


def _discard(view: LogView, segment: Segment, error: CorruptionError) -> None:
    """Report an index in error and put it out of the way; one of an unknown version is kept aside."""
    path = files.subjects_path(segment.path)
    segment.subjects.forget_index()
    if not view.is_still(segment):
        return
    view.wrong_indexes.append(mistake_of(error))
    if isinstance(error, layout.UnknownVersionError):
        with contextlib.suppress(FileNotFoundError):  # another thread did so
            view.vfs.rename(path, files.side_path(view.vfs, path, 0))
    else:
        view.vfs.remove(path)


def check_subject_indexes(view: LogView, begin: int, end: int) -> Generator[int, None, None]:
    """Check every byte of the indexes of the sealed segments that end behind `begin` and at most at `end`.

    An error is reported, and the index made again. Yield the bytes read or written. OSError.
    """
    for segment in view.segments[:-1]:
        if begin < segment.end_offset <= end:
            # Removed, rewritten or corrupt meanwhile: a read of the rows reports it.
            with contextlib.suppress(
                SegmentReplacedError, LogCutError, RemoteError, CorruptionError, FileNotFoundError
            ):
                yield from _check_index(view, segment.latest)


def _check_index(view: LogView, segment: Segment) -> Generator[int, None, None]:
    reported = len(view.wrong_indexes)
    if has_index(view, segment):
        try:
            with _opened(view, segment) as index:
                for block in index.check():
                    yield block.batch.nbytes
        except CorruptionError as error:
            if error.file != files.subjects_path(segment.path):
                raise
            _discard(view, segment, error)
    if len(view.wrong_indexes) > reported:
        yield from build_index(view, segment)


@contextlib.contextmanager
def _opened(view: LogView, segment: Segment) -> Iterator[SubjectIndex]:
    """Open an index whose trailer is known. OSError; CorruptionError: it is another file by now."""
    trailer = segment.subjects.trailer
    with contextlib.closing(_open(view, files.subjects_path(segment.path))) as file:
        if trailer is None:
            trailer = reading.read_trailer(file)
        else:
            reading.check_trailer(file, trailer)
        yield SubjectIndex(file, trailer, segment.subjects.filter)


@contextlib.contextmanager
def open_index(view: LogView, segment: Segment) -> Iterator[SubjectIndex | None]:
    """Open the index of a sealed segment; None: it has none. It is not made here.

    An index in error is reported and removed: the block ends, and what follows it goes on without an index.
    SegmentReplacedError, CorruptionError of the segment, OSError.
    """
    if segment.subjects.trailer is None and not has_index(view, segment):
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            index = stack.enter_context(_opened(view, segment))
        except FileNotFoundError:  # with its segment, or by hand
            segment.subjects.forget_index()
            yield None
            return
        except CorruptionError as error:
            _discard(view, segment, error)
            yield None
            return
        try:
            yield index
        except CorruptionError as error:
            if error.file != files.subjects_path(segment.path):
                raise
            _discard(view, segment, error)


def may_hold(segment: Segment, wanted: WantedSubjects) -> bool:
    """False if the kept filter of a segment says that it holds none of these subjects."""
    pages = None if (kept := segment.subjects.filter) is None else kept.pages
    return bool(subject_filter.holding([pages], wanted.hashes))


def _keep_filter(view: LogView, segment: Segment, index: SubjectIndex) -> None:
    """Keep the filter of a segment in memory. CorruptionError, OSError."""
    memory, filters = segment.subjects, view.filters
    is_kept = memory.filter is not None and memory.filter.pages is not None
    if is_kept or view.is_cached or memory.trailer is not index.trailer or not filters.may_have_room:
        return
    entries = view.entries_to_keep(segment)
    size_bytes = index.filter_bytes + size_of(entries)
    memory.filter = filters.keep(segment.base_offset, size_bytes, lambda: index.read_filter(entries))


# Filters.


class SubjectFilter:
    """Plain subjects, and patterns with `*` and `>`: all legal, at least one."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = SubjectPatterns(patterns)
        self.ranges = _merged(sorted(map(_range_of, patterns)))

    def select(self, source: SubjectSource, after: bytes = b"") -> Iterator[pa.RecordBatch]:
        """Yield the rows of matching subjects behind `after`, in order."""
        for begin, end in self.ranges:
            start = max(begin, after + b"\0") if after else begin
            if end is not None and start >= end:
                continue
            for batch in source.between(start, end):
                matching = batch.filter(self._patterns.mask(batch.column(0)))
                if matching.num_rows:
                    yield matching

    def count(self, source: SubjectSource) -> int:
        """Return the number of messages whose subjects match."""
        import pyarrow.compute as pc

        return sum(pc.sum(batch.column(1)).as_py() for batch in self.select(source))

    def matching(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a log, with offset and subject, whose subjects match."""
        return rows.filter(self._patterns.mask(rows.column(_SUBJECT)))


_Range = tuple[bytes, bytes | None]


def _range_of(pattern: str) -> tuple[bytes, bytes]:
    """Return the range of subjects that may match; an end of all ones stands for none."""
    if not is_wildcard(pattern):
        subject = pattern.encode()
        return subject, subject + b"\0"
    named: list[str] = []
    for token in pattern.split("."):
        if token in ("*", ">"):
            break
        named.append(f"{token}.")
    prefix = "".join(named).encode()
    return prefix, prefix[:-1] + b"/" if prefix else b"\xff"  # "/" follows "."; no UTF-8 begins with ff


def _merged(ranges: list[tuple[bytes, bytes]]) -> tuple[_Range, ...]:
    merged: list[tuple[bytes, bytes]] = []
    for begin, end in ranges:
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return tuple((begin, None if end == b"\xff" else end) for begin, end in merged)


# Queries.


class Piece(NamedTuple):
    """The part of a segment that a query is about."""

    segment: Segment
    begin: int
    end: int
    is_sealed: bool


class SubjectQueries:
    """Queries of a view from its log_start to `end`, at most log_end. Run them in a disk thread.

    `tell` is called for each segment and each few MiB with the bytes read or written; it may raise to end the query.
    `makes_indexes`: False if there must be none; then all that is asked about is read each time. RemoteError as in
    `LogView.batches`, if rows have to be read and are corrupt; LogCutError; OSError.
    """

    def __init__(
        self,
        view: LogView,
        end: int,
        tell: Callable[[int], None] = lambda _: None,
        *,
        makes_indexes: bool = True,
        reads_first: bool = False,
        begin: int = 0,
    ) -> None:
        """`begin`: messages before it are left out. `reads_first`: `last` does not wait for the index or the sum of a
        large segment that has none. Its rows are read, until that has taken about as long as making one.
        """
        self._begin = max(begin, view.log_start)
        self._view = view.as_stored()
        self._live_view = view
        self._end = min(end, view.log_end)
        self._tell = tell
        self._makes_indexes = makes_indexes
        self._reads_first = reads_first

    def last(self, subject: str) -> int | None:
        """Return the offset of the last message of a subject; None: there is none."""
        (last,) = self.last_of_many([subject.encode()])
        return None if last < 0 else last

    def last_of_many(self, subjects: Sequence[bytes]) -> list[int]:
        """Return the offset of the last message of each subject; -1: there is none.

        Segments are asked from the newest to the oldest, each about all subjects that no newer one has.
        """
        found = dict.fromkeys(subjects, -1)
        wanted = WantedSubjects([*found])
        first_wanted = wanted
        for piece in self._pieces_with(wanted) if found else ():
            if wanted is not first_wanted and not may_hold(piece.segment.latest, wanted):
                continue
            if lasts := self._lasts_in(piece, wanted):
                found.update(lasts)
                wanted = WantedSubjects([one for one in wanted.names if one not in lasts])
                if not wanted.names:
                    break
        return [found[one] for one in subjects]

    def _lasts_in(self, piece: Piece, wanted: WantedSubjects) -> dict[bytes, int]:
        """Return the last messages of the subjects that have one in this piece."""
        if self._reads_first and len(wanted.names) == 1 and self._is_unknown(piece):
            return self._read_piece(piece, wanted.names[0])
        spans: dict[bytes, OffsetSpan] = {}
        for part in self._use(piece, lambda source: source.find_each(wanted), may_exceed=True):
            for subject, (first, last) in part.items():
                before = spans.get(subject)
                spans[subject] = OffsetSpan(
                    first if before is None else min(first, before.first),
                    last if before is None else max(last, before.last),
                )
        hidden, lasts, doubtful = self._live_view.hidden, dict[bytes, int](), dict[bytes, OffsetSpan]()
        for subject, span in spans.items():
            if piece.begin <= span.last < piece.end and (hidden is None or span.last not in hidden):
                lasts[subject] = span.last
            elif max(span.first, piece.begin) < min(span.last, piece.end):
                doubtful[subject] = span  # an earlier row may be the last that counts
        if doubtful:
            begin = max(piece.begin, min(span.first for span in doubtful.values()))
            end = min(piece.end, max(span.last for span in doubtful.values()))
            lasts.update(self._read_lasts(set(doubtful), begin, end))
        return lasts

    def _is_unknown(self, piece: Piece) -> bool:
        """True if a large segment has neither index nor sum, and was not read often."""
        segment = piece.segment.latest
        memory = segment.subjects
        if segment.size_bytes < limits.READ_FIRST_BYTES_MIN or memory.reads >= limits.READ_FIRST_MAX:
            return False
        if not piece.is_sealed:
            return memory.summed is None
        if memory.trailer is not None:
            return False
        with contextlib.suppress(SegmentReplacedError, CorruptionError, OSError):
            return not has_index(self._view, segment)
        return False  # what asks the index reports it

    def _read_piece(self, piece: Piece, subject: bytes) -> dict[bytes, int]:
        """Return the last message of a subject, if there is one in this piece, whose rows are all read."""
        import pyarrow.compute as pc

        lasts: dict[bytes, int] = {}
        hidden, name = self._live_view.hidden or NONE, subject.decode()
        for rows, size_bytes in subject_rows(self._view, piece.begin, piece.end):
            self._tell(size_bytes)
            offsets = rows.column(0).filter(pc.equal(rows.column(_SUBJECT), name))
            if (shown := masking.shown(offsets, hidden)) is not None:
                offsets = offsets.filter(shown)
            if len(offsets):
                lasts[subject] = offsets[-1].as_py()
        piece.segment.latest.subjects.reads += 1
        return lasts

    def _read_lasts(self, subjects: set[bytes], begin: int, end: int) -> dict[bytes, int]:
        """Return the last messages from `begin` to `end`, which are read backwards without hidden rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        lasts: dict[bytes, int] = {}
        names = pa.array([one.decode() for one in subjects], pa.utf8())
        for _, data in self._live_view.batches(begin, end, reverse=True):
            self._tell(len(data))
            rows = codec.check_rows(data)
            matching = rows.filter(pc.is_in(rows.column("subject"), value_set=names))
            offsets, found = (matching.column(name).to_pylist() for name in ("offset", "subject"))
            for offset, subject in zip(reversed(offsets), reversed(found), strict=True):
                if begin <= offset < end:
                    lasts.setdefault(subject.encode(), offset)
            if len(lasts) == len(subjects):
                break
        return lasts

    def counts_of_many(self, subjects: Sequence[bytes], most: int, *, hides_oldest: bool) -> list[int]:
        """Return how many messages of each subject are not hidden; of one that has `most`, at least so many.

        `hides_oldest`: only a limit by subject of `most` messages hides any, so that hidden ones may count, too: a
        subject that has some has `most` others. Segments are asked from the newest to the oldest.
        """
        numbers = dict.fromkeys(subjects, 0)
        hidden = None if hides_oldest else self._live_view.hidden
        wanted = WantedSubjects([*numbers])
        for piece in self._pieces_with(wanted) if numbers else ():
            left = [one for one, number in numbers.items() if number < most]
            if not left:
                break
            if len(left) < len(wanted.names):
                wanted = WantedSubjects(left)
                if not may_hold(piece.segment.latest, wanted):
                    continue
            found: dict[bytes, SubjectRow] = {}
            for part in self._use(piece, lambda source: [source.find(one) for one in left], keeps=True):  # noqa: B023
                for one, row in zip(left, part, strict=True):
                    if row is not None:
                        found[one] = _added(found.get(one), row)
            doubtful: dict[bytes, SubjectRow] = {}
            for one, row in found.items():
                if hidden is not None and hidden.any_in(row.first, row.last + 1):
                    doubtful[one] = row
                else:
                    numbers[one] += row.messages
            if doubtful:
                begin = min(row.first for row in doubtful.values())
                end = max(row.last for row in doubtful.values()) + 1
                for one, number in self._read_counts(doubtful, begin, end).items():
                    numbers[one] += number
        return [numbers[one] for one in subjects]

    def _read_counts(self, subjects: Collection[bytes], begin: int, end: int) -> dict[bytes, int]:
        """Return the numbers of messages from `begin` to `end` that are not hidden."""
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = dict.fromkeys(subjects, 0)
        names = pa.array([one.decode() for one in subjects], pa.utf8())
        for _, data in self._live_view.batches(begin, end):
            self._tell(len(data))
            rows = codec.check_rows(data)
            offsets = rows.column("offset")
            is_there = pc.and_(pc.greater_equal(offsets, begin), pc.less(offsets, end))
            matching = rows.filter(pc.and_(is_there, pc.is_in(rows.column("subject"), value_set=names)))
            for one in matching.column("subject").value_counts().to_pylist():
                numbers[one["values"].encode()] += one["counts"]
        return numbers

    def of(self, subject: str) -> SubjectRow | None:
        """Return number, first and last of the messages of a subject; None: there are none."""
        name = subject.encode()
        total: SubjectRow | None = None
        for piece in self._pieces():
            for found in self._use(piece, lambda source: source.find(name)):
                total = _added(total, found) if found is not None else total
        return total

    def matching(self, patterns: Sequence[str], *, after: str = "", limit: int) -> list[SubjectRow]:
        """Return the first `limit` matching subjects behind `after`, in byte order, with what `of` returns of each.

        Memory: `limit` subjects, as those of one segment are among the first of all only if they are its first ones.
        """
        wanted, behind = SubjectFilter(patterns), after.encode()
        found: dict[str, SubjectRow] = {}
        for piece in self._pieces():
            for rows in self._use(piece, lambda source: _first(wanted.select(source, behind), limit)):
                for row in rows:
                    found[row.subject] = _added(found.get(row.subject), row)
            if len(found) > 2 * limit:
                found = {row.subject: row for row in _lowest(found, limit)}
        return _lowest(found, limit)

    def count(self, patterns: Sequence[str]) -> int:
        """Return the number of messages whose subjects match."""
        wanted = SubjectFilter(patterns)
        return sum(sum(self._use(piece, wanted.count)) for piece in self._pieces())

    def next(self, patterns: Sequence[str], offset: int) -> int | None:
        """Return the offset of the first message at or behind `offset` whose subject matches; None: there is none."""
        wanted = SubjectFilter(patterns)
        for piece in self._pieces():
            if piece.end <= offset:
                continue
            start = max(offset, piece.begin)
            found = self._use(piece, lambda source: _next_in(wanted, source, start), is_last=True)  # noqa: B023
            bounds = [one for one in found if one is not None]
            if not bounds:
                continue
            bound, is_exact = min(bounds)
            if is_exact:
                return bound
            # A subject has messages before and behind: which of them is the next one is read from the batches.
            for rows, size_bytes in subject_rows(self._view, start, min(bound + 1, piece.end)):
                self._tell(size_bytes)
                matching = wanted.matching(rows)
                if matching.num_rows:
                    return int(matching.column(0)[0].as_py())
        return None

    def ranges(self, subjects: Collection[bytes], begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of offsets, one for each segment at most, from the newest to the oldest: outside of them no
        message from `begin` to `end` is on one of these subjects. The caller may take subjects out meanwhile.
        """
        wanted = WantedSubjects([*subjects])
        for piece in self._pieces_with(wanted):
            low, high = max(begin, piece.begin), min(end, piece.end)
            if low >= high:
                continue
            if len(subjects) < len(wanted.names):
                wanted = WantedSubjects([*subjects])
            if not wanted.names:
                return
            parts = self._use(piece, lambda source: source.find_each(wanted), may_exceed=True)  # noqa: B023
            if spans := [span for part in parts for span in part.values()]:
                low, high = max(low, min(span.first for span in spans)), min(high, max(one.last for one in spans) + 1)
                if low < high:
                    yield low, high

    # Sources of the answers.

    def _pieces(self) -> list[Piece]:
        return [piece for segment in self._view.segments if (piece := self._piece(segment)) is not None]

    def _piece(self, segment: Segment) -> Piece | None:
        begin, end = max(self._begin, segment.base_offset), min(self._end, segment.end_offset)
        return Piece(segment, begin, end, segment is not self._view.segments[-1]) if begin < end else None

    def _pieces_with(self, wanted: WantedSubjects) -> Iterator[Piece]:
        """Yield the pieces that may hold one of these subjects by the kept filters, from the newest to the oldest.

        ColdError on an event loop, if filters are to be kept first, or many are to be read.
        """
        view = self._view
        newest_first = view.segments[::-1]
        filters: list[bytes | None] = [None] * len(newest_first)
        numbers: Sequence[int] = range(len(newest_first))
        if self._makes_indexes:
            memories = [(one if one.successor is None else one.latest).subjects for one in newest_first]
            # The active segment has none: its sums are asked.
            filters = [None if (kept := one.filter) is None else kept.pages for one in memories]
            if view.is_cached and len(filters) > limits.CACHED_FILTERS_MAX:
                raise ColdError(f"{len(filters)} filters are asked by a disk thread")
            view.filters.look_up()
            numbers = subject_filter.holding(filters, wanted.hashes)
        missing = 0
        for number in numbers:
            if (piece := self._piece(newest_first[number])) is None:
                continue
            if view.is_cached and piece.is_sealed and filters[number] is None:
                missing += 1
                if view.filters.may_have_room or missing > limits.CACHED_SEGMENTS_MAX:
                    raise ColdError("the filters of segments are read by a disk thread")
            yield piece

    def _use(
        self,
        piece: Piece,
        use: Callable[[SubjectSource], _T],
        *,
        is_last: bool = False,
        may_exceed: bool = False,
        keeps: bool = False,
    ) -> list[_T]:
        """Return what `use` makes of the index of a segment, or of each sum of what has none.

        `is_last`: an index that also counts what log_start cuts off will do. `may_exceed`: so will one, or sums, that
        also count what is cut off behind. `keeps`: its filter is kept, as with `may_exceed`.
        """
        self._tell(0)
        segment = piece.segment
        has_end = may_exceed or piece.end == segment.end_offset
        is_whole = has_end and (may_exceed or is_last or piece.begin == segment.base_offset)
        if self._makes_indexes and piece.is_sealed and is_whole:
            for _ in range(_TRIES):
                segment = segment.latest
                with contextlib.suppress(SegmentReplacedError):
                    return self._with_index(segment, use, keeps=may_exceed or keeps)
        return [use(one) for one in self._summed(piece, may_exceed=may_exceed)]

    def _with_index(self, segment: Segment, use: Callable[[SubjectSource], _T], *, keeps: bool) -> list[_T]:
        """`keeps`: its filter is kept in memory, if there is room, as the next query will ask it again."""
        for _ in range(_TRIES):
            if segment.subjects.trailer is None and not has_index(self._view, segment):
                try:
                    for size_bytes in build_index(self._view, segment):
                        self._tell(size_bytes)
                except (OSError, writing.IndexTooLargeError):
                    break  # no room for it, or the segment is read-only: the query reads the rows
                if not has_index(self._view, segment):
                    break  # it has no row
            try:
                with _opened(self._view, segment) as index:
                    if keeps:
                        _keep_filter(self._view, segment, index)
                    return [use(index)]
            except FileNotFoundError:  # with its segment, or by hand
                segment.subjects.forget_index()
                _check_still(self._view, segment)
            except CorruptionError as error:
                if error.file != files.subjects_path(segment.path):
                    raise
                _discard(self._view, segment, error)
        raise SegmentReplacedError(segment.path)

    def _summed(self, piece: Piece, *, may_exceed: bool) -> tuple[SubjectRows, ...]:
        """Return sums of the rows of a piece, and remember them with its segment."""
        memory = piece.segment.subjects
        known = memory.summed
        if may_exceed and known is not None and known[0] <= piece.begin and known[1] >= piece.end:
            return known[2]
        begin, parts = piece.begin, list[SubjectRows]()
        if known is not None and known[0] == begin and known[1] <= piece.end:
            begin, parts = known[1], list(known[2])
        if begin < piece.end:
            total = SubjectSum()
            for rows, size_bytes in subject_rows(self._view, begin, piece.end):
                self._tell(size_bytes)
                total.add(rows)
            if len(added := total.in_memory()):
                parts.append(added)
            # Later sums are merged into earlier ones as they reach half their size: each row is summed a few times.
            while len(parts) > 1 and len(parts[-2]) <= 2 * len(parts[-1]):
                parts[-2:] = [sum_of(parts[-2:])]
            is_newer = known is None or known[0] != piece.begin or known[1] <= piece.end
            # Not of other segments, which get an index, nor from where a caller begins: memory would grow with the log.
            from_start = piece.begin == max(self._view.log_start, piece.segment.base_offset)
            if is_newer and from_start and (not piece.is_sealed or piece.begin > piece.segment.base_offset):
                memory.summed = piece.begin, piece.end, tuple(parts)
        return tuple(parts)


def _added(one: SubjectRow | None, other: SubjectRow) -> SubjectRow:
    if one is None:
        return other
    first, last = min(one.first, other.first), max(one.last, other.last)
    return SubjectRow(one.subject, one.messages + other.messages, first, last)


def _first(batches: Iterator[pa.RecordBatch], limit: int) -> list[SubjectRow]:
    found: list[SubjectRow] = []
    for batch in batches:
        columns = [column.to_pylist() for column in batch.slice(0, limit - len(found)).columns]
        found += map(SubjectRow._make, zip(*columns, strict=True))
        if len(found) >= limit:
            break
    return found


def _lowest(found: dict[str, SubjectRow], limit: int) -> list[SubjectRow]:
    return [found[subject] for subject in sorted(found, key=str.encode)[:limit]]


def _next_in(wanted: SubjectFilter, source: SubjectSource, offset: int) -> tuple[int, bool] | None:
    """Return an offset at or behind `offset`, up to which there is a match, and True if that is the next one."""
    import pyarrow.compute as pc

    bound: int | None = None
    is_exact = True
    for batch in wanted.select(source):
        present = batch.filter(pc.greater_equal(batch.column(3), offset))
        if not present.num_rows:
            continue
        first, last = present.column(2), present.column(3)
        is_behind = pc.greater_equal(first, offset)
        is_exact = is_exact and pc.all(is_behind).as_py()
        lowest = pc.min(pc.if_else(is_behind, first, last)).as_py()
        bound = lowest if bound is None else min(bound, lowest)
    return None if bound is None else (bound, is_exact)
