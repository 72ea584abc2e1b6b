"""What a JetStream consumer delivers and this broker refuses: the operator reads of it, once of each kind."""

from __future__ import annotations

from penstock.messages import AlterStreamRequest, AlterStreamResponse
from tests.unit.node.harness import Broker

REPLY = "$JS.ACK.ORDERS.bridge.1.42.7.1700000000123456789.5"


def said(broker: Broker) -> list[str]:
    return [notice for notice in broker.notices if "JetStream" in notice]


def test_each_kind_of_refusal_is_told_once_until_the_config_changes() -> None:
    broker = Broker().start()
    broker.create("orders", max_message_bytes=1_000)
    for size in (1_001, 1_001, 1_002):
        broker.publish("orders.a", b"x" * size, reply=REPLY)
    text = "stream 'orders': what a JetStream consumer delivers is not stored, and is delivered again: "
    first = f"{text}message size exceeds maximum allowed: 1001 bytes, the stream takes 1000"
    assert said(broker) == [first]
    for _ in range(2):
        broker.publish("orders.a", b"v", reply=REPLY, headers=b"NATS/1.0\r\nNats-TTL: 5\r\n\r\n")
    assert said(broker) == [first, f"{text}per-message TTL is disabled"]
    broker.ask(AlterStreamRequest(name="orders", changes={"max_message_bytes": 1_001}), AlterStreamResponse)
    for _ in range(2):
        broker.publish("orders.a", b"x" * 1_002, reply=REPLY)
    assert said(broker)[2:] == [f"{text}message size exceeds maximum allowed: 1002 bytes, the stream takes 1001"]
    assert broker.acks == []
    assert broker.stream("orders").partitions[0].dropped == {"refused": 7}
