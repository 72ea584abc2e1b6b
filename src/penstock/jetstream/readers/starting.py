"""The first place of a new reader, and its number of pending messages: the node is asked, in steps.

Rules: counts are of messages that are not deleted. A list of subjects is bounded; a stream with more is refused.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Generator
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.consumers.state import POSITION_MAX
from penstock.jetstream.conversations import Answered, Asked, ask
from penstock.jetstream.errors import unavailable
from penstock.jetstream.readers.chunks import without_hidden
from penstock.jetstream.readers.config.reader_config import ReaderConfig
from penstock.jetstream.readers.feed import Feed, Pending
from penstock.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListSubjectsRequest,
    ListSubjectsResponse,
)
from penstock.metadata.image import StreamState
from penstock.node.partition.partition import Shown

SUBJECTS_MAX = 1_000_000
"""Subjects of a reader that begins with the last message of each: 8 MB of offsets."""


class Start(NamedTuple):
    """The first place of a reader: at `offset`, or with the `wanted` offsets (8 bytes each) below `resume` first."""

    offset: int
    wanted: bytes = b""
    resume: int = 0


def shown_now(feed: Feed) -> Generator[Asked, list[Answered], Shown]:
    """Return what readers are shown, with all that was acked before. Raise RemoteError.

    It is asked, for rows of a stream with a limit by subject or rollups are shown a moment after their ack.
    """
    yield from ask(ListOffsetsRequest(stream_id=feed.stream_id, at="latest"), ListOffsetsResponse)
    if (shown := feed.look()) is None:
        raise RemoteError(ErrorCode.NOT_LEADER, "the stream is led by another broker")
    return shown


def start_of(state: StreamState, config: ReaderConfig, shown: Shown) -> Generator[Asked, list[Answered], Start]:
    """Return where a reader with this config begins. Raise RemoteError, ApiError."""
    begin, end = shown.log_start, shown.end
    if shown.hidden is not None:  # as the stream's first sequence is told
        begin = min(end, shown.hidden.first_absent(begin))
    match config.policy:
        case "new":
            return Start(end)
        case "by_start_sequence":
            return Start(max(begin, min(config.start_seq - 1, POSITION_MAX)))
        case "by_start_time":
            request = ListOffsetsRequest(stream_id=state.stream_id, at=config.start_us)
            found = yield from ask(request, ListOffsetsResponse)
            return Start(max(begin, int(found.offset)))
        case "last":
            return (yield from _last(state, config, end))
        case "last_per_subject":
            if state.config.subject_limit == 1:
                return Start(begin)  # all that there is are the last messages
            offsets = yield from _last_offsets(state, config.filters or state.config.subjects)
            resume = max(end, offsets[-1] + 1) if offsets else end
            return Start(offsets[0] if offsets else end, offsets.tobytes(), resume)
        case _:
            return Start(begin)


def _last(state: StreamState, config: ReaderConfig, end: int) -> Generator[Asked, list[Answered], Start]:
    if config.filters:
        offsets = yield from _last_offsets(state, config.filters)
        return Start(offsets[-1] if offsets else end)
    request = ListOffsetsRequest(stream_id=state.stream_id, at="latest", counts_rows=True)
    found = yield from ask(request, ListOffsetsResponse, None, lambda response: response.live is not None)
    last = None if found.live is None else found.live.last_offset
    return Start(end if last is None else int(last))


def _last_offsets(state: StreamState, patterns: tuple[str, ...]) -> Generator[Asked, list[Answered], array[int]]:
    """Return the offset of the last message of each matching subject, rising.

    They are merged as they come, in runs of which each is at most half as long as the one before: to sort all of a
    million at the end would hold up the event loop for half a second.
    """
    runs: list[array[int]] = []
    count, after, is_last = 0, "", False
    while not is_last:
        request = ListSubjectsRequest(
            stream_id=state.stream_id, subjects=patterns, after=after, limit=limits.SUBJECTS_LISTED_MAX
        )
        page = yield from ask(request, ListSubjectsResponse)
        count += len(page.subjects)
        is_last = len(page.subjects) < limits.SUBJECTS_LISTED_MAX
        if not is_last and count >= SUBJECTS_MAX:
            raise unavailable(f"over {SUBJECTS_MAX} subjects match; use narrower filter subjects")
        runs.append(array("q", sorted(int(one.last_offset) for one in page.subjects)))
        while len(runs) > 1 and (is_last or 2 * len(runs[-1]) > len(runs[-2])):
            shorter = runs.pop()
            runs[-1] = array("q", sorted(runs[-1] + shorter))
        after = page.subjects[-1].subject if page.subjects else ""
    return runs[0]


def pending_of(
    feed: Feed, filters: tuple[str, ...], start: Start, shown: Shown
) -> Generator[Asked, list[Answered], Pending]:
    """Return how many messages a reader at `start` wants, up to the present end of the log. Raise RemoteError."""
    stream_id, version = feed.stream_id, feed.version
    offset, wanted = start.offset, 0
    if start.offset < start.resume:
        left = without_hidden(start.wanted, shown.hidden)
        wanted = len(left) // 8 - bisect_left(memoryview(left).cast("q"), max(start.offset, shown.log_start))
        offset = start.resume
    offset = max(offset, shown.log_start)
    if offset >= shown.end:
        # The subjects may have been listed later: what they show is counted, though the tail is not there yet.
        return Pending(wanted, max(shown.end, start.resume), version)
    if not filters:
        request = ListOffsetsRequest(stream_id=stream_id, at="latest", rows_from=Offset(offset))
        found = yield from ask(request, ListOffsetsResponse, None, lambda response: response.rows is not None)
        return Pending(wanted + (found.rows or 0), int(found.committed_end), version)
    begin, count = offset, 0
    while begin < shown.end:
        page = yield from ask(
            ListSubjectsRequest(stream_id=stream_id, subjects=filters, begin=Offset(begin), end=Offset(shown.end)),
            ListSubjectsResponse,
        )
        count += page.messages
        if page.end_offset <= begin:
            break
        begin = int(page.end_offset)
    return Pending(wanted + count, shown.end, version)
