"""The Typer app with all commands of `penstock`."""

from __future__ import annotations

from penstock.cli.program import program

app = program()
