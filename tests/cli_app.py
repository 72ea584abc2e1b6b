"""The Typer app with all commands of `penstock`, made once for all tests of a process.

Typer's runner makes the commands of an app anew for each call, which takes 130 ms of CPU for this one, and the call
itself 6 ms. Commands keep nothing of a call, so here they are made once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import typer.main
import typer.testing

from penstock.cli.program import program

app = program()


@cache
def root_command() -> Any:
    """Return the command `penstock` of `app`, with all others below it."""
    return typer.main.get_command(app)


def _command_of(other: typer.Typer) -> Any:
    return root_command() if other is app else typer.main.get_command(other)


typer.testing._get_command = _command_of  # type: ignore[attr-defined]
