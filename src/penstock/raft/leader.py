"""Leader role: replicates the log, counts acknowledgements, confirms reads, transfers leadership.

Rules: an entry is committed by counting only if it is of the leader's own term (Raft's figure 8); earlier entries are
committed with it. The leader counts itself only up to what its own disk has. Messages are made when a Ready is taken,
so that everything since the last one travels together.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.hot.crc import crc32c
from penstock.raft.log import RaftLog
from penstock.raft.messages import (
    AppendEntriesRequest,
    AppendEntriesResponse,
    LeadNow,
    Message,
    RaftHeartbeat,
    RaftHeartbeatResponse,
    ReadResponse,
    SnapshotChunk,
    SnapshotResponse,
)
from penstock.raft.progress import PeerProgress, ProgressState
from penstock.raft.quorum import committed_index, is_majority
from penstock.raft.reads import PendingRead, ReadQueue
from penstock.raft.values import Entry, EntryKind, RaftConfig, Read, Snapshot

Send = Callable[[Message], None]
Answer = Callable[[Read], None]


class Leader:
    """One leadership, from the election on."""

    def __init__(self, config: RaftConfig, log: RaftLog, term: int, send: Send, answer: Answer) -> None:
        self._config = config
        self._id = config.id
        self._log = log
        self._term = term
        self._send = send
        self._answer_here = answer
        self._progress: dict[BrokerId, PeerProgress] = {}
        self._reads = ReadQueue(config.id)
        self._crc: tuple[Snapshot, int] | None = None  # of the last snapshot that was sent
        self._uncommitted_bytes = sum(map(_cost, log.between(log.commit, log.last_index)))
        self._heartbeat_ticks = self._quorum_ticks = self._transfer_ticks = 0
        self.transferee: BrokerId | None = None
        self.is_dirty = True  # something may have to be sent
        self.first_index = log.last_index + 1  # of this leadership's first entry
        self.append(EntryKind.LEADERSHIP, b"")

    # The log

    def append(self, kind: EntryKind, data: bytes) -> int:
        """Append an entry of this term; return its index. Raise RemoteError (overloaded) at the uncommitted limit."""
        size_bytes = len(data) + limits.RAFT_ENTRY_OVERHEAD_BYTES
        if kind is EntryKind.COMMAND:
            if self._uncommitted_bytes + size_bytes > self._config.uncommitted_bytes_max:
                raise RemoteError(ErrorCode.OVERLOADED, "too much waits to be committed; try again")
            self._uncommitted_bytes += size_bytes
        index = self._log.last_index + 1
        self._log.append((Entry(self._term, index, kind, data),))
        if kind is not EntryKind.COMMAND:
            self.follow_membership()
        self.is_dirty = True
        return index

    def follow_membership(self) -> None:
        """Track new members and drop removed ones."""
        membership = self._log.membership
        members = sorted({*membership.voters, *membership.learners} - {self._id})
        next_index = self._log.last_index
        self._progress = {member: self._progress.get(member) or PeerProgress(next_index) for member in members}
        if self.transferee not in membership.voters:
            self.transferee = None

    def match_index(self, member: BrokerId) -> int:
        """Return the last index up to which `member` is known to have this log; 0 if unknown."""
        progress = self._progress.get(member)
        return 0 if progress is None else progress.match_index

    def retract_from(self, index: int) -> None:
        """Remove entries from `index` on, which neither this disk nor another broker has."""
        for entry in self._log.between(index - 1, self._log.last_index):
            self._uncommitted_bytes -= _cost(entry)
        self._log.truncate_from(index)
        self.follow_membership()
        for progress in self._progress.values():
            progress.probe()  # the entries meant for it were never sent
        self.is_dirty = True

    def try_commit(self) -> bool:
        """Commit the entries that a majority of voters has. Return True if the commit index moved."""
        log = self._log
        matched = {member: progress.match_index for member, progress in self._progress.items()}
        matched[self._id] = log.stable_index
        index = committed_index(log.membership.voters, matched)
        if index <= log.commit or log.term_at(index) != self._term:
            return False
        for entry in log.between(log.commit, index):
            self._uncommitted_bytes -= _cost(entry)
        log.commit_to(index)
        self._reads.begin(index)
        self.is_dirty = True
        return True

    @property
    def has_committed(self) -> bool:
        """True if an entry of this leadership is committed."""
        return self._log.term_at(self._log.commit) == self._term

    # Time

    def tick(self) -> bool:
        """Advance one tick. Return False to step down: no majority answered for an election time-out."""
        self._heartbeat_ticks += 1
        self._quorum_ticks += 1
        for progress in self._progress.values():
            progress.tick()
        if self.transferee is not None:
            self._transfer_ticks += 1
            if self._transfer_ticks >= self._config.election_ticks:
                self.transferee = None
        if self._quorum_ticks >= self._config.election_ticks:
            self._quorum_ticks = 0
            active = [member for member, progress in self._progress.items() if progress.is_active]
            if not is_majority(self._log.membership.voters, [*active, self._id]):
                return False
            for progress in self._progress.values():
                progress.is_active = False
        if self._heartbeat_ticks >= self._config.heartbeat_ticks:
            self._send_heartbeats()
        return True

    def _send_heartbeats(self) -> None:
        self._heartbeat_ticks = 0
        for member, progress in self._progress.items():
            commit = min(progress.match_index, self._log.commit)
            commit_term = self._log.term_at(commit)
            if commit_term is None:
                commit = commit_term = 0  # compacted away; the follower gets the snapshot next
            self._send(RaftHeartbeat(self._id, member, self._term, commit, self._reads.round, commit_term))

    # Sending

    def flush(self) -> None:
        """Send pending entries, snapshot chunks and heartbeats, and answer confirmed reads."""
        self.is_dirty = False
        if self._reads.wants_round:
            self._reads.begin_round()
            self._send_heartbeats()
        for member, progress in self._progress.items():
            self._send_log(member, progress)
        self._confirm_reads()

    def _send_log(self, to: BrokerId, progress: PeerProgress) -> None:
        log, config = self._log, self._config
        while progress.may_append(config.in_flight_max):
            prev_index = progress.next_index - 1
            prev_term = log.term_at(prev_index)
            if prev_term is None or progress.wants_snapshot:
                if progress.is_active:
                    progress.start_snapshot(log.snapshot)
                break
            entries = log.batch(prev_index, log.last_index, config.append_bytes_max, config.append_entries_max)
            if not entries and progress.pace is ProgressState.REPLICATE and progress.commit_sent >= log.commit:
                break
            self._send(AppendEntriesRequest(self._id, to, self._term, prev_index, prev_term, log.commit, entries))
            progress.sent(prev_index + len(entries), log.commit)
        if progress.pace is ProgressState.SNAPSHOT and not progress.is_waiting:
            self._send_chunk(to, progress)

    def _send_chunk(self, to: BrokerId, progress: PeerProgress) -> None:
        snapshot = progress.snapshot
        assert snapshot is not None
        if progress.chunk_position == 0:
            progress.snapshot = snapshot = self._log.snapshot  # a newer one may exist by now
        if self._crc is None or self._crc[0] is not snapshot:
            self._crc = (snapshot, crc32c(snapshot.data))
        position = min(progress.chunk_position, len(snapshot.data))
        data = snapshot.data[position : position + self._config.snapshot_chunk_bytes]
        progress.chunk_end = position + len(data)
        progress.is_waiting = True
        self._send(
            SnapshotChunk(
                self._id,
                to,
                self._term,
                snapshot.index,
                snapshot.term,
                snapshot.membership,
                len(snapshot.data),
                self._crc[1],
                position,
                data,
            )
        )

    # Receiving

    def hear(self, message: AppendEntriesResponse | RaftHeartbeatResponse | SnapshotResponse) -> bool:
        """Handle a follower's response. Return False if it contradicts the leader's state. Ignore non-members."""
        progress = self._progress.get(message.sender)
        if progress is None:
            return True
        if not progress.is_active:
            progress.is_active = True
            self.is_dirty = True  # a snapshot may be due: it is sent only to active followers
        if isinstance(message, AppendEntriesResponse):
            return self._on_append_response(progress, message)
        if isinstance(message, RaftHeartbeatResponse):
            return self._on_heartbeat_response(progress, message)
        return self._on_snapshot_response(progress, message)

    def _on_append_response(self, progress: PeerProgress, message: AppendEntriesResponse) -> bool:
        if max(message.index, message.commit) > self._log.stable_index:
            return False  # beyond what was ever sent
        if message.wants_snapshot:
            progress.begin_anew()
            self.is_dirty = True
        elif message.is_rejected:
            if progress.rejected(message.index, message.commit):
                self.is_dirty = True
        elif progress.accepted(message.index):
            self.is_dirty = True
            self._go_on_with_transfer(message.sender)
        return True

    def _on_heartbeat_response(self, progress: PeerProgress, message: RaftHeartbeatResponse) -> bool:
        if message.round > self._reads.round or message.commit > self._log.stable_index:
            return False
        if message.is_behind and progress.forgot(message.commit):
            self.is_dirty = True
        if progress.is_overdue(2 * self._config.heartbeat_ticks):
            self.is_dirty = True
        self._reads.acknowledged(message.sender, message.round)
        if len(self._reads):
            self.is_dirty = True
        return True

    def _on_snapshot_response(self, progress: PeerProgress, message: SnapshotResponse) -> bool:
        if progress.snapshot is None or progress.snapshot.index != message.index:
            return True  # of an earlier snapshot
        if message.position > len(progress.snapshot.data):
            return False
        if progress.received(message.position):
            self.is_dirty = True
        return True

    # Reads

    def read(self, requester: BrokerId, context: bytes) -> bool:
        """Queue a read; return False at the limit RAFT_READS_MAX."""
        if len(self._reads) >= limits.RAFT_READS_MAX:
            return False
        self._reads.add(requester, context, self._log.commit if self.has_committed else None)
        self.is_dirty = True
        return True

    def _confirm_reads(self) -> None:
        for read in self._reads.confirmed(self._log.membership.voters):
            self._answer(read)

    def _answer(self, read: PendingRead) -> None:
        if read.requester == self._id:
            self._answer_here(Read(read.index, read.context))
        else:
            self._send(ReadResponse(self._id, read.requester, self._term, read.index, read.context))

    # Leadership transfer

    def transfer(self, to: BrokerId) -> None:
        """Replicate the log to `to`, then ask it to start an election. Given up after an election time-out."""
        self.transferee = to
        self._transfer_ticks = 0
        self._go_on_with_transfer(to)

    def _go_on_with_transfer(self, sender: BrokerId) -> None:
        if sender == self.transferee and self._progress[sender].match_index == self._log.last_index:
            self._send(LeadNow(self._id, sender, self._term))


def _cost(entry: Entry) -> int:
    is_counted = entry.kind is EntryKind.COMMAND
    return len(entry.data) + limits.RAFT_ENTRY_OVERHEAD_BYTES if is_counted else 0
