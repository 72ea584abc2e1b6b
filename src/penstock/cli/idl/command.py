"""`penstock idl …`: contracts in Frugal and Thrift files, without a broker.

Each command has a module with its function and its EXAMPLES; this module registers them.
"""

from __future__ import annotations

import typer

from penstock.cli.idl import check as idl_check
from penstock.cli.idl import compiling as idl_compiling
from penstock.cli.idl import docs as idl_docs
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.options import examples

app = typer.Typer(
    cls=Group,
    help="Check, compile and document contracts: Frugal and Thrift files (IDL) with types, services and scopes.\n\n"
    "A mistake in a file is printed as FILE:LINE:COLUMN: TEXT, one a line, and the exit code is 2. No broker is asked.",
    epilog=examples(
        "# Python code of a contract",
        "penstock idl compile orders.frugal --out src",
        "# does a new version break what runs or is stored?",
        "penstock idl check old/orders.frugal orders.frugal",
        "# a page for people",
        "penstock idl docs orders.frugal --out orders.html",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

app.command("compile", cls=Command, epilog=idl_compiling.EXAMPLES)(idl_compiling.compile_contract)
app.command("check", cls=Command, epilog=idl_check.EXAMPLES)(idl_check.check)
app.command("docs", cls=Command, epilog=idl_docs.EXAMPLES)(idl_docs.docs)
