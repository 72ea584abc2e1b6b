"""A broker with JetStream's API, without sockets: requests in, answers and deliveries out."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any, NamedTuple

from penstock.hot.scan import GROUP_BITS
from penstock.jetstream.api import jetstream_gateway
from penstock.jetstream.gateway import GATEWAY_GROUP
from penstock.jetstream.node_access import GatewayCaller
from penstock.node.step import Reply, Step
from tests.groups import group_of
from tests.unit.node.harness import Broker

_ANSWER = re.compile(rb"(?:PUB ([^ \r\n]+) (\d+)|HPUB ([^ \r\n]+) (\d+) (\d+))\r\n")
_ACK = re.compile(r"\$JS\.ACK\.([^.]+)\.([^.]+)\.1\.(\d+)\.(\d+)\.(\d+)\.(\d+)@(.+)")


class Delivered(NamedTuple):
    """A message as its subscriber gets it: a status message has no sequence."""

    inbox: str
    subject: str  # that is shown
    reply: str
    headers: bytes
    value: bytes
    group: str = ""
    stream_seq: int = 0
    consumer_seq: int = 0
    pending: int = 0
    time_ns: int = 0

    @property
    def status(self) -> str:
        """The first line of a status message, behind the version."""
        return self.headers.partition(b"\r\n")[0].decode().removeprefix("NATS/1.0").strip()


class FakeLeaf:
    """Takes deliveries, and knows who is interested: everybody, but for `deserted`."""

    def __init__(self) -> None:
        self.is_up = True
        self.is_writable = True
        self.deserted: set[bytes] = set()
        self.watched: set[bytes] = set()
        self.frames: list[bytes] = []

    def has_interest(self, subject: bytes, queue: bytes = b"") -> bool | None:
        return subject not in self.deserted

    def watch(self, subject: bytes) -> None:
        self.watched.add(subject)

    def unwatch(self, subject: bytes) -> None:
        self.watched.discard(subject)

    def mistake(self, subject: str, size_bytes: int = 0) -> str | None:
        return "it is not allowed" if subject.startswith("forbidden.") else None

    def deliver(self, frames: bytes | bytearray) -> None:
        assert self.is_up
        self.frames.append(bytes(frames))


class ApiBroker(Broker):
    """A broker that serves the API."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.leaf = FakeLeaf()
        self.answers: dict[str, bytes] = {}
        self._numbers = count(1)
        names = count(1)
        self.gateway = jetstream_gateway(
            self.node, prefixes=("$JS.API.",), deliveries=self.leaf, new_name=lambda: f"reader{next(names)}"
        )

    def do(self, step: Step) -> None:
        """One step; the gateway's answers aside."""
        own = [one for one in step.publish if one.sid == GATEWAY_GROUP]
        for one in own:
            self._answered(one.commands)
        step.publish = [one for one in step.publish if one.sid != GATEWAY_GROUP]
        super().do(step)

    def _answered(self, command: bytes) -> None:
        found = _ANSWER.match(command)
        assert found is not None, command
        self.answers[(found[1] or found[3]).decode()] = command[found.end() : -2]

    def _reply(self, reply: Reply) -> None:
        if isinstance(reply.caller, GatewayCaller):
            self.gateway.answered(reply.caller, reply.response, reply.payload)
        else:
            super()._reply(reply)

    def turn(self) -> None:
        """Carry out all that is decided, the turns of readers too."""
        super().turn()
        while self.gateway.has_next_turn:
            self.gateway.turn(self.clock.now)
            super().turn()

    def tick_node(self) -> None:
        super().tick_node()
        self.gateway.tick(self.clock.now)

    def call(self, operation: str, payload: bytes | str | dict[str, Any] = b"", reply: str = "") -> str:
        """Send an API request; the inbox of the answer."""
        if isinstance(payload, dict):
            payload = json.dumps(payload)
        data = payload.encode() if isinstance(payload, str) else payload
        inbox = reply or f"_INBOX.{next(self._numbers)}"
        group = group_of([(f"$JS.API.{operation}".encode(), inbox.encode(), None, data)])
        self.gateway.messages_received(group, self.clock.now)
        self.turn()
        return inbox

    def api(self, operation: str, payload: bytes | str | dict[str, Any] = b"") -> dict[str, Any]:
        """The answer to an API request."""
        found: dict[str, Any] = json.loads(self.answers[self.call(operation, payload)])
        return found

    def consumer(self, stream: str, name: str = "", **config: Any) -> dict[str, Any]:
        """Create a consumer; its info, or its error."""
        config |= {"name": name} if name else {}
        suffix = f".{name}" if name else ""
        return self.api(f"CONSUMER.CREATE.{stream}{suffix}", {"stream_name": stream, "config": config})

    def hear(self, *args: Any) -> None:  # the harness's name for the next answer of NATS
        super().hear(*args)

    def flow(self, reply: str) -> None:
        """A client answers a flow-control message."""
        self.gateway.messages_received(group_of([(reply.encode(), None, None, b"")]), self.clock.now)
        self.turn()

    def delivered(self, inbox: str | None = None) -> list[Delivered]:
        """Take what was delivered, to one inbox or to all."""
        found = parsed(b"".join(self.leaf.frames))
        self.leaf.frames.clear()
        return [one for one in found if inbox in (None, one.inbox)]

    @property
    def flow_subscriptions(self) -> list[str]:
        """Subscriptions to the answers of flow-control messages."""
        low = (1 << GROUP_BITS) - 1
        return [subject for sid, subject in self.nats.wanted.items() if sid & low == GATEWAY_GROUP]


def parsed(frames: bytes) -> list[Delivered]:
    """Return the messages of LMSG and HMSG frames, as nats-server reads them."""
    found = []
    position = 0
    while position < len(frames):
        end = frames.index(b"\r\n", position)
        kind, *fields = frames[position:end].decode().split(" ")
        assert kind in ("LMSG", "HMSG"), frames[position:end]
        size, header_size = int(fields.pop()), int(fields.pop()) if kind == "HMSG" else 0
        inbox, *more = fields
        group = ""
        if more[:1] == ["+"]:
            _, reply, group = more
        elif more[:1] == ["|"]:
            reply, (_, group) = "", more
        else:
            reply = more[0] if more else ""
        begin = end + 2
        headers, value = frames[begin : begin + header_size], frames[begin + header_size : begin + size]
        assert frames[begin + size : begin + size + 2] == b"\r\n"
        position = begin + size + 2
        ack = _ACK.fullmatch(reply)
        if ack is None:
            found.append(Delivered(inbox, inbox, reply, headers, value, group))
            continue
        sequences = int(ack[3]), int(ack[4]), int(ack[6]), int(ack[5])
        found.append(Delivered(inbox, ack[7], reply.partition("@")[0], headers, value, group, *sequences))
    return found
