"""Expected last sequences where the table of last sequences is small, and messages expire and leave markers."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.base import limits
from penstock.messages import PurgeSubjectRequest
from tests.unit.node.harness import Broker, Row
from tests.unit.node.test_delete_markers import BUCKET, MARKED, MARKER, go_on, started

NAMES = [f"k{number}" for number in range(12)]


def name_of(row: Row) -> str:
    return row.subject.removeprefix("orders.")


def expect(broker: Broker, name: str, sequence: int, ttl_s: int) -> int:
    """Publish with an expected last sequence; return the error code, 0 for none."""
    lines = [f"Nats-Expected-Last-Subject-Sequence: {sequence}", *([f"Nats-TTL: {ttl_s}"] if ttl_s else [])]
    block = ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()
    broker.acks.clear()
    broker.publish(f"orders.{name}", b"v", reply="r", headers=block)
    broker.settle()
    (ack,) = broker.acks
    return ack.err_code


@pytest.mark.parametrize("config", [BUCKET, MARKED, {**MARKED, "max_messages_per_subject": 3}])
@pytest.mark.parametrize("slots", [1, 4, 100])
def test_no_expectation_is_judged_by_what_the_table_has_forgotten(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], slots: int
) -> None:
    monkeypatch.setattr(limits, "SUBJECT_TABLE_MAX", slots)
    monkeypatch.setattr(limits, "FOUND_SUBJECTS_KEPT_MAX", 3)
    random = Random(slots)
    broker = started(**config)
    judged, markers = {0: 0, 10071: 0}, 0
    for turn in range(120):
        go_on(broker, 100 * random.randrange(8))
        name = random.choice(NAMES)
        if turn % 17 == 16:
            broker.request(PurgeSubjectRequest(stream_id=broker.stream_id("orders"), subject=f"orders.{name}"))
            broker.settle()
        go_on(broker, 100)  # what was decided on is shown
        shown = broker.read("orders")
        markers += sum(row.headers == MARKER for row in shown)
        there = {name_of(row): row.offset + 1 for row in shown}.get(name, 0)
        wrong = random.randrange(3) == 0
        asked = random.randrange(turn + 1) if wrong else there
        code = expect(broker, name, asked, random.choice([0, 2, 3, 10]))
        assert code == (0 if asked == there else 10071), (turn, name, asked, there)
        judged[code] += 1
    assert min(judged.values()) > 10
    assert markers
