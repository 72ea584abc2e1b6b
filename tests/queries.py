"""The PromQL that we ship: of the Grafana dashboard and of the alert rules, with what each asks for."""

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
"""Labels that Prometheus adds, or a histogram has."""
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


class Query(NamedTuple):
    """One expression, and the template that names its results."""

    where: str
    text: str
    shown: str


class Selector(NamedTuple):
    """A metric that is asked for, and the labels that it is chosen by."""

    name: str
    labels: frozenset[str]


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def queries() -> Iterator[Query]:
    """All of them, as Prometheus gets them."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5m")
            yield Query(f"panel {panel['title']!r}", re.sub(r"\$\w+", ".*", text), target["legendFormat"])
    for rule in alerts():
        yield Query(f"alert {rule['alert']}", rule["expr"], rule["annotations"]["summary"])


def parts(expression: Any) -> Iterator[Any]:
    """An expression and all in it."""
    yield expression
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        if (inner := getattr(expression, name, None)) is not None and not isinstance(inner, str | float):
            yield from parts(inner)
    for inner in getattr(expression, "args", ()):
        yield from parts(inner)


def selectors(text: str) -> list[Selector]:
    """What a query asks for. ValueError: it is no PromQL."""
    return [
        Selector(part.name, frozenset(one.name for one in part.matchers.matchers))
        for part in parts(promql.parse(text))
        if isinstance(part, promql.VectorSelector)
    ]


def grouped_by(text: str) -> set[str]:
    """Labels by which a query adds up or joins."""
    found: set[str] = set()
    for part in parts(promql.parse(text)):
        modifier = getattr(part, "modifier", None)
        for which in (modifier, getattr(modifier, "matching", None)):
            found |= set(getattr(which, "labels", None) or ())
    return found


def family_of(sample: str, histograms: set[str]) -> str:
    """The metric that a sample is of."""
    family = _SUFFIX.sub("", sample)
    return family if family in histograms else sample
