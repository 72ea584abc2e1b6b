"""The last offsets of subjects that are known, against a list of all that was written; and compiled as plain."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.batch import codec
from tests import hot_modes
from tests.extent import examples

NAMES = (b"a", b"b", b"c", b"d.e", b"f" * 64, b"f" * 65, b"f" * 66, b"")
READ, REFUSED, CUT_SHORT, APPEND, TAKE = range(5)
ACTS = st.lists(
    st.tuples(st.integers(READ, TAKE), st.lists(st.sampled_from(NAMES), max_size=8), st.integers(0, 30)), max_size=40
)
MODES = [pytest.param(hot_modes.running, marks=hot_modes.needs_compiled), hot_modes.plain]


def group_in(mode: Any, names: list[bytes]) -> Any:
    return mode("message_group").MessageGroup.of(names, [b"" for _ in names])


def column(names: list[bytes], before: int = 0) -> tuple[memoryview, memoryview]:
    """The buffers of a column, with so many other rows before these."""
    _, ends, text = pa.array([b"x"] * before + names, pa.binary()).buffers()
    return memoryview(ends), memoryview(b"" if text is None else text)


def last_of(log: list[bytes], name: bytes) -> int:
    return max((offset for offset, one in enumerate(log) if one == name), default=-1)


@pytest.mark.parametrize("mode", MODES)
@given(st.lists(st.sampled_from(NAMES), max_size=12), ACTS, st.integers(1, 9))
@settings(max_examples=examples(200))
def test_what_is_known_is_what_was_written_last(
    mode: Any, before: list[bytes], acts: list[Any], subjects_max: int
) -> None:
    table, log = mode("subject_table").SubjectTable(subjects_max, len(before)), list(before)
    for act, names, number in acts:
        base, group, known_from = len(log), group_in(mode, names), table.known_from
        if act == READ:
            table.note(group, 0, len(names), base)
            log += names
        elif act in (REFUSED, CUT_SHORT):  # its rows are noted in parts, as those who ask for one come between
            middle, written = number % (len(names) + 1), 0 if act == REFUSED else number // 2 % (len(names) + 1)
            table.note(group, 0, middle, base)
            table.note(group, middle, len(names), base)
            table.take_back()
            table.note(group, 0, written, base)
            log += names[:written]
        elif act == APPEND:
            table.note_column(*column(names), len(names), base)
            log += names
        elif act == TAKE:
            others = number % 3
            offsets = memoryview(array("q", [-5] * others + [*range(base, base + len(names))]))
            found = table.take(*column(names, others), offsets, others, others + len(names))
            for name, last in zip(names, found, strict=True):
                assert last == last_of(log, name) or (last == -1 and last_of(log, name) < known_from)
                log.append(name)
        assert table.known_from == known_from  # nothing goes until all is written
        table.written()
        assert len(table) <= subjects_max + 2 * 8
        assert table.known_from <= len(log)
        for name in NAMES:
            last = last_of(log, name)
            found_last = table.find(b"<" + name + b">", 1, 1 + len(name))
            if last >= table.known_from:
                assert found_last == last, (name, act)
            else:
                assert found_last in (-1, last), (name, act)  # it may be known all the same


COUNT, RESTART = 5, 6
COUNTED = st.lists(
    st.tuples(
        st.sampled_from([READ, READ, REFUSED, CUT_SHORT, APPEND, COUNT, RESTART]),
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=8),
        st.integers(0, 30),
    ),
    max_size=40,
)


@pytest.mark.parametrize("mode", MODES)
@given(st.lists(st.sampled_from(NAMES), max_size=12), COUNTED, st.integers(1, 9), st.booleans())
@settings(max_examples=examples(300))
def test_messages_are_counted_that_were_written(
    mode: Any, before: list[bytes], acts: list[Any], subjects_max: int, completes: bool
) -> None:
    """`log`: subjects in their order; None in place of what a rollup has replaced."""
    table = mode("subject_table").SubjectTable(subjects_max, len(before), None, True)
    log: list[bytes | None] = list(before)
    for act, names, number in acts:
        base, group, known_from = len(log), group_in(mode, names), table.known_from
        if act == READ:
            table.note(group, 0, len(names), base)
            log += names
        elif act in (REFUSED, CUT_SHORT):
            middle, written = number % (len(names) + 1), 0 if act == REFUSED else number // 2 % (len(names) + 1)
            table.note(group, 0, middle, base)
            check_counts(table, [*log, *names[:middle]], names, completes=completes)
            if middle:
                table.restart(names[middle - 1], 0, len(names[middle - 1]))
            table.note(group, middle, len(names), base)
            table.take_back()
            table.note(group, 0, written, base)
            log += names[:written]
        elif act == APPEND:
            table.note_column(*column(names), len(names), base)
            log += names
        elif act == COUNT:
            found = table.count_each(*column(names), len(names), base)
            for at, (name, counted) in enumerate(zip(names, found, strict=True)):
                assert counted in counts_of([*log, *names[:at]], name, known_from)
            table.take_back()
        else:
            table.note(group, 0, len(names), base)
            table.restart(names[-1], 0, len(names[-1]))
            log = [None if one == names[-1] else one for one in [*log, *names[:-1]]] + [names[-1]]
        table.written()
        check_counts(table, log, list(NAMES), completes=completes)


def counts_of(log: list[Any], name: bytes, known_from: int) -> tuple[int, int]:
    """What may be said of a subject: the number of all, or what is known without those below."""
    return log.count(name), -1 - log[known_from:].count(name)


def check_counts(table: Any, log: list[Any], names: list[bytes], *, completes: bool) -> None:
    for name in names:
        counted = table.count(b"<" + name + b">", 1, 1 + len(name))
        number, unknown = counts_of(log, name, table.known_from)
        assert counted in (number, unknown), (name, log, table.known_from)
        if completes and counted < 0:
            table.complete(name, 0, len(name), log[: table.known_from].count(name))
            assert table.count(name, 0, len(name)) in (number, unknown)


@pytest.mark.parametrize("mode", MODES)
def test_a_number_that_was_looked_up_stays_while_the_subject_comes_again(mode: Any) -> None:
    table = mode("subject_table").SubjectTable(4, 100, None, True)
    table.note(group_in(mode, [b"a", b"b"]), 0, 2, 100)
    table.complete(b"a", 0, 1, 5)
    table.complete(b"c", 0, 1, 5)
    table.written()
    assert [table.count(name, 0, 1) for name in (b"a", b"b", b"c")] == [6, -2, -1]
    for offset, name in enumerate([b"a", b"b", b"c", b"a", b"d"], 102):
        table.note(group_in(mode, [name]), 0, 1, offset)
        table.written()
    assert table.known_from == 104
    assert [table.count(name, 0, 1) for name in (b"a", b"b", b"c", b"d")] == [8, -1, -2, -2]


def test_a_table_without_counts_says_so() -> None:
    table = hot_modes.running("subject_table").SubjectTable(2, 0)
    for call in (
        lambda: table.count(b"a", 0, 1),
        lambda: table.complete(b"a", 0, 1, 1),
        lambda: table.restart(b"a", 0, 1),
        lambda: table.count_each(*column([b"a"]), 1, 0),
    ):
        with pytest.raises(ValueError, match="does not count"):
            call()


@pytest.mark.parametrize("mode", MODES)
def test_at_least_half_of_the_limit_is_known_and_at_most_all(mode: Any) -> None:
    table, count = mode("subject_table").SubjectTable(1_000, 0), 0
    for _ in range(40):
        names = [b"s.%d" % number for number in range(count, count + 100)]
        table.note(group_in(mode, names), 0, 100, count)
        table.written()
        count += 100
        assert len(table) <= 1_000
        assert count - table.known_from >= min(count, 500)
        for number in range(count):
            name = b"s.%d" % number
            assert table.find(name, 0, len(name)) == (number if number >= table.known_from else -1)


@pytest.mark.parametrize("mode", MODES)
def test_a_subject_that_comes_again_stays(mode: Any) -> None:
    table = mode("subject_table").SubjectTable(4, 0)
    for offset, name in enumerate([b"a", b"b", b"a", b"c", b"b"]):
        table.note(group_in(mode, [name]), 0, 1, offset)
        table.written()
    assert [table.find(name, 0, 1) for name in (b"a", b"b", b"c", b"d")] == [2, 4, 3, -1]
    assert table.known_from == 2


@pytest.mark.parametrize("mode", MODES)
def test_tables_that_have_too_much_together_know_less_each(mode: Any) -> None:
    module = mode("subject_table")
    budget = module.TableBudget(16_384)
    tables = [module.SubjectTable(limits.SUBJECT_TABLE_MAX, 0, budget) for _ in range(3)]
    assert budget.slots < 1_000
    for offset in range(0, 40_000, 1_000):
        names = [b"s.%d" % number for number in range(offset, offset + 1_000)]
        for table in tables:
            table.note(group_in(mode, names), 0, 1_000, offset)
            table.written()
        assert budget.slots < 2 * 16_384
    for table in tables:
        known = [b"s.%d" % number for number in range(table.known_from, 40_000)]
        assert [table.find(name, 0, len(name)) for name in known] == [*range(table.known_from, 40_000)]
        assert len(known) >= 1_000
    del table, tables
    assert budget.slots == 0


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_are_not_there_are_refused(mode: Any) -> None:
    table, group = mode("subject_table").SubjectTable(2, 0), group_in(mode, [b"a"])
    for start, end in ((0, 2), (-1, 1), (1, 0)):
        with pytest.raises(IndexError):
            table.note(group, start, end, 0)
    for begin, end in ((0, 2), (-1, 1), (2, 1)):
        with pytest.raises(IndexError):
            table.find(b"a", begin, end)
    offsets = memoryview(array("q", [0]))
    for begin, end in ((0, 2), (-1, 0), (1, 0)):
        with pytest.raises(IndexError):
            table.take(*column([b"a"]), offsets, begin, end)
    for ends, error in (([0, 2], IndexError), ([1, 0], ValueError), ([-1, 1], ValueError)):
        with pytest.raises(error):
            table.take(memoryview(array("i", ends)), memoryview(b"a"), offsets, 0, 1)
    with pytest.raises(IndexError):
        table.take(*column([b"a", b"b"]), offsets, 0, 2)
    assert len(table) == 0


@pytest.mark.parametrize("mode", MODES)
def test_the_last_row_of_each_subject_in_a_batch(mode: Any) -> None:
    names = [b"a", b"b", b"b", b"a", b"c"]
    message, _ = mode("encode").Encoder(codec.LAYOUT).encode(group_in(mode, names), 0, 5, 10, 0, 1, 0)
    table = mode("subject_table").SubjectTable(9, 10)
    table.note_column(*mode("rows").BatchRows(message, codec.LAYOUT).subjects(), 5, 10)
    assert [table.find(name, 0, 1) for name in (b"a", b"b", b"c", b"d")] == [13, 12, 14, -1]
