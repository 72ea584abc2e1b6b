"""Which consumers the doctor warns of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.base.config import RetentionPolicy
from penstock.client.consume.stream_consumers import ConsumerInfo
from penstock.doctor.consumers import ABANDONED_AFTER, judge_consumers, judge_named
from penstock.doctor.findings import SHOWN_MAX, Result

NOW = datetime(2026, 5, 1, tzinfo=UTC)
OLD = NOW - ABANDONED_AFTER - timedelta(seconds=1)


def consumer(**fields: Any) -> ConsumerInfo:
    usual = ConsumerInfo(
        name="billing", stream="orders", partition=0, created=OLD, is_push=False, is_durable=True,
        ack_policy="explicit", filters=(), next_offset=5, acked_end=5, deliveries=5, pending=0, ack_pending=0,
        redelivered=0, waiting=1, ack_pending_max=1_000, paused_until=None, last_delivered=OLD, order_by=None,
        dead_letters=None, dead_letters_waiting=0, dead_letters_error="", config={},
    )  # fmt: skip
    return usual._replace(**fields)


def test_consumers_that_work_are_counted() -> None:
    assert [one.found for one in judge_consumers([], NOW)] == ["no consumers, none is blocked"]
    (finding,) = judge_consumers([consumer(), consumer(paused_until=NOW)], NOW)
    assert (finding.result, finding.found) == (Result.OK, "2 consumers, none is blocked; 1 paused")


def test_a_consumer_that_waits_for_acks_is_told() -> None:
    (finding,) = judge_consumers([consumer(ack_pending=1_000, pending=7, partition=2)], NOW)
    assert finding.result is Result.WARN
    assert "1000 messages wait for an ack" in finding.found
    assert "penstock consumer info orders billing --partition 2" in finding.advice


def test_dead_letters_that_are_not_taken_are_told() -> None:
    waits = consumer(dead_letters="dead", dead_letters_waiting=3, dead_letters_error="there is no stream 'dead'")
    (finding,) = judge_consumers([waits], NOW)
    assert finding.result is Result.WARN
    assert "3 messages that stream dead does not take" in finding.found
    (finding,) = judge_consumers([consumer(dead_letters="dead", dead_letters_waiting=3)], NOW)
    assert finding.result is Result.OK


def test_a_durable_consumer_that_nobody_asks_is_told() -> None:
    (finding,) = judge_consumers([consumer(pending=7, waiting=0)], NOW)
    assert finding.result is Result.WARN
    assert "penstock consumer delete orders billing" in finding.advice


@pytest.mark.parametrize(
    "fields",
    [{"waiting": 1}, {"pending": 0}, {"is_push": True}, {"is_durable": False}, {"paused_until": NOW},
     {"last_delivered": NOW}, {"last_delivered": None, "created": NOW}],
)  # fmt: skip
def test_one_that_is_asked_or_has_nothing_or_is_to_wait_is_not(fields: dict[str, Any]) -> None:
    (finding,) = judge_consumers([consumer(**{"pending": 7, "waiting": 0, **fields})], NOW)
    assert finding.result is Result.OK


RESTING = {"waiting": 0, "is_durable": False}
KEEPS = {"orders": RetentionPolicy.WORKQUEUE}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pending": 3, "ack_pending": 4}, "is not asked by any client, and keeps 7 messages, 4 of them delivered"),
        ({"pending": 3, "paused_until": NOW}, "is paused, and keeps 3 messages of a stream with retention workqueue"),
        ({"ack_pending": 1}, "keeps 1 messages"),
    ],
)
def test_one_that_rests_and_keeps_messages_is_told(fields: dict[str, Any], words: str) -> None:
    one = consumer(**RESTING, **fields)
    (finding,) = judge_consumers([one], NOW, KEEPS)
    assert finding.result is Result.WARN
    assert words in finding.found
    (other,) = judge_consumers([one], NOW, {"other": RetentionPolicy.INTEREST})
    assert other.result is Result.OK


@pytest.mark.parametrize("fields", [{"waiting": 1, "pending": 3}, {"last_delivered": NOW, "pending": 3}, {}])
def test_one_that_is_used_or_keeps_nothing_is_not(fields: dict[str, Any]) -> None:
    (finding,) = judge_consumers([consumer(**{**RESTING, **fields})], NOW, KEEPS)
    assert finding.result is Result.OK


def test_many_are_counted() -> None:
    many = [consumer(name=f"c{number}", ack_pending=1_000) for number in range(SHOWN_MAX + 3)]
    findings = list(judge_consumers(many, NOW))
    assert len(findings) == SHOWN_MAX + 1
    assert "3 more" in findings[-1].found


def test_what_keeps_all_messages_of_a_stream_and_has_committed_nothing() -> None:
    assert list(judge_named({"orders": ()})) == []
    (finding,) = judge_named({"orders": ("group:billing",)})
    assert (finding.result, "for group:billing" in finding.found) == (Result.WARN, True)
    assert "--interest-of" in (finding.advice or "")
