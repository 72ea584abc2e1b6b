"""The dashboard, the alerts and the table of metrics agree with what brokers tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.base.meters import MetricKind
from penstock.broker.observability.metrics import METRICS as OF_BROKER
from penstock.messages import PartitionHealth
from penstock.messages.streams import NO_TROUBLE
from penstock.node.metrics import METRICS as OF_NODE
from tests.docs.reference.metrics_reference import metrics_reference
from tests.queries import (
    OF_PROMETHEUS,
    Query,
    alerts,
    dashboard,
    family_of,
    grouped_by,
    queries,
    selectors,
)

DOCS = Path(__file__).parents[2] / "docs"
TABLE = {metric.name: metric for metric in (*OF_BROKER, *OF_NODE)}
HISTOGRAMS = {name for name, metric in TABLE.items() if metric.kind is MetricKind.HISTOGRAM}
QUERIES = list(queries())
_OF_PROMETHEUS_ITSELF = "up"


def labels_of(query: Query) -> set[str]:
    """What labels there can be on what a query asks for."""
    found = set(OF_PROMETHEUS)
    for selector in selectors(query.text):
        if selector.name != _OF_PROMETHEUS_ITSELF:
            found |= set(TABLE[family_of(selector.name, HISTOGRAMS)].labels)
    return found


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_a_query_asks_for_what_there_is(query: Query) -> None:
    asked = selectors(query.text)
    assert asked
    for name, labels in asked:
        if name != _OF_PROMETHEUS_ITSELF:
            family = family_of(name, HISTOGRAMS)
            assert family in TABLE, name
            assert (name != family) == (family in HISTOGRAMS), name
            assert labels <= OF_PROMETHEUS | set(TABLE[family].labels), name
    shown = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", query.shown))
    assert grouped_by(query.text) | shown <= labels_of(query)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_counters_are_asked_for_as_rates_and_gauges_are_not(query: Query) -> None:
    for name in re.findall(r"\b(?:rate|increase)\((\w+)", query.text):
        assert TABLE[family_of(name, HISTOGRAMS)].kind is not MetricKind.GAUGE, name
    for name in re.findall(r"\b(?:deriv|predict_linear|min_over_time)\((\w+)", query.text):
        assert TABLE[name].kind is MetricKind.GAUGE, name


def test_states_that_are_asked_for_are_states() -> None:
    named = [
        state
        for query in QUERIES
        for found in re.findall(r'state=~?"([\w|]+)"', query.text)
        for state in found.split("|")
    ]
    assert {"no_leader", "failed"} <= set(named) <= {str(state) for state in PartitionHealth}


def test_heartbeats_of_jetstream_and_lost_races_of_publishers_alarm_nobody() -> None:
    queries = [query.text for query in QUERIES if "penstock_partition_dropped_total" in query.text]
    assert len(queries) == 2
    assert all(f'reason!~"{"|".join(NO_TROUBLE)}"' in text for text in queries)


def test_alerts_say_what_is_so_and_how_bad_it_is() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) > 20
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1s"))


def test_the_dashboard_can_be_imported() -> None:
    board = dashboard()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert {variable["name"] for variable in board["templating"]["list"]} == {"datasource", "instance", "stream"}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
    used = set(re.findall(r"\$(?!__)\{?(\w+)", str(board["panels"])))
    assert used == {"datasource", "instance", "stream"}


def test_every_variable_of_the_dashboard_asks_for_what_there_is() -> None:
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            assert found[2] in OF_PROMETHEUS | set(TABLE[found[1]].labels)


def test_the_table_of_metrics_is_what_the_code_says() -> None:
    remake = "python -m tests.docs.reference docs/reference"
    assert (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8") == metrics_reference(), (
        f"remake it: {remake}"
    )


def test_the_guide_names_what_there_is() -> None:
    guide = (DOCS / "how-to" / "monitor.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:penstock|process)_\w+)`", guide))
    assert len(named) > 10
    assert named <= set(TABLE)
