"""A model of nats-server: subscriptions, barriers, publishers with reply subjects, connections that break.

Rules: Input and output are protocol bytes, so that the real parser and the real acks are tested. The server processes
the lines of a connection in order and delivers to each connection in order. It stores nothing for disconnected clients
and delivers nothing twice. A message on a subject without subscribers gets "no responders" on its reply subject.

A publisher has an inbox and no connection (`publish`), or is a program with a client of its own (`greet`).

| line                     | effect                                                                       |
|--------------------------|------------------------------------------------------------------------------|
| CONNECT …                | none                                                                         |
| SUB subject [queue] sid  | later messages are delivered to it, or to another member of its queue group  |
| UNSUB sid [count]        | ends the subscription, at once or after so many messages                     |
| PING                     | PONG                                                                         |
| PUB subject [reply] n    | from a broker: to a publisher's inbox; from a program: to the subscribers    |
| HPUB subject [reply] h n | the same, with headers                                                       |
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from penstock.testing.simulation.network import Network, SimConnection
from penstock.testing.simulation.trace import Trace

NAME = "nats"
URL = f"nats://{NAME}:4222"
INFO = b'INFO {"server_id":"S","version":"2.10.0","headers":true,"max_payload":8388608}\r\n'
_NOBODY = b"NATS/1.0 503\r\n\r\n"
Inbox = Callable[[bytes], None]


class PublishedMessage(NamedTuple):
    """A message in transit."""

    subject: bytes
    reply: bytes  # empty: none
    headers: bytes
    value: bytes


class _Peer:
    """One connection of a broker or a program."""

    __slots__ = ("connection", "is_flushing", "left", "output", "queues", "rest", "subscriptions", "take")

    def __init__(self, connection: SimConnection) -> None:
        self.connection = connection
        self.take: Callable[[bytes], None] | None = None  # set by the connecting side: receives the output
        self.rest = b""
        self.output = bytearray()
        self.is_flushing = False
        self.subscriptions: dict[bytes, tuple[bytes, ...]] = {}  # sid → the subject's tokens
        self.queues: dict[bytes, bytes] = {}  # sid → the queue group, if any
        self.left: dict[bytes, int] = {}  # sid → messages until it ends

    def forget(self, sid: bytes) -> None:
        """Remove a subscription."""
        for kept in (self.subscriptions, self.queues, self.left):
            kept.pop(sid, None)


class NatsServerModel:
    """The model server. Call `start` first."""

    def __init__(self, network: Network, random: Random, trace: Trace) -> None:
        self.messages = 0  # delivered messages
        self.is_losing = False  # drop half of the answers to publishers
        self.published: Callable[[PublishedMessage], None] = lambda _: None  # called with what programs publish
        self.answered: Callable[[bytes, bytes], None] = lambda _subject, _body: None  # called with what brokers publish
        self._programs: dict[SimConnection, _Peer] = {}
        self._network = network
        self._random = random
        self._trace = trace
        self._peers: dict[SimConnection, _Peer] = {}
        self._inboxes: dict[bytes, Inbox] = {}

    def start(self) -> None:
        """Accept connections."""
        self._network.listen(NAME, self._accept)

    def stop(self) -> None:
        """Stop with all connections and subscriptions."""
        self._network.listen(NAME, None)
        self._network.die(NAME)
        self._peers.clear()
        self._programs.clear()

    def _accept(self, connection: SimConnection) -> None:
        self._peers[connection] = _Peer(connection)
        connection.target_lost = lambda: self._gone(connection)

    def _gone(self, connection: SimConnection) -> None:
        self._peers.pop(connection, None)
        self._programs.pop(connection, None)

    def greet(self, connection: SimConnection, take: Callable[[bytes], None], *, is_program: bool = False) -> None:
        """The connecting side is ready to read."""
        peer = self._peers.get(connection)
        if peer is not None:
            peer.take = take
            if is_program:
                self._programs[connection] = peer
            self._say(peer, INFO)

    def cut(self, connection: SimConnection) -> None:
        """Close one connection, as nats-server does with a slow consumer."""
        self._gone(connection)
        connection.close(by_source=False)

    # Brokers and programs

    def receive(self, connection: SimConnection, data: bytes) -> None:
        """Take bytes from a connection."""
        peer = self._peers.get(connection)
        if peer is None:
            return
        data = peer.rest + data
        position = 0
        while (line_end := data.find(b"\r\n", position)) >= 0:
            fields = data[position:line_end].split()
            after = line_end + 2
            if fields[0] in (b"PUB", b"HPUB"):
                payload_end = after + int(fields[-1])
                if payload_end + 2 > len(data):
                    break
                self._taken(peer, fields, data[after:payload_end])
                position = payload_end + 2
                continue
            position = after
            self._line(peer, fields)
        peer.rest = data[position:]

    def _line(self, peer: _Peer, fields: list[bytes]) -> None:
        if fields[0] == b"PING":
            self._say(peer, b"PONG\r\n")
        elif fields[0] == b"SUB":
            peer.subscriptions[fields[-1]] = tuple(fields[1].split(b"."))
            if len(fields) == 4:
                peer.queues[fields[-1]] = fields[2]
        elif fields[0] == b"UNSUB" and len(fields) == 3:
            peer.left[fields[1]] = int(fields[2])
        elif fields[0] == b"UNSUB":
            peer.forget(fields[1])
        else:
            assert fields[0] in (b"CONNECT", b"PONG"), fields

    def _taken(self, peer: _Peer, fields: list[bytes], data: bytes) -> None:
        """Route one published message."""
        if peer.connection not in self._programs:
            self.answered(fields[1], data)
            self._to_inbox(fields[1], data)
            if self._programs and not (self.is_losing and self._random.random() < 0.5):
                self._deliver(PublishedMessage(fields[1], b"", b"", data))
            return
        sizes = 2 if fields[0] == b"HPUB" else 1
        headers_end = int(fields[-2]) if sizes == 2 else 0
        reply = fields[2] if len(fields) == 3 + sizes else b""
        message = PublishedMessage(fields[1], reply, data[:headers_end], data[headers_end:])
        self.published(message)
        if not self._deliver(message) and reply:
            self._deliver(PublishedMessage(reply, b"", _NOBODY, b""))

    def _say(self, peer: _Peer, data: bytes) -> None:
        peer.output += data
        if not peer.is_flushing:
            peer.is_flushing = True
            self._network.scheduler.after(int(self._random.random() * 100), lambda: self._flush(peer))

    def _flush(self, peer: _Peer) -> None:
        peer.is_flushing = False
        data, take = bytes(peer.output), peer.take
        peer.output.clear()
        assert take is not None
        if len(data) > 1 and self._random.random() < 0.05:  # a read may end anywhere
            cut = 1 + int(self._random.random() * (len(data) - 1))
            first, data = data[:cut], data[cut:]
            peer.connection.send_back(lambda: take(first))
        peer.connection.send_back(lambda: take(data))

    # Publishers

    def publish(
        self, subject: bytes, value: bytes, reply: bytes, inbox: Inbox, headers: bytes = b""
    ) -> tuple[str, ...]:
        """Publish a message; return its receivers. Answers go to `inbox` until `forget`; b"" means no responders."""
        self._inboxes[reply] = inbox
        receivers = self._deliver(PublishedMessage(subject, reply, headers, value))
        if not receivers:
            self._to_inbox(reply, b"")
        return receivers

    def _deliver(self, message: PublishedMessage) -> tuple[str, ...]:
        """Deliver to all subscribers, and to one member of each queue group."""
        tokens = tuple(message.subject.split(b"."))
        receivers: list[str] = []
        queues: dict[bytes, list[tuple[_Peer, bytes]]] = {}
        for peer in self._peers.values():
            for sid, pattern in list(peer.subscriptions.items()) if peer.left else peer.subscriptions.items():
                if not matches(pattern, tokens):
                    continue
                if (queue := peer.queues.get(sid)) is not None:
                    queues.setdefault(queue, []).append((peer, sid))
                    continue
                receivers.append(peer.connection.source)
                self._hand(peer, sid, message)
        for members in queues.values():
            peer, sid = members[int(self._random.random() * len(members))]
            receivers.append(peer.connection.source)
            self._hand(peer, sid, message)
        return tuple(receivers)

    def _hand(self, peer: _Peer, sid: bytes, message: PublishedMessage) -> None:
        self.messages += 1
        subject, reply, headers, value = message
        where = b"%b %b %b" % (subject, sid, reply) if reply else b"%b %b" % (subject, sid)
        if headers:
            size = len(headers)
            self._say(peer, b"HMSG %b %d %d\r\n%b%b\r\n" % (where, size, size + len(value), headers, value))
        else:
            self._say(peer, b"MSG %b %d\r\n%b\r\n" % (where, len(value), value))
        if sid in peer.left:
            peer.left[sid] -= 1
            if peer.left[sid] <= 0:
                peer.forget(sid)

    def forget(self, reply: bytes) -> None:
        """Stop delivering answers to this publisher."""
        self._inboxes.pop(reply, None)

    def _to_inbox(self, reply: bytes, body: bytes) -> None:
        if self.is_losing and self._random.random() < 0.5:
            return

        def arrive() -> None:
            if (inbox := self._inboxes.get(reply)) is not None:
                inbox(body)

        self._network.scheduler.after(self._network.delay_us(), arrive)


def matches(pattern: tuple[bytes, ...], tokens: tuple[bytes, ...]) -> bool:
    """True if the pattern covers the subject, both as tokens."""
    for number, wanted in enumerate(pattern):
        if wanted == b">":
            return len(tokens) > number
        if number >= len(tokens) or (wanted != b"*" and wanted != tokens[number]):
            return False
    return len(tokens) == len(pattern)
