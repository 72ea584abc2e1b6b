"""`penstock pipeline table` and `run`, as processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import penstock
from tests.broker_process import BrokerProcess
from tests.extent import needs_time
from tests.spark.delta import delta_rows
from tests.spark.jobs.test_pipeline_archive import TIMEOUT_S, pipeline
from tests.spark.reading.test_source import filled


@needs_time
def test_a_table_says_what_it_has_done(client: penstock.Client, broker: BrokerProcess, tmp_path: Path) -> None:
    filled(client, "keyed", 100, partitions=2)
    with pipeline(broker, "table", "keyed", "--to", str(tmp_path / "t"), "--json") as running:
        out, error = running.communicate(timeout=TIMEOUT_S)
        assert running.returncode == 0, error
    batch, done = map(json.loads, out.decode().splitlines())
    assert (batch["event"], batch["rows"], batch["lag"]) == ("batch", 200, 0)
    assert done == {"event": "done", "rows": 200, "batches": 1, "keys": 7}
    with pipeline(broker, "table", "keyed", "--to", str(tmp_path / "t"), "--as-of", "5") as running:
        _, error = running.communicate(timeout=TIMEOUT_S)
        assert running.returncode == 2, error
    assert "give a time" in error.decode()


@needs_time
def test_a_function_of_a_file_is_run_and_a_missing_one_told(
    client: penstock.Client, broker: BrokerProcess, tmp_path: Path
) -> None:
    filled(client, "ran", 50)
    file = tmp_path / "mine.py"
    file.write_text("def texts(rows):\n    return rows.selectExpr('offset', 'CAST(value AS STRING) AS text')\n")
    to = str(tmp_path / "out")
    with pipeline(broker, "run", f"{file}:texts", "--from", "ran", "--to", to, "--once") as running:
        out, error = running.communicate(timeout=TIMEOUT_S)
        assert running.returncode == 0, error
    assert out.decode() == f"50 messages of ran read, and the result written to {to}\n"
    assert "Traceback" not in error.decode()
    assert delta_rows(to).num_rows == 50
    client.append("ran", [{"value": b"lost"}, {"value": b"kept"}])
    client.truncate_stream("ran", 51)
    allow = ("--option", "failOnDataLoss=false")
    with pipeline(broker, "run", f"{file}:texts", "--from", "ran", "--to", to, "--once", *allow) as running:
        _, error = running.communicate(timeout=TIMEOUT_S)
        assert running.returncode == 0, error
    warned = [line for line in error.decode().splitlines() if line.startswith("Penstock warns: ")]
    assert warned
    assert "messages 50 to 50 of stream ran, partition 0, are not in the log" in warned[0]
    file.write_text("def wrong(rows):\n    return rows.selectExpr('offset', 'raise_error(string(value)) AS text')\n")
    to = str(tmp_path / "wrong")
    with pipeline(broker, "run", f"{file}:wrong", "--from", "ran", "--to", to, "--once", temporary=tmp_path) as running:
        _, error = running.communicate(timeout=TIMEOUT_S)
        assert running.returncode == 1, error
    (log,) = tmp_path.glob("penstock-spark-*.log")
    what, where = error.decode().splitlines()
    assert what.startswith("Error: ")
    assert "USER_RAISED_EXCEPTION" in what
    assert where == f"  Spark's log is in {log}; --debug prints it to stderr instead"
    assert "kept" in log.read_text()
    with pipeline(broker, "run", f"{file}:none", "--from", "ran", "--to", to, "--once") as running:
        _, error = running.communicate(timeout=TIMEOUT_S)
        assert running.returncode == 2, error
    assert "mine.py has no function 'none'; there are wrong" in error.decode()
