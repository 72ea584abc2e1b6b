"""Which of the long tests a change runs."""

from __future__ import annotations

from string import ascii_lowercase

from tests.extent import is_in_part


def test_eight_changes_in_a_row_run_each_long_test_once() -> None:
    names = [f"tests/integration/test_{number}.py::test_it" for number in range(300)]
    run = [[name for name in names if is_in_part(name, seed)] for seed in range(7, 15)]
    assert sorted(name for part in run for name in part) == sorted(names)
    assert all(len(part) > 20 for part in run)


def test_a_change_runs_the_same_ones_on_every_machine() -> None:
    """The hash of a name is not Python's, which differs from process to process."""
    assert "".join(name for name in ascii_lowercase if is_in_part(name, 2**32 - 1)) == "k"
