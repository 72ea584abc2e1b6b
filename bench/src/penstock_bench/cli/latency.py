"""`penstock bench latency`: message latency at a fixed rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base import limits
from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Debug, examples
from penstock_bench.cli.options import (
    LOAD_PANEL,
    RUN_PANEL,
    Against,
    Dir,
    HtmlFile,
    JsonFile,
    Only,
    Replicas,
    Rounds,
    Short,
    check_against,
    seconds_of,
    sizes,
)
from penstock_bench.cli.run import BenchPlace, running

if TYPE_CHECKING:
    from penstock_bench.runs.latency_run import LatencyPlan

_LIMIT_ROUNDS_MAX = 5  # rounds of the machine's limits in a latency run, however many rounds that has

EXAMPLES = examples(
    "# about 5 minutes: 256 bytes and 1 MB, Penstock alone",
    "penstock bench latency --short",
    "# beside JetStream, with plots, as in Tyler Treat's Benchmarking Commit Logs",
    "penstock bench latency --against jetstream --html latency.html",
    "# enough samples for the 99.9th percentile of one size",
    "penstock bench latency --against jetstream --size 256 --duration 50s",
    "# three brokers, beside a cluster of three nats-servers",
    "penstock bench latency --replicas 3 --against jetstream --size 256",
    "# faster, and without a consumer beside it",
    "penstock bench latency --size 1KiB --rate 1000 --no-consumer",
)
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="SIZE",
        help="Bytes of a message, of random content; may be repeated.  Default: 256, 1024, 5120, 1MB.",
        rich_help_panel=LOAD_PANEL,
    ),
]
Rate = Annotated[
    float,
    typer.Option(
        "--rate",
        metavar="N",
        min=0.1,
        max=limits.BENCH_RATE_MAX,
        help="Messages a second.",
        rich_help_panel=LOAD_PANEL,
    ),
]
Duration = Annotated[
    str | None,
    typer.Option(
        "--duration",
        metavar="DURATION",
        help="Duration of one round.  Default: 30s. Longer ones show higher percentiles (p99.9: 40s).",
        rich_help_panel=LOAD_PANEL,
        show_default=False,
    ),
]
NoConsumer = Annotated[
    bool,
    typer.Option(
        "--no-consumer",
        help="Measure acks only, without a following consumer.",
        rich_help_panel=LOAD_PANEL,
    ),
]
Every = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Every variant: also in memory, and JetStream with sync_interval always.",
        rich_help_panel=RUN_PANEL,
    ),
]


@clearly
def latency(
    against: Against = None,
    size: Sizes = None,
    rate: Rate = 50.0,
    duration: Duration = None,
    no_consumer: NoConsumer = False,
    every: Every = False,
    replicas: Replicas = 1,
    short: Short = False,
    only: Only = None,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure latency at a fixed rate: from publishing to the ack, and to a consumer.

    The sender keeps to a schedule, and latency counts from when a message was due: a stall counts for every message
    that it delayed (no coordinated omission). A percentile is shown only if at least ten samples lie beyond it, so a
    round of 30 seconds at 50 a second shows up to the 99th. All rounds together show more: the 99.9th takes 10,000
    messages of a size, 5 rounds with --duration 40s. A message that never arrived counts with the time waited for it.

    The consumer of Penstock is its Python client, which verifies and decodes; that of JetStream reads raw frames.
    """
    from penstock_bench.runs import latency_run, machine_limits

    _check_systems(only)
    wish = latency_run.LatencyWish(
        against=tuple(against or ()),
        only=tuple(only or ()),
        sizes=_sizes(size),
        rate_per_s=rate,
        seconds=None if duration is None else seconds_of("--duration", duration, limits.BENCH_LATENCY_SECONDS_MAX),
        rounds=rounds,
        consumer=not no_consumer,
        every=every,
        short=short,
        replicas=replicas,
    )
    plan = latency_run.planned(wish)
    check_against(wish.against, latency_run.systems_of(replicas, every=True)[1], plan.variants)
    _check_count(plan)
    limit_rounds = min(plan.rounds, _LIMIT_ROUNDS_MAX)
    total = plan.measurements + machine_limits.count(limit_rounds)
    place = BenchPlace(folder, plan.bytes_needed, "give a shorter --duration")
    with running("latency", place, total=total, json_file=json_file, html_file=html_file) as run:
        run.will_take(plan.seconds + machine_limits.seconds(limit_rounds))
        for line in latency_run.too_short_for(plan):
            run.shown.line(line)
        comparisons = latency_run.run(plan, run.folder, run.said, run.show_latency)
        run.found["limits"] = machine_limits.measured(run.folder, rounds=limit_rounds, said=run.step)
        run.found["reach"] = latency_run.reached(comparisons)


def _sizes(texts: list[str] | None) -> tuple[int, ...]:
    from penstock_bench.load.schedule import INDEX_BYTES

    found = sizes(texts)
    if any(size < INDEX_BYTES for size in found):
        raise typer.BadParameter(
            f"a message holds its number in {INDEX_BYTES} bytes: it cannot be shorter", param_hint="'--size'"
        )
    return found


def _check_systems(names: list[str] | None) -> None:
    from penstock_bench.systems import clusters
    from penstock_bench.systems.system import VARIANTS

    for name in names or ():
        if name not in VARIANTS and name not in clusters.VARIANTS:
            raise typer.BadParameter(f"{name} is measured by `penstock bench throughput` alone", param_hint="'--only'")


def _check_count(plan: LatencyPlan) -> None:
    """Raise BadParameter if a round has too many messages, before anything is started."""
    most = max(load.plan(0).count for load in plan.loads)
    if most > limits.BENCH_LATENCY_MESSAGES_MAX:
        allowed = f"at most {limits.BENCH_LATENCY_MESSAGES_MAX:,}"
        raise typer.BadParameter(f"{most:,} messages in one round; {allowed}", param_hint="'--rate' / '--duration'")
