"""A model of nats-server: subscriptions, barriers, publishers with reply subjects, connections that break.

Rules: Input and output are protocol bytes, so that the real parser and the real acks are tested. The server processes
the lines of a connection in order and delivers to each connection in order. It stores nothing for disconnected clients
and delivers nothing twice. A message on a subject without subscribers gets "no responders" on its reply subject.

A publisher has an inbox and no connection (`publish`), or is a program with a client of its own (`greet`). A client of
JetStream's API has no connection either: it subscribes inboxes (`subscribe`), and sends requests to them (`request`).
A leaf connection (`greet_leaf`) is told of all these inboxes, and delivers to them; what comes to one inbox stays in
order. Inboxes may have a queue group: one of its members gets a message.

| line                     | effect                                                                       |
|--------------------------|------------------------------------------------------------------------------|
| CONNECT …                | none                                                                         |
| SUB subject [queue] sid  | later messages are delivered to it, or to another member of its queue group  |
| UNSUB sid [count]        | ends the subscription, at once or after so many messages                     |
| PING                     | PONG                                                                         |
| PUB subject [reply] n    | from a broker: to an inbox, and requests to the subscribers;                 |
|                          | from a program: to the subscribers                                           |
| HPUB subject [reply] h n | the same, with headers                                                       |
| LMSG subject … n         | from a leaf: to the inbox, with the subject behind `@` of the reply subject  |
| LMSG subject + … queue n | the same, to a member of the queue group; `|`: without a reply subject       |
| HMSG subject … h n       | the same, with headers                                                       |
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
LEAF_INFO = b'INFO {"server_id":"S","version":"2.10.0","headers":true,"max_payload":8388608,"nonce":"n"}\r\n'
_LOOPS = b"LS+ $LDS.sim\r\n"  # nats-server tells every leaf of the subject by which it detects loops
_OF_BROKERS = b"_INBOX.penstock."  # inboxes of brokers' own requests
_NOBODY = b"NATS/1.0 503\r\n\r\n"
Inbox = Callable[[bytes], None]


class PublishedMessage(NamedTuple):
    """A message in transit."""

    subject: bytes
    reply: bytes  # empty: none
    headers: bytes
    value: bytes
    decided_us: int = 0  # when a broker's leaf connection was given it to deliver


Received = Callable[[PublishedMessage], None]


class _Subscriber:
    """An inbox of a client without a connection."""

    __slots__ = ("arrives_us", "take")

    def __init__(self, take: Received) -> None:
        self.take = take
        self.arrives_us = 0  # when the last message arrives


class _Peer:
    """One connection of a broker or a program."""

    __slots__ = ("connection", "is_flushing", "is_leaf", "left", "output", "queues", "rest", "subscriptions", "take")

    def __init__(self, connection: SimConnection) -> None:
        self.connection = connection
        self.take: Callable[[bytes], None] | None = None  # set by the connecting side: receives the output
        self.is_leaf = False
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
        self.is_losing = False  # drop half of the answers to publishers, and of what comes to inboxes
        self.lost = 0  # messages to inboxes that were dropped
        self.published: Callable[[PublishedMessage], None] = lambda _: None  # called with what programs publish
        self.answered: Callable[[bytes, bytes], None] = lambda _subject, _body: None  # called with what brokers publish
        self._programs: dict[SimConnection, _Peer] = {}
        self._network = network
        self._random = random
        self._trace = trace
        self._peers: dict[SimConnection, _Peer] = {}
        self._inboxes: dict[bytes, Inbox] = {}
        self._subscribers: dict[bytes, _Subscriber] = {}
        self._members: dict[tuple[bytes, bytes], list[_Subscriber]] = {}  # inbox and queue group → its members

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

    def greet_leaf(self, connection: SimConnection, take: Callable[[bytes], None]) -> None:
        """The connecting side of a leaf connection is ready to read."""
        peer = self._peers.get(connection)
        if peer is not None:
            peer.take, peer.is_leaf = take, True
            self._say(peer, LEAF_INFO)

    def leaves(self) -> list[SimConnection]:
        """Return the leaf connections."""
        return [connection for connection, peer in self._peers.items() if peer.is_leaf]

    def cut(self, connection: SimConnection) -> None:
        """Close one connection, as nats-server does with a slow consumer."""
        self._gone(connection)
        connection.close(by_source=False)

    # Brokers and programs

    def receive(self, connection: SimConnection, data: bytes, decided_us: int = 0) -> None:
        """Take bytes from a connection; of a leaf with the time at which they were decided."""
        peer = self._peers.get(connection)
        if peer is None:
            return
        data = peer.rest + data
        position = 0
        while (line_end := data.find(b"\r\n", position)) >= 0:
            fields = data[position:line_end].split()
            after = line_end + 2
            if fields[0] in (b"PUB", b"HPUB", b"LMSG", b"HMSG"):
                payload_end = after + int(fields[-1])
                if payload_end + 2 > len(data):
                    break
                self._taken(peer, fields, data[after:payload_end], decided_us)
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
        elif fields[0] == b"CONNECT" and peer.is_leaf:
            interest = [b"LS+ %b\r\n" % inbox for inbox in self._subscribers]
            interest += [b"LS+ %b %b %d\r\n" % (*group, len(members)) for group, members in self._members.items()]
            self._say(peer, _LOOPS + b"".join(interest))
        else:
            assert fields[0] in (b"CONNECT", b"PONG"), fields

    def _taken(self, peer: _Peer, fields: list[bytes], data: bytes, decided_us: int) -> None:
        """Route one published message."""
        if peer.is_leaf:
            self._delivered(fields, data, decided_us)
            return
        sizes = 2 if fields[0] == b"HPUB" else 1
        headers_end = int(fields[-2]) if sizes == 2 else 0
        reply = fields[2] if len(fields) == 3 + sizes else b""
        message = PublishedMessage(fields[1], reply, data[:headers_end], data[headers_end:])
        if peer.connection not in self._programs:
            if self._is_of_the_api(message):
                return
            self.answered(fields[1], data)
            self._to_inbox(fields[1], data)
            if self._programs and not (self.is_losing and self._random.random() < 0.5):
                self._deliver(PublishedMessage(fields[1], b"", b"", data))
            return
        self.published(message)
        self._ask(message)

    def _ask(self, message: PublishedMessage) -> None:
        """Deliver a message; without a subscriber that is told on its reply subject."""
        if self._deliver(message) or not message.reply:
            return
        if message.reply in self._subscribers:
            self._to_subscriber(PublishedMessage(message.reply, b"", _NOBODY, b""), message.reply)
        else:
            self._deliver(PublishedMessage(message.reply, b"", _NOBODY, b""))

    def _is_of_the_api(self, message: PublishedMessage) -> bool:
        """Route what a broker publishes as JetStream's API: an answer, a request, the answer to such a request."""
        if message.subject in self._subscribers:
            self._to_subscriber(message, message.subject)
        elif message.reply or message.subject.startswith(_OF_BROKERS):
            self._ask(message)
        else:
            return False
        return True

    def _delivered(self, fields: list[bytes], data: bytes, decided_us: int) -> None:
        """Route what a leaf delivers, to its inbox or to one member of a queue group."""
        sizes = 2 if fields[0] == b"HMSG" else 1
        headers_end = int(fields[-2]) if sizes == 2 else 0
        inbox, queue, words = fields[1], b"", fields[2:-sizes]
        if words and words[0] in (b"+", b"|"):
            queue, words = words[-1], words[1:-1]
        reply, _, shown = (words[0] if words else b"").partition(b"@")
        message = PublishedMessage(shown or inbox, reply, data[:headers_end], data[headers_end:], decided_us)
        if queue and (members := self._members.get((inbox, queue))):
            one = members[int(self._random.random() * len(members))]
            self._to_one(message, one, lambda: one in self._members.get((inbox, queue), ()))
        elif not queue and inbox in self._subscribers:
            self._to_subscriber(message, inbox)

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

    # Clients of JetStream's API

    def subscribe(self, inbox: bytes, take: Received) -> None:
        """Deliver what comes to an inbox to `take`; leaf connections are told of it."""
        self._subscribers[inbox] = _Subscriber(take)
        self._tell_leaves(b"LS+ %b\r\n" % inbox)

    def unsubscribe(self, inbox: bytes) -> None:
        """End a subscription; unknown inboxes are ignored."""
        if self._subscribers.pop(inbox, None) is not None:
            self._tell_leaves(b"LS- %b\r\n" % inbox)

    def join(self, inbox: bytes, queue: bytes, take: Received) -> Callable[[], None]:
        """Subscribe an inbox as a member of a queue group; return what ends that."""
        member = _Subscriber(take)
        members = self._members.setdefault((inbox, queue), [])
        members.append(member)
        self._tell_leaves(b"LS+ %b %b %d\r\n" % (inbox, queue, len(members)))

        def leave() -> None:
            if member not in members:
                return
            members.remove(member)
            if members:
                self._tell_leaves(b"LS+ %b %b %d\r\n" % (inbox, queue, len(members)))
            else:
                del self._members[inbox, queue]
                self._tell_leaves(b"LS- %b %b\r\n" % (inbox, queue))

        return leave

    def request(self, message: PublishedMessage) -> None:
        """Publish a client's request to JetStream's API, or its answer to a flow-control message."""
        self._ask(message)

    def _tell_leaves(self, line: bytes) -> None:
        for peer in self._peers.values():
            if peer.is_leaf:
                self._say(peer, line)

    def _to_subscriber(self, message: PublishedMessage, inbox: bytes) -> None:
        subscriber = self._subscribers[inbox]
        self._to_one(message, subscriber, lambda: self._subscribers.get(inbox) is subscriber)

    def _to_one(self, message: PublishedMessage, subscriber: _Subscriber, is_there: Callable[[], bool]) -> None:
        if self.is_losing and self._random.random() < 0.5:
            self.lost += 1
            return

        def arrive() -> None:
            if is_there():
                subscriber.take(message)

        scheduler = self._network.scheduler
        subscriber.arrives_us = max(subscriber.arrives_us, scheduler.now_us + self._network.delay_us())
        scheduler.at(subscriber.arrives_us, arrive)

    # Delivery

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
        subject, reply, headers, value, _ = message
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
