"""Chance for stories of whole brokers: placement is random; what tells candidacies of one broker apart is not."""

from __future__ import annotations

from random import Random

from penstock.raft.terms import DRAWS


class Chance(Random):
    """A story's course does not hang on how often its brokers stood for election."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """As Random's; of a term always 0."""
        return 0 if (start, stop) == (DRAWS, None) else super().randrange(start, stop, step)
