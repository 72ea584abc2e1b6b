"""Each row is written once: whatever fails at whichever step of stage, publish and commit, and however it goes on.

The query reads a stream of four partitions, spreads its rows anew in each attempt, and writes them to another one, on
three brokers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses, running_cluster
from tests.spark.writing.faults import FaultySource, Points

ROWS = 3_000
BATCH_ROWS = 1_000
PARTITIONS = 4

pytestmark = needs_time


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as brokers:
        asyncio.run(brokers.all_live())
        yield brokers
        assert "Traceback" not in brokers.said


@pytest.fixture
def client(cluster: ClusterProcesses) -> Iterator[penstock.Client]:
    with penstock.connect([one.client_address for one in cluster.brokers.values()]) as connected:
        yield connected


class Job:
    """The query, from a stream of its own to another."""

    def __init__(self, spark: SparkSession, cluster: ClusterProcesses, client: penstock.Client, folder: Path) -> None:
        self.name = folder.name.replace("[", "_").replace("]", "").replace("-", "_")
        self.faults = folder / "faults"
        self._spark = spark
        self._client = client
        self.servers = ",".join(one.client_address for one in cluster.brokers.values())
        self._checkpoint = folder / "checkpoint"
        for which in ("in", "out"):
            client.create_stream(f"{self.name}_{which}", f"{self.name}.{which}", partitions=PARTITIONS, timeout=30)
        for number in range(PARTITIONS):
            rows = [
                {"key": b"k%d" % (one % 97), "value": b"%d.%d" % (number, one)} for one in range(ROWS // PARTITIONS)
            ]
            client.append(f"{self.name}_in", rows, partition=number)

    def start(self, to: str = "penstock-faulty") -> StreamingQuery:
        self._spark.dataSource.register(FaultySource)
        source = self._spark.readStream.format("penstock").options(
            servers=self.servers, stream=f"{self.name}_in", startingOffsets="earliest", maxOffsetsPerTrigger=BATCH_ROWS
        )
        rows = source.load().select("key", "value").repartition(3)  # round robin: each attempt spreads them otherwise
        sink = rows.writeStream.format(to).options(servers=self.servers, stream=f"{self.name}_out")
        if to != "penstock":
            sink = sink.option("faults", str(self.faults))
        return sink.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True).start()

    def run(self) -> None:
        self.start().awaitTermination()

    def check(self) -> None:
        """Each row is there once, and each key in one partition."""
        found = list(self._client.messages(f"{self.name}_out", timeout=30))
        values = Counter(one.value for one in found)
        wanted = {b"%d.%d" % (number, one) for number in range(PARTITIONS) for one in range(ROWS // PARTITIONS)}
        assert {value for value, count in values.items() if count > 1} == set()
        assert set(values) == wanted
        places: dict[bytes | None, set[int]] = {}
        for one in found:
            places.setdefault(one.key, set()).add(one.partition)
        assert all(len(numbers) == 1 for numbers in places.values())


@pytest.fixture
def job(spark: SparkSession, cluster: ClusterProcesses, client: penstock.Client, tmp_path: Path) -> Job:
    return Job(spark, cluster, client, tmp_path)


_POINTS = [
    *(
        f"{what} {number} {when}"
        for what in ("stage", "publish")
        for number in (1, 3, 6)
        for when in ("before", "after")
    ),
    "commit after",
]


@pytest.mark.parametrize("point", _POINTS)
def test_what_fails_at_a_step_is_done_again_and_nothing_twice(job: Job, point: str) -> None:
    Points.at(job.faults, point)
    with pytest.raises(StreamingQueryException, match="the test has this fail"):
        job.run()
    assert Points.has_failed(job.faults)
    job.run()
    job.check()


def test_it_goes_on_through_one_failure_after_the_other(job: Job) -> None:
    for point in ("stage 2 after", "publish 1 after", "publish 2 before", "commit after", "publish 4 after"):
        Points.at(job.faults, point)
        with pytest.raises(StreamingQueryException, match="the test has this fail"):
            job.run()
    job.run()
    job.check()


def test_a_leader_that_is_killed_meanwhile_is_waited_for(job: Job, cluster: ClusterProcesses) -> None:
    Points.at(job.faults, "never")
    query = job.start()
    victim = next(one for one in cluster.brokers.values() if one.is_running)
    killed, over = threading.Event(), threading.Event()

    def kill_once_rows_are_there() -> None:
        with penstock.connect([one.client_address for one in cluster.brokers.values()]) as watching:
            while not over.is_set() and not any(
                watching.offsets(f"{job.name}_out", "latest", partition=number, timeout=30).offset
                for number in range(PARTITIONS)
            ):
                pass
            if not over.is_set():
                victim.kill()
                killed.set()

    watcher = threading.Thread(target=kill_once_rows_are_there)
    watcher.start()
    try:
        assert killed.wait(120)
        assert query.isActive
        query.awaitTermination()
    finally:
        over.set()
        watcher.join()
    victim.start()
    job.check()


def test_a_driver_that_is_killed_is_replaced(job: Job, client: penstock.Client, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.writing.driver", job.servers, f"{job.name}_in", f"{job.name}_out"]
    command.append(str(tmp_path / "checkpoint"))
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root, start_new_session=True, stderr=subprocess.PIPE) as driver:
        try:
            while driver.poll() is None and not client.offsets(f"{job.name}_out", "latest", timeout=30).offset:
                pass
            assert driver.poll() is None, driver.communicate()
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    first = sum(1 for _ in client.messages(f"{job.name}_out"))
    assert 0 < first < ROWS
    done = subprocess.run(command, cwd=root, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    job.check()
