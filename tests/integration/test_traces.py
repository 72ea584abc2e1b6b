"""Spans of traced messages, as a real receiver of OTLP gets them from real brokers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.publishers import connected_to
from tests.metrics_page import page_of, url_of
from tests.otlp import Received, receiving

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def traceparent(number: int = 0, *, is_sampled: bool = True) -> str:
    return f"00-{TRACE_ID[:-4]}{number:04x}-{PARENT_ID}-0{int(is_sampled)}"


def check_one(spans: list[Received], number: int, sent_ns: int) -> dict[str, Received]:
    """The spans of one message: who is whose child, and when each was."""
    mine = {span.name: span for span in spans if span.trace_id == f"{TRACE_ID[:-4]}{number:04x}"}
    append, replicate, ack = (mine[f"penstock.{name}"] for name in ("append", "replicate", "ack"))
    assert len(mine) == 3
    assert len({append.span_id, replicate.span_id, ack.span_id, PARENT_ID}) == 4
    assert append.parent_id == PARENT_ID
    assert replicate.parent_id == ack.parent_id == append.span_id
    assert sent_ns - 1_000_000 <= append.begin_ns <= append.end_ns == replicate.begin_ns
    assert replicate.begin_ns <= replicate.end_ns == ack.begin_ns <= ack.end_ns <= time.time_ns() + 1_000_000
    assert {span.error for span in mine.values()} == {""}
    return mine


@each_change
@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_a_traced_message_gives_spans_and_no_other_does(tmp_path: Path, durability: str) -> None:
    with receiving() as receiver, running_broker(tmp_path / "data", "--otlp-endpoint", receiver.url) as broker:
        async with await broker.client() as client, connected_to(broker.nats_url) as connection:
            await client.create_stream("orders", "orders.>", durability=durability)
            jetstream = connection.jetstream()
            await jetstream.publish("orders.a", b"untraced: traceparent:" + traceparent(9).encode())
            await jetstream.publish(
                "orders.a", b"not sampled", headers={"traceparent": traceparent(8, is_sampled=False)}
            )
            await jetstream.publish("orders.a", b"nonsense", headers={"traceparent": "00-" + "z" * 51 + "1"})
            sent_ns = time.time_ns()
            ack = await jetstream.publish("orders.a", b"traced", headers={"traceparent": traceparent(1), "a": "b"})
            await jetstream.publish("orders.a", b"traced", headers={"Traceparent": traceparent(2)})
        spans = await asyncio.to_thread(receiver.wait, 6)
        assert broker.stop() == 0
        assert receiver.spans == spans, "there are no others"
        assert receiver.paths == {"/v1/traces"}
        append = check_one(spans, 1, sent_ns)["penstock.append"]
        check_one(spans, 2, sent_ns)
        assert append.attributes == {
            "messaging.system": "penstock",
            "messaging.destination.name": "orders",
            "messaging.destination.partition.id": "0",
            "messaging.batch.message_count": 1,
            "penstock.offset": ack.seq - 1,
            "penstock.leader_epoch": 1,
        }
        assert append.resource["service.name"] == "penstock"
        assert append.resource["service.instance.id"] == "broker-1"


@needs_time
async def test_what_is_replicated_says_how_many_have_it(tmp_path: Path) -> None:
    with receiving() as receiver, running_nats(tmp_path / "nats") as server:
        cluster = ClusterProcesses(tmp_path, server, 3)
        for broker in cluster.brokers.values():
            broker.arguments += ["--otlp-endpoint", receiver.url]
        try:
            cluster.start()
            await cluster.all_live()
            async with cluster.client(1) as client, connected_to(server.url) as connection:
                await client.create_stream("orders", "orders", replicas=3, min_isr=2)
                sent_ns = time.time_ns()
                await connection.jetstream().publish("orders", b"", headers={"traceparent": traceparent(1)})
                await connection.publish("orders", b"nobody waits", headers={"traceparent": traceparent(2)})
                spans = await asyncio.to_thread(receiver.wait, 5)
            found = check_one(spans, 1, sent_ns)
            assert found["penstock.replicate"].attributes["penstock.replicas"] in (2, 3)
            unheard = [span.name for span in spans if span.trace_id.endswith("0002")]
            assert sorted(unheard) == ["penstock.append", "penstock.replicate"]
        finally:
            cluster.end()


@each_change
async def test_a_receiver_that_is_away_costs_spans_and_nothing_else(tmp_path: Path) -> None:
    with receiving() as receiver, running_broker(tmp_path / "data", "--otlp-endpoint", receiver.url) as broker:
        receiver.status = 400  # which is not tried again
        url = url_of(broker)
        async with await broker.client() as client, connected_to(broker.nats_url) as connection:
            await client.create_stream("orders", "orders")
            for number in range(10):
                headers = {"traceparent": traceparent(number)}
                assert (await connection.jetstream().publish("orders", b"", headers=headers)).seq == number + 1

            async def are_dropped() -> bool:
                return (await page_of(url)).value("penstock_spans_dropped_total") == 30

            await eventually(are_dropped, "spans are dropped")
            receiver.status = 200
            await connection.jetstream().publish("orders", b"", headers={"traceparent": traceparent(11)})
            assert len(await asyncio.to_thread(receiver.wait, 3)) == 3

            async def are_exported() -> bool:
                return (await page_of(url)).value("penstock_spans_exported_total") == 3

            await eventually(are_exported, "spans are delivered")


def test_without_opentelemetry_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "opentelemetry"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('it is not there')")
    broker = BrokerProcess(
        tmp_path / "data",
        *("--otlp-endpoint", "http://127.0.0.1:4318"),
        environment={"PYTHONPATH": str(hidden.parent)},
    )
    try:
        broker.launch()
        assert broker.wait() == 2
        assert "pip install '.[otel]'" in broker.said
    finally:
        broker.end()
