"""`penstock demo`: real events end to end through a broker of its own, compared byte for byte.

unmodified nats-py → NATS → broker → Arrow files → Penstock's client → Arrow batches → figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.base import limits
from penstock.cli.terminal.connection_options import among_brokers_of_its_own
from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Debug, examples

EXAMPLES = examples(
    "penstock demo",
    "penstock demo --rows 20000 --data-dir /tmp/penstock-demo",
    "# three brokers: kill leaders, lose a disk, lose nothing that was acked",
    "penstock demo --brokers 3",
    "# and into a lake of Parquet files, queried with Spark SQL; Java need not be installed",
    "penstock demo --spark",
)


@clearly
def demo(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Where the demo's broker keeps its data.")
    ] = Path("penstock-demo"),
    rows: Annotated[
        int | None, typer.Option("--rows", metavar="N", min=1, help="Only the first N flights.  Default: all 336,776.")
    ] = None,
    brokers: Annotated[
        int, typer.Option("--brokers", metavar="N", help="Number of brokers: 1, or a cluster of 3 to 5.")
    ] = 1,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Archive the flights with Spark, too, and compare what Spark and Arrow compute."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="With --spark: install what is missing without asking.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Run a demo: 336,776 real flights through NATS into the log and back, compared byte for byte.

    Without the package of the flights (extra [bold]demo[/bold]) it publishes 5,000 invented ones.

    Starts a broker of its own with an embedded nats-server, and stops it at the end. An earlier demo's stream in the
    same directory is deleted and created again. Takes 10 to 30 seconds.

    With --brokers 3 it shows a cluster instead: messages are published without a pause, the leader is killed twice, a
    broker loses its disk, and every acked message is read back. Takes less than 90 seconds.

    With --spark it adds a lake: the flights are archived as Parquet files with typed columns, in the directory lake
    beside the broker's data; then Spark SQL computes the busiest and the most delayed routes from these files, and
    Arrow from the log. Both results are shown and compared: exit code 1 if they differ. If PySpark or Java is missing,
    it prints the packages and their sizes, asks, and has pip install them into the environment that it runs in.
    """
    among_brokers_of_its_own()
    if brokers == 1:
        if spark:
            from penstock.cli.demo.install import install_missing

            install_missing(yes=yes)
            from penstock.cli.demo import spark as demo_spark  # not sooner: pyarrow looks for numpy once

            demo_spark.run(data_dir, rows)
            return
        from penstock.cli.demo.run import run

        run(data_dir, rows)
        return
    if spark:
        raise typer.BadParameter("--spark is for the demo with one broker")
    if not 3 <= brokers <= limits.RAFT_VOTERS_MAX:
        raise typer.BadParameter(
            f"--brokers {brokers}: give 1, or 3 to {limits.RAFT_VOTERS_MAX}; with two a loss stops both"
        )
    if rows is not None:
        raise typer.BadParameter("--rows is for the demo with one broker; a cluster's publishes until it ends")
    from penstock.cli.demo import cluster as demo_cluster

    demo_cluster.run(data_dir, brokers)
