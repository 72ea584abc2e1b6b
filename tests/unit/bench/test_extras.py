"""Packages of extras are looked for before a run begins, and an extra says what it is for."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench import extras
from penstock_bench.runs import latency_run, reach
from penstock_bench.systems import external, kafka, liftbridge

ADDRESS = Address("127.0.0.1", 1)
ADDRESSES = external.ProductAddresses(ADDRESS, ADDRESS, ADDRESS)
ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BENCH = tomllib.loads((ROOT / "bench" / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("module", "package", "extra", "planned"),
    [
        ("hdrh", "hdrhistogram", "bench", lambda: latency_run.planned(latency_run.LatencyWish())),
        ("hdrh", "hdrhistogram", "bench", lambda: reach.planned(short=True)),
        ("confluent_kafka", "confluent-kafka", "bench-kafka", lambda: external.variants(kafka.NAMES, ADDRESSES)),
        ("grpc", "grpcio", "bench-liftbridge", lambda: external.variants(liftbridge.NAMES, ADDRESSES)),
    ],
)
def test_a_package_that_is_missing_is_said_when_the_run_is_planned(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str, extra: str, planned: Callable[[], object]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    wanted = rf"the Python package {package} is not installed: `pip install '\.\[{extra}\]' \./bench`"
    with pytest.raises(OperationalError, match=wanted):
        planned()


def test_a_package_that_is_there_is_found() -> None:
    extras.required(extras.HISTOGRAMS, extras.PLOTS, extras.KAFKA, extras.LIFTBRIDGE)


def test_every_package_is_in_the_extra_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    always = (ROOT / "bench" / "setup.py").read_text().partition("install_requires=")[2]
    for module in (extras.HISTOGRAMS, extras.PLOTS, extras.KAFKA, extras.LIFTBRIDGE):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(OperationalError) as raised:
            extras.imported(module)
        package, extra = str(raised.value).split(" ")[3], str(raised.value).split("[")[1].split("]")[0]
        (brought,) = PROJECT["optional-dependencies"][extra]
        assert brought.partition("[")[0] == BENCH["name"]
        own = brought.partition("[")[2].rstrip("]")
        assert package in "".join(BENCH["optional-dependencies"][own] if own else always)
