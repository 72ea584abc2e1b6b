"""Responders that ack at once and store nothing: the ceilings of the generator and of NATS.

Rules: An ack has the form and the size of Penstock's, and goes to the reply subject of its message. All frames of one
round have the same length, and rounds do not overlap, so a reply subject is sliced at a known position, without
parsing.

| responder | between generator and responder             | the figure shows                                    |
|-----------|---------------------------------------------|-----------------------------------------------------|
| `null`    | nothing: it speaks nats-server's protocol   | the generator's own ceiling                         |
| `raw`     | nats-server                                 | a NATS round trip with blocking sockets             |
| `asyncio` | nats-server                                 | the same on the kind of event loop that brokers use |
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
from collections.abc import Iterator

import msgspec

from penstock.base.addresses import Address
from penstock_bench.load.nats_socket import NatsSocket

_READ_BYTES = 1 << 20
_BODY = b'{"stream":"bench-1","seq":100000,"offset":99999,"partition":0,"epoch":1,"replicas":1,"fsynced":true}'
_ACK = b" %d\r\n%b\r\n" % (len(_BODY), _BODY)
_PING = b"\r\nPING\r\n"  # sent by nats-server between two messages; a payload may contain it by chance
_INFO = b'INFO {"server_id":"null","version":"2.0.0","headers":true,"max_payload":1048576}\r\n'


class RespondTask(msgspec.Struct, frozen=True):
    """The server and the subject of the messages."""

    nats: Address
    subject: str


class Replies:
    """Splits received bytes into complete frames, and returns one ack for each."""

    def __init__(self, verb: bytes, before_ack: bytes) -> None:
        self._verb = verb  # MSG from nats-server; PUB in the place of nats-server
        self._before_ack = before_ack  # the bytes of an ack before the reply subject
        self._buffer = bytearray()

    def take(self, data: bytes | memoryview) -> bytes:
        """Return the acks for all frames that are complete now."""
        self._buffer += data
        out: list[bytes] = []
        start = 0
        while (line_end := self._buffer.find(b"\r\n", start)) >= 0:
            words = bytes(self._buffer[start:line_end]).split(b" ")
            if words[0] != self._verb:
                out += self._line(words)
                start = line_end + 2
                continue
            stride = line_end + 2 + int(words[-1]) + 2 - start
            count = (len(self._buffer) - start) // stride
            if count == 0:
                break
            if (ping := self._buffer.find(_PING, start, start + count * stride + len(_PING))) >= 0:
                count = max(1, (ping + 2 - start) // stride)  # only frames before it are known to have equal lengths
            out += self._acks(start, line_end, stride, count, words)
            start += count * stride
        del self._buffer[:start]
        return b"".join(out)

    def _line(self, words: list[bytes]) -> list[bytes]:
        """Return the answer to a line other than a message."""
        return [b"PONG\r\n"] if words[0] == b"PING" else []

    def _acks(self, start: int, line_end: int, stride: int, count: int, words: list[bytes]) -> Iterator[bytes]:
        reply_end = line_end - start - len(words[-1]) - 1
        reply_start = reply_end - len(words[-2])
        for number in range(count):
            at = start + number * stride
            reply = bytes(self._buffer[at + reply_start : at + reply_end])
            yield b"%b%b%b" % (self._before_ack, reply, _ACK)


class NullReplies(Replies):
    """Replies in the place of nats-server, for a publisher whose one subscription has the id 1."""

    def __init__(self) -> None:
        super().__init__(b"PUB", b"MSG ")

    def _acks(self, start: int, line_end: int, stride: int, count: int, words: list[bytes]) -> Iterator[bytes]:
        # A connection has one reply subject, so all acks are equal.
        yield b"MSG %b 1%b" % (words[-2], _ACK) * count


def respond_raw(task: RespondTask) -> Iterator[str]:
    """Worker: respond on a blocking socket behind nats-server."""
    replies = Replies(b"MSG", b"PUB ")
    with NatsSocket(task.nats) as nats:
        nats.send(b"SUB %b 1\r\n" % task.subject.encode())
        nats.barrier()
        yield "ready"
        nats.socket.settimeout(None)
        while data := nats.socket.recv(_READ_BYTES):
            if answer := replies.take(data):
                nats.socket.sendall(answer)


class _Responder(asyncio.BufferedProtocol):
    """A BufferedProtocol, as the broker's own NATS connection is."""

    def __init__(self) -> None:
        self._replies = Replies(b"MSG", b"PUB ")
        self._room = bytearray(_READ_BYTES)
        self._transport: asyncio.WriteTransport | None = None
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        assert self._transport is not None
        with memoryview(self._room) as view:
            answer = self._replies.take(view[:nbytes])
        if answer:
            self._transport.write(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)


def respond_asyncio(task: RespondTask) -> Iterator[str]:
    """Worker: respond by an asyncio protocol behind nats-server."""
    with asyncio.Runner() as runner:
        nats = NatsSocket(task.nats)
        nats.send(b"SUB %b 1\r\n" % task.subject.encode())
        nats.barrier()
        nats.socket.setblocking(False)

        async def serve() -> None:
            _, protocol = await asyncio.get_running_loop().create_connection(_Responder, sock=nats.socket)
            await protocol.lost

        yield "ready"
        runner.run(serve())


def respond_null(task: RespondTask) -> Iterator[Address]:
    """Worker: respond in the place of nats-server, on a port of its own; the task's address is not used."""
    with socket.create_server(("127.0.0.1", 0)) as server, selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        yield Address(*server.getsockname())
        replies: dict[socket.socket, Replies] = {}
        while True:
            for key, _ in selector.select():
                if key.fileobj is server:
                    connection, _ = server.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connection.sendall(_INFO)
                    replies[connection] = NullReplies()
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                assert isinstance(key.fileobj, socket.socket)
                if not _answer(key.fileobj, replies[key.fileobj]):
                    selector.unregister(key.fileobj)
                    del replies[key.fileobj]
                    key.fileobj.close()


def _answer(connection: socket.socket, replies: Replies) -> bool:
    """Ack the messages of one read; return False at the end of the connection."""
    with contextlib.suppress(ConnectionError):
        if data := connection.recv(_READ_BYTES):
            connection.sendall(replies.take(data))
            return True
    return False


RESPONDERS = {"raw": respond_raw, "asyncio": respond_asyncio}
"""The responders behind a nats-server, by name."""
