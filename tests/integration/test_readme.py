"""The README's commands and its Python example, run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.broker_process import running_broker

README = (Path(__file__).parents[2] / "README.md").read_text()
_CLI = "from penstock.cli import main; main()"


def test_the_commands_and_then_the_python_example(tmp_path: Path) -> None:
    commands = [
        line
        for block in re.findall(r"```\n(penstock .*?)```", README, flags=re.DOTALL)
        for line in block.splitlines()
        if line.startswith("penstock ")
    ]
    assert len(commands) >= 4
    example = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0]
    with running_broker(tmp_path / "data") as broker:
        environment = {**os.environ, "PENSTOCK_SERVER": broker.client_address}
        for command in commands:
            run = [sys.executable, "-c", _CLI, *shlex.split(command)[1:]]
            done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=180, check=False)
            assert done.returncode == 0, (command, done.stderr)
        done = subprocess.run(
            [sys.executable, "-c", example], env=environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "stored at offset 1 on the disk: True" in done.stdout
        assert "[2 rows x 6 columns]" in done.stdout
