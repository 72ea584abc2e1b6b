"""The same programs on clusters: Spark's own local one, and a standalone master with two workers, on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

import penstock
from penstock.spark.runtime import java
from tests.broker_process import BrokerProcess, Child
from tests.extent import needs_time
from tests.spark.delta import delta_rows
from tests.spark.reading.test_source import filled

pytestmark = needs_time

TIMEOUT_S = 280
SPARK = Path(pyspark.__file__).parent
SOURCES = Path(penstock.__file__).parents[1]
_SMALL = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
SUBMIT = (
    str(SPARK / "bin" / "spark-submit"),
    "--driver-memory", "512m", "--executor-memory", "512m", "--conf", "spark.driver.host=127.0.0.1",
)  # fmt: skip

SCRIPT = """
import sys
from penstock.spark import register, session

servers, stream = sys.argv[1:]
spark = session(name="tests")
register(spark)
rows = spark.read.format("penstock").options(servers=servers, stream=stream, minPartitions="4").load()
print("counted", rows.count(), spark.sparkContext.master, rows.selectExpr("sum(offset)").collect()[0][0])
where = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("penstock").__file__)
print("from", where.collect()[0])
spark.stop()
"""

SPECULATING = """
import sys, time
from pathlib import Path
from penstock.spark import session

servers, stream, seen = sys.argv[1:]

def slow(batches):
    import pyarrow as pa
    from pyspark import TaskContext

    task = TaskContext.get()
    Path(seen, f"{task.partitionId()}-{task.attemptNumber()}").touch()
    for batch in batches:
        yield pa.record_batch({"value": batch.column("id").cast(pa.string()).cast(pa.binary())})
    if (task.partitionId(), task.attemptNumber()) == (1, 0):
        time.sleep(60)

quickly = {"interval": "100ms", "quantile": "0.5", "multiplier": "1.1", "minTaskRuntime": "100ms"}
config = {"spark.speculation": "true", **{f"spark.speculation.{name}": value for name, value in quickly.items()}}
spark = session(name="tests", config=config)
rows = spark.range(0, 1000, 1, 2).mapInArrow(slow, "value binary")
rows.write.format("penstock").options(servers=servers, stream=stream).mode("append").save()
spark.stop()
"""


def environment() -> dict[str, str]:
    return {
        **os.environ,
        **_SMALL,
        "JAVA_HOME": str(java.choose().home),
        "PYSPARK_PYTHON": sys.executable,
    }


class Daemon(Child):
    """A master or a worker: it ends with the test."""

    def run(self, work: Path, *arguments: str) -> None:
        work.mkdir(parents=True, exist_ok=True)
        program = "org.apache.spark.deploy." + arguments[0]
        # spark-class becomes the JVM by exec: who ends this process ends all of it.
        self._launch(
            [str(SPARK / "bin" / "spark-class"), program, *arguments[1:]],
            environment() | {"SPARK_WORKER_DIR": str(work)},
        )


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a standalone master with two workers of one core each."""
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        daemons = [Daemon() for _ in range(3)]
        for one in daemons:
            stack.callback(one.end)
        first, *workers = daemons
        first.run(folder / "master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        assert first.stderr is not None
        url = first.stderr.wait_for(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)", TIMEOUT_S).group(1)
        for number, worker in enumerate(workers):
            work = folder / f"worker-{number}"
            options = (
                "--host",
                f"127.0.0.{number + 1}",  # Spark runs no second attempt at a task on the same host
                "--webui-port",
                "0",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                str(work),
            )
            worker.run(work, "worker.Worker", *options, url)
        for worker in workers:
            assert worker.stderr is not None
            worker.stderr.wait_for(r"Successfully registered with master", TIMEOUT_S)
        yield url


def done(folder: Path, *command: str) -> str:
    """What a command says that must succeed."""
    answer = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert answer.returncode == 0, (answer.stdout, answer.stderr)
    return answer.stdout


def test_a_program_is_submitted_to_a_cluster(
    client: penstock.Client, broker: BrokerProcess, master: str, tmp_path: Path
) -> None:
    filled(client, "submitted", 1_000, partitions=2)
    (tmp_path / "program.py").write_text(SCRIPT)
    out = done(tmp_path, *SUBMIT, "--master", master, "program.py", broker.client_address, "submitted")
    assert re.search(rf"counted 2000 {master} 999000", out), out


def test_a_job_runs_on_a_cluster(client: penstock.Client, broker: BrokerProcess, master: str, tmp_path: Path) -> None:
    filled(client, "clustered", 1_000, partitions=2)
    to = str(tmp_path / "t")
    settings = ("--config", "spark.driver.host=127.0.0.1", "--config", "spark.executor.memory=512m")
    command = (sys.executable, "-m", "penstock", "--server", broker.client_address, "pipeline", "table", "clustered")
    assert "which has 7 keys" in done(tmp_path, *command, "--to", to, "--master", master, *settings)
    assert delta_rows(to).num_rows == 7


def test_a_slow_task_is_run_twice_at_once_and_written_once(
    client: penstock.Client, broker: BrokerProcess, master: str, tmp_path: Path
) -> None:
    client.create_stream("speculated", "speculated", partitions=2)
    (tmp_path / "program.py").write_text(SPECULATING)
    (tmp_path / "seen").mkdir()
    done(
        tmp_path, *SUBMIT, "--master", master, "program.py", broker.client_address, "speculated", str(tmp_path / "seen")
    )
    assert sorted(one.name for one in (tmp_path / "seen").iterdir()) == ["0-0", "1-0", "1-1"]
    values = [row.as_py() for one in range(2) for row in client.to_table("speculated", partition=one)["value"]]
    assert sorted(values) == sorted(b"%d" % number for number in range(1_000))


def test_workers_of_sparks_own_local_cluster_do_it(
    client: penstock.Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "workers", 1_000, partitions=2)
    to = str(tmp_path / "t")
    command = (sys.executable, "-m", "penstock", "--server", broker.client_address, "pipeline", "table", "workers")
    out = done(tmp_path, *command, "--to", to, "--master", "local-cluster[2,1,1024]", "--buckets", "4")
    assert "which has 7 keys" in out


def test_workers_without_penstock_are_sent_it(
    client: penstock.Client, broker: BrokerProcess, master: str, tmp_path: Path
) -> None:
    filled(client, "sent", 1_000, partitions=2)
    (tmp_path / "program.py").write_text(SCRIPT)
    with zipfile.ZipFile(tmp_path / "penstock.zip", "w") as archive:
        for package in ("penstock", "pyspark_penstock"):
            for file in sorted((SOURCES / package).rglob("*.p[yx]*")):
                if "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(SOURCES))
    options = ("--py-files", "penstock.zip", "--conf", f"spark.pyspark.python={bare_python(tmp_path)}")
    driver = ("--conf", f"spark.pyspark.driver.python={sys.executable}")
    out = done(
        tmp_path, *SUBMIT, "--master", master, *options, *driver, "program.py", broker.client_address, "sent"
    )  # fmt: skip
    assert "counted 2000" in out
    assert re.search(r"from .*penstock\.zip/penstock/__init__\.py", out), out


def bare_python(folder: Path) -> Path:
    """A Python that has all but Penstock: as workers have where nothing of it is installed."""
    site = folder / "site"
    site.mkdir()
    for place in map(Path, filter(lambda one: one.endswith("site-packages"), sys.path)):
        for one in place.iterdir():
            if "penstock" not in one.name and one.suffix != ".pth" and not (site / one.name).exists():
                (site / one.name).symlink_to(one)
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    return program
