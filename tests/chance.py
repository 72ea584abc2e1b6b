"""Randomness for scenarios of whole brokers: random placement, but a fixed random part in Raft terms."""

from __future__ import annotations

from random import Random

from penstock.raft.terms import DRAWS


class Chance(Random):
    """A seeded source whose draws do not depend on the number of candidacies before."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """Return 0 for the random part of a term; else a random number."""
        return 0 if (start, stop) == (DRAWS, None) else super().randrange(start, stop, step)
