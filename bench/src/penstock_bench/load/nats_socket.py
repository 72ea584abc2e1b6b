"""A blocking connection to NATS, for setting up the generator and for the few requests that are not measured."""

from __future__ import annotations

import secrets
import socket
import time
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load.frames import Delivery, Scanned, scan

_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"name":"penstock-bench"}\r\n'
_READ_BYTES = 1 << 20


def inbox() -> str:
    """Return a unique inbox subject."""
    return f"_INBOX.{secrets.token_hex(8)}"


class NatsSocket:
    """A connected client; `close` it, or use it in `with`."""

    def __init__(self, address: Address, *, timeout_s: float = limits.BENCH_STALL_S) -> None:
        self._timeout_s = timeout_s
        self.socket = socket.create_connection(address, timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        try:
            self.socket.sendall(_CONNECT)
            self.barrier()
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> NatsSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send protocol lines."""
        self.socket.sendall(data)

    def barrier(self) -> None:
        """Wait until nats-server has processed everything sent so far. Raise OperationalError for a -ERR."""
        self.send(b"PING\r\n")
        while True:
            found = self._receive()
            refused = [line for line in found.lines if line.startswith(b"-ERR")]
            if refused:
                raise OperationalError(f"nats-server refused: {refused[0].decode('utf-8', 'replace')}")
            if b"PONG" in found.lines:
                return

    def deliveries(self) -> list[Delivery]:
        """Return the next messages, at least one. Raise TimeoutError if none comes."""
        while True:
            if found := self._receive().deliveries:
                return found

    def request(self, subject: str, body: Any) -> dict[str, Any]:
        """Send a JetStream API request. Raise OperationalError if it answers with an error."""
        reply = inbox()
        payload = msgspec.json.encode(body)
        self.send(b"SUB %b 9\r\nUNSUB 9 1\r\n" % reply.encode())
        self.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(payload), payload))
        while True:
            for delivery in self.deliveries():
                if delivery.subject == reply.encode():
                    return _answer(subject, delivery)

    def _receive(self) -> Scanned:
        """Read and parse once; answer PING."""
        deadline_s = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline_s:
            data = self.socket.recv(_READ_BYTES)
            if not data:
                raise OperationalError(f"nats-server closed the connection: {bytes(self._buffer[:200])!r}")
            self._buffer += data
            found = scan(self._buffer, 0, len(self._buffer))
            del self._buffer[: found.end]
            if b"PING" in found.lines:
                self.send(b"PONG\r\n")
            if found.deliveries or found.lines:
                return found
        raise TimeoutError(f"nats-server sent no whole frame for {self._timeout_s:g} s")


def _answer(subject: str, delivery: Delivery) -> dict[str, Any]:
    if delivery.headers:
        said = delivery.headers.split(b"\r\n")[0].decode("utf-8", "replace")
        raise OperationalError(f"no responder for {subject}: {said}")
    answer = msgspec.json.decode(delivery.payload, type=dict[str, Any])
    if "error" in answer:
        raise OperationalError(f"{subject}: {answer['error'].get('description', answer['error'])}")
    return answer
