"""`penstock pipeline archive`, as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from tests.broker_process import BrokerProcess, Lines
from tests.extent import needs_time
from tests.spark.jobs.test_archive import expected, rows_of
from tests.spark.reading.test_source import filled

TIMEOUT_S = 180


@contextmanager
def pipeline(
    broker: BrokerProcess, *arguments: str, temporary: Path | None = None, is_group: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is ended with the test. `temporary`: its temporary folder; `is_group`: signals reach its Java."""
    sources = str(Path(penstock.__file__).parents[1])
    environment = {**os.environ, "PENSTOCK_SERVER": broker.client_address, "PYTHONPATH": sources}
    command = [sys.executable, "-m", "penstock", "pipeline", *arguments, "--master", "local[1]"]
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    running = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=is_group
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate(timeout=TIMEOUT_S)


@needs_time
def test_it_says_what_it_has_done(client: penstock.Client, broker: BrokerProcess, tmp_path: Path) -> None:
    filled(client, "said", 100, partitions=2)
    temporary = tmp_path / "_temporary"
    temporary.mkdir()
    with pipeline(broker, "archive", "said", "--to", str(tmp_path), "--json", temporary=temporary) as running:
        out, error = running.communicate(timeout=TIMEOUT_S)
        assert running.returncode == 0, error
    assert error == b""  # Java's noise is nobody's business
    assert list(temporary.glob("*.log")) == []
    batch, done = map(json.loads, out.decode().splitlines())
    assert (batch["event"], batch["rows"], batch["lag"]) == ("batch", 200, 0)
    assert done.pop("name").startswith(tmp_path.name[:20])
    assert done.pop("ends") == {"said": {"0": 100, "1": 100}}
    assert done == {"event": "done", "rows": 200, "files": 1, "batches": 1, "rejected": 0}
    assert "rejected" not in batch, "nothing is decoded"
    assert rows_of(tmp_path) == expected(2, 100)


@needs_time
def test_it_goes_on_until_it_is_told_to_end(client: penstock.Client, broker: BrokerProcess, tmp_path: Path) -> None:
    filled(client, "goes", 100)
    options = ("--continuous", "--trigger", "1ms", "--min-batch", "1")
    with pipeline(broker, "archive", "goes", "--to", str(tmp_path), *options) as running:
        assert running.stderr is not None
        said = Lines(running.stderr)
        said.wait_for(r"goes to .*: batch 1 · 100 rows in ", TIMEOUT_S)
        client.append("goes", [{"value": b"more"}])
        said.wait_for(r"batch 2 · 1 row in .* · lag 0", TIMEOUT_S)
        running.send_signal(signal.SIGINT)
        assert running.wait(TIMEOUT_S) == 130, said.text
    assert "Traceback" not in said.text
    assert rows_of(tmp_path) == expected(1, 101)


@needs_time
def test_a_signal_to_all_of_its_processes_is_no_error(
    client: penstock.Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "ended", 100)
    options = ("--continuous", "--trigger", "1ms", "--min-batch", "1")
    with pipeline(broker, "archive", "ended", "--to", str(tmp_path), *options, is_group=True) as running:
        assert running.stderr is not None
        said = Lines(running.stderr)
        said.wait_for(r"batch 1 · 100 rows in ", TIMEOUT_S)
        os.killpg(running.pid, signal.SIGTERM)
        assert running.wait(TIMEOUT_S) == 143, said.text
    assert len(said.text.splitlines()) == 1, said.text


@needs_time
def test_streams_that_come_to_match_are_archived(
    client: penstock.Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "come_1", 100)
    options = ("--continuous", "--trigger", "1ms", "--min-batch", "1")
    with pipeline(broker, "archive", "come_*", "--to", str(tmp_path), *options) as running:
        assert running.stderr is not None
        said = Lines(running.stderr)
        said.wait_for(r"batch 1 · 100 rows in ", TIMEOUT_S)
        filled(client, "come_2", 50)
        said.wait_for(r"batch 2 · ", TIMEOUT_S)
    (first,) = tmp_path.glob("date=*/topic=come_2/*.parquet")
    assert first.name.startswith("0" * 20)


@needs_time
def test_a_wrong_option_is_said_before_anything_runs(broker: BrokerProcess, tmp_path: Path) -> None:
    with pipeline(broker, "archive", "none", "--to", "s3://bucket/lake") as running:
        _, error = running.communicate(timeout=TIMEOUT_S)
        assert running.returncode == 2, error
    assert "s3://bucket/lake is no folder" in error.decode()
