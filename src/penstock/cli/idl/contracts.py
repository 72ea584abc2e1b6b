"""Reads the contracts that a command is given, and tells of mistakes in them as compilers do.

Rules: a file may include what lies in its own folder, or below it, and below the folders of `--include`. A mistake is
one line on stderr, FILE:LINE:COLUMN: TEXT; then the command ends with exit code 2.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal.failure import USED_WRONGLY, printable

if TYPE_CHECKING:
    from penstock.idl.mistakes import IdlError
    from penstock.idl.model import Program

FILES_MAX = 10_000
"""Most contracts of one folder."""

ContractFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A Frugal or Thrift file: .frugal or .thrift.", show_default=False)
]


def program_of(file: Path, include: Iterable[Path] | None) -> Program:
    """Return the program of a contract. IdlError: its mistakes, or that it cannot be read; BadParameter: no folder."""
    from penstock.idl.files import FileReader
    from penstock.idl.linker import link

    folders = [*(include or ())]
    for folder in folders:
        if not folder.is_dir():
            raise typer.BadParameter(f"{folder} is no folder", param_hint="'--include'")
    roots = [str(each) for each in (file.parent, *folders)]
    return link(str(file), FileReader(roots), roots)


def contracts_in(folder: Path) -> Iterator[Path]:
    """Yield the paths of all contracts below a folder, relative to it, in order. BadParameter: too many."""
    from penstock.idl.parser import SUFFIXES

    found = sorted(each for suffix in SUFFIXES for each in folder.rglob(f"*{suffix}") if each.is_file())
    if len(found) > FILES_MAX:
        raise typer.BadParameter(f"{folder} has {len(found):,} contracts; {FILES_MAX:,} are the most")
    return (each.relative_to(folder) for each in found)


def refuse(*errors: IdlError) -> typer.Exit:
    """Print the mistakes of contracts, each once, and return what ends the command with exit code 2."""
    lines = dict.fromkeys(line for error in errors for line in str(error).splitlines())
    sys.stderr.write("".join(f"{printable(line)}\n" for line in lines))
    return typer.Exit(USED_WRONGLY)
