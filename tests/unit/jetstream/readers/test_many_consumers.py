"""What one request costs does not grow with the consumers that a stream has."""

from __future__ import annotations

import pytest

from tests.unit.jetstream.readers.gateways import ReaderBroker
from tests.work import lines_run

FEW, MORE = 20, 220


@pytest.fixture
def broker() -> ReaderBroker:
    broker = ReaderBroker().start()
    broker.create("s")
    return broker


def fill(broker: ReaderBroker, count: int) -> None:
    have = broker.api("STREAM.INFO.s")["state"]["consumer_count"]
    for number in range(have, count):
        assert "error" not in broker.durable("s", f"d{number:03}")


@pytest.mark.parametrize("name", ["new", "d001"])
def test_one_more_consumer_costs_the_same_with_many_as_with_few(broker: ReaderBroker, name: str) -> None:
    """A new one, and one that exists and is asked for again."""
    costs = []
    for count in (FEW, MORE):
        fill(broker, count)
        costs.append(lines_run(lambda: broker.durable("s", name)))
        if name == "new":
            broker.api("CONSUMER.DELETE.s.new")
    assert costs[1] < costs[0] + (MORE - FEW) / 2
