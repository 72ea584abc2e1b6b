"""All readers of a broker, by stream and name: those that begin, and those that end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.hot.deliveries import Cursor
from penstock.hot.pending import PendingTable
from penstock.hot.scan import GROUP_BITS
from penstock.jetstream.gateway import GATEWAY_GROUP, Gateway
from penstock.jetstream.readers.feed import Feed, RowCache
from penstock.jetstream.readers.pulls import frame, status
from penstock.jetstream.readers.reader import Place, Reader
from penstock.jetstream.readers.running.inboxes import Inboxes
from penstock.jetstream.readers.running.output import Output
from penstock.jetstream.readers.running.schedule import Schedule
from penstock.jetstream.readers.stored.acks import AckTables
from penstock.jetstream.readers.stored.removals import Removals
from penstock.metadata.image import StreamState
from penstock.node.step import Subscribe, Unsubscribe

_FIRST_SID = 1_000  # of subscriptions to the answers of flow-control messages


class ReaderRegistry:
    """Streams with readers, and their readers."""

    def __init__(
        self,
        gateway: Gateway,
        schedule: Schedule,
        inboxes: Inboxes,
        output: Output,
        *,
        acks: AckTables,
        removals: Removals,
    ) -> None:
        self._gateway = gateway
        self._removals = removals
        self._acks = acks
        self._schedule = schedule
        self._inboxes = inboxes
        self._output = output
        self._feeds: dict[int, Feed] = {}
        self._by_name: dict[str, Feed] = {}
        self._last_sid = _FIRST_SID
        self.cache = RowCache()
        self.total = 0

    # Streams

    def feeds(self) -> list[Feed]:
        """Return the feeds of all streams with readers."""
        return list(self._feeds.values())

    def feed(self, stream_id: int) -> Feed | None:
        """Return the feed of a stream; None: it has none."""
        return self._feeds.get(stream_id)

    def named(self, stream: str) -> Feed | None:
        """Return the feed of a stream with that name; None: it has none."""
        return self._by_name.get(stream)

    def feed_of(self, reader: Reader) -> Feed:
        """Return the feed of a reader that is not deleted."""
        return self._feeds[reader.stream_id]

    def of_table(self, table: PendingTable) -> Reader | None:
        """Return the stored consumer that has this table, unless it is deleted."""
        return self._acks.readers.get(table)

    def open(self, state: StreamState) -> Feed:
        """Return a new feed of a stream that this broker leads, beginning now. RemoteError not_leader."""
        look = partial(self._gateway.shown, state.stream_id)
        shown = look()
        if shown is None:
            raise RemoteError(ErrorCode.NOT_LEADER, f"stream {state.name} is not led by this broker")
        feed = self._feeds[state.stream_id] = Feed(state, look, shown.end, self.cache)
        self._by_name[feed.name] = feed
        feed.look()
        return feed

    def close(self, feed: Feed) -> None:
        """Forget a stream without readers."""
        feed.is_closed = True
        self._removals.forget(feed)
        self.cache.forget(feed.stream_id)
        self._feeds.pop(feed.stream_id, None)
        if self._by_name.get(feed.name) is feed:  # otherwise the stream was made anew with this name
            del self._by_name[feed.name]

    def lose(self, feed: Feed) -> None:
        """End the readers of a stream that is deleted, or led by another broker."""
        is_led_elsewhere = self._gateway.stream_of(feed.stream_id) is not None
        why = "Leadership Change" if is_led_elsewhere else "Consumer Deleted"
        if feed.readers:
            self.remove(list(feed.readers.values()), why=why)
        self.close(feed)

    # Readers

    def readers(self) -> Iterator[Reader]:
        """Yield all readers."""
        return (one for feed in self._feeds.values() for one in feed.readers.values())

    def add(self, feed: Feed, reader: Reader, now: Now) -> None:
        """Take a new reader."""
        feed.readers[reader.name] = reader
        feed.reader_of[reader.cursor] = reader
        if reader.config.needs_keys:
            feed.need_keys()
        self.total += 1
        if reader.config.has_flow_control and feed.flow_sid is None:
            self._last_sid += 1
            feed.flow_sid = self._last_sid << GROUP_BITS | GATEWAY_GROUP
            subject = f"$JS.FC.{feed.name}.*.*"
            self._gateway.node.outbox.step.nats.append(Subscribe(feed.flow_sid, subject))
        if reader.led is not None:
            self._acks.enter(feed.name, reader)
        self._removals.added(feed, reader)
        self._inboxes.enter(reader)
        self._inboxes.look(reader, now)

    def remove(self, readers: Sequence[Reader], *, why: str = "Consumer Deleted") -> None:
        """Delete readers of one stream; their waiting requests are told why."""
        feed = self._feeds[readers[0].stream_id]
        for _ in feed.unfollow([reader.cursor for reader in readers if reader.place is Place.FOLLOWING]):
            pass
        for reader in readers:
            reader.place = Place.GONE
            for pull in reader.pulls:
                self._output.send(frame(pull.inbox, status(409, why)))
            reader.pulls.clear()
            if reader.led is not None:
                self._acks.leave(feed.name, reader)
            else:
                self._removals.gone(reader)
            self._inboxes.leave(reader)
            del feed.readers[reader.name]
            del feed.reader_of[reader.cursor]
        self.total -= len(readers)
        feed.readers_left(len(readers))
        if not feed.readers and feed.flow_sid is not None:
            self._gateway.node.outbox.step.nats.append(Unsubscribe(feed.flow_sid))
            feed.flow_sid = None

    def unfollow(self, readers: Iterable[Reader]) -> None:
        """Have readers that follow served on their own."""
        by_feed: dict[int, list[Cursor]] = {}
        for reader in readers:
            by_feed.setdefault(reader.stream_id, []).append(reader.cursor)
        for stream_id, cursors in by_feed.items():
            for reader in self._feeds[stream_id].unfollow(cursors):
                self._schedule.ready(reader)

    def changed(self, reader: Reader, now: Now) -> None:
        """Something has changed that lets it go on, or stops it: another config, request, position."""
        if reader.place is Place.FOLLOWING:
            self.unfollow([reader])
        elif reader.place is Place.IDLE:
            self._schedule.ready(reader)
        self._schedule.wake(reader, reader.due_us(now.wall_us, now.elapsed_us))
