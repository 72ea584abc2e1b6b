"""The text that Prometheus reads, read by its own parser."""

from __future__ import annotations

from types import ModuleType

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.base.meters import Family, Histogram, Metric, MetricKind, Sample, single
from penstock.broker.observability import metrics as broker_metrics
from penstock.broker.observability.exposition import text_of
from penstock.broker.observability.metrics import METRICS as OF_BROKER
from penstock.node import metrics as node_metrics
from penstock.node.metrics import METRICS as OF_NODE


def test_labels_and_help_come_through_whatever_is_in_them() -> None:
    nasty = 'a"b\\c\nd{e="f"} 1 # TYPE'
    metric = Metric("penstock_x", MetricKind.GAUGE, 'of "all"\\ things\nand more', ("of", "in"))
    (family,) = text_string_to_metric_families(text_of(Family(metric, [Sample((nasty, ""), 1)])))
    assert family.documentation == metric.meaning
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"of": nasty, "in": ""}, 1)]


@pytest.mark.parametrize("value", [0, 1, 2**53 + 1, 1.5, 1e-9, 1e300, 12_345_678.123_456])
def test_numbers_keep_what_they_are(value: float) -> None:
    text = text_of(single(Metric("penstock_x", MetricKind.GAUGE, "x"), value))
    assert type(value)(text.split()[-1]) == value
    assert text.endswith("\n")


def test_a_histogram_is_told_in_its_unit() -> None:
    histogram = Histogram(9, 11, is_time=True)
    histogram.add(500, 2)
    histogram.add(3_000_000)
    text = text_of(
        Family(Metric("penstock_s", MetricKind.HISTOGRAM, "s", ("api",), 1e-6), [Sample(("get",), histogram)])
    )
    assert text.splitlines()[2:] == [
        'penstock_s_bucket{api="get",le="0.000512"} 2',
        'penstock_s_bucket{api="get",le="0.001024"} 2',
        'penstock_s_bucket{api="get",le="0.002048"} 2',
        'penstock_s_bucket{api="get",le="+Inf"} 3',
        'penstock_s_sum{api="get"} 3.001',
        'penstock_s_count{api="get"} 3',
    ]


def test_names_are_as_prometheus_wants_them() -> None:
    names = [metric.name for metric in (*OF_BROKER, *OF_NODE)]
    assert len(names) == len(set(names))
    for metric in (*OF_BROKER, *OF_NODE):
        assert metric.name.startswith(("penstock_", "process_")), metric.name
        assert metric.name.endswith("_total") is (metric.kind is MetricKind.COUNTER), metric.name
        assert metric.meaning.endswith("."), metric.name
        assert "le" not in metric.labels


@pytest.mark.parametrize("module", [broker_metrics, node_metrics])
def test_each_metric_is_one_of_the_page(module: ModuleType) -> None:
    made = {one.name for one in vars(module).values() if isinstance(one, Metric)}
    assert made <= {metric.name for metric in (*OF_BROKER, *OF_NODE)}
