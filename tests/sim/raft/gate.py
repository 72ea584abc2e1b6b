"""The gate: the simulation must find every mutant.

    python -m tests.sim.raft.gate                      each mutant within 1,000 seeds; the exit code says whether
    python -m tests.sim.raft.gate NAME … [--seeds N]   only these

Each mutant runs in a process of its own, for the source is changed as it is imported.
"""

from __future__ import annotations

import subprocess
import sys
import time

from tests.sim.raft.mutants import MUTANTS, plant

SEEDS = 1_000
TIMEOUT_S = 1_200


def hunt(name: str, seeds: int) -> int:
    """In this process: the exit code, 0 if the mutant is found."""
    plant(name)
    from tests.sim.raft.schedule import run_seed

    for seed in range(seeds):
        try:
            run_seed(seed)
        except Exception as error:  # noqa: BLE001 - any failure will do, but for those of the mutant itself
            text = str(error).partition("\n")[0]
            if isinstance(error, (TypeError, NameError, AttributeError, ImportError)):
                print(f"PLANTED WRONGLY, seed {seed}: {type(error).__name__}: {text[:120]}")
                return 1
            print(f"seed {seed}: {type(error).__name__}: {text[:120]}")
            return 0
    print(f"NOT FOUND in {seeds} seeds")
    return 1


def find(name: str, seeds: int = SEEDS) -> tuple[bool, str]:
    """In a process of its own: whether the mutant is found, and how."""
    command = [sys.executable, "-m", "tests.sim.raft.gate", "--hunt", name, str(seeds)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return finished.returncode == 0, (finished.stdout + finished.stderr[-2000:]).strip()


def main(arguments: list[str]) -> int:
    """The exit code."""
    seeds = SEEDS
    if "--seeds" in arguments:
        place = arguments.index("--seeds")
        seeds = int(arguments[place + 1])
        del arguments[place : place + 2]
    missed = 0
    for name in arguments or MUTANTS:
        started_s = time.monotonic()
        is_found, text = find(name, seeds)
        missed += not is_found
        print(f"{name:20} {text}  ({time.monotonic() - started_s:.0f} s)", flush=True)
    return min(1, missed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--hunt"]:
        sys.exit(hunt(sys.argv[2], int(sys.argv[3])))
    sys.exit(main(sys.argv[1:]))
