"""A model of nats-server: subscriptions, barriers, publishers with reply subjects, connections that break.

Rules: what it says and hears are the bytes of the protocol, so that the real parser and the real acks are in play. It
does a connection's lines in order, delivers to each connection in order, keeps nothing for those who are not there, and
delivers nothing twice. A message on a subject that nobody subscribes gets "no responders" on its reply subject.

| line of a broker           | what happens                                              |
|----------------------------|-----------------------------------------------------------|
| CONNECT …                  | nothing                                                   |
| SUB subject [queue] sid    | what is published from now on is delivered to it          |
| UNSUB sid                  | no more                                                   |
| PING                       | PONG                                                      |
| PUB subject [reply] n      | to the inbox of a publisher                               |
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.sim.network import Connection, Network
from penstock.sim.trace import Trace

NAME = "nats"
INFO = b'INFO {"server_id":"S","version":"2.10.0","headers":true,"max_payload":8388608}\r\n'
Inbox = Callable[[bytes], None]


class _Peer:
    """One connection of a broker."""

    __slots__ = ("connection", "is_flushing", "output", "rest", "subscriptions", "take")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.take: Callable[[bytes], None] | None = None  # set by who connects: gets what is sent
        self.rest = b""
        self.output = bytearray()
        self.is_flushing = False
        self.subscriptions: dict[bytes, tuple[bytes, ...]] = {}  # sid → the subject's tokens


class NatsServer:
    """See the module's rules."""

    def __init__(self, network: Network, random: Random, trace: Trace) -> None:
        self.messages = 0  # that were delivered
        self.is_losing = False  # what it says to publishers is lost
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

    def _accept(self, connection: Connection) -> None:
        self._peers[connection] = _Peer(connection)
        connection.target_lost = lambda: self._gone(connection)

    def _gone(self, connection: Connection) -> None:
        self._peers.pop(connection, None)

    def greet(self, connection: Connection, take: Callable[[bytes], None]) -> None:
        """The other side of a connection is ready to read."""
        peer = self._peers.get(connection)
        if peer is not None:
            peer.take = take
            self._say(peer, INFO)

    def cut(self, connection: Connection) -> None:
        """Close one connection, as one that reads too slowly."""
        self._gone(connection)
        connection.close(by_source=False)

    # Brokers

    def receive(self, connection: Connection, data: bytes) -> None:
        """Bytes of a broker."""
        peer = self._peers.get(connection)
        if peer is None:
            return
        data = peer.rest + data
        position = 0
        while (line_end := data.find(b"\r\n", position)) >= 0:
            fields = data[position:line_end].split()
            after = line_end + 2
            if fields[0] == b"PUB":
                payload_end = after + int(fields[-1])
                if payload_end + 2 > len(data):
                    break
                self._to_inbox(fields[1], data[after:payload_end])
                position = payload_end + 2
                continue
            position = after
            if fields[0] == b"PING":
                self._say(peer, b"PONG\r\n")
            elif fields[0] == b"SUB":
                peer.subscriptions[fields[-1]] = tuple(fields[1].split(b"."))
            elif fields[0] == b"UNSUB":
                peer.subscriptions.pop(fields[1], None)
            else:
                assert fields[0] in (b"CONNECT", b"PONG"), fields
        peer.rest = data[position:]

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
        tokens = tuple(subject.split(b"."))
        receivers: list[str] = []
        self._inboxes[reply] = inbox
        for peer in self._peers.values():
            for sid, pattern in peer.subscriptions.items():
                if matches(pattern, tokens):
                    receivers.append(peer.connection.source)
                    self.messages += 1
                    if headers:
                        sizes = b"%d %d" % (len(headers), len(headers) + len(value))
                        frame = b"HMSG %b %b %b %b\r\n%b%b\r\n" % (subject, sid, reply, sizes, headers, value)
                    else:
                        frame = b"MSG %b %b %b %d\r\n%b\r\n" % (subject, sid, reply, len(value), value)
                    self._say(peer, frame)
        if not receivers:
            self._to_inbox(reply, b"")
        return tuple(receivers)

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
