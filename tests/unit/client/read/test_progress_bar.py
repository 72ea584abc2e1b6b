"""The progress bar: only after two seconds, only where a person looks, and gone at the end."""

from __future__ import annotations

import io
import sys
import types
from typing import Any

import pytest

from penstock.client.read import progress_bar
from penstock.client.read.progress_bar import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every read take longer than nothing is shown for."""
    monkeypatch.setattr(progress_bar, "PROGRESS_AFTER_S", -1.0)


@pytest.mark.parametrize(
    ("is_terminal", "wanted", "is_shown"), [(True, None, True), (False, None, False), (True, False, False)]
)
def test_on_a_terminal(
    late: None, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, wanted: bool | None, is_shown: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stderr = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with ProgressBar("Reading [b]a", 10, wanted) as bar:
        bar.update(5)
    assert ("Reading [b]a" in stderr.getvalue()) == is_shown


def test_nothing_is_shown_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    with ProgressBar("Reading a", 10, wanted=True) as bar:
        bar.update(5)
    assert not stderr.getvalue()


def test_in_a_notebook(late: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []

    class Handle:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            shown.append(data)

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        shown.append(data)
        return Handle()

    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    with ProgressBar("Reading <a>", 1_000, wanted=None) as bar:
        bar.update(500)
    assert [one["text/html"] for one in shown] == [
        '<progress value="0" max="1000"></progress> Reading &lt;a&gt;: 0 of 1,000',
        '<progress value="500" max="1000"></progress> Reading &lt;a&gt;: 500 of 1,000',
        "",
    ]
