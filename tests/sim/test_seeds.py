"""Seeds that are always the same, new ones for new code, plans that once failed; and that a seed comes to the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extent import code_seed, needs_time
from tests.sim.plan.kept import load
from tests.sim.run.report import SEED_FAULTS_MIN, SEED_OPERATIONS_MIN
from tests.sim.run.run import run_plan, run_seed

ROOT = Path(__file__).resolve().parents[2]
KEPT = sorted((Path(__file__).parent / "kept").glob("*.json"))


NEW_SEEDS = 8


@pytest.mark.parametrize(
    ("seed", "brokers"), [(0, 1), *(pytest.param(*one, marks=needs_time) for one in ((1, 3), (2, 5), (8, 3)))]
)
def test_nothing_is_lost_and_all_recovers(seed: int, brokers: int) -> None:
    result = run_seed(seed, brokers)
    assert result.error == ""
    assert result.operations >= SEED_OPERATIONS_MIN
    assert result.faults >= SEED_FAULTS_MIN


@needs_time
@pytest.mark.parametrize("number", range(NEW_SEEDS))
def test_nothing_is_lost_in_seeds_that_no_other_code_had(number: int) -> None:
    seed = code_seed() + number
    assert run_seed(seed, 3).error == "", f"python -m tests.sim --seed {seed}"


@needs_time
@pytest.mark.parametrize("number", range(NEW_SEEDS // 2))
def test_observers_hold_what_they_promise_in_seeds_that_no_other_code_had(number: int) -> None:
    seed = code_seed() + number
    assert run_seed(seed, 5).error == "", f"python -m tests.sim --brokers 5 --seed {seed}"


def test_plans_are_kept() -> None:
    assert KEPT


@needs_time
@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_once_failed(path: Path) -> None:
    kept = load(path)
    assert kept.shows
    assert kept.mended_by
    assert run_plan(kept.plan()).error == ""


@needs_time
def test_a_seed_comes_to_the_same_in_any_process() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        finished = subprocess.run(
            [sys.executable, "-m", "tests.sim", "--seed", "7", "--operations", "0-600", "--quiet"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
        digests.add(finished.stdout.splitlines()[-1])
    assert len(digests) == 1
    assert digests.pop().startswith("seed 7, trace ")
