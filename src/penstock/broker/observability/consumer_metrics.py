"""Metrics of the stored consumers of JetStream's API that this broker leads.

Rules: the size of the page is bounded, whatever clients create. Durable consumers have samples of their own, the oldest
METRIC_STREAM_CONSUMERS_MAX of a partition and METRIC_CONSUMERS_MAX of a broker; all others of the partition are summed,
with `*` for the consumer: names of consumers that end with their clients never come back. With more than
METRIC_PARTITIONS_MAX partitions that have others, these are summed over all. No consumer or stream is named `*`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.base import limits
from penstock.base.meters import Families, Family, Metric, MetricKind, Sample
from penstock.jetstream.readers.stored.numbers import ConsumerNumbers

ALL = "*"
"""Label of summed values."""
_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_PLACE = ("stream", "partition", "consumer")
_Labels = tuple[str, ...]


class OfConsumer(NamedTuple):
    """One metric of each consumer. `value` returns None if there is none."""

    metric: Metric
    value: Callable[[ConsumerNumbers], int | None]
    joined: Callable[[int, int], int]  # joins the values of several consumers


class OfAcks(NamedTuple):
    """One metric of each consumer, by a further label."""

    metric: Metric
    values: Callable[[ConsumerNumbers], dict[str, int]]


def _added(one: int, other: int) -> int:
    return one + other


def _each(
    name: str,
    kind: MetricKind,
    meaning: str,
    value: Callable[[ConsumerNumbers], int | None],
    joined: Callable[[int, int], int] = _added,
) -> OfConsumer:
    return OfConsumer(Metric(f"penstock_consumer_{name}", kind, meaning, _PLACE), value, joined)


EACH_CONSUMER = (
    _each("pending", _GAUGE, "Consumer lag: messages that a consumer with acks, or a durable one, has not delivered; "
          "of one with filters none before its first pull at this leader.", lambda one: one.pending),
    _each("ack_pending", _GAUGE, "Messages in hand: delivered, and not acked.", lambda one: one.ack_pending),
    _each("full", _GAUGE, "1 if it delivers nothing new until messages are acked.", lambda one: int(one.is_full)),
    _each("redelivered", _GAUGE, "Messages in hand that were delivered more than once.", lambda one: one.redelivered),
    _each("ack_floor_offset", _GAUGE, "All that it takes before this offset is acked.",
          lambda one: one.floor_offset, min),
    _each("pulls_waiting", _GAUGE, "Pull requests that wait for messages.", lambda one: one.pulls_waiting),
    _each("deliveries_total", _COUNTER, "Deliveries since the consumer was made or reset, also under other leaders.",
          lambda one: one.delivered),
    _each("redeliveries_total", _COUNTER, "Of these, deliveries of a message again, under this leadership.",
          lambda one: one.redeliveries),
    _each("dead_letters_waiting", _GAUGE, "Messages that it has given up, and whose dead letters are not stored yet.",
          lambda one: one.letters_waiting),
    _each("dead_letters_total", _COUNTER, "Its dead letters that were stored, under this leadership.",
          lambda one: one.letters),
)  # fmt: skip
"""Metrics of each consumer."""

ACKS = OfAcks(
    Metric("penstock_consumer_acks_total", _COUNTER, "Acks that counted, under this leadership, by kind: `ack`, `nak`, "
           "`in_progress`, `term`.", (*_PLACE, "kind")),
    lambda one: one.acks,
)  # fmt: skip
REFUSED_ACKS = OfAcks(
    Metric("penstock_consumer_refused_acks_total", _COUNTER, "Acks that changed nothing, under this leadership. "
           "`forged`: of none of its deliveries. `stale`: of a message that is not in hand any more, such as one acked "
           "twice. `late`: of an earlier delivery of a message that was delivered again.", (*_PLACE, "reason")),
    lambda one: one.refused,
)  # fmt: skip

METRICS = (*(one.metric for one in EACH_CONSUMER), ACKS.metric, REFUSED_ACKS.metric)
"""All of them, in the order of the page."""


def consumer_families(
    numbers: Iterator[ConsumerNumbers], place_of: Callable[[int], tuple[str, str] | None]
) -> Families:
    """Yield the metrics of consumers; None now and then, for a pause.

    `place_of` returns the name of a stream and the partition by the id in JetStream's API; None: it is deleted.
    """
    labels_of = _Labelling()
    values: list[dict[_Labels, int]] = [{} for _ in EACH_CONSUMER]
    acks: Counter[_Labels] = Counter()
    refused: Counter[_Labels] = Counter()
    for at, one in enumerate(numbers):
        if at % limits.METRIC_TURN == limits.METRIC_TURN - 1:
            yield None
        if (place := place_of(one.stream_id)) is None:
            continue
        labels = labels_of(one, place)
        for row, found in zip(EACH_CONSUMER, values, strict=True):
            if (value := row.value(one)) is not None:
                found[labels] = row.joined(found[labels], value) if labels in found else value
        acks.update({(*labels, kind): count for kind, count in ACKS.values(one).items()})
        refused.update({(*labels, reason): count for reason, count in REFUSED_ACKS.values(one).items()})
    for row, found in zip(EACH_CONSUMER, values, strict=True):
        yield Family(row.metric, [Sample(labels, value) for labels, value in found.items()])
        yield None
    yield Family(ACKS.metric, [Sample(labels, count) for labels, count in acks.items()])
    yield Family(REFUSED_ACKS.metric, [Sample(labels, count) for labels, count in refused.items()])


class _Labelling:
    """Gives the labels of one page."""

    def __init__(self) -> None:
        self._named: Counter[tuple[str, str]] = Counter()
        self._summed: set[tuple[str, str]] = set()
        self._named_count = 0

    def __call__(self, one: ConsumerNumbers, place: tuple[str, str]) -> _Labels:
        has_room = (
            self._named_count < limits.METRIC_CONSUMERS_MAX and self._named[place] < limits.METRIC_STREAM_CONSUMERS_MAX
        )
        if one.is_durable and has_room:
            self._named[place] += 1
            self._named_count += 1
            return (*place, one.name)
        if place not in self._summed and len(self._summed) >= limits.METRIC_PARTITIONS_MAX:
            return (ALL, ALL, ALL)
        self._summed.add(place)
        return (*place, ALL)
