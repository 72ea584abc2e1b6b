"""The leader's replication state of one follower, and what may be sent to it.

Rules: `match_index` only rises, unless the follower's disk was set back to an older state. While probing, one append is
in flight; while replicating, a window of them; while sending a snapshot, one chunk. Unanswered messages are sent again
after a while if the follower still answers heartbeats.

| from      | event                                       | to        |
|-----------|---------------------------------------------|-----------|
| PROBE     | an append is accepted                       | REPLICATE |
| REPLICATE | an append is rejected, or not answered      | PROBE     |
| PROBE     | the entry before the next one was compacted | SNAPSHOT  |
| SNAPSHOT  | the follower has all of it                  | REPLICATE |
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from penstock.raft.values import Snapshot


class ProgressState(Enum):
    """The replication mode of a follower."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class PeerProgress:
    """One follower; `next_index` is the next entry to send to it."""

    __slots__ = (
        "chunk_end",
        "chunk_position",
        "commit_sent",
        "in_flight",
        "is_active",
        "is_waiting",
        "match_index",
        "next_index",
        "pace",
        "snapshot",
        "unanswered_ticks",
        "wants_snapshot",
    )

    def __init__(self, next_index: int) -> None:
        self.pace = ProgressState.PROBE
        self.match_index = 0
        self.next_index = next_index
        self.commit_sent = 0
        self.in_flight: deque[int] = deque()  # the last index of each append in flight
        self.is_waiting = False  # a probe or a chunk is in flight
        self.is_active = True  # it has answered since the last quorum check
        self.unanswered_ticks = 0
        self.wants_snapshot = False
        self.snapshot: Snapshot | None = None  # in transfer
        self.chunk_position = self.chunk_end = 0

    def may_append(self, in_flight_max: int) -> bool:
        """True if an append may be sent now."""
        if self.pace is ProgressState.PROBE:
            return not self.is_waiting
        return self.pace is ProgressState.REPLICATE and len(self.in_flight) < in_flight_max

    def sent(self, last_index: int, commit: int) -> None:
        """Record an append that ends at `last_index`."""
        self.commit_sent = commit
        if self.pace is ProgressState.PROBE:
            self.is_waiting = True
        elif last_index >= self.next_index:
            self.in_flight.append(last_index)
            self.next_index = last_index + 1

    def accepted(self, index: int) -> bool:
        """Record that the follower's log matches up to `index`. Return True if that is new."""
        is_end_of_snapshot = self.snapshot is not None and index >= self.snapshot.index
        if index < self.match_index or (index == self.match_index and self.pace is ProgressState.REPLICATE):
            return False
        if self.pace is ProgressState.SNAPSHOT and not is_end_of_snapshot:
            self.match_index = index
            return True
        self.match_index = index
        self.unanswered_ticks = 0
        if self.pace is not ProgressState.REPLICATE:
            self._turn(ProgressState.REPLICATE, index + 1)
        self.next_index = max(self.next_index, index + 1)
        while self.in_flight and self.in_flight[0] <= index:
            self.in_flight.popleft()
        return True

    def rejected(self, index: int, commit: int) -> bool:
        """The follower lacks the entry at `index` and has committed up to `commit`. Return True if that is new."""
        if self.pace is ProgressState.SNAPSHOT or (self.pace is ProgressState.PROBE and index != self.next_index - 1):
            return False
        if index <= self.match_index:
            if self.pace is ProgressState.REPLICATE or commit >= index:  # late or contradictory: do not resend at once
                return False
            self.match_index = commit  # it has lost acknowledged entries: its disk was set back to an older state
        self._turn(ProgressState.PROBE, max(self.match_index, commit) + 1)
        return True

    def forgot(self, commit: int) -> bool:
        """The follower lost acknowledged entries beyond `commit`. Return True if another entry is sent next."""
        self.match_index = min(self.match_index, commit)
        if self.pace is ProgressState.SNAPSHOT:
            return False
        self.probe()
        return True

    def begin_anew(self) -> None:
        """Start over with a snapshot: the follower has nothing, not even a membership."""
        if self.pace is not ProgressState.SNAPSHOT:
            self.match_index = 0
            self._turn(ProgressState.PROBE, 1)
            self.wants_snapshot = True

    def probe(self) -> None:
        """Return to PROBE, after the last entry that the follower is known to have."""
        if self.pace is not ProgressState.SNAPSHOT:
            self._turn(ProgressState.PROBE, self.match_index + 1)

    def start_snapshot(self, snapshot: Snapshot) -> None:
        """Send this snapshot in chunks instead of entries."""
        self._turn(ProgressState.SNAPSHOT, self.next_index)
        self.snapshot = snapshot
        self.wants_snapshot = False

    def received(self, position: int) -> bool:
        """Record that the follower has the snapshot up to `position`. Return True if the next chunk may be sent."""
        if position >= self.chunk_end:  # or beyond: an earlier response was lost
            self.chunk_position = position
            self.unanswered_ticks = 0
            self.is_waiting = False
            return True
        self.chunk_position = min(position, self.chunk_position)  # it lost chunks: they are sent again when overdue
        return False

    def tick(self) -> None:
        if self.is_waiting or self.in_flight:
            self.unanswered_ticks += 1

    def is_overdue(self, ticks_max: int) -> bool:
        """True if messages in flight must have been lost; they then count as not sent."""
        if self.unanswered_ticks < ticks_max:
            return False
        self.unanswered_ticks = 0
        self.is_waiting = False
        if self.pace is ProgressState.REPLICATE:
            self.probe()
        return True

    def _turn(self, pace: ProgressState, next_index: int) -> None:
        self.pace = pace
        self.next_index = next_index
        self.in_flight.clear()
        self.is_waiting = False
        self.unanswered_ticks = 0
        self.snapshot = None
        self.chunk_position = self.chunk_end = 0
