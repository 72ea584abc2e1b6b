"""The Typer app with all commands of `penstock`, made once for all tests of a process."""

from __future__ import annotations

from penstock.cli.program import program

app = program()
