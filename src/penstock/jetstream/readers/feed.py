"""The rows of one stream for all of its readers: the tail, which one long poll follows, and what lies behind it.

Rules: each batch is read and decoded once for all who follow. Decoded rows are kept within a bound (`RowCache`), so
readers that catch up at about the same place share them. Rows that are deleted by now are marked before each use. The
rows of the tail are counted once for each filter; a reader's pending messages are a difference to that count.

    … │ chunk │ (gap: read when a reader needs it) … │ chunk │ chunk │ chunk │◀─ tail_end: the long poll begins here
                                                     ╰─────── recent ───────╯
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from penstock.base import limits
from penstock.hot.deliveries import Cursor, Filter
from penstock.jetstream.errors import unavailable
from penstock.jetstream.readers.chunks import Chunk
from penstock.jetstream.readers.reader import Reader
from penstock.live.row_set import RowSet
from penstock.metadata.image import StreamState
from penstock.node.partition.partition import Shown

TAIL_WAIT_MS = 30_000  # long poll at the tail
READ_BYTES = 1 * limits.MIB  # read at once: some 2 ms of a disk thread
RECENT_BYTES_MAX = 4 * limits.MIB  # decoded rows before the tail, of each stream
CACHE_BYTES_MAX = 64 * limits.MIB  # decoded rows for readers that catch up, of all streams
CACHED_CHUNKS_MAX = 256
FILTER_SUBJECTS_MAX = 10_000
"""Different filter subjects of all readers of one stream: each new message is compared with all of them, 0.2 ms."""
_LEFT_SHARE = 16


class Pending(NamedTuple):
    """Messages that a reader wants, up to `end`.

    `version`: that of the feed when it was asked; it holds unless something was deleted since.
    """

    messages: int
    end: int
    version: object = None


class RowCache:
    """Chunks for readers that catch up; the one that was used least lately goes first."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[int, Chunk]] = deque()  # with the stream; the last one was used last
        self.size_bytes = 0

    def find(self, stream_id: int, filters: tuple[str, ...] | None, offset: int) -> Chunk | None:
        """Return a chunk that holds an offset, with that filter."""
        for place in range(len(self._chunks) - 1, -1, -1):
            of, chunk = self._chunks[place]
            if of == stream_id and chunk.begin <= offset < chunk.end and chunk.filters == filters:
                if place != len(self._chunks) - 1:
                    del self._chunks[place]
                    self._chunks.append((of, chunk))
                return chunk
        return None

    def add(self, stream_id: int, chunk: Chunk) -> None:
        self._chunks.append((stream_id, chunk))
        self.size_bytes += chunk.size_bytes
        while len(self._chunks) > 1 and (self.size_bytes > CACHE_BYTES_MAX or len(self._chunks) > CACHED_CHUNKS_MAX):
            self.size_bytes -= self._chunks.popleft()[1].size_bytes

    def forget(self, stream_id: int) -> None:
        """Drop the chunks of a stream."""
        kept = [one for one in self._chunks if one[0] != stream_id]
        self._chunks = deque(kept)
        self.size_bytes = sum(chunk.size_bytes for _, chunk in kept)


class Feed:
    """One stream with readers. The caller reads and delivers."""

    def __init__(self, stream: StreamState, shown: Callable[[], Shown | None], end: int, cache: RowCache) -> None:
        self.stream_id = stream.stream_id
        self.name = stream.name
        self.leader_epoch = stream.partitions[0].leader_epoch
        self.readers: dict[str, Reader] = {}
        self.reader_of: dict[Cursor, Reader] = {}
        self.followers: list[Cursor] = []
        self.stored_followers: dict[Reader, None] = {}  # each has a state of its own: see `Tails`
        self.one_shot_followers: dict[Reader, None] = {}  # a request of each ends with the first messages
        self.tail_end = end
        self.is_polling = False
        self.is_closed = False
        self.rights: object = None  # the API's user and its subjects, for which the readers were looked at
        self.told_too_large = False  # that values are left out
        self.opening = 0  # readers that are being created
        self.behind: list[Reader] = []  # wait for rows that are on the way, or do not exist yet
        self.unsettled: list[tuple[Reader, Pending]] = []  # counted beyond the tail
        self.retry_us: int | None = None  # when the tail is asked for again, after an error
        self.fetching: dict[tuple[tuple[str, ...] | None, int], list[Reader]] = {}
        self.needs_keys = False  # a consumer has, or had, an order by key: rows are read with their keys
        self.flow_sid: int | None = None  # of the subscription to the answers of flow-control messages
        self.version: object = None  # changes with what is deleted; see `look`
        self._look: Callable[[], Shown | None] = shown
        self._shown = Shown(None, 0, end, 0)
        self._filters: dict[tuple[str, ...], Filter] = {}
        self._left = 0  # readers that have left their filters since unused ones were dropped
        self._recent: deque[Chunk] = deque()
        self._recent_bytes = 0
        self._cache = cache

    # What is deleted

    @property
    def hidden(self) -> RowSet | None:
        """The rows that are deleted, as of the last look."""
        return self._shown.hidden

    def look(self) -> Shown | None:
        """Return what readers are shown now; None: this broker has no such log any more."""
        shown = self._look()
        if shown is None:
            return None
        before, self._shown = self._shown, shown
        is_same = shown.hidden is before.hidden and shown.taken == before.taken
        if self.version is None or not is_same or shown.log_start != before.log_start:
            self.version = object()
        if shown.taken != before.taken:
            self._forget_rows()
        return shown

    def _forget_rows(self) -> None:
        self._cache.forget(self.stream_id)
        self._recent.clear()
        self._recent_bytes = 0

    # Filters

    def filter_of(self, patterns: tuple[str, ...]) -> Filter:
        """Return the filter that all readers with these patterns share."""
        found = self._filters.get(patterns)
        if found is None:
            found = self._filters[patterns] = Filter([one.encode() for one in patterns])
        return found

    def check_room(self, patterns: tuple[str, ...]) -> None:
        """Raise ApiError if another reader with these patterns is too much."""
        if patterns in self._filters:
            return
        used = sum(map(len, self._filters))
        if used + len(patterns) > FILTER_SUBJECTS_MAX:
            self._drop_unused()
            used = sum(map(len, self._filters))
        if used + len(patterns) > FILTER_SUBJECTS_MAX:
            text = f"the consumers of this stream have {used} filter subjects; the limit is {FILTER_SUBJECTS_MAX}"
            raise unavailable(text)

    def readers_left(self, count: int) -> None:
        """Readers are gone, or have another filter: drop the filters that none has, now and then.

        A look at all readers for each one that goes would take 5 ms with 10,000; what is left of those that are gone
        costs a sixteenth more at each message.
        """
        self._left += count
        if _LEFT_SHARE * self._left >= len(self.readers):
            self._drop_unused()

    def _drop_unused(self) -> None:
        self._left = 0
        used = {reader.config.filters for reader in self.readers.values()}
        self._filters = {patterns: one for patterns, one in self._filters.items() if patterns in used}

    def need_keys(self) -> None:
        """Have rows read with their keys from now on; those in memory may have none."""
        if not self.needs_keys:
            self.needs_keys = True
            self._forget_rows()

    # The tail

    def take(self, chunk: Chunk) -> None:
        """Take the next rows of the tail."""
        assert chunk.begin == self.tail_end, (chunk.begin, self.tail_end)
        chunk.mask(self._shown.hidden)
        for one in self._filters.values():
            for rows in chunk.rows:
                one.seen += one.count(rows, chunk.begin)
        self.tail_end = chunk.end
        if self.needs_keys and not chunk.has_keys:  # it was read before they were needed
            self._recent.clear()
            self._recent_bytes = 0
            return
        self._recent.append(chunk)
        self._recent_bytes += chunk.size_bytes
        while self._recent_bytes > RECENT_BYTES_MAX and len(self._recent) > 1:
            self._recent_bytes -= self._recent.popleft().size_bytes

    def jump(self, offset: int) -> None:
        """Go on at an offset beyond the tail: the log begins there."""
        self.tail_end = max(self.tail_end, offset)
        self._forget_rows()

    def count_recent(self, wanted: Filter, offset: int) -> int | None:
        """Return the number of matching messages from an offset up to the tail; None: not all of them are in memory."""
        if offset >= self.tail_end:
            return 0
        if not self._recent or self._recent[0].begin > offset:
            return None
        count = 0
        for chunk in self._recent:
            if chunk.end > offset:
                chunk.mask(self._shown.hidden)
                count += sum(wanted.count(rows, offset) for rows in chunk.rows)
        return count

    def take_unsettled(self) -> list[tuple[Reader, Pending]]:
        """Remove and return the counts that the tail has reached."""
        found = [one for one in self.unsettled if one[1].end <= self.tail_end]
        self.unsettled = [one for one in self.unsettled if one[1].end > self.tail_end]
        return found

    def has_recent(self, offset: int) -> bool:
        """True if the rows from this offset on are in memory."""
        return bool(self._recent) and self._recent[0].begin <= offset

    # Rows for one reader

    def fetch_filters(self, reader: Reader) -> tuple[str, ...] | None:
        """Return the filter with which its next rows are read; None: all rows."""
        if reader.cursor.next_offset < reader.cursor.resume_offset:
            return None
        return reader.config.filters or None

    def find(self, reader: Reader) -> Chunk | None:
        """Return rows in memory from the reader's next offset on."""
        offset = reader.cursor.next_offset
        if (chunk := self.recent(offset)) is not None:
            return chunk
        found = self._cache.find(self.stream_id, self.fetch_filters(reader), offset)
        if found is not None:
            found.mask(self._shown.hidden)
        return found

    def recent(self, offset: int) -> Chunk | None:
        """Return rows before the tail that hold an offset, if they are in memory."""
        for chunk in reversed(self._recent):
            if chunk.begin <= offset < chunk.end:
                chunk.mask(self._shown.hidden)
                return chunk
        return None

    def keep(self, chunk: Chunk) -> None:
        """Keep rows that were read for readers that catch up."""
        if self.needs_keys and not chunk.has_keys:
            return  # it was read before they were needed
        self._cache.add(self.stream_id, chunk)

    # Followers

    def follow(self, reader: Reader) -> None:
        """The reader has all that is there."""
        cursor = reader.cursor
        cursor.pending = -cursor.filter.seen
        reader.counted_under = self.version
        if reader.has_one_shot():
            self.one_shot_followers[reader] = None
        elif reader.led is None:
            self.followers.append(cursor)
        else:
            self.stored_followers[reader] = None

    def take_wanting(self, followers: Iterable[Reader], chunk: Chunk) -> list[Reader]:
        """Return those for which a chunk has something; the others pass it."""
        wanting = []
        for reader in followers:
            cursor = reader.cursor
            if cursor.pending + cursor.filter.seen > 0:
                wanting.append(reader)
            else:
                cursor.next_offset = max(cursor.next_offset, chunk.end)
        return wanting

    def unfollow(self, cursors: Iterable[Cursor]) -> Iterator[Reader]:
        """Take these out of the followers."""
        gone = dict.fromkeys(cursors)  # in their order: a run of the simulator repeats
        found = [self.reader_of[cursor] for cursor in gone]
        for reader in found:
            self.stored_followers.pop(reader, None)
            self.one_shot_followers.pop(reader, None)
        if any(reader.led is None for reader in found):
            self.followers = [cursor for cursor in self.followers if cursor not in gone]
        yield from found
