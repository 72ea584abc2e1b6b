"""The ids that are known, against a list of all that was ever added; and compiled as plain."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import hot_modes
from tests.extent import examples

NAMES = (b"a", b"b", b"c", b"d" * 64, b"d" * 65, b"d" * 66)
ADD, EXPIRE, CUT = range(3)
ACTS = st.lists(
    st.tuples(
        st.integers(ADD, CUT),
        st.lists(st.none() | st.sampled_from(NAMES), min_size=1, max_size=4),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=40,
)


def key_of(mode: Any, name: bytes) -> bytes:
    key = mode("message_ids").key_of(b"<" + name + b">", 1, 1 + len(name))
    assert isinstance(key, bytes)
    return key


class Model:
    """What was written: (id or None, offset, timestamp), and from where on ids are known."""

    def __init__(self, ids_max: int) -> None:
        self.ids_max = ids_max
        self.rows: list[tuple[bytes | None, int, int]] = []
        self.known_from = 0
        self.before_us = 0

    def known(self) -> dict[bytes, int]:
        found = [(name, offset) for name, offset, at_us in self.rows if name is not None and at_us >= self.before_us]
        return dict([one for one in found if one[1] >= self.known_from])

    def added(self) -> None:
        """The oldest go, for good, where there are too many."""
        found = [
            offset
            for name, offset, at_us in self.rows
            if name is not None and at_us >= self.before_us and offset >= self.known_from
        ]
        if len(found) > self.ids_max:
            self.known_from = found[-self.ids_max]


@pytest.mark.parametrize("mode", [pytest.param(hot_modes.running, marks=hot_modes.needs_compiled), hot_modes.plain])
@given(ACTS, st.integers(1, 6))
@settings(max_examples=examples(200))
def test_what_is_known_is_what_was_written_lately(mode: Any, acts: list[Any], ids_max: int) -> None:
    ids, model, now_us = mode("message_ids").MessageIds(ids_max), Model(ids_max), 1
    for act, names, time_us, over_the_socket in acts:
        end = len(model.rows)
        if act == ADD:
            now_us += time_us
            rows = [(name, end + row, now_us) for row, name in enumerate(names)]
            if over_the_socket:
                found = [(row, key_of(mode, name)) for row, name in enumerate(names) if name is not None]
                ids.note(found, end, now_us)
            for name, offset, _ in rows if not over_the_socket else ():
                if name is not None:
                    ids.add(b"-" + name, 1, 1 + len(name), offset)
            for one in rows:
                model.rows.append(one)
                model.added()
            if not over_the_socket:
                ids.stamp(now_us, end + len(names))
        elif act == EXPIRE:
            model.before_us = max(model.before_us, now_us - time_us)
            ids.expire(model.before_us)
        else:  # a read that nobody stored: its ids were new, as those of duplicates are not added
            fresh = [name for name in dict.fromkeys(names) if name is not None and name not in model.known()]
            room = max(0, ids_max - len(ids))
            for row, name in enumerate(fresh[:room]):
                ids.add(name, 0, len(name), end + row)
            ids.cut(end)
        known = model.known()
        for name in NAMES:
            assert ids.find(name, 0, len(name)) == known.get(name, -1), (name, act)
        if model.rows and act != CUT:
            last_name, last, at_us = model.rows[-1]
            if at_us >= model.before_us and last >= model.known_from:
                assert all(ids.is_of(last, name, 0, len(name)) == (name == last_name) for name in NAMES)


@pytest.mark.parametrize("mode", [pytest.param(hot_modes.running, marks=hot_modes.needs_compiled), hot_modes.plain])
@given(
    st.lists(st.tuples(st.lists(st.none() | st.sampled_from(NAMES), min_size=1, max_size=5), st.integers(0, 2))),
    st.integers(1, 12),
    st.integers(0, 9),
    st.integers(0, 20),
)
@settings(max_examples=examples(200))
def test_ids_that_are_read_backwards_are_those_that_came_one_by_one(
    mode: Any, batches: list[Any], ids_max: int, before_us: int, start: int
) -> None:
    forward, backward = (mode("message_ids").MessageIds(ids_max) for _ in range(2))
    base, now_us, made = 0, 1, []
    for names, time_us in batches:
        now_us += time_us
        found = [(row, key_of(mode, name)) for row, name in enumerate(names) if name is not None]
        made.append((found, array("q", range(base, base + len(names))), array("q", [now_us] * len(names))))
        forward.note([one for one in found if base + one[0] >= start], base, now_us)
        base += len(names)
    for found, offsets, timestamps_us in reversed(made):
        backward.note_before(found, offsets, timestamps_us, start)
    for ids in (forward, backward):
        ids.expire(before_us)
    assert len(forward) == len(backward)
    for name in NAMES:
        assert forward.find(name, 0, len(name)) == backward.find(name, 0, len(name))
        for offset in range(base):
            assert forward.is_of(offset, name, 0, len(name)) == backward.is_of(offset, name, 0, len(name))


def test_ids_that_differ_are_never_taken_for_one() -> None:
    for mode in (hot_modes.running, hot_modes.plain):
        keys = {key_of(mode, name) for name in (*NAMES, b"", b"\0", *(key_of(mode, n) for n in NAMES))}
        assert len(keys) == len(NAMES) + 2 + 2  # what stands for a long one is another id, too
        assert max(map(len, keys)) == 65


@pytest.mark.parametrize("mode", [pytest.param(hot_modes.running, marks=hot_modes.needs_compiled), hot_modes.plain])
def test_the_last_id_stays_the_last_however_old_it_is_when_nothing_is_written_behind_it(mode: Any) -> None:
    ids = mode("message_ids").MessageIds(9)
    ids.add(b"a", 0, 1, 0)
    ids.stamp(1_000, 1)
    ids.expire(2_000)
    ids.add(b"b", 0, 1, 1)
    ids.cut(1)
    assert ids.is_of(0, b"a", 0, 1)
    ids.add(b"b", 0, 1, 1)
    ids.add(b"c", 0, 1, 2)
    ids.stamp(3_000, 2)
    ids.cut(2)
    assert ids.is_of(1, b"b", 0, 1)
