"""What a leader knows of one follower, and what it may send there.

Rules: `match_index` only rises, unless the follower's disk was put back in an older state. While probing, one message
at a time is on its way; while replicating, a window of them; while a snapshot travels, one chunk. What is not answered
for a while is sent again, if the follower still answers heartbeats.

| from      | event                                     | to        |
|-----------|-------------------------------------------|-----------|
| PROBE     | an append is accepted                     | REPLICATE |
| REPLICATE | an append is rejected, or not answered    | PROBE     |
| PROBE     | the entry before the next one is gone here | SNAPSHOT  |
| SNAPSHOT  | the follower has it all                   | REPLICATE |
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from penstock.raft.values import Snapshot


class Pace(Enum):
    """How a follower is brought up to date."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One follower. `next_index` is what is sent next."""

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
        self.pace = Pace.PROBE
        self.match_index = 0
        self.next_index = next_index
        self.commit_sent = 0
        self.in_flight: deque[int] = deque()  # the last index of each append that is on its way
        self.is_waiting = False  # a probe or a chunk is on its way
        self.is_active = True  # has been heard of since the last look
        self.unanswered_ticks = 0
        self.wants_snapshot = False
        self.snapshot: Snapshot | None = None  # on its way
        self.chunk_position = self.chunk_end = 0

    def may_append(self, in_flight_max: int) -> bool:
        """Whether an append may go out now."""
        if self.pace is Pace.PROBE:
            return not self.is_waiting
        return self.pace is Pace.REPLICATE and len(self.in_flight) < in_flight_max

    def sent(self, last_index: int, commit: int) -> None:
        """An append went out that ends at `last_index`."""
        self.commit_sent = commit
        if self.pace is Pace.PROBE:
            self.is_waiting = True
        elif last_index >= self.next_index:
            self.in_flight.append(last_index)
            self.next_index = last_index + 1

    def accepted(self, index: int) -> bool:
        """The follower's log is the leader's up to `index`; whether that is news."""
        is_end_of_snapshot = self.snapshot is not None and index >= self.snapshot.index
        if index < self.match_index or (index == self.match_index and self.pace is Pace.REPLICATE):
            return False
        if self.pace is Pace.SNAPSHOT and not is_end_of_snapshot:
            self.match_index = index
            return True
        self.match_index = index
        self.unanswered_ticks = 0
        if self.pace is not Pace.REPLICATE:
            self._turn(Pace.REPLICATE, index + 1)
        self.next_index = max(self.next_index, index + 1)
        while self.in_flight and self.in_flight[0] <= index:
            self.in_flight.popleft()
        return True

    def rejected(self, index: int, commit: int) -> bool:
        """The follower lacks the entry at `index` and has what is committed up to `commit`; whether that is news."""
        if self.pace is Pace.SNAPSHOT or (self.pace is Pace.PROBE and index != self.next_index - 1):
            return False
        if index <= self.match_index:
            if self.pace is Pace.REPLICATE or commit >= index:  # late, or nonsense: haste would help least of all
                return False
            self.match_index = commit  # it has lost what it had acknowledged: its disk is in an older state
        self._turn(Pace.PROBE, max(self.match_index, commit) + 1)
        return True

    def forgot(self, commit: int) -> bool:
        """The follower has not (any more) what it acknowledged, only `commit`; whether something else is sent now."""
        self.match_index = min(self.match_index, commit)
        if self.pace is Pace.SNAPSHOT:
            return False
        self.probe()
        return True

    def begin_anew(self) -> None:
        """The follower has nothing, not even a membership."""
        if self.pace is not Pace.SNAPSHOT:
            self.match_index = 0
            self._turn(Pace.PROBE, 1)
            self.wants_snapshot = True

    def probe(self) -> None:
        """Begin again behind what the follower is known to have."""
        if self.pace is not Pace.SNAPSHOT:
            self._turn(Pace.PROBE, self.match_index + 1)

    def start_snapshot(self, snapshot: Snapshot) -> None:
        """Its chunks go out instead of entries."""
        self._turn(Pace.SNAPSHOT, self.next_index)
        self.snapshot = snapshot
        self.wants_snapshot = False

    def received(self, position: int) -> bool:
        """The follower has the snapshot up to `position`; whether the next chunk may go out."""
        if position >= self.chunk_end:  # or further: an answer before was lost
            self.chunk_position = position
            self.unanswered_ticks = 0
            self.is_waiting = False
            return True
        self.chunk_position = min(position, self.chunk_position)  # it lost some: sent again when it is overdue
        return False

    def tick(self) -> None:
        """Time passes."""
        if self.is_waiting or self.in_flight:
            self.unanswered_ticks += 1

    def is_overdue(self, ticks_max: int) -> bool:
        """Whether what is on its way must have been lost; then it counts as not sent."""
        if self.unanswered_ticks < ticks_max:
            return False
        self.unanswered_ticks = 0
        self.is_waiting = False
        if self.pace is Pace.REPLICATE:
            self.probe()
        return True

    def _turn(self, pace: Pace, next_index: int) -> None:
        self.pace = pace
        self.next_index = next_index
        self.in_flight.clear()
        self.is_waiting = False
        self.unanswered_ticks = 0
        self.snapshot = None
        self.chunk_position = self.chunk_end = 0
