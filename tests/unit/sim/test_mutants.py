"""The planted mistakes: each can be made, and is made only where it was asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.sim.mutants import (
    CLUSTER_MUTANTS,
    MUTANTS,
    MUTANTS_OF_DISKS,
    MUTANTS_OF_OBSERVERS,
    MUTANTS_OF_RIGHTS,
)
from penstock.sim.planting import Mutant
from tests.extent import needs_time


@pytest.mark.parametrize(
    "mutant",
    [*MUTANTS, *CLUSTER_MUTANTS, *MUTANTS_OF_RIGHTS, *MUTANTS_OF_OBSERVERS, *MUTANTS_OF_DISKS],
    ids=lambda mutant: mutant.name,
)
def test_its_text_is_there_once_and_what_replaces_it_compiles(mutant: Mutant) -> None:
    for patch in mutant.patches:
        spec = find_spec(patch.module)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).read_text()
        assert source.count(patch.old) == 1
        assert patch.old != patch.new
        compile(source.replace(patch.old, patch.new), patch.module, "exec")


@needs_time
def test_a_process_that_installs_one_has_it_and_no_other_has() -> None:
    code = (
        "from penstock.sim import mutants; mutants.install('says synced what is not');"
        "from penstock.sim.run import run_seeds, run_seed; print(any(run_seed(seed, 1).error for seed in range(5)))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert finished.stdout.strip() == "True"
