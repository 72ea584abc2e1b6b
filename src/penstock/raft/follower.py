"""Follower role: handles the leader's entries and snapshots.

Rules: an entry is appended only after an entry that the leader has too; only then does the leader's commit index apply
to it. Entries that are present and agree stay, so a duplicated or late message changes nothing. A snapshot is installed
once it is complete and its CRC matches; no part of it moves the commit index. Committed entries are never truncated: a
leader with another entry there is a Contradiction, and nothing of its message is taken.

A rejection carries the follower's commit index: every later leader has the committed entries, so both logs agree there.

Theory: every electable broker has what a majority acknowledged, unless a broker forgot what it acknowledged because its
disk was set back to an older copy. An index and a term name one entry (`terms`), so such logs can be told apart where
both keep the entries; of entries that a snapshot replaced only an upper bound of the term is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.base.ids import BrokerId
from penstock.hot.crc import crc32c
from penstock.raft.log import RaftLog
from penstock.raft.messages import (
    AppendEntriesRequest,
    AppendEntriesResponse,
    RaftHeartbeat,
    RaftHeartbeatResponse,
    SnapshotChunk,
    SnapshotResponse,
)
from penstock.raft.terms import term_text
from penstock.raft.values import Snapshot


@dataclass(slots=True)
class Follower:
    """The follower role; `leader` is None until known."""

    leader: BrokerId | None
    incoming: IncomingSnapshot | None = None


@dataclass(slots=True)
class IncomingSnapshot:
    """A snapshot in transfer; `data` is what has arrived."""

    key: tuple[BrokerId, int, int, int, int, int]
    data: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The leader has another entry than one committed here: a broker forgot what it acknowledged."""

    index: int
    term: int  # of the entry here; if a snapshot replaced it, the latest term it can have
    leader: BrokerId
    leader_entry_term: int

    def __str__(self) -> str:
        here, there = term_text(self.term), term_text(self.leader_entry_term)
        return f"entry {self.index} is committed here with term {here}; broker {self.leader} leads with one of {there}"


def _contradiction(
    log: RaftLog, message: AppendEntriesRequest | RaftHeartbeat | SnapshotChunk, places: Iterable[tuple[int, int]]
) -> Contradiction | None:
    """Return the first of the leader's entries (index, term) that differs from a committed one here, or None."""
    for index, term in places:
        if index > log.commit:
            return None
        here = log.term_at(index)
        if here is None and term > log.base_term:
            here = log.base_term
        if here not in (None, term):
            return Contradiction(index, here, message.sender, term)
    return None


def take_append(
    log: RaftLog, broker_id: BrokerId, message: AppendEntriesRequest
) -> AppendEntriesResponse | Contradiction:
    """Append the new entries; return the response."""
    to, term = message.sender, message.term
    places = [(message.prev_index, message.prev_term), *((entry.index, entry.term) for entry in message.entries)]
    if found := _contradiction(log, message, places):
        return found
    if not log.membership.voters:
        return AppendEntriesResponse(broker_id, to, term, message.prev_index, is_rejected=True, wants_snapshot=True)
    if message.prev_index < log.commit:
        return AppendEntriesResponse(broker_id, to, term, log.commit)
    if log.term_at(message.prev_index) != message.prev_term:
        return AppendEntriesResponse(broker_id, to, term, message.prev_index, is_rejected=True, commit=log.commit)
    for place, entry in enumerate(message.entries):
        if log.term_at(entry.index) != entry.term:
            if entry.index <= log.last_index:
                log.truncate_from(entry.index)
            log.append(message.entries[place:])
            break
    matched_index = message.prev_index + len(message.entries)
    log.commit_to(min(message.commit, matched_index))
    return AppendEntriesResponse(broker_id, to, term, matched_index)


def take_heartbeat(log: RaftLog, broker_id: BrokerId, message: RaftHeartbeat) -> RaftHeartbeatResponse | Contradiction:
    """Commit up to the heartbeat's commit index if the entry matches; else the response says `is_behind`."""
    if found := _contradiction(log, message, [(message.commit, message.commit_term)]):
        return found
    is_behind = message.commit > log.commit and log.term_at(message.commit) != message.commit_term
    if not is_behind:
        log.commit_to(message.commit)
    commit = log.commit if is_behind else 0
    return RaftHeartbeatResponse(broker_id, message.sender, message.term, message.round, is_behind, commit)


def take_chunk(
    log: RaftLog, broker_id: BrokerId, incoming: IncomingSnapshot | None, message: SnapshotChunk
) -> tuple[IncomingSnapshot | None, AppendEntriesResponse | SnapshotResponse | Contradiction | None]:
    """Add a chunk; return (the transfer so far, the response). The response is None if the CRC does not match."""
    to, term = message.sender, message.term
    if found := _contradiction(log, message, [(message.index, message.snapshot_term)]):
        return None, found
    if message.index < log.commit or (message.index == log.commit and log.membership.voters):
        return None, AppendEntriesResponse(broker_id, to, term, log.commit)
    key = (to, term, message.index, message.snapshot_term, message.size_bytes, message.crc)
    if incoming is None or incoming.key != key:
        incoming = IncomingSnapshot(key)
    if message.position == len(incoming.data):
        incoming.data += message.data
    if len(incoming.data) < message.size_bytes:
        return incoming, SnapshotResponse(broker_id, to, term, message.index, len(incoming.data))
    data = bytes(incoming.data)
    if crc32c(data) != message.crc:
        return None, None
    if log.term_at(message.index) == message.snapshot_term and log.membership.voters:
        log.commit_to(message.index)  # the log has it all already
    else:
        log.restore(Snapshot(message.index, message.snapshot_term, message.membership, data))
    return None, AppendEntriesResponse(broker_id, to, term, message.index)
