"""What a typed call costs beside plain request/reply of nats-py, by hand: `python tools/rpc_cost.py [CALLS [ROUNDS]]`.

With 5,000 calls and 7 rounds it takes some two minutes. The turns stand in `penstock_bench.experiments.rpc`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from penstock_bench.experiments.rpc import ROUNDS, experiment


def main() -> None:
    """Print each figure: the median of the rounds, the lowest and the highest."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        found = experiment(calls, rounds).run(Path(folder), lambda name: print(name, file=sys.stderr))
    for each in found.figures:
        print(f"{each.what:70} {each.got:10.2f} {each.unit:3} ({each.low:.2f} to {each.high:.2f})")
    for note in found.notes:
        print(note)


if __name__ == "__main__":
    main()
