"""Elections: candidates and votes.

Rules: one vote per term, only for a candidate that the term names and whose log is not behind; a vote is on the disk
before it is sent. A pre-vote asks who would vote in the next term and changes nothing, so only a candidate that can win
raises the term. A broker that hears from a leader refuses both for an election time-out, unless that leader transfers
its leadership.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from penstock.base.ids import BrokerId
from penstock.raft.log import RaftLog
from penstock.raft.messages import FROM_LEADER, AppendEntriesResponse, Message, VoteRequest, VoteResponse
from penstock.raft.quorum import Vote, count_votes


@dataclass(slots=True)
class Candidate:
    """The candidate role: in an election for `term`, or in a pre-vote for it."""

    term: int
    is_pre_vote: bool
    votes: dict[BrokerId, bool] = field(default_factory=dict)

    def count(self, voters: Collection[BrokerId], voter: BrokerId, *, is_granted: bool) -> Vote:
        """Count a vote and return the result so far; a second vote of the same broker is ignored."""
        if voter in voters:
            self.votes.setdefault(voter, is_granted)
        return count_votes(voters, self.votes)


def may_grant(message: VoteRequest, log: RaftLog, *, term: int, vote: BrokerId | None, leader: BrokerId | None) -> bool:
    """True if a broker in this state grants its vote to the sender."""
    is_free = vote == message.sender or (vote is None and leader is None)
    if message.is_pre_vote and message.term > term:
        is_free = True
    return is_free and (message.last_term, message.last_index) >= (log.last_term, log.last_index)


def refusal(message: Message, term: int) -> AppendEntriesResponse | VoteResponse | None:
    """Return the response that stops a leader or candidate of an earlier term; None for all other messages."""
    if isinstance(message, FROM_LEADER):
        return AppendEntriesResponse(message.to, message.sender, term, 0, is_rejected=True)
    if isinstance(message, VoteRequest):
        return VoteResponse(message.to, message.sender, term, message.is_pre_vote, is_granted=False)
    return None
