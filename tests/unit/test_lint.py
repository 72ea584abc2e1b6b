"""ruff and mypy have nothing to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.extent import each_change

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 600  # mypy without its cache, on a slow machine


@each_change
@pytest.mark.parametrize("command", [("ruff", "check", "--quiet", "."), ("mypy",)], ids=lambda command: command[0])
def test_has_nothing_to_say(command: tuple[str, ...]) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
