"""Consumers of JetStream's API, asked about over the socket: requests of any logged-in client, at a broker."""

from __future__ import annotations

import json
from random import Random

from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import Api, AskConsumersRequest, AskConsumersResponse, ConsumerOperation
from penstock.wire.bodies import decode_request_body
from tests.fuzz.parts import joined, parted
from tests.fuzz.shapes import as_msgpack, made_msgpack, maker_of
from tests.fuzz.target import Cover, Modules, Target
from tests.fuzz.targets_gateway import FuzzedBroker, made_consumer

_STEPS_MAX = 6


def consumers(modules: Modules, data: bytes) -> object:
    """Each request gets one answer, with infos or a known error; none is an internal one, and nothing stays behind."""
    broker = FuzzedBroker().start()
    broker.create("orders")
    broker.publish("orders.x", b"before", b"more", reply="r")
    broker.consumer("orders", "c", inactive_threshold=60_000_000_000)
    broker.tick(1)
    out = []
    for body in parted(data)[:_STEPS_MAX]:
        try:
            request = decode_request_body(Api.ASK_CONSUMERS, 1, body)
        except RemoteError as error:
            out.append(str(error.code))
            continue
        assert isinstance(request, AskConsumersRequest)
        caller = broker.request(request)
        for _ in range(60):
            if caller in broker.replies:
                break
            broker.tick(100)
        answer = broker.replies[caller].response
        if isinstance(answer, RemoteError):
            assert answer.code != ErrorCode.INTERNAL, answer
            out.append(str(answer.code))
            continue
        assert isinstance(answer, AskConsumersResponse)
        infos = json.loads(bytes(broker.payloads[caller]))
        is_export = request.operation in (ConsumerOperation.EXPORT, ConsumerOperation.EXPORT_ALL)
        assert all({"name", "config", "state" if is_export else "num_pending"} <= one.keys() for one in infos)
        out.append(f"{request.operation} {len(infos)}")
    assert not broker.gateway.under_way
    assert not broker.failure, broker.failure
    return " ".join(out)


def made_asked(chance: Random) -> bytes:
    """One to four requests, sound ones for the most part, about the stream and the consumer that there are."""
    parts = []
    for _ in range(1 + int(chance.random() * 4)):
        body = maker_of(AskConsumersRequest)(chance, 0.0)
        if not isinstance(body, dict) or chance.random() < 0.15:
            parts.append(made_msgpack(chance, maker_of(AskConsumersRequest)))
            continue
        body |= {"stream_id": _ORDERS, "partition": 0} if chance.random() < 0.95 else {}
        body |= {"consumer": chance.choice(("c", "c", "c", "d", "", "a.b", "é"))} if chance.random() < 0.9 else {}
        made = (ConsumerOperation.CREATE, ConsumerOperation.RESTORE)
        if body.get("operation") in made and chance.random() < 0.9:
            body["config"] = json.dumps(made_consumer(chance))
        parts.append(as_msgpack(body))
    return joined(parts)


def _orders() -> int:
    broker = FuzzedBroker().start()
    broker.create("orders")
    return int(broker.node.image.by_name("orders").stream_id)


_ORDERS = _orders()

TARGETS: tuple[Target, ...] = (
    Target(
        "consumers",
        consumers,
        made_asked,
        (Cover("penstock.jetstream.consumer_requests"),),
        pieces=(b'"filter_subjects":[', b'"deliver_subject":"a"', b"[[[[", b"\\u0000", b"9223372036854775808"),
        memory_bytes=16 << 20,
        is_slow=True,
    ),
)
