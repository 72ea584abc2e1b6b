"""No user takes all the consumers of a broker with the streams that it has created; administrators may."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.access import Operation, Rule
from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.jetstream.gateway import ApiRights
from penstock.messages import CreateStreamRequest
from tests.unit.jetstream.readers.gateways import ReaderBroker
from tests.unit.node.security.test_access import asking, user

FULL = 10026


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> ReaderBroker:
    """A broker of six consumers, with streams of bob and of carl, two of ann the administrator, and one of nobody."""
    monkeypatch.setattr(limits, "READERS_MAX", 6)
    broker = ReaderBroker(rights=ApiRights(user="ann")).start()
    broker.create("old")
    broker.request(user("ann", Rule(Operation.ADMIN)))
    with asking(broker, "ann"):
        for name in ("bob", "carl"):
            broker.request(user(name, Rule(Operation.CREATE, subject=">")))
    for name, stream in (("bob", "b1"), ("bob", "b2"), ("carl", "c"), ("ann", "a")):
        with asking(broker, name):
            broker.request(CreateStreamRequest(config=StreamConfig(name=stream, subject=f"{stream}.>")))
        broker.tick(1)
    return broker


def made(broker: ReaderBroker, stream: str, count: int) -> dict[str, Any]:
    """Create durable consumers until one is refused; the last answer."""
    for number in range(count):
        answer = broker.durable(stream, f"d{number}")
        if "error" in answer:
            return answer
    return answer


def test_one_user_gets_half_and_leaves_the_rest_to_others(broker: ReaderBroker) -> None:
    assert "error" not in made(broker, "b1", 2)
    assert "error" not in made(broker, "b2", 1)
    error = made(broker, "b2", 2)["error"]
    assert (error["err_code"], error["code"]) == (FULL, 400)
    text = "maximum consumers limit reached: of consumers at this broker user 'bob' has 3 of 3, and the limit is 6"
    assert error["description"].startswith(text)
    assert "error" not in made(broker, "c", 1)
    assert made(broker, "b1", 3)["error"]["err_code"] == FULL
    assert broker.api("CONSUMER.DELETE.b1.d0")["success"]
    assert broker.api("CONSUMER.DELETE.b1.d1")["success"]
    assert "error" not in made(broker, "b2", 2)


@pytest.mark.parametrize("stream", ["a", "old"])
def test_streams_of_administrators_and_of_no_user_may_have_all(broker: ReaderBroker, stream: str) -> None:
    assert "error" not in made(broker, stream, 6)
    error = made(broker, "b1", 1)["error"]
    assert (error["err_code"], error["description"]) == (FULL, "maximum consumers limit reached")
