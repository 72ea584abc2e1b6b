"""`penstock bench read-replicas`: read throughput with one replica that serves reads, and with three."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Debug, examples
from penstock_bench.cli.options import Dir, JsonFile, Rounds
from penstock_bench.cli.run import BenchPlace, running

EXAMPLES = examples(
    "penstock bench read-replicas",
    "penstock bench read-replicas --consumers 200 --rounds 3",
)


@clearly
def read_replicas(
    consumers: Annotated[
        int,
        typer.Option("--consumers", metavar="N", min=1, max=1_000, help="Consumers that read the whole log at once."),
    ] = 24,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure bytes read per second of broker CPU, with one replica that serves reads, and with three.

    Three brokers, and a stream of one replica and two observers (read replicas). Many consumers read all of it at once,
    in turn from the leader only and from any replica. The brokers share one core.
    """
    from penstock_bench import read_replicas as measured

    plan = measured.ReadReplicasPlan(consumers=consumers, rounds=rounds or measured.ROUNDS)
    place = BenchPlace(folder, plan.bytes_needed, "give --dir a larger disk")
    with running("read-replicas", place, total=plan.steps, json_file=json_file) as run:
        run.will_take(plan.seconds)
        run.found["figures"] = measured.run(plan, run.folder, run.step)
