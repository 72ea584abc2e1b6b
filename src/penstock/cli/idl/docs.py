"""`penstock idl docs`: writes a page for people about a contract."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.idl.contracts import ContractFile, program_of, refuse, warn_of
from penstock.cli.terminal.failure import clearly, say_note
from penstock.cli.terminal.options import Debug, IncludeFolders, examples

EXAMPLES = examples(
    "penstock idl docs orders.frugal --out orders.html",
    "penstock idl docs orders.frugal --out docs/orders.md --include contracts --title 'Orders'",
    "# to stdout",
    "penstock idl docs orders.frugal --format markdown",
)


class Form(StrEnum):
    """The values of `--format`."""

    HTML = "html"
    MARKDOWN = "markdown"


_BY_SUFFIX = {".html": Form.HTML, ".htm": Form.HTML, ".md": Form.MARKDOWN, ".markdown": Form.MARKDOWN}


@clearly
def docs(
    file: ContractFile,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PAGE",
            help="The page to write: .html or .md. An older one is replaced.  Default: stdout.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            metavar="html|markdown",
            help="The form of the page.  Default: as the suffix of --out, else html.",
        ),
    ] = None,
    title: Annotated[
        str, typer.Option("--title", metavar="TEXT", help="The title of the page.  Default: the file's name.")
    ] = "",
    include: IncludeFolders = None,
    debug: Debug = False,
) -> None:
    """Write a page about a contract and what it includes: services, scopes with their subjects, types, constants.

    The page is one file. As HTML it has no script and loads nothing; names and comments of the contract are only text.
    """
    chosen = form or (_form_of(out) if out is not None else Form.HTML)
    from penstock.idl.mistakes import IdlError
    from penstock.idl.page import PageFormat, page

    try:
        program = program_of(file, include)
    except IdlError as error:
        raise refuse(error) from None
    warn_of([program])
    text = page(program, PageFormat(chosen), title=title)
    if out is None:
        typer.echo(text, nl=False)
        return
    if any(out.exists() and out.samefile(each.document.file) for each in program.closure()):
        raise typer.BadParameter(f"{out} is a contract of this page", param_hint="'--out'")
    out.write_text(text, encoding="utf-8")
    say_note(f"wrote {out}")


def _form_of(out: Path) -> Form:
    found = _BY_SUFFIX.get(out.suffix.lower())
    if found is None:
        raise typer.BadParameter(f"{out} ends neither in .html nor in .md: give --format, too", param_hint="'--out'")
    return found
