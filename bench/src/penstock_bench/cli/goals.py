"""`penstock bench reach` and `replicated`: Penstock's performance goals, each set in one run and one report."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Debug, examples
from penstock_bench.cli.options import RUN_PANEL, Dir, HtmlFile, JsonFile, Rounds, Short, bytes_of
from penstock_bench.cli.run import BenchPlace, running

REACH_EXAMPLES = examples(
    "# about 15 minutes; `make bench` runs this",
    "penstock bench reach --short",
    "# an hour, and 10 GB of disk meanwhile",
    "penstock bench reach --json reach.json --html reach.html",
)

REPLICATED_EXAMPLES = examples(
    "# about 10 minutes, and 5 GB of disk meanwhile",
    "penstock bench replicated --short",
    "# half an hour, and 18 GB of disk meanwhile",
    "penstock bench replicated --json replicated.json",
)


@clearly
def reach(
    short: Short = False,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure Penstock against its performance goals, beside JetStream, and print which are reached.

    Measures throughput, consumers, latency, idle streams and a long stream, with the limits of the machine in the same
    run. A goal is a ratio within that run, so it is valid on a small machine as on a large one.
    """
    from penstock_bench.runs import latency_run, machine_limits, throughput
    from penstock_bench.runs import reach as goals

    plan = goals.planned(short=short, rounds=rounds)
    place = BenchPlace(folder, plan.bytes_needed, "" if short else "measure less with --short")
    with running("reach", place, total=plan.steps, json_file=json_file, html_file=html_file) as run:
        run.will_take(plan.seconds)
        comparisons = throughput.run(plan.throughput, run.folder / "throughput", run.said, run.show)
        latencies = latency_run.run(plan.latency, run.folder / "latency", run.said, run.show_latency)
        run.found["limits"] = machine_limits.measured(run.folder, rounds=plan.limit_rounds, said=run.step)
        run.measure(plan.scale, "scale")
        run.found["reach"] = goals.reached(comparisons) + latency_run.reached(latencies)


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
    from penstock_bench.experiments import catch_up as catching_up
    from penstock_bench.runs import latency_run, throughput
    from penstock_bench.runs import reach as goals
    from penstock_bench.runs import replicated as measured

    plan = measured.planned(short=short, rounds=rounds, catch_up_bytes=bytes_of("--catch-up", catch_up))
    place = BenchPlace(folder, plan.bytes_needed, "give a smaller --catch-up")
    with running("replicated", place, total=plan.steps, json_file=json_file, html_file=html_file) as run:
        run.will_take(plan.seconds)
        comparisons = throughput.run(plan.throughput, run.folder / "throughput", run.said, run.show)
        latencies = latency_run.run(plan.latency, run.folder / "latency", run.said, run.show_latency)
        run.measure(plan.counted, "counted")
        run.found["figures"] += catching_up.run(plan.catch_up, run.folder / "catch-up", run.step)
        run.found["reach"] = goals.reached(comparisons, goals.CLUSTER_GOALS) + latency_run.reached(latencies)
