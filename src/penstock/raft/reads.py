"""Linearizable reads (ReadIndex): a read waits until the leader has confirmed that it still leads.

Rules: a read's index is the leader's commit index when the read arrives, and not before an entry of the leader's own
term is committed: until then the leader may not know what its predecessor committed. The read is answered once a
majority has answered a round of heartbeats that began after it arrived.

Theory (Ongaro 2014, 6.4): a deposed leader does not know that it is deposed. If a majority answers it in its own term
after the read arrived, no other leader can have committed anything before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from penstock.base.ids import BrokerId
from penstock.raft.quorum import is_majority


@dataclass(frozen=True, slots=True)
class PendingRead:
    """One read, and the heartbeat round that confirms it."""

    round: int
    index: int
    requester: BrokerId
    context: bytes


class ReadQueue:
    """The reads of one leadership."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._id = broker_id
        self._early: list[tuple[BrokerId, bytes]] = []
        self._pending: deque[PendingRead] = deque()
        self._answered: dict[BrokerId, int] = {}  # the last round that each broker has answered
        self.round = 0  # the last round that began
        self.wants_round = False

    def __len__(self) -> int:
        return len(self._early) + len(self._pending)

    def add(self, requester: BrokerId, context: bytes, commit: int | None) -> None:
        """Add a read; `commit` is None while no entry of the leader's own term is committed."""
        if commit is None:
            self._early.append((requester, context))
            return
        self._pending.append(PendingRead(self.round + 1, commit, requester, context))
        self.wants_round = True

    def begin(self, commit: int) -> None:
        """Release the early reads: the first entry of the leader's own term is committed."""
        early, self._early = self._early, []
        for requester, context in early:
            self.add(requester, context, commit)

    def begin_round(self) -> None:
        """Count the heartbeats that are sent now as the next round."""
        self.round += 1
        self.wants_round = False

    def acknowledged(self, sender: BrokerId, round_: int) -> None:
        """Record that `sender` answered this round, and so all earlier ones."""
        self._answered[sender] = max(self._answered.get(sender, 0), min(round_, self.round))

    def confirmed(self, voters: Collection[BrokerId]) -> list[PendingRead]:
        """Remove and return the reads that a majority has confirmed."""
        done: list[PendingRead] = []
        while self._pending:
            round_ = self._pending[0].round
            behind = [voter for voter in voters if voter == self._id or self._answered.get(voter, 0) >= round_]
            if round_ > self.round or not is_majority(voters, behind):
                break
            done.append(self._pending.popleft())
        return done
