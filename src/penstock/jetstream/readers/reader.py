"""One consumer: where it is, what it may be sent, and what is due for it.

Rules: a push reader is sent messages while its inbox has a subscriber, a pull reader while pull requests wait. The
bytes on the way to an inbox are bounded: by the answers to flow-control messages if the consumer has them, by a burst
for each pull request, for who asks again takes what it got; beyond these by a rate. Bursts have a rate too, for a
client may ask again and read nothing, and so has what all readers without flow control send together. What a consumer
with acks, or a durable one, has beside it is in `led` (see `stored`).

| place     | it waits for                                                        | then      |
|-----------|---------------------------------------------------------------------|-----------|
| READY     | its turn                                                            | served    |
| FOLLOWING | new messages: it has all that are there                             | served    |
| WAITING   | rows from the log, or a count of them                               | READY     |
| IDLE      | a request, a subscriber, room, or a time                            | READY     |
| GONE      | nothing: it is deleted                                              |           |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.hot.deliveries import UNLIMITED, Cursor, Filter, Pull
from penstock.jetstream.readers.config.reader_config import ReaderConfig, shared
from penstock.jetstream.readers.pulls import frame, status

if TYPE_CHECKING:
    from penstock.jetstream.readers.stored.led import LedConsumer

WINDOW_BYTES_FIRST = 1 * limits.MIB
WINDOW_BYTES_MAX = 4 * limits.MIB
"""On the way to an inbox without an answer. nats-server cuts a client off whose output is not taken within 10 s: with
4 MiB ahead one that takes 0.5 MB/s is never cut off."""
BLIND_BYTES_PER_S = 64 * limits.MIB
"""Rate to an inbox that answers nothing: without flow control no client says how fast it takes."""
BLIND_BURST_BYTES = 4 * limits.MIB  # at the beginning, and from each pull request on
ASKED_BURST_BYTES = 16 * limits.MIB
ASKED_BYTES_PER_S = 256 * limits.MIB
"""Bytes that the pull requests of one reader let out at once, and the rate beyond: no client that reads asks for
more."""
LEAF_BURST_BYTES = 32 * limits.MIB
LEAF_BYTES_PER_S = 512 * limits.MIB
"""The same of all readers without flow control of one leaf connection. nats-server holds 64 MiB (`max_pending`) for one
client, and cuts it off beyond."""
RATE_BURST_BYTES = 1 * limits.MIB  # of `rate_limit_bps`, as nats-server's: one message of max_payload
GRACE_US = 100_000
"""The interest in the inbox of a request may be told over the leaf later than the request came."""
LOOK_US = 1_000_000  # interval of looks at the interest in an inbox
LOOK_US_MIN = 2_000  # of looks for the interest in the inbox of a push reader that has none; it grows up to the next
LOOK_US_MAX = 100_000
_NEVER_US = 2**63 - 1
_NO_LOW = -(2**62)
_NO_PULLS: deque[Pull] = deque()
"""Shared by all readers that no request waits at: an empty deque has 760 bytes. Nothing is ever added to it."""
_NO_INBOXES: frozenset[bytes] = frozenset()  # shared: Python makes one of 216 bytes for each call


class Place(Enum):
    """Place of a reader in the table of the module."""

    READY = "ready"
    FOLLOWING = "following"
    WAITING = "waiting"
    IDLE = "idle"
    GONE = "gone"


class Bucket:
    """Bytes that may be sent by now, at a rate."""

    __slots__ = ("at_us", "burst", "bytes_per_s", "tokens")

    def __init__(self, bytes_per_s: int, burst: int, now_us: int) -> None:
        self.bytes_per_s = bytes_per_s
        self.burst = burst
        self.tokens = burst
        self.at_us = now_us

    def fill_from(self, other: Bucket, now_us: int) -> None:
        """Let the whole burst be sent again, as far as another bucket has so much."""
        other.refill(now_us)
        more = min(self.burst - self.tokens, other.tokens)
        if more > 0:
            self.tokens += more
            other.tokens -= more

    def refill(self, now_us: int) -> None:
        more = (now_us - self.at_us) * self.bytes_per_s // 1_000_000
        if more > 0:
            self.tokens = min(self.burst, self.tokens + more)
            self.at_us = now_us

    @property
    def ready_us(self) -> int:
        """When there is room for a quarter of the burst, so that few wakes are needed."""
        missing = self.burst // 4 - self.tokens
        return self.at_us + max(0, -(-missing * 1_000_000 // max(1, self.bytes_per_s)))


class Reader:
    """A consumer. Times are elapsed µs, unless they are called wall times."""

    __slots__ = (
        "_asked", "_blind", "_flow_number", "_granted", "_leaf", "_rate", "ahead_bytes", "beat_us", "config",
        "counted_under", "counts", "created_us", "cursor", "delivered_wall_us", "flow_bytes", "flow_reply", "groups",
        "inactive_us", "inbox", "is_asleep", "is_paced", "led", "looked_at", "looked_us", "name", "place", "pulls",
        "stream_id", "told_pending", "wake_us", "watched", "window_bytes",
    )  # fmt: skip

    def __init__(
        self,
        stream_id: int,
        name: str,
        config: ReaderConfig,
        cursor: Cursor,
        leaf: Bucket,
        *,
        created_us: int,
        now_us: int,
    ) -> None:
        """`leaf`: what all readers without flow control may send. `created_us` is wall time."""
        self.stream_id = stream_id
        self.name = name
        self.config = config
        self.cursor = cursor
        self.led: LedConsumer | None = None  # what is stored of it
        self.created_us = created_us
        self.delivered_wall_us = 0
        self.place = Place.IDLE
        self.pulls: deque[Pull] = cursor.pulls  # the requests that wait; of a push reader none
        self.watched = _NO_INBOXES  # inboxes of requests whose loss of interest is told
        self.inbox = config.deliver_subject.encode()
        self.groups = b""  # queue groups that share its inbox, with its own, separated by spaces
        self.window_bytes = WINDOW_BYTES_FIRST
        self.ahead_bytes = 0  # sent, and not known to have been taken
        self.flow_reply = b""  # of the flow-control message without an answer
        self.flow_bytes = 0  # that it stands behind
        self._flow_number = 0
        self._granted = 0
        self._leaf = leaf
        self._blind: Bucket | None = None  # made when it is first served: most stored consumers are idle
        self._asked: Bucket | None = None
        self._rate: Bucket | None = None
        self.beat_us = now_us  # the last heartbeat, message or the beginning
        self.inactive_us: int | None = None  # since when no client has wanted its messages
        self.looked_us = now_us - LOOK_US  # when its inbox was looked for
        self.looked_at = 0  # the first request whose inbox is looked for next
        self.wake_us = _NEVER_US
        self.counted_under: object = None  # for which state of the log its count of pending messages holds
        self.counts = 0  # since it was served
        self.told_pending: int | None = None  # counted for the answer that is being made
        self.is_asleep = False  # it waits for a time
        self.is_paced = config.is_original_pace  # until it has all that was there when it began
        self.configure(config, now_us)

    def configure(self, config: ReaderConfig, now_us: int) -> None:
        """Take another config."""
        self.config = config = shared(config)
        self.inbox = config.deliver_subject.encode()
        rate = config.rate_bytes_per_s
        self._rate = Bucket(rate, RATE_BURST_BYTES, now_us) if rate else None
        self.cursor.headers_only = config.headers_only
        if config.is_push:
            self.groups = config.deliver_group.encode()
            self.cursor.pulls = deque([Pull(self.inbox, self.groups, UNLIMITED, now_us)])
        else:
            self.inactive_us = now_us
            if not self.pulls:
                self.pulls = self.cursor.pulls = _NO_PULLS

    def regroup(self, others: bytes) -> None:
        """Deliver to these queue groups, too, that share its inbox."""
        groups = b" ".join(dict.fromkeys((*self.config.deliver_group.encode().split(), *others.split())))
        if groups != self.groups:
            self.groups = groups
            (before,) = self.cursor.pulls
            self.cursor.pulls = deque([Pull(self.inbox, groups, UNLIMITED, before.received_us)])

    def restart(self, offset: int) -> None:
        """Begin anew at an offset."""
        cursor = self.cursor
        cursor.next_offset, cursor.last_offset = offset, offset - 1
        cursor.delivered = 0
        self.delivered_wall_us = 0

    # Pull requests

    def ask(self, pull: Pull, now_us: int) -> None:
        """Take a request. Its client has taken what it was sent before, or it would not ask for more."""
        if self.pulls is _NO_PULLS:
            self.pulls = self.cursor.pulls = deque()
        self.pulls.append(pull)
        self.inactive_us = now_us
        if self._asked is None:
            self._asked = Bucket(ASKED_BYTES_PER_S, ASKED_BURST_BYTES, now_us)
        self._bucket(now_us).fill_from(self._asked, now_us)

    def _bucket(self, now_us: int) -> Bucket:
        """Return what may be sent to an inbox that answers nothing."""
        if self._blind is None:
            self._blind = Bucket(BLIND_BYTES_PER_S, BLIND_BURST_BYTES, now_us)
        return self._blind

    def keep(self, pulls: Iterable[Pull]) -> None:
        """Let only these wait."""
        kept = [*pulls]
        self.pulls.clear()
        self.pulls.extend(kept)

    # What it may be sent

    def is_paused(self, wall_us: int) -> bool:
        return wall_us < self.config.pause_us

    def is_inactive(self, now_us: int) -> bool:
        """True if no client has wanted its messages for so long that it is to end."""
        if self.inactive_us is None or self.pulls or not self.config.inactive_us:
            return False
        return now_us >= self.inactive_us + self.config.inactive_us

    @property
    def wants(self) -> bool:
        """True if a client waits for messages."""
        return self.inactive_us is None if self.config.is_push else bool(self.pulls)

    def grant(self, now_us: int) -> None:
        """Set what the cursor may send now: see `take_back`."""
        cursor = self.cursor
        blind = self._bucket(now_us)
        blind.refill(now_us)
        self._leaf.refill(now_us)
        room, cursor.low_room = min(blind.tokens, self._leaf.tokens), _NO_LOW
        if self.config.has_flow_control:
            room = self.window_bytes - self.ahead_bytes
            if not self.flow_reply:
                cursor.low_room = self.window_bytes // 2
        if self._rate is not None:
            self._rate.refill(now_us)
            room = min(room, self._rate.tokens)
        cursor.room = self._granted = room
        cursor.messages_left = cursor.due_us = UNLIMITED
        if self.is_paced:
            self._pace(now_us)

    def _pace(self, now_us: int) -> None:
        """Let messages out as they once came: one at first, then those within the time since the last one."""
        cursor = self.cursor
        if cursor.delivered:
            cursor.due_us = cursor.last_us + max(1_000, now_us - cursor.delivered_us)
        else:
            cursor.messages_left = 1

    def take_back(self, now: tuple[int, int]) -> int:
        """Note what the cursor has sent since `grant`; return its bytes. `now`: wall and elapsed time."""
        cursor = self.cursor
        sent = self._granted - cursor.room
        self._granted = cursor.room
        if not sent:
            return 0
        self.beat_us = cursor.delivered_us
        self.delivered_wall_us = now[0] - now[1] + cursor.delivered_us
        self.ahead_bytes += sent
        if not self.config.has_flow_control:
            self._bucket(now[1]).tokens -= sent
            self._leaf.tokens -= sent
        if self._rate is not None:
            self._rate.tokens -= sent
        if not self.config.is_push:
            self.inactive_us = cursor.delivered_us
        return sent

    def room_us(self) -> int | None:
        """When there is room again; None: when a flow-control message is answered."""
        if self._rate is not None and self._rate.tokens <= 0:
            return self._rate.ready_us
        if self.config.has_flow_control:
            return None
        buckets = (self._leaf,) if self._blind is None else (self._blind, self._leaf)
        return max((one.ready_us for one in buckets if one.tokens <= 0), default=0)

    # Flow control

    def flow_frame(self, stream: str) -> bytes:
        """Return the flow-control message that is due; empty: none is."""
        if not self.config.has_flow_control or self.flow_reply or self.ahead_bytes <= self.window_bytes // 2:
            return b""
        self._flow_number += 1
        self.flow_reply = f"$JS.FC.{stream}.{self.name}.{self._flow_number}".encode()
        self.flow_bytes = self.ahead_bytes
        block = status(100, "FlowControl Request")
        return frame(self.inbox, block, self.flow_reply, self.groups)

    def flow_answered(self, reply: bytes) -> bool:
        """Take the answer to a flow-control message; False: it is none of ours, or an old one."""
        if not self.flow_reply or reply != self.flow_reply:
            return False
        self.window_bytes = min(2 * self.window_bytes, WINDOW_BYTES_MAX)
        self.ahead_bytes = max(0, self.ahead_bytes - self.flow_bytes)
        self.flow_reply, self.flow_bytes = b"", 0
        return True

    # Times

    def heartbeat(self) -> bytes:
        """Return an idle heartbeat, as a header block."""
        told: dict[str, int | str] = {
            "Nats_Last_Consumer": self.cursor.delivered,
            "Nats_Last_Stream": self.cursor.next_offset,
        }
        if self.flow_reply:
            told["Nats_Consumer_Stalled"] = self.flow_reply.decode()
        return status(100, "Idle Heartbeat", **told)

    def look_us(self, now_us: int) -> int:
        """Return the interval of looks at the interest in its inbox."""
        if not self.config.is_push or self.inactive_us is None:
            return LOOK_US
        return min(max(LOOK_US_MIN, (now_us - self.inactive_us) // 2), LOOK_US_MAX)

    def frames_due(self, now_us: int) -> Iterator[bytes]:
        """Yield what is due by time: heartbeats, and the ends of pull requests, which are removed."""
        if self.config.is_push:
            if self.config.heartbeat_us and self.wants and now_us >= self.beat_us + self.config.heartbeat_us:
                self.beat_us = now_us
                yield frame(self.inbox, self.heartbeat(), groups=self.groups)
            return
        if all(now_us < pull.due_us() for pull in self.pulls):
            return
        has_no_room = self.led is not None and self.led.state.table.has_no_room()
        kept = []
        for pull in self.pulls:
            if now_us >= pull.expires_us:
                self.inactive_us = now_us
                yield frame(pull.inbox, ended(pull, 408, "Request Timeout"))
                continue
            if has_no_room and _ends_with_messages(pull):  # as nats-server at its next look: acks may be long in coming
                self.inactive_us = now_us
                yield frame(pull.inbox, status(404, "No Messages"))
                continue
            if now_us >= pull.due_us():
                pull.beat_us = now_us
                yield frame(pull.inbox, self.heartbeat())
            kept.append(pull)
        self.keep(kept)

    def has_one_shot(self) -> bool:
        """True if a request ends with the first messages that come."""
        return any(pull.no_wait for pull in self.pulls)

    def at_end(self, now_us: int) -> Iterator[bytes]:
        """Yield the ends of requests that do not wait for new messages; they are removed."""
        if not self.has_one_shot():
            return
        kept = []
        for pull in self.pulls:
            if _ends_with_messages(pull):
                self.inactive_us = now_us
                yield frame(pull.inbox, status(404, "No Messages"))
            else:
                kept.append(pull)
        self.keep(kept)

    def ends(self) -> Iterator[bytes]:
        """Yield the ends of requests that have left the queue: with bytes left, or too few for the next message."""
        finished, self.cursor.finished = self.cursor.finished, []
        for pull in finished:
            if pull.is_too_small:
                yield frame(pull.inbox, ended(pull, 409, "Message Size Exceeds MaxBytes"))
            elif pull.bytes_left > 0:
                yield frame(pull.inbox, ended(pull, 409, "Batch Completed"))

    def due_us(self, wall_us: int, now_us: int) -> int:
        """When `frames_due`, or another look at it, is due."""
        if self.config.is_push:
            due = now_us + self.look_us(now_us)
            if self.config.heartbeat_us and self.wants:
                due = min(due, self.beat_us + self.config.heartbeat_us)
        elif self.pulls:
            due = min(now_us + LOOK_US, *[pull.due_us() for pull in self.pulls])
        elif self.config.inactive_us and self.inactive_us is not None:
            due = self.inactive_us + self.config.inactive_us
        else:
            due = _NEVER_US
        if self.led is not None:
            due = min(due, self.led.state.due_us())
            if self.led.priorities is not None:
                due = min(due, self.led.priorities.pin_due_us)
        if self.is_paused(wall_us):
            due = min(due, now_us + self.config.pause_us - wall_us)
        return due


def _ends_with_messages(pull: Pull) -> bool:
    """True if it does not wait for more than there is now."""
    return pull.no_wait and (pull.expires_us == UNLIMITED or pull.delivered > 0)


def ended(pull: Pull, code: int, text: str) -> bytes:
    """Return the status that ends a pull request, with what it did not get."""
    return status(code, text, Nats_Pending_Messages=pull.batch, Nats_Pending_Bytes=pull.bytes_left)


def prefix_of(stream: str, name: str) -> bytes:
    """Return the beginning of the reply subjects of a reader's messages."""
    return f"$JS.ACK.{stream}.{name}.1.".encode()


def new_cursor(wanted: Filter, stream: str, name: str, offset: int) -> Cursor:
    """Return a cursor that begins at an offset."""
    return Cursor(wanted, prefix_of(stream, name), offset)
