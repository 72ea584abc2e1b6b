"""Queries of the content of batches: run in a disk thread, on an immutable view of the log.

Rules: a query touches only what it captured. What it reads is verified before use. A search from the end of the log
reads at most SCAN_BYTES_MAX and reports if that was not enough. Between two batches a query checks whether it was
cancelled.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from penstock.access.rules import refused_subject
from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.errors import CorruptionError, ErrorCode, PenstockError, RemoteError
from penstock.base.ids import Offset
from penstock.base.partitioning import PartitionSplit
from penstock.base.subjects import subject_mistake
from penstock.batch import codec, compression
from penstock.batch.codec import NOBODY, BatchProducer, Buffer
from penstock.batch.header import OF_ROWS, BatchHeader
from penstock.batch.picking import RowPicker
from penstock.batch.placing import by_content
from penstock.commitlog import (
    FoundRow,
    LiveCounts,
    LiveState,
    LiveSubjectQueries,
    LogView,
    SubjectQueries,
    SubjectRow,
    TooManyRowsError,
    row_at,
)
from penstock.hot.keymap import KeyMap, key_map_of
from penstock.hot.message_group import MessageGroup
from penstock.hot.rows import BatchRows, HeaderRequests
from penstock.ingest.value_check import ValueCheck
from penstock.messages import ListedSubject, ListSubjectsRequest
from penstock.metadata.image import StreamState
from penstock.vfs.page_cache import ColdError

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = 7  # index of the key column's first buffer; for the value column _VALUE
_VALUE = 10
_SCHEDULE_LINE = b"\r\nNats-Schedule"


class QueryGivenUpError(PenstockError):
    """The query was cancelled."""


class MistypedError(RemoteError):
    """The value of a row does not fit the schema of its subject (schema_mismatch)."""


class UnknownVersionError(MistypedError):
    """It does not fit because its header names a version that the check lacks."""


class Query:
    """A task on an immutable view of a log."""

    is_search = False  # True if it may read much

    def __init__(self, view: LogView) -> None:
        self._view = view
        self._is_wanted = True
        self.looked_bytes = 0  # size of the batches read

    def run(self) -> None:
        """Execute, in a disk thread. Raise RemoteError, OSError or QueryGivenUpError."""
        raise NotImplementedError

    def run_if_cached(self) -> bool:
        """Execute on the event loop if little work and no disk is needed; False: `run` it. RemoteError as `run`."""
        return False

    def give_up(self) -> None:
        """Cancel the query; callable from any thread."""
        self._is_wanted = False

    def _looked(self, size_bytes: int) -> None:
        self.looked_bytes += size_bytes
        if not self._is_wanted:
            raise QueryGivenUpError

    def _batches(
        self, start: int, end: int, *, reverse: bool = False, as_stored: bool = False
    ) -> Iterator[tuple[BatchHeader, Buffer]]:
        if not self._is_wanted:
            raise QueryGivenUpError
        view = self._view.as_stored() if as_stored else self._view
        for batch in view.batches(start, end, reverse=reverse):
            self.looked_bytes += len(batch[1])
            yield batch
            if not self._is_wanted:
                raise QueryGivenUpError

    def _batches_past_damage(
        self, begin: int, end: int, wants: Callable[[BatchHeader], bool]
    ) -> Iterator[tuple[BatchHeader, Buffer]]:
        """Yield the batches that are wanted, as stored; what is damaged is left out: no reader is shown it."""
        while begin < end:
            try:
                for header, data in self._view.as_stored().batches(begin, end, wants=wants):
                    self._looked(len(data))
                    yield header, data
                    begin = max(begin, header.end_offset)
                return
            except RemoteError as error:
                damage = error.details.get("base_offset", 0), error.details.get("end_offset", 0)
                if error.code != ErrorCode.CORRUPT_RANGE or damage[1] <= begin:
                    raise
                begin = damage[1]


def keys_and_values(data: Buffer) -> tuple[list[bytes | None], list[bytes | None]]:
    """Return two columns of a checked batch, straight from their buffers: Arrow is slow for the few rows of most."""
    columns = codec.buffers(data)
    return _strings(*columns[_KEY : _KEY + 3]), _strings(*columns[_VALUE : _VALUE + 3])


def _strings(validity: memoryview, ends: memoryview, values: memoryview) -> list[bytes | None]:
    bounds, text = ends.cast("i"), bytes(values)
    found: list[bytes | None] = [text[begin:end] for begin, end in pairwise(bounds)]
    if validity:
        for row in range(len(found)):
            if not validity[row >> 3] >> (row & 7) & 1:
                found[row] = None
    return found


class GetMessage(Query):
    """Finds one committed message and encodes it as a batch of its own.

    `is_indexed`: the last message of a subject is found by the subject indexes, which are made where they are missing.
    """

    def __init__(
        self,
        view: LogView,
        committed_end: int,
        *,
        offset: int | None,
        key: bytes | None,
        subject: str | None,
        is_indexed: bool = False,
    ) -> None:
        super().__init__(view)
        self._is_indexed = is_indexed
        self.is_search = offset is None
        self._committed_end = committed_end
        self._offset = offset
        self._key = key
        self._subject = subject
        self._is_cached = False  # True while it runs on the event loop
        self.found_offset = 0
        self.data = bytearray()

    def run(self) -> None:
        """Raise RemoteError: message_not_found, offset_out_of_range or corrupt_range."""
        if self._offset is not None and self._subject is not None:
            self._on_subject(self._offset, self._subject)
        elif self._offset is not None:
            self._by_offset(self._offset)
        elif self._key is not None:
            self._last("key", self._key)
        elif self._is_indexed and self._subject is not None:
            self._last_of_subject(self._subject)
        else:
            self._last("subject", self._subject)

    def run_if_cached(self) -> bool:
        """A message by its offset, or by its subject if the indexes are there: see `Query.run_if_cached`."""
        if self._offset is None and not (self._is_indexed and self._subject is not None):
            return False
        reads_max, bytes_max = limits.CACHED_READS_MAX, limits.CACHED_BYTES_MAX
        view, vfs = self._view, self._view.vfs.cached(reads_max=reads_max, bytes_max=bytes_max)
        if vfs is None:
            return False
        try:
            self._is_cached, self._view = True, view.reading(vfs)
            self.run()
            return True
        except RemoteError as error:
            if error.code in (ErrorCode.MESSAGE_NOT_FOUND, ErrorCode.OFFSET_OUT_OF_RANGE):
                raise
        except (PenstockError, OSError):
            pass
        finally:
            self._is_cached, self._view = False, view
        self.looked_bytes = 0
        return False  # the disk is needed, or a disk thread reports what is corrupt

    def _summing(self, size_bytes: int) -> None:
        """Rows are summed up by subject, which takes long."""
        if self._is_cached and size_bytes:
            raise ColdError("rows are summed up by a disk thread")
        self._looked(size_bytes)

    def _last_of_subject(self, subject: str) -> None:
        queries = SubjectQueries(self._view, self._committed_end, self._summing, reads_first=True)
        offset = queries.last(subject)
        if offset is None:
            raise RemoteError(ErrorCode.MESSAGE_NOT_FOUND, "the stream holds no message with that subject")
        found = row_at(self._view, offset, self._looked)
        if found is not None and found.row.subject == subject.encode():
            self._take(found)
        else:
            self._last("subject", subject)  # it has just expired or been compacted away, or the index is wrong

    def _on_subject(self, offset: int, subject: str) -> None:
        """Return the message at an offset; the error is the same whether it is deleted or on another subject.

        Who asks may have no right to read the other subjects.
        """
        found = ""
        try:
            found = self._by_offset(offset)
        except RemoteError as error:
            if error.code != ErrorCode.MESSAGE_NOT_FOUND:
                raise
        if found != subject:
            self.data = bytearray()
            text = f"at offset {offset} is no message on the subject {subject!r}"
            raise RemoteError(ErrorCode.MESSAGE_NOT_FOUND, text, offset=offset)

    def _by_offset(self, offset: int) -> str:
        """Take the message at an offset and return its subject."""
        start, end = self._view.log_start, self._committed_end
        if not start <= offset < end:
            holds = f"{start} to {end - 1}" if start < end else f"nothing; its next offset is {end}"
            raise RemoteError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not there: the stream holds {holds}",
                log_start=start,
                committed_end=end,
            )
        if (found := row_at(self._view, offset, self._looked)) is not None:
            return self._take(found)
        text, hidden = f"the message at offset {offset}", self._view.hidden
        if hidden is not None and offset in hidden:
            deleted_end = min(hidden.first_absent(offset), self._committed_end)
            text = f"{text} was deleted, or has expired"
            raise RemoteError(ErrorCode.MESSAGE_NOT_FOUND, text, offset=offset, deleted_end=deleted_end)
        text = f"{text} has expired, was compacted away, or was removed by a rollup"
        raise RemoteError(ErrorCode.MESSAGE_NOT_FOUND, text, offset=offset)

    def _last(self, column: str, wanted: bytes | str | None) -> None:
        import pyarrow.compute as pc

        scanned = 0
        for header, data in self._batches(self._view.log_start, self._committed_end, reverse=True):
            rows = codec.check_rows(data)
            hits = pc.indices_nonzero(pc.fill_null(pc.equal(rows.column(column), wanted), fill_value=False))
            offsets = codec.offsets(data)
            for hit in reversed(hits.to_pylist()):
                if self._view.log_start <= offsets[hit] < self._committed_end:
                    self._take(FoundRow(RowPicker.of(data).row(hit), header))
                    return
            scanned += len(data)
            if scanned > limits.SCAN_BYTES_MAX:
                text = f"no message with that {column} among the last {scanned} bytes; older ones were not searched"
                raise RemoteError(ErrorCode.MESSAGE_NOT_FOUND, text, scanned_bytes=scanned)
        raise RemoteError(ErrorCode.MESSAGE_NOT_FOUND, f"the stream holds no message with that {column}")

    def _take(self, found: FoundRow) -> str:
        """Encode a row as the answer and return its subject."""
        row, self.found_offset = found.row, found.row.offset
        assert row.subject is not None
        self.data, _ = codec.encode(
            MessageGroup.of([row.subject], [row.value], keys=[row.key], headers=[row.headers]),
            0,
            1,
            base_offset=row.offset,
            timestamp_us=row.timestamp_us,
            leader_epoch=found.header.leader_epoch,
            flags=found.header.flags & OF_ROWS,
        )
        return row.subject.decode()


class FindOffset(Query):
    """Finds the first offset at or after a timestamp, or the timestamp of the first message from an offset on."""

    def __init__(
        self,
        view: LogView,
        committed_end: int,
        *,
        offset: int | None,
        timestamp_us: int | None,
        counts_rows: bool = False,
        rows_from: int | None = None,
    ) -> None:
        super().__init__(view)
        self._committed_end = committed_end
        self._counts_rows = counts_rows
        self._rows_from = rows_from
        self.rows: int | None = None  # live rows from `rows_from` on
        self.live: LiveState | None = None  # only if the rows are to be counted, and can be
        self._wanted_us = timestamp_us
        self.offset = committed_end if offset is None else offset
        self.timestamp_us: int | None = None

    def run_if_cached(self) -> bool:
        """The end and the counts of an empty log: see `Query.run_if_cached`."""
        if self._view.log_start < self._committed_end or self._wanted_us is not None:
            return False
        self.run()
        return True

    def run(self) -> None:
        """Raise RemoteError (corrupt_range) if the log is corrupt there."""
        if self._counts_rows:
            with contextlib.suppress(RemoteError, TooManyRowsError):  # a corrupt batch elsewhere
                self.live = LiveCounts(self._view, self._committed_end, self._looked).state()
        if self._rows_from is not None:
            start = min(max(self._view.log_start, self._rows_from), self._committed_end)
            with contextlib.suppress(RemoteError, TooManyRowsError):
                self.rows = LiveCounts(self._view.starting_at(start), self._committed_end, self._looked).rows()
        if self._wanted_us is not None:
            self.offset, self.timestamp_us = self._view.first_at(self._wanted_us, end=self._committed_end)
            if self._view.hidden is not None and self._view.hidden.any_in(self.offset, self.offset + 1):
                self.timestamp_us = None
            if self.timestamp_us is not None:
                return
        for _, data in self._batches(self.offset, self._committed_end):
            offsets = codec.offsets(data)
            row = bisect_left(offsets, self.offset)
            if row < len(offsets) and offsets[row] < self._committed_end:
                self.timestamp_us = codec.timestamps(data)[row]
                if self._wanted_us is not None and self._view.hidden:
                    self.offset = offsets[row]
                return
        if self._wanted_us is not None and self._view.hidden:  # all rows from there on are hidden
            self.offset = self._committed_end


class ListSubjects(Query):
    """Lists the matching subjects of live rows; with `limit` 0 counts the rows, in as many segments as one may take."""

    is_search = True

    def __init__(self, view: LogView, committed_end: int, request: ListSubjectsRequest) -> None:
        super().__init__(view)
        self._request = request
        self._end = committed_end if request.end is None else min(request.end, committed_end)
        self.subjects: tuple[ListedSubject, ...] = ()
        self.subject_count: int | None = None
        self.messages = 0
        self.end_offset = self._end

    @property
    def _is_list(self) -> bool:
        """True if the query cannot stop on the way."""
        return bool(self._request.limit) or self._request.counts_subjects

    def run(self) -> None:
        """RemoteError: corrupt_range; not_yet if indexes had to be made for so long that others have their turn now."""
        request = self._request
        begin = max(request.begin, self._view.log_start)
        queries = LiveSubjectQueries(self._view, self._end, self._tell, self._tell_subjects, begin=begin)
        if request.limit:
            found = queries.matching(request.subjects, after=request.after, limit=request.limit)
            self.subjects = tuple(map(_listed, found))
            return
        if request.counts_subjects:
            count = len(queries.matching(request.subjects, limit=limits.SUBJECTS_COUNTED_MAX + 1))
            self.subject_count = count if count <= limits.SUBJECTS_COUNTED_MAX else None
            return
        self.end_offset = begin = min(begin, self._end)
        if ">" in request.subjects:
            with contextlib.suppress(TooManyRowsError):
                self.messages = LiveCounts(self._view.starting_at(begin), self._end, self._looked).rows()
                self.end_offset = self._end
                return
        for messages, end in queries.count_from(request.subjects, begin):
            self.messages += messages
            self.end_offset = end
            if self.looked_bytes >= limits.SUBJECTS_COUNTED_BYTES_MAX:
                return
        self.end_offset = self._end

    def _tell(self, size_bytes: int) -> None:
        self._looked(size_bytes)
        if self._is_list and self.looked_bytes > limits.SUBJECTS_LISTED_BYTES_MAX:
            text = "the subject indexes of the stream are being made, or many of its messages were deleted just now"
            raise RemoteError(ErrorCode.NOT_YET, f"list_subjects: {text}; ask again in a moment")

    def _tell_subjects(self, size_bytes: int) -> None:
        self._looked(size_bytes)
        if self._is_list and self.looked_bytes > limits.SUBJECTS_LISTED_BYTES_MAX:
            text = f"{self.looked_bytes} bytes of subjects were looked through, and too few match"
            advice = "subjects: name more of the subject in front of its first wildcard, or set begin and end"
            raise RemoteError(ErrorCode.TOO_LARGE, f"list_subjects: {text}; {advice}")


def _listed(row: SubjectRow) -> ListedSubject:
    return ListedSubject(
        subject=row.subject, messages=row.messages, first_offset=Offset(row.first), last_offset=Offset(row.last)
    )


class OwnKeys(NamedTuple):
    """The keys that belong to a partition, if the client that appends does not choose the partition."""

    partition: int
    split: PartitionSplit
    key_map: KeyMap

    @classmethod
    def of(cls, stream: StreamState, partition: int) -> OwnKeys | None:
        """Return the keys of a partition; None if it takes all."""
        split = stream.config.split
        if not (split.is_by_leaders or stream.moves_keys):
            return None
        return cls(partition, split, key_map_of(stream.config, stream.counts))

    def check(self, rows: pa.RecordBatch) -> None:
        """Raise RemoteError (key_elsewhere) if a row belongs to another partition."""
        import pyarrow as pa
        import pyarrow.compute as pc

        count, keys = rows.num_rows, rows.column("key")
        found = by_content(
            self.split,
            self.key_map,
            count,
            None if keys.null_count == count else keys,
            lambda: rows.column("subject"),
            lambda: pa.repeat(pa.scalar(self.partition, pa.int32()), count),
        )
        elsewhere = pc.not_equal(found, self.partition)
        if (row := pc.index(elsewhere, value=True).as_py()) < 0:
            return
        place = found[row].as_py()
        text = f"nothing was stored: row {row} of the batch belongs to partition {place}, not {self.partition}"
        raise RemoteError(
            ErrorCode.KEY_ELSEWHERE, f"{text}; penstock.partitions_of(rows, info) says which", partition=place, row=row
        )


class RowRules(NamedTuple):
    """The conditions that rows must meet in a partition."""

    subjects: tuple[str, ...]
    message_bytes_max: int
    allows_ttls: bool
    allows_rollups: bool
    own: OwnKeys | None = None
    allowed: tuple[str, ...] | None = None  # subjects on which the client may append; None: all of the stream's
    values: ValueCheck | None = None  # refuses rows whose values do not fit their schemas; None: values are not checked
    former_subjects: tuple[str, ...] = ()  # on which rows of another log may be, too
    allows_schedules: bool = False

    @classmethod
    def of(cls, config: StreamConfig, partition: int, own: OwnKeys | None = None) -> RowRules:
        """Return the rules of a stream's partition; `own`: its keys, if it takes only some."""
        return cls(
            config.subjects_of(partition),
            config.max_message_bytes,
            config.allow_message_ttl,
            config.allow_rollup,
            own,
            former_subjects=config.held_subjects[len(config.subjects) :],
            allows_schedules=config.allows_schedules,
        )

    def check(self, rows: BatchRows, *, are_placed: bool = False) -> HeaderRequests:
        """Return the headers' requests of checked rows. Raise RemoteError: too_large, bad_request.

        `are_placed`: the rows come from another log. A header without effect there, because the stream did not allow it
        or could not read it, has none here either. They may be on subjects that the stream had formerly.
        """
        subjects = (*self.subjects, *self.former_subjects) if are_placed else self.subjects
        if (refused := rows.refused_subject(" ".join(subjects).encode())) is not None:
            subject = refused.decode()
            mistake = subject_mistake(subject)
            if mistake is None:
                on = ", ".join(map(repr, self.subjects))
                mistake = f"the subject {subject!r} is not one of this stream's, which is on {on}"
            raise RemoteError(ErrorCode.BAD_REQUEST, f"nothing was stored: {mistake}")
        for widest, limit, what in (
            (rows.widest_message, self.message_bytes_max, "a message (value and headers)"),
            (rows.widest_key, limits.KEY_BYTES_MAX, "a key"),
            (rows.widest_headers, limits.HEADER_BLOCK_BYTES_MAX, "a header block"),
        ):
            if (found := widest(limit)) > limit:
                text = f"nothing was stored: {what} of {found} bytes is over the limit of {limit}"
                raise RemoteError(ErrorCode.TOO_LARGE, text, size_bytes=found, limit_bytes=limit)
        asked = rows.asked()
        if are_placed:
            allowed = asked if self.allows_ttls else asked._replace(has_ttls=False)
            return allowed if self.allows_rollups else allowed._replace(has_rollups=False, rollup_row=-1)
        if self.allows_schedules and rows.has_header(_SCHEDULE_LINE):
            text = "a message has a header Nats-Schedule or Nats-Scheduler, and the stream sends scheduled messages"
            raise RemoteError(ErrorCode.BAD_REQUEST, f"nothing was stored: {text}: publish it over NATS")
        if asked.is_bad:
            text = (
                "a Nats-TTL is neither seconds, nor a duration such as 1h30m of a second at least, nor 'never'; or a "
                "Nats-Rollup is neither 'sub' nor 'all'"
            )
            raise RemoteError(ErrorCode.BAD_REQUEST, f"nothing was stored: {text}")
        if asked.has_ttls and not self.allows_ttls:
            text = "a message has a Nats-TTL, and the stream does not allow that: see allow_message_ttl"
            raise RemoteError(ErrorCode.BAD_REQUEST, f"nothing was stored: {text}")
        if (asked.has_rollups or asked.rollup_row >= 0) and not self.allows_rollups:
            text = "a message has a Nats-Rollup, and the stream does not allow that: see allow_rollup"
            raise RemoteError(ErrorCode.BAD_REQUEST, f"nothing was stored: {text}")
        return asked


def _check_allowed(rows: pa.RecordBatch, patterns: tuple[str, ...]) -> None:
    """Raise RemoteError (not_authorized) if a row is on a subject on which the client may not append."""
    subject = refused_subject(rows.column("subject").unique().to_pylist(), patterns)
    if subject is not None:
        text = f"nothing was stored: a row is on {subject!r}, and you may append only on {', '.join(patterns)}"
        raise RemoteError(ErrorCode.NOT_AUTHORIZED, text, operation="append", subject=subject)


def check_fit(rows: pa.RecordBatch, values: ValueCheck) -> None:
    """Raise MistypedError if the value of a row does not fit the schema of its subject.

    UnknownVersionError: a newer list of versions may show that all fit.
    """
    marks = values.of_rows(rows)
    if marks is None:
        return
    places = [row for row, mark in enumerate(marks) if mark]
    row = next((row for row in places if not values.names_unknown(marks[row : row + 1])), places[0])
    refused = UnknownVersionError if values.names_unknown(marks[row : row + 1]) else MistypedError
    subject = rows.column("subject")[row].as_py()
    text = f"nothing was stored: the value of row {row}, on {subject!r}, does not fit its schema"
    reason = values.explained(rows, row, marks[row])
    raise refused(ErrorCode.SCHEMA_MISMATCH, f"{text}: {reason}", row=row, subject=subject, reason=reason)


class CheckAppend:
    """Checks that a client's batch can be stored: layout, CRC, every row, the stream's rules.

    Afterwards `message` is a copy of it with `count` rows and Penstock's own metadata; empty keys are null, unless it
    `keeps_numbers`; `raw` is released.
    """

    def __init__(
        self,
        raw: bytes | memoryview,
        rules: RowRules,
        producer: BatchProducer = NOBODY,
        *,
        is_staged: bool = False,
        keeps_numbers: bool = False,
        may_be_ahead: bool = False,
    ) -> None:
        """`producer`: the idempotent producer, or the batch that it is staged for; zeros: neither.

        `is_staged`: headers take effect only when the rows are published. `keeps_numbers`: offsets and timestamps are
        kept; `may_be_ahead`: timestamps may be ahead of the broker's clock.
        """
        self.raw = raw
        self.producer = producer
        self.message = bytearray()
        self.count = 0
        self.asked: HeaderRequests | None = None  # what its rows' headers request
        self.rules = rules
        self.keeps_numbers = keeps_numbers
        self.may_be_ahead = may_be_ahead
        self._is_staged = is_staged

    def run(self) -> None:
        """Raise RemoteError: corrupt_batch, too_large or bad_request."""
        try:
            header = codec.verify(self.raw, file="the appended batch")
            if compression.is_compressed(self.raw):
                text = "nothing was stored: the appended batch is compressed; a broker takes plain ones, and compresses"
                raise RemoteError(ErrorCode.BAD_REQUEST, f"{text} what it has stored, if the stream's config says so")
            self.count = header.count
            rows = codec.check_values(self.raw, file="the appended batch")
            if self.keeps_numbers:
                buffers = codec.buffers(self.raw)
                codec.check_numbers(buffers[1], buffers[3], header, file="the appended batch")
        except CorruptionError as error:
            raise RemoteError(ErrorCode.CORRUPT_BATCH, f"nothing was stored: {error}") from None
        if rows.has_empty_key() and not self.keeps_numbers:  # rows of another log stay unchanged: copies are compared
            self.raw = memoryview(codec.without_empty_keys(self.raw))
            rows = codec.check_values(self.raw)
        asked = self.rules.check(rows, are_placed=self.keeps_numbers)
        if self.rules.own is not None:
            self.rules.own.check(codec.read_rows(self.raw))  # the broker assigns its numbers, so they need no check
        if self.rules.values is not None:
            check_fit(codec.read_rows(self.raw), self.rules.values)
        if self.rules.allowed is not None:
            if asked.rollup_row >= 0:
                text = "nothing was stored: a rollup of all removes messages on subjects on which you may not append"
                raise RemoteError(ErrorCode.NOT_AUTHORIZED, text, operation="append")
            _check_allowed(codec.read_rows(self.raw), self.rules.allowed)
        self.asked = None if self._is_staged else asked
        self.message = codec.own_copy(self.raw)
        self.raw = b""
