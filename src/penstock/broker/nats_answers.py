"""What publishers are told, on its way to nats-server: never the reason that this broker stops reading for long.

nats-server holds up whoever publishes to a client that reads too slowly: 10 ms for each 64 KiB that it takes from us,
for as long as it puts up with that client. One publisher that never reads its acks so slows all that we write. If we
stopped reading until it is taken, nats-server would throw away what waits for us, and cut us off: a gap in all streams
(ADR 10).

Rules: an answer may be lost, a message may not: who hears nothing publishes again. A command is sent whole or not at
all. What nats-server does not take at once waits by stream, and goes out in turn, a slice of each: one stream's flood
costs the others a moment, not their acks. What is over a limit is dropped and counted. While nothing is read, what
waits can only grow by what was in flight: then the acks of one large sync wait beyond the limits, and are not dropped.

| state   | what is written                   | reading | limits  | until                                           |
|---------|-----------------------------------|---------|---------|-------------------------------------------------|
| TAKING  | everything, at once               | yes     | -       | the connection has no room for it: BUSY         |
| BUSY    | a slice of each stream's, in turn | no      | BURST   | nothing waits: TAKING; little is taken: STALLED |
| STALLED | the same                          | yes     | LASTING | nothing waits: TAKING                           |
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
from penstock.broker.complaints import Complaints
from penstock.broker.nats_connection import NatsConnection
from penstock.node.step import Answers

_log = logging.getLogger("penstock.nats")

_NEXT_COMMAND = b"\r\nPUB "  # no body has a line end: it is JSON


class Room(NamedTuple):
    """How much may wait."""

    stream_bytes: int
    all_bytes: int


LASTING = Room(limits.NATS_STREAM_ANSWERS_BYTES_MAX, limits.NATS_ANSWERS_BYTES_MAX)
BURST = Room(limits.NATS_BURST_ANSWERS_BYTES_MAX, limits.NATS_BURST_ANSWERS_BYTES_MAX)


class WaitingAnswers:
    """Answers that wait, by stream, in order."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._streams: dict[int, _StreamAnswers] = {}  # those that have some; the first one is next

    def add(self, answers: Answers, room: Room) -> int:
        """Keep them, or as many of them as there is room for; returns how many were dropped."""
        stream = self._streams.get(answers.sid)
        if stream is None:
            stream = _StreamAnswers()
        commands = answers.commands
        free_bytes = min(room.stream_bytes - stream.size_bytes, room.all_bytes - self.size_bytes)
        end = _end_within(commands, 0, free_bytes)
        if end:
            stream.pieces.append(commands[:end])
            stream.size_bytes += end
            self.size_bytes += end
            self._streams[answers.sid] = stream
        return _count(commands, end)

    def take(self) -> bytes:
        """A slice of the stream whose turn it is."""
        sid = next(iter(self._streams))
        stream = self._streams.pop(sid)
        taken = stream.take(limits.NATS_ANSWERS_SLICE_BYTES)
        self.size_bytes -= len(taken)
        if stream.pieces:
            self._streams[sid] = stream  # behind all the others
        return taken

    def cut(self, room: Room) -> dict[int, int]:
        """Drop the latest of what is over `room`, of the largest streams first; returns how many, by stream."""
        dropped = {}
        free_bytes = room.all_bytes
        by_size = sorted(self._streams.items(), key=lambda one: one[1].size_bytes)
        for place, (sid, stream) in enumerate(by_size):
            fair_bytes = free_bytes // (len(by_size) - place)  # what smaller ones leave is for the larger
            if count := stream.cut(min(room.stream_bytes, fair_bytes)):
                dropped[sid] = count
                if not stream.pieces:
                    del self._streams[sid]
            free_bytes -= stream.size_bytes
        self.size_bytes = room.all_bytes - free_bytes
        return dropped


class _StreamAnswers:
    """Those of one stream."""

    __slots__ = ("pieces", "position", "size_bytes")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.position = 0  # in the first piece: what is before it has been taken
        self.size_bytes = 0

    def take(self, size_max: int) -> bytes:
        """The oldest, as many as fit; at least one."""
        taken: list[bytes] = []
        left = size_max
        while self.pieces:
            piece, start = self.pieces[0], self.position
            end = _end_within(piece, start, left)
            if end == start and not taken:
                end = _end_of_first(piece, start)
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
        """Drop the latest that are over this size; returns how many."""
        dropped = 0
        while self.size_bytes > size_max:
            piece = self.pieces.pop()
            start = 0 if self.pieces else self.position
            end = _end_within(piece, start, size_max - self.size_bytes + len(piece) - start)
            dropped += _count(piece, end)
            self.size_bytes -= len(piece) - end
            if end > start:
                self.pieces.append(piece[:end])
        if not self.pieces:
            self.position = 0
        return dropped


def _end_within(commands: bytes, start: int, size_max: int) -> int:
    """Where those end that fit, whole, from `start` on; `start` if none does."""
    if len(commands) - start <= size_max:
        return len(commands)
    # A command that ends within the size is followed by one that begins there at the latest.
    end = commands.rfind(_NEXT_COMMAND, start, start + max(0, size_max) + len(_NEXT_COMMAND) - 2)
    return start if end < 0 else end + 2


def _end_of_first(commands: bytes, start: int) -> int:
    end = commands.find(_NEXT_COMMAND, start)
    return len(commands) if end < 0 else end + 2


def _count(commands: bytes, start: int) -> int:
    """How many there are from `start` on."""
    return commands.count(b"\r\n", start) // 2


class _State(Enum):
    TAKING = auto()
    BUSY = auto()
    STALLED = auto()
    AWAY = auto()


class AnswerOutput:
    """See the module's table."""

    def __init__(self, pause_reading: Callable[[bool], None], subject_of: Callable[[int], str]) -> None:
        """`subject_of` a stream, for the operator."""
        self.dropped = 0
        self._pause_reading = pause_reading
        self._subject_of = subject_of
        self._state = _State.AWAY
        self._connection: NatsConnection | None = None
        self._direct: NatsConnection | None = None  # the same, while it takes everything
        self._waiting = WaitingAnswers()
        self._timer: asyncio.TimerHandle | None = None
        self._untaken_bytes = 0  # at the last look, and what was written since
        self._pauses_left = 0
        self._complaints = Complaints()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that no connection has yet."""
        return self._waiting.size_bytes

    def send(self, answers: Sequence[Answers]) -> None:
        """Send them now, or when nats-server takes them, or never."""
        if self._direct is not None:
            commands = answers[0].commands if len(answers) == 1 else b"".join([one.commands for one in answers])
            # A few more than there is room for do no harm, and most are few.
            if len(commands) <= limits.NATS_ANSWERS_SLICE_BYTES or len(commands) <= self._direct.free_bytes:
                self._direct.write(commands)
                return
            del commands  # they may be many
            self._become(_State.BUSY)
        room = BURST if self._state is _State.BUSY else LASTING
        for one in answers:
            if dropped := self._waiting.add(one, room):
                self._drop(one.sid, dropped)
        self._write_on()

    def opened(self, connection: NatsConnection) -> None:
        """nats-server takes commands on `connection`; those that it was sent before may fill the buffer."""
        self._connection = connection
        is_free = connection.is_writable and not self._waiting.size_bytes
        self._become(_State.TAKING if is_free else _State.BUSY)
        self._write_on()

    def closed(self) -> None:
        """There is no connection any more; what waits is for the next one."""
        self._become(_State.AWAY)
        self._connection = None

    def writable_changed(self, writable: bool) -> None:
        """Whether the connection's own buffer has room."""
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
            few = state is not _State.TAKING  # what is in there cannot be overtaken
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
        """Whether nats-server takes so much that it is worth while not to read."""
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
            f"nats-server is slow to take the answers to publishers, as it is when one of them does not read them: "
            f"some of those to {self._subject_of(sid)} are dropped; what was published is stored"
        )
        now_us = int(asyncio.get_running_loop().time() * 1e6)
        if (line := self._complaints.line("dropped", text, now_us)) is not None:
            _log.warning("%s", line)
