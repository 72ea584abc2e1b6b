"""All readers of one broker: of the streams that it leads. It gives them their turns, rows and times.

Rules: one turn writes at most TURN_BYTES, and nothing while nats-server takes less than is sent; readers that could
go on take turns, so a slow one delays no other. Reading and decoding is done in disk threads, a few at once. What ends
the leadership of this broker ends its readers; clients make them anew at the next leader, but for stored ones: these
are there again.

    create ──▶ READY ──served──▶ FOLLOWING ◀── new rows: one decode for all
                 ▲  ╰─ rows ──▶ WAITING ╮  ╰─ no request, no room ──▶ IDLE
                 ╰──────────────────────╯◀──── request, answer, time ──╯

| part              | what it does                                                          |
|-------------------|-----------------------------------------------------------------------|
| `ReaderRegistry`  | finds, adds and removes readers and the feeds of their streams        |
| `Schedule`        | queues the readers that can go on, and looks at others by time        |
| `Serving`         | serves one reader in its turn                                         |
| `Tails`           | follows the tail of each stream, and sends new rows to all who follow |
| `RowReads`        | reads and decodes rows behind the tail                                |
| `Counts`          | counts what is pending                                                |
| `Inboxes`         | looks for the subscribers of inboxes                                  |
| `HeldPulls`       | holds pull requests until the ends of subscriptions before are known  |
| `Output`          | sends frames, and counts them                                         |
| `Endings`         | ends readers when leaders, rights or subjects change                  |
| `Stored`          | has what is stored of consumers with acks, and of durable ones        |
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence

from penstock.base import limits
from penstock.base.clock import Now
from penstock.hot.deliveries import Pull
from penstock.hot.message_group import MessageGroup
from penstock.jetstream.conversations import Answered, Asked
from penstock.jetstream.errors import unavailable
from penstock.jetstream.gateway import Gateway, ReaderNumbers
from penstock.jetstream.readers.config.reader_config import ReaderConfig
from penstock.jetstream.readers.deliveries import Deliveries
from penstock.jetstream.readers.feed import Feed, Pending
from penstock.jetstream.readers.pulls import frame
from penstock.jetstream.readers.reader import Bucket, Place, Reader, ended
from penstock.jetstream.readers.running.counts import Counting, Counts
from penstock.jetstream.readers.running.endings import Endings
from penstock.jetstream.readers.running.held import HeldPulls
from penstock.jetstream.readers.running.inboxes import Inboxes
from penstock.jetstream.readers.running.output import TURN_BYTES, Output
from penstock.jetstream.readers.running.registry import ReaderRegistry
from penstock.jetstream.readers.running.row_reads import RowReads
from penstock.jetstream.readers.running.schedule import Schedule
from penstock.jetstream.readers.running.serving import Serving
from penstock.jetstream.readers.running.tails import Tails
from penstock.jetstream.readers.starting import Start, shown_now
from penstock.jetstream.readers.stored.acks import AckTables
from penstock.jetstream.readers.stored.advisories import Advisories
from penstock.jetstream.readers.stored.led import UNCERTAIN_US
from penstock.jetstream.readers.stored.numbers import ConsumerNumbers, consumer_numbers
from penstock.jetstream.readers.stored.removals import Removals
from penstock.jetstream.readers.stored.stored import Stored
from penstock.metadata.image import StreamState
from penstock.node.partition.partition import Shown

PULLS_MAX = 100_000
"""Pull requests that wait at one broker, some 500 bytes each."""
PULLS_LOOKED_AT = 1_000
"""Requests after which those that wait are counted again."""
SERVED_MAX = 128
"""Readers served in one turn: many may have nothing to send, and each is looked at for some 20 µs."""
WANTED_BYTES_MAX = 256 * limits.MIB
"""Offsets of all readers that begin with the last message of each subject, 8 bytes each, until they have these."""
_COUNT_AGAIN_US = 100_000  # while there was no room for more requests
_LOOK_US_PER_PULL = 50
"""Time between two looks at a reader, for each request that waits: a look, and a heartbeat to each, takes 2 % of it."""


class Readers:
    """The readers of one broker."""

    def __init__(self, gateway: Gateway, deliveries: Deliveries) -> None:
        self.deliveries = deliveries
        self._schedule = schedule = Schedule()
        self._inboxes = inboxes = Inboxes(deliveries)
        self.held = HeldPulls(gateway, deliveries)
        self._output = output = Output(gateway, deliveries)
        acks = AckTables()
        self.removals = removals = Removals(gateway)
        self._registry = registry = ReaderRegistry(gateway, schedule, inboxes, output, acks=acks, removals=removals)
        self._reads = reads = RowReads(gateway, schedule, registry.cache)
        self._counts = counts = Counts(gateway, schedule, registry)
        advisories = Advisories(gateway)
        self._serving = serving = Serving(
            gateway,
            registry,
            schedule=schedule,
            inboxes=inboxes,
            output=output,
            reads=reads,
            counts=counts,
            advisories=advisories,
        )
        self._tails = Tails(
            gateway,
            registry,
            schedule=schedule,
            inboxes=inboxes,
            output=output,
            reads=reads,
            counts=counts,
            serving=serving,
        )
        self._endings = Endings(gateway, registry)
        self.stored = Stored(
            gateway,
            registry,
            advisories,
            schedule=schedule,
            output=output,
            tails=self._tails,
            acks=acks,
            removals=removals,
        )
        self._has_room = True  # for more requests, when they were counted
        self._pulls_since = 0
        self._counted_us = 0

    # What requests use

    @property
    def leaf(self) -> Bucket:
        """The bytes that all readers without flow control may send."""
        return self._output.leaf

    def feed(self, state: StreamState) -> Feed:
        """Return the feed of a stream that this broker leads, beginning now. RemoteError not_leader."""
        feed = self._registry.feed(state.stream_id)
        if feed is None:
            feed = self._registry.open(state)
            self._tails.poll(feed)
        return feed

    def feeds(self) -> list[Feed]:
        """Return the feeds of all streams with consumers."""
        return self._registry.feeds()

    def feed_of_id(self, stream_id: int) -> Feed | None:
        return self._registry.feed(stream_id)

    def feed_of_reader(self, reader: Reader) -> Feed:
        """Return the feed of a reader that is not deleted."""
        return self._registry.feed_of(reader)

    def find(self, state: StreamState, name: str) -> Reader | None:
        feed = self._registry.feed(state.stream_id)
        return None if feed is None else feed.readers.get(name)

    def of(self, state: StreamState) -> list[Reader]:
        """Return the readers of a stream, by name; all of them are sorted."""
        readers = self.by_name(state)
        return [readers[name] for name in sorted(readers)]

    def by_name(self, state: StreamState) -> Mapping[str, Reader]:
        """Return the readers of a stream as they are now, in no order."""
        feed = self._registry.feed(state.stream_id)
        return {} if feed is None else feed.readers

    @property
    def total(self) -> int:
        """Number of all readers."""
        return self._registry.total

    def is_here(self, reader: Reader) -> bool:
        """True unless it is deleted."""
        return reader.place is not Place.GONE

    def stream_name(self, reader: Reader) -> str:
        feed = self._registry.feed(reader.stream_id)
        return "" if feed is None else feed.name

    def numbers(self) -> ReaderNumbers:
        """Return what the metrics tell."""
        readers = [*self._registry.readers()]
        push = sum(one.config.is_push for one in readers)
        waiting = sum(len(one.pulls) for one in readers)
        sent = self._output
        letters = self.stored.dead_letters
        return ReaderNumbers(
            push,
            len(readers) - push,
            waiting,
            sent.delivered,
            sent.delivered_bytes,
            letters_waiting=letters.waiting,
            letters_stored=letters.counters["stored"],
            letters_failed=letters.counters["failed"],
            too_large=sent.too_large,
        )

    def stored_numbers(self) -> Iterator[ConsumerNumbers]:
        """Yield what the metrics tell of each stored consumer."""
        return consumer_numbers(self._registry)

    def count(self, state: StreamState) -> int:
        feed = self._registry.feed(state.stream_id)
        return 0 if feed is None else len(feed.readers)

    def check_room(self, start: Start) -> None:
        """Raise ApiError if the offsets at which a new reader begins are too many beside those of the others."""
        if not start.wanted:
            return
        used = sum(len(one.cursor.wanted) for one in self._registry.readers())
        if used + len(start.wanted) > WANTED_BYTES_MAX:
            raise unavailable(
                "too many consumers begin with the last messages of very many subjects; ask again in a moment"
            )

    def add(self, feed: Feed, reader: Reader, pending: Pending, now: Now) -> None:
        """Let a reader begin."""
        self._registry.add(feed, reader, now)
        self.begin(feed, reader, pending, now)

    def has_feed(self, feed: Feed) -> bool:
        """True unless the stream is lost."""
        return self._registry.feed(feed.stream_id) is feed

    def begin(self, feed: Feed, reader: Reader, pending: Pending, now: Now) -> None:
        """Serve a reader that was added."""
        if self._counts.settle(feed, reader, pending):
            self._schedule.ready(reader)
        self._schedule.wake(reader, reader.due_us(now.wall_us, now.elapsed_us))

    def remove(self, readers: Sequence[Reader]) -> None:
        """Delete readers of one stream, for ever."""
        self.stored.delete(readers)
        self._registry.remove(readers)

    def reconfigure(self, reader: Reader, config: ReaderConfig, now: Now) -> None:
        """Take another config with the same filters."""
        self._inboxes.forget(reader, reader.inbox)
        reader.configure(config, now.elapsed_us)
        if reader.led is not None:
            self.stored.configure(reader.led, config)
        self._inboxes.enter(reader)
        self._inboxes.look(reader, now)
        self._registry.changed(reader, now)

    def move(self, reader: Reader, start: Start, pending: Pending, now: Now) -> None:
        """Begin anew at another place, or with another filter."""
        if reader.place is Place.FOLLOWING:
            self._registry.unfollow([reader])
        reader.cursor.next_offset = start.offset
        reader.cursor.want(start.wanted, start.resume)
        if self._counts.settle(self._registry.feed_of(reader), reader, pending):
            self._schedule.ready(reader)

    def caught_up(self, reader: Reader) -> Generator[Asked, list[Answered], Shown]:
        """Return the steps that wait until all is shown that was acked before."""
        return shown_now(self._registry.feed_of(reader))

    def counting(self, reader: Reader) -> Counting:
        """Return the steps that count what is pending for a reader now."""
        return self._counts.counting(reader)

    def told_pending(self, reader: Reader) -> int | None:
        """Return how many messages are pending, if that is known without asking."""
        feed = self._registry.feed_of(reader)
        shown = feed.look()
        if shown is None or shown.end != feed.tail_end:
            return None
        parked = 0 if reader.led is None else reader.led.state.table.parked
        if reader.place is Place.FOLLOWING or reader.cursor.next_offset >= feed.tail_end:
            return parked
        if reader.counted_under is not feed.version:
            return None
        return max(0, reader.cursor.pending + reader.cursor.filter.seen) + parked

    def comes_back(self, inbox: bytes) -> bool:
        """Return if what is delivered there is stored by a stream, or is a request to JetStream's API."""
        return self._endings.comes_back(inbox)

    # Pull requests

    def has_room(self, reader: Reader, now: Now) -> bool:
        """Return if one more pull request may wait at a reader."""
        self._pulls_since += 1
        if self._pulls_since >= PULLS_LOOKED_AT or not (
            self._has_room or now.elapsed_us < self._counted_us + _COUNT_AGAIN_US
        ):
            self._has_room = sum(len(one.pulls) for one in self._registry.readers()) < PULLS_MAX
            self._pulls_since, self._counted_us = 0, now.elapsed_us
        return self._has_room and len(reader.pulls) < reader.config.max_waiting

    def is_promised(self, reader: Reader) -> bool:
        """True if requests that wait already ask for more messages than are there."""
        if not reader.pulls:
            return False
        pending = self._deliverable(reader)
        return pending is not None and 0 < pending < sum(max(1, pull.batch) for pull in reader.pulls)

    def is_at_end(self, reader: Reader, now: Now) -> bool:
        """True if nothing is there for a request that does not wait."""
        if self._deliverable(reader) != 0:
            return False
        reader.inactive_us = now.elapsed_us
        return True

    def _deliverable(self, reader: Reader) -> int | None:
        """Return how many messages may be delivered, again or for the first time; None: it is not known."""
        ready = 0 if reader.led is None else reader.led.state.table.ready
        pending = self.told_pending(reader)
        return None if pending is None else pending + ready

    def pull(self, reader: Reader, pull: Pull, now: Now) -> None:
        """Take a pull request."""
        if pull.expires_us <= now.elapsed_us:
            reader.inactive_us = now.elapsed_us
            self._output.send(frame(pull.inbox, ended(pull, 408, "Request Timeout")))
            return
        reader.ask(pull, now.elapsed_us)
        if reader.led is not None and (shown := self._registry.feed_of(reader).look()) is not None:
            reader.led.asked_end = shown.end
        priorities = None if reader.led is None else reader.led.priorities
        if priorities is not None:
            self.serve_again(reader, now)
        elif reader.place is Place.IDLE or pull.no_wait:
            self._registry.changed(reader, now)
        elif reader.place is Place.FOLLOWING:
            if self.deliveries.has_interest(pull.inbox) is False:
                self._registry.changed(reader, now)  # new messages would go to it without a look
            else:
                self._inboxes.watch(reader)
        self._schedule.wake(reader, pull.due_us())

    def serve_again(self, reader: Reader, now: Now) -> None:
        """Have a consumer with priorities served: other requests may get messages now."""
        self._registry.changed(reader, now)
        priorities = None if reader.led is None else reader.led.priorities
        if reader.place is Place.WAITING and priorities is not None and priorities.is_passed_over:
            self._schedule.ready(reader)

    def status(self, inbox: bytes, block: bytes) -> None:
        """Send a status message."""
        self._output.status(inbox, block)

    # Events

    def heard(self, subject: str, now: Now) -> None:
        """A message without a reply subject: the answer to a flow-control message."""
        tokens = subject.split(".")
        if len(tokens) == 5 and tokens[:2] == ["$JS", "FC"]:
            self._flow_answered(tokens[2], tokens[3], subject.encode(), now)

    def acks_received(self, group: MessageGroup, now: Now) -> None:
        """Acks of consumers have come, in one read."""
        self.stored.acks_received(group, now)

    def _flow_answered(self, stream: str, name: str, reply: bytes, now: Now) -> None:
        feed = self._registry.named(stream)
        if feed is None or (reader := feed.readers.get(name)) is None:
            return
        if reader.place is Place.FOLLOWING:
            reader.take_back((now.wall_us, now.elapsed_us))
        if reader.flow_answered(reply):
            if reader.place is Place.FOLLOWING:
                reader.grant(now.elapsed_us)
            else:
                self._registry.changed(reader, now)

    def interest_lost(self, subjects: Sequence[bytes], now: Now) -> None:
        """These inboxes have no subscriber any more."""
        changed: dict[Reader, None] = {}
        for subject in subjects:
            for reader in self._inboxes.users(subject):
                self._inboxes.lose(reader, subject, now.elapsed_us)
                changed[reader] = None
        self._registry.unfollow([reader for reader in changed if reader.place is Place.FOLLOWING])
        for reader in changed:
            self._registry.changed(reader, now)

    def interest_known(self, now: Now) -> None:
        """It is known who had unsubscribed before the requests that are held."""
        self.held.known(now)

    def tick(self, now: Now) -> None:
        """Do what is due."""
        self._endings.look()
        self.stored.tick(now)
        self._tails.tick(now)
        self._counts.tick(now)
        self._wake_some(now)

    def _wake_some(self, now: Now) -> None:
        """Look at readers whose time has come; `turn` goes on with those that are left."""
        inactive: dict[int, list[Reader]] = {}
        for reader in self._schedule.take_due(now.elapsed_us):
            if not self._due(reader, now):
                inactive.setdefault(reader.stream_id, []).append(reader)
        for readers in inactive.values():
            self.remove(readers)

    def _due(self, reader: Reader, now: Now) -> bool:
        """Send what is due to a reader, look after its inbox, and let it go on if it slept; False: it is to end."""
        if reader.place is Place.FOLLOWING:
            reader.take_back((now.wall_us, now.elapsed_us))
        if now.elapsed_us >= reader.looked_us + reader.look_us(now.elapsed_us):
            self._inboxes.look(reader, now)
        self._output.send_all_to(reader, reader.frames_due(now.elapsed_us))
        if reader.led is not None:
            if not reader.led.is_certain:
                self._schedule.sleep(reader, now.elapsed_us + UNCERTAIN_US)
                return True
            self.stored.expire(reader, reader.led, now)
        if reader.is_inactive(now.elapsed_us):
            return False
        if reader.place is Place.IDLE and (reader.is_asleep or reader.wants):
            reader.is_asleep = False
            self._schedule.ready(reader)
        elif reader.place is Place.FOLLOWING and not reader.wants:
            for _ in self._registry.feed_of(reader).unfollow([reader.cursor]):
                reader.place = Place.IDLE
        earliest_us = now.elapsed_us + 1_000 + _LOOK_US_PER_PULL * len(reader.pulls)
        self._schedule.wake(reader, max(earliest_us, reader.due_us(now.wall_us, now.elapsed_us)))
        return True

    def turn(self, now: Now) -> None:
        """Serve readers that can go on, as far as one turn of the event loop may."""
        self._output.left_bytes = TURN_BYTES
        self.held.turn(now)
        self.stored.turn(now)
        if self._schedule.is_late:
            self._wake_some(now)
        if not self._output.can_deliver:
            return
        self._inboxes.regroup()
        for _ in range(min(SERVED_MAX, len(self._schedule))):
            if self._output.left_bytes <= 0:
                return
            if (reader := self._schedule.take()) is not None:
                self._serving.serve(reader, now)
        self._reads.let_next()
        self._counts.let_next()

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        dues = (self._tails.next_us, self._counts.next_us, self._schedule.next_us, self.stored.next_us)
        return min((due_us for due_us in dues if due_us is not None), default=None)

    @property
    def has_next_turn(self) -> bool:
        """True if `turn` has something to do."""
        return (
            self._schedule.is_late
            or self.held.has_next_turn
            or self.stored.has_next_turn
            or (bool(self._schedule) and self._output.can_deliver)
        )

    def shut_down(self) -> None:
        """Tell clients whose requests wait that this broker stops."""
        self.held.release()
        if not self.deliveries.is_up:
            return
        for reader in self._registry.readers():
            for pull in reader.pulls:
                self._output.send(frame(pull.inbox, ended(pull, 409, "Server Shutdown")))
            reader.pulls.clear()
