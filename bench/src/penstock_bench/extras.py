"""Packages of the benchmark that only some runs need: percentiles, plots, and clients of other products.

Rules: `required` checks the packages of a run before it begins, so that a missing one does not end a long run.

| module            | package          | extra              | needed for           |
|-------------------|------------------|--------------------|----------------------|
| `hdrh`            | `hdrhistogram`   | `bench`            | latency, reach       |
| `matplotlib`      | `matplotlib`     | `bench`            | `--html`             |
| `confluent_kafka` | `confluent-kafka`| `bench-kafka`      | Kafka                |
| `grpc`            | `grpcio`         | `bench-liftbridge` | Liftbridge           |
| `thrift`          | `thrift`         | `frugal`           | decode               |
| `polars`          | `polars`         | `polars`           | decode               |
"""

from __future__ import annotations

import importlib
from typing import Any

from penstock.base.errors import OperationalError
from penstock.base.extras import how_to_install

HISTOGRAMS = "hdrh"
PLOTS = "matplotlib"
KAFKA = "confluent_kafka"
LIFTBRIDGE = "grpc"
THRIFT = "thrift"
POLARS = "polars"
_FROM = {
    HISTOGRAMS: ("hdrhistogram", "bench"),
    PLOTS: ("matplotlib", "bench"),
    KAFKA: ("confluent-kafka", "bench-kafka"),
    LIFTBRIDGE: ("grpcio", "bench-liftbridge"),
    THRIFT: ("thrift", "frugal"),
    POLARS: ("polars", "polars"),
}


def imported(module: str) -> Any:
    """Import a module of these packages. Raise OperationalError that says how to install it."""
    package, extra = _FROM[module.partition(".")[0]]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise OperationalError(f"the Python package {package} is not installed: {how_to_install(extra)}") from None


def required(*modules: str) -> None:
    """Raise OperationalError if a module is missing."""
    for module in modules:
        imported(module)
