"""The partitions with stored consumers that this broker leads: read when a leadership begins, and gone with it.

Rules: the consumers of a partition are served once its log of consumers is read and all of it is committed; until then
requests about them wait. A log that cannot be read refuses stored consumers, and nothing else. Of several consumers of
one name the one made last is kept: the deletion of the others was refused, or its outcome unknown.

    led ──log is known──▶ its consumers are there ──leadership ends──▶ gone; their pulls are told so
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from penstock.base.clock import Now
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import PartitionKey, StreamId
from penstock.consumers.fold import StoredConsumer, stored_consumers
from penstock.consumers.rows import ID_BYTES
from penstock.consumers.state import ConsumerState
from penstock.hot.scan import GROUP_BITS
from penstock.jetstream.api_call import ApiCall
from penstock.jetstream.gateway import ACK_GROUP, Gateway
from penstock.jetstream.partition_streams import partition_stream, real_ids
from penstock.jetstream.readers.config.reader_config import ReaderConfig
from penstock.jetstream.readers.feed import Feed
from penstock.jetstream.readers.reader import Reader, new_cursor
from penstock.jetstream.readers.running.output import Output
from penstock.jetstream.readers.running.registry import ReaderRegistry
from penstock.jetstream.readers.stored.led import LedConsumer, Told, ack_config, parsed_told, told_bytes
from penstock.jetstream.readers.stored.priorities import Priorities
from penstock.jetstream.readers.stored.removals import Removals
from penstock.jetstream.readers.stored.writes import ConsumerWrites
from penstock.metadata.image import StreamState
from penstock.node.consumers.consumer_logs import KnownConsumers
from penstock.node.step import Lane, Subscribe, Unsubscribe

_FIRST_SID = 1  # of subscriptions to acks
WAITING_MAX = 10_000
"""Pull requests that wait until it is known which consumers there are, at one broker."""
WAIT_US_MAX = 5_000_000
_WAIT_US = 50_000
ADDED_AT_ONCE = 100
"""Consumers of a new leadership in one turn of the event loop: some 5 ms."""
_RETRY_US = 1_000_000  # after a log that cannot be read


class Leadership:
    """One partition with stored consumers that this broker leads."""

    def __init__(self, state: StreamState, writes: ConsumerWrites) -> None:
        self.stream_id = state.stream_id  # of the gateway: see `partition_streams`
        self.name = state.name
        self.writes = writes
        self.sid: int | None = None  # of the subscription to its acks
        self.checked_under: object = None  # for which state of the log messages that are gone were looked for
        self.check_us = 0  # when they are looked for again at the soonest
        self.is_known = False  # all its consumers are there
        self.coming: deque[tuple[Told, StoredConsumer]] = deque()  # consumers that are yet to be added
        self.superseded: list[StoredConsumer] = []  # a newer one has the name: they are to be deleted

    @property
    def log(self) -> KnownConsumers:
        return self.writes.log


class Leaderships:
    """All partitions with stored consumers that this broker leads."""

    def __init__(self, gateway: Gateway, registry: ReaderRegistry, output: Output, removals: Removals) -> None:
        self._gateway = gateway
        self._removals = removals
        self._registry = registry
        self._output = output
        self._open: dict[int, Leadership] = {}
        self._version = -1
        self._image: object = None
        self._retry_us: int | None = None
        self._unknown: dict[int, RemoteError] = {}  # led, and not known: why
        self._last_sid = _FIRST_SID
        self._waiting: list[ApiCall] = []
        self._begun: list[Feed] = []  # whose consumers have come
        self._damaged: dict[int, tuple[KnownConsumers, RemoteError]] = {}

    def of(self, stream_id: int) -> Leadership | None:
        """Return the leadership of a stream's log of consumers, if that is known."""
        found = self._open.get(stream_id)
        return found if found is not None and found.is_known and found.log.is_current else None

    def is_known(self, stream_id: int) -> bool:
        """True if it is known which stored consumers a stream has."""
        state = self._gateway.stream_of(StreamId(stream_id))
        return state is not None and (not state.has_consumers or self.of(stream_id) is not None)

    def all(self) -> list[Leadership]:
        return list(self._open.values())

    def take_begun(self) -> list[Feed]:
        """Take the streams whose stored consumers have come."""
        found, self._begun = self._begun, []
        return found

    # Beginning and end

    def tick(self, now: Now) -> None:
        """Begin and end what has changed."""
        node = self._gateway.node
        is_due = self._retry_us is not None and now.elapsed_us >= self._retry_us
        if node.consumer_logs_version == self._version and node.image is self._image and not is_due:
            return
        has_waiting = bool(self._waiting)
        self._version, self._image, self._retry_us = node.consumer_logs_version, node.image, None
        for one in self.all():
            if not one.log.is_current:
                self._end(one)
        self._damaged = {number: one for number, one in self._damaged.items() if one[0].is_current}
        self._unknown.clear()
        for key in node.led_consumer_logs():
            state = self._state_of(key)
            if state is not None and state.stream_id not in self._open:
                self._try_to_begin(state, now)
        if has_waiting:
            self._gateway.take_again(self.take_waiting())

    @property
    def next_us(self) -> int | None:
        """When `tick` has something to do."""
        dues = [one.writes.due_us for one in self._open.values() if not one.writes.is_writing]
        return min((due for due in (*dues, self._retry_us) if due is not None), default=None)

    def _state_of(self, key: PartitionKey) -> StreamState | None:
        state = self._gateway.node.image.streams.get(key[0])
        if state is None or len(state.partitions) == 1:
            return state
        return partition_stream(state, key[1])

    def _try_to_begin(self, state: StreamState, now: Now) -> None:
        try:
            self._begin(state, self._gateway.node.consumer_log(*real_ids(state.stream_id)), now)
        except RemoteError as error:
            self._unknown[state.stream_id] = error
            if error.code != ErrorCode.NOT_YET:
                self._retry_us = now.elapsed_us + _RETRY_US

    def _begin(self, state: StreamState, log: KnownConsumers, now: Now) -> None:
        """Make readers of all consumers of a log, in slices. RemoteError: it is damaged, or not led any more."""
        if (damaged := self._damaged.get(state.stream_id)) is not None:
            raise damaged[1]
        feed = self._registry.feed(state.stream_id)
        if feed is not None and feed.leader_epoch != state.partitions[0].leader_epoch:
            self._registry.lose(feed)
        one = self._open[state.stream_id] = Leadership(state, self._writes(state, log))
        rows = log.take_rows()
        if not rows:
            self._known(one)
            return
        found: dict[str, tuple[Told, StoredConsumer]] = {}

        def fold() -> None:
            all_told = [(parsed_told(stored.told), stored) for stored in stored_consumers(rows).values()]
            found.update((told.name, (told, stored)) for told, stored in sorted(all_told, key=_made_at))
            one.superseded = [stored for told, stored in all_told if found[told.name][1] is not stored]

        def folded(error: Exception | None) -> None:
            if self._open.get(one.stream_id) is not one:
                return
            if isinstance(error, CorruptionError | msgspec.DecodeError):
                self._damage(one, error)
            elif error is not None:
                raise error
            one.coming.extend(found.values())
            if not found and error is None:
                self._known(one)

        self._gateway.node.outbox.work(Lane.READ, fold, folded)

    def _writes(self, state: StreamState, log: KnownConsumers) -> ConsumerWrites:
        return ConsumerWrites(self._gateway, log, self._output, state.stream_id, self._removals)

    def _known(self, one: Leadership) -> None:
        """All consumers of a stream are there."""
        one.is_known = True
        for stored in one.superseded:
            one.log.append(stored.deletion(), _tried)  # otherwise the next leader deletes it
        one.superseded.clear()
        state = self._gateway.stream_of(StreamId(one.stream_id))
        if state is not None:
            self._removals.begin(state, self._registry.feed(one.stream_id))

    def _damage(self, one: Leadership, error: Exception) -> None:
        """The log cannot be understood: stored consumers of the stream are refused, all else goes on."""
        text = f"the log of consumers of stream {one.name}: {error}"
        self._damaged[one.stream_id] = one.log, RemoteError(ErrorCode.CORRUPT_RANGE, text)
        self._unknown[one.stream_id] = self._damaged[one.stream_id][1]
        self._gateway.node.outbox.step.notices.append(f"{text}; its consumers with acks are not served")
        self._end(one)

    @property
    def has_coming(self) -> bool:
        """True if `go_on` has something to do."""
        return any(one.coming for one in self._open.values())

    def go_on(self, now: Now) -> None:
        """Add some of the consumers that are coming."""
        for one in self.all():
            if one.coming:
                self._add_some(one, now)

    def _add_some(self, one: Leadership, now: Now) -> None:
        state = self._gateway.stream_of(StreamId(one.stream_id))
        if state is None or not one.log.is_current:
            one.coming.clear()  # `tick` ends it
            return
        try:
            feed = self._registry.feed(one.stream_id) or self._registry.open(state)
            for _ in range(min(ADDED_AT_ONCE, len(one.coming))):
                told, stored = one.coming.popleft()
                taken = stored.take_over(now.elapsed_us, one.log.messages_end)
                if told.name in feed.readers:  # without acks, in the memory of a moment: a stored one has the name
                    self._registry.remove([feed.readers[told.name]])
                since = min(told.since, taken.table.next_offset)  # what is behind is passed by the filters of now
                config, created_us = told.reader_config(), told.created_us
                reader = self.add_reader(one, feed, told.name, config, taken, created_us, now, since=since)
                if reader.led is not None and taken.has_changes(now.elapsed_us):  # it went back to the messages' end
                    one.writes.note(reader.led, now.elapsed_us, waits=False)
        except RemoteError:
            one.coming.clear()  # it is led elsewhere by now
        except (CorruptionError, ValueError) as error:
            self._damage(one, error)
        else:
            if not one.coming:
                self._known(one)
                self._begun.append(feed)
                self._gateway.take_again(self.take_waiting())

    def add_reader(
        self,
        one: Leadership,
        feed: Feed,
        name: str,
        config: ReaderConfig,
        state: ConsumerState,
        created_us: int,
        now: Now,
        *,
        since: int = 0,
    ) -> Reader:
        """Make the reader of a stored consumer; it is not served yet."""
        cursor = new_cursor(feed.filter_of(config.filters), feed.name, name, state.table.next_offset)
        cursor.attach(state.table, f"$JS.ACK.{feed.name}.{name}.".encode())
        leaf = self._output.leaf
        reader = Reader(feed.stream_id, name, config, cursor, leaf, created_us=created_us, now_us=now.elapsed_us)
        priorities = None if config.priority == "none" else Priorities(config, state.consumer_id)
        reader.led = LedConsumer(state, one.writes, priorities)
        reader.led.since = since
        self._registry.add(feed, reader, now)
        if one.sid is None:
            self._last_sid += 1
            one.sid = self._last_sid << GROUP_BITS | ACK_GROUP
            self._gateway.node.outbox.step.nats.append(Subscribe(one.sid, f"$JS.ACK.{feed.name}.>"))
        return reader

    def _end(self, one: Leadership) -> None:
        """End a leadership: the next leader goes on with its consumers."""
        del self._open[one.stream_id]
        self._removals.end(one.stream_id)
        if one.sid is not None:
            self._gateway.node.outbox.step.nats.append(Unsubscribe(one.sid))
        feed = self._registry.feed(one.stream_id)
        if feed is None:
            return
        readers = [reader for reader in feed.readers.values() if reader.led is not None]
        if readers:
            self._registry.remove(readers, why="Leadership Change")

    # What requests use

    def know(self, state: StreamState, done: Callable[[RemoteError | None], None]) -> None:
        """Go on once it is known which stored consumers a stream has, or that it cannot be known now.

        RemoteError not_yet.
        """
        error = self.unknown(state)
        if error is not None and error.code == ErrorCode.NOT_YET:
            raise error
        done(None)

    def unknown(self, state: StreamState) -> RemoteError | None:
        """Return why it is not known which stored consumers a stream has; None: it is known."""
        self.tick(self._gateway.node.now)
        one = self._open.get(state.stream_id)
        if one is not None and not one.is_known:
            return RemoteError(ErrorCode.NOT_YET, f"the consumers of stream {state.name} are being read")
        if one is None and state.has_consumers and state.stream_id not in self._unknown:
            # The partition's leadership has begun, or ended, and not yet that of its log.
            return RemoteError(ErrorCode.NOT_YET, f"the consumers of stream {state.name} begin to be led")
        return self._unknown.get(state.stream_id)

    def wait(self, call: ApiCall) -> None:
        """Have a request served once the consumers of its stream are known."""
        now = self._gateway.node.now
        now_us = now.elapsed_us
        if len(self._waiting) < WAITING_MAX and now.wall_us - call.received_us < WAIT_US_MAX:
            self._waiting.append(call)
            self._retry_us = min(self._retry_us or now_us + _WAIT_US, now_us + _WAIT_US)

    def take_waiting(self) -> list[ApiCall]:
        """Take the requests that waited."""
        found, self._waiting = self._waiting, []
        return found

    def obtain(self, state: StreamState, done: Callable[[RemoteError | None], None]) -> None:
        """Go on once a stream has a log of consumers that is known here. RemoteError not_yet, …"""
        if self.of(state.stream_id) is None:
            if (error := self.unknown(state)) is not None:
                raise error
            node = self._gateway.node
            if state.stream_id not in self._open:
                self._begin(state, node.consumer_log(*real_ids(state.stream_id)), node.now)
            if self.of(state.stream_id) is None:
                raise RemoteError(ErrorCode.NOT_YET, f"the consumers of stream {state.name} are being read")
        done(None)

    def add_log(self, state: StreamState, done: Callable[[RemoteError | None], None]) -> None:
        """Give a stream a log of consumers, unless it has one."""
        self._gateway.node.add_consumer_log(real_ids(state.stream_id)[0], done)

    def new_state(
        self, name: str, drawn: str, config: ReaderConfig, offset: int, now: Now, *, since: int = 0
    ) -> ConsumerState:
        """Return the state of a new consumer; `drawn`: a name that was drawn, of which its id is made."""
        consumer_id, told = _new_id(drawn), told_bytes(name, now.wall_us, config, since)
        return ConsumerState.new(consumer_id, ack_config(config), told, offset, now.elapsed_us)

    def carried_state(
        self, name: str, drawn: str, config: ReaderConfig, exported: bytes, log_end: int, now: Now, *, since: int
    ) -> ConsumerState:
        """Return the state of a new consumer that goes on where another one was. Raise RemoteError bad_request."""
        told = told_bytes(name, now.wall_us, config, since)
        try:
            return ConsumerState.carried(
                _new_id(drawn), ack_config(config), told, exported, now_us=now.elapsed_us, log_end=log_end
            )
        except (CorruptionError, ValueError) as error:
            raise RemoteError(ErrorCode.BAD_REQUEST, f"the state of consumer {name!r} is none: {error}") from None


def _made_at(consumer: tuple[Told, StoredConsumer]) -> tuple[int, bytes]:
    told, stored = consumer
    return told.created_us, stored.consumer_id


def _tried(error: RemoteError | None) -> None:
    """No client waits for this."""


def _new_id(drawn: str) -> bytes:
    return blake2b(drawn.encode(), digest_size=ID_BYTES).digest()
