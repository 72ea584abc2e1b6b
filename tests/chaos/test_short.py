"""A short run of real brokers under real faults, and one with a planted mistake, which must be found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import checker, faults
from tests.extent import needs_time

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "chaos.md").read_text()
NO_NAMESPACES = 2
RUN_S_MAX = 400.0  # of which nearly all is for a machine that others use as well


def chaos(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run it as `make chaos` does; its exit code, and what it says."""
    command = [sys.executable, "-m", "tests.chaos", "--keep", "--folder", str(folder / "run"), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    return done.returncode, done.stdout + done.stderr


def report(folder: Path) -> dict:
    """What a run has written down."""
    return json.loads((folder / "run" / "report.json").read_text())  # type: ignore[no-any-return]


@needs_time
def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    some = "kill,pause,power loss of all,cut from brokers"
    code, said = chaos(tmp_path, "--seed", "3", "--minutes", "0.2", "--nats", "3", "--faults", some)
    assert code == 0, said
    found = report(tmp_path)
    assert found["mistakes"] == {}
    assert found["acked"] > 100
    assert found["struck"]


@needs_time
def test_a_planted_mistake_is_found(tmp_path: Path) -> None:
    mistake = "committed_end counts nobody of the ISR but the leader"
    run = ("--seed", "1", "--minutes", "0.2", "--faults", "cut from brokers", "--network", "namespaces")
    code, said = chaos(tmp_path, *run, "--mutant", mistake, "--no-majority-damage", "--recovery", "60")
    if code == NO_NAMESPACES:
        pytest.skip(said.strip())
    assert code == 1, said
    assert report(tmp_path)["mistakes"].keys() >= {"lost write", "inconsistent offset"}


def test_a_seed_gives_one_plan_with_each_fault_in_it() -> None:
    plan = faults.plan(7, 3, 40)
    assert plan == faults.plan(7, 3, 40)
    assert plan != faults.plan(8, 3, 40)
    assert {strike.fault for strike in plan[: len(faults.FAULTS)]} == faults.FAULTS.keys()
    assert all(strike.broker != strike.other for strike in plan)


def test_the_page_has_every_fault_and_every_class() -> None:
    assert [name for name in (*faults.FAULTS, *checker.CLASSES) if f"| {name} |" not in PAGE] == []
