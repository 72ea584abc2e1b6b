"""One Spark session for all tests of this folder, and one broker for each module."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.spark import session
from tests.broker_process import BrokerProcess, running_broker

_QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start Spark on two cores. All tests share it, because it takes seconds to start; no test may stop it."""
    root = str(Path(__file__).parents[2])  # for Spark's workers to import the tests
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PySpark, about pandas 3
        made = session("local[2]", name="tests", config=_QUICK)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run one broker with its own nats-server."""
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as shared:
        yield shared
        assert shared.is_running, shared.said
        assert shared.stop() == 0, shared.said


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Record the files and folders that are synced from now on, in order; os.fsync still syncs them."""
    seen: list[Path] = []
    real = os.fsync

    def fsync(number: int) -> None:
        seen.append(Path(f"/proc/self/fd/{getattr(number, 'fileno', lambda: number)()}").resolve())
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    return seen


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[penstock.Client]:
    """Connect a client to the shared broker."""
    with penstock.connect(broker.client_address) as connected:
        yield connected
