"""Answers to publishers, queued for nats-server so that a slow reader does not stop our reading.

nats-server throttles clients that publish to a slow reader: 10 ms for each 64 KiB it takes from us, as long as it
tolerates that reader. So one publisher that never reads its acks slows all our writes. If we stopped reading until
nats-server takes our output, it would discard what is queued for us, and disconnect us: a gap in all streams (ADR 10).

Rules: an answer may be lost, a message may not: a publisher without an ack publishes again. A command is sent whole or
not at all. Answers that nats-server does not take at once are queued by stream, and sent round-robin in slices, so that
one stream's flood delays the others only briefly. Answers above a limit are dropped and counted. While reading is
paused, the queue can only grow by what was in flight: then the acks of one large fsync may exceed the limits without a
drop.

| state   | what is written                   | reading | limits  | until                                           |
|---------|-----------------------------------|---------|---------|-------------------------------------------------|
| TAKING  | everything, at once               | yes     | -       | the connection has no room for it: BUSY         |
| BUSY    | a slice of each stream's, in turn | no      | BURST   | nothing waits: TAKING; little is taken: STALLED |
| STALLED | a slice of each stream's, in turn | yes     | LASTING | nothing waits: TAKING                           |
| AWAY    | nothing                           | -       | LASTING | there is a connection: TAKING, or BUSY          |

Little is taken: less than NATS_WRITE_PAUSE_BYTES_MIN in NATS_WRITE_PAUSE_MS, or not all in NATS_WRITE_PAUSES_MAX times.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from penstock.base import limits
from penstock.broker.nats.connection import NatsConnection
from penstock.broker.rate_limited_log import RateLimitedLog
from penstock.node.step import NatsAnswers

_log = logging.getLogger("penstock.nats")

_NEXT_COMMAND = b"\r\nPUB "  # bodies have no line ends: they are JSON


class WaitingLimits(NamedTuple):
    """Limits of queued answers."""

    stream_bytes: int
    all_bytes: int


LASTING = WaitingLimits(limits.NATS_STREAM_ANSWERS_BYTES_MAX, limits.NATS_ANSWERS_BYTES_MAX)
BURST = WaitingLimits(limits.NATS_BURST_ANSWERS_BYTES_MAX, limits.NATS_BURST_ANSWERS_BYTES_MAX)


class WaitingAnswers:
    """Queued answers, by stream, in order."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._streams: dict[int, _StreamAnswers] = {}  # non-empty queues; the first one is next

    def add(self, answers: NatsAnswers, room: WaitingLimits) -> int:
        """Queue as many answers as fit; return how many were dropped."""
        stream = self._streams.get(answers.sid)
        if stream is None:
            stream = _StreamAnswers()
        commands = answers.commands
        stream.is_single = answers.is_single
        free_bytes = min(room.stream_bytes - stream.size_bytes, room.all_bytes - self.size_bytes)
        end = stream.end_within(commands, 0, free_bytes)
        if end:
            stream.pieces.append(commands[:end])
            stream.size_bytes += end
            self.size_bytes += end
            self._streams[answers.sid] = stream
        return stream.count(commands, end)

    def take(self) -> bytes:
        """Remove and return a slice of the next stream's answers."""
        sid = next(iter(self._streams))
        stream = self._streams.pop(sid)
        taken = stream.take(limits.NATS_ANSWERS_SLICE_BYTES)
        self.size_bytes -= len(taken)
        if stream.pieces:
            self._streams[sid] = stream  # behind all the others
        return taken

    def cut(self, room: WaitingLimits) -> dict[int, int]:
        """Drop the latest answers above `room`, of the largest streams first; return how many, by stream."""
        dropped = {}
        free_bytes = room.all_bytes
        by_size = sorted(self._streams.items(), key=lambda one: one[1].size_bytes)
        for place, (sid, stream) in enumerate(by_size):
            fair_bytes = free_bytes // (len(by_size) - place)  # what smaller ones leave is for the larger ones
            if count := stream.cut(min(room.stream_bytes, fair_bytes)):
                dropped[sid] = count
                if not stream.pieces:
                    del self._streams[sid]
            free_bytes -= stream.size_bytes
        self.size_bytes = room.all_bytes - free_bytes
        return dropped


class _StreamAnswers:
    """Queued answers of one stream, or to callers of JetStream's API."""

    __slots__ = ("is_single", "pieces", "position", "size_bytes")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.is_single = False  # each piece is one command, which is never split
        self.position = 0  # in the first piece: bytes before it have been taken
        self.size_bytes = 0

    def take(self, size_max: int) -> bytes:
        """Return the oldest answers that fit; at least one."""
        taken: list[bytes] = []
        left = size_max
        while self.pieces:
            piece, start = self.pieces[0], self.position
            end = self.end_within(piece, start, left)
            if end == start and not taken:
                end = len(piece) if self.is_single else _end_of_first(piece, start)
            if end == start:
                break
            taken.append(piece[start:end])
            left -= end - start
            if end < len(piece):
                self.position = end
                break
            self.pieces.popleft()
            self.position = 0
        self.size_bytes -= size_max - left
        return b"".join(taken)

    def cut(self, size_max: int) -> int:
        """Drop the latest answers above this size; return how many."""
        dropped = 0
        while self.size_bytes > size_max:
            piece = self.pieces.pop()
            start = 0 if self.pieces else self.position
            end = self.end_within(piece, start, size_max - self.size_bytes + len(piece) - start)
            dropped += self.count(piece, end)
            self.size_bytes -= len(piece) - end
            if end > start:
                self.pieces.append(piece[:end])
        if not self.pieces:
            self.position = 0
        return dropped

    def end_within(self, commands: bytes, start: int, size_max: int) -> int:
        """Return the end of the whole commands that fit, from `start` on; `start` if none does."""
        if self.is_single:
            return len(commands) if len(commands) - start <= size_max else start
        return _end_within(commands, start, size_max)

    def count(self, commands: bytes, start: int) -> int:
        """Return the number of commands from `start` on."""
        return int(start < len(commands)) if self.is_single else _count(commands, start)


def _end_within(commands: bytes, start: int, size_max: int) -> int:
    if len(commands) - start <= size_max:
        return len(commands)
    # After a command that ends within the size the next one begins there at the latest.
    end = commands.rfind(_NEXT_COMMAND, start, start + max(0, size_max) + len(_NEXT_COMMAND) - 2)
    return start if end < 0 else end + 2


def _end_of_first(commands: bytes, start: int) -> int:
    end = commands.find(_NEXT_COMMAND, start)
    return len(commands) if end < 0 else end + 2


def _count(commands: bytes, start: int) -> int:
    return commands.count(b"\r\n", start) // 2


class _State(Enum):
    TAKING = auto()
    BUSY = auto()
    STALLED = auto()
    AWAY = auto()


class AnswerOutput:
    """Sends answers to nats-server; see the module's table."""

    def __init__(self, pause_reading: Callable[[bool], None], subject_of: Callable[[int], str]) -> None:
        """`subject_of` returns the subject of a subscription, for the log."""
        self.dropped = 0
        self._pause_reading = pause_reading
        self._subject_of = subject_of
        self._state = _State.AWAY
        self._connection: NatsConnection | None = None
        self._direct: NatsConnection | None = None  # the connection while TAKING, else None
        self._waiting = WaitingAnswers()
        self._timer: asyncio.TimerHandle | None = None
        self._untaken_bytes = 0  # at the last check, and what was written since
        self._pauses_left = 0
        self._complaints = RateLimitedLog()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that no connection has taken yet."""
        return self._waiting.size_bytes

    def send(self, answers: Sequence[NatsAnswers]) -> None:
        """Send the answers now, or queue them, or drop them above the limits."""
        if self._direct is not None:
            commands = answers[0].commands if len(answers) == 1 else b"".join([one.commands for one in answers])
            # Slightly exceeding the free room does no harm, and most writes are small.
            if len(commands) <= limits.NATS_ANSWERS_SLICE_BYTES or len(commands) <= self._direct.free_bytes:
                self._direct.write(commands)
                return
            del commands  # they may be large
            self._become(_State.BUSY)
        room = BURST if self._state is _State.BUSY else LASTING
        for one in answers:
            if dropped := self._waiting.add(one, room):
                self._drop(one.sid, dropped)
        self._write_on()

    def opened(self, connection: NatsConnection) -> None:
        """nats-server takes commands on `connection`; re-subscribing may already fill its buffer."""
        self._connection = connection
        is_free = connection.is_writable and not self._waiting.size_bytes
        self._become(_State.TAKING if is_free else _State.BUSY)
        self._write_on()

    def closed(self) -> None:
        """The connection is lost; queued answers wait for the next one."""
        self._become(_State.AWAY)
        self._connection = None

    def writable_changed(self, writable: bool) -> None:
        """True if the connection's own buffer has room."""
        if not writable and self._state is _State.TAKING:
            self._become(_State.BUSY)
        elif writable:
            self._write_on()

    def _write_on(self) -> None:
        if self._connection is None:
            return
        while self._connection.is_writable and self._waiting.size_bytes:
            piece = self._waiting.take()
            self._untaken_bytes += len(piece)
            self._connection.write(piece)
        if self._connection.is_writable:
            self._become(_State.TAKING)

    def _become(self, state: _State) -> None:
        if state is self._state:
            return
        was, self._state = self._state, state
        self._direct = self._connection if state is _State.TAKING else None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if state is _State.BUSY:
            self._pauses_left = limits.NATS_WRITE_PAUSES_MAX
            self._look_later()
        elif state is not _State.TAKING:
            for sid, dropped in self._waiting.cut(LASTING).items():
                self._drop(sid, dropped)
        if self._connection is not None and state is not _State.AWAY:
            few = state is not _State.TAKING  # bytes in that buffer cannot be overtaken
            self._connection.set_write_buffer(
                limits.NATS_ANSWERS_SLICE_BYTES if few else limits.NATS_WRITE_BUFFER_BYTES_MAX
            )
        if _State.BUSY in (was, state):
            self._pause_reading(state is _State.BUSY)

    def _look_later(self) -> None:
        assert self._connection is not None
        self._untaken_bytes = self._connection.write_buffer_bytes
        self._timer = asyncio.get_running_loop().call_later(limits.NATS_WRITE_PAUSE_MS / 1000, self._look)

    def _look(self) -> None:
        """Check if nats-server takes enough to justify the pause in reading."""
        assert self._connection is not None
        self._pauses_left -= 1
        taken_bytes = self._untaken_bytes - self._connection.write_buffer_bytes
        if self._pauses_left and taken_bytes >= limits.NATS_WRITE_PAUSE_BYTES_MIN:
            self._look_later()
        else:
            self._timer = None
            self._become(_State.STALLED)

    def _drop(self, sid: int, count: int) -> None:
        self.dropped += count
        text = (
            f"nats-server takes the acks too slowly, as it does if a publisher does not read its acks: "
            f"some acks for {self._subject_of(sid)} are dropped; the messages are stored"
        )
        now_us = int(asyncio.get_running_loop().time() * 1e6)
        if (line := self._complaints.line("dropped", text, now_us)) is not None:
            _log.warning("%s", line)
