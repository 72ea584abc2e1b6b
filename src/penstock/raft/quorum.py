"""Quorum arithmetic: the commit index and election results.

Rules: only voters count. An empty membership commits nothing and elects no leader.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from penstock.base.ids import BrokerId


class Vote(Enum):
    """The state of an election."""

    WON = "won"
    LOST = "lost"
    OPEN = "open"


def is_majority(voters: Collection[BrokerId], those: Collection[BrokerId]) -> bool:
    """True if `those` include more than half of the voters."""
    return 2 * sum(voter in those for voter in voters) > len(voters)


def committed_index(voters: Collection[BrokerId], match_indexes: Mapping[BrokerId, int]) -> int:
    """Return the highest index that more than half of the voters have; a voter that is not listed has nothing."""
    if not voters:
        return 0
    matched = sorted((match_indexes.get(voter, 0) for voter in voters), reverse=True)
    return matched[len(matched) // 2]


def count_votes(voters: Collection[BrokerId], votes: Mapping[BrokerId, bool]) -> Vote:
    """Return the state of an election with these votes."""
    if is_majority(voters, [voter for voter, granted in votes.items() if granted]):
        return Vote.WON
    refused = sum(not votes.get(voter, True) for voter in voters)
    return Vote.LOST if 2 * (len(voters) - refused) <= len(voters) else Vote.OPEN
