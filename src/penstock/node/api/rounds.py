"""Rounds of work in the partitions led here, at their times: a disk thread reads a log, and the caller acts upon it.

Rules: a partition has one round at a time, in one leadership. Rounds that are due take turns: so many are read at once.
A state that is forgotten gives up its query, and what that says is dropped.

    planned ── due ──▶ queued ─▶ begun ─▶ read ─▶ acted upon: over, the next one is planned
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from penstock.hot.subject_table import SubjectTable
from penstock.node.context import Context
from penstock.node.partition.expiry_blocks import ExpiryBlocks, NextRowsBudget
from penstock.node.partition.log_queries import Query
from penstock.node.partition.partition import Partition
from penstock.node.step import Lane
from penstock.replication.leader import Leadership


class PartitionRounds:
    """State of one partition's rounds in one leadership."""

    __slots__ = (
        "at_us",
        "begun_us",
        "blocks",
        "is_busy",
        "leadership",
        "learn_us",
        "newcomers",
        "partition",
        "query",
    )

    def __init__(self, partition: Partition, leadership: Leadership, budget: NextRowsBudget, learn_us: int) -> None:
        """`learn_us`: from one round to the next that is to learn what is new in the log."""
        self.partition, self.leadership, self.learn_us = partition, leadership, learn_us
        self.blocks = ExpiryBlocks(partition.log_start, budget)
        self.query: Query | None = None  # of the round under way
        self.newcomers: SubjectTable | None = None  # knows what comes on subjects since the round began
        self.is_busy = False  # from the time of a round until it is over
        self.at_us: int | None = None  # elapsed time of the next round
        self.begun_us = -learn_us  # when the last round began

    def newcomers_since(self, log_end: int) -> SubjectTable | None:
        """Return the table of what has come since the log ended there; None: that is not known."""
        newcomers = self.newcomers
        is_known = newcomers is not None and newcomers in self.partition.newcomers
        return newcomers if is_known and newcomers is not None and newcomers.known_from <= log_end else None

    def over(self) -> None:
        """Forget the round."""
        self.is_busy, self.query = False, None
        if self.newcomers is not None:
            self.partition.forget_newcomers(self.newcomers)
        self.newcomers = None


StateT = TypeVar("StateT", bound=PartitionRounds)


class Rounds(Generic[StateT]):
    """The rounds of one kind in all partitions of one broker."""

    def __init__(self, context: Context, running_max: int, begin: Callable[[StateT], None]) -> None:
        """`running_max`: partitions that are read at a time. `begin` is called when a round's turn has come."""
        self._context, self._running_max, self._begin = context, running_max, begin
        self._states: dict[Partition, StateT] = {}
        self._timers: list[tuple[int, int, StateT]] = []  # a heap; outdated ones stay in it
        self._numbers = count()
        self._queue: deque[StateT] = deque()  # due, while `running_max` others are read
        self._running = 0
        self.budget = NextRowsBudget()
        self.is_stopped = False

    def __len__(self) -> int:
        """Number of partitions with rounds."""
        return len(self._states)

    # States

    def get(self, partition: Partition) -> StateT | None:
        """Return the state of a partition; None: it has none."""
        return self._states.get(partition)

    def add(self, one: StateT) -> None:
        """Take the state of a partition that has none."""
        self._states[one.partition] = one

    def is_current(self, one: StateT) -> bool:
        """True if this still is the state of its partition, in its present leadership."""
        partition = one.partition
        return self._states.get(partition) is one and partition.leadership is one.leadership

    def forget(self, partition: Partition) -> None:
        """Drop what is known of a partition that is no longer led here, or is gone."""
        if (one := self._states.pop(partition, None)) is not None:
            one.at_us = None
            one.blocks.close()
            if one.query is not None:
                one.query.give_up()
            one.over()

    def stop(self) -> None:
        """Begin no more rounds because the broker stops. May be called twice."""
        self.is_stopped = True
        for partition in list(self._states):
            self.forget(partition)

    # Times

    def plan(self, one: StateT, at_us: int) -> None:
        """Begin the next round then, in elapsed time, or now if that is past."""
        one.at_us = max(at_us, self._context.now.elapsed_us)
        heappush(self._timers, (one.at_us, next(self._numbers), one))

    def plan_to_learn(self, one: StateT) -> None:
        """Begin a round soon because the log has something new, unless one is under way."""
        at_us = one.begun_us + one.learn_us
        if not one.is_busy and (one.at_us is None or one.at_us > at_us):
            self.plan(one, at_us)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        return self._timers[0][0] if self._timers else None

    def tick(self, now_us: int) -> None:
        """Begin the rounds that are due; `now_us` is elapsed time."""
        while self._timers and self._timers[0][0] <= now_us:
            at_us, _, one = heappop(self._timers)
            if one.at_us == at_us:
                one.at_us, one.is_busy = None, True
                self._queue.append(one)
        self._run_more()

    def _run_more(self) -> None:
        while self._queue and self._running < self._running_max:
            one = self._queue.popleft()
            if self.is_current(one):
                self._begin(one)

    def read(self, one: StateT, query: Query, heard: Callable[[Exception | None], None]) -> None:
        """Run the query of a round in a disk thread; `heard` is called then, if the state still is current."""
        one.query = query
        self._running += 1

        def done(error: Exception | None) -> None:
            self._running -= 1
            if self.is_current(one):
                heard(error)
            self._run_more()

        self._context.outbox.work(Lane.READ, query.run, done)
