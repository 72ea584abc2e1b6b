"""Reads of rows from the log for readers that catch up: a few at once, decoded in disk threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.base import limits
from penstock.base.errors import PenstockError, RemoteError
from penstock.base.ids import Offset
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.chunks import COLUMNS, KEYED_COLUMNS, Chunk, decoded
from penstock.jetstream.readers.feed import READ_BYTES, Feed, RowCache
from penstock.jetstream.readers.reader import Place, Reader
from penstock.jetstream.readers.running.schedule import Schedule
from penstock.jetstream.readers.stored.again import request_of
from penstock.jetstream.readers.stored.led import LedConsumer
from penstock.messages import FetchRequest, FetchResponse, Response
from penstock.node.step import Lane, Payload

FETCHES_MAX = 8
"""Reads for readers that catch up, at once; the others wait."""
AHEAD_BYTES_MAX = 4 * limits.MIB
"""Read at once behind a chunk that a reader has nearly taken, twice as much as that: what a read costs the event loop
does not depend on its size."""
RETRY_US = 100_000


class RowReads:
    """Reads that are under way, and the readers that wait for them."""

    def __init__(self, gateway: Gateway, schedule: Schedule, cache: RowCache) -> None:
        self._gateway = gateway
        self._schedule = schedule
        self._cache = cache
        self._under_way = 0
        self._waiting: deque[Reader] = deque()

    def decode(
        self,
        begin: int,
        response: FetchResponse,
        payload: Payload,
        filters: tuple[str, ...] | None,
        then: Callable[[Chunk | None], None],
        *,
        has_keys: bool = False,
    ) -> None:
        """Decode an answer in a disk thread; `then` gets the rows, or None if they could not be read."""
        found: list[Chunk] = []

        def done(error: Exception | None) -> None:
            if error is not None and not isinstance(error, PenstockError | OSError):
                raise error
            then(found[0] if found else None)

        self._gateway.node.outbox.work(
            Lane.READ,
            lambda: found.append(decoded(begin, response, payload, filters, has_keys=has_keys)),
            done,
        )

    def fetch(self, feed: Feed, reader: Reader) -> None:
        """Read the rows from the reader's next offset on; it waits for them."""
        reader.place = Place.WAITING
        key = feed.fetch_filters(reader), reader.cursor.next_offset
        if (waiting := feed.fetching.get(key)) is not None:
            waiting.append(reader)
        elif self._under_way >= FETCHES_MAX:
            self._waiting.append(reader)
        else:
            feed.fetching[key] = [reader]
            self._read(feed, *key, READ_BYTES)

    def read_ahead(self, feed: Feed, reader: Reader, chunk: Chunk) -> None:
        """Read what comes behind the chunk, while the reader is sent the rest of it, or before it asks for more."""
        if reader.cursor.next_offset >= feed.tail_end:
            return
        key = feed.fetch_filters(reader), chunk.end
        is_there = self._cache.find(feed.stream_id, key[0], chunk.end) is not None or feed.has_recent(chunk.end)
        if not is_there and key not in feed.fetching and self._under_way < FETCHES_MAX and chunk.end < feed.tail_end:
            feed.fetching[key] = []
            self._read(feed, *key, max(READ_BYTES, min(2 * chunk.size_bytes, AHEAD_BYTES_MAX)))

    def fetch_again(self, reader: Reader, led: LedConsumer) -> None:
        """Read messages that are to be delivered again; the consumer waits for them."""
        reader.place = Place.WAITING
        if self._under_way >= FETCHES_MAX:
            self._waiting.append(reader)
            return
        self._under_way += 1
        request = request_of(led, reader.stream_id)
        begin = int(request.offset)

        def heard(response: Response | RemoteError, payload: Payload) -> None:
            if isinstance(response, FetchResponse) and response.end_offset > begin:
                self.decode(begin, response, payload, (), read)
            else:
                read(None)

        def read(chunk: Chunk | None) -> None:
            self._under_way -= 1
            now = self._gateway.node.now
            led.again = chunk
            if reader.place is Place.WAITING:
                if chunk is None:
                    reader.place = Place.IDLE
                    self._schedule.sleep(reader, now.elapsed_us + RETRY_US)
                else:
                    self._schedule.ready(reader)
            self.let_next()

        self._gateway.ask_rows(request, self._gateway.node.now, heard)

    def let_next(self) -> None:
        """Have the first one served that waits for a place; it may need none by now, so each turn looks again."""
        while self._waiting and self._under_way < FETCHES_MAX:
            reader = self._waiting.popleft()
            if reader.place is Place.WAITING:
                self._schedule.ready(reader)
                return

    def _read(self, feed: Feed, filters: tuple[str, ...] | None, begin: int, bytes_max: int) -> None:
        self._under_way += 1
        has_keys = feed.needs_keys
        request = FetchRequest(
            stream_id=feed.stream_id,
            offset=Offset(begin),
            bytes_max=bytes_max,
            columns=None if filters is None else KEYED_COLUMNS if has_keys else COLUMNS,
            subjects=filters,
        )

        def heard(response: Response | RemoteError, payload: Payload) -> None:
            if isinstance(response, FetchResponse) and response.end_offset > begin:
                self.decode(begin, response, payload, filters, read, has_keys=has_keys)
            else:
                read(None)

        def read(chunk: Chunk | None) -> None:
            self._under_way -= 1
            waiting = feed.fetching.pop((filters, begin), [])
            now = self._gateway.node.now
            if chunk is not None and not feed.is_closed:
                feed.keep(chunk)
            for reader in waiting:
                if reader.place is Place.WAITING:
                    if chunk is None:  # the log start has moved, or the log cannot be read now
                        reader.place = Place.IDLE
                        self._schedule.sleep(reader, now.elapsed_us + RETRY_US)
                    else:
                        self._schedule.ready(reader)
            self.let_next()

        self._gateway.ask_rows(request, self._gateway.node.now, heard)
