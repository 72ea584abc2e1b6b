"""A question before something goes for good."""

from __future__ import annotations

import sys

import typer

from penstock.base.errors import OperationalError
from penstock.cli.failure import FAILED, printable, say_error


def confirm(question: str, otherwise: str) -> None:
    """Ask; where the answer is no, say `otherwise`, and end. OperationalError where nobody answers."""
    if not _confirmed(question):
        say_error(otherwise)
        raise typer.Exit(FAILED)


def _confirmed(question: str) -> bool:
    # Not click's: that makes one thing of Ctrl-C and of an end of the input.
    lines = "\n".join(map(printable, question.split("\n")))  # it names what others have named
    sys.stderr.write(f"{lines} [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        raise OperationalError("nobody is there to answer; with --yes it does not ask")
    return answer.strip().lower() in ("y", "yes")
