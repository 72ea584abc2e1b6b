"""Decisions by a limit by subject and by rollups, on a log of many segments, against a list of all messages."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.commitlog import Log, LogConfig
from penstock.commitlog.files.files import LogFolder
from penstock.hot.subject_table import TableBudget
from penstock.live.row_set import NONE, RowSet
from penstock.node.partition.decisions import DecideRows, DecisionMemory
from penstock.vfs import Vfs
from penstock.vfs.memory import MemoryVfs
from penstock.vfs.real import RealVfs
from tests.expiring import Told, append_told
from tests.extent import examples

SUBJECTS = ("a", "b", "a.b", "c", *(f"n.{number}" for number in range(12)))
KINDS = ("", "", "", "", "sub", "SUB", "all")
APPEND, DECIDE, DELETE, FORGET, LEAD, STRICTER, WIDER, SWITCH = range(8)
Message = tuple[str, str]
Act = tuple[int, list[Message], int]
ACTS = st.lists(
    st.tuples(
        st.sampled_from((APPEND, APPEND, APPEND, DECIDE, DECIDE, DELETE, FORGET, LEAD, STRICTER, WIDER, SWITCH)),
        st.lists(st.tuples(st.sampled_from(SUBJECTS), st.sampled_from(KINDS)), min_size=1, max_size=9),
        st.integers(0, 99),
    ),
    max_size=40,
)


class Model:
    """All messages, and those that are live, one after another."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.live: set[int] = set()
        self.end = 0  # decided on up to there

    def decide(self, end: int, limit: int, *, rollups: bool) -> None:
        for offset in range(self.end, end):
            if offset not in self.live:
                continue
            subject, kind = self.messages[offset]
            before = [one for one in sorted(self.live) if one <= offset]
            same = [one for one in before if self.messages[one][0] == subject]
            if limit:
                self.live.difference_update(same[:-limit])
            if rollups and kind:
                self.live.difference_update((before if kind == "all" else same)[:-1])
        self.end = end


def check(acts: list[Act], limit: int, *, rollups: bool | None, vfs: Vfs | None = None) -> int:
    """Return how many decisions needed no disk thread."""
    log = Log.open(LogFolder(vfs or MemoryVfs(), "log", 7, 0), LogConfig(segment_bytes=2_000), now_us=0)
    cached = 0
    log.start_epoch(1)
    model, hidden, others = Model(), NONE, False
    memory, budget = DecisionMemory(limit, 0, 0, TableBudget(limits.OFFSET_MAX)), TableBudget(limits.OFFSET_MAX)
    for act, messages, number in [*acts, (DECIDE, [], 0)]:
        if act == APPEND:
            model.messages += messages
            told = [
                Told({"Nats-Rollup": kind} if kind else {}, None, b"v" * 60, one.encode()) for one, kind in messages
            ]
            model.live |= {row.offset for row in append_told(log, told, 0)}
        elif act == DELETE and (end := model.end if limit or rollups else log.log_end):
            hidden, others = hidden | RowSet.of([number % end]), True
            model.live -= {number % end}
        elif act == FORGET:
            memory.forget(number)
        elif act in (LEAD, STRICTER, WIDER):
            if act == STRICTER and limit > 1:
                limit, model.end = limit - 1, 0
            limit += act == WIDER and limit > 0
            memory = DecisionMemory(limit, model.end, 0, budget)
        elif act == SWITCH and rollups is not None:
            rollups = not rollups
            if rollups:
                model.end = 0
                memory = DecisionMemory(limit, 0, 0, budget)
        elif act == DECIDE and model.end < log.log_end and (limit or rollups):
            view = log.view().hiding(hidden)
            query = DecideRows(view, log.log_end, memory, has_others=others, skips_damage=False, rollups=bool(rollups))
            if query.run_if_cached():
                cached += 1
            else:
                query.run()
            assert model.end < query.decided_end <= log.log_end
            assert query.hidden.end < query.decided_end
            hidden |= query.hidden
            others = others or query.is_rollup
            model.decide(query.decided_end, limit, rollups=bool(rollups))
            assert {one for one in range(log.log_end) if one not in hidden} == model.live
    log.close()
    return cached


@pytest.mark.parametrize("limit", [1, 2, 3])
@settings(max_examples=examples(60), deadline=None)
@given(acts=ACTS)
def test_exactly_the_last_messages_of_each_subject_stay(limit: int, acts: list[Act]) -> None:
    check(acts, limit, rollups=None)


def check_cached(acts: list[Act], *, rollups: bool | None) -> int:
    with TemporaryDirectory() as folder:
        return check(acts, 1, rollups=rollups, vfs=RealVfs(folder))


@settings(max_examples=examples(30), deadline=None)
@given(acts=ACTS, rollups=st.sampled_from((None, False)))
def test_a_decision_out_of_the_page_cache_comes_to_the_same(acts: list[Act], rollups: bool | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SUBJECT_TABLE_MAX", 4)
        check_cached(acts, rollups=rollups)


def test_a_few_rows_on_known_subjects_are_decided_on_out_of_the_page_cache() -> None:
    rows: list[Act] = [(APPEND, [("a", ""), ("b", ""), ("a", "")], 0), (DECIDE, [], 0), (APPEND, [("b", "")], 0)]
    assert check_cached(rows, rollups=None) == 2
    led_anew: list[Act] = [*rows, (DECIDE, [], 0), (LEAD, [], 0), (APPEND, [("b", "")], 0)]
    assert check_cached(led_anew, rollups=None) == 2, "the indexes are asked for what an earlier leader has decided on"
    many: list[Act] = [(APPEND, [("a", "")] * (limits.DECIDED_ON_LOOP_MAX + 1), 0)]
    assert check_cached(many, rollups=None) == 0


TWO_IN_ONE_DECISION: list[Act] = [
    (APPEND, [("a", "")], 0), (APPEND, [("a", "sub")], 0), (APPEND, [("b", "")], 0), (APPEND, [("a", "sub")], 0),
]  # fmt: skip
DELETED_BEFORE_IT_COUNTS: list[Act] = [
    (SWITCH, [], 0), (APPEND, [("a", "")], 0), (APPEND, [("a", "sub"), ("b", "")], 0), (DELETE, [], 1), (SWITCH, [], 0),
    (DECIDE, [], 0), (APPEND, [("a", "sub")], 0),
]  # fmt: skip


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
@settings(max_examples=examples(60), deadline=None)
@given(acts=ACTS)
@example(TWO_IN_ONE_DECISION)
@example(DELETED_BEFORE_IT_COUNTS)
def test_a_rollup_takes_exactly_what_is_before_it(limit: int, acts: list[Act]) -> None:
    check(acts, limit, rollups=True)


@pytest.mark.parametrize("limit", [0, 1, 2])
@settings(max_examples=examples(30), deadline=None)
@given(acts=ACTS)
def test_a_decision_on_a_few_rows_at_a_time_comes_to_the_same(limit: int, acts: list[Act]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "DECIDED_ROWS_AT_ONCE", 3)
        patch.setattr(limits, "SUBJECT_TABLE_MAX", 4)
        if not limit:
            patch.setattr(limits, "DECIDED_BYTES_AT_ONCE", 1)
        check([*acts, *[(DECIDE, [], 0)] * 50], limit, rollups=True)
