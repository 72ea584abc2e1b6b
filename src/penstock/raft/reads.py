"""Reads that wait until the leader knows that it still leads.

Rules: a read's index is the leader's commit index when the leader heard of it, and not before an entry of the leader's
own term is committed: until then it may not know what its predecessor committed. It is answered when most voters have
answered a round of heartbeats that began later.

Theory (Ongaro 2014, 6.4): a deposed leader does not know that it is one. That a majority still answered it in its own
term, after the read came, means that nobody else can have committed anything before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from penstock.base.ids import BrokerId
from penstock.raft.quorum import is_majority


@dataclass(frozen=True, slots=True)
class Pending:
    """One read, and the round that confirms it."""

    round: int
    index: int
    requester: BrokerId
    context: bytes


class ReadQueue:
    """The reads of one leadership."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._id = broker_id
        self._early: list[tuple[BrokerId, bytes]] = []
        self._pending: deque[Pending] = deque()
        self._answered: dict[BrokerId, int] = {}  # the last round that each has answered
        self.round = 0  # the last one that began
        self.wants_round = False

    def __len__(self) -> int:
        return len(self._early) + len(self._pending)

    def add(self, requester: BrokerId, context: bytes, commit: int | None) -> None:
        """Ask; `commit` is None while no entry of the leader's own term is committed."""
        if commit is None:
            self._early.append((requester, context))
            return
        self._pending.append(Pending(self.round + 1, commit, requester, context))
        self.wants_round = True

    def begin(self, commit: int) -> None:
        """The first entry of the leader's own term is committed."""
        early, self._early = self._early, []
        for requester, context in early:
            self.add(requester, context, commit)

    def begin_round(self) -> None:
        """The next heartbeats go out now."""
        self.round += 1
        self.wants_round = False

    def heard(self, sender: BrokerId, round_: int) -> None:
        """`sender` answered this round, so it also answers those before."""
        self._answered[sender] = max(self._answered.get(sender, 0), min(round_, self.round))

    def confirmed(self, voters: Collection[BrokerId]) -> list[Pending]:
        """Take the reads that are sure now."""
        done: list[Pending] = []
        while self._pending:
            round_ = self._pending[0].round
            behind = [voter for voter in voters if voter == self._id or self._answered.get(voter, 0) >= round_]
            if round_ > self.round or not is_majority(voters, behind):
                break
            done.append(self._pending.popleft())
        return done
