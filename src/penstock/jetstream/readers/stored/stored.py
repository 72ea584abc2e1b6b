"""The stored consumers of a broker: their leaderships, acks, times and writes, in one place for `Readers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.base.clock import Now
from penstock.consumers.letters import MAX_DELIVER, Given
from penstock.hot.message_group import MessageGroup
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.config.reader_config import ReaderConfig
from penstock.jetstream.readers.reader import Place, Reader
from penstock.jetstream.readers.running.output import Output
from penstock.jetstream.readers.running.registry import ReaderRegistry
from penstock.jetstream.readers.running.schedule import Schedule
from penstock.jetstream.readers.stored.acks import Acks, AckTables
from penstock.jetstream.readers.stored.advisories import Advisories
from penstock.jetstream.readers.stored.again import step_over
from penstock.jetstream.readers.stored.dead_letters import DeadLetters
from penstock.jetstream.readers.stored.leaderships import Leaderships
from penstock.jetstream.readers.stored.led import LedConsumer
from penstock.jetstream.readers.stored.priorities import Priorities
from penstock.jetstream.readers.stored.removals import Removals

if TYPE_CHECKING:
    from penstock.base.errors import RemoteError
    from penstock.jetstream.readers.feed import Feed
    from penstock.jetstream.readers.running.tails import Tails


CHECK_US = 100_000
"""Time between two looks for messages that are gone, at all consumers of a stream; a consumer that is served, or asked
about, looks itself."""
EXHAUSTED_MAX = 1_000
"""Messages of one consumer, delivered as often as they may be, that a new leader gives up at once."""


class Stored:
    """Stored consumers, while this broker leads their streams."""

    def __init__(
        self,
        gateway: Gateway,
        registry: ReaderRegistry,
        advisories: Advisories,
        *,
        schedule: Schedule,
        output: Output,
        tails: Tails,
        acks: AckTables,
        removals: Removals,
    ) -> None:
        self._gateway = gateway
        self._registry = registry
        self._schedule = schedule
        self._tails = tails
        self.advisories = advisories
        self._removals = removals
        self.leaderships = Leaderships(gateway, registry, output, removals)
        self.dead_letters = DeadLetters(gateway, registry)
        self._acks = Acks(gateway, acks, self.advisories, removals, self.dead_letters)
        self.next_pull: Callable[[Reader, bytes, bytes], None] = lambda reader, reply, payload: None

    # Events

    def acks_received(self, group: MessageGroup, now: Now) -> None:
        """Apply the acks of one read; who waits for an answer gets it once they are committed."""
        for reader in self._acks.take(group, now, self._stream_name, self.next_pull):
            self._go_on(reader, now)
        self.dead_letters.tick(now)
        self._settle_letters(now)
        self._write(now)

    def tick(self, now: Now) -> None:
        """Begin and end leaderships, step over what is gone, and write what is due."""
        self.leaderships.tick(now)
        self._removals.follow_image(self._known_streams)
        self._begin(now)
        self._removals.tick(now)
        for one in self.leaderships.all():
            feed = self._registry.feed(one.stream_id)
            shown = None if feed is None else feed.look()
            if feed is None or shown is None or one.checked_under is feed.version or now.elapsed_us < one.check_us:
                continue
            one.checked_under, one.check_us = feed.version, now.elapsed_us + CHECK_US
            for reader in feed.readers.values():
                if reader.led is not None:
                    self.step_over(reader, reader.led, now)
        self.dead_letters.tick(now)
        self._settle_letters(now)
        self._write(now)

    def turn(self, now: Now) -> None:
        """Write what is due, let those go on whose rows are committed, and add those that are coming."""
        if self.leaderships.has_coming:
            self.leaderships.go_on(now)
            self._begin(now)
        self._settle_letters(now)
        self._write(now)

    @property
    def has_next_turn(self) -> bool:
        """True if `turn` has something to do."""
        now_us = self._gateway.node.now.elapsed_us
        return (
            self.leaderships.has_coming
            or self.dead_letters.has_settled
            or any(one.writes.released or one.writes.is_due(now_us) for one in self.leaderships.all())
        )

    @property
    def next_us(self) -> int | None:
        """When `tick` has something to do."""
        dues = self.leaderships.next_us, self.dead_letters.next_us, self._removals.next_us
        return min((due_us for due_us in dues if due_us is not None), default=None)

    def _settle_letters(self, now: Now) -> None:
        """Let consumers go on whose dead letters are stored, and remove these messages where acks do."""
        for reader in self.dead_letters.take_settled():
            if reader.led is not None and self._registry.of_table(reader.led.state.table) is reader:
                if reader.led.state.table.takes_settled:
                    self._removals.settled(reader, is_awaited=True)
                self._go_on(reader, now)

    def _known_streams(self) -> list[tuple[int, Feed | None]]:
        """Return the streams whose consumers are all known, each with its feed; None: it has no consumers now."""
        known = dict.fromkeys(feed.stream_id for feed in self._registry.feeds())
        known |= dict.fromkeys(one.stream_id for one in self.leaderships.all())
        return [(number, self._registry.feed(number)) for number in known if self.leaderships.is_known(number)]

    def _begin(self, now: Now) -> None:
        """Let the consumers of new leaderships begin."""
        for feed in self.leaderships.take_begun():
            self._tails.poll(feed)
            for reader in [*feed.readers.values()]:
                if reader.led is not None:
                    self.expire(reader, reader.led, now, is_new=True)
                    self._schedule.ready(reader)
                    self._schedule.wake(reader, reader.due_us(now.wall_us, now.elapsed_us))

    def _write(self, now: Now) -> None:
        for one in self.leaderships.all():
            one.writes.write(now)
            for led in one.writes.take_released():
                reader = self._registry.of_table(led.state.table)
                if reader is not None and reader.place is Place.IDLE and reader.wants:
                    self._schedule.ready(reader)

    def _go_on(self, reader: Reader, now: Now) -> None:
        """Serve a consumer again that waited for acks, or has something to deliver again."""
        assert reader.led is not None
        if not reader.wants:
            pass
        elif reader.place is Place.IDLE:
            self._schedule.ready(reader)
        elif reader.place is Place.FOLLOWING and reader.led.state.table.ready:
            self._registry.unfollow([reader])
        self._schedule.wake(reader, reader.led.state.due_us())

    def step_over(self, reader: Reader, led: LedConsumer, now: Now) -> None:
        """Take messages that are gone out of those in hand."""
        feed = self._registry.feed_of(reader)
        shown = feed.look()
        if shown is None:
            return
        cursor = reader.cursor
        if cursor.next_offset < shown.log_start:
            cursor.next_offset, cursor.last_offset = shown.log_start, shown.log_start - 1
            led.state.table.pass_to(shown.log_start)
        if step_over(feed, led, shown):
            led.writes.note(led, now.elapsed_us, waits=False)
            self._go_on(reader, now)

    def expire(self, reader: Reader, led: LedConsumer, now: Now, *, is_new: bool = False) -> None:
        """Make ready what is due, and give up what was delivered as often as it may be."""
        if (priorities := led.priorities) is not None and now.elapsed_us >= priorities.pin_due_us:
            priorities.unpin()
            self.advisories.unpinned(
                self._stream_name(reader), reader.name, reader.config.priority_groups[0], "timeout"
            )
            self._registry.changed(reader, now)
            if reader.place is Place.WAITING and priorities.is_passed_over:
                self._schedule.ready(reader)  # a request without a pin may have it now
        due = led.state.due_us() <= now.elapsed_us
        if not due and not is_new:
            return
        given_up = led.state.expire(now.elapsed_us) if due else []
        if is_new and (reader.config.dead_letters or not led.state.table.takes_settled):
            given_up = [*dict.fromkeys([*given_up, *led.state.exhausted(EXHAUSTED_MAX)])]
        keeps = led.state.table.takes_settled  # a late ack is to remove them
        for offset in given_up:
            entry = led.state.table.entry(offset)
            deliveries = entry[1] if entry is not None else led.state.config.max_deliver
            if reader.config.dead_letters:
                self.dead_letters.give(reader, led, Given(offset, deliveries, MAX_DELIVER))
                self.advisories.exceeded(self._stream_name(reader), reader.name, offset, deliveries)
            elif keeps or led.state.give_up(offset):
                self.advisories.exceeded(self._stream_name(reader), reader.name, offset, deliveries)
        if due or given_up:
            led.writes.note(led, now.elapsed_us, waits=False)
        if led.state.table.ready or given_up:
            self._go_on(reader, now)

    def _deleted(self, reader: Reader, done: Callable[[RemoteError | None], None], error: RemoteError | None) -> None:
        """Free what only a deleted consumer needed, once its deletion is committed."""
        if error is None:
            self._removals.gone(reader)
        done(error)

    def _stream_name(self, reader: Reader) -> str:
        feed = self._registry.feed(reader.stream_id)
        return "" if feed is None else feed.name

    # What requests use

    @staticmethod
    def configure(led: LedConsumer, config: ReaderConfig) -> None:
        """Have another config for the priorities of a consumer."""
        if config.priority == "none":
            led.priorities = None
        elif led.priorities is None:
            led.priorities = Priorities(config, led.state.consumer_id)
        else:
            led.priorities.configure(config)

    def attach(self, reader: Reader, led: LedConsumer) -> None:
        """Have a reader deliver by its state, from its position on."""
        reader.cursor.attach(led.state.table, f"$JS.ACK.{self._stream_name(reader)}.{reader.name}.".encode())

    def delete(self, readers: Sequence[Reader], done: Callable[[RemoteError | None], None] | None = None) -> None:
        """Delete what is stored of readers; `done` is called for each of them that has something."""
        for reader in readers:
            if (led := reader.led) is not None and not led.is_deleted:
                led.writes.delete(led, partial(self._deleted, reader, _nothing if done is None else done))
                self.advisories.acted(self._stream_name(reader), reader.name, "delete")


def _nothing(error: RemoteError | None) -> None:
    """No client waits for this deletion: if it was not stored, the next leader does it."""
