"""`penstock bench many`: the cost of very many streams for three brokers."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.base import limits
from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Debug, examples
from penstock_bench.cli.options import Dir, JsonFile
from penstock_bench.cli.run import BenchPlace, running

EXAMPLES = examples(
    "# about five minutes, and 2 GB of disk meanwhile",
    "penstock bench many",
    "penstock bench many --streams 1000 --seconds 5 --json many.json",
)


@clearly
def many(
    streams: Annotated[
        int,
        typer.Option(
            "--streams", metavar="N", min=3, max=limits.BENCH_STREAMS_MAX, help="Streams with three replicas."
        ),
    ] = 10_000,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="S",
            min=0.1,
            max=limits.BENCH_IDLE_SECONDS_MAX,
            help="How long the idle brokers are measured.",
        ),
    ] = 20.0,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure many idle streams on three brokers, and the failover when one broker is lost.

    Creates many streams with three replicas (default: 10,000) and publishes a message into each. Then measures CPU,
    memory, open files and the traffic between the idle brokers. Finally kills the broker that leads most streams, and
    prints how long it takes until the last of them accepts a message again. Every acked message is read back.
    """
    from penstock_bench import many as measured

    plan = measured.ManyStreamsPlan(streams, seconds)
    place = BenchPlace(folder, plan.bytes_needed, "give fewer --streams")
    with running("many", place, total=measured.STEPS, json_file=json_file) as run:
        run.will_take(plan.seconds)
        run.found["figures"] = measured.run(plan, run.folder, run.step)
