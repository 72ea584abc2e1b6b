"""Kafka as a system under test: librdkafka's own mock broker stands for it, which speaks Kafka's protocol."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load.content import difference
from penstock_bench.load.generator import Load
from penstock_bench.load.readers import ReadTask
from penstock_bench.machine import worker
from penstock_bench.measure.rounds import untrue
from penstock_bench.systems import kafka
from penstock_bench.systems.kafka import KafkaLog, KafkaSystem, MockSystem, variants
from tests.extent import needs_time

pytestmark = needs_time

LOAD = Load(size=100, messages=500, window=50, seconds_max=20.0)


@pytest.fixture
def mock_broker() -> Iterator[Address]:
    """One that stores in memory; it lives as long as the producer that made it."""
    producer = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": 3})
    (broker,) = producer.list_topics(timeout=60).brokers.values()
    yield Address(broker.host, broker.port)
    producer.close()


@pytest.mark.parametrize("publishers", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"linger.ms": "0"}], ids=["linger", "no linger"])
def test_what_was_acked_is_read_back(mock_broker: Address, publishers: int, settings: dict[str, str]) -> None:
    log = KafkaLog(KafkaSystem(mock_broker, settings, {}), "some-topic")
    load = Load(size=100, messages=500, window=50, publishers=publishers, seconds_max=20.0)
    published = log.publish(load)
    assert (published.acks, published.errors) == (500, 0)
    assert untrue(log, published, ordered=publishers == 1) is None
    task = ReadTask(str(log.address), log.topic, "", 500)
    assert difference(published.sent, worker.run(kafka.read, task, timeout_s=150).found) is None


def test_a_message_more_in_the_topic_voids_the_round(mock_broker: Address) -> None:
    system = KafkaSystem(mock_broker, {}, {})
    log = KafkaLog(system, "some-topic")
    published = log.publish(LOAD)
    log.publish(Load(size=100, messages=1))
    found = log.read_back(ordered=True)
    assert difference(published.sent, found) == "500 messages were acked, 501 came back"


def test_the_ceiling_is_measured_without_an_address() -> None:
    with MockSystem().log() as log:
        published = log.publish(LOAD)
        assert published.acks == 500
        assert published.cpu_seconds["generator"] > 0
        assert log.read_back(ordered=True) is None


def test_a_window_may_be_larger_than_librdkafkas_queue() -> None:
    with MockSystem().log() as log:
        published = log.publish(Load(size=10, messages=110_000, window=110_000, seconds_max=60.0))
    assert (published.acks, published.errors) == (110_000, 0)


def test_what_a_broker_does_not_do_is_said(mock_broker: Address) -> None:
    system = KafkaSystem(mock_broker, {}, {}, start_s=1.0)  # the mock broker cannot make topics
    with pytest.raises(OperationalError, match=f"Kafka at {mock_broker}: "):
        system.log().__enter__()


def test_nobody_there_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1])
    with pytest.raises(OperationalError, match=f"Kafka at {address}: "):
        variants(address, start_s=1.0)[0].start(tmp_path).__enter__()
