"""The gateway of one broker: takes requests to JetStream's API, and answers them on their reply subjects.

Rules: all brokers share one queue group, so each request reaches one of them. That broker answers what no leader is
needed for, and passes on what is about a stream to the broker that leads the stream; it keeps nothing of it. The
executing broker answers on its own connection to NATS. A request without a reply subject is dropped. The node is asked
through its own typed requests; its answers come back through `answered`, in a later turn.

| event                                  | method              |
|----------------------------------------|---------------------|
| requests from NATS                     | `messages_received` |
| requests that another broker passed on | `passed_on`         |
| the node has answered                  | `answered`          |
| time has passed                        | `tick`              |
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.access.handshake import Principal
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.hot.message_group import MessageGroup
from penstock.hot.scan import GROUP_BITS
from penstock.jetstream.answers import error_answer, json_answer, publish_command
from penstock.jetstream.api_call import ApiCall, ApiSubject, parse_api_subject
from penstock.jetstream.node_access import GatewayCaller, GatewayNode, Heard
from penstock.messages import PassApiCallsRequest, Request, Response
from penstock.metadata.image import StreamState
from penstock.node.step import NatsAnswers, Payload, Subscribe

GATEWAY_GROUP = (1 << GROUP_BITS) - 1
"""The lower bits of its subscriptions' ids: all requests of one read are one group. Partitions count from 1."""
QUEUE_GROUP = "penstock-api"
HOPS_MAX = 2
"""Brokers that may pass on one request: the leader may change while it is on its way."""
_CALLS = msgspec.msgpack.Decoder(list[ApiCall])

Handler = Callable[[ApiCall, ApiSubject, Now], None]


class Gateway:
    """JetStream's API at one broker."""

    def __init__(self, node: GatewayNode, *, prefixes: tuple[str, ...]) -> None:
        """`prefixes` are API prefixes with their last dot, such as `$JS.API.`."""
        self._node = node
        self._prefixes = prefixes
        self._waiting: dict[GatewayCaller, Heard] = {}  # requests to the node without an answer
        self._last_number = 0
        self._to_pass_on: dict[BrokerId, list[ApiCall]] = {}
        # by operation; of requests without a stream, and of those about a stream that is led here
        self.handlers: dict[str, Handler] = {"INFO": self._account_info}

    def start(self) -> None:
        """Subscribe to the API."""
        for number, prefix in enumerate(self._prefixes):
            sid = number << GROUP_BITS | GATEWAY_GROUP
            self._node.outbox.step.nats.append(Subscribe(sid, f"{prefix}>", QUEUE_GROUP))

    # Events

    def messages_received(self, group: MessageGroup, now: Now) -> None:
        """Take the API requests of one read of the NATS connection."""
        for row in range(len(group)):
            reply = group.reply(row) or group.early(row)
            if reply is not None:
                subject = group.subject(row).decode(errors="replace")
                self._take(ApiCall(subject, reply, group.headers(row), group.value(row) or b""), now)
        self._send_passed_on()

    def passed_on(self, raw: bytes | memoryview, now: Now) -> None:
        """Take API requests that another broker passed on. Raise RemoteError (bad_request)."""
        try:
            calls = _CALLS.decode(raw)
        except msgspec.ValidationError as error:
            raise RemoteError(ErrorCode.BAD_REQUEST, f"API calls: {error}") from None
        except msgspec.DecodeError as error:
            raise RemoteError(ErrorCode.BAD_REQUEST, f"API calls: {error}") from None
        for call in calls:
            self._take(call, now)
        self._send_passed_on()

    def answered(self, caller: GatewayCaller, response: Response | RemoteError, payload: Payload) -> None:
        """Take the node's answer to a request of `ask`."""
        if (heard := self._waiting.pop(caller, None)) is not None:
            heard(response, payload)

    def tick(self, now: Now) -> None:
        """Give up what has waited for too long."""

    # What handlers use

    def ask(self, request: Request, now: Now, heard: Heard, *, raw: bytes = b"", who: Principal | None = None) -> None:
        """Ask the node; `heard` gets its answer in a later turn."""
        self._last_number += 1
        caller = GatewayCaller(self._last_number)
        self._waiting[caller] = heard
        self._node.request(caller, request, raw, now, who)

    def answer(self, call: ApiCall, payload: bytes, headers: bytes | None = None) -> None:
        """Answer a call on its reply subject."""
        command = publish_command(call.reply, payload, headers)
        self._node.outbox.step.publish.append(NatsAnswers(GATEWAY_GROUP, command, is_single=True))

    # Inside

    def _take(self, call: ApiCall, now: Now) -> None:
        subject = parse_api_subject(call.subject, self._prefixes)
        handler = None if subject is None else self.handlers.get(subject.operation)
        if subject is None or handler is None:
            return  # as a nats-server without that operation: silence
        stream = self._stream(subject.stream)
        if stream is None or (leader := stream.partitions[0].leader) == self._node.broker_id:
            handler(call, subject, now)
        elif leader is not None and call.hops < HOPS_MAX:
            self._to_pass_on.setdefault(leader, []).append(msgspec.structs.replace(call, hops=call.hops + 1))
        else:
            self.answer(call, error_answer(subject.operation, 503, 10008, "the stream has no leader at the moment"))

    def _account_info(self, call: ApiCall, subject: ApiSubject, now: Now) -> None:
        streams = sum(not state.config.is_internal for state in self._node.image.streams.values())
        names = ("max_memory", "max_storage", "max_streams", "max_consumers", "max_ack_pending")
        limits = dict.fromkeys((*names, "memory_max_stream_bytes", "storage_max_stream_bytes"), -1)
        limits["max_bytes_required"] = False
        api = {"level": 1, "total": 0, "errors": 0}
        fields = {"memory": 0, "storage": 0, "streams": streams, "consumers": 0, "limits": limits, "api": api}
        self.answer(call, json_answer(subject.operation, **fields))

    def _stream(self, name: str) -> StreamState | None:
        image = self._node.image
        if not name or name.startswith("__") or name not in image.names:
            return None
        return image.by_name(name)

    def _send_passed_on(self) -> None:
        for leader, calls in self._to_pass_on.items():
            self._node.send_to_peer(leader, PassApiCallsRequest(), msgspec.msgpack.encode(calls))
        self._to_pass_on.clear()
