"""What one request costs does not grow with the consumers that a stream has."""

from __future__ import annotations

import pytest

from penstock.jetstream.readers.config.reader_config import reader_config, shared
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


def test_consumers_with_equal_configs_share_one_and_are_told_with_their_own_names(broker: ReaderBroker) -> None:
    stream = broker.node.image.by_name("s")
    given = {"ack_policy": "explicit", "metadata": {"of": "us"}}
    configs = [shared(reader_config(stream, {**given, "durable_name": name, "name": name})) for name in ("a", "b")]
    assert configs[0] is configs[1]
    assert [configs[0].told_of(name)["durable_name"] for name in ("a", "b")] == ["a", "b"]
    named = shared(reader_config(stream, {**given, "name": "c"}))
    assert "durable_name" not in named.told_of("c")
    assert named.told_of("c")["name"] == "c"
    drawn = shared(reader_config(stream, given))
    assert "name" not in drawn.told_of("x1")
    assert drawn != named
