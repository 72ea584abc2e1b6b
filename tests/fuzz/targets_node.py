"""A whole broker without sockets, asked anything: requests of clients and brokers, in any order, with any raw part."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import APIS, AuthenticateRequest, PassApiCallsRequest, Request
from penstock.wire.bodies import decode_request_body
from tests.fuzz.messages_made import harmed, made_message, sealed
from tests.fuzz.parts import joined, parted
from tests.fuzz.shapes import as_msgpack, made_msgpack, maker_of
from tests.fuzz.target import Cover, Modules, Target
from tests.fuzz.targets_raft import made_raft_message
from tests.unit.node.harness import Broker

_NOT_FOR_NODES = (AuthenticateRequest, PassApiCallsRequest)  # they end at a connection, and at the gateway
_SPECS = tuple(spec for spec in APIS.values() if spec.request not in _NOT_FOR_NODES)
_OF_PEERS = tuple(spec for spec in _SPECS if spec.api >= 64)
_STEPS_MAX = 4
_HEAD = struct.Struct("<BBH")
_OWN = ("stream_id", "broker_id", "incarnation", "leader_epoch", "partition")


def node(modules: Modules, data: bytes) -> object:
    """Every request is answered, or waits; and afterwards the broker stores and reads as before."""
    broker = Broker().start()
    broker.create("orders")
    broker.publish("orders.x", b"before", reply="r")
    out = []
    for part in parted(data)[:_STEPS_MAX]:
        if len(part) < _HEAD.size:
            continue
        api, version, size = _HEAD.unpack_from(part)
        body, raw = part[_HEAD.size : _HEAD.size + size], part[_HEAD.size + size :]
        try:
            request: Request = decode_request_body(api, 1 + version % 3, body)
        except RemoteError as error:
            out.append(f"{api} {error.code}")
            continue
        if isinstance(request, _NOT_FOR_NODES):
            continue
        caller = broker.request(request, raw)
        reply = broker.replies.get(caller)
        answer = None if reply is None else reply.response
        out.append(f"{api} {answer.code if isinstance(answer, RemoteError) else type(answer).__name__}")
    broker.tick(1_000)
    broker.settle()
    _check(broker)
    return " ".join(out)


def _check(broker: Broker) -> None:
    """What was acked is there, unless a request was to delete it or to take nothing more."""
    if "took its place" in broker.failure:
        return  # whoever may speak as a broker may say that it is this one
    assert not broker.failure, broker.failure
    partitions = [one for one in broker.node._partitions.values() if one.stream.name == "orders"]
    if not partitions:
        return
    broker.publish("orders.x", b"after", reply="again")
    broker.settle()
    acked = [one for one in broker.acks if one.reply == "again"]
    assert len(acked) <= len(partitions)


def made_requests(chance: Random) -> bytes:
    """One to three requests, sound ones for the most part, about the stream that there is."""
    parts = []
    for _ in range(1 + int(chance.random() * 3)):
        spec = _SPECS[int(chance.random() * len(_SPECS))] if chance.random() < 0.5 else chance.choice(_OF_PEERS)
        body = maker_of(spec.request)(chance, 0.0) if chance.random() < 0.8 else None
        raw = b""
        if isinstance(body, dict):
            _aim(chance, body)
            packed = as_msgpack(body)
        else:
            packed = made_msgpack(chance, maker_of(spec.request))
        name = spec.api.name
        if name == "RAFT":
            raw = made_raft_message(chance)
        elif name == "FORWARD":
            other = _SPECS[int(chance.random() * len(_SPECS))]
            packed = as_msgpack({"api": int(other.api), "version": 1})
            raw = made_msgpack(chance, maker_of(other.request))
        elif name in ("APPEND", "APPEND_ONCE", "STAGE") or chance.random() < 0.05:
            raw = made_message(chance, base_offset=0)
            raw = harmed(chance, raw) if chance.random() < 0.3 else raw
        parts.append(_HEAD.pack(int(spec.api), spec.version_max - 1, len(packed)) + packed + raw)
    return joined(parts)


def _aim(chance: Random, body: dict[Any, Any]) -> None:
    """At what there is: stream 2, partition 0, broker 1."""
    for name, value in (
        ("cluster_id", _CLUSTER_ID),
        ("data_dir_id", chance.choice(("disk", "other"))),
        ("address", "here:1"),
        ("stream_id", _STREAM_ID),
        ("partition", 0),
        ("broker_id", chance.choice((1, 1, 2))),
        ("incarnation", _INCARNATION),
        ("leader_epoch", 1),
        ("name", "orders"),
    ):
        if name in body and chance.random() < 0.8:
            body[name] = value


def _there_is() -> tuple[int, str, int]:
    broker = Broker().start()
    broker.create("orders")
    cluster = broker.node._cluster
    return broker.stream_id("orders"), cluster.cluster_id, cluster.image.brokers[BrokerId(1)].incarnation


_STREAM_ID, _CLUSTER_ID, _INCARNATION = _there_is()


def _sealed(data: bytes) -> bytes:
    """Batches behind requests with right checksums."""
    parts = parted(data)
    for number, part in enumerate(parts):
        if len(part) > _HEAD.size:
            begin = _HEAD.size + _HEAD.unpack_from(part)[2]
            parts[number] = part[:begin] + sealed(part[begin:])
    return joined(parts)


TARGETS: tuple[Target, ...] = (
    Target(
        "node",
        node,
        made_requests,
        (
            Cover(
                "penstock.node.control.peer_requests",
                ("PeerRequests",),
                {"PeerRequests._forwarded.done": "of another leader while it is asked: the tests of clusters do that"},
            ),
        ),
        seal=_sealed,
        memory_bytes=64 * 1024 * 1024,
        is_slow=True,
    ),
)
