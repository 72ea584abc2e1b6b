"""What the options of a run come to is said before it begins."""

from __future__ import annotations

import pytest

from penstock_bench.cli.throughput import check_windows
from penstock_bench.runs.throughput import Axes, Wish, planned


@pytest.mark.parametrize(
    ("windows", "publishers", "said"),
    [
        ((2,), (4,), "a window of 2 is raised to the number of publishers: 4 need one message each\n"),
        ((4,), (4,), ""),
        ((1, 100), (1, 16), "a window of 1 is raised to the number of publishers: 16 need one message each\n"),
    ],
)
def test_a_window_that_is_not_kept_is_said(
    windows: tuple[int, ...], publishers: tuple[int, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wish = Wish(axes=Axes((), windows, publishers), messages=1_000)
    check_windows(wish, planned(wish))
    assert capsys.readouterr().err == said
