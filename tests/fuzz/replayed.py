"""Run every input that the repository keeps, and print what comes of each: for a process in the other mode.

PENSTOCK_PLAIN=1 python -m tests.fuzz.replayed
"""

from __future__ import annotations

import hashlib
import json

from tests import hot_modes
from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS


def digests(target: str) -> list[str]:
    """Of each kept input: its name, and a digest of what comes of it."""
    run = TARGETS[target].run
    found = []
    for data in corpus.read(target):
        outcome = repr(_bare(run(hot_modes.running, data))).encode()
        found.append(f"{corpus.name_of(data)} {hashlib.sha256(outcome).hexdigest()[:12]}")
    return found


def _bare(outcome: object) -> object:
    """Without the types that one mode has and the other has not: numbers with names, rows with names."""
    if isinstance(outcome, tuple | list):
        return [_bare(one) for one in outcome]
    if isinstance(outcome, dict):
        return {key: _bare(one) for key, one in outcome.items()}
    return int(outcome) if isinstance(outcome, int) else outcome


if __name__ == "__main__":
    print(json.dumps({target: digests(target) for target in TARGETS}))
