"""The connection that is timed: what it cuts out, what it answers, and that it never blocks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load.timed_socket import TimedSocket

TIMEOUT_S = 10.0


@contextmanager
def connected(*subscriptions: str) -> Iterator[tuple[TimedSocket, socket.socket]]:
    """A TimedSocket and the server's end of it, greeted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends: list[socket.socket] = []

        def greet() -> None:
            end, _ = server.accept()
            end.settimeout(TIMEOUT_S)
            ends.append(end)
            said = b""
            for _ in range(2):  # the greeting, then the subscriptions: each ends with a PING
                while not said.endswith(b"PING\r\n"):
                    said += end.recv(65536)
                end.sendall(b"PONG\r\n")
                said = b""

        greeting = threading.Thread(target=greet)
        greeting.start()
        try:
            with TimedSocket(Address(*server.getsockname()), *subscriptions) as link:
                greeting.join(TIMEOUT_S)
                yield link, ends[0]
        finally:
            greeting.join(TIMEOUT_S)
            for end in ends:
                end.close()


def received(link: TimedSocket, count: int) -> list[tuple[int, bytes, bytes]]:
    found: list[tuple[int, bytes, bytes]] = []
    while len(found) < count:
        assert link.wait(TIMEOUT_S), f"only {len(found)} came"
        moment_ns, deliveries = link.receive()
        found += [(moment_ns, one.headers, one.payload) for one in deliveries]
    return found


def test_messages_come_whole_in_order_and_with_their_moment() -> None:
    with connected("a", "b") as (link, end):
        end.sendall(b"MSG a 1 2\r\nxy\r\nHMSG b 2 12 14\r\nNATS/1.0\r\n\r\nhi\r\nMSG a 1 5\r\nhel")
        first = received(link, 2)
        assert [payload for _, _, payload in first] == [b"xy", b"hi"]
        assert first[1][1].startswith(b"NATS/1.0")
        end.sendall(b"lo\r\n")
        ((moment_ns, _, payload),) = received(link, 1)
        assert payload == b"hello"
        assert moment_ns >= first[0][0]


@pytest.mark.parametrize("size", [300_000, 1_000_000, 5_000_000])
def test_large_messages_fit(size: int) -> None:
    payload = bytes(range(256)) * (size // 256)
    frame = b"MSG a 1 %d\r\n%b\r\n" % (len(payload), payload)
    with connected("a") as (link, end):
        writing = threading.Thread(target=end.sendall, args=(frame * 5,))
        writing.start()
        assert [one == payload for _, _, one in received(link, 5)] == [True] * 5
        writing.join(TIMEOUT_S)


def test_what_the_socket_does_not_take_waits_and_goes_out_in_order() -> None:
    parts = [bytes([number % 256]) * 100_000 for number in range(200)]
    with connected() as (link, end):
        link.send(*parts)
        assert link.is_sending  # 20 MB fit into no socket
        assert not link.wait(0.0)
        wanted = b"".join(parts)
        taken = bytearray()
        while len(taken) < len(wanted):
            if link.is_sending:
                link.wait(0.0)
            taken += end.recv(1 << 20)
        assert taken == wanted
        assert not link.is_sending


def test_a_ping_is_answered() -> None:
    with connected() as (link, end):
        end.sendall(b"PING\r\n")
        assert link.wait(TIMEOUT_S)
        assert link.receive()[1] == []
        assert end.recv(100) == b"PONG\r\n"


def test_what_is_refused_and_what_ends_is_an_error() -> None:
    with connected() as (link, end):
        end.sendall(b"-ERR 'Maximum Payload Violation'\r\n")
        assert link.wait(TIMEOUT_S)
        with pytest.raises(OperationalError, match="Maximum Payload"):
            link.receive()
        end.close()
        assert link.wait(TIMEOUT_S)
        with pytest.raises(OperationalError, match="closed the connection"):
            link.receive()


def test_nothing_comes_from_nothing() -> None:
    with connected() as (link, _):
        assert not link.wait(0.0)
        assert link.receive()[1] == []
