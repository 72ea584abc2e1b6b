"""An election: who stands, and who votes for it.

Rules: one vote a term, for its candidate, if its log is not behind; a vote is on the disk before anybody hears of it. A
pre-vote asks who would vote, in the term that would be, and changes nothing: only who can win raises the term. Who
hears a leader refuses both for an election timeout, unless that leader hands over.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from penstock.base.ids import BrokerId
from penstock.raft.log import RaftLog
from penstock.raft.messages import FROM_LEADER, AppendResponse, Message, VoteRequest, VoteResponse
from penstock.raft.quorum import Vote, count_votes


@dataclass(slots=True)
class Candidate:
    """The role: stands for election in `term`, or asks who would vote for it in that one."""

    term: int
    is_pre_vote: bool
    votes: dict[BrokerId, bool] = field(default_factory=dict)

    def count(self, voters: Collection[BrokerId], voter: BrokerId, *, is_granted: bool) -> Vote:
        """How it stands with one more vote; a second one of the same broker is none."""
        if voter in voters:
            self.votes.setdefault(voter, is_granted)
        return count_votes(voters, self.votes)


def may_grant(message: VoteRequest, log: RaftLog, *, term: int, vote: BrokerId | None, leader: BrokerId | None) -> bool:
    """Whether a broker in this state votes for the sender."""
    is_free = vote == message.sender or (vote is None and leader is None)
    if message.is_pre_vote and message.term > term:
        is_free = True
    return is_free and (message.last_term, message.last_index) >= (log.last_term, log.last_index)


def refusal(message: Message, term: int) -> AppendResponse | VoteResponse | None:
    """What to say to who leads or stands in a term before `term`: it would go on for ever; None to all others."""
    if isinstance(message, FROM_LEADER):
        return AppendResponse(message.to, message.sender, term, 0, is_rejected=True)
    if isinstance(message, VoteRequest):
        return VoteResponse(message.to, message.sender, term, message.is_pre_vote, is_granted=False)
    return None
