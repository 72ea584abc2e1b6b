"""`penstock bench replicated`: the cost of three replicas, beside JetStream's three replicas."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Debug, examples
from penstock_bench.cli.options import RUN_PANEL, Dir, HtmlFile, JsonFile, Rounds, Short, bytes_of
from penstock_bench.cli.run import BenchPlace, running

EXAMPLES = examples(
    "# about 10 minutes, and 5 GB of disk meanwhile",
    "penstock bench replicated --short",
    "# half an hour, and 18 GB of disk meanwhile",
    "penstock bench replicated --json replicated.json",
)


@clearly
def replicated(
    short: Short = False,
    catch_up: Annotated[
        str | None,
        typer.Option(
            "--catch-up",
            metavar="SIZE",
            help="Bytes that a broker with an empty disk has to fetch.  Default: 5 GB, and 500 MB with --short.",
            rich_help_panel=RUN_PANEL,
            show_default=False,
        ),
    ] = None,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure three replicas, beside JetStream's, and print which goals are reached.

    Three brokers on one nats-server, beside a JetStream cluster of three nats-servers, all on this machine. Measures
    acked messages a second, latency at 50/s, the bytes on disks and between processes, and how fast a broker with an
    empty disk catches up while messages are published.
    """
    from penstock_bench import catch_up as catching_up
    from penstock_bench import latency_run, throughput
    from penstock_bench import reach as goals
    from penstock_bench import replicated as measured

    plan = measured.planned(short=short, rounds=rounds, catch_up_bytes=bytes_of("--catch-up", catch_up))
    place = BenchPlace(folder, plan.bytes_needed, "give a smaller --catch-up")
    with running("replicated", place, total=plan.steps, json_file=json_file, html_file=html_file) as run:
        run.will_take(plan.seconds)
        comparisons = throughput.run(plan.throughput, run.folder / "throughput", run.said, run.show)
        latencies = latency_run.run(plan.latency, run.folder / "latency", run.said, run.show_latency)
        run.found["figures"] = measured.counted(plan.counted, run.folder / "counted", run.step)
        run.found["figures"] += catching_up.run(plan.catch_up, run.folder / "catch-up", run.step)
        run.found["reach"] = goals.reached(comparisons, goals.CLUSTER_GOALS) + latency_run.reached(latencies)
