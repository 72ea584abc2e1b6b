"""What is thought of consumers with acks, from their infos."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base.config import RetentionPolicy
from penstock.doctor.consumers import RESTING_US, StreamConsumers, judge_consumers
from penstock.doctor.findings import Finding, Result

NOW_US = 1_700_000_000_000_000  # 2023-11-14T22:13:20Z
LONG_AGO = "2023-11-14T20:13:20.123456789Z"
JUST_NOW = "2023-11-14T22:13:00Z"
RESTING: dict[str, Any] = {
    "name": "worker",
    "created": "2023-11-01T00:00:00Z",
    "delivered": {"consumer_seq": 3, "stream_seq": 3, "last_active": LONG_AGO},
    "ack_floor": {"consumer_seq": 1, "stream_seq": 1},
    "num_ack_pending": 2,
    "num_pending": 5,
    "num_waiting": 0,
}


def judged(*infos: dict[str, Any], retention: RetentionPolicy = RetentionPolicy.WORKQUEUE) -> list[Finding]:
    return list(judge_consumers([StreamConsumers("jobs", retention, infos)], NOW_US))


def test_a_consumer_that_nobody_uses_and_that_keeps_messages_is_told() -> None:
    (one,) = judged(RESTING)
    assert (one.check, one.result) == ("consumers", Result.WARN)
    text = "jobs/worker is not used since 1h 59m, and keeps 7 messages of a stream with retention workqueue"
    assert one.found == f"{text} (2 of them were delivered and not acked)"
    assert "docs/how-to/work-queues.md" in one.advice
    (one,) = judged({**RESTING, "num_ack_pending": 0, "paused": True}, retention=RetentionPolicy.INTEREST)
    assert one.found == "jobs/worker is paused since 1h 59m, and keeps 5 messages of a stream with retention interest"


@pytest.mark.parametrize(
    "changes",
    [
        {"num_waiting": 1},
        {"push_bound": True},
        {"num_pending": 0, "num_ack_pending": 0},
        {"ack_floor": {"last_active": JUST_NOW}},
        {"created": JUST_NOW, "delivered": {}},
        {"created": "yesterday", "delivered": None},
        {"created": "0001-01-01T00:00:00Z", "delivered": {"last_active": 5}},
    ],
)
def test_one_that_is_used_keeps_nothing_or_says_no_time_is_well(changes: dict[str, Any]) -> None:
    (one,) = judged({**RESTING, **changes})
    assert (one.result, one.found) == (Result.OK, "none of 1 rests and keeps messages of its stream")


def test_an_hour_is_waited_for() -> None:
    created = {**RESTING, "created": "2023-11-14T22:13:20Z", "delivered": {}}
    at = StreamConsumers("jobs", RetentionPolicy.WORKQUEUE, [created])
    results = [next(judge_consumers([at], NOW_US + us)).result for us in (RESTING_US - 1, RESTING_US)]
    assert results == [Result.OK, Result.WARN]


def test_in_a_stream_with_limits_a_consumer_keeps_nothing() -> None:
    assert judged(RESTING, retention=RetentionPolicy.LIMITS) == []
