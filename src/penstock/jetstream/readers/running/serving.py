"""One reader's turn: it is sent what is in memory, up to a share; otherwise it waits for what it needs."""

from __future__ import annotations

from penstock.base import limits
from penstock.base.clock import Now
from penstock.hot import deliveries as hot
from penstock.hot.deliveries import Pull
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.chunks import Chunk
from penstock.jetstream.readers.feed import Feed
from penstock.jetstream.readers.reader import Place, Reader
from penstock.jetstream.readers.running.counts import Counts
from penstock.jetstream.readers.running.inboxes import Inboxes
from penstock.jetstream.readers.running.output import Output
from penstock.jetstream.readers.running.registry import ReaderRegistry
from penstock.jetstream.readers.running.row_reads import RowReads
from penstock.jetstream.readers.running.schedule import Schedule
from penstock.jetstream.readers.stored.advisories import Advisories
from penstock.jetstream.readers.stored.again import chunk_of, step_over
from penstock.jetstream.readers.stored.led import UNCERTAIN_US, LedConsumer
from penstock.jetstream.readers.stored.priorities import with_pin
from penstock.node.partition.partition import Shown

SHARE_BYTES = 256 * limits.KIB
"""Frames for one reader in its turn."""
_EARLY_US = 2_000  # until a request is looked at again whose inbox is not known yet


class Serving:
    """Serves readers."""

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
        advisories: Advisories,
    ) -> None:
        self._gateway = gateway
        self._registry = registry
        self._schedule = schedule
        self._inboxes = inboxes
        self._output = output
        self._reads = reads
        self._counts = counts
        self._advisories = advisories

    def serve(self, reader: Reader, now: Now) -> None:
        """Send what is in memory, up to a share; otherwise say what the reader waits for."""
        feed = self._registry.feed_of(reader)
        shown = feed.look()
        if shown is None:
            self._registry.lose(feed)
            return
        reader.place = Place.IDLE
        if reader.led is not None and not reader.led.is_certain:
            self._schedule.sleep(reader, now.elapsed_us + UNCERTAIN_US)
            return
        if reader.led is None or reader.led.priorities is None:
            self._serve(feed, reader, shown, now, hot.UNLIMITED)
        else:
            self._serve_by_priority(feed, reader, reader.led, shown, now)

    def _serve_by_priority(self, feed: Feed, reader: Reader, led: LedConsumer, shown: Shown, now: Now) -> None:
        """Serve the requests whose turn it is; the others go on waiting."""
        priorities, table = led.priorities, led.state.table
        assert priorities is not None
        if not self._counts.is_counted(feed, reader) and reader.cursor.next_offset < feed.tail_end:
            self._counts.count(reader)
            return
        at_tail = reader.cursor.next_offset >= feed.tail_end
        undelivered = 0 if at_tail else max(0, reader.cursor.pending + reader.cursor.filter.seen)
        had_pin, ready, is_early = priorities.pin, len(reader.pulls), False
        if reader.config.priority == "pinned_client" and not had_pin:
            # One whose client is gone would keep the pin, and all messages from the others, until the time-out.
            ready, is_early = self._inboxes.ready_pulls(reader, now)
        pending = undelivered + table.ready + table.parked
        if not pending and reader.config.priority == "pinned_client" and not had_pin:
            others: list[Pull] = []  # who gets the first message gets the pin
            ends: list[bytes] = []
        else:
            times = now.wall_us, now.elapsed_us
            others, ends = priorities.set_aside(reader.pulls, pending, table.ack_pending, times, ready=ready)
        self._output.send_all_to(reader, ends)
        if priorities.pin != had_pin:
            self._advisories.pinned(feed.name, reader.name, reader.config.priority_groups[0], priorities.pin)
        chosen = len(reader.pulls)
        left = priorities.messages_left(reader.pulls, pending, table.ack_pending)
        try:
            self._serve(feed, reader, shown, now, left)
        finally:
            reader.pulls.extend(others)
        if reader.place is Place.IDLE and others:
            if chosen and not len(reader.pulls) > len(others):
                self._schedule.ready(reader)  # the others have their turn
            elif is_early and not chosen:
                self._schedule.sleep(reader, now.elapsed_us + _EARLY_US)
            elif not chosen:
                reader.place = Place.WAITING  # until more messages come
                if reader not in feed.behind:
                    feed.behind.append(reader)

    def _serve(self, feed: Feed, reader: Reader, shown: Shown, now: Now, messages_left: int) -> None:
        """Serve what may be sent, at most so many messages."""
        cursor = reader.cursor
        wanted, is_early = self._wanted(reader, now) if reader.pulls else (hot.UNLIMITED, False)
        wanted = min(messages_left, wanted) if reader.pulls else wanted
        delivered = cursor.delivered
        if not wanted or not reader.wants:
            return
        if reader.is_paused(now.wall_us):
            self._output.send_all_to(reader, reader.at_end(now.elapsed_us))  # as if nothing were there
            return
        if reader.led is not None:
            if reader.led.asked_end > feed.tail_end:
                feed.behind.append(reader)  # messages that were acked before the request are on the way
                reader.place = Place.WAITING
                return
            if not self._serve_again(feed, reader, reader.led, shown, wanted, now):
                return
            if wanted != hot.UNLIMITED and cursor.delivered > delivered:
                self._schedule.ready(reader)  # how many more may be sent is decided anew
                return
        cursor.next_offset = max(cursor.next_offset, shown.log_start)
        if cursor.next_offset < cursor.resume_offset:
            cursor.next_offset = cursor.next_wanted()
        if cursor.wanted and cursor.next_offset >= cursor.resume_offset:
            cursor.want(b"", 0)  # up to 8 MB, for as long as it lives
        if cursor.next_offset >= feed.tail_end:
            self._at_tail(feed, reader, shown, now, is_early)
            return
        if not self._counts.is_counted(feed, reader):
            self._counts.count(reader)
            return
        chunk = feed.find(reader)
        if chunk is None:
            self._reads.fetch(feed, reader)
            return
        reader.counts = 0
        reader.grant(now.elapsed_us)
        cursor.messages_left = min(cursor.messages_left, wanted)
        self._send(feed, reader, chunk, now)
        if reader.place is Place.READY or 2 * cursor.next_offset > chunk.begin + chunk.end:
            self._reads.read_ahead(feed, reader, chunk)

    def _send(self, feed: Feed, reader: Reader, chunk: Chunk, now: Now) -> None:
        """Send the rows of a chunk, as far as the reader may be sent some."""
        cursor = reader.cursor
        cursor.payload_max = self._gateway.payload_max
        out = bytearray()
        stop = hot.TOOK_ALL
        for rows in chunk.rows:
            if rows.end_offset <= cursor.next_offset:
                continue
            before = rows.delivered, rows.cut
            stop = cursor.fill(rows, out, min(SHARE_BYTES, max(1, self._output.left_bytes)), now.elapsed_us)
            self._output.note(feed, rows, *before)
            if stop not in (hot.TOOK_ALL, hot.LOW):
                break
        else:
            cursor.next_offset = max(cursor.next_offset, chunk.end)
        self._deliver(reader, out, now)
        self.stopped(feed, reader, stop, now)

    def _deliver(self, reader: Reader, out: bytearray, now: Now) -> None:
        """Send frames of messages; those of a consumer that commits first wait until that is done."""
        led = reader.led
        if led is None:
            self._output.send(out)
            return
        if not out:
            if led.state.has_changes(now.elapsed_us):  # messages were parked
                led.writes.note(led, now.elapsed_us, waits=False)
            return
        if reader.config.acks == "none":
            led.state.remove_range(0, reader.cursor.next_offset)
        if led.priorities is not None and led.priorities.pin:
            out = with_pin(out, led.priorities.pin)
        waits = led.state.config.commits_first
        if waits:
            led.hold(out)
        else:
            self._output.send(out)
        led.writes.note(led, now.elapsed_us, waits=waits)
        self._schedule.wake(reader, led.state.due_us())

    def takes_at_once(self, feed: Feed, reader: Reader, now: Now) -> bool:
        """True if a stored consumer that follows may get new rows in one call with others: nothing else comes first."""
        led = reader.led
        assert led is not None
        is_plain = led.priorities is None and not led.state.config.commits_first and reader.config.acks != "none"
        return (
            is_plain
            and led.is_certain
            and not (led.is_holding or led.state.table.ready or reader.is_paused(now.wall_us))
            and led.asked_end <= feed.tail_end
            and reader.cursor.next_offset >= reader.cursor.resume_offset
        )

    def entered(self, reader: Reader, now: Now) -> None:
        """Note what a stored consumer got in one call with others."""
        led = reader.led
        assert led is not None
        led.writes.note(led, now.elapsed_us, waits=False)
        self._schedule.wake(reader, led.state.due_us())

    def _serve_again(self, feed: Feed, reader: Reader, led: LedConsumer, shown: Shown, wanted: int, now: Now) -> bool:
        """Deliver again what is ready; False: new messages have to wait."""
        if led.is_held_back:
            return False  # until it is released
        if step_over(feed, led, shown):
            led.writes.note(led, now.elapsed_us, waits=False)
        table = led.state.table
        if table.ready and not self._is_counted(feed, reader):
            self._counts.count(reader)
            return False
        end = reader.cursor.delivered + wanted
        while table.ready:
            (offset,) = table.ready_offsets(0, 1)
            chunk = chunk_of(feed, led, offset)
            if chunk is None:
                self._reads.fetch_again(reader, led)
                return False
            reader.grant(now.elapsed_us)
            reader.cursor.messages_left = min(reader.cursor.messages_left, end - reader.cursor.delivered)
            reader.cursor.payload_max = self._gateway.payload_max
            stop = self._send_again(feed, reader, chunk, now)
            if stop not in (hot.TOOK_ALL, hot.LOW):
                self.stopped(feed, reader, stop, now)
                return False
            self.take_back(reader, now)
            if table.ready_offsets(offset, 1) == [offset]:
                led.state.remove_range(offset, offset + 1)  # no batch has it any more
                led.writes.note(led, now.elapsed_us, waits=False)
            if not reader.wants:
                return False
        led.again = None
        return not table.has_no_room()

    def _is_counted(self, feed: Feed, reader: Reader) -> bool:
        """True if the count of pending messages holds; of a reader that has all, it does."""
        if reader.cursor.next_offset >= feed.tail_end and reader.counted_under is not feed.version:
            reader.cursor.pending = -reader.cursor.filter.seen
            return True
        return self._counts.is_counted(feed, reader)

    def _send_again(self, feed: Feed, reader: Reader, chunk: Chunk, now: Now) -> int:
        """Send what is ready among the rows of a chunk; return why it stopped."""
        out = bytearray()
        stop = hot.TOOK_ALL
        for rows in chunk.rows:
            before = rows.delivered, rows.cut
            room = min(SHARE_BYTES, max(1, self._output.left_bytes))
            stop = reader.cursor.fill_again(rows, out, room, now.elapsed_us)
            self._output.note(feed, rows, *before)
            if stop not in (hot.TOOK_ALL, hot.LOW):
                break
        self._deliver(reader, out, now)
        return stop

    def _wanted(self, reader: Reader, now: Now) -> tuple[int, bool]:
        """Return how many messages the next requests may be sent, and if the inbox of one of them is not known yet."""
        wanted, is_early = self._inboxes.ready_pulls(reader, now)
        if is_early:
            self._schedule.sleep(reader, now.elapsed_us + _EARLY_US)
        return hot.UNLIMITED if wanted == len(reader.pulls) else wanted, is_early

    def take_back(self, reader: Reader, now: Now) -> None:
        """Note what the cursor has sent, and end the requests that are finished."""
        reader.take_back((now.wall_us, now.elapsed_us))
        self._output.send_all_to(reader, reader.ends())

    def stopped(self, feed: Feed, reader: Reader, stop: int, now: Now) -> None:
        """Go on after the cursor has stopped."""
        self.take_back(reader, now)
        self._output.send_to(reader, reader.flow_frame(feed.name))
        if stop == hot.NO_ROOM:
            if (room_us := reader.room_us()) is not None:
                self._schedule.sleep(reader, max(room_us, now.elapsed_us + 1_000))
            elif reader.ahead_bytes < reader.window_bytes:
                self._schedule.ready(reader)
            return
        if stop == hot.TOO_EARLY:
            self._schedule.sleep(reader, now.elapsed_us + 1_000)
            return
        if reader.wants:
            self._schedule.ready(reader)

    def _at_tail(self, feed: Feed, reader: Reader, shown: Shown, now: Now, is_early: bool) -> None:
        """The reader has all that has been taken from the tail; `is_early`: the inbox of a request is not known."""
        if shown.end > feed.tail_end or reader.cursor.next_offset > feed.tail_end:
            reader.counted_under = None  # rows that it does not want would be counted
            if reader.cursor.next_offset >= shown.end:
                self._output.send_all_to(reader, reader.at_end(now.elapsed_us))
            if reader.wants:
                feed.behind.append(reader)  # rows are on the way, or it begins later
                reader.place = Place.WAITING
            return
        reader.is_paced = False
        self._output.send_all_to(reader, reader.at_end(now.elapsed_us))
        if not reader.wants:
            return
        if is_early:
            return  # as a follower it would get new messages with the others; it is looked at again soon
        reader.grant(now.elapsed_us)
        reader.cursor.payload_max = self._gateway.payload_max
        reader.place = Place.FOLLOWING
        self._inboxes.watch(reader)
        feed.follow(reader)
