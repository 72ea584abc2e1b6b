"""Reads the contracts that a command is given, and tells of mistakes in them as compilers do.

Rules: a file may include what lies in its own folder, or below it, and below the folders of `--include`. A mistake is
one line on stderr, FILE:LINE:COLUMN: TEXT; then the command ends with exit code 2. A descriptor set of Protobuf, which
only `check` takes, has several contracts: one for each of its files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal.failure import USED_WRONGLY, printable, say_note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.idl.mistakes import IdlError, Mistakes
    from penstock.idl.model import Program

DESCRIPTOR_SETS = (".binpb", ".desc")
"""Suffixes of descriptor sets, as for `schema register`."""
FILES_MAX = 10_000
"""Most contracts of one folder."""

ContractFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A Frugal or Thrift file: .frugal or .thrift.", show_default=False)
]


def program_of(file: Path, include: Iterable[Path] | None) -> Program:
    """Return the program of a contract. IdlError: its mistakes, or that it cannot be read; BadParameter: no folder."""
    (program,) = _linked([file], [file.parent], include)
    return program


def programs_of(paths: Sequence[Path], include: Iterable[Path] | None) -> list[Program]:
    """Return the programs of files, and of all contracts in folders. IdlError, BadParameter: as `program_of`."""
    files: dict[Path, None] = {}
    for path in paths:
        found = [path / each for each in contracts_in(path)] if path.is_dir() else [path]
        if not found:
            raise typer.BadParameter(f"no .frugal or .thrift file in {path}")
        files.update(dict.fromkeys(found))
    folders = {path if path.is_dir() else path.parent for path in paths}
    return _linked(sorted(files), sorted(folders), include)


def versions_of(path: Path, include: Iterable[Path] | None, contradictions: Mistakes | None) -> dict[str, Program]:
    """Return the programs of a file to compare, by their names in it: those of a descriptor set have one.

    `contradictions`: takes those of annotations, which do not keep a file from being compared. Else as `program_of`.
    """
    if path.suffix not in DESCRIPTOR_SETS:
        (program,) = _linked([path], [path.parent], include, contradictions)
        return {"": program}
    from penstock.idl.protobuf import SET_BYTES_MAX, from_descriptor_set

    with path.open("rb") as file:
        return dict(from_descriptor_set(file.read(SET_BYTES_MAX + 1), str(path)))


def _linked(
    files: Iterable[Path],
    own: Iterable[Path],
    include: Iterable[Path] | None,
    contradictions: Mistakes | None = None,
) -> list[Program]:
    from penstock.idl.files import FileReader
    from penstock.idl.linker import link_all

    folders = [*(include or ())]
    for folder in folders:
        if not folder.is_dir():
            raise typer.BadParameter(f"{folder} is no folder", param_hint="'--include'")
    files = list(files)
    for file in files:
        if file.suffix in DESCRIPTOR_SETS:
            text = "is a descriptor set of Protobuf, for `penstock idl check` and `penstock schema register`"
            raise typer.BadParameter(f"{file} {text}; this command takes .frugal and .thrift")
    roots = [str(each) for each in (*own, *folders)]
    return link_all(map(str, files), FileReader(roots), roots, contradictions=contradictions)


def contracts_in(folder: Path, more: Sequence[str] = ()) -> Iterator[Path]:
    """Yield the paths of all contracts below a folder, relative to it, in order; `more`: further suffixes.

    BadParameter: too many.
    """
    from penstock.idl.parser import SUFFIXES

    found = sorted(each for suffix in (*SUFFIXES, *more) for each in folder.rglob(f"*{suffix}") if each.is_file())
    if len(found) > FILES_MAX:
        raise typer.BadParameter(f"{folder} has {len(found):,} contracts; {FILES_MAX:,} are the most")
    return (each.relative_to(folder) for each in found)


def warn_of(programs: Iterable[Program]) -> None:
    """Print what is likely not meant in contracts and what they include, each once."""
    from penstock.idl.annotations import near_misses
    from penstock.idl.model import closure

    found = near_misses(each for program in programs for each in closure([program]))
    for line in dict.fromkeys(f"{each.position}: warning: {each.text}" for each in found):
        say_note(line)


def refuse(*errors: IdlError) -> typer.Exit:
    """Print the mistakes of contracts, each once, and return what ends the command with exit code 2."""
    lines = dict.fromkeys(line for error in errors for line in str(error).splitlines())
    sys.stderr.write("".join(f"{printable(line)}\n" for line in lines))
    return typer.Exit(USED_WRONGLY)
