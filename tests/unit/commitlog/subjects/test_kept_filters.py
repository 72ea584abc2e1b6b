"""The budget of kept filters: which go when there is no room, and that none is counted once it is gone."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.commitlog.subjects.kept_filters import FilterBudget, KeptFilter, LogFilters
from penstock.hot.subject_filter import PAGE_BYTES
from tests.subjects import opened, written

SIZE = opened(written(["a"])).filter_bytes


class Held:
    """A log, and the filters of its segments, by base offset."""

    def __init__(self, budget: FilterBudget) -> None:
        self.filters = LogFilters(budget)
        self.by_base: dict[int, KeptFilter] = {}

    def keep(self, *bases: int) -> None:
        """Read the filters of these segments, as far as there is room."""
        self.filters.look_up()
        for base in bases:
            found = self.filters.keep(base, SIZE, lambda base=base: _read(base))  # type: ignore[misc]
            if found is not None:
                self.by_base[base] = found

    @property
    def kept(self) -> list[int]:
        """The base offsets of the segments whose filters are kept."""
        return sorted(base for base, one in self.by_base.items() if one.pages is not None)


def _read(base_offset: int) -> KeptFilter:
    index = opened(written(["a"]))
    found = index.read_filter()
    assert found.pages is not None
    assert found.directory is not None
    assert found.sums is not None
    return KeptFilter(base_offset, found.pages, found.directory, found.sums, None)


def test_a_kept_filter_has_the_size_that_was_asked_for() -> None:
    assert _read(0).size_bytes == SIZE > PAGE_BYTES


def test_what_is_gone_with_its_segment_is_not_counted() -> None:
    budget = FilterBudget(3 * SIZE)
    log = Held(budget)
    log.keep(1, 2, 3)
    assert budget.size_bytes == 3 * SIZE
    del log.by_base[2]
    assert budget.size_bytes == 2 * SIZE
    log.keep(4)
    assert log.kept == [1, 3, 4]
    assert len(budget.logs()) == 1
    del log
    assert budget.size_bytes == 0
    assert not budget.logs()


def test_a_log_beyond_its_share_keeps_its_newest_segments() -> None:
    log = Held(FilterBudget(3 * SIZE))
    log.keep(50, 40, 30, 20)
    assert log.kept == [30, 40, 50]
    assert not log.filters.may_have_room
    log.keep(60, 55, 10)  # segments were sealed since
    assert log.kept == [50, 55, 60]


def test_after_a_refusal_a_log_tries_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILTERS_RETRY_LOOK_UPS", 3)
    log = Held(FilterBudget(SIZE))
    log.keep(2, 1)
    for _ in range(2):
        log.filters.look_up()
        assert not log.filters.may_have_room
    log.filters.look_up()
    assert log.filters.may_have_room


def test_a_log_within_its_fair_share_takes_what_others_have_beyond_theirs() -> None:
    budget = FilterBudget(6 * SIZE)
    large, small, new = Held(budget), Held(budget), Held(budget)
    large.keep(*range(5, 0, -1))
    small.keep(1)
    new.keep(9, 8, 7)  # the share is two now
    assert (large.kept, small.kept, new.kept) == ([3, 4, 5], [1], [8, 9])
    large.keep(2)
    assert large.kept == [3, 4, 5]
    small.keep(2)
    assert (large.kept, small.kept, new.kept) == ([4, 5], [1, 2], [8, 9])


def test_what_was_not_used_for_long_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILTERS_IDLE_LOOK_UPS", 5)
    budget = FilterBudget(4 * SIZE)
    idle, other, busy = Held(budget), Held(budget), Held(budget)
    idle.keep(2, 1)
    other.keep(2, 1)
    for _ in range(5):
        other.filters.look_up()
        busy.filters.look_up()
    busy.keep(3, 2, 1)
    assert (idle.kept, other.kept, busy.kept) == ([], [1, 2], [2, 3])


def test_a_filter_larger_than_the_budget_is_not_read() -> None:
    log = Held(FilterBudget(SIZE - 1))
    log.keep(1)
    assert not log.kept
    assert not log.filters.may_have_room
