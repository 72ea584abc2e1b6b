"""Answers on their way to nats-server: what waits is bounded, in order, in turn, and no reason not to read for long."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from penstock.base import limits
from penstock.base.limits import KIB, MIB
from penstock.broker.nats.answers import LASTING, AnswerOutput, WaitingAnswers, WaitingLimits
from penstock.broker.nats.connection import NatsConnection
from penstock.broker.security.nats_credentials import NatsServer
from penstock.hot.message_group import MessageGroup
from penstock.ingest.nats import NatsSession, SessionEvent
from penstock.node.step import NatsAnswers
from tests.extent import each_change

_TIMEOUT_S = 10
_BODY = b"{%b}" % (b"x" * 998)
_COMMAND_BYTES = 1_024


def _acks(sid: int, first: int, count: int) -> NatsAnswers:
    """Numbered ones, 1 KiB each."""
    commands = []
    for number in range(first, first + count):
        head = b"PUB s%d.%07d 1000\r\n" % (sid, number)
        commands.append(head + _BODY.rjust(_COMMAND_BYTES - len(head) - 2, b"{") + b"\r\n")
    return NatsAnswers(sid, b"".join(commands))


def _numbers(commands: bytes, sid: int) -> list[int]:
    return [int(number) for number in re.findall(rb"PUB s%d\.(\d+) " % sid, commands)]


class _SlowSocket(asyncio.Transport):
    """A socket of which the other side takes what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: asyncio.BaseProtocol
        self.taken = bytearray()
        self._waiting = bytearray()
        self._high = 64 * KIB
        self._is_full = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._waiting += data
        self._look()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self._high = high
        self._look()

    def get_write_buffer_size(self) -> int:
        return len(self._waiting)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...

    def take(self, size: int) -> None:
        """Take so much, or all that there is."""
        while size and self._waiting:
            piece = self._waiting[:size]
            del self._waiting[:size]
            self.taken += piece
            size -= len(piece)
            if self._is_full and len(self._waiting) <= self._high // 4:
                self._is_full = False
                cast(asyncio.Protocol, self.protocol).resume_writing()

    def _look(self) -> None:
        if not self._is_full and len(self._waiting) > self._high:
            self._is_full = True
            cast(asyncio.Protocol, self.protocol).pause_writing()


class _Link:
    """What an output and its connection call."""

    def __init__(self) -> None:
        self.output = AnswerOutput(self._pause, str)
        self.paused: list[bool] = []
        self.reads = asyncio.Event()

    def _pause(self, paused: bool) -> None:
        self.paused.append(paused)
        if not paused:
            self.reads.set()

    def groups_received(self, groups: dict[int, MessageGroup]) -> None: ...

    def session_event(self, event: SessionEvent) -> None: ...

    def writable_changed(self, writable: bool) -> None:
        self.output.writable_changed(writable)


@contextmanager
def _connection(link: _Link) -> Iterator[tuple[NatsConnection, _SlowSocket]]:
    """One that is connected, and not yet ready for commands."""
    connection = NatsConnection(NatsServer("h"), NatsSession(name="test", version="0"), link, lambda: 0)
    socket = _SlowSocket()
    socket.protocol = connection
    connection.connection_made(socket)
    try:
        yield connection, socket
    finally:
        connection.discard()
        link.output.closed()


async def test_a_step_that_the_buffer_has_no_room_for_waits_by_stream() -> None:
    link = _Link()
    count = 3 * limits.NATS_WRITE_BUFFER_BYTES_MAX // _COMMAND_BYTES
    with _connection(link) as (connection, socket):
        link.output.opened(connection)
        link.output.send([_acks(1, 0, count // 2), _acks(1, count // 2, count // 2)])
        assert connection.write_buffer_bytes <= limits.NATS_WRITE_BUFFER_BYTES_MAX
        link.output.send([_acks(2, 0, 1)])
        assert connection.write_buffer_bytes <= limits.NATS_WRITE_BUFFER_BYTES_MAX
        socket.take(2**40)
        assert _numbers(socket.taken, 1) == list(range(count))
        assert socket.taken.index(b"PUB s2.") < MIB  # what lay in the buffer, and a slice
        assert link.output.dropped == 0


async def test_what_the_buffer_has_room_for_is_written_at_once() -> None:
    link = _Link()
    with _connection(link) as (connection, _):
        link.output.opened(connection)
        for sid in range(3):
            link.output.send([_acks(sid, 0, 1_000)])
        assert connection.write_buffer_bytes == 3 * 1_000 * _COMMAND_BYTES
        assert link.paused == []


@each_change
async def test_the_acks_of_one_large_sync_are_not_dropped_while_they_are_taken() -> None:
    link = _Link()
    count = 2 * limits.NATS_STREAM_ANSWERS_BYTES_MAX // _COMMAND_BYTES
    with _connection(link) as (connection, socket):
        link.output.opened(connection)
        link.output.send([_acks(1, 0, count)])
        assert link.paused == [True]  # nothing can come on top
        socket.take(2**40)
        assert _numbers(socket.taken, 1) == list(range(count))
        assert link.output.dropped == 0
        assert link.paused == [True, False]


async def test_what_is_over_the_limits_is_dropped_once_little_is_taken() -> None:
    link = _Link()
    count = 2 * limits.NATS_STREAM_ANSWERS_BYTES_MAX // _COMMAND_BYTES
    with _connection(link) as (connection, socket):
        link.output.opened(connection)
        link.output.send([_acks(1, 0, count), _acks(2, 0, 10)])
        assert link.output.dropped == 0
        await asyncio.wait_for(link.reads.wait(), _TIMEOUT_S)
        assert link.output.waiting_bytes <= limits.NATS_STREAM_ANSWERS_BYTES_MAX + 10 * _COMMAND_BYTES
        link.output.send([_acks(1, count, 10)])
        socket.take(2**40)
        kept = _numbers(socket.taken, 1)
        assert kept == list(range(len(kept)))  # the oldest, each whole
        assert len(kept) + link.output.dropped == count + 10
        assert _numbers(socket.taken, 2) == list(range(10))


async def test_reading_waits_for_some_seconds_at_most_however_much_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NATS_WRITE_PAUSES_MAX", 2)
    monkeypatch.setattr(limits, "NATS_WRITE_PAUSE_MS", 1)
    monkeypatch.setattr(limits, "NATS_WRITE_PAUSE_BYTES_MIN", 0)  # whatever is taken is enough
    link = _Link()
    with _connection(link) as (connection, _):
        link.output.opened(connection)
        link.output.send([_acks(1, 0, 10_000)])
        assert link.paused == [True]
        await asyncio.wait_for(link.reads.wait(), _TIMEOUT_S)
        assert link.output.waiting_bytes


async def test_a_connection_that_is_full_when_it_is_ready_gets_nothing_more() -> None:
    """The SUBs of many streams fill it."""
    link = _Link()
    with _connection(link) as (connection, socket):
        connection.write(b"SUB x\r\n" * MIB)
        link.output.send([_acks(1, 0, 1_000)])
        full_bytes = connection.write_buffer_bytes
        link.output.opened(connection)
        link.output.send([_acks(1, 1_000, 1_000)])
        assert connection.write_buffer_bytes == full_bytes
        socket.take(2**40)
        assert _numbers(socket.taken, 1) == list(range(2_000))
        assert link.paused == [True, False]


async def test_what_waits_when_a_connection_is_lost_comes_with_the_next_up_to_the_limits() -> None:
    link = _Link()
    count = 2 * limits.NATS_STREAM_ANSWERS_BYTES_MAX // _COMMAND_BYTES
    with _connection(link) as (connection, socket):
        link.output.opened(connection)
        link.output.send([_acks(1, 0, count)])
        socket.take(0)
    assert link.output.waiting_bytes <= limits.NATS_STREAM_ANSWERS_BYTES_MAX
    assert link.output.dropped > 0
    with _connection(link) as (connection, next_socket):
        link.output.opened(connection)
        next_socket.take(2**40)
        kept = _numbers(next_socket.taken, 1)
        in_lost_buffer = kept[0]
        assert kept == list(range(in_lost_buffer, in_lost_buffer + len(kept)))
        assert in_lost_buffer + len(kept) + link.output.dropped == count


def test_a_turn_is_a_slice_of_one_stream_however_small_its_pieces_are() -> None:
    waiting = WaitingAnswers()
    waiting.add(_acks(1, 0, 1_000), LASTING)
    for number in range(60):
        waiting.add(_acks(2, number, 1), LASTING)
    waiting.add(_acks(1, 1_000, 1), LASTING)
    turns = [waiting.take() for _ in range(3)]
    assert all(len(turn) <= limits.NATS_ANSWERS_SLICE_BYTES for turn in turns)
    assert _numbers(turns[0], 1) == list(range(64))
    assert _numbers(turns[1], 2) == list(range(60))
    assert _numbers(turns[2], 1) == list(range(64, 128))
    rest = b"".join(iter(lambda: waiting.take() if waiting.size_bytes else b"", b""))
    assert _numbers(rest, 1) == list(range(128, 1_001))


def test_an_answer_larger_than_a_slice_is_a_turn_of_its_own() -> None:
    waiting = WaitingAnswers()
    size = 2 * limits.NATS_ANSWERS_SLICE_BYTES
    large = b"PUB a %d\r\n%b\r\n" % (size, b"x" * size)
    waiting.add(NatsAnswers(1, large + large), LASTING)
    assert [waiting.take(), waiting.take()] == [large, large]
    assert waiting.size_bytes == 0


def test_a_cut_drops_the_latest_of_the_largest() -> None:
    waiting = WaitingAnswers()
    everything = WaitingLimits(2**40, 2**40)
    waiting.add(_acks(1, 0, 300), everything)
    waiting.add(_acks(2, 0, 10), everything)
    waiting.add(_acks(3, 0, 100), everything)
    taken = waiting.take()  # 64 of the first stream
    dropped = waiting.cut(WaitingLimits(stream_bytes=200 * _COMMAND_BYTES, all_bytes=170 * _COMMAND_BYTES + 5))
    assert dropped == {1: 300 - 64 - 80, 3: 20}
    assert waiting.size_bytes == 170 * _COMMAND_BYTES
    rest = b"".join(iter(lambda: waiting.take() if waiting.size_bytes else b"", b""))
    assert _numbers(taken + rest, 1) == list(range(144))
    assert _numbers(rest, 2) == list(range(10))
    assert _numbers(rest, 3) == list(range(80))


def test_a_cut_may_leave_nothing() -> None:
    waiting = WaitingAnswers()
    waiting.add(_acks(1, 0, 100), LASTING)
    waiting.take()
    assert waiting.cut(WaitingLimits(10, 10)) == {1: 36}
    assert waiting.size_bytes == 0
    waiting.add(_acks(1, 100, 1), LASTING)
    assert _numbers(waiting.take(), 1) == [100]
