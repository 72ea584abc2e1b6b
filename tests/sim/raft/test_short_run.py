"""A short run of the simulation, the same one each time, and what it must be able to find.

`python -m tests.sim.raft 2000` runs more, `python -m tests.sim.raft.gate` hunts all the mutants.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.extent import each_change
from tests.sim.raft.gate import find
from tests.sim.raft.mutants import MUTANTS
from tests.sim.raft.schedule import run_seed

SEEDS = range(60)

counts: Counter[str] = Counter()


@each_change
@pytest.mark.parametrize("group", range(6))
def test_seeds(group: int) -> None:
    for seed in SEEDS[group::6]:
        result = run_seed(seed)
        counts.update(result.counts)
        counts.update(acks=result.acks, reads=result.reads)


def test_enough_happened() -> None:
    if not counts:
        pytest.skip("runs after the others")
    names = ("acks", "reads", "crashes", "changes", "compactions", "snapshots installed", "transfers", "retracted")
    for name in (*names, "set back"):
        assert counts[name] >= 10, name
    assert counts["contradictions"] >= 3


@pytest.mark.parametrize("seed", [3, 7])
def test_a_seed_always_goes_the_same_way(seed: int) -> None:
    assert run_seed(seed) == run_seed(seed)


@each_change
def test_a_seed_goes_the_same_way_in_every_process() -> None:
    program = "from tests.sim.raft.schedule import run_seed; print(run_seed(5).trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert traces == {run_seed(5).trace + "\n"}


@each_change
@pytest.mark.parametrize("name", ["nameless_term", "vote_stale", "no_fsync"])
def test_a_mutant_is_found(name: str) -> None:
    is_found, text = find(name, seeds=30)
    assert is_found, text


def test_mutants_say_what_is_wrong_with_them() -> None:
    assert all(mutant.mistake and mutant.old != mutant.new for mutant in MUTANTS.values())
