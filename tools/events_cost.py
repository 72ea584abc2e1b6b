"""What durable typed events cost, by hand: `python tools/events_cost.py [MESSAGES [ROUNDS]]`.

With 10,000 messages and 5 rounds it takes a minute or two. The turns stand in `penstock_bench.experiments.events`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from penstock_bench.experiments.events import ROUNDS, experiment


def main() -> None:
    """Print each figure: the median of the rounds, the lowest and the highest."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        found = experiment(messages, rounds).run(Path(folder), lambda name: print(name, file=sys.stderr))
    for each in found.figures:
        print(f"{each.what:70} {each.got:10.2f} {each.unit:3} ({each.low:.2f} to {each.high:.2f})")
    for note in found.notes:
        print(note)


if __name__ == "__main__":
    main()
