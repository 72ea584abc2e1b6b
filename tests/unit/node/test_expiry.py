"""Messages with a time to live, as the node has them come and go."""

from __future__ import annotations

from penstock.base.config import Intake
from penstock.base.errors import ErrorCode
from penstock.batch.header import MAY_EXPIRE, MAY_HOLD_IDS
from penstock.messages import AlterStreamRequest, AlterStreamResponse, AppendRequest, SetIntakeRequest
from tests.unit.node.harness import Broker, batch_of

CONFIG = {"allow_message_ttl": True, "segment_age_ms": 60_000, "dedup_window_ms": None}


def block(*lines: str) -> bytes:
    return ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


def started(**config: object) -> Broker:
    broker = Broker().start()
    broker.create("orders", **{**CONFIG, **config})
    return broker


def publish(broker: Broker, value: bytes, *lines: str, reply: str | None = "r") -> None:
    broker.publish("orders.a", value, reply=reply, headers=block(*lines) if lines else None)


def go_on(broker: Broker, ms: int) -> None:
    for _ in range(0, ms, 1_000):
        broker.tick(1_000)


def flags(broker: Broker) -> list[int]:
    partition = next(one for one in broker.node._partitions.values() if one.stream.name == "orders")
    view = partition.log.view()
    return [header.flags for header, _ in view.batches(view.log_start, view.log_end)]


def test_what_is_refused() -> None:
    broker = started(allow_message_ttl=False)
    publish(broker, b"no", "Nats-TTL: 5s", reply="disabled")
    publish(broker, b"no", "Nats-TTL: soon", reply="invalid")
    assert [(ack.reply, ack.err_code) for ack in broker.acks] == [("disabled", 10166), ("invalid", 10165)]
    broker.ask(AlterStreamRequest(name="orders", changes={"allow_message_ttl": True}), AlterStreamResponse)
    publish(broker, b"yes", "Nats-TTL: 5s", reply="allowed")
    publish(broker, b"no", "Nats-TTL: 0", reply="short")
    assert [(ack.reply, ack.err_code) for ack in broker.acks[2:]] == [("allowed", 0), ("short", 10165)]
    assert broker.values("orders") == [b"yes"]


def test_over_the_socket_the_whole_batch_is_refused() -> None:
    broker = started(allow_message_ttl=False)
    request = AppendRequest(stream_id=broker.stream_id("orders"))

    def batch(*headers: bytes | None) -> bytes:
        return bytes(batch_of([("orders.a", None, b"v", one) for one in headers]))

    refused = {"Nats-TTL: 5": "does not allow", "Nats-TTL: never": "does not allow", "Nats-TTL: 5x": "seconds"}
    refused |= {
        "Nats-Rollup: all": "allow_rollup",
        "Nats-Rollup: Sub": "allow_rollup",
        "Nats-Rollup: x": "neither",
    }
    for line, text in refused.items():
        refusal = broker.refusal(request, batch(None, block(line)))
        assert refusal.code == ErrorCode.BAD_REQUEST
        assert text in refusal.message
    broker.ask(AlterStreamRequest(name="orders", changes={"allow_message_ttl": True}), AlterStreamResponse)
    both = block("Nats-TTL: 1h", "Nats-Msg-Id: x")
    for headers in ((None,), (None, block("Nats-TTL: 5")), (both,), (block("A: 1"),)):
        caller = broker.request(request, batch(*headers))
        assert caller in broker.replies
    assert flags(broker) == [0, MAY_EXPIRE, MAY_EXPIRE | MAY_HOLD_IDS, 0]
    go_on(broker, 70_000)
    assert len(broker.read("orders")) == 4


def test_who_expects_the_last_of_a_subject_is_told_of_what_is_left() -> None:
    broker = started()
    broker.publish("orders.b", b"kept", reply="r")
    publish(broker, b"gone", "Nats-TTL: 5s")
    broker.publish("orders.b", b"kept", reply="r")
    publish(broker, b"no", "Nats-Expected-Last-Subject-Sequence: 0", reply="wrong")
    go_on(broker, 70_000)
    assert broker.values("orders") == [b"kept", b"kept"]
    publish(broker, b"yes", "Nats-Expected-Last-Subject-Sequence: 0", reply="right")
    broker.settle()
    assert [(ack.reply, ack.err_code) for ack in broker.acks if ack.reply != "r"] == [("wrong", 10071), ("right", 0)]


def test_a_sealed_stream_keeps_all() -> None:
    broker = started()
    publish(broker, b"stays", "Nats-TTL: 5s")
    publish(broker, b"kept")
    broker.request(SetIntakeRequest(name="orders", intake=Intake.SEALED))
    go_on(broker, 70_000)
    assert broker.values("orders") == [b"stays", b"kept"]
