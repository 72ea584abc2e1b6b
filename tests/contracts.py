"""Contracts for tests: IDL texts become linked programs, without files."""

from __future__ import annotations

from penstock.idl.files import texts
from penstock.idl.linker import link
from penstock.idl.model import Program


def program(text: str, *, file: str = "main.frugal", **included: str) -> Program:
    """Return the program of a text; `included`: texts of the files that it may include, by their names."""
    return link(file, texts({file: text, **{f"{name}.frugal": other for name, other in included.items()}}))
