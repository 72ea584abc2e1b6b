"""Packages that extras bring: percentiles, and clients of products that not everybody measures.

Rules: what a run will need is checked before it begins, by `required`: nobody measures for an hour to learn then that a
package is missing.

| module            | package          | extra              | needed for           |
|-------------------|------------------|--------------------|----------------------|
| `hdrh`            | `hdrhistogram`   | `bench`            | latency, reach       |
| `confluent_kafka` | `confluent-kafka`| `bench-kafka`      | Kafka                |
| `grpc`            | `grpcio`         | `bench-liftbridge` | Liftbridge           |
"""

from __future__ import annotations

import importlib
from typing import Any

from penstock.base.errors import OperationalError
from penstock.base.extras import how_to_install

HISTOGRAMS = "hdrh"
KAFKA = "confluent_kafka"
LIFTBRIDGE = "grpc"
_FROM = {
    HISTOGRAMS: ("hdrhistogram", "bench"),
    KAFKA: ("confluent-kafka", "bench-kafka"),
    LIFTBRIDGE: ("grpcio", "bench-liftbridge"),
}


def imported(module: str) -> Any:
    """A module of these packages; OperationalError that says how to install it."""
    package, extra = _FROM[module.partition(".")[0]]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise OperationalError(f"the Python package {package} is not installed: {how_to_install(extra)}") from None


def required(*modules: str) -> None:
    """See the module."""
    for module in modules:
        imported(module)
