"""The PromQL of the Grafana dashboard and of the alert rules, and the metrics and labels that it uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "penstock.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
OF_PROMETHEUS = {"instance", "job", "le"}
"""Labels that Prometheus or a histogram adds."""
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


class Query(NamedTuple):
    """A PromQL expression, and the template of its legend or summary."""

    where: str
    text: str
    shown: str


class Selector(NamedTuple):
    """A metric in a query, and the labels of its matchers."""

    name: str
    labels: frozenset[str]


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def queries() -> Iterator[Query]:
    """Yield all queries, with Grafana's variables replaced."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5m")
            yield Query(f"panel {panel['title']!r}", re.sub(r"\$\w+", ".*", text), target["legendFormat"])
    for rule in alerts():
        yield Query(f"alert {rule['alert']}", rule["expr"], rule["annotations"]["summary"])


def parts(expression: Any) -> Iterator[Any]:
    """Yield an expression and all its sub-expressions."""
    yield expression
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        if (inner := getattr(expression, name, None)) is not None and not isinstance(inner, str | float):
            yield from parts(inner)
    for inner in getattr(expression, "args", ()):
        yield from parts(inner)


def selectors(text: str) -> list[Selector]:
    """Return the selectors of a query. Raise ValueError if it is not PromQL."""
    return [
        Selector(part.name, frozenset(one.name for one in part.matchers.matchers))
        for part in parts(promql.parse(text))
        if isinstance(part, promql.VectorSelector)
    ]


def grouped_by(text: str) -> set[str]:
    """Return the labels by which a query aggregates or joins."""
    found: set[str] = set()
    for part in parts(promql.parse(text)):
        modifier = getattr(part, "modifier", None)
        for which in (modifier, getattr(modifier, "matching", None)):
            found |= set(getattr(which, "labels", None) or ())
    return found


def family_of(sample: str, histograms: set[str]) -> str:
    """Return the metric of a sample."""
    family = _SUFFIX.sub("", sample)
    return family if family in histograms else sample
