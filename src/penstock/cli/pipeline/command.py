"""`penstock pipeline …`: jobs on Spark, from streams to lakes and back.

Each command has a module with its function and its EXAMPLES; this module registers them.
"""

from __future__ import annotations

import typer

from penstock.cli.pipeline import archive as pipeline_archive
from penstock.cli.pipeline import audit as pipeline_audit
from penstock.cli.pipeline import replay as pipeline_replay
from penstock.cli.pipeline import run as pipeline_run
from penstock.cli.pipeline import table as pipeline_table
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.options import examples

app = typer.Typer(
    cls=Group,
    help="Run jobs on Spark, from streams to lakes and back: on this machine, or with --master on a cluster.\n\n"
    "They need PySpark and a Java: `pip install '.\\[spark,java]'` in Penstock's folder. A job that was stopped or "
    "killed continues where it was when it is started again, and writes nothing twice.",
    epilog=examples(
        "# all messages so far, as Parquet files by day",
        "penstock pipeline archive orders --to lake",
        "# and new messages, until Ctrl-C",
        "penstock pipeline archive orders --to lake --continuous",
        "# the latest message of each key, as a Delta table",
        "penstock pipeline table prices --to tables/prices",
        "# from the lake back into a stream",
        "penstock pipeline replay lake --to orders-again --subject orders.again",
        "# a function of your own, from DataFrame to DataFrame",
        "penstock pipeline run mine.py:totals --from orders --to tables/totals",
        "# is the archive equal to the log?",
        "penstock pipeline audit orders --against lake",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

app.command("archive", cls=Command, epilog=pipeline_archive.EXAMPLES)(pipeline_archive.archive)
app.command("table", cls=Command, epilog=pipeline_table.EXAMPLES)(pipeline_table.table)
app.command("run", cls=Command, epilog=pipeline_run.EXAMPLES)(pipeline_run.run)
app.command("replay", cls=Command, epilog=pipeline_replay.EXAMPLES)(pipeline_replay.replay)
app.command("audit", cls=Command, epilog=pipeline_audit.EXAMPLES)(pipeline_audit.audit)
