"""All readers of one broker: of the streams that it leads. It gives them their turns, rows and times.

Rules: one turn writes at most TURN_BYTES, and nothing while nats-server takes less than is sent; readers that could
go on take turns, so a slow one delays no other. Reading and decoding is done in disk threads, a few at once. What ends
the leadership of this broker ends its readers; clients make them anew at the next leader.

    create ──▶ READY ──served──▶ FOLLOWING ◀── new rows: one decode for all
                 ▲  ╰─ rows ──▶ WAITING ╮  ╰─ no request, no room ──▶ IDLE
                 ╰──────────────────────╯◀──── request, answer, time ──╯
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import count, islice

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, PenstockError, RemoteError
from penstock.base.ids import Offset
from penstock.hot import deliveries as hot
from penstock.hot.deliveries import TOO_LARGE_HEADER, Cursor, DecodedRows, Pull
from penstock.hot.scan import GROUP_BITS
from penstock.jetstream.conversations import Answered, Asked
from penstock.jetstream.errors import ApiError, unavailable
from penstock.jetstream.gateway import GATEWAY_GROUP, Gateway, ReaderNumbers
from penstock.jetstream.readers.chunks import COLUMNS, Chunk, decoded
from penstock.jetstream.readers.config import ReaderConfig
from penstock.jetstream.readers.deliveries import Deliveries
from penstock.jetstream.readers.feed import READ_BYTES, TAIL_WAIT_MS, Feed, Pending, RowCache
from penstock.jetstream.readers.pulls import frame, status
from penstock.jetstream.readers.reader import (
    GRACE_US,
    LEAF_BURST_BYTES,
    LEAF_BYTES_PER_S,
    Bucket,
    Place,
    Reader,
    ended,
)
from penstock.jetstream.readers.starting import Start, pending_of, shown_now
from penstock.messages import FetchRequest, FetchResponse, Response
from penstock.metadata.image import ClusterImage, StreamState
from penstock.node.partition.partition import Shown
from penstock.node.step import Lane, Payload, Subscribe, Unsubscribe

READERS_MAX = 20_000
"""Of one broker: some 5 KB each."""
PULLS_MAX = 100_000
"""Pull requests that wait at one broker, some 500 bytes each."""
PULLS_LOOKED_AT = 1_000
"""Requests after which those that wait are counted again."""
INBOXES_LOOKED_AT = 32
"""Inboxes of requests in one look at a reader: the interest in one may take 0.1 ms to find."""
TURN_BYTES = 1 * limits.MIB
"""Frames of one turn of the event loop: about a millisecond."""
SERVED_MAX = 128
"""Readers served in one turn: many may have nothing to send, and each is looked at for some 20 µs."""
DUE_MAX = 64
"""Readers looked at because of the time, in one turn of the event loop: with a heartbeat each, some 50 µs."""
WANTED_BYTES_MAX = 256 * limits.MIB
"""Offsets of all readers that begin with the last message of each subject, 8 bytes each, until they have these."""
SHARE_BYTES = 256 * limits.KIB
"""Frames for one reader in its turn."""
FETCHES_MAX = 8
"""Reads for readers that catch up, at once; the others wait."""
COUNTS_MAX = 8
COUNTS_EACH_MAX = 4
"""Counts for one reader in a row: if so much is deleted meanwhile, it goes on with the last one."""
_FIRST_SID = 1_000  # of subscriptions to the answers of flow-control messages
_RETRY_US = 100_000
_ASK_AGAIN_US = 20_000  # after an answer that does not know enough yet
_NEVER_US = 2**63 - 1
_ANY = frozenset((b"*", b">"))
_LOOK_US_PER_PULL = 50
"""Time between two looks at a reader, for each request that waits: a look, and a heartbeat to each, takes 2 % of it."""

Counting = Generator[Asked, list[Answered], Pending]


class Readers:
    """The readers of one broker."""

    def __init__(self, gateway: Gateway, deliveries: Deliveries) -> None:
        self._gateway = gateway
        self._node = gateway.node
        self.deliveries = deliveries
        self.leaf = Bucket(LEAF_BYTES_PER_S, LEAF_BURST_BYTES, self._node.now.elapsed_us)
        self._feeds: dict[int, Feed] = {}
        self._by_name: dict[str, Feed] = {}
        self._image: ClusterImage | None = None
        self._ready: deque[Reader] = deque()
        self._wakes: list[tuple[int, int, Reader]] = []
        self._is_late = False  # more readers were due than one turn looks at
        self._numbers = count()
        self._last_sid = _FIRST_SID
        self._cache = RowCache()
        self._fetching = 0
        self._to_fetch: deque[Reader] = deque()
        self._counting = 0
        self._to_count: deque[Reader] = deque()
        self._to_ask: deque[tuple[int, Callable[[Now], None]]] = deque()  # questions that are asked again, by time
        self._inboxes: dict[bytes, set[Reader]] = {}  # those that are watched, of push readers and of requests
        self._firsts_of: object = None  # names of the image that has these
        self._firsts: set[bytes] = set()  # first tokens of the subjects of all streams
        self._turn_bytes = 0  # left in this turn
        self._has_room = True  # for more requests, when they were counted
        self._pulls_since = 0
        self._counted_us = 0
        self.total = 0
        self.delivered = 0
        self.delivered_bytes = 0
        self.too_large = 0

    # What requests use

    def feed(self, state: StreamState) -> Feed:
        """Return the feed of a stream that this broker leads, beginning now. RemoteError not_leader."""
        feed = self._feeds.get(state.stream_id)
        if feed is not None:
            return feed
        look = partial(self._gateway.shown, state.stream_id)
        shown = look()
        if shown is None:
            raise RemoteError(ErrorCode.NOT_LEADER, f"stream {state.name} is not led by this broker")
        feed = self._feeds[state.stream_id] = Feed(state, look, shown.end, self._cache)
        self._by_name[feed.name] = feed
        feed.look()
        self._poll(feed)
        return feed

    def find(self, state: StreamState, name: str) -> Reader | None:
        feed = self._feeds.get(state.stream_id)
        return None if feed is None else feed.readers.get(name)

    def of(self, state: StreamState) -> list[Reader]:
        """Return the readers of a stream, by name."""
        feed = self._feeds.get(state.stream_id)
        return [] if feed is None else [feed.readers[name] for name in sorted(feed.readers)]

    def is_here(self, reader: Reader) -> bool:
        """True unless it is deleted."""
        return reader.place is not Place.GONE

    def stream_name(self, reader: Reader) -> str:
        feed = self._feeds.get(reader.stream_id)
        return "" if feed is None else feed.name

    def numbers(self) -> ReaderNumbers:
        """Return what the metrics tell."""
        readers = [one for feed in self._feeds.values() for one in feed.readers.values()]
        push = sum(one.config.is_push for one in readers)
        waiting = sum(len(one.pulls) for one in readers)
        return ReaderNumbers(push, len(readers) - push, waiting, self.delivered, self.delivered_bytes, self.too_large)

    def count(self, state: StreamState) -> int:
        feed = self._feeds.get(state.stream_id)
        return 0 if feed is None else len(feed.readers)

    def check_room(self, start: Start) -> None:
        """Raise ApiError if the offsets at which a new reader begins are too many beside those of the others."""
        if not start.wanted:
            return
        used = sum(len(one.cursor.wanted) for feed in self._feeds.values() for one in feed.readers.values())
        if used + len(start.wanted) > WANTED_BYTES_MAX:
            raise unavailable(
                "too many consumers begin with the last messages of very many subjects; ask again in a moment"
            )

    def add(self, feed: Feed, reader: Reader, pending: Pending, now: Now) -> None:
        """Let a reader begin."""
        feed.readers[reader.name] = reader
        feed.reader_of[reader.cursor] = reader
        self.total += 1
        if reader.config.has_flow_control and feed.flow_sid is None:
            self._last_sid += 1
            feed.flow_sid = self._last_sid << GROUP_BITS | GATEWAY_GROUP
            self._node.outbox.step.nats.append(Subscribe(feed.flow_sid, f"$JS.FC.{feed.name}.*.*"))
        if reader.config.is_push:
            self._inboxes.setdefault(reader.inbox, set()).add(reader)
        self._look_for_inboxes(reader, now)
        if self._settle(feed, reader, pending):
            self.ready(reader)
        self.wake(reader, reader.due_us(now.wall_us, now.elapsed_us))

    def remove(self, readers: Sequence[Reader], *, why: str = "Consumer Deleted") -> None:
        """Delete readers of one stream; their waiting requests are told why."""
        feed = self._feeds[readers[0].stream_id]
        for _ in feed.unfollow([reader.cursor for reader in readers if reader.place is Place.FOLLOWING]):
            pass
        for reader in readers:
            reader.place = Place.GONE
            for pull in reader.pulls:
                self._send(frame(pull.inbox, status(409, why)))
            reader.pulls.clear()
            for inbox in (reader.inbox, *reader.watched):
                self._forget_inbox(reader, inbox)
            del feed.readers[reader.name]
            del feed.reader_of[reader.cursor]
        self.total -= len(readers)
        feed.readers_left(len(readers))
        if not feed.readers and feed.flow_sid is not None:
            self._node.outbox.step.nats.append(Unsubscribe(feed.flow_sid))
            feed.flow_sid = None

    def _forget_inbox(self, reader: Reader, inbox: bytes) -> None:
        if (using := self._inboxes.get(inbox)) is not None:
            using.discard(reader)
            if not using:
                del self._inboxes[inbox]
                self.deliveries.unwatch(inbox)

    def reconfigure(self, reader: Reader, config: ReaderConfig, now: Now) -> None:
        """Take another config with the same filters."""
        self._forget_inbox(reader, reader.inbox)
        reader.configure(config, now.elapsed_us)
        if config.is_push:
            self._inboxes.setdefault(reader.inbox, set()).add(reader)
        self._look_for_inboxes(reader, now)
        self.changed(reader, now)

    def changed(self, reader: Reader, now: Now) -> None:
        """Something has changed that lets it go on, or stops it: another config, request, position."""
        if reader.place is Place.FOLLOWING:
            self._unfollow([reader])
        elif reader.place is Place.IDLE:
            self.ready(reader)
        self.wake(reader, reader.due_us(now.wall_us, now.elapsed_us))

    def move(self, reader: Reader, start: Start, pending: Pending, now: Now) -> None:
        """Begin anew at another place, or with another filter."""
        feed = self._feeds[reader.stream_id]
        if reader.place is Place.FOLLOWING:
            self._unfollow([reader])
        reader.cursor.next_offset = start.offset
        reader.cursor.want(start.wanted, start.resume)
        if self._settle(feed, reader, pending):
            self.ready(reader)

    def caught_up(self, reader: Reader) -> Generator[Asked, list[Answered], Shown]:
        """Return the steps that wait until all is shown that was acked before."""
        return shown_now(self._feeds[reader.stream_id])

    def counting(self, reader: Reader) -> Counting:
        """Return the steps that count what is pending for a reader now."""
        feed = self._feeds[reader.stream_id]
        cursor = reader.cursor
        start = Start(cursor.next_offset, cursor.wanted, cursor.resume_offset)
        shown = feed.look()
        if shown is None:
            raise RemoteError(ErrorCode.NOT_LEADER, f"stream {feed.name} is not led by this broker")
        return pending_of(feed, reader.config.filters, start, shown)

    def told_pending(self, reader: Reader) -> int | None:
        """Return how many messages are pending, if that is known without asking."""
        feed = self._feeds[reader.stream_id]
        shown = feed.look()
        if shown is None or shown.end != feed.tail_end:
            return None
        if reader.place is Place.FOLLOWING or reader.cursor.next_offset >= feed.tail_end:
            return 0
        if reader.counted_under is not feed.version:
            return None
        return max(0, reader.cursor.pending + reader.cursor.filter.seen)

    def has_room(self, reader: Reader, now: Now) -> bool:
        """Return if one more pull request may wait at a reader."""
        self._pulls_since += 1
        if self._pulls_since >= PULLS_LOOKED_AT or not (
            self._has_room or now.elapsed_us < self._counted_us + _RETRY_US
        ):
            readers = (one for feed in self._feeds.values() for one in feed.readers.values())
            self._has_room = sum(len(one.pulls) for one in readers) < PULLS_MAX
            self._pulls_since, self._counted_us = 0, now.elapsed_us
        return self._has_room and len(reader.pulls) < reader.config.max_waiting

    def is_promised(self, reader: Reader) -> bool:
        """True if requests that wait already ask for more messages than are there."""
        if not reader.pulls:
            return False
        pending = self.told_pending(reader)
        return pending is not None and 0 < pending < sum(max(1, pull.batch) for pull in reader.pulls)

    def is_at_end(self, reader: Reader, now: Now) -> bool:
        """True if nothing is there for a request that does not wait."""
        if self.told_pending(reader) != 0:
            return False
        reader.inactive_us = now.elapsed_us
        return True

    def pull(self, reader: Reader, pull: Pull, now: Now) -> None:
        """Take a pull request."""
        if pull.expires_us <= now.elapsed_us:
            reader.inactive_us = now.elapsed_us
            self._send(frame(pull.inbox, ended(pull, 408, "Request Timeout")))
            return
        reader.ask(pull, now.elapsed_us)
        if reader.place is Place.IDLE or pull.no_wait:
            self.changed(reader, now)
        self.wake(reader, pull.due_us())

    def flow_answered(self, stream: str, name: str, reply: bytes, now: Now) -> None:
        """Take the answer to a flow-control message."""
        feed = self._by_name.get(stream)
        if feed is None or (reader := feed.readers.get(name)) is None:
            return
        if reader.place is Place.FOLLOWING:
            reader.take_back((now.wall_us, now.elapsed_us))
        if reader.flow_answered(reply):
            if reader.place is Place.FOLLOWING:
                reader.grant(now.elapsed_us)
            else:
                self.changed(reader, now)

    def status(self, inbox: bytes, block: bytes) -> None:
        """Send a status message."""
        self._send(frame(inbox, block))

    # Events

    def heard(self, subject: str, now: Now) -> None:
        """A message without a reply subject: the answer to a flow-control message."""
        tokens = subject.split(".")
        if len(tokens) == 5 and tokens[:2] == ["$JS", "FC"]:
            self.flow_answered(tokens[2], tokens[3], subject.encode(), now)

    def interest_lost(self, subjects: Sequence[bytes], now: Now) -> None:
        """These inboxes have no subscriber any more."""
        changed: dict[Reader, None] = {}
        for subject in subjects:
            for reader in [*self._inboxes.get(subject, ())]:
                if not reader.config.is_push:
                    self._forget_inbox(reader, subject)
                    reader.watched -= {subject}
                    reader.keep(pull for pull in reader.pulls if pull.inbox != subject)
                reader.inactive_us = now.elapsed_us
                changed[reader] = None
        self._unfollow([reader for reader in changed if reader.place is Place.FOLLOWING])
        for reader in changed:
            self.changed(reader, now)

    def tick(self, now: Now) -> None:
        """Do what is due."""
        if self._node.image is not self._image:
            has_other_subjects = self._image is None or self._node.image.names is not self._image.names
            self._image = self._node.image
            self._end_lost()
            self._end_unreadable()
            if has_other_subjects:
                self._end_stored()
        for feed in list(self._feeds.values()):
            if feed.retry_us is not None and now.elapsed_us >= feed.retry_us:
                feed.retry_us = None
                self._poll(feed)
        while self._to_ask and self._to_ask[0][0] <= now.elapsed_us:
            self._to_ask.popleft()[1](now)
        self._wake_some(now)

    def _wake_some(self, now: Now) -> None:
        """Look at readers whose time has come; `turn` goes on with those that are left."""
        inactive: dict[int, list[Reader]] = {}
        left = DUE_MAX
        while left and self._wakes and self._wakes[0][0] <= now.elapsed_us:
            at_us, _, reader = heapq.heappop(self._wakes)
            if reader.place is not Place.GONE and at_us >= reader.wake_us:
                reader.wake_us = _NEVER_US
                left -= 1
                if not self._due(reader, now):
                    inactive.setdefault(reader.stream_id, []).append(reader)
        self._is_late = not left
        for readers in inactive.values():
            self.remove(readers)

    def turn(self, now: Now) -> None:
        """Serve readers that can go on, as far as one turn of the event loop may."""
        self._turn_bytes = TURN_BYTES
        if self._is_late:
            self._wake_some(now)
        if not self._can_deliver:
            return
        for _ in range(min(SERVED_MAX, len(self._ready))):
            if self._turn_bytes <= 0:
                return
            reader = self._ready.popleft()
            if reader.place is Place.READY:
                self._serve(reader, now)
        self._let_next(self._to_fetch, self._fetching < FETCHES_MAX)
        self._let_next(self._to_count, self._counting < COUNTS_MAX)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        retries = [feed.retry_us for feed in self._feeds.values() if feed.retry_us is not None]
        due_us = min(retries, default=_NEVER_US)
        if self._to_ask:
            due_us = min(due_us, self._to_ask[0][0])
        if self._wakes:
            due_us = min(due_us, self._wakes[0][0])
        return None if due_us == _NEVER_US else due_us

    @property
    def has_next_turn(self) -> bool:
        """True if `turn` has something to do."""
        return self._is_late or (bool(self._ready) and self._can_deliver)

    @property
    def _can_deliver(self) -> bool:
        return self.deliveries.is_up and self.deliveries.is_writable

    # Turns

    def ready(self, reader: Reader) -> None:
        """Have a reader served."""
        if reader.place not in (Place.READY, Place.GONE):
            reader.place = Place.READY
            self._ready.append(reader)

    def wake(self, reader: Reader, at_us: int) -> None:
        """Look at a reader at that time."""
        if at_us < reader.wake_us:
            reader.wake_us = at_us
            heapq.heappush(self._wakes, (at_us, next(self._numbers), reader))

    def _serve(self, reader: Reader, now: Now) -> None:
        """Send what is in memory, up to a share; otherwise say what the reader waits for."""
        feed = self._feeds[reader.stream_id]
        cursor = reader.cursor
        shown = feed.look()
        if shown is None:
            self._lose(feed)
            return
        reader.place = Place.IDLE
        wanted = self._wanted(reader, now) if reader.pulls else hot.UNLIMITED
        if not wanted or not reader.wants:
            return
        if reader.is_paused(now.wall_us):
            self._send_all(reader.at_end(now.elapsed_us))  # as if nothing were there
            return
        cursor.next_offset = max(cursor.next_offset, shown.log_start)
        if cursor.next_offset < cursor.resume_offset:
            cursor.next_offset = cursor.next_wanted()
        if cursor.wanted and cursor.next_offset >= cursor.resume_offset:
            cursor.want(b"", 0)  # up to 8 MB, for as long as it lives
        if cursor.next_offset >= feed.tail_end:
            self._at_tail(feed, reader, shown, now)
            return
        if not self._is_counted(feed, reader):
            self._count(reader)
            return
        chunk = feed.find(reader)
        if chunk is None:
            self._fetch(feed, reader)
            return
        reader.counts = 0
        reader.grant(now.elapsed_us)
        cursor.messages_left = min(cursor.messages_left, wanted)
        cursor.payload_max = self._gateway.payload_max
        out = bytearray()
        stop = hot.TOOK_ALL
        for rows in chunk.rows:
            if rows.end_offset <= cursor.next_offset:
                continue
            before = rows.delivered, rows.cut
            stop = cursor.fill(rows, out, min(SHARE_BYTES, max(1, self._turn_bytes)), now.elapsed_us)
            self._note(feed, rows, *before)
            if stop not in (hot.TOOK_ALL, hot.LOW):
                break
        else:
            cursor.next_offset = max(cursor.next_offset, chunk.end)
        self._send(out)
        self._stopped(feed, reader, stop, now)
        if reader.place is Place.READY or 2 * cursor.next_offset > chunk.begin + chunk.end:
            self._read_ahead(feed, reader, chunk)

    def _note(self, feed: Feed, rows: DecodedRows, delivered: int, cut: int) -> None:
        """Count what was sent of some rows since they had these counts; tell once of values that are left out."""
        self.delivered += rows.delivered - delivered
        if rows.cut == cut:
            return
        self.too_large += rows.cut - cut
        if not feed.told_too_large:
            feed.told_too_large = True
            header = TOO_LARGE_HEADER.decode().strip()
            self._node.outbox.step.notices.append(
                f"stream {feed.name} has messages above nats-server's max_payload ({self._gateway.payload_max} bytes): "
                f"consumers get them without their value, with the header `{header}`; raise max_payload"
            )

    def _wanted(self, reader: Reader, now: Now) -> int:
        """Drop requests that no client waits for any more; return how many messages the next ones may be sent.

        A request whose inbox is not known yet lets the others go first.
        """
        pulls = reader.pulls
        wanted, is_early = 0, False
        for _ in range(min(len(pulls), INBOXES_LOOKED_AT)):
            pull = pulls[wanted]
            if self.deliveries.has_interest(pull.inbox) is not False:
                wanted += 1
                continue
            del pulls[wanted]
            if now.elapsed_us < pull.received_us + GRACE_US:
                pulls.append(pull)
                is_early = True
        if is_early:
            self._sleep(reader, now.elapsed_us + 2_000)
        return hot.UNLIMITED if wanted == len(pulls) else wanted

    def _take_back(self, reader: Reader, now: Now) -> None:
        """Note what the cursor has sent, and end the requests that are finished."""
        reader.take_back((now.wall_us, now.elapsed_us))
        for end in reader.ends():
            self._send(end)

    def _stopped(self, feed: Feed, reader: Reader, stop: int, now: Now) -> None:
        """Go on after the cursor has stopped."""
        self._take_back(reader, now)
        self._send(reader.flow_frame(feed.name))
        if stop == hot.NO_ROOM:
            if (room_us := reader.room_us()) is not None:
                self._sleep(reader, max(room_us, now.elapsed_us + 1_000))
            elif reader.ahead_bytes < reader.window_bytes:
                self.ready(reader)
            return
        if stop == hot.TOO_EARLY:
            self._sleep(reader, now.elapsed_us + 1_000)
            return
        if reader.wants:
            self.ready(reader)

    def _sleep(self, reader: Reader, until_us: int) -> None:
        reader.is_asleep = True
        self.wake(reader, until_us)

    def _at_tail(self, feed: Feed, reader: Reader, shown: Shown, now: Now) -> None:
        """The reader has all that has been taken from the tail."""
        if shown.end > feed.tail_end or reader.cursor.next_offset > feed.tail_end:
            reader.counted_under = None  # rows that it does not want would be counted
            if reader.cursor.next_offset >= shown.end:
                self._send_all(reader.at_end(now.elapsed_us))
            if reader.wants:
                feed.behind.append(reader)  # rows are on the way, or it begins later
                reader.place = Place.WAITING
            return
        reader.is_paced = False
        self._send_all(reader.at_end(now.elapsed_us))
        if not reader.wants:
            return
        reader.grant(now.elapsed_us)
        reader.cursor.payload_max = self._gateway.payload_max
        reader.place = Place.FOLLOWING
        self._watch_inboxes(reader)
        feed.follow(reader)

    def _watch_inboxes(self, reader: Reader) -> None:
        """Have it told when a client stops to wait for new messages: what is sent to its inbox then is lost."""
        inboxes = frozenset(pull.inbox for pull in islice(reader.pulls, INBOXES_LOOKED_AT))
        if inboxes <= reader.watched:
            return
        for inbox in reader.watched - inboxes:
            self._forget_inbox(reader, inbox)
        for inbox in inboxes - reader.watched:
            self._inboxes.setdefault(inbox, set()).add(reader)
            self.deliveries.watch(inbox)
        reader.watched = inboxes

    def _unfollow(self, readers: Iterable[Reader]) -> None:
        by_feed: dict[int, list[Cursor]] = {}
        for reader in readers:
            by_feed.setdefault(reader.stream_id, []).append(reader.cursor)
        for stream_id, cursors in by_feed.items():
            for reader in self._feeds[stream_id].unfollow(cursors):
                self.ready(reader)

    # The tail

    def _poll(self, feed: Feed) -> None:
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
        self._gateway.ask_rows(request, self._node.now, partial(self._polled, feed, feed.tail_end))

    def _polled(self, feed: Feed, begin: int, response: Response | RemoteError, payload: Payload) -> None:
        if feed.is_closed:
            return
        feed.is_polling = False
        now = self._node.now
        if not feed.readers and not feed.opening:
            self._close(feed)
        elif isinstance(response, RemoteError):
            self._poll_failed(feed, response, now)
        else:
            assert isinstance(response, FetchResponse)
            if response.end_offset <= begin:
                self._poll(feed)
                return
            feed.is_polling = True
            self._decode(begin, response, payload, None, partial(self._tail_read, feed))

    def _tail_read(self, feed: Feed, chunk: Chunk | None) -> None:
        if feed.is_closed:
            return
        feed.is_polling = False
        now = self._node.now
        if chunk is None:
            feed.retry_us = now.elapsed_us + _RETRY_US
            return
        if feed.look() is None:
            self._lose(feed)
            return
        if chunk.begin == feed.tail_end:
            feed.take(chunk)
            self._follow(feed, chunk, now)
        self._poll(feed)
        behind, feed.behind = feed.behind, []
        for reader in behind:
            if reader.place is Place.WAITING:  # it may have been moved meanwhile, and follow
                self.ready(reader)
        for reader, pending in feed.take_unsettled():
            if reader.place is Place.WAITING and self._settle(feed, reader, pending):
                self.ready(reader)

    def _poll_failed(self, feed: Feed, error: RemoteError, now: Now) -> None:
        shown = feed.look()
        if shown is None or error.code is ErrorCode.STREAM_NOT_FOUND:
            self._lose(feed)
            return
        if shown.log_start > feed.tail_end:
            feed.jump(shown.log_start)
            self._unfollow([feed.reader_of[cursor] for cursor in feed.followers])
            self._poll(feed)
            return
        feed.retry_us = now.elapsed_us + _RETRY_US

    def _follow(self, feed: Feed, chunk: Chunk, now: Now) -> None:
        """Send new rows to all who follow."""
        if not feed.followers:
            return
        if not self._can_deliver:
            self._unfollow([feed.reader_of[cursor] for cursor in feed.followers])
            return
        for rows in chunk.rows:
            out, stopped = bytearray(), list[Cursor]()
            before = rows.delivered, rows.cut
            served = hot.deliver(feed.followers, 0, rows, out, TURN_BYTES, now.elapsed_us, stopped)
            self._note(feed, rows, *before)
            self._send(out)
            missed = dict.fromkeys(feed.followers[served:])
            if stopped or missed:
                for reader in feed.unfollow([*stopped, *missed]):
                    reader.place = Place.IDLE
                    if reader.cursor.stop == hot.FULL or reader.cursor in missed:
                        self._take_back(reader, now)
                        self.ready(reader)
                    else:
                        self._stopped(feed, reader, reader.cursor.stop, now)
        end = chunk.end
        for cursor in feed.followers:
            cursor.next_offset = max(cursor.next_offset, end)

    # Rows and counts

    def _decode(
        self,
        begin: int,
        response: FetchResponse,
        payload: Payload,
        filters: tuple[str, ...] | None,
        then: Callable[[Chunk | None], None],
    ) -> None:
        """Decode an answer in a disk thread; `then` gets the rows, or None if they could not be read."""
        found: list[Chunk] = []

        def done(error: Exception | None) -> None:
            if error is not None and not isinstance(error, PenstockError | OSError):
                raise error
            then(found[0] if found else None)

        self._node.outbox.work(Lane.READ, lambda: found.append(decoded(begin, response, payload, filters)), done)

    def _fetch(self, feed: Feed, reader: Reader) -> None:
        """Read the rows from the reader's next offset on; it waits for them."""
        reader.place = Place.WAITING
        key = feed.fetch_filters(reader), reader.cursor.next_offset
        if (waiting := feed.fetching.get(key)) is not None:
            waiting.append(reader)
        elif self._fetching >= FETCHES_MAX:
            self._to_fetch.append(reader)
        else:
            feed.fetching[key] = [reader]
            self._read(feed, *key)

    def _let_next(self, waiting: deque[Reader], has_place: bool) -> None:
        """Have the first one served that waits for a place; it may need none by now, so each turn looks again."""
        while waiting and has_place:
            reader = waiting.popleft()
            if reader.place is Place.WAITING:
                self.ready(reader)
                return

    def _read_ahead(self, feed: Feed, reader: Reader, chunk: Chunk) -> None:
        """Read what comes behind the chunk, while the reader is sent the rest of it, or before it asks for more."""
        if reader.cursor.next_offset >= feed.tail_end:
            return
        key = feed.fetch_filters(reader), chunk.end
        is_there = self._cache.find(feed.stream_id, key[0], chunk.end) is not None or feed.has_recent(chunk.end)
        if not is_there and key not in feed.fetching and self._fetching < FETCHES_MAX and chunk.end < feed.tail_end:
            feed.fetching[key] = []
            self._read(feed, *key)

    def _read(self, feed: Feed, filters: tuple[str, ...] | None, begin: int) -> None:
        self._fetching += 1
        request = FetchRequest(
            stream_id=feed.stream_id,
            offset=Offset(begin),
            bytes_max=READ_BYTES,
            columns=None if filters is None else COLUMNS,
            subjects=filters,
        )

        def heard(response: Response | RemoteError, payload: Payload) -> None:
            if isinstance(response, FetchResponse) and response.end_offset > begin:
                self._decode(begin, response, payload, filters, read)
            else:
                read(None)

        def read(chunk: Chunk | None) -> None:
            self._fetching -= 1
            waiting = feed.fetching.pop((filters, begin), [])
            now = self._node.now
            if chunk is not None and not feed.is_closed:
                feed.keep(chunk)
            for reader in waiting:
                if reader.place is Place.WAITING:
                    if chunk is None:  # the log start has moved, or the log cannot be read now
                        reader.place = Place.IDLE
                        self._sleep(reader, now.elapsed_us + _RETRY_US)
                    else:
                        self.ready(reader)
            self._let_next(self._to_fetch, self._fetching < FETCHES_MAX)

        self._gateway.ask_rows(request, self._node.now, heard)

    def _is_counted(self, feed: Feed, reader: Reader) -> bool:
        """True if the count of pending messages holds; if all that is pending is in memory, it is counted now."""
        if reader.counted_under is feed.version or reader.counts >= COUNTS_EACH_MAX:
            return True
        cursor = reader.cursor
        if cursor.next_offset >= cursor.resume_offset:
            found = feed.count_recent(cursor.filter, cursor.next_offset)
            if found is not None:
                cursor.pending = found - cursor.filter.seen
                reader.counted_under = feed.version
                return True
        return False

    def _count(self, reader: Reader) -> None:
        """Count what is pending for a reader; it waits."""
        reader.place = Place.WAITING
        if self._counting >= COUNTS_MAX:
            self._to_count.append(reader)
            return
        self._counting += 1

        def done(pending: Pending | None) -> None:
            self._counting -= 1
            now = self._node.now
            if reader.place is not Place.GONE:
                if pending is None:
                    reader.place = Place.IDLE
                    self._sleep(reader, now.elapsed_us + _RETRY_US)
                elif self._settle(self._feeds[reader.stream_id], reader, pending):
                    self.ready(reader)
            self._let_next(self._to_count, self._counting < COUNTS_MAX)

        try:
            counting = self.counting(reader)
        except RemoteError:
            done(None)
        else:
            self._run(counting, None, done)

    def _run(self, counting: Counting, answers: list[Answered] | None, done: Callable[[Pending | None], None]) -> None:
        """Ask the node the questions of a count, one after the other; `done` gets None if one is refused."""
        try:
            (question,) = next(counting) if answers is None else counting.send(answers)
        except StopIteration as end:
            done(end.value)
            return
        except (RemoteError, ApiError):
            done(None)
            return

        def heard(response: Response | RemoteError, payload: Payload) -> None:
            if question.until is not None and not question.until(response):
                due_us = self._node.now.elapsed_us + _ASK_AGAIN_US
                self._to_ask.append((due_us, lambda now: self._gateway.ask(question.request, now, heard)))
            else:
                self._run(counting, [Answered(response, payload)], done)

        self._gateway.ask(question.request, self._node.now, heard)

    def _settle(self, feed: Feed, reader: Reader, pending: Pending) -> bool:
        """Note the count of what is pending up to `pending.end`; False: the reader waits until the tail is there."""
        cursor = reader.cursor
        if pending.end > feed.tail_end:
            reader.place = Place.WAITING
            feed.unsettled.append((reader, pending))
            return False
        later = feed.count_recent(cursor.filter, max(pending.end, cursor.next_offset))
        # A reader may begin behind the tail: the rows between, which it does not want, would be counted as they come.
        is_valid = later is not None and pending.version is feed.version and cursor.next_offset <= feed.tail_end
        reader.counted_under = feed.version if is_valid else None
        reader.counts += 1
        cursor.pending = pending.messages + (later or 0) - cursor.filter.seen
        return True

    # Times

    def _due(self, reader: Reader, now: Now) -> bool:
        """Send what is due to a reader, look after its inbox, and let it go on if it slept."""
        feed = self._feeds[reader.stream_id]
        if reader.place is Place.FOLLOWING:
            reader.take_back((now.wall_us, now.elapsed_us))
        if now.elapsed_us >= reader.looked_us + reader.look_us(now.elapsed_us):
            self._look_for_inboxes(reader, now)
        for one in reader.frames_due(now.elapsed_us):
            self._send(one)
        if self._is_inactive(reader, now):
            return False
        if reader.place is Place.IDLE and (reader.is_asleep or reader.wants):
            reader.is_asleep = False
            self.ready(reader)
        elif reader.place is Place.FOLLOWING and not reader.wants:
            for _ in feed.unfollow([reader.cursor]):
                reader.place = Place.IDLE
        earliest_us = now.elapsed_us + 1_000 + _LOOK_US_PER_PULL * len(reader.pulls)
        self.wake(reader, max(earliest_us, reader.due_us(now.wall_us, now.elapsed_us)))
        return True

    def _look_for_inboxes(self, reader: Reader, now: Now) -> None:
        reader.looked_us = now.elapsed_us
        if not self.deliveries.is_up:
            return
        if reader.config.is_push:
            group = reader.config.deliver_group.encode()
            if self.deliveries.has_interest(reader.inbox, group) is False:
                if reader.inactive_us is None:
                    reader.inactive_us = now.elapsed_us
                self.deliveries.unwatch(reader.inbox)
            else:
                reader.inactive_us = None
                self.deliveries.watch(reader.inbox)
            return
        grace_us = now.elapsed_us - GRACE_US
        begin = reader.looked_at if reader.looked_at < len(reader.pulls) else 0
        reader.looked_at = begin + INBOXES_LOOKED_AT
        gone = {
            id(pull)
            for pull in islice(reader.pulls, begin, begin + INBOXES_LOOKED_AT)
            if pull.received_us <= grace_us and self.deliveries.has_interest(pull.inbox) is False
        }
        if gone:
            reader.looked_at -= len(gone)
            reader.keep(pull for pull in reader.pulls if id(pull) not in gone)

    def _is_inactive(self, reader: Reader, now: Now) -> bool:
        if reader.inactive_us is None or reader.pulls:
            return False
        return now.elapsed_us >= reader.inactive_us + reader.config.inactive_us

    # The end

    def _end_lost(self) -> None:
        """End the readers of streams that are deleted, or led by another broker."""
        for feed in list(self._feeds.values()):
            state = self._gateway.stream_of(feed.stream_id)
            partition = None if state is None else state.partitions[0]
            is_led = partition is not None and partition.leader == self._node.broker_id
            if partition is None or not is_led or partition.leader_epoch != feed.leader_epoch:
                self._lose(feed)

    def _end_unreadable(self) -> None:
        """End readers that may not read any more: their stream's config, or the rights of the API's user, changed."""
        if not self._feeds:
            return
        who = self._gateway.authorization.who
        for feed in list(self._feeds.values()):
            state = self._gateway.stream_of(feed.stream_id)
            assert state is not None  # `_end_lost` has ended the others
            before, feed.rights = feed.rights, (who, self._gateway.read_subjects(state))
            if not state.config.is_nats_readable:
                gone = list(feed.readers.values())
            elif feed.rights == before or self._gateway.may_read(state, None):
                gone = []
            else:
                filters = {reader.config.filters for reader in feed.readers.values()}
                refused = {one for one in filters if not self._gateway.may_read(state, one or None)}
                gone = [reader for reader in feed.readers.values() if reader.config.filters in refused]
            if gone:
                self.remove(gone)

    def _end_stored(self) -> None:
        """End what would be delivered into a stream: the rows would come back to it for ever."""
        if not self.total:
            return
        for feed in self._feeds.values():
            pushes = [one for one in feed.readers.values() if one.config.is_push and self.comes_back(one.inbox)]
            if pushes:
                self.remove(pushes)
            for reader in feed.readers.values():
                kept = [pull for pull in reader.pulls if not self.comes_back(pull.inbox)]
                if len(kept) < len(reader.pulls):
                    reader.keep(kept)
                    self.changed(reader, self._node.now)

    def comes_back(self, inbox: bytes) -> bool:
        """Return if what is delivered there is stored by a stream, or is a request to JetStream's API."""
        if inbox.startswith(b"$JS."):
            return True
        names = self._node.image.names
        if self._firsts_of is not names:
            self._firsts_of = names
            subjects = (one for state in self._node.image.streams.values() for one in state.config.subjects)
            self._firsts = {subject.partition(".")[0].encode() for subject in subjects}
        may_be = inbox.partition(b".")[0] in self._firsts or not self._firsts.isdisjoint(_ANY)
        return may_be and self._node.is_stored(inbox.decode(errors="replace"))

    def _lose(self, feed: Feed) -> None:
        """End the readers of a stream."""
        is_led_elsewhere = self._gateway.stream_of(feed.stream_id) is not None
        why = "Leadership Change" if is_led_elsewhere else "Consumer Deleted"
        if feed.readers:
            self.remove(list(feed.readers.values()), why=why)
        self._close(feed)

    def _close(self, feed: Feed) -> None:
        feed.is_closed = True
        self._cache.forget(feed.stream_id)
        self._feeds.pop(feed.stream_id, None)
        if self._by_name.get(feed.name) is feed:  # otherwise the stream was made anew with this name
            del self._by_name[feed.name]

    def shut_down(self) -> None:
        """Tell clients whose requests wait that this broker stops."""
        if not self.deliveries.is_up:
            return
        for feed in self._feeds.values():
            for reader in feed.readers.values():
                for pull in reader.pulls:
                    self._send(frame(pull.inbox, ended(pull, 409, "Server Shutdown")))
                reader.pulls.clear()

    def _send_all(self, frames: Iterable[bytes]) -> None:
        for one in frames:
            self._send(one)

    def _send(self, frames: bytes | bytearray) -> None:
        if frames:
            self._turn_bytes -= len(frames)
            self.delivered_bytes += len(frames)
            self.deliveries.deliver(frames)
