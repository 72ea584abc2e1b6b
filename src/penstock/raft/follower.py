"""What a follower makes of the leader's entries and snapshots.

Rules: an entry is taken only behind one that is the leader's too; only then does the leader's commit index say anything
about it. What is already there and agrees stays, so a message that comes twice or late changes nothing. A snapshot
counts once all of it is here and its CRC is right; no part of it moves the commit index.

A rejection names the follower's commit index: every later leader has what is committed, so that is where they agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.base.ids import BrokerId
from penstock.hot.crc import crc32c
from penstock.raft.log import RaftLog
from penstock.raft.messages import AppendRequest, AppendResponse, Message, SnapshotChunk, SnapshotResponse
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


def take_append(log: RaftLog, broker_id: BrokerId, message: AppendRequest) -> AppendResponse | None:
    """Append what is new; the answer, or None if the message contradicts what is committed."""
    to, term = message.sender, message.term
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


def take_chunk(
    log: RaftLog, broker_id: BrokerId, incoming: Incoming | None, message: SnapshotChunk
) -> tuple[Incoming | None, Message | None]:
    """Add a chunk: (what has come so far, the answer); no answer if the bytes are not what they should be."""
    to, term = message.sender, message.term
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
