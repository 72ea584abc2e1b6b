"""`penstock idl compile`: writes the Python code of contracts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.idl.contracts import programs_of, refuse, warn_of
from penstock.cli.terminal.failure import clearly, say, say_note
from penstock.cli.terminal.options import Debug, IncludeFolders, examples
from penstock.cli.terminal.output import counted

EXAMPLES = examples(
    "penstock idl compile orders.frugal --out src",
    "# all contracts of a folder, and one more",
    "penstock idl compile contracts other/billing.thrift --out src",
    "# included files of other folders",
    "penstock idl compile orders.frugal --out src --include contracts",
    "# into a package of your own: from acme.contracts import shop",
    "penstock idl compile orders.frugal --out src --package acme.contracts",
    "# which files would that be?",
    "penstock idl compile orders.frugal --out src --dry-run",
)


@clearly
def compile_contract(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Frugal or Thrift files (.frugal, .thrift), or folders with them.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Folder for the code; created if it does not exist."),
    ],
    include: IncludeFolders = None,
    package: Annotated[
        str, typer.Option("--package", metavar="NAME", help="A package for all of them, such as acme.contracts.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the files that would be written, and write none.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Write typed Python of contracts and what they include: dataclasses, clients, handlers, publishers, subscribers.

    Each file becomes the package of its `namespace py`, else of its own name. The same contracts give the same code, in
    whichever order they are named; with a mistake in one of them none is written. A file that was not generated is
    never replaced, and none is removed. The code needs the extra [bold]frugal[/bold].
    """
    from penstock.idl.mistakes import IdlError
    from penstock.idl.python.files import write
    from penstock.idl.python.generate import generate
    from penstock.idl.python.names import prefix_parts

    if prefix_parts(package) is None:
        text = f"{package!r} is no package of Python; give names with dots between, none of Python's own"
        raise typer.BadParameter(text, param_hint="'--package'")
    try:
        programs = programs_of(paths, include)
        files = generate(*programs, prefix=package)
    except IdlError as error:
        raise refuse(error) from None
    warn_of(programs)
    changed = [] if dry_run else write(files, out)
    for name in files:
        say(str(out / name))
    told = "would be written" if dry_run else f"of which {len(changed)} changed"
    say_note(f"{counted(len(files), 'file')}{'' if dry_run else ','} {told}")
