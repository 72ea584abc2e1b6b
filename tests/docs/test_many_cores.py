"""The page on many cores: its commands work as they stand, and what it says of them is so."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.broker.config.config import load
from penstock.broker.supervision.child import parse_ready
from penstock.broker.supervision.machine import planned
from tests.broker_process import BrokerProcess, broker_environment
from tests.docs.pages import settings_of
from tests.extent import needs_time

PAGE = (Path(__file__).parents[2] / "docs/how-to/many-cores.md").read_text(encoding="utf-8")
LINES = [
    line
    for block in re.findall(r"^```(?:text)?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
TIMEOUT_S = 120


@needs_time
def test_its_commands_work(tmp_path: Path) -> None:
    assert "penstock serve --brokers 4" in LINES
    (shown,) = [ready for line in LINES if (ready := parse_ready(line)) is not None]
    machine = BrokerProcess(tmp_path / "data", "--brokers", "4")
    try:
        machine.start()
        assert machine.client_address.count(",") == shown.client.count(",") == 3
        environment = broker_environment({"PENSTOCK_SERVER": machine.client_address})
        commands = [line for line in LINES if line.startswith(("penstock status", "penstock stream"))]
        assert len(commands) == 2
        for line in commands:
            command = [sys.executable, "-W", "error", "-m", *shlex.split(line)]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
            assert done.returncode == 0, done.stderr
        assert machine.stop() == 0
    finally:
        machine.end()


def test_its_machines_make_one_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cluster.secret", "admin.password"):
        (tmp_path / name).write_text("a secret that is long enough for all of it\n")
    lines = [line for line in LINES if line.startswith("penstock serve") and "--nats" in line]
    assert len(lines) == 2
    for line in lines:
        configs, _ = planned(load(environment={}, flags=settings_of(shlex.split(line)[2:])), None)
        assert len(configs) == 4
    for first in (1, 101, 201):
        configs, _ = planned(
            load(environment={}, flags={**settings_of(shlex.split(lines[0])[2:]), "id": str(first)}), None
        )
        assert [one.broker_id for one in configs] == list(range(first, first + 4))
        assert [bool(one.voters) for one in configs] == [True, False, False, False]
