"""`penstock bench partitions`: the cost of several partitions, and of each way to route messages to leaders."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Debug, examples
from penstock_bench.cli.options import Dir, JsonFile, Rounds
from penstock_bench.cli.run import BenchPlace, running

EXAMPLES = examples(
    "penstock bench partitions",
    "penstock bench partitions --partitions 8 --rounds 3",
)


@clearly
def partitions(
    count: Annotated[
        int, typer.Option("--partitions", metavar="N", min=2, max=64, help="Partitions of the streams with several.")
    ] = 4,
    messages: Annotated[
        int, typer.Option("--messages", metavar="N", min=1_000, max=10_000_000, help="Messages per round and stream.")
    ] = 400_000,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure the CPU per message of two brokers, for one partition and several, by each --partition-by.

    Two brokers, one replica, and one publisher that waits for acks in a window. The CPU of both brokers counts,
    including that for messages of partitions that they do not lead.
    """
    from penstock_bench import partitions as measured

    plan = measured.PartitionsPlan(partitions=count, rounds=rounds or measured.ROUNDS)
    plan = msgspec.structs.replace(plan, load=msgspec.structs.replace(plan.load, messages=messages))
    place = BenchPlace(folder, plan.bytes_needed, "give fewer --messages")
    with running("partitions", place, total=plan.steps, json_file=json_file) as run:
        run.will_take(plan.seconds)
        run.found["figures"] = measured.run(plan, run.folder, run.step)
