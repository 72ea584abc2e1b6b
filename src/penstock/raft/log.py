"""Raft log of one broker in memory: entries, and how far they are committed, applied and on the disk.

Rules: committed entries never change. `applied ≤ commit ≤ last_index`. `stable_index` is the last index on the disk;
later entries go out with the next Ready. The current membership is the last one in the log, committed or not.

    … dropped … | kept for laggards | applied | committed | appended, on the disk | not yet on the disk
                ^ base_index        ^ snapshot.index                              ^ stable_index       ^ last_index
"""

from __future__ import annotations

from penstock.raft.membership import decode_membership
from penstock.raft.values import Entry, EntryKind, RaftMembership, Snapshot, StoredState


class RaftLog:
    """Entries after `base_index`, in order, without a gap."""

    def __init__(self, state: StoredState) -> None:
        self.snapshot = state.snapshot
        self.new_snapshot: Snapshot | None = None  # received from the leader and not on the disk yet
        self.base_index, self.base_term = state.snapshot.index, state.snapshot.term
        self._entries: list[Entry] = []
        self._memberships = [(self.base_index, state.snapshot.membership)]
        self.append(state.entries)
        self.commit = min(max(state.hard_state.commit, self.base_index), self.last_index)
        self.applied = self.base_index
        self.stable_index = self.last_index

    @property
    def last_index(self) -> int:
        """The index of the last entry; `base_index` if there is none."""
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self._entries[-1].term if self._entries else self.base_term

    @property
    def membership(self) -> RaftMembership:
        """The membership of the last entry that set one."""
        return self._memberships[-1][1]

    @property
    def membership_index(self) -> int:
        """The index of the entry that set `membership`."""
        return self._memberships[-1][0]

    @property
    def committed_membership(self) -> RaftMembership:
        """The last membership that is committed."""
        return next((found for at, found in reversed(self._memberships) if at <= self.commit), self.membership)

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry; None if it is not in the log (any more)."""
        if index == self.base_index:
            return self.base_term
        place = index - self.base_index - 1
        return self._entries[place].term if 0 <= place < len(self._entries) else None

    def between(self, after_index: int, last_index: int) -> tuple[Entry, ...]:
        """Return the entries after `after_index`, up to and including `last_index`."""
        assert self.base_index <= after_index
        assert last_index <= self.last_index
        return tuple(self._entries[after_index - self.base_index : max(0, last_index - self.base_index)])

    def batch(self, after_index: int, last_index: int, bytes_max: int, entries_max: int) -> tuple[Entry, ...]:
        """Return the first of those entries within the bounds, at least one if there is any."""
        chosen: list[Entry] = []
        size_bytes = 0
        for entry in self.between(after_index, min(last_index, after_index + entries_max)):
            size_bytes += len(entry.data)
            if chosen and size_bytes > bytes_max:
                break
            chosen.append(entry)
        return tuple(chosen)

    def append(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            assert entry.index == self.last_index + 1, "the log has no gaps"
            self._entries.append(entry)
            if entry.kind is EntryKind.MEMBERSHIP:
                self._memberships.append((entry.index, decode_membership(entry.data)))

    def truncate_from(self, index: int) -> None:
        """Remove the entries from `index` on, which must not be committed."""
        assert index > self.commit, "what is committed stays"
        del self._entries[index - self.base_index - 1 :]
        while self._memberships[-1][0] >= index:
            self._memberships.pop()
        self.stable_index = min(self.stable_index, index - 1)

    def commit_to(self, index: int) -> None:
        """Raise the commit index; it never goes back."""
        assert index <= self.last_index
        self.commit = max(self.commit, index)

    def compact(self, index: int, data: bytes, kept_entries_max: int) -> Snapshot:
        """Replace the log up to `index` by a snapshot, but keep the last `kept_entries_max` entries for laggards."""
        assert self.snapshot.index < index <= self.applied
        term = self.term_at(index)
        assert term is not None
        membership = [found for at, found in self._memberships if at <= index][-1]
        self.snapshot = Snapshot(index, term, membership, data)
        base_index = max(self.base_index, index - kept_entries_max)
        base_term = self.term_at(base_index)
        assert base_term is not None
        del self._entries[: base_index - self.base_index]
        self.base_index, self.base_term = base_index, base_term
        self._memberships = [(index, membership), *((at, found) for at, found in self._memberships if at > index)]
        return self.snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Replace everything by the leader's snapshot."""
        self.snapshot = self.new_snapshot = snapshot
        self.base_index, self.base_term = snapshot.index, snapshot.term
        self._entries.clear()
        self._memberships = [(snapshot.index, snapshot.membership)]
        self.commit = self.stable_index = snapshot.index
