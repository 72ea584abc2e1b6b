"""Last messages kept in memory, beside what else a leader knows of its subjects."""

from __future__ import annotations

import pytest

from penstock.base.config import Discard
from penstock.messages import FindMessagesRequest, FindMessagesResponse
from tests.unit.node.harness import Broker

FULL = "maximum messages per subject exceeded"


def look_up(broker: Broker, *subjects: str) -> FindMessagesResponse:
    request = FindMessagesRequest(stream_id=broker.stream_id("s"), which="last_of_each", subjects=subjects)
    return broker.ask(request, FindMessagesResponse)


def publish(broker: Broker, subject: str, headers: bytes | None = None) -> str:
    broker.acks.clear()
    broker.deliver([(subject.encode(), b"r.0", headers, b"v")])
    (ack,) = broker.acks
    return ack.body["error"]["description"] if ack.err_code else str(ack.body["seq"])


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("refuses", [True, False])
def test_a_look_up_before_the_first_message_leaves_limits_by_subject_as_they_are(most: int, refuses: bool) -> None:
    broker = Broker().start()
    broker.create(
        "s", subject="s.>", discard=Discard.NEW, max_messages=4, max_messages_per_subject=most,
        discard_new_per_subject=refuses,
    )  # fmt: skip
    for _ in range(most):
        publish(broker, "s.a")
    broker = broker.crash().start()
    broker.tick(1_000)
    look_up(broker, "s.a")
    last = publish(broker, "s.a")
    assert last == (FULL if refuses else str(most + 1))
