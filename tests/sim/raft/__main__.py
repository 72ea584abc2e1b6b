"""`python -m tests.sim.raft [COUNT] [FIRST]`: run COUNT seeds (200) from FIRST (0) on; every failure is named."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter

from tests.sim.raft.schedule import run_seed


def main(count: int, first: int) -> int:
    """The number of seeds that failed."""
    started_s = time.monotonic()
    counts: Counter[str] = Counter()
    failed = 0
    for seed in range(first, first + count):
        try:
            result = run_seed(seed)
        except Exception as error:  # noqa: BLE001 - the others are still to run
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            if failed == 1:
                traceback.print_exc(file=sys.stdout)
            continue
        counts += result.counts + Counter({"acks": result.acks, "reads": result.reads})
    print(f"{count} seeds from {first} on, {failed} failed, {time.monotonic() - started_s:.0f} s")
    print(", ".join(f"{number} {name}" for name, number in sorted(counts.items())))
    return failed


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    sys.exit(min(1, main(*(numbers + [200, 0][len(numbers) :]))))
