"""The last offsets of subjects that are known, against a list of all that was written; and compiled as plain."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import codec
from tests import hot_modes
from tests.extent import examples

NAMES = (b"a", b"b", b"c", b"d.e", b"f" * 64, b"f" * 65, b"f" * 66)
READ, REFUSED, CUT_SHORT, APPEND, RETAIN, READ_OLDER = range(6)
ACTS = st.lists(
    st.tuples(st.integers(READ, READ_OLDER), st.lists(st.sampled_from(NAMES), max_size=6), st.integers(0, 30)),
    max_size=40,
)
MODES = [pytest.param(hot_modes.running, marks=hot_modes.needs_compiled), hot_modes.plain]


def group_in(mode: Any, names: list[bytes]) -> Any:
    return mode("message_group").MessageGroup.of(names, [b"" for _ in names])


def last_of_subjects(mode: Any, names: list[bytes]) -> list[tuple[int, bytes]]:
    """What the batch of these subjects says, encoded and looked into."""
    group = group_in(mode, names)
    message, _ = mode("encode").Encoder(codec.LAYOUT).encode(group, 0, len(names), 0, 0, 1, 0)
    found: list[tuple[int, bytes]] = mode("rows").BatchRows(message, codec.LAYOUT).last_of_subjects()
    return found


def gathered(mode: Any, log: list[bytes], start: int, end: int, batch_rows: int, subjects_max: int) -> Any:
    """What a backward reading of log[start:end] finds, in batches of so many rows that begin where they began."""
    found = mode("last_offsets").LastOffsets(subjects_max, end)
    for base in range((max(end, 1) - 1) // batch_rows * batch_rows, -1, -batch_rows):
        names = log[base : base + batch_rows]
        if names and base + len(names) > start and not found.is_full:
            offsets = array("q", range(base, base + len(names)))
            found.gather(last_of_subjects(mode, names), offsets, max(base, start))
    return found


@pytest.mark.parametrize("mode", MODES)
@given(st.lists(st.sampled_from(NAMES), max_size=12), ACTS, st.integers(1, 9), st.integers(1, 5))
@settings(max_examples=examples(200))
def test_what_is_known_is_what_was_written_last(
    mode: Any, before: list[bytes], acts: list[Any], subjects_max: int, batch_rows: int
) -> None:
    lasts, log, log_start = mode("last_offsets").LastOffsets(subjects_max, len(before)), list(before), 0
    for act, names, number in acts:
        base, group = len(log), group_in(mode, names)
        if act == READ:
            lasts.note(group, 0, len(names), base)
            log += names
            lasts.written()
        elif act in (REFUSED, CUT_SHORT):  # its rows are noted in parts, as those who ask for one come between
            middle, written = number % (len(names) + 1), 0 if act == REFUSED else number // 2 % (len(names) + 1)
            lasts.note(group, 0, middle, base)
            lasts.note(group, middle, len(names), base)
            lasts.take_back()
            lasts.note(group, 0, written, base)
            lasts.written()
            log += names[:written]
        elif act == APPEND and names:
            lasts.note_batch(last_of_subjects(mode, names), base)
            log += names
        elif act == RETAIN:
            log_start = max(log_start, min(number, len(log)))
            lasts.expire(log_start)
        elif act == READ_OLDER and not lasts.is_full and log_start <= lasts.known_from <= len(log):
            start = max(log_start, lasts.known_from - number)
            lasts.note_before(gathered(mode, log, start, lasts.known_from, batch_rows, subjects_max))
        assert len(lasts) <= subjects_max
        for name in NAMES:
            last = max((offset for offset, one in enumerate(log) if one == name), default=-1)
            found = lasts.find(b"<" + name + b">", 1, 1 + len(name))
            if max(log_start, lasts.known_from) <= last:
                assert found == last, (name, act)
            else:
                assert found in (-1, last), (name, act)  # it may be known all the same


@pytest.mark.parametrize("mode", MODES)
@given(st.lists(st.sampled_from(NAMES), max_size=30), st.integers(0, 30), st.integers(1, 7))
def test_subjects_that_are_read_backwards_are_those_that_came_one_by_one(
    mode: Any, log: list[bytes], start: int, batch_rows: int
) -> None:
    backward, forward = (mode("last_offsets").LastOffsets(len(NAMES), known) for known in (len(log), start))
    backward.note_before(gathered(mode, log, start, len(log), batch_rows, len(NAMES)))
    for offset, name in enumerate(log):
        if offset >= start:
            forward.note(group_in(mode, [name]), 0, 1, offset)
            forward.written()
    for name in NAMES:
        assert backward.find(name, 0, len(name)) == forward.find(name, 0, len(name))
    assert len(backward) == len(forward)


@pytest.mark.parametrize("mode", MODES)
@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=30))
def test_the_last_row_of_each_subject(mode: Any, names: list[bytes]) -> None:
    rows = {name: row for row, name in enumerate(names)}
    key_of = mode("message_ids").key_of
    expected = sorted(((row, key_of(name, 0, len(name))) for name, row in rows.items()), reverse=True)
    assert last_of_subjects(mode, names) == expected


@pytest.mark.parametrize("mode", MODES)
def test_the_subject_whose_last_message_is_oldest_goes_first(mode: Any) -> None:
    lasts = mode("last_offsets").LastOffsets(2, 0)
    for offset, name in enumerate([b"a", b"b", b"a", b"c"]):
        lasts.note(group_in(mode, [name]), 0, 1, offset)
        lasts.written()
    assert [lasts.find(name, 0, 1) for name in (b"a", b"b", b"c")] == [2, -1, 3]
    assert lasts.known_from == 2


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_are_not_there_are_refused(mode: Any) -> None:
    lasts, group = mode("last_offsets").LastOffsets(2, 0), group_in(mode, [b"a"])
    for start, end in ((0, 2), (-1, 1), (1, 0)):
        with pytest.raises(IndexError):
            lasts.note(group, start, end, 0)
