"""Messages between brokers, one struct each; `wire` turns them into bytes.

Rules: `term` is the sender's, except in a pre-vote: there it is the term that the sender would have. A message may be
lost, duplicated, late or out of order. Fields are only ever added, at the end, with a default.

| request          | answer             | for                                                          |
|------------------|--------------------|--------------------------------------------------------------|
| VoteRequest      | VoteResponse       | an election; before it a pre-vote, which changes nothing     |
| AppendRequest    | AppendResponse     | entries, and how far they are committed                      |
| Heartbeat        | HeartbeatResponse  | "I still lead"; the answers to a round confirm reads         |
| SnapshotChunk    | SnapshotResponse   | a follower that is too far behind; ends in an AppendResponse |
| ReadRequest      | ReadResponse       | a follower's linearizable read (ReadIndex)                   |
| LeadNow          |                    | "stand for election at once": the leader hands over          |
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.base import limits
from penstock.raft.values import Entry, Member, Number, RaftMembership

ReadContext = Annotated[bytes, msgspec.Meta(max_length=limits.RAFT_READ_CONTEXT_BYTES_MAX)]


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    sender: Member
    to: Member
    term: Number


class VoteRequest(_Message, frozen=True, array_like=True, gc=False, tag=1):
    """Requests a vote; `last_index` and `last_term` name the candidate's last entry."""

    last_index: Number
    last_term: Number
    is_pre_vote: bool
    is_handover: bool = False  # the leader transfers leadership: voters ignore its lease


class VoteResponse(_Message, frozen=True, array_like=True, gc=False, tag=2):
    """Grants or refuses a vote or a pre-vote."""

    is_pre_vote: bool
    is_granted: bool


class AppendEntriesRequest(_Message, frozen=True, array_like=True, gc=False, tag=3):
    """Entries after `prev_index`, which the receiver must have with `prev_term`."""

    prev_index: Number
    prev_term: Number
    commit: Number
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=limits.RAFT_APPEND_ENTRIES_MAX)] = ()


class AppendEntriesResponse(_Message, frozen=True, array_like=True, gc=False, tag=4):
    """Accepted: the log matches up to `index`. Rejected: no such entry at `index`, committed up to `commit`."""

    index: Number
    is_rejected: bool = False
    commit: Number = 0
    wants_snapshot: bool = False  # the sender has no membership yet


class RaftHeartbeat(_Message, frozen=True, array_like=True, gc=False, tag=5):
    """Asserts leadership. `commit` is an index that the receiver is known to have, of term `commit_term`."""

    commit: Number
    round: Number
    commit_term: Number = 0


class RaftHeartbeatResponse(_Message, frozen=True, array_like=True, gc=False, tag=6):
    """Acknowledges a heartbeat. `is_behind`: the sender lacks the entry (any more) and has committed up to `commit`."""

    round: Number
    is_behind: bool = False
    commit: Number = 0


class SnapshotChunk(_Message, frozen=True, array_like=True, gc=False, tag=7):
    """Bytes of a snapshot, from `position` on."""

    index: Number
    snapshot_term: Number
    membership: RaftMembership
    size_bytes: Number
    crc: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]  # CRC-32C of all of it
    position: Number
    data: Annotated[bytes, msgspec.Meta(max_length=limits.RAFT_SNAPSHOT_CHUNK_BYTES)]


class SnapshotResponse(_Message, frozen=True, array_like=True, gc=False, tag=8):
    """Acknowledges the snapshot at `index` up to `position` (exclusive)."""

    index: Number
    position: Number


class ReadRequest(_Message, frozen=True, array_like=True, gc=False, tag=9):
    """Asks the leader for a read index."""

    context: ReadContext


class ReadResponse(_Message, frozen=True, array_like=True, gc=False, tag=10):
    """The read index for the request with this `context`."""

    index: Number
    context: ReadContext


class LeadNow(_Message, frozen=True, array_like=True, gc=False, tag=11):
    """Asks the receiver to start an election at once (leadership transfer)."""


Message = (
    VoteRequest
    | VoteResponse
    | AppendEntriesRequest
    | AppendEntriesResponse
    | RaftHeartbeat
    | RaftHeartbeatResponse
    | SnapshotChunk
    | SnapshotResponse
    | ReadRequest
    | ReadResponse
    | LeadNow
)

FROM_LEADER = (AppendEntriesRequest, RaftHeartbeat, SnapshotChunk, LeadNow)
FROM_MEMBERS = (
    VoteResponse,
    AppendEntriesResponse,
    RaftHeartbeatResponse,
    SnapshotResponse,
)  # accepted from members only
