"""A model of nats-server: subscriptions, barriers, publishers with reply subjects, connections that break.

Rules: what it says and hears are the bytes of the protocol, so that the real parser and the real acks are in play. It
does a connection's lines in order, delivers to each connection in order, keeps nothing for those who are not there, and
delivers nothing twice. A message on a subject that nobody subscribes gets "no responders" on its reply subject.

A publisher has an inbox and no connection (`publish`), or it is a program with a client of its own (`greet`).

| line                     | what happens                                                                     |
|--------------------------|----------------------------------------------------------------------------------|
| CONNECT …                | nothing                                                                          |
| SUB subject [queue] sid  | what is published from now on is delivered to it, or to another one of its queue |
| UNSUB sid [count]        | no more, or none once so many have come                                          |
| PING                     | PONG                                                                             |
| PUB subject [reply] n    | a broker's: to the inbox of a publisher; a program's: to whoever subscribes      |
| HPUB subject [reply] h n | the same, with headers                                                           |
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from penstock.sim.network import Connection, Network
from penstock.sim.trace import Trace

NAME = "nats"
URL = f"nats://{NAME}:4222"
INFO = b'INFO {"server_id":"S","version":"2.10.0","headers":true,"max_payload":8388608}\r\n'
_NOBODY = b"NATS/1.0 503\r\n\r\n"
Inbox = Callable[[bytes], None]


class Published(NamedTuple):
    """A message on its way."""

    subject: bytes
    reply: bytes  # empty: none
    headers: bytes
    value: bytes


class _Peer:
    """One connection of a broker, or of a program."""

    __slots__ = ("connection", "is_flushing", "left", "output", "queues", "rest", "subscriptions", "take")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.take: Callable[[bytes], None] | None = None  # set by who connects: gets what is sent
        self.rest = b""
        self.output = bytearray()
        self.is_flushing = False
        self.subscriptions: dict[bytes, tuple[bytes, ...]] = {}  # sid → the subject's tokens
        self.queues: dict[bytes, bytes] = {}  # sid → the queue, of those that have one
        self.left: dict[bytes, int] = {}  # sid → after so many more it ends

    def forget(self, sid: bytes) -> None:
        """No more of it."""
        for kept in (self.subscriptions, self.queues, self.left):
            kept.pop(sid, None)


class NatsServer:
    """See the module's rules."""

    def __init__(self, network: Network, random: Random, trace: Trace) -> None:
        self.messages = 0  # that were delivered
        self.is_losing = False  # what it says to publishers is lost
        self.published: Callable[[Published], None] = lambda _: None  # hears what programs publish
        self.answered: Callable[[bytes, bytes], None] = lambda _subject, _body: None  # … and what brokers do
        self._programs: dict[Connection, _Peer] = {}
        self._network = network
        self._random = random
        self._trace = trace
        self._peers: dict[Connection, _Peer] = {}
        self._inboxes: dict[bytes, Inbox] = {}

    def start(self) -> None:
        """Take connections."""
        self._network.listen(NAME, self._accept)

    def stop(self) -> None:
        """It is gone, with all connections and subscriptions."""
        self._network.listen(NAME, None)
        self._network.die(NAME)
        self._peers.clear()
        self._programs.clear()

    def _accept(self, connection: Connection) -> None:
        self._peers[connection] = _Peer(connection)
        connection.target_lost = lambda: self._gone(connection)

    def _gone(self, connection: Connection) -> None:
        self._peers.pop(connection, None)
        self._programs.pop(connection, None)

    def greet(self, connection: Connection, take: Callable[[bytes], None], *, is_program: bool = False) -> None:
        """The other side of a connection is ready to read."""
        peer = self._peers.get(connection)
        if peer is not None:
            peer.take = take
            if is_program:
                self._programs[connection] = peer
            self._say(peer, INFO)

    def cut(self, connection: Connection) -> None:
        """Close one connection, as one that reads too slowly."""
        self._gone(connection)
        connection.close(by_source=False)

    # Brokers, and programs

    def receive(self, connection: Connection, data: bytes) -> None:
        """Bytes of a connection."""
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
        """One message, as it came."""
        if peer.connection not in self._programs:
            self.answered(fields[1], data)
            self._to_inbox(fields[1], data)
            if self._programs and not (self.is_losing and self._random.random() < 0.5):
                self._deliver(Published(fields[1], b"", b"", data))
            return
        sizes = 2 if fields[0] == b"HPUB" else 1
        headers_end = int(fields[-2]) if sizes == 2 else 0
        reply = fields[2] if len(fields) == 3 + sizes else b""
        message = Published(fields[1], reply, data[:headers_end], data[headers_end:])
        self.published(message)
        if not self._deliver(message) and reply:
            self._deliver(Published(reply, b"", _NOBODY, b""))

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
        if len(data) > 1 and self._random.random() < 0.05:  # a read ends anywhere
            cut = 1 + int(self._random.random() * (len(data) - 1))
            first, data = data[:cut], data[cut:]
            peer.connection.send_back(lambda: take(first))
        peer.connection.send_back(lambda: take(data))

    # Publishers

    def publish(
        self, subject: bytes, value: bytes, reply: bytes, inbox: Inbox, headers: bytes = b""
    ) -> tuple[str, ...]:
        """A message of a publisher, whose answers go to `inbox` until `forget`; b"" is no responders. Who gets it."""
        self._inboxes[reply] = inbox
        receivers = self._deliver(Published(subject, reply, headers, value))
        if not receivers:
            self._to_inbox(reply, b"")
        return receivers

    def _deliver(self, message: Published) -> tuple[str, ...]:
        """To all who subscribe, and to one of each queue."""
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

    def _hand(self, peer: _Peer, sid: bytes, message: Published) -> None:
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
        """The publisher waits no longer."""
        self._inboxes.pop(reply, None)

    def _to_inbox(self, reply: bytes, body: bytes) -> None:
        if self.is_losing and self._random.random() < 0.5:
            return

        def arrive() -> None:
            if (inbox := self._inboxes.get(reply)) is not None:
                inbox(body)

        self._network.scheduler.after(self._network.delay_us(), arrive)


def matches(pattern: tuple[bytes, ...], tokens: tuple[bytes, ...]) -> bool:
    """Whether a subject is covered by a pattern, both as tokens."""
    for number, wanted in enumerate(pattern):
        if wanted == b">":
            return len(tokens) > number
        if number >= len(tokens) or (wanted != b"*" and wanted != tokens[number]):
            return False
    return len(tokens) == len(pattern)
