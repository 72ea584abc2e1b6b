"""A query that ends before its stream does: nothing reads on while the process ends, and Ctrl-C stops it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.broker_process import broker_environment, running_broker
from tests.extent import each_change

pytestmark = each_change

ROWS, RUNS, TIMEOUT_S = 300_000, 3, 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("sql") / "data") as broker:
        with penstock.connect(broker.client_address) as client:
            client.create_stream("big", "big.>")
            for _ in range(ROWS // 100_000):
                client.append("big", [{"subject": "big.a", "value": b"x"}] * 100_000)
        yield broker.client_address


def started(server: str, query: str, *options: str) -> subprocess.Popen[str]:
    """A new interpreter: one that is forked ends in another way."""
    command = [sys.executable, "-m", "penstock", "sql", query, *options]
    environment = broker_environment({"PENSTOCK_SERVER": server})
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("output", ["json", "file"])
def test_a_limit_ends_it_with_0(server: str, output: str, tmp_path: Path) -> None:
    options = ["-o", "json"] if output == "json" else ["--output", str(tmp_path / "first.parquet"), "--force"]
    for _ in range(RUNS):
        with started(server, 'SELECT "offset" FROM big LIMIT 2', *options) as running:
            said, errors = running.communicate(timeout=TIMEOUT_S)
        assert running.returncode == 0, errors
        assert said == ('{"offset":0}\n{"offset":1}\n' if output == "json" else "")
        assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("query", "code", "text"),
    [
        ("", 2, "the query is empty"),
        ("SELECT 1; SELECT 2", 2, "give one statement, not 2"),
        ("PIVOT big ON subject USING count(*)", 2, "PIVOT needs the values"),
        ("SHOW TABLES", 2, "penstock stream list"),
        ("DROP TABLE big", 2, "this is DROP: write a SELECT"),
        ("SELECT 1 FROM big WHERE offset > 3", 2, 'write "offset"'),
        ("SELECT max(value->>'a') FROM (SELECT * FROM big LIMIT 1)", 0, "write decode(value)->>'field'"),
    ],
)
def test_what_is_no_query_of_streams_is_told(server: str, query: str, code: int, text: str) -> None:
    with started(server, query) as running:
        _, errors = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == code, errors
    assert text in errors


def test_streams_whose_names_differ_in_case_are_told_apart(server: str) -> None:
    with penstock.connect(server) as client:
        for name in ("Cas", "cas"):
            client.create_stream(name, f"{name}.>")
    with started(server, 'SELECT count(*) FROM "Cas", "cas"') as running:
        _, errors = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 2
    assert "SQL does not tell Cas and cas apart" in errors


def test_ctrl_c_ends_it_without_a_traceback(server: str) -> None:
    with started(server, 'SELECT a."offset", b."offset" FROM big a, big b') as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 130, errors
    assert errors == ""
