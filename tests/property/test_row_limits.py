"""The number of live rows that a leader keeps for its limits, against a list: gaps, hidden rows, log start, cuts."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.base.config import StreamConfig
from penstock.live.row_set import NONE, RowSet
from penstock.node.partition.row_limit import RowLimit
from tests.extent import examples

PLACE = st.floats(0, 1, exclude_max=True)


class LimitedLog(RuleBasedStateMachine):
    """`live`: the offsets of the live rows, of a log that is committed up to `committed`."""

    @initialize(rows_max=st.integers(1, 60), gaps=st.sets(st.integers(0, 199)), end=st.sampled_from([0, 200]))
    def start(self, rows_max: int, gaps: set[int], end: int) -> None:
        self.limit = RowLimit(StreamConfig(name="s", subject="s", max_messages=rows_max))
        assert not self.limit.is_known
        self.limit.known(RowSet.of(one for one in gaps if one < end))
        self.rows_max = rows_max
        self.live = [offset for offset in range(end) if offset not in gaps]
        self.hidden = NONE
        self.log_start, self.committed, self.log_end = 0, end, end

    @rule(count=st.integers(1, 90))
    def append(self, count: int) -> None:
        self.live += range(self.log_end, self.log_end + count)
        self.log_end += count

    @rule(part=PLACE)
    def commit(self, part: float) -> None:
        self.committed += round(part * (self.log_end - self.committed + 1))
        self.committed = min(self.committed, self.log_end)

    @rule(place=PLACE, length=st.sampled_from([1, 2, 30]))
    def hide(self, place: float, length: int) -> None:
        begin = int(place * self.committed)
        end = min(begin + length, self.committed)
        if begin < end:
            self.hidden = self.hidden | RowSet.of_runs([(begin, end)])
            self.live = [offset for offset in self.live if not begin <= offset < end]

    @rule(part=PLACE)
    def cut(self, part: float) -> None:
        """What is not committed may be lost."""
        self.log_end = self.committed + int(part * (self.log_end - self.committed))
        self.live = [offset for offset in self.live if offset < self.log_end]

    @rule(part=PLACE)
    def purge(self, part: float) -> None:
        self.log_start = max(self.log_start, int(part * self.committed))

    @rule(rows_max=st.integers(1, 60))
    def alter(self, rows_max: int) -> None:
        self.limit.configure(StreamConfig(name="s", subject="s", max_messages=rows_max))
        assert self.limit.is_known
        self.rows_max = rows_max

    @rule()
    def push_out(self) -> None:
        kept = [offset for offset in self.live if self.log_start <= offset < self.committed]
        self.log_start = self.limit.start_of_newest(self.log_start, self.committed, self.hidden or None)
        left = [offset for offset in self.live if self.log_start <= offset < self.committed]
        assert left == kept[-self.rows_max :]

    @invariant()
    def the_numbers_are_those_of_the_list(self) -> None:
        if hasattr(self, "limit"):
            for end in (self.committed, self.log_end):
                wanted = sum(self.log_start <= offset < end for offset in self.live)
                assert self.limit.rows(self.log_start, end, self.hidden or None) == wanted


LimitedLog.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestLimitedLog = LimitedLog.TestCase
