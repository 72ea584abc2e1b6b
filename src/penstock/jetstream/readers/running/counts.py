"""Counts of the messages that are pending for a reader: from memory, or asked of the node, in steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator

from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.jetstream.conversations import Answered, Asked, Deed
from penstock.jetstream.errors import ApiError
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.feed import Feed, Pending
from penstock.jetstream.readers.reader import Place, Reader
from penstock.jetstream.readers.running.registry import ReaderRegistry
from penstock.jetstream.readers.running.schedule import Schedule
from penstock.jetstream.readers.starting import Start, pending_of
from penstock.messages import Response
from penstock.node.step import Payload

COUNTS_MAX = 8
COUNTS_EACH_MAX = 4
"""Counts for one reader in a row: if so much is deleted meanwhile, it goes on with the last one."""
_RETRY_US = 100_000
_ASK_AGAIN_US = 20_000  # after an answer that does not know enough yet

Counting = Generator[Asked, list[Answered], Pending]


class Counts:
    """Counts that are under way, and the readers that wait for them."""

    def __init__(self, gateway: Gateway, schedule: Schedule, registry: ReaderRegistry) -> None:
        self._gateway = gateway
        self._schedule = schedule
        self._registry = registry
        self._under_way = 0
        self._waiting: deque[Reader] = deque()
        self._to_ask: deque[tuple[int, Callable[[Now], None]]] = deque()  # questions that are asked again, by time

    def counting(self, reader: Reader) -> Counting:
        """Return the steps that count what is pending for a reader now."""
        feed = self._registry.feed_of(reader)
        cursor = reader.cursor
        start = Start(cursor.next_offset, cursor.wanted, cursor.resume_offset)
        shown = feed.look()
        if shown is None:
            raise RemoteError(ErrorCode.NOT_LEADER, f"stream {feed.name} is not led by this broker")
        return pending_of(feed, reader.config.filters, start, shown)

    def is_counted(self, feed: Feed, reader: Reader) -> bool:
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

    def count(self, reader: Reader) -> None:
        """Count what is pending for a reader; it waits."""
        reader.place = Place.WAITING
        if self._under_way >= COUNTS_MAX:
            self._waiting.append(reader)
            return
        self._under_way += 1

        def done(pending: Pending | None) -> None:
            self._under_way -= 1
            now = self._gateway.node.now
            if reader.place is not Place.GONE:
                if pending is None:
                    reader.place = Place.IDLE
                    self._schedule.sleep(reader, now.elapsed_us + _RETRY_US)
                elif self.settle(self._registry.feed_of(reader), reader, pending):
                    self._schedule.ready(reader)
            self.let_next()

        try:
            counting = self.counting(reader)
        except RemoteError:
            done(None)
        else:
            self._run(counting, None, done)

    def let_next(self) -> None:
        """Have the first one served that waits for a place; it may need none by now, so each turn looks again."""
        while self._waiting and self._under_way < COUNTS_MAX:
            reader = self._waiting.popleft()
            if reader.place is Place.WAITING:
                self._schedule.ready(reader)
                return

    def settle(self, feed: Feed, reader: Reader, pending: Pending) -> bool:
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

    def tick(self, now: Now) -> None:
        """Ask again what could not be answered yet."""
        while self._to_ask and self._to_ask[0][0] <= now.elapsed_us:
            self._to_ask.popleft()[1](now)

    @property
    def next_us(self) -> int | None:
        """When `tick` has something to ask."""
        return self._to_ask[0][0] if self._to_ask else None

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

        request = question.request
        assert not isinstance(request, Deed)

        def heard(response: Response | RemoteError, payload: Payload) -> None:
            if question.until is not None and not question.until(response):
                due_us = self._gateway.node.now.elapsed_us + _ASK_AGAIN_US
                self._to_ask.append((due_us, lambda now: self._gateway.ask(request, now, heard)))
            else:
                self._run(counting, [Answered(response, payload)], done)

        self._gateway.ask(request, self._gateway.node.now, heard)
