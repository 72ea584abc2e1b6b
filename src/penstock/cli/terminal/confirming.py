"""Asks the user to confirm before an irreversible operation."""

from __future__ import annotations

import sys

import typer

from penstock.base.errors import OperationalError
from penstock.cli.terminal.failure import FAILED, printable, say_error


def confirm(question: str, otherwise: str) -> None:
    """Ask the user; if the answer is no, print `otherwise` and exit with 1. Raise OperationalError at end of stdin."""
    if not _confirmed(question):
        say_error(otherwise)
        raise typer.Exit(FAILED)


def _confirmed(question: str) -> bool:
    # Not click's confirm: it does not distinguish Ctrl-C from the end of the input.
    lines = "\n".join(map(printable, question.split("\n")))  # it may quote names that other users chose
    sys.stderr.write(f"{lines} [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        raise OperationalError("stdin is not interactive; pass --yes")
    return answer.strip().lower() in ("y", "yes")
