"""Excuse: an added partition takes no messages while a partition that keys leave is stuck.

Rules: each partition that there was before marks where its keys leave it, also one that keeps all of them; an added
partition takes its first message once all marks of its growth are there (`replicas.key_migration`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from penstock.metadata.image import StreamState


def waits_for_stuck(state: StreamState, number: int, is_stuck: Callable[[int], bool]) -> bool:
    """True if a mark is missing without which a partition takes no messages, and a stuck partition has to make it."""
    if not state.moves_keys:
        return False
    growth = next((one for one in pairwise(state.counts) if one[0] <= number < one[1]), (0, 0))
    missing = set(range(growth[0])) - state.marked(growth[1]).keys()
    return any(is_stuck(one) or waits_for_stuck(state, one, is_stuck) for one in missing)
