"""What a connection is called for: also what its socket does not tell, and never for what has to wait."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from penstock.broker.socket_api.socket_watch import SocketWatch
from penstock.broker.transport.transport import PlainTransport


class Waiting(PlainTransport):
    """A socket with the states that TLS may be in."""

    reads_wait = writes_wait = has_read = False


@pytest.fixture
def ends() -> Iterator[tuple[Waiting, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield Waiting(ours), theirs


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_was_taken_out_of_the_socket_is_read_without_being_told(
    ends: tuple[Waiting, socket.socket],
) -> None:
    transport, _ = ends
    left, calls = 3, []

    def readable() -> None:
        nonlocal left
        left -= 1
        calls.append("read")
        transport.has_read = left > 0

    watch = SocketWatch(asyncio.get_running_loop(), transport, readable, lambda: calls.append("write"))
    transport.has_read = True
    watch.read(True)
    assert calls == []  # never from inside
    await turns()
    assert calls == ["read"] * 3
    transport.has_read = True
    watch.read(False)
    await turns()
    assert calls == ["read"] * 3
    watch.close()


async def test_a_read_that_waits_for_room_is_called_when_there_is_some(ends: tuple[Waiting, socket.socket]) -> None:
    transport, theirs = ends
    calls: list[str] = []

    def readable() -> None:
        calls.append("read")
        transport.reads_wait = len(calls) == 1

    watch = SocketWatch(asyncio.get_running_loop(), transport, readable, lambda: calls.append("write"))
    theirs.sendall(b"x")
    fill(transport.sock)
    watch.read(True)
    await turns()
    assert calls == ["read"]  # and not again and again, though the byte lies there
    theirs.setblocking(False)
    while calls == ["read"]:
        with suppress(BlockingIOError):
            theirs.recv(1 << 20)
        await asyncio.sleep(0)
    assert set(calls) == {"read"}
    watch.close()


async def test_a_write_that_waits_for_bytes_is_called_when_some_come(ends: tuple[Waiting, socket.socket]) -> None:
    transport, theirs = ends
    calls: list[str] = []

    def writable() -> None:
        calls.append("write")
        transport.writes_wait = len(calls) == 1
        if len(calls) > 1:
            watch.write(False)

    watch = SocketWatch(asyncio.get_running_loop(), transport, lambda: calls.append("read"), writable)
    watch.write(True)
    await turns()
    assert calls == ["write"]  # though there is room
    theirs.sendall(b"x")
    await turns()
    assert calls == ["write", "write"]
    watch.close()


def fill(sock: socket.socket) -> None:
    with suppress(BlockingIOError):
        while True:
            sock.send(bytes(1 << 16))
