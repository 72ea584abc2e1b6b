"""What must hold at every step: the invariants of Raft, what clients were promised, what was promised to peers.

| invariant              | how it is checked                                                                          |
|------------------------|--------------------------------------------------------------------------------------------|
| election safety        | one leader in a term, ever                                                                 |
| leader append-only     | a leader's log only grows (but for what it takes back before anybody has it)               |
| log matching           | an index and a term name one entry, and one before it, on every disk                       |
| leader completeness    | who becomes leader has all that was committed                                              |
| state machine safety   | an index is committed with one entry everywhere; all applications fold to the same         |
| promises are kept      | who starts again has the term, the vote and the entries that it told others of             |
| acked is never lost    | what a client was told is committed, at that index; what was taken back is not             |
| no false commit        | what a follower commits is what its leader has there                                       |

Once a broker's disk was set back to an older copy, what was acked may be lost, and so may what was committed. Election
safety and log matching hold all the same, for a term names its candidate, and a follower commits what its leader has;
`schedule` checks at the end that who has committed something else has said so.
| reads are linearizable | a read sees all that was acked, and all that any read saw, before it was asked for         |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.raft import Entry, Read, Ready
from penstock.raft.leader import Leader
from penstock.raft.messages import AppendEntriesResponse, VoteRequest, VoteResponse
from tests.sim.raft.application import DIGEST_BYTES, folded

if TYPE_CHECKING:
    from tests.sim.raft.broker import Broker


class ViolationError(Exception):
    """An invariant does not hold."""


def check(holds: bool, text: str) -> None:
    """Raise if it does not."""
    if not holds:
        raise ViolationError(text)


class Checks:
    """Sees everything, changes nothing."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.entries: dict[tuple[int, int], tuple[Entry, int | None]] = {}  # by index and term; with the term before
        self.committed: list[Entry] = []
        self.digests = [bytes(DIGEST_BYTES)]  # behind each committed entry
        self.acks = 0
        self.reads = 0
        self.seen_index = 0  # acked, or seen by a read
        self.taken_back: set[bytes] = set()
        self.has_forgotten = False  # a broker, what it had promised
        self._votes: dict[int, tuple[int, int | None]] = {}  # by broker: the term and vote that it told of
        self._acknowledged: dict[int, dict[int, int]] = {}  # by broker: index to term of what it told a leader it has
        self._commits: dict[int, int] = {}
        self._contradicted: set[tuple[int, int]] = set()  # by broker and run
        self._lasts: dict[tuple[int, int, int], tuple[int, int]] = {}  # by leader, its run, term: where its log ended

    def forgets(self, broker: Broker) -> None:
        """A broker's disk is set back."""
        self.has_forgotten = True
        self._votes.pop(broker.id, None)
        self._acknowledged.pop(broker.id, None)

    def started(self, broker: Broker) -> None:
        """A broker has read its disk."""
        raft = broker.raft
        term, vote = self._votes.get(broker.id, (0, None))
        check(raft.term >= term, f"broker {broker.id} forgot term {term}")
        if raft.term == term and vote is not None:
            check(broker.storage.state.hard_state.vote == vote, f"broker {broker.id} forgot its vote for {vote}")
        for index, acknowledged_term in self._acknowledged.get(broker.id, {}).items():
            is_there = index <= raft.commit or raft.log.term_at(index) == acknowledged_term
            is_replaced = raft.log.last_term > acknowledged_term  # what a later leader wrote was on its way to the disk
            check(is_there or is_replaced, f"broker {broker.id} lost entry {index} of term {acknowledged_term}")
        for entry in raft.log.between(raft.log.base_index, raft.log.last_index):
            self._name(broker, entry)
        self._commits[broker.id] = raft.snapshot.index
        self._check_application(broker)
        self.look(broker)

    def look(self, broker: Broker, *, after_retract: bool = False) -> None:
        """After every input and every output."""
        raft = broker.raft
        log = raft.log
        if raft.contradiction is not None and (broker.id, broker.run) not in self._contradicted:
            check(self.has_forgotten, f"broker {broker.id}: {raft.contradiction}")
            self._contradicted.add((broker.id, broker.run))
            broker.world.count("contradictions")
        if log.commit != self._commits[broker.id]:
            for entry in log.between(max(self._commits[broker.id], log.base_index), log.commit):
                self._check_commit(broker, entry)
                self._commit(broker, entry)
            self._commits[broker.id] = log.commit
        if isinstance(raft.role, Leader):
            key = (broker.id, broker.run, raft.term)
            if key not in self._lasts:
                self._check_completeness(broker)
            elif not after_retract:
                index, term = self._lasts[key]
                is_kept = log.last_index >= index and (index < log.base_index or log.term_at(index) == term)
                check(is_kept, f"leader {broker.id} changed its log at {index}")
            self._lasts[key] = (log.last_index, log.last_term)

    def saved(self, broker: Broker, ready: Ready) -> None:
        """A broker has something on its disk, and is about to tell others."""
        raft = broker.raft
        if raft.is_leader:
            # Not before its own vote is on the disk: a single voter that loses its power until then led nobody.
            other = self.leaders.setdefault(raft.term, broker.id)
            check(other == broker.id, f"brokers {other} and {broker.id} lead in term {raft.term}")
        if ready.snapshot is not None:
            self._commits[broker.id] = max(self._commits[broker.id], ready.snapshot.index)
        if ready.snapshot is not None and not self.has_forgotten:
            index = ready.snapshot.index
            check(index <= len(self.committed), f"a snapshot at {index}, which is not committed")
            check(ready.snapshot.data[:DIGEST_BYTES] in (b"", self.digests[index]), f"a false snapshot at {index}")
        for entry in ready.entries:
            self._name(broker, entry)
        acknowledged = self._acknowledged.setdefault(broker.id, {})
        if ready.snapshot is not None:
            acknowledged.clear()  # its log was not the leader's
        for entry in ready.entries:
            for index in [index for index in acknowledged if index >= entry.index]:
                del acknowledged[index]
        for message in ready.messages:
            if isinstance(message, VoteResponse) and message.is_granted and not message.is_pre_vote:
                self._votes[broker.id] = (message.term, message.to)
            elif isinstance(message, VoteRequest) and not message.is_pre_vote:
                self._votes[broker.id] = (message.term, broker.id)
            elif isinstance(message, AppendEntriesResponse) and not message.is_rejected:
                term = raft.log.term_at(message.index)
                if term is not None:
                    acknowledged[message.index] = term

    def _name(self, broker: Broker, entry: Entry) -> None:
        before = broker.raft.log.term_at(entry.index - 1)
        known, known_before = self.entries.setdefault((entry.index, entry.term), (entry, before))
        check(known == entry, f"entry {entry.index} of term {entry.term} is {known} and {entry}")
        if known_before is None:
            self.entries[entry.index, entry.term] = (entry, before)
        check(None in (before, known_before) or before == known_before, f"logs differ before entry {entry.index}")

    def _check_commit(self, broker: Broker, entry: Entry) -> None:
        leader = broker.world.brokers.get(broker.raft.leader or 0)
        if leader is not None and leader.is_up and leader.raft.is_leader and leader.raft.term == broker.raft.term:
            is_same = leader.raft.log.term_at(entry.index) in (None, entry.term)
            check(is_same, f"broker {broker.id} commits entry {entry.index}, which its leader {leader.id} has not")

    def _commit(self, broker: Broker, entry: Entry) -> None:
        if self.has_forgotten:
            return
        if entry.index > len(self.committed):
            check(entry.index == len(self.committed) + 1, "committed without what is before it")
            self.committed.append(entry)
            self.digests.append(folded(self.digests[-1], entry))
            check(entry.data not in self.taken_back, f"entry {entry.index} was taken back, and is committed")
        known = self.committed[entry.index - 1]
        check(known == entry, f"committed at {entry.index}: {known}, and on broker {broker.id} {entry}")

    def _check_completeness(self, broker: Broker) -> None:
        if self.has_forgotten:
            return
        log = broker.raft.log
        for entry in self.committed[log.base_index :]:
            # A leader of an earlier term than what was committed since need not have it: it is deposed already.
            if entry.term <= broker.raft.term and self.committed[-1].term <= broker.raft.term:
                has = log.term_at(entry.index) == entry.term
                check(has, f"leader {broker.id} of term {broker.raft.term} lacks committed entry {entry.index}")

    def _check_application(self, broker: Broker) -> None:
        application = broker.application
        if not self.has_forgotten and application.index < len(self.digests):
            check(application.digest == self.digests[application.index], f"broker {broker.id} holds another state")

    def acked(self, broker: Broker, entry: Entry) -> None:
        """A client was told that its command is committed."""
        self.acks += 1
        if self.has_forgotten:
            return
        self.seen_index = max(self.seen_index, entry.index)
        check(self.committed[entry.index - 1] == entry, f"acked at {entry.index} and not committed there")
        self._check_application(broker)

    def retracted(self, value: bytes) -> None:
        """A client was told that its command was not taken."""
        self.taken_back.add(value)

    def read(self, broker: Broker, read: Read, must_see_index: int) -> None:
        """A client was shown the state."""
        self.reads += 1
        if self.has_forgotten:
            return
        check(read.index >= must_see_index, f"a read of {read.index} on broker {broker.id}; {must_see_index} was seen")
        self._check_application(broker)
        self.seen_index = max(self.seen_index, broker.raft.applied)
