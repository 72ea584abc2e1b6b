"""What Raft keeps, and what it hands out.

Rules: everything here is immutable. An index counts entries from 1; index 0 is the beginning, before any entry. A term
is one candidacy, and names its candidate (`terms`); 0 is before any. `vote` 0 on the disk is None here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol

import msgspec

from penstock.base import limits
from penstock.base.ids import BrokerId

if TYPE_CHECKING:
    from penstock.raft.messages import Message

NUMBER_MAX = 2**62  # of indexes and terms: they fit what holds them, however often one is added
BROKER_ID_MAX = 2**31 - 1

Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Member = Annotated[BrokerId, msgspec.Meta(ge=1, le=BROKER_ID_MAX)]


class EntryKind(IntEnum):
    """What an entry is for. The numbers are on the disk and on the wire."""

    LEADERSHIP = 0  # the first of a term; empty; what comes to be committed commits all before it
    COMMAND = 1  # the application's
    MEMBERSHIP = 2  # from here on, committed or not, the cluster is who it says


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One place in the log."""

    term: Number
    index: Number
    kind: EntryKind
    data: bytes


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """Who votes, and who only follows. Both sorted, without an id twice."""

    voters: tuple[Member, ...] = ()
    learners: tuple[Member, ...] = ()

    def __contains__(self, broker_id: object) -> bool:
        return broker_id in self.voters or broker_id in self.learners


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The application's state behind the entry `index`, and who was in the cluster there."""

    index: int
    term: int
    membership: Membership
    data: bytes


NO_SNAPSHOT = Snapshot(0, 0, Membership(), b"")
"""Where a broker stands that knows no cluster yet."""


class HardState(NamedTuple):
    """What must survive: without `term` and `vote` a broker could vote twice. `commit` only makes a start quicker."""

    term: int = 0
    vote: BrokerId | None = None
    commit: int = 0


NO_STATE = HardState()


@dataclass(frozen=True, slots=True)
class Read:
    """What was asked for as `context` may be read once everything up to `index` is applied."""

    index: int
    context: bytes


@dataclass(frozen=True, slots=True)
class StoredState:
    """What a broker starts from: `entries` follow the snapshot without a gap."""

    hard_state: HardState
    snapshot: Snapshot
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """What the driver must do, top to bottom. Nothing is sent before what stands above it is on the disk."""

    must_sync: bool  # 1. to 3. survive a power loss, or the driver does not go on; else only `commit` is news
    snapshot: Snapshot | None  # 1. replaces all that is stored
    entries: tuple[Entry, ...]  # 2. replace what is stored from the first one's index on
    hard_state: HardState | None  # 3. None: unchanged
    messages: tuple[Message, ...]  # 4. to other brokers; any of them may be lost
    committed: tuple[Entry, ...]  # 5. for the application, which has taken over `snapshot` before
    reads: tuple[Read, ...]  # 6.


class Chance(Protocol):
    """A seeded generator, such as random.Random."""

    def randrange(self, stop: int, /) -> int:
        """A number from 0 up to but without `stop`."""


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """One broker's settings. A tick is whatever the driver makes it; every size is in bytes."""

    id: BrokerId
    election_ticks: int = 10  # without a leader for so long, up to twice it, and there is an election
    heartbeat_ticks: int = 2
    append_bytes_max: int = limits.RAFT_APPEND_BYTES_MAX
    append_entries_max: int = limits.RAFT_APPEND_ENTRIES_MAX
    in_flight_max: int = limits.RAFT_IN_FLIGHT_MAX
    uncommitted_bytes_max: int = limits.RAFT_UNCOMMITTED_BYTES_MAX
    snapshot_chunk_bytes: int = limits.RAFT_SNAPSHOT_CHUNK_BYTES
    apply_bytes_max: int = limits.RAFT_APPLY_BYTES_MAX
    kept_entries_max: int = limits.RAFT_KEPT_ENTRIES_MAX

    def __post_init__(self) -> None:
        assert 1 <= self.id <= BROKER_ID_MAX
        assert self.heartbeat_ticks >= 1
        assert 2 * self.heartbeat_ticks < self.election_ticks
        assert 1 <= self.append_bytes_max <= limits.RAFT_APPEND_BYTES_MAX
        assert 1 <= self.append_entries_max <= limits.RAFT_APPEND_ENTRIES_MAX
        assert 1 <= self.snapshot_chunk_bytes <= limits.RAFT_SNAPSHOT_CHUNK_BYTES
        assert self.in_flight_max >= 1
        assert self.kept_entries_max >= 0
