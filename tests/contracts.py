"""Contracts for tests: IDL texts become linked programs, without files."""

from __future__ import annotations

from penstock.idl.model import Program
from penstock.idl.parser import parse


def program(text: str, *, file: str = "main.frugal", **included: str) -> Program:
    """Return the program of a text; `included`: texts of the files that it may include, by their names."""
    document = parse(text, file)
    others = {name: other for name, other in included.items() if f"{name}.frugal" != file}
    return Program(
        document,
        {each.name: program(others[each.name], file=f"{each.name}.frugal", **others) for each in document.includes},
    )
