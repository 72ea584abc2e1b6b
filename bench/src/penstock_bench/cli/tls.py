"""`penstock bench tls`: the cost of TLS for reads and for appends over the socket."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Debug, examples
from penstock_bench.cli.options import Dir, JsonFile, Rounds
from penstock_bench.cli.run import BenchPlace, running

EXAMPLES = examples(
    "penstock bench tls",
    "penstock bench tls --messages 50000 --rounds 3",
)


@clearly
def tls(
    messages: Annotated[
        int, typer.Option("--messages", metavar="N", min=4_096, max=10_000_000, help="Messages of 1,024 bytes per log.")
    ] = 262_144,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure the cost of TLS for appends over the socket and for reads, beside the same without TLS.

    Each round appends to and reads from two brokers in turn, one of them with TLS. Its certificates need the extra
    `tls`.
    """
    from penstock_bench import tls as measured

    plan = measured.TlsPlan(messages, rounds=rounds or measured.ROUNDS)
    place = BenchPlace(folder, plan.bytes_needed, "give fewer --messages")
    with running("tls", place, total=plan.steps, json_file=json_file) as run:
        run.will_take(plan.seconds)
        run.found["figures"] = measured.run(plan, run.folder, run.step)
