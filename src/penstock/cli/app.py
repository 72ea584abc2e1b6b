"""The program with all its commands."""

from __future__ import annotations

from penstock.cli.program import program

app = program()
