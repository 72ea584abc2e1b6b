"""Raft: a log that a majority of brokers agrees on, despite lost, late and duplicated messages and restarts.

Rules: inputs (`tick`, `step`, `propose` …) only change memory and record what has to be done; `ready` hands that out;
the driver does it in the order of Ready's fields, then calls `advance`. Between the two no input is given: the driver
queues messages, and passes on one of the ticks that it missed. A message may hold anything that a peer can send: one
that contradicts this broker's state is dropped and counted. No input from outside ends in an assertion.

Theory: Ongaro, "Consensus: bridging theory and practice" (2014), chapters 3, 4 and 6 and section 9.6. The shape is that
of etcd's RawNode.

| role      | leaves it when                                                  | for                     |
|-----------|-----------------------------------------------------------------|-------------------------|
| Follower  | no leader for an election timeout (10 to 19 ticks)              | Candidate (pre-vote)    |
| Follower  | the leader hands over (LeadNow)                                 | Candidate               |
| Candidate | a majority would vote for it (pre-vote: the term stays)         | Candidate (real)        |
| Candidate | a majority votes for it                                         | Leader                  |
| Candidate | a majority refuses, or another broker leads                     | Follower                |
| Leader    | no majority answered for 10 ticks, or it was removed            | Follower                |
| any       | a message has a later term (except a pre-vote)                  | Follower                |

A broker that hears from a leader refuses votes for an election time-out (the leader's lease), so a broker that returns
from a network partition, or was removed, does not disturb a working cluster.

A term names its candidate (`terms`), so it has one leader even if a voter has forgotten its vote.

A request is accepted by its term and its log, not by the sender's membership: a lagging broker may not know yet that
its leader has joined. Responses are accepted only from members.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.raft.election import Candidate, may_grant, refusal
from penstock.raft.errors import ChangeRefusedError, NotLeaderError
from penstock.raft.follower import Contradiction, Follower, take_append, take_chunk, take_heartbeat
from penstock.raft.leader import Leader
from penstock.raft.log import RaftLog
from penstock.raft.membership import encode_membership, flaw_in_change
from penstock.raft.messages import (
    FROM_LEADER,
    FROM_MEMBERS,
    AppendEntriesRequest,
    AppendEntriesResponse,
    LeadNow,
    Message,
    RaftHeartbeat,
    RaftHeartbeatResponse,
    ReadRequest,
    ReadResponse,
    SnapshotChunk,
    SnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from penstock.raft.quorum import Vote
from penstock.raft.terms import DRAWS, ROUND_MAX, next_term, round_of
from penstock.raft.values import (
    ElectionRandom,
    Entry,
    EntryKind,
    HardState,
    RaftConfig,
    RaftMembership,
    Read,
    Ready,
    Snapshot,
    StoredState,
)
from penstock.raft.wire import is_believable


class Raft:
    """One broker's part in Raft. Not thread-safe: one owner drives it, by the module's rules."""

    def __init__(self, config: RaftConfig, chance: ElectionRandom, state: StoredState) -> None:
        self.config = config
        self.id = config.id
        self.dropped = 0  # messages that contradicted this broker's state
        # with the leader's log; if set, this broker takes no part any more
        self.contradiction: Contradiction | None = None
        self.may_stand = True  # if False, this broker follows and votes, but never starts an election
        self._chance = chance
        self._log = RaftLog(state)
        if self._log.membership.voters == (self.id,):
            # The only voter's log is committed: no other broker could be elected without it.
            self._log.commit_to(self._log.last_index)
        self._term = state.hard_state.term
        self._vote = state.hard_state.vote
        self._saved = HardState(self._term, self._vote, self._log.commit)
        self._messages: list[Message] = []
        self._reads: list[Read] = []
        self._out: Ready | None = None
        self._silent_ticks = 0  # since the last message from a leader, or the last vote given
        self._patience_ticks = 0
        self._role: Follower | Candidate | Leader = Follower(None)
        self._draw_patience()

    # State

    @property
    def is_leader(self) -> bool:
        """True if this broker leads, as far as it knows."""
        return isinstance(self._role, Leader)

    @property
    def leader(self) -> BrokerId | None:
        """The current leader; None if unknown."""
        if isinstance(self._role, Leader):
            return self.id
        return self._role.leader if isinstance(self._role, Follower) else None

    @property
    def role(self) -> Follower | Candidate | Leader:
        """For inspection only; the caller must not change it."""
        return self._role

    @property
    def log(self) -> RaftLog:
        """For inspection only; the caller must not change it."""
        return self._log

    @property
    def term(self) -> int:
        return self._term

    @property
    def commit(self) -> int:
        """The commit index: the last committed entry."""
        return self._log.commit

    @property
    def applied(self) -> int:
        """The index of the last entry given to the application."""
        return self._log.applied

    @property
    def membership(self) -> RaftMembership:
        """The membership of the last entry that set one, committed or not."""
        return self._log.membership

    @property
    def snapshot(self) -> Snapshot:
        """The last snapshot."""
        return self._log.snapshot

    # Inputs from the application

    def tick(self) -> None:
        """Advance the clock by one tick."""
        self._check_input()
        if isinstance(self._role, Leader):
            if not self._role.tick():
                self._follow(self._term, None)
            return
        self._silent_ticks += 1
        if self._silent_ticks >= self._patience_ticks:
            if self._may_stand():
                self._stand(self._next_term(), is_pre_vote=True)
            else:
                self._follow(self._term, None)

    def campaign(self) -> None:
        """Start an election now; a single voter wins at once. No effect on a leader or a broker that may not stand."""
        self._check_input()
        if self._may_stand() and not isinstance(self._role, Leader):
            self._stand(self._next_term(), is_pre_vote=True)

    def propose(self, data: bytes) -> tuple[int, int]:
        """Append a command if this broker leads; return the (index, term) under which it may be committed.

        The command is committed only if an entry with exactly this index and term is applied. Raise NotLeaderError,
        RemoteError (overloaded, too_large).
        """
        leader = self._leading()
        if leader.transferee is not None:
            raise NotLeaderError(leader.transferee)
        if len(data) > limits.RAFT_ENTRY_BYTES_MAX:
            raise RemoteError(ErrorCode.TOO_LARGE, f"a metadata command of {len(data)} bytes is too large")
        return leader.append(EntryKind.COMMAND, data), self._term

    def propose_change(self, membership: RaftMembership) -> tuple[int, int]:
        """Append another membership, which differs by at most one voter and holds at once.

        Return and raise as `propose`; raise ChangeRefusedError if the change is not safe.
        """
        leader = self._leading()
        if leader.transferee is not None:
            raise NotLeaderError(leader.transferee)
        if self._log.membership_index > self._log.commit:
            raise ChangeRefusedError("the change before this one is not committed yet; try again")
        if not leader.has_committed:
            raise ChangeRefusedError("the leader has committed nothing yet; try again")
        if text := flaw_in_change(self.membership, membership):
            raise ChangeRefusedError(text)
        return leader.append(EntryKind.MEMBERSHIP, encode_membership(membership)), self._term

    def read_index(self, context: bytes) -> None:
        """Request the index from which a linearizable read may be served (ReadIndex).

        The answer comes in a Ready, or never: then the caller retries. Raise NotLeaderError if no leader is known,
        RemoteError (overloaded).
        """
        self._check_input()
        assert len(context) <= limits.RAFT_READ_CONTEXT_BYTES_MAX
        if isinstance(self._role, Leader):
            if not self._role.read(self.id, context):
                raise RemoteError(ErrorCode.OVERLOADED, "too many reads wait for the metadata leader; try again")
        elif self.leader is not None:
            self._send(ReadRequest(self.id, self.leader, self._term, context))
        else:
            raise NotLeaderError(None)

    def transfer(self, to: BrokerId) -> None:
        """Transfer leadership to `to`; proposals are refused until it has happened or is given up.

        Raise NotLeaderError; ChangeRefusedError if `to` is not a voter.
        """
        leader = self._leading()
        if to not in self.membership.voters:
            raise ChangeRefusedError(f"broker {to} does not vote")
        if to != self.id:
            leader.transfer(to)

    def compact(self, index: int, data: bytes) -> Snapshot:
        """Replace the log up to `index` by a snapshot with `data`, the application's state after applying `index`.

        Return the snapshot; the caller has the storage save it.
        """
        self._check_input()
        return self._log.compact(index, data, self.config.kept_entries_max)

    def _leading(self) -> Leader:
        self._check_input()
        if not isinstance(self._role, Leader):
            raise NotLeaderError(self.leader)
        return self._role

    def _check_input(self) -> None:
        assert self._out is None, "an input between ready() and advance()"

    # Output

    def has_ready(self) -> bool:
        """True if `ready` has work for the driver."""
        log = self._log
        return bool(
            self._messages
            or self._reads
            or log.new_snapshot is not None
            or log.stable_index < log.last_index
            or log.applied < log.commit
            or self._hard_state() != self._saved
            or (isinstance(self._role, Leader) and self._role.is_dirty)
        )

    def ready(self) -> Ready:
        """Return the work for the driver, which must call `advance` or `retract` before the next input."""
        self._check_input()
        if isinstance(self._role, Leader):
            self._role.flush()
        log, hard_state = self._log, self._hard_state()
        entries = log.between(log.stable_index, log.last_index)
        applied = max(log.applied, log.new_snapshot.index if log.new_snapshot else 0)
        must_sync = bool(entries) or log.new_snapshot is not None or hard_state[:2] != self._saved[:2]
        self._out = Ready(
            must_sync=must_sync or (self.contradiction is not None and hard_state != self._saved),
            snapshot=log.new_snapshot,
            entries=entries,
            hard_state=hard_state if hard_state != self._saved else None,
            messages=tuple(self._messages),
            committed=log.batch(applied, log.commit, self.config.apply_bytes_max, limits.RAFT_APPEND_ENTRIES_MAX),
            reads=tuple(self._reads),
        )
        self._messages.clear()
        self._reads.clear()
        return self._out

    def advance(self, ready: Ready) -> None:
        """Confirm that all of `ready` is done."""
        assert ready is self._out, "ready() comes first"
        self._out = None
        log = self._log
        if ready.hard_state is not None:
            self._saved = ready.hard_state
        if ready.snapshot is not None:
            log.new_snapshot = None
            log.applied = max(log.applied, ready.snapshot.index)
        if ready.committed:
            log.applied = ready.committed[-1].index
        log.stable_index = log.last_index
        self._commit()

    def retract(self, ready: Ready) -> tuple[Entry, ...]:
        """Handle a failed write of `ready`: remove the entries in it that were proposed here, and return them.

        They have not left this broker, so it is as if they were never proposed. Messages count as lost, or they would
        pile up as long as the disk is full; everything else comes again with the next Ready.
        """
        assert ready is self._out, "ready() comes first"
        self._out = None
        self._reads[:0] = ready.reads
        if not isinstance(self._role, Leader):
            return ()
        first_index = max(self._log.stable_index, self._role.first_index) + 1
        dropped = self._log.between(first_index - 1, self._log.last_index)
        if dropped:
            self._role.retract_from(first_index)
        return dropped

    def _hard_state(self) -> HardState:
        return HardState(self._term, self._vote, self._log.commit)

    def _send(self, message: Message) -> None:
        self._messages.append(message)

    # Roles

    def _draw_patience(self) -> None:
        self._silent_ticks = 0
        self._patience_ticks = self.config.election_ticks + self._chance.randrange(self.config.election_ticks)

    def _follow(self, term: int, leader: BrokerId | None) -> None:
        if term != self._term:
            self._term, self._vote = term, None
        self._role = Follower(leader)
        self._draw_patience()

    def _may_stand(self) -> bool:
        if not self.may_stand or self.contradiction is not None or round_of(self._term) >= ROUND_MAX:
            return False
        # A voter that is being removed no longer counts, but until the removal is committed its log may be the only one
        # that is good enough to lead and to commit it.
        return self.id in self.membership.voters or self.id in self._log.committed_membership.voters

    def _next_term(self) -> int:
        return next_term(self._term, self.id, self._chance.randrange(DRAWS))

    def _stand(self, term: int, *, is_pre_vote: bool, is_handover: bool = False) -> None:
        if not is_pre_vote:
            self._term, self._vote = term, self.id
        self._draw_patience()
        self._role = candidate = Candidate(term, is_pre_vote)
        log = self._log
        for voter in self.membership.voters:
            if voter != self.id:
                self._send(VoteRequest(self.id, voter, term, log.last_index, log.last_term, is_pre_vote, is_handover))
        self._count(candidate, self.id, is_granted=True)

    def _count(self, candidate: Candidate, voter: BrokerId, *, is_granted: bool) -> None:
        result = candidate.count(self.membership.voters, voter, is_granted=is_granted)
        if result is Vote.LOST:
            self._follow(self._term, None)
        elif result is Vote.WON and candidate.is_pre_vote:
            self._stand(candidate.term, is_pre_vote=False)
        elif result is Vote.WON:
            self._role = Leader(self.config, self._log, self._term, self._send, self._reads.append)

    def _commit(self) -> None:
        role = self._role
        if not isinstance(role, Leader) or not role.try_commit():
            return
        if self._log.membership_index <= self._log.commit and self.id not in self.membership.voters:
            role.flush()  # informs the other members of this commit
            self._follow(self._term, None)

    # Messages

    def step(self, message: Message) -> None:
        """Handle a message from another broker; contradictory ones are dropped and counted."""
        self._check_input()
        if self.contradiction is not None:
            return
        if not is_believable(message, self.id, self._term):
            self.dropped += 1
            return
        if isinstance(message, FROM_MEMBERS) and message.sender not in self.membership:
            return  # removed meanwhile, or never a member
        if message.term > self._term:
            if not self._take_later_term(message):
                return
        elif message.term < self._term:
            if (response := refusal(message, self._term)) is not None:
                self._send(response)
            return
        if not self._take(message):
            self.dropped += 1

    def _take(self, message: Message) -> bool:
        """Handle a message of this term (or a pre-vote). Return False if it contradicts this broker's state."""
        match message:
            case AppendEntriesRequest():
                return self._on_append(message)
            case RaftHeartbeat():
                return self._on_heartbeat(message)
            case SnapshotChunk():
                return self._on_chunk(message)
            case VoteRequest():
                return self._on_vote_request(message)
            case VoteResponse():
                return self._on_vote_response(message)
            case ReadRequest():
                return self._on_read_request(message)
            case ReadResponse():
                return self._on_read_response(message)
            case LeadNow():
                return self._on_lead_now(message)
            case AppendEntriesResponse() | RaftHeartbeatResponse() | SnapshotResponse():
                return self._on_follower(message)

    def _take_later_term(self, message: Message) -> bool:
        """Enter the message's later term if the rules require it. Return False if the message is to be ignored."""
        if isinstance(message, VoteRequest):
            has_leader = self.leader is not None and self._silent_ticks < self.config.election_ticks
            if has_leader and not message.is_handover:
                return False
            if message.is_pre_vote:
                return True
        elif isinstance(message, VoteResponse) and message.is_pre_vote and message.is_granted:
            return True
        self._follow(message.term, message.sender if isinstance(message, FROM_LEADER) else None)
        return True

    def _on_vote_request(self, message: VoteRequest) -> bool:
        is_granted = may_grant(message, self._log, term=self._term, vote=self._vote, leader=self.leader)
        if is_granted and not message.is_pre_vote:
            self._vote = message.sender
            self._silent_ticks = 0
        # A granted pre-vote carries the candidate's future term; a refusal carries this broker's own.
        term = message.term if is_granted else self._term
        self._send(VoteResponse(self.id, message.sender, term, message.is_pre_vote, is_granted))
        return True

    def _on_vote_response(self, message: VoteResponse) -> bool:
        role = self._role
        if not isinstance(role, Candidate) or role.is_pre_vote != message.is_pre_vote:
            return True
        if message.is_pre_vote and message.is_granted and message.term != role.term:
            return True  # a response to an earlier pre-vote
        self._count(role, message.sender, is_granted=message.is_granted)
        return True

    def _heard_leader(self, sender: BrokerId) -> Follower | None:
        """Note that `sender` leads this term and return the follower role; None if another broker leads it."""
        role = self._role
        if isinstance(role, Leader) or (isinstance(role, Follower) and role.leader not in (None, sender)):
            return None  # two leaders in one term
        if isinstance(role, Candidate):
            self._role = role = Follower(sender)
        role.leader = sender
        self._silent_ticks = 0
        return role

    def _on_append(self, message: AppendEntriesRequest) -> bool:
        if self._heard_leader(message.sender) is None:
            return False
        return self._answer(take_append(self._log, self.id, message))

    def _on_heartbeat(self, message: RaftHeartbeat) -> bool:
        if self._heard_leader(message.sender) is None:
            return False
        return self._answer(take_heartbeat(self._log, self.id, message))

    def _on_chunk(self, message: SnapshotChunk) -> bool:
        role = self._heard_leader(message.sender)
        if role is None:
            return False
        role.incoming, response = take_chunk(self._log, self.id, role.incoming, message)
        return self._answer(response)

    def _answer(self, response: Message | Contradiction | None) -> bool:
        if isinstance(response, Contradiction):
            self.contradiction = response  # the commit index is persisted, so a restart does not cut the entry
            self._role = Follower(None)
            self._messages.clear()
        elif response is not None:
            self._send(response)
        return response is not None

    def _on_follower(self, message: AppendEntriesResponse | RaftHeartbeatResponse | SnapshotResponse) -> bool:
        if not isinstance(self._role, Leader):
            return True
        is_sane = self._role.hear(message)
        self._commit()
        return is_sane

    def _on_read_request(self, message: ReadRequest) -> bool:
        if isinstance(self._role, Leader) and message.sender in self.membership:
            # at the limit the request is dropped; the requester retries
            self._role.read(message.sender, message.context)
        return True

    def _on_read_response(self, message: ReadResponse) -> bool:
        if message.sender == self.leader:
            self._reads.append(Read(message.index, message.context))
        return self.leader in (None, message.sender)

    def _on_lead_now(self, message: LeadNow) -> bool:
        role = self._role
        is_from_leader = isinstance(role, Follower) and role.leader == message.sender
        if is_from_leader and self._may_stand():
            self._stand(self._next_term(), is_pre_vote=False, is_handover=True)
        return self.leader in (None, message.sender)
