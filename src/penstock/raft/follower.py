"""What a follower makes of the leader's entries and snapshots.

Rules: an entry is taken only behind one that is the leader's too; only then does the leader's commit index say anything
about it. What is already there and agrees stays, so a message that comes twice or late changes nothing. A snapshot
counts once all of it is here and its CRC is right; no part of it moves the commit index. What is committed is never
cut: a leader that has another entry there is a Contradiction, and nothing of its message is taken.

A rejection names the follower's commit index: every later leader has what is committed, so that is where they agree.

Theory: whoever can be elected has what a majority acknowledged, unless somebody forgot what it had acknowledged, as one
does whose disk is set back to an older copy. An index and a term name one entry (`terms`), so such logs can be told
apart as far as they are kept; of what a snapshot has replaced it is known that its terms were not later than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.base.ids import BrokerId
from penstock.hot.crc import crc32c
from penstock.raft.log import RaftLog
from penstock.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    SnapshotChunk,
    SnapshotResponse,
)
from penstock.raft.terms import term_text
from penstock.raft.values import Snapshot


@dataclass(slots=True)
class Follower:
    """The role: follows `leader`, once it knows who that is."""

    leader: BrokerId | None
    incoming: Incoming | None = None


@dataclass(slots=True)
class Incoming:
    """A snapshot of which `data` has come."""

    key: tuple[BrokerId, int, int, int, int, int]
    data: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A leader has another entry where this broker knows one to be committed: somebody forgot what it acknowledged."""

    index: int
    term: int  # of the entry here; the latest that it can be of if a snapshot has replaced it
    leader: BrokerId
    leader_entry_term: int

    def __str__(self) -> str:
        here, there = term_text(self.term), term_text(self.leader_entry_term)
        return f"entry {self.index} is committed here with term {here}; broker {self.leader} leads with one of {there}"


def _contradiction(
    log: RaftLog, message: AppendRequest | Heartbeat | SnapshotChunk, places: Iterable[tuple[int, int]]
) -> Contradiction | None:
    """The first of the leader's entries, as (index, term), that is another one than what is committed here."""
    for index, term in places:
        if index > log.commit:
            return None
        here = log.term_at(index)
        if here is None and term > log.base_term:
            here = log.base_term
        if here not in (None, term):
            return Contradiction(index, here, message.sender, term)
    return None


def take_append(log: RaftLog, broker_id: BrokerId, message: AppendRequest) -> AppendResponse | Contradiction:
    """Append what is new; the answer."""
    to, term = message.sender, message.term
    places = [(message.prev_index, message.prev_term), *((entry.index, entry.term) for entry in message.entries)]
    if found := _contradiction(log, message, places):
        return found
    if not log.membership.voters:
        return AppendResponse(broker_id, to, term, message.prev_index, is_rejected=True, wants_snapshot=True)
    if message.prev_index < log.commit:
        return AppendResponse(broker_id, to, term, log.commit)
    if log.term_at(message.prev_index) != message.prev_term:
        return AppendResponse(broker_id, to, term, message.prev_index, is_rejected=True, commit=log.commit)
    for place, entry in enumerate(message.entries):
        if log.term_at(entry.index) != entry.term:
            if entry.index <= log.last_index:
                log.truncate_from(entry.index)
            log.append(message.entries[place:])
            break
    matched_index = message.prev_index + len(message.entries)
    log.commit_to(min(message.commit, matched_index))
    return AppendResponse(broker_id, to, term, matched_index)


def take_heartbeat(log: RaftLog, broker_id: BrokerId, message: Heartbeat) -> HeartbeatResponse | Contradiction:
    """Commit what the leader knows to be here; the answer says if it is not, or not any more."""
    if found := _contradiction(log, message, [(message.commit, message.commit_term)]):
        return found
    is_behind = message.commit > log.commit and log.term_at(message.commit) != message.commit_term
    if not is_behind:
        log.commit_to(message.commit)
    commit = log.commit if is_behind else 0
    return HeartbeatResponse(broker_id, message.sender, message.term, message.round, is_behind, commit)


def take_chunk(
    log: RaftLog, broker_id: BrokerId, incoming: Incoming | None, message: SnapshotChunk
) -> tuple[Incoming | None, AppendResponse | SnapshotResponse | Contradiction | None]:
    """Add a chunk: (what has come so far, the answer); no answer if the bytes are not what they should be."""
    to, term = message.sender, message.term
    if found := _contradiction(log, message, [(message.index, message.snapshot_term)]):
        return None, found
    if message.index < log.commit or (message.index == log.commit and log.membership.voters):
        return None, AppendResponse(broker_id, to, term, log.commit)
    key = (to, term, message.index, message.snapshot_term, message.size_bytes, message.crc)
    if incoming is None or incoming.key != key:
        incoming = Incoming(key)
    if message.position == len(incoming.data):
        incoming.data += message.data
    if len(incoming.data) < message.size_bytes:
        return incoming, SnapshotResponse(broker_id, to, term, message.index, len(incoming.data))
    data = bytes(incoming.data)
    if crc32c(data) != message.crc:
        return None, None
    if log.term_at(message.index) == message.snapshot_term and log.membership.voters:
        log.commit_to(message.index)  # it is all here already
    else:
        log.restore(Snapshot(message.index, message.snapshot_term, message.membership, data))
    return None, AppendResponse(broker_id, to, term, message.index)
