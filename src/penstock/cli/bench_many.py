"""`penstock bench many`: what very many streams cost three brokers."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.base import limits
from penstock.cli.bench_options import Dir, JsonFile
from penstock.cli.bench_run import Place, running
from penstock.cli.failure import clearly
from penstock.cli.options import Debug, examples

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
            help="How long the idle brokers are watched.",
        ),
    ] = 20.0,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """What many idle streams cost three brokers, and what the loss of one of these costs.

    Makes many streams of three replicas (10,000 if nothing else is said) and publishes a message into each. Then
    measures CPU, memory, open files and what goes between the brokers while nothing happens. At last it kills the
    broker that leads most of them, and tells how long it takes until the last of its streams takes a message again.
    Every message that was acked is read back.
    """
    from penstock.bench import many as measured

    plan = measured.Plan(streams, seconds)
    place = Place(folder, plan.bytes_needed, "give fewer --streams")
    with running("many", place, total=measured.STEPS, json_file=json_file) as run:
        run.will_take(plan.seconds)
        run.found["figures"] = measured.run(plan, run.folder, run.step)
