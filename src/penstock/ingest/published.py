"""Published runs of a log: the last batch that each query has published, to recognise retries.

Rules: a query numbers its batches, and a batch is published as a run of one or more pieces. The last batch of each
query is known, if it is within the window; of more than PUBLISHED_QUERIES_MAX queries those that published last. So
this state is a function of the log and the time, on every leader. A query that publishes a single batch has an id that
says so (`base.staged`): PUBLISHED_ONCE_MAX of those are kept separately, so that they do not evict the others.

| a piece of                       | last batch unfinished | last batch complete | query not known   |
|----------------------------------|-----------------------|---------------------|-------------------|
| an earlier batch                 | is there              | is there            |                   |
| the last batch: it is there      | is there              | is there            |                   |
| … the next one, of the same plan | is stored             | it has no more      |                   |
| … the next one, of another plan  | another one has begun | it has no more      |                   |
| … a later one                    | `out_of_sequence`     | it has no more      |                   |
| a later batch, its first piece   | `run_unfinished`      | is stored           | is stored         |
| … another piece                  | `run_unfinished`      | `out_of_sequence`   | `out_of_sequence` |

Idea: Kafka's transactions and Flink's committables, without a coordinator: a piece is one batch of the log, so it is
stored whole or not at all, and the log alone says which are.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.staged import is_once
from penstock.batch.header import ENDS_RUN, OF_RUN, BatchHeader


class RunPiece(NamedTuple):
    """A piece to publish; `plan` is the mark of its plan plus one, 0 without one."""

    query_id: bytes
    batch_id: int
    number: int
    plan: int = 0


class PublishedRun(NamedTuple):
    """Progress of a query's last batch; the offsets are those of its last piece."""

    batch_id: int
    pieces: int
    is_complete: bool
    plan: int
    base_offset: int
    end_offset: int
    timestamp_us: int


_Known = tuple[dict[bytes, PublishedRun], dict[bytes, PublishedRun]]
"""Known runs of ordinary queries, and of queries that publish once; ordered by last publication."""


def _counts_max() -> tuple[int, int]:
    return limits.PUBLISHED_QUERIES_MAX, limits.PUBLISHED_ONCE_MAX


def _published(header: BatchHeader) -> PublishedRun:
    return PublishedRun(
        header.producer_sequence,
        header.producer_epoch + 1,
        bool(header.flags & ENDS_RUN),
        header.run_plan,
        header.base_offset,
        header.end_offset,
        header.max_timestamp_us,
    )


class PublishedRuns:
    """The runs of one leadership: being read from the log, known, or unavailable; see `node.api.staged_publishing`.

    `failure`: why they could not be read; empty if they are known or still being read.
    """

    __slots__ = ("_known", "failure")

    def __init__(self) -> None:
        self.failure = ""
        self._known: _Known | None = None

    @property
    def is_reading(self) -> bool:
        """True if they are not known yet."""
        return self._known is None and not self.failure

    @property
    def count(self) -> int:
        """Number of known queries."""
        return 0 if self._known is None else sum(map(len, self._known))

    def known(self, found: RunCollector) -> None:
        """Take the result of reading the log."""
        self._known = found.in_order()

    def page(self, after: bytes, count: int, now_us: int) -> list[tuple[bytes, PublishedRun]]:
        """Return up to `count` queries with an id above `after`, ordered by id, each with its last batch."""
        assert self._known is not None
        since_us = now_us - _WINDOW_US
        there = (item for some in self._known for item in some.items())
        return nsmallest(count, (item for item in there if item[0] > after and item[1].timestamp_us >= since_us))

    def find(self, piece: RunPiece, now_us: int) -> PublishedRun | None:
        """Return the stored batch that makes this piece a duplicate or obsolete; None if the piece is to be stored.

        Raise RemoteError run_unfinished or out_of_sequence: it must not be stored.
        """
        assert self._known is not None
        last = self._known[is_once(piece.query_id)].get(piece.query_id)
        if last is not None and last.timestamp_us < now_us - _WINDOW_US:
            last = None
        if last is None or last.batch_id < piece.batch_id:
            if last is not None and not last.is_complete:
                text = (
                    f"batch {last.batch_id} of the query is not completely published: {last.pieces} pieces are stored"
                )
                raise _refused(ErrorCode.RUN_UNFINISHED, f"{text}, and it comes first", last)
            if piece.number:
                text = f"nothing of batch {piece.batch_id} of the query is stored, and this is its piece {piece.number}"
                raise _refused(ErrorCode.OUT_OF_SEQUENCE, text, None)
            return None
        if last.batch_id > piece.batch_id or piece.number < last.pieces or last.is_complete:
            return last
        if piece.number > last.pieces:
            text = f"of batch {last.batch_id} of the query {last.pieces} pieces are stored, and this is its piece"
            raise _refused(ErrorCode.OUT_OF_SEQUENCE, f"{text} {piece.number}, counted from 0", last)
        return None if piece.plan == last.plan else last

    def appended(self, header: BatchHeader) -> None:
        """Record a piece that `find` let pass and that was appended at the end of the log."""
        if self._known is None or not header.flags & OF_RUN:
            return
        known = self._known[is_once(header.run_id)]
        known.pop(header.run_id, None)
        known[header.run_id] = _published(header)
        since_us = header.max_timestamp_us - _WINDOW_US
        for some, count_max in zip(self._known, _counts_max(), strict=True):
            while some and (len(some) > count_max or next(iter(some.values())).timestamp_us < since_us):
                del some[next(iter(some))]


class RunCollector:
    """Collects runs from the headers of a log, the last batch first, back to `since_us`."""

    def __init__(self, since_us: int) -> None:
        self._since_us = since_us
        self._found: _Known = ({}, {})

    def wants(self, header: BatchHeader) -> bool:
        """True if the batch matters: then verify and `add` it."""
        if not header.flags & OF_RUN or header.max_timestamp_us < self._since_us:
            return False
        kind = is_once(header.run_id)
        found = self._found[kind]
        return header.run_id not in found and len(found) < _counts_max()[kind]

    def add(self, header: BatchHeader) -> None:
        """Add a batch for which `wants` is true."""
        self._found[is_once(header.run_id)][header.run_id] = _published(header)

    def in_order(self) -> _Known:
        """Return all runs found, ordered by last publication."""
        queries, once = self._found
        return dict(reversed(queries.items())), dict(reversed(once.items()))


_WINDOW_US = limits.PUBLISHED_WINDOW_MS * 1_000


def _refused(code: ErrorCode, text: str, last: PublishedRun | None) -> RemoteError:
    details = {} if last is None else {"batch_id": last.batch_id, "pieces": last.pieces}
    return RemoteError(code, f"nothing was published: {text}", **details)
