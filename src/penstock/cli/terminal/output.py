"""Output of commands: tables, numbers and times for people, JSON for scripts."""

from __future__ import annotations

import base64
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base.units import counted as counted
from penstock.cli.terminal.failure import ascii_json, printable, printable_json, say_note
from penstock.cli.terminal.standard_streams import is_utf8
from penstock.ops.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH_WITHOUT_TERMINAL = 120  # of columns that are chosen to fit; neither tables nor lines of text are wrapped
_WIDEST_TABLE = 1 << 16


def console(*, stderr: bool = False) -> Console:
    """Return a Rich console that prints text without interpreting markup."""
    from rich.console import Console

    class QuietConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

        def print(self, *shown: Any, **options: Any) -> None:
            fitting = self.width
            if not stream.isatty() and "COLUMNS" not in os.environ:  # a program reads it: a place stays in one piece
                self.width = _WIDEST_TABLE
            try:
                super().print(*shown, **options)
            finally:
                self.width = fitting

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
    return QuietConsole(stderr=stderr, highlight=False, markup=False, emoji=False, width=width, soft_wrap=True)


@contextmanager
def progress(what: str, total: int | None, *, noun: str = "") -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr; yield a function that sets the completed count.

    With `noun` the bar also shows the rate per second.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = console(stderr=True)
    rate = () if not noun else (TextColumn("{task.fields[rate]}"),)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *rate, TimeRemainingColumn())
    with Progress(*columns, console=shown, disable=not shown.is_terminal, transient=True) as bars:
        task = bars.add_task(what, total=total, rate="")

        def advance(done: int) -> None:
            bars.update(task, completed=done)
            if noun and (speed := bars.tasks[task].finished_speed or bars.tasks[task].speed):
                bars.update(task, rate=f"{speed:,.0f} {noun}/s")

        yield advance


class ShownProgress(Progress):
    """Prints the notes of an operation to stderr, and shows a bar for each of its steps."""

    def note(self, text: str) -> None:
        say_note(text)

    def step(self, what: str, total: int | None, *, noun: str = "") -> AbstractContextManager[Callable[[int], None]]:
        return progress(what, total, noun=noun)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table; the columns in `right` are right-aligned."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # No padding around and little between columns, to fit into 80 characters.
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        made.add_column(Text(column), justify="right" if column in right else "left", overflow="fold")
    return made


def fitting(rows: list[dict[str, str]], width: int, *, left_out_first: tuple[str, ...]) -> list[str]:
    """Return the columns of the rows that fit into `width` cells side by side; the others are left out in that order.

    Rows map titles to texts, all rows the same titles.
    """
    wide = {title: max(width_of(title), *(width_of(row[title]) for row in rows)) for title in rows[0]}
    for title in left_out_first:
        if sum(wide.values()) + 2 * (len(wide) - 1) <= width:  # two characters separate columns
            break
        wide.pop(title, None)
    return list(wide)


def cell(value: object, style: str = "") -> Any:
    """Return a table cell with control characters escaped."""
    from rich.text import Text

    return Text(printable("" if value is None else str(value)), style=style)


def print_json(value: object) -> None:
    """Print one JSON document on one line; escape control characters if stdout is a terminal."""
    text = msgspec.json.encode(value).decode()
    if not is_utf8(sys.stdout):
        text = ascii_json(text)
    sys.stdout.write((printable_json(text) if sys.stdout.isatty() else text) + "\n")


def time_text(timestamp_us: int | None) -> str:
    """Return the UTC time to the millisecond, in a sortable format; empty for None."""
    if timestamp_us is None:
        return ""
    moment = datetime.fromtimestamp(timestamp_us // 1_000_000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_us % 1_000_000 // 1_000:03d}Z"


def exact_time_text(timestamp_us: int) -> str:
    """Return the UTC time to the microsecond as RFC 3339: `2013-01-01T10:00:00.000001Z`."""
    moment = datetime.fromtimestamp(timestamp_us // 1_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_us % 1_000_000:06d}Z"


def count_text(count: int) -> str:
    """Return the count with thousands separators: `336,776`."""
    return f"{count:,}"


def width_of(text: str) -> int:
    """Return the width of `text` in terminal cells; a Chinese, Japanese or Korean character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def padded(text: str, cells: int) -> str:
    """Return `text` padded with trailing spaces to a width of `cells`."""
    return text + " " * (cells - width_of(text))


def cut(text: str, cells_max: int) -> str:
    """Return `text` truncated to at most `cells_max` terminal cells."""
    return text if width_of(text) <= cells_max else _beginning(text, cells_max - 1) + "…"


def _beginning(text: str, cells_max: int) -> str:
    if text.isascii():
        return text[: max(0, cells_max)]
    left = cells_max
    for position, char in enumerate(text):
        left -= width_of(char)
        if left < 0:
            return text[:position]
    return text


def short_time_text(timestamp_us: int | None) -> str:
    """Return the UTC time to the second without the year, for narrow terminals: `01-31 08:00:00Z`."""
    return "" if timestamp_us is None else f"{datetime.fromtimestamp(timestamp_us // 1_000_000, UTC):%m-%d %H:%M:%SZ}"


def shown_bytes(data: bytes | None, cells_max: int | None = None) -> str:
    """Return bytes as text if they are UTF-8, else as base64, truncated to `cells_max` terminal cells."""
    if data is None:
        return ""
    # Decode only the beginning of a large value; a UTF-8 character has at most 4 bytes.
    beginning = data if cells_max is None else data[: 4 * cells_max + 4]
    try:
        text = beginning.decode()
    except UnicodeDecodeError as error:
        if len(beginning) < len(data) and error.start >= len(beginning) - 4:
            text = beginning[: error.start].decode()
        else:
            text = f"base64:{base64.b64encode(beginning).decode()}"
    text = printable(text)
    if cells_max is not None and (width_of(text) > cells_max or len(beginning) < len(data)):
        text = _beginning(text, cells_max - 1) + "…"
    return text
