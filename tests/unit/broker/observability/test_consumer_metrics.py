"""Metrics of consumers: labels are bounded, whatever clients create."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from penstock.base import limits
from penstock.broker.observability.consumer_metrics import METRICS, consumer_families
from penstock.broker.observability.exposition import text_of
from penstock.jetstream.readers.stored.numbers import ConsumerNumbers

Page = dict[str, dict[tuple[str, ...], float]]


def consumer(name: str, stream_id: int = 1, *, is_durable: bool = True, **numbers: int | None) -> ConsumerNumbers:
    plain = ConsumerNumbers(
        stream_id=stream_id,
        name=name,
        is_durable=is_durable,
        pending=1,
        ack_pending=2,
        is_full=True,
        redelivered=3,
        floor_offset=4,
        pulls_waiting=5,
        delivered=6,
        redeliveries=7,
        acks={"ack": 8, "nak": 9},
        refused={"forged": 10, "stale": 11, "late": 12},
        letters_waiting=13,
        letters=14,
    )
    return plain._replace(**numbers)


def page(consumers: Iterable[ConsumerNumbers], gone: int = 0) -> Page:
    found = consumer_families(iter(consumers), lambda one: None if one == gone else (f"s{one}", "0"))
    return {
        family.metric.name: {one.labels: one.value for one in family.samples}  # type: ignore[misc]
        for family in found
        if family is not None
    }


def test_each_durable_consumer_has_labels_of_its_own() -> None:
    told = page([consumer("a"), consumer("b", pending=None), consumer("c", 2)], gone=2)
    assert list(told) == [metric.name for metric in METRICS]
    assert told["penstock_consumer_pending"] == {("s1", "0", "a"): 1}
    assert told["penstock_consumer_ack_floor_offset"] == {("s1", "0", "a"): 4, ("s1", "0", "b"): 4}
    assert told["penstock_consumer_refused_acks_total"]["s1", "0", "a", "stale"] == 11
    assert told["penstock_consumer_acks_total"] == {
        ("s1", "0", name, kind): count for name in "ab" for kind, count in (("ack", 8), ("nak", 9))
    }


def test_names_that_never_come_back_are_summed() -> None:
    told = page([consumer("x7", is_durable=False, floor_offset=9), consumer("x8", is_durable=False), consumer("a")])
    assert told["penstock_consumer_ack_pending"] == {("s1", "0", "*"): 4, ("s1", "0", "a"): 2}
    assert told["penstock_consumer_ack_floor_offset"]["s1", "0", "*"] == 4
    assert told["penstock_consumer_refused_acks_total"]["s1", "0", "*", "late"] == 24


def test_consumers_beyond_a_limit_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRIC_STREAM_CONSUMERS_MAX", 2)
    monkeypatch.setattr(limits, "METRIC_CONSUMERS_MAX", 3)
    monkeypatch.setattr(limits, "METRIC_PARTITIONS_MAX", 2)
    told = page([consumer(f"c{at % 3}", 1 + at // 3) for at in range(12)])["penstock_consumer_ack_pending"]
    assert told == {
        ("s1", "0", "c0"): 2,
        ("s1", "0", "c1"): 2,
        ("s1", "0", "*"): 2,
        ("s2", "0", "c0"): 2,
        ("s2", "0", "*"): 4,
        ("*", "*", "*"): 12,
    }
    assert sum(told.values()) == 24


def test_a_hostile_name_is_one_label() -> None:
    name = 'a"}\n# x\\{'
    found = consumer_families(iter([consumer(name)]), lambda one: ("s", "0"))
    text = "".join(text_of(one) for one in found if one is not None)
    lines = [line for line in text.split("\n") if line and not line.startswith("# ")]
    assert 'penstock_consumer_pending{stream="s",partition="0",consumer="a\\"}\\n# x\\\\{"} 1' in lines
    assert all(line.startswith("penstock_consumer_") for line in lines)
