"""A raw NATS connection that takes messages of JetStream's API and acks each of them, as a compiled client would.

Rules: nothing is parsed but the reply subject of each message. The acks of one read go out in one write. A status
message that is an error ends the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load.nats_socket import NatsSocket, inbox

_READ_BYTES = 1 << 18
_REPLY = re.compile(rb" (\$JS\.ACK\.\S+) \d+(?: \d+)?\r\n")
_ERROR = re.compile(rb"NATS/1\.0 [45]\d\d|-ERR")
_EXCERPT_BYTES = 200


class AckingReader:
    """A connection; `received` counts the messages that came. `close` it, or use it in `with`."""

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        self.nats = NatsSocket(address, timeout_s=timeout_s)
        self.received = 0
        self._rest = b""

    def __enter__(self) -> AckingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.nats.close()

    def pull_all(self, subject: str, messages: int, batch: int, expires_s: float) -> None:
        """Ask for `batch` messages at a time on a consumer's subject, until so many came; return once all are acked."""
        reply, confirmed = inbox().encode(), inbox().encode()
        self.nats.send(b"SUB %b 1\r\nSUB %b 2\r\n" % (reply, confirmed))
        wanted = self.received
        while self.received < messages:
            more = min(batch, messages - self.received)
            wanted += more
            body = msgspec.json.encode({"batch": more, "expires": round(1e9 * expires_s)})
            self.nats.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply, len(body), body))
            while self.received < wanted:
                replies = self.take()
                last = [replies.pop()] if self.received == messages else []
                self._send(b"".join([b"PUB %b 4\r\n+ACK\r\n" % one for one in replies]))
                self._send(b"".join([b"PUB %b %b 4\r\n+ACK\r\n" % (one, confirmed) for one in last]))
        while confirmed not in self._rest:  # acks are taken in order: the last one is answered when all are done
            self._rest += self._read()

    def ack_until(self, is_done: Callable[[], bool]) -> None:
        """Take messages and ack them until it is done."""
        while not is_done():
            self._send(b"".join([b"PUB %b 4\r\n+ACK\r\n" % one for one in self.take()]))

    def take(self) -> list[bytes]:
        """Return the reply subjects of the messages of the next read."""
        data = self._rest + self._read()
        end = data.rfind(b"\r\n") + 2 if b"\r\n" in data else 0  # no subject goes on behind it
        whole, self._rest = data[:end], data[end:]
        if (found := _ERROR.search(whole)) is not None:
            said = whole[found.start() : found.start() + _EXCERPT_BYTES].decode("utf-8", "replace")
            raise OperationalError(f"instead of messages came: {said}")
        replies = _REPLY.findall(whole)
        self.received += len(replies)
        return replies

    def _send(self, data: bytes) -> None:
        if data:
            self.nats.send(data)

    def _read(self) -> bytes:
        data = self.nats.socket.recv(_READ_BYTES)
        if not data:
            raise OperationalError("nats-server closed the connection")
        if b"PING\r\n" in data:
            self.nats.send(b"PONG\r\n")
        return data
