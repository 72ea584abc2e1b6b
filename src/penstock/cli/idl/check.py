"""`penstock idl check`: names every change between versions of a contract, and whether it breaks something.

Rules: the last path is the new version, the others are older ones, all files or all folders. The files of a folder are
compared by their paths in it, those of a descriptor set by their names; of a file that is gone all is removed. What an
older version says of streams and cannot be is a warning only, as a released version cannot be mended. The exit code is
0 if nothing breaks, 1 if something does, 2 if a contract cannot be read.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penstock.cli.idl.contracts import DESCRIPTOR_SETS, contracts_in, refuse, versions_of, warn_of
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import FAILED, clearly, say, say_note
from penstock.cli.terminal.options import Debug, IncludeFolders, Json, examples
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    from penstock.idl.compatibility import Change, Mode
    from penstock.idl.model import Position, Program

EXAMPLES = examples(
    "penstock idl check old/orders.frugal orders.frugal",
    "# all contracts of two folders, files of the same path against each other",
    "penstock idl check old/contracts contracts",
    "# only new readers have to read what old writers wrote; consumers are updated first",
    "penstock idl check old/contracts contracts --mode backward",
    "# against all released versions, oldest first: finds an id that an early version used",
    "penstock idl check releases/1 releases/2 contracts",
    "# one change that breaks something, on purpose",
    "penstock idl check old/contracts contracts --allow field-removed:Order.note",
    "# for a script",
    "penstock idl check old/contracts contracts --json | jq -r 'select(.refused).rule'",
)


class Direction(StrEnum):
    """The values of `--mode`."""

    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"


class _Refused(NamedTuple):
    """Changes that end the command with exit code 1. `allowed`: rules, each alone or with ":" and a subject."""

    mode: Mode
    source: bool
    allowed: frozenset[str]

    def has(self, change: Change) -> bool:
        """True if this change is refused."""
        from penstock.idl.compatibility import breaking

        if self.allowed.intersection(_names_of(change)):
            return False
        return bool(breaking([change], self.mode, source=self.source))


def _names_of(change: Change) -> tuple[str, str]:
    """Return the values of `--allow` that mean a change."""
    return change.rule.id, f"{change.rule.id}:{change.subject}"


class _Row(NamedTuple):
    """A change, the path of the older version that it is against, and whether the mode refuses it."""

    against: str
    change: Change
    is_refused: bool


@clearly
def check(
    old: Annotated[
        list[Path],
        typer.Argument(
            metavar="OLD...",
            help="The older version: a .frugal or .thrift file, a descriptor set of Protobuf (.binpb, .desc), or a "
            "folder with such files. Several: oldest first.",
            show_default=False,
        ),
    ],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The new version: a file, or a folder if the old one is.")],
    mode: Annotated[
        Direction,
        typer.Option(
            "--mode",
            metavar="backward|forward|full",
            help="What has to work: new code with what old code wrote (backward), old code with what new code writes "
            "(forward), or both.",
        ),
    ] = Direction.FULL,
    source: Annotated[
        bool,
        typer.Option("--source", help="Refuse changes, too, that only break programs which use the generated code."),
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="RULE[:WHAT]",
            help="Accept changes by this rule, or only that of WHAT, such as field-removed:Order.note; may be given "
            "several times.",
            show_default=False,
        ),
    ] = None,
    include: IncludeFolders = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Name every change between versions of a contract that breaks services, stored messages or programs.

    Versions run side by side while services are updated, and streams keep messages of old versions. A change breaks
    "backward" if new code fails with what old code wrote, "forward" if old code fails with what new code writes,
    "source" if programs that use the generated code must be edited. A note breaks nothing: what is added, mostly.

    The exit code is 0 if nothing breaks in the direction of --mode, 1 if something does, and 2 if the command line or a
    contract is wrong. Types are compared as they are on the wire: the name of a field may change, its id may not.
    """
    need_stdout()
    versions = [*old, new]
    contracts = [*_contracts(versions)]
    if not contracts:
        raise typer.BadParameter(f"no .frugal, .thrift, .binpb or .desc file in {' or '.join(map(str, versions))}")
    from penstock.idl.compatibility import Mode

    refused = _Refused(Mode(mode), source, _allowed(allow or []))
    rows = _rows(contracts, versions, include or [], refused)
    if as_json:
        for row in rows:
            output.print_json(_json(row))
    else:
        _show(rows, len(contracts), Mode(mode))
    found = {name for row in rows for name in _names_of(row.change)}
    for each in dict.fromkeys(allow or []):
        if each not in found:
            say_note(f"--allow {each}: there is no such change")
    if any(row.is_refused for row in rows):
        raise typer.Exit(FAILED)


def _allowed(given: list[str]) -> frozenset[str]:
    """Return the values of `--allow`. BadParameter: there is no such rule."""
    from penstock.idl.compatibility import RULES

    for each in given:
        if (rule := each.partition(":")[0]) not in RULES:
            close = difflib.get_close_matches(rule, RULES, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise typer.BadParameter(f"there is no rule {rule!r}{hint}", param_hint="'--allow'")
    return frozenset(given)


_Paths = tuple[Path | None, ...]
"""One contract in each version, oldest first; None: that version lacks it."""


def _contracts(versions: list[Path]) -> Iterator[_Paths]:
    """Yield the contracts to compare. BadParameter: a path is not there, or files and folders are mixed."""
    for path in versions:
        if not path.exists():
            raise typer.BadParameter(f"{path}: there is no such file or folder")
    folders = [path for path in versions if path.is_dir()]
    if not folders:
        yield tuple(versions)
        return
    if len(folders) < len(versions):
        raise typer.BadParameter(f"{folders[0]} is a folder, so the others have to be folders, too")
    listed = [list(contracts_in(folder, DESCRIPTOR_SETS)) for folder in folders]
    for folder, found in zip(folders[:-1], listed, strict=False):
        if not found and any(listed):  # a wrong path in CI would pass for ever
            raise typer.BadParameter(f"{folder} has no contracts, so there is nothing to compare with")
    names = {name for found in listed for name in found}
    for name in sorted(names):
        paths = (folder / name for folder in folders)
        yield tuple(path if path.is_file() else None for path in paths)


def _rows(contracts: list[_Paths], versions: list[Path], roots: list[Path], refused: _Refused) -> list[_Row]:
    """Compare each contract with its older versions; changes that are refused come first. Exit: mistakes in them."""
    from penstock.idl.compatibility import compare_all
    from penstock.idl.mistakes import IdlError, Mistakes

    found: dict[tuple[object, ...], _Row] = {}
    errors: list[IdlError] = []
    warnings = Mistakes()
    older: dict[Path, None] = {}  # with mistakes
    new: list[Program] = []
    for paths in contracts:
        read: list[dict[str, Program]] = []
        for path, version in zip(paths, versions, strict=True):
            is_new = version is versions[-1]
            folders = [version, *roots] if version.is_dir() else roots
            try:
                read.append({} if path is None else versions_of(path, folders, None if is_new else warnings))
            except IdlError as error:
                errors.append(error)
                if not is_new and path is not None:
                    older[path] = None
        if errors:
            continue
        new += read[-1].values()
        for programs in _by_name(read, [path or version for path, version in zip(paths, versions, strict=True)]):
            for index, change in compare_all([program for _, program in programs]):
                # What several files include is compared with each of them.
                key = (str(change.old), str(change.new), change.rule.id, change.subject, change.text)
                found.setdefault(key, _Row(str(programs[index][0]), change, refused.has(change)))
    for each in dict.fromkeys(map(str, warnings)):
        say_note(f"{each} (an older version, so it is compared)")
    if errors:
        ended = refuse(*errors)
        for path in older:
            say_note(f"{path} is an older version with mistakes: compare with one without, or with a mended copy")
        raise ended
    warn_of(new)
    return sorted(found.values(), key=lambda each: (not each.is_refused, not each.change.impact))


def _by_name(read: list[dict[str, Program]], paths: list[Path]) -> Iterator[list[tuple[Path, Program]]]:
    """Yield the versions of each program; in a new version that lacks it nothing is declared."""
    from penstock.idl.model import Document, Program

    for name in dict.fromkeys(name for each in read for name in each):
        found = [(path, each[name]) for path, each in zip(paths, read, strict=True) if name in each]
        if name not in read[-1]:
            found.append((paths[-1], Program(Document(str(paths[-1])), {})))
        yield found


def _json(row: _Row) -> dict[str, object]:
    change = row.change
    return {
        "rule": change.rule.id,
        "refused": row.is_refused,
        "breaks": change.impact.words,
        "subject": change.subject,
        "change": change.text,
        "why": change.rule.why,
        "advice": change.rule.advice,
        "against": row.against,
        "old": _place(change.old),
        "new": _place(change.new),
    }


def _place(position: Position) -> str | None:
    return str(position) if position.line else None


def _show(rows: list[_Row], contracts: int, mode: Mode) -> None:
    console = output.console()
    if rows:
        table = output.table("breaks", "where", "what", "change", "rule")
        for each in rows:
            change = each.change
            table.add_row(
                output.cell(" ".join(change.impact.words) or "note", "bold red" if each.is_refused else ""),
                output.cell(_place(change.new) or _place(change.old)),
                output.cell(change.subject),
                output.cell(change.text),
                output.cell(change.rule.id),
            )
        console.print(table)
        console.print()
    rules = {each.change.rule.id: each.change.rule for each in rows if each.is_refused}
    for rule in rules.values():
        say(f"{rule.id}: {rule.why}.\n  {rule.advice}.")
    refused = sum(each.is_refused for each in rows)
    of_all = f"{output.counted(len(rows), 'change')} in {output.counted(contracts, 'contract')}"
    if refused:
        say(f"Incompatible ({mode}): {refused} of {of_all} {'break' if refused > 1 else 'breaks'} something.")
    else:
        say(f"Compatible ({mode}): {of_all}{', none breaks anything' if rows else ''}.")
