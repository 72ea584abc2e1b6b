"""A broker with JetStream's API, without sockets: requests in, answers and deliveries out."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any, NamedTuple

from penstock.hot.scan import GROUP_BITS
from penstock.jetstream.gateway import GATEWAY_GROUP
from tests.groups import group_of
from tests.unit.jetstream.api_broker import ApiBroker

_ACK = re.compile(r"\$JS\.ACK\.([^.]+)\.([^.]+)\.(\d+)\.(\d+)\.(\d+)\.(\d+)\.(\d+)@(.+)")


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
    stored_at_ns: int = 0
    deliveries: int = 1

    @property
    def status(self) -> str:
        """The first line of a status message, behind the version."""
        return self.headers.partition(b"\r\n")[0].decode().removeprefix("NATS/1.0").strip()


class ReaderBroker(ApiBroker):
    """A broker that serves the API, and its subscribers."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._numbers = count(1)

    def turn(self) -> None:
        """Carry out all that is decided, the turns of readers too."""
        super().turn()
        while self.gateway.has_next_turn or self.leaf.is_due:
            self.gateway.turn(self.clock.now)
            if self.leaf.is_due:
                self.interest_known()
            super().turn()

    def tick_node(self) -> None:
        super().tick_node()
        self.gateway.tick(self.clock.now)

    def send(self, operation: str, payload: bytes | str | dict[str, Any] = b"", reply: str = "") -> str:
        """Send an API request; the inbox of the answer."""
        if isinstance(payload, dict):
            payload = json.dumps(payload)
        data = payload.encode() if isinstance(payload, str) else payload
        inbox = reply or f"_INBOX.{next(self._numbers)}"
        self.deliver([(f"$JS.API.{operation}".encode(), inbox.encode(), None, data)])
        return inbox

    def api(self, operation: str, payload: bytes | str | dict[str, Any] = b"") -> dict[str, Any]:
        """The answer to an API request."""
        inbox = self.send(operation, payload)
        for _ in range(100):  # what waits for a log asks again
            if inbox in self.answers or not self.gateway.under_way:
                break
            self.tick(50)
        found: dict[str, Any] = json.loads(self.answers[inbox])
        return found

    def consumer(self, stream: str, name: str = "", **config: Any) -> dict[str, Any]:
        """Create a consumer; its info, or its error."""
        config |= {"name": name} if name else {}
        suffix = f".{name}" if name else ""
        return self.api(f"CONSUMER.CREATE.{stream}{suffix}", {"stream_name": stream, "config": config})

    def durable(self, stream: str, name: str, **config: Any) -> dict[str, Any]:
        """Create a durable consumer with explicit acks; its info, or its error."""
        return self.consumer(stream, name, **{"durable_name": name, "ack_policy": "explicit", **config})

    def pulled(self, stream: str, name: str, batch: int = 1, **more: Any) -> list[Delivered]:
        """Ask for messages, without waiting for those to come; what was delivered to the request."""
        request = json.dumps({"batch": batch, "no_wait": True, **more})
        return self.delivered(self.send(f"CONSUMER.MSG.NEXT.{stream}.{name}", request))

    def ack(self, message: Delivered, payload: bytes = b"", reply: str = "") -> None:
        """A client acks a message, perhaps with a reply subject."""
        self.deliver([(message.reply.encode(), reply.encode() or None, None, payload)])

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
        kind, *fields = frames[position:end].decode(errors="replace").split(" ")
        assert kind in ("LMSG", "HMSG"), frames[position:end]
        size, header_size = int(fields.pop()), int(fields.pop()) if kind == "HMSG" else 0
        inbox, *more = fields
        group = ""
        if more[:1] == ["+"]:
            _, reply, *groups = more
            group = " ".join(groups)
        elif more[:1] == ["|"]:
            reply, group = "", " ".join(more[1:])
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
        sequences = int(ack[4]), int(ack[5]), int(ack[7]), int(ack[6]), int(ack[3])
        found.append(Delivered(inbox, ack[8], reply.partition("@")[0], headers, value, group, *sequences))
    return found
