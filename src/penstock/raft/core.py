"""Raft: a log that a majority of brokers agrees on, whatever is lost, late, doubled or restarted.

Rules: inputs (`tick`, `step`, `propose` …) only change memory and note what has to be done; `ready` hands that out; the
driver does it in the order of Ready's fields, then calls `advance`. Between the two no input is given: the driver
queues, and of the ticks that it missed it gives one. A message may be anything that a peer can send: what contradicts
what is known is dropped and counted, and nothing that comes from outside ends in an assertion.

Theory: Ongaro, "Consensus: bridging theory and practice" (2014), chapters 3, 4 and 6 and section 9.6. The shape is that
of etcd's RawNode.

| role      | leaves it when                                                  | for                     |
|-----------|-----------------------------------------------------------------|-------------------------|
| Follower  | no leader for an election timeout (10 to 19 ticks)              | Candidate (pre-vote)    |
| Follower  | the leader hands over (LeadNow)                                 | Candidate               |
| Candidate | a majority would vote for it (pre-vote: the term stays)         | Candidate (real)        |
| Candidate | a majority votes for it                                         | Leader                  |
| Candidate | a majority refuses, or somebody leads                           | Follower                |
| Leader    | no majority answered for 10 ticks, or it was removed            | Follower                |
| any       | a later term is heard of (but in a pre-vote)                    | Follower                |

Who hears a leader refuses to vote for an election timeout (the leader's lease), so a broker that comes back from a
partition, or was removed, does not disturb a cluster that works.

A term names its candidate (`terms`), so it has one leader even where a voter has forgotten that it voted.

A request is judged by its term and its log, not by the sender's place in the membership: who lags may not know yet that
its leader has joined. Answers count only from members.
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
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    LeadNow,
    Message,
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
    Chance,
    Entry,
    EntryKind,
    HardState,
    Membership,
    RaftConfig,
    Read,
    Ready,
    Snapshot,
    StoredState,
)
from penstock.raft.wire import is_believable


class Raft:
    """One broker's part. One owner; see the module's rules."""

    def __init__(self, config: RaftConfig, chance: Chance, state: StoredState) -> None:
        self.config = config
        self.id = config.id
        self.dropped = 0  # messages that contradicted what is known
        self.contradiction: Contradiction | None = None  # with the leader's log: then it takes no part any more
        self.may_stand = True  # else it follows and votes, and stands for no election
        self._chance = chance
        self._log = RaftLog(state)
        if self._log.membership.voters == (self.id,):
            # What lies in the log of the only voter is committed: nobody could be elected without it.
            self._log.commit_to(self._log.last_index)
        self._term = state.hard_state.term
        self._vote = state.hard_state.vote
        self._saved = HardState(self._term, self._vote, self._log.commit)
        self._messages: list[Message] = []
        self._reads: list[Read] = []
        self._out: Ready | None = None
        self._silent_ticks = 0  # since a leader was heard of, or a vote given
        self._patience_ticks = 0
        self._role: Follower | Candidate | Leader = Follower(None)
        self._draw_patience()

    # What can be seen

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads, as far as it knows."""
        return isinstance(self._role, Leader)

    @property
    def leader(self) -> BrokerId | None:
        """Who leads, as far as is known."""
        if isinstance(self._role, Leader):
            return self.id
        return self._role.leader if isinstance(self._role, Follower) else None

    @property
    def role(self) -> Follower | Candidate | Leader:
        """For those who look on; nothing is to be changed through it."""
        return self._role

    @property
    def log(self) -> RaftLog:
        """For those who look on; nothing is to be changed through it."""
        return self._log

    @property
    def term(self) -> int:
        """The term that this broker is in."""
        return self._term

    @property
    def commit(self) -> int:
        """All up to this index is committed."""
        return self._log.commit

    @property
    def applied(self) -> int:
        """All up to this index went to the application."""
        return self._log.applied

    @property
    def membership(self) -> Membership:
        """Who is in the cluster, as of the last entry."""
        return self._log.membership

    @property
    def snapshot(self) -> Snapshot:
        """The last one."""
        return self._log.snapshot

    # What the application asks for

    def tick(self) -> None:
        """Time passes: one tick."""
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
        """Stand for election now; a single voter is elected at once. Nothing happens if this broker does not vote."""
        self._check_input()
        if self._may_stand() and not isinstance(self._role, Leader):
            self._stand(self._next_term(), is_pre_vote=True)

    def propose(self, data: bytes) -> tuple[int, int]:
        """Ask for a command to be committed: the (index, term) that it will have if it is.

        NotLeaderError; RemoteError (overloaded, too_large). It is committed if just this index and term come out.
        """
        leader = self._leading()
        if leader.transferee is not None:
            raise NotLeaderError(leader.transferee)
        if len(data) > limits.RAFT_ENTRY_BYTES_MAX:
            raise RemoteError(ErrorCode.TOO_LARGE, f"a metadata command of {len(data)} bytes is too large")
        return leader.append(EntryKind.COMMAND, data), self._term

    def propose_change(self, membership: Membership) -> tuple[int, int]:
        """Ask for another membership, by one voter; it holds at once. As `propose`; ChangeRefusedError."""
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
        """Ask from which index on a read is up to date; the answer is in a Ready, or never comes: then ask again.

        NotLeaderError if no leader is known, RemoteError (overloaded).
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
        """Hand leadership over; proposals are refused until it has happened or is given up.

        NotLeaderError; ChangeRefusedError if `to` does not vote.
        """
        leader = self._leading()
        if to not in self.membership.voters:
            raise ChangeRefusedError(f"broker {to} does not vote")
        if to != self.id:
            leader.transfer(to)

    def compact(self, index: int, data: bytes) -> Snapshot:
        """Put `data`, the application's state once `index` was applied, in place of the log up to there.

        The snapshot is the storage's to save.
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

    # What must be done

    def has_ready(self) -> bool:
        """Whether something must be done."""
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
        """Take what must be done; `advance` says that it is. No input in between."""
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
        """All of `ready` is done."""
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
        """Nothing of `ready` could be written: take back the commands and changes in it that were proposed here.

        They are as if never proposed, for nobody has heard of them. Returns them. Messages count as lost, or they would
        pile up as long as the disk is full; all else comes with the next Ready.
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
        # Who is on its way out votes no more, but as long as that is not committed it may be the only one whose log
        # is good enough to lead, and to commit it.
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
            role.flush()  # the others hear that it is so
            self._follow(self._term, None)

    # Messages

    def step(self, message: Message) -> None:
        """Take a message from another broker, whatever it is."""
        self._check_input()
        if self.contradiction is not None:
            return
        if not is_believable(message, self.id, self._term):
            self.dropped += 1
            return
        if isinstance(message, FROM_MEMBERS) and message.sender not in self.membership:
            return  # it has left meanwhile, or was never asked
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
        """Act on a message of this term (or a pre-vote); whether it makes sense."""
        match message:
            case AppendRequest():
                return self._on_append(message)
            case Heartbeat():
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
            case AppendResponse() | HeartbeatResponse() | SnapshotResponse():
                return self._on_follower(message)

    def _take_later_term(self, message: Message) -> bool:
        """Go over to a later term, if the message is a reason to; whether there is more to do with it."""
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
        # A granted pre-vote is for the candidate's term; a refusal tells it ours.
        term = message.term if is_granted else self._term
        self._send(VoteResponse(self.id, message.sender, term, message.is_pre_vote, is_granted))
        return True

    def _on_vote_response(self, message: VoteResponse) -> bool:
        role = self._role
        if not isinstance(role, Candidate) or role.is_pre_vote != message.is_pre_vote:
            return True
        if message.is_pre_vote and message.is_granted and message.term != role.term:
            return True  # of a pre-vote that is long over
        self._count(role, message.sender, is_granted=message.is_granted)
        return True

    def _heard_leader(self, sender: BrokerId) -> Follower | None:
        """The role in which to listen to the leader of this term; None if it cannot be that."""
        role = self._role
        if isinstance(role, Leader) or (isinstance(role, Follower) and role.leader not in (None, sender)):
            return None  # one term, two leaders
        if isinstance(role, Candidate):
            self._role = role = Follower(sender)
        role.leader = sender
        self._silent_ticks = 0
        return role

    def _on_append(self, message: AppendRequest) -> bool:
        if self._heard_leader(message.sender) is None:
            return False
        return self._answer(take_append(self._log, self.id, message))

    def _on_heartbeat(self, message: Heartbeat) -> bool:
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
            self.contradiction = response  # what is committed is noted, so that it is not cut after a restart
            self._role = Follower(None)
            self._messages.clear()
        elif response is not None:
            self._send(response)
        return response is not None

    def _on_follower(self, message: AppendResponse | HeartbeatResponse | SnapshotResponse) -> bool:
        if not isinstance(self._role, Leader):
            return True
        is_sane = self._role.hear(message)
        self._commit()
        return is_sane

    def _on_read_request(self, message: ReadRequest) -> bool:
        if isinstance(self._role, Leader) and message.sender in self.membership:
            self._role.read(message.sender, message.context)  # if there are too many, it asks again
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
