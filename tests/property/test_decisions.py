"""Decisions by a limit by subject, on a log of many segments, against a list of all messages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.commitlog import Log, LogConfig
from penstock.commitlog.files.files import LogFolder
from penstock.hot.subject_table import TableBudget
from penstock.live.row_set import NONE, RowSet
from penstock.node.partition.decisions import DecideRows, DecisionMemory
from penstock.vfs.memory import MemoryVfs
from tests.extent import examples
from tests.subjects import append_on

SUBJECTS = ("a", "b", "a.b", "c", *(f"n.{number}" for number in range(12)))
APPEND, DECIDE, DELETE, FORGET, LEAD, STRICTER, WIDER = range(7)
ACTS = st.lists(
    st.tuples(
        st.sampled_from((APPEND, APPEND, DECIDE, DECIDE, DELETE, FORGET, LEAD, STRICTER, WIDER)),
        st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=9),
        st.integers(0, 99),
    ),
    max_size=40,
)


class Model:
    """All messages, and those that are live, one after another."""

    def __init__(self) -> None:
        self.subjects: list[str] = []
        self.live: set[int] = set()
        self.end = 0  # decided on up to there

    def decide(self, end: int, limit: int) -> None:
        for offset in range(self.end, end):
            if offset in self.live:
                same = (one for one in sorted(self.live) if self.subjects[one] == self.subjects[offset])
                before = [one for one in same if one <= offset]
                self.live.difference_update(before[:-limit])
        self.end = end


def check(acts: list[tuple[int, list[str], int]], limit: int) -> None:
    log = Log.open(LogFolder(MemoryVfs(), "log", 7, 0), LogConfig(segment_bytes=2_000), now_us=0)
    log.start_epoch(1)
    model, hidden, others = Model(), NONE, False
    memory, budget = DecisionMemory(limit, 0, 0, TableBudget(limits.OFFSET_MAX)), TableBudget(limits.OFFSET_MAX)
    for act, subjects, number in [*acts, (DECIDE, [], 0)]:
        if act == APPEND:
            model.subjects += subjects
            model.live |= {offset for offset, _ in append_on(log, subjects, size_bytes=60)}
        elif act == DELETE and model.end:
            gone = RowSet.of([number % model.end])
            hidden, others = hidden | gone, True
            model.live -= {number % model.end}
        elif act == FORGET:
            memory.forget(number)
        elif act in (LEAD, STRICTER, WIDER):
            if act == STRICTER and limit > 1:
                limit, model.end = limit - 1, 0
            limit += act == WIDER
            memory = DecisionMemory(limit, model.end, 0, budget)
        elif act == DECIDE and model.end < log.log_end:
            query = DecideRows(log.view().hiding(hidden), log.log_end, memory, has_others=others, skips_damage=False)
            query.run()
            assert model.end < query.decided_end <= log.log_end
            hidden |= query.hidden
            model.decide(query.decided_end, limit)
            assert {one for one in range(log.log_end) if one not in hidden} == model.live


@pytest.mark.parametrize("limit", [1, 2, 3])
@settings(max_examples=examples(60), deadline=None)
@given(acts=ACTS)
def test_exactly_the_last_messages_of_each_subject_stay(limit: int, acts: list[tuple[int, list[str], int]]) -> None:
    check(acts, limit)


@pytest.mark.parametrize("limit", [1, 2])
@settings(max_examples=examples(30), deadline=None)
@given(acts=ACTS)
def test_a_decision_on_a_few_rows_at_a_time_comes_to_the_same(
    limit: int, acts: list[tuple[int, list[str], int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "DECIDED_ROWS_AT_ONCE", 3)
        patch.setattr(limits, "SUBJECT_TABLE_MAX", 4)
        check([*acts, *[(DECIDE, [], 0)] * 50], limit)
