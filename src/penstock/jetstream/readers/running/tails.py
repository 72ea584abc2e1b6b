"""The tail of each stream with readers: one long poll, one decode, and one call for all who follow."""

from __future__ import annotations

from functools import partial

from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.hot import deliveries as hot
from penstock.hot.deliveries import Cursor, DecodedRows
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.chunks import Chunk
from penstock.jetstream.readers.feed import READ_BYTES, TAIL_WAIT_MS, Feed
from penstock.jetstream.readers.reader import Place, Reader
from penstock.jetstream.readers.running.counts import Counts
from penstock.jetstream.readers.running.inboxes import Inboxes
from penstock.jetstream.readers.running.output import TURN_BYTES, Output
from penstock.jetstream.readers.running.registry import ReaderRegistry
from penstock.jetstream.readers.running.row_reads import RETRY_US, RowReads
from penstock.jetstream.readers.running.schedule import Schedule
from penstock.jetstream.readers.running.serving import Serving
from penstock.messages import FetchRequest, FetchResponse, Response
from penstock.node.step import Payload

STORED_AT_ONCE = 2_048
"""Stored consumers that get new rows in one call: each takes some 4 µs by estimate; the others have their turns."""


class Tails:
    """Follows the tails."""

    def __init__(
        self,
        gateway: Gateway,
        registry: ReaderRegistry,
        *,
        schedule: Schedule,
        inboxes: Inboxes,
        output: Output,
        reads: RowReads,
        counts: Counts,
        serving: Serving,
    ) -> None:
        self._gateway = gateway
        self._registry = registry
        self._schedule = schedule
        self._inboxes = inboxes
        self._output = output
        self._reads = reads
        self._counts = counts
        self._serving = serving

    def poll(self, feed: Feed) -> None:
        """Wait for the next rows of a stream."""
        if feed.is_polling or feed.is_closed:
            return
        feed.is_polling = True
        request = FetchRequest(
            stream_id=feed.stream_id,
            offset=Offset(feed.tail_end),
            bytes_max=READ_BYTES,
            wait_ms_max=TAIL_WAIT_MS,
        )
        self._gateway.ask_rows(request, self._gateway.node.now, partial(self._polled, feed, feed.tail_end))

    def tick(self, now: Now) -> None:
        """Poll again after an error."""
        for feed in self._registry.feeds():
            if feed.retry_us is not None and now.elapsed_us >= feed.retry_us:
                feed.retry_us = None
                self.poll(feed)

    @property
    def next_us(self) -> int | None:
        """When `tick` has something to do."""
        retries = [feed.retry_us for feed in self._registry.feeds() if feed.retry_us is not None]
        return min(retries, default=None)

    def _polled(self, feed: Feed, begin: int, response: Response | RemoteError, payload: Payload) -> None:
        if feed.is_closed:
            return
        feed.is_polling = False
        now = self._gateway.node.now
        if not feed.readers and not feed.opening:
            self._registry.close(feed)
        elif isinstance(response, RemoteError):
            self._failed(feed, response, now)
        else:
            assert isinstance(response, FetchResponse)
            if response.end_offset <= begin:
                self.poll(feed)
                return
            feed.is_polling = True
            self._reads.decode(begin, response, payload, None, partial(self._read, feed), has_keys=feed.needs_keys)

    def _read(self, feed: Feed, chunk: Chunk | None) -> None:
        """Take rows that are decoded; None: they could not be read."""
        if feed.is_closed:
            return
        feed.is_polling = False
        now = self._gateway.node.now
        if chunk is None:
            feed.retry_us = now.elapsed_us + RETRY_US
            return
        if feed.look() is None:
            self._registry.lose(feed)
            return
        if chunk.begin == feed.tail_end:
            feed.take(chunk)
            self._follow(feed, chunk, now)
            if feed.one_shot_followers:  # each gets new messages, and then the end of its request
                self._registry.unfollow(feed.take_wanting(feed.one_shot_followers, chunk))
            if feed.stored_followers:
                self._follow_stored(feed, chunk, now)
        self.poll(feed)
        behind, feed.behind = feed.behind, []
        for reader in behind:
            if reader.place is Place.WAITING:  # it may have been moved meanwhile, and follow
                self._schedule.ready(reader)
        for reader, pending in feed.take_unsettled():
            if reader.place is Place.WAITING and self._counts.settle(feed, reader, pending):
                self._schedule.ready(reader)

    def _failed(self, feed: Feed, error: RemoteError, now: Now) -> None:
        shown = feed.look()
        if shown is None or error.code == ErrorCode.STREAM_NOT_FOUND:
            self._registry.lose(feed)
            return
        if shown.log_start > feed.tail_end:
            feed.jump(shown.log_start)
            self._unfollow_all(feed)
            self.poll(feed)
            return
        feed.retry_us = now.elapsed_us + RETRY_US

    def _unfollow_all(self, feed: Feed) -> None:
        self._registry.unfollow([feed.reader_of[cursor] for cursor in feed.followers])
        self._registry.unfollow([*feed.stored_followers, *feed.one_shot_followers])

    def _follow(self, feed: Feed, chunk: Chunk, now: Now) -> None:
        """Send new rows to all who follow."""
        if not feed.followers:
            return
        if not self._output.can_deliver:
            self._unfollow_all(feed)
            return
        self._inboxes.regroup()
        for rows in chunk.rows:
            self._deliver(feed, feed.followers, rows, now)
        end = chunk.end
        for cursor in feed.followers:
            cursor.next_offset = max(cursor.next_offset, end)

    def _deliver(self, feed: Feed, cursors: list[Cursor], rows: DecodedRows, now: Now) -> None:
        """Send rows to cursors that follow; those that stop, or for which there is no room, follow no more."""
        out, stopped = bytearray(), list[Cursor]()
        before = rows.delivered, rows.cut
        served = hot.deliver(cursors, 0, rows, out, TURN_BYTES, now.elapsed_us, stopped)
        self._output.note(feed, rows, *before)
        self._output.send(out)
        missed = dict.fromkeys(cursors[served:])
        if not stopped and not missed:
            return
        for reader in feed.unfollow([*stopped, *missed]):
            reader.place = Place.IDLE
            if reader.cursor.stop == hot.FULL or reader.cursor in missed:
                self._serving.take_back(reader, now)
                self._schedule.ready(reader)
            else:
                self._serving.stopped(feed, reader, reader.cursor.stop, now)

    def _follow_stored(self, feed: Feed, chunk: Chunk, now: Now) -> None:
        """Send new rows to the stored consumers that follow and need nothing else; the others are served in turn."""
        wanting = feed.take_wanting(feed.stored_followers, chunk)
        if not self._output.can_deliver:
            self._registry.unfollow(wanting)
            return
        at_once: list[Reader] = []
        others: list[Reader] = []
        for reader in wanting:
            if len(at_once) < STORED_AT_ONCE and self._serving.takes_at_once(feed, reader, now):
                at_once.append(reader)
            else:
                others.append(reader)
        self._registry.unfollow(others)
        for rows in chunk.rows:
            self._deliver(feed, [one.cursor for one in at_once if one.place is Place.FOLLOWING], rows, now)
        for reader in at_once:
            if reader.place is Place.FOLLOWING:
                reader.cursor.next_offset = max(reader.cursor.next_offset, chunk.end)
            self._serving.entered(reader, now)
