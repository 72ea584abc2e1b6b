"""What publishers are told, on its way to nats-server: never the reason that this broker stops reading.

nats-server holds up whoever publishes to a client that reads too slowly: 10 ms for each 64 KiB that it takes from us,
for as long as it puts up with that client. One publisher that never reads its acks so slows all that we write. If we
stopped reading until it is taken, nats-server would throw away what waits for us, and cut us off: a gap in all streams
(ADR 10).

Rules: an answer may be lost, a message may not: who hears nothing publishes again. A command is sent whole or not at
all. While nats-server does not take what we write, the answers of each stream wait apart, and go out in turn: one
stream's flood costs the others a moment, not their acks. What is over a limit is dropped and counted.

| state   | what is written                  | reading NATS | until                                            |
|---------|----------------------------------|--------------|--------------------------------------------------|
| TAKING  | everything, at once              | yes          | more than NATS_WRITE_BUFFER_BYTES_MAX waits: BUSY |
| BUSY    | a slice of each stream's, in turn | no          | nothing waits: TAKING; little is taken: STALLED  |
| STALLED | the same                         | yes          | nothing waits: TAKING                            |
| AWAY    | nothing                          | -            | there is a connection: TAKING, or BUSY           |
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto

from penstock.base import limits
from penstock.broker.complaints import Complaints
from penstock.broker.nats_connection import NatsConnection
from penstock.node.step import Answers

_log = logging.getLogger("penstock.nats")

_NEXT_COMMAND = b"\r\nPUB "  # no body has a line end: it is JSON


class WaitingAnswers:
    """Answers that wait, by stream, in order."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._streams: dict[int, _StreamAnswers] = {}  # those that have some; the first one is next

    def add(self, answers: Answers) -> int:
        """Keep them, or as many of them as there is room for; returns how many were dropped."""
        stream = self._streams.get(answers.stream_id)
        if stream is None:
            stream = _StreamAnswers()
        room = min(
            limits.NATS_STREAM_ANSWERS_BYTES_MAX - stream.size_bytes, limits.NATS_ANSWERS_BYTES_MAX - self.size_bytes
        )
        kept, rest = _split(answers.commands, room)
        if kept:
            stream.pieces.append(kept)
            stream.size_bytes += len(kept)
            self.size_bytes += len(kept)
            self._streams[answers.stream_id] = stream
        return rest.count(b"\r\n") // 2

    def take(self) -> bytes:
        """Some of the stream whose turn it is."""
        stream_id = next(iter(self._streams))
        stream = self._streams.pop(stream_id)
        piece, rest = _split(stream.pieces.popleft(), limits.NATS_ANSWERS_SLICE_BYTES)
        if not piece:  # a single one that is larger
            piece, rest = rest, b""
        if rest:
            stream.pieces.appendleft(rest)
        stream.size_bytes -= len(piece)
        self.size_bytes -= len(piece)
        if stream.pieces:
            self._streams[stream_id] = stream  # behind all the others
        return piece


class _StreamAnswers:
    """Those of one stream."""

    __slots__ = ("pieces", "size_bytes")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.size_bytes = 0


def _split(commands: bytes, size_max: int) -> tuple[bytes, bytes]:
    """As many whole commands as fit, and the others."""
    if len(commands) <= size_max:
        return commands, b""
    # A command that ends within the size is followed by one that begins there at the latest.
    end = commands.rfind(_NEXT_COMMAND, 0, max(0, size_max) + len(_NEXT_COMMAND) - 2)
    end = 0 if end < 0 else end + 2
    return commands[:end], commands[end:]


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
        self._writable = True
        self._connection: NatsConnection | None = None
        self._direct: NatsConnection | None = None  # the same, while it takes everything
        self._waiting = WaitingAnswers()
        self._timer: asyncio.TimerHandle | None = None
        self._untaken_bytes = 0  # at the last look, and what was written since
        self._complaints = Complaints()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that no connection has yet."""
        return self._waiting.size_bytes

    def send(self, answers: Sequence[Answers]) -> None:
        """Send them now, or when nats-server takes them, or never."""
        if self._direct is not None:
            one = answers[0]
            self._direct.write(one.commands if len(answers) == 1 else b"".join([each.commands for each in answers]))
            return
        for one in answers:
            if dropped := self._waiting.add(one):
                self.dropped += dropped
                self._complain(one.stream_id)
        if self._writable:
            self._write_on()

    def opened(self, connection: NatsConnection) -> None:
        """nats-server takes commands on `connection`."""
        self._connection = connection
        self._writable = True
        self._become(_State.TAKING)
        if self._waiting.size_bytes:
            self._become(_State.BUSY)
            self._write_on()

    def closed(self) -> None:
        """There is no connection any more; what waits is for the next one."""
        self._become(_State.AWAY)
        self._connection = None

    def writable_changed(self, writable: bool) -> None:
        """Whether the connection's own buffer has room."""
        self._writable = writable
        if self._state is _State.AWAY:
            return
        if not writable and self._state is _State.TAKING:
            self._become(_State.BUSY)
        elif writable:
            self._write_on()

    def _write_on(self) -> None:
        if self._connection is None:
            return
        while self._writable and self._waiting.size_bytes:
            piece = self._waiting.take()
            self._untaken_bytes += len(piece)
            self._connection.write(piece)  # says through writable_changed when it is full
        if self._writable:
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
            self._look_later()
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
        if self._untaken_bytes - self._connection.write_buffer_bytes >= limits.NATS_WRITE_PAUSE_BYTES_MIN:
            self._look_later()
        else:
            self._timer = None
            self._become(_State.STALLED)

    def _complain(self, stream_id: int) -> None:
        text = (
            f"nats-server is slow to take the answers to publishers, as it is when one of them does not read them: "
            f"some of those to {self._subject_of(stream_id)} are dropped; what was published is stored"
        )
        now_us = int(asyncio.get_running_loop().time() * 1e6)
        if (line := self._complaints.line("dropped", text, now_us)) is not None:
            _log.warning("%s", line)
