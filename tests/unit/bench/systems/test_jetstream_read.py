"""A stream is read back whole, whenever nats-server says that a request for messages is served."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load.content import Tally
from penstock_bench.systems import jetstream_read

MESSAGES = 4_500
SERVED = b"NATS/1.0 409 Batch Completed\r\n\r\n"


class Server:
    """A nats-server that says of a batch that it is complete when the next one is asked for.

    It claims MESSAGES, and has `has` of them.
    """

    def __init__(self, connection: socket.socket, has: int) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self._left = has
        self._late = b""

    def serve(self) -> None:
        self._connection.sendall(b'INFO {"headers":true}\r\n')
        for line in self._file:
            verb, *words = line.split()
            if verb == b"PING":
                self._connection.sendall(b"PONG\r\n")
            elif verb == b"PUB":
                body = self._file.read(int(words[-1]) + 2)[:-2]
                self._connection.sendall(self._answer(words[0].decode(), words[1], body))

    def _answer(self, subject: str, reply: bytes, body: bytes) -> bytes:
        if ".INFO." in subject:
            return message(9, reply, b'{"state":{"messages":%d}}' % MESSAGES)
        if ".CREATE." in subject:
            return message(9, reply, b'{"name":"consumer"}')
        wanted = json.loads(body)["batch"]
        count = min(wanted, self._left)
        self._left -= count
        found = self._late + b"".join(message(1, b"bench.x", b"value") for _ in range(count))
        served = b"HMSG %b 1 %d %d\r\n%b\r\n" % (reply, len(SERVED), len(SERVED), SERVED)
        self._late = served if count == wanted else b""
        return found if count == wanted else found + served


def message(subscription: int, subject: bytes, payload: bytes) -> bytes:
    return b"MSG %b %d %d\r\n%b\r\n" % (subject, subscription, len(payload), payload)


@contextmanager
def serving(has: int) -> Iterator[Address]:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            connection, _ = listening.accept()
            with connection:
                Server(connection, has).serve()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield Address("127.0.0.1", listening.getsockname()[1])
        thread.join(10.0)


def test_a_status_of_the_last_request_does_not_end_the_next_one() -> None:
    tally = Tally()
    tally.add([b"value"] * MESSAGES)
    with serving(MESSAGES) as nats:
        assert jetstream_read.read_back(nats, "bench", ordered=True) == tally.content(ordered=True)


def test_messages_that_do_not_come_are_an_error() -> None:
    with serving(MESSAGES - 1) as nats, pytest.raises(OperationalError, match="409 Batch Completed"):
        jetstream_read.read_back(nats, "bench", ordered=True)
