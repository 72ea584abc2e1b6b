"""A progress bar for reads that take long, on a terminal or in a notebook.

Rules: nothing is shown for the first PROGRESS_AFTER_S, and nothing stays. By default there is a bar only where a person
looks: if stderr is a terminal, or in a notebook. A notebook's bar is HTML, so that it needs no widgets.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from penstock.base import notebook

if TYPE_CHECKING:
    from rich.progress import Progress

PROGRESS_AFTER_S = 2.0
_REDRAW_S = 0.25  # shortest interval between two states in a notebook


class _Bar(Protocol):
    def update(self, done: int) -> None: ...

    def close(self) -> None: ...


class ProgressBar:
    """`with ProgressBar(…) as bar`, then `bar.update(done)`. `wanted` None: only where a person looks."""

    def __init__(self, what: str, total: int, wanted: bool | None) -> None:
        self._what = what
        self._total = total
        self._is_wanted = wanted if wanted is not None else _in_notebook() or sys.stderr.isatty()
        self._due_s = time.monotonic() + PROGRESS_AFTER_S
        self._bar: _Bar | None = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, done: int) -> None:
        """Show how much of the total is done."""
        if self._bar is None:
            if not self._is_wanted or time.monotonic() < self._due_s:
                return
            self._bar = (_NotebookBar if _in_notebook() else _TerminalBar)(self._what, self._total)
        self._bar.update(done)


class _TerminalBar:
    def __init__(self, what: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        shown = Console(stderr=True, highlight=False, markup=False, emoji=False)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._bars: Progress = Progress(*columns, console=shown, transient=True)
        self._task = self._bars.add_task(what, total=total)
        self._bars.start()

    def update(self, done: int) -> None:
        self._bars.update(self._task, completed=done)

    def close(self) -> None:
        self._bars.stop()


class _NotebookBar:
    def __init__(self, what: str, total: int) -> None:
        from IPython.display import display

        self._what = what
        self._total = total
        self._due_s = float("-inf")
        self._handle: Any = display(self._shown(0), raw=True, display_id=True)

    def update(self, done: int) -> None:
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _REDRAW_S
            self._handle.update(self._shown(done), raw=True)

    def close(self) -> None:
        self._handle.update({"text/plain": "", "text/html": ""}, raw=True)

    def _shown(self, done: int) -> dict[str, str]:
        text = f"{self._what}: {done:,} of {self._total:,}"
        bar = f'<progress value="{done}" max="{self._total}"></progress>'
        return {"text/plain": text, "text/html": f"{bar} {notebook.escaped(text)}"}


def _in_notebook() -> bool:
    """True if the program runs in an IPython kernel, that is, in a notebook."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
