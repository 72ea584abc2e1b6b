"""Messages by subject, of one partition: the first ones of a range, the very last one, or the last one of each subject.

Rules: a disk thread searches, on an immutable view of the log. A few messages are looked up on the event loop, where
their place is known in memory and the page cache has their bytes. An answer has a bounded number of messages and bytes;
what is left is asked for again, from `next_offset` on. Hidden rows are no messages.

| which           | is found by                                                                    |
|-----------------|--------------------------------------------------------------------------------|
| next            | a read of the batches that the subject indexes leave possible (`Project`)      |
| next, of all    | the offset itself, if one message is wanted                                    |
| last            | the subject indexes, from the newest segment back                              |
| last of each    | the same for plain subjects; a list of the matching subjects for wildcards     |
| at              | the offsets themselves                                                         |
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.errors import ErrorCode, PenstockError, RemoteError
from penstock.base.subjects import is_wildcard
from penstock.batch import codec
from penstock.batch.picking import PickedRow
from penstock.batch.schema import arrow_schema
from penstock.commitlog import LiveSubjectQueries, LogView, row_at, rows_at
from penstock.hot.message_group import MessageGroup
from penstock.messages import FetchRequest, FindMessagesRequest
from penstock.node.api.last_rows import KnownRows
from penstock.node.api.projections import Project
from penstock.node.partition.log_queries import Query
from penstock.vfs.page_cache import ColdError

if TYPE_CHECKING:
    import pyarrow as pa

_ALL = ">"
NO_ROWS: Mapping[int, PickedRow] = {}


def plain_lasts(request: FindMessagesRequest) -> tuple[str, ...] | None:
    """Return the subjects of a request for their last messages, if that is all it is about; None: it is not."""
    is_all = request.which == "last_of_each" and not request.begin and request.end is None and request.limit > 0
    if not is_all or request.begin_us is not None or request.end_us is not None:
        return None
    return None if any(map(is_wildcard, request.subjects)) else request.subjects


class FindMessages(Query):
    """Runs `request` on a log up to `visible_end`; the result is `data`, a batch, or empty without a message.

    `begin` and `end` are the range, `next_offset` is where the next request goes on; `subjects` and
    `messages`: see the response.
    """

    def __init__(
        self, view: LogView, visible_end: int, request: FindMessagesRequest, known: KnownRows | None = None
    ) -> None:
        """`known`: of the subjects of `plain_lasts`; `fresh`: what was found of others."""
        super().__init__(view)
        self.known = known
        self.fresh: dict[str, PickedRow | None] = {}
        self._request = request
        self._patterns = list(dict.fromkeys(request.subjects))
        self._is_plain = not any(map(is_wildcard, self._patterns))
        self._is_at = request.which == "next" and request.limit == 1 and _ALL in self._patterns
        is_by_offset = self._is_at or request.which == "at"
        self.is_search = not (self._is_plain and request.which != "next") and not is_by_offset
        self._is_cached = False  # True while it runs on the event loop
        self._project: Project | None = None
        self.data = bytearray()
        self.subjects = self.messages = 0
        self.begin = max(view.log_start, request.begin)
        self._visible_end = visible_end
        self.end = visible_end if request.end is None else min(request.end, visible_end)
        self.next_offset = self.begin

    def run(self) -> None:
        """RemoteError: corrupt_range; too_large if last_of_each finds too many subjects; not_yet as of lists."""
        request, view = self._request, self._view
        if request.end_us is not None:
            self.end = min(self.end, self._offset_at(request.end_us))
        if request.begin_us is not None:
            self.begin = max(self.begin, self._offset_at(request.begin_us))
        self.end = max(self.end, view.log_start)
        self.next_offset = self.begin = min(self.begin, self.end)
        if self.begin < self.end or request.which == "last_of_each":
            match request.which:
                case "next":
                    self._find_next()
                case "last":
                    self._find_last()
                case "last_of_each":
                    self._find_each()
                case "at":
                    self._find_at()

    def run_if_cached(self) -> bool:
        """Of a few messages: see `Query.run_if_cached`."""
        request, view = self._request, self._view
        is_timed = request.begin_us is not None or request.end_us is not None
        if self.is_search or is_timed or len(view.segments) > limits.CACHED_SEGMENTS_MAX:
            return False
        known = {} if self.known is None else self.known.rows
        if max(len(self._patterns) - len(known), len(request.offsets)) > limits.FOUND_ON_LOOP_MAX:
            return False
        if len(known) > limits.KNOWN_ON_LOOP_MAX:
            return False
        if len(self._patterns) == len(known):
            self.run()
            return True
        vfs = view.vfs.cached(reads_max=limits.CACHED_READS_MAX, bytes_max=limits.CACHED_BYTES_MAX)
        if vfs is None:
            return False
        try:
            self._is_cached, self._view = True, view.reading(vfs)
            self.run()
            return True
        except (PenstockError, OSError):
            pass
        finally:
            self._is_cached, self._view = False, view
        self.looked_bytes = 0
        return False  # the disk is needed, or a disk thread reports what is wrong

    def give_up(self) -> None:
        """Cancel the query; callable from any thread."""
        super().give_up()
        if (project := self._project) is not None:
            project.give_up()

    def _offset_at(self, timestamp_us: int) -> int:
        """Return the offset of the first message that is not older; the end of the range if there is none."""
        offset, hidden = self._view.offset_at(timestamp_us, end=self.end), self._view.hidden
        return offset if hidden is None else min(hidden.first_absent(offset), self.end)

    # The first ones

    def _find_next(self) -> None:
        if self._is_at and (found := self._at_once()) is not None:
            self._take([found])
            self.next_offset = found.offset + 1
            return
        if self._is_cached:
            raise ColdError("batches are searched by a disk thread")
        request, view = self._request, self._view
        fetch = FetchRequest(
            stream_id=request.stream_id,
            offset=self.begin,  # type: ignore[arg-type]
            end=self.end,  # type: ignore[arg-type]
            subjects=None if _ALL in self._patterns else tuple(self._patterns),
            bytes_max=request.bytes_max,
        )
        # Not `self.end`, which may be within a batch, and a batch beyond the end of a read is not looked at.
        visible_end = self._visible_end
        self._project = project = Project(view, view.vfs, visible_end, fetch, is_indexed=True, rows_max=request.limit)
        if not self._is_wanted:
            project.give_up()
        try:
            rows = project.search()
        finally:
            self.looked_bytes += project.looked_bytes
        self.next_offset = min(project.end_offset, self.end)
        if self.next_offset == self.begin:  # an answer would have its caller ask the same again, at once
            raise RemoteError(ErrorCode.NOT_YET, "find_messages: nothing can be read there now; ask again in a moment")
        if rows:
            self._take_rows(rows)

    def _at_once(self) -> PickedRow | None:
        """Return the first message, if its place is known; None: it has to be searched."""
        hidden = self._view.hidden
        offset = self.begin if hidden is None else hidden.first_absent(self.begin)
        found = row_at(self._view, offset, self._looked) if offset < self.end else None
        return None if found is None else found.row

    def _take_rows(self, found: list[pa.RecordBatch]) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(found, schema=arrow_schema())
        if table.num_rows > self._request.limit:
            table = table.slice(0, self._request.limit)
            self.next_offset = table.column("offset")[-1].as_py() + 1
        (rows,) = table.combine_chunks().to_batches()
        offsets = rows.column("offset")
        self.data = codec.encode_arrow_at(rows, offsets[0].as_py(), offsets[-1].as_py() + 1)

    def _find_at(self) -> None:
        wanted = sorted({one for one in self._request.offsets if self.begin <= one < self.end})
        found, size_bytes = list[PickedRow](), 0
        self.next_offset = self.end
        for one in rows_at(self._view, wanted, self._looked):
            if one is not None:
                found.append(one.row)
                size_bytes += len(one.row.value or b"") + len(one.row.headers or b"")
                if size_bytes >= self._request.bytes_max:
                    self.next_offset = one.row.offset + 1
                    break
        self._take(found)

    # Last ones

    def _find_last(self) -> None:
        self.next_offset = self.end
        queries = self._queries()
        if self._is_plain:
            last: int | None = max(queries.last_of_many([one.encode() for one in self._patterns]))
        else:
            last = queries.last_matching(self._patterns)
        if last is not None and last >= self.begin:
            self._take(self._rows_at([last]))

    def _find_each(self) -> None:
        if self.known is not None:
            self._find_subjects(self.known)
            return
        queries, most = self._queries(), limits.FOUND_SUBJECTS_MAX
        if self._is_plain:
            lasts = [one for one in queries.last_of_many([one.encode() for one in self._patterns]) if one >= 0]
        else:
            lasts = [one.last for one in queries.matching(self._patterns, limit=most + 1)]
        if len(lasts) > most:
            raise RemoteError(ErrorCode.TOO_LARGE, f"find_messages: more than {most} subjects match", limit=most)
        self.subjects = len(lasts)
        wanted = sorted(one for one in lasts if one >= self.begin)
        self.messages = len(wanted)
        found = self._rows_at(wanted[: self._request.limit])
        self._take(found)
        is_all = len(found) == len(wanted)
        self.next_offset = self.end if is_all else found[-1].offset + 1

    def _find_subjects(self, known: KnownRows) -> None:
        """Find the last messages of plain subjects by what is known of them."""
        rows = dict(known.rows)
        places = {subject: offset for subject, offset in known.offsets.items() if offset < self.end}
        unknown = [one for one in self._patterns if one not in rows and one not in places]
        if unknown:
            lasts = self._queries().last_of_many([one.encode() for one in unknown])
            places.update((subject, last) for subject, last in zip(unknown, lasts, strict=True) if last >= 0)
            self.fresh = {subject: None for subject, last in zip(unknown, lasts, strict=True) if last < 0}
        self.subjects = self.messages = len(places) + sum(one is not None for one in rows.values())
        ready = {one.offset: one for one in rows.values() if one is not None}
        wanted = sorted([*places.values(), *ready])
        found = self._rows_at(wanted[: self._request.limit], ready)
        self._take(found)
        self.fresh |= {(one.subject or b"").decode(): one for one in found if one.offset not in ready}
        is_all = len(found) == len(wanted)
        self.next_offset = self.end if is_all else found[-1].offset + 1

    def _queries(self) -> LiveSubjectQueries:
        return LiveSubjectQueries(self._view, self.end, self._summing, self._listing)

    def _summing(self, size_bytes: int) -> None:
        """Rows are summed up by subject, which takes long."""
        if self._is_cached and size_bytes:
            raise ColdError("rows are summed up by a disk thread")
        self._looked(size_bytes)

    def _listing(self, size_bytes: int) -> None:
        self._looked(size_bytes)
        if self.looked_bytes > limits.SUBJECTS_LISTED_BYTES_MAX:
            text = f"{self.looked_bytes} bytes of subjects were looked through, and too few match"
            advice = "name more of the subject in front of its first wildcard, or set begin and end"
            raise RemoteError(ErrorCode.TOO_LARGE, f"find_messages: {text}; subjects: {advice}")

    def _rows_at(self, offsets: list[int], ready: Mapping[int, PickedRow] = NO_ROWS) -> list[PickedRow]:
        """Return the rows at these offsets, as many as one answer takes; those that are ready are not read."""
        found: list[PickedRow] = []
        size_bytes = 0
        read = rows_at(self._view, [one for one in offsets if one not in ready], self._looked)
        for offset in offsets:
            if (row := ready.get(offset)) is None:
                if (one := next(read)) is None:
                    raise RemoteError(ErrorCode.NOT_YET, "find_messages: a message was deleted meanwhile; ask again")
                row = one.row
            found.append(row)
            size_bytes += len(row.value or b"") + len(row.headers or b"")
            if size_bytes >= self._request.bytes_max:
                break
        return found

    def _take(self, rows: list[PickedRow]) -> None:
        """Encode rows as the answer."""
        if not rows:
            return
        group = MessageGroup.of(
            [one.subject or b"" for one in rows],
            [one.value for one in rows],
            keys=[one.key for one in rows],
            headers=[one.headers for one in rows],
        )
        offsets, times = array("q", [one.offset for one in rows]), array("q", [one.timestamp_us for one in rows])
        self.data = codec.encode_at(group, offsets, times)
