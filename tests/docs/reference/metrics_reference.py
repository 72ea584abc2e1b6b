"""Generates docs/reference/metrics.md from the tables of metrics."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.base.limits import (
    METRIC_CONSUMERS_MAX,
    METRIC_GROUP_OFFSETS_MAX,
    METRIC_PARTITIONS_MAX,
    METRIC_STREAM_CONSUMERS_MAX,
)
from penstock.base.meters import Metric
from penstock.broker.observability.metrics import METRICS as OF_BROKER
from penstock.node.metrics import METRICS as OF_NODE

_MADE = "<!-- Made by `python -m tests.docs.reference docs/reference`; change the code, not this file. -->\n"

_HEAD = f"""# Metrics: Prometheus names, labels and meaning

The metrics at `/metrics` of a broker, in Prometheus's text format; [how to use it](../how-to/monitor.md).
A broker reports its own state and actions.
Stored messages are counted by the leader that stored them, so that a sum over all brokers counts nothing twice.
Counters begin at 0 when a broker starts; those of a partition also when it moves to the broker again.
Times are in seconds, sizes in bytes; a histogram has `_bucket`, `_sum` and `_count`.

Up to {METRIC_PARTITIONS_MAX:,} partitions are reported one by one.
If there are more, those of each stream are aggregated, with `partition="*"`.
If there are more streams than that, everything is aggregated, with `stream="*"`.
Then offsets and sizes are sums, ages and epochs the highest, `isr_size` the lowest.
Up to {METRIC_GROUP_OFFSETS_MAX:,} offsets of groups are reported one by one, and more in the same way.

Up to {METRIC_STREAM_CONSUMERS_MAX} durable consumers of a partition, the oldest, are reported one by one.
They are {METRIC_CONSUMERS_MAX:,} of a broker at most.
All others of the partition are aggregated, with `consumer="*"`: `ack_floor_offset` is the lowest, the rest are sums.
Counters of consumers begin at 0 with each leadership of their partition, but `deliveries_total`.

"""


def metrics_reference() -> str:
    """Return the text of docs/reference/metrics.md."""
    parts = [_HEAD, _MADE, "\n## Of the streams and the cluster\n\n", _table(OF_NODE)]
    parts += ["\n## Of the broker\n\n", _table(OF_BROKER)]
    return "".join(parts)


def _table(metrics: Iterable[Metric]) -> str:
    rows = "".join(_row(metric) for metric in metrics)
    return f"| metric | kind | labels | meaning |\n|---|---|---|---|\n{rows}"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.meaning} |\n"
