"""Raft's values: entries, memberships, snapshots, `Ready` and the settings.

Rules: all are immutable. An index counts entries from 1; index 0 is the beginning, before any entry. A term is one
candidacy, and names its candidate (`terms`); 0 is before any. `vote` 0 on the disk is None here.
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

NUMBER_MAX = 2**62  # limit of indexes and terms; one more still fits in 64 bits
BROKER_ID_MAX = 2**31 - 1

Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Member = Annotated[BrokerId, msgspec.Meta(ge=1, le=BROKER_ID_MAX)]


class EntryKind(IntEnum):
    """The purpose of an entry. The numbers are on the disk and on the wire."""

    LEADERSHIP = 0  # the first of a term; empty; committing it commits all entries before it
    COMMAND = 1  # the application's
    MEMBERSHIP = 2  # the membership from here on, committed or not


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the log."""

    term: Number
    index: Number
    kind: EntryKind
    data: bytes


class RaftMembership(msgspec.Struct, frozen=True, array_like=True):
    """The voters and the learners, each sorted and without duplicates."""

    voters: tuple[Member, ...] = ()
    learners: tuple[Member, ...] = ()

    def __contains__(self, broker_id: object) -> bool:
        return broker_id in self.voters or broker_id in self.learners


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The application's state after entry `index`, and the membership there."""

    index: int
    term: int
    membership: RaftMembership
    data: bytes


NO_SNAPSHOT = Snapshot(0, 0, RaftMembership(), b"")
"""The state of a broker that knows no cluster yet."""


class HardState(NamedTuple):
    """State that must survive: without `term` and `vote` a broker could vote twice. `commit` only speeds up a start."""

    term: int = 0
    vote: BrokerId | None = None
    commit: int = 0


NO_STATE = HardState()


@dataclass(frozen=True, slots=True)
class Read:
    """The read requested with `context` may be served once everything up to `index` is applied."""

    index: int
    context: bytes


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state from which a broker starts; `entries` follow the snapshot without a gap."""

    hard_state: HardState
    snapshot: Snapshot
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """The driver's work, top to bottom. Nothing is sent before everything above it is on the disk."""

    must_sync: bool  # 1. to 3. must survive a power loss before the driver goes on; else only `commit` changed
    snapshot: Snapshot | None  # 1. replaces everything stored
    entries: tuple[Entry, ...]  # 2. replace the stored entries from the first one's index on
    hard_state: HardState | None  # 3. None: unchanged
    messages: tuple[Message, ...]  # 4. to other brokers; any of them may be lost
    committed: tuple[Entry, ...]  # 5. for the application, which has restored `snapshot` before
    reads: tuple[Read, ...]  # 6.


class ElectionRandom(Protocol):
    """A seeded random generator, such as random.Random."""

    def randrange(self, stop: int, /) -> int:
        """Return a random number from 0 to `stop` (exclusive)."""


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """One broker's settings. The driver defines the length of a tick; sizes are in bytes."""

    id: BrokerId
    election_ticks: int = 10  # ticks without a leader before an election; randomised up to twice this
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
