"""`penstock bench throughput`: acked messages per second, and what consumers read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base import limits
from penstock.cli.terminal.failure import clearly, say_note
from penstock.cli.terminal.options import Debug, examples
from penstock_bench.cli import product_addresses
from penstock_bench.cli.options import (
    LOAD_PANEL,
    AgainstAny,
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
from penstock_bench.cli.product_addresses import KafkaAddress, LiftbridgeAddress, LiftbridgeNats
from penstock_bench.cli.run import BenchPlace, running

if TYPE_CHECKING:
    from penstock_bench.runs.throughput import ThroughputPlan, Wish

EXAMPLES = examples(
    "penstock bench throughput",
    "# beside JetStream, with all results in a file",
    "penstock bench throughput --against jetstream --json throughput.json",
    "# one load, longer",
    "penstock bench throughput --against jetstream --size 1KiB --messages 1000000",
    "# three brokers, beside a cluster of three nats-servers",
    "penstock bench throughput --replicas 3 --against jetstream --window 4000",
    "# beside a Kafka that you run",
    "penstock bench throughput --against kafka --kafka-address 127.0.0.1:9092",
)


Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="SIZE",
        help="Bytes of a message, of random content; may be repeated.  Default: 256, 1024, 5120.",
        rich_help_panel=LOAD_PANEL,
    ),
]
Windows = Annotated[
    list[int] | None,
    typer.Option(
        "--window",
        metavar="N",
        min=1,
        help="Unacked messages of all publishers together; may be repeated.  Default: 1, 100, 4000.",
        rich_help_panel=LOAD_PANEL,
        show_default=False,
    ),
]
Publishers = Annotated[
    list[int] | None,
    typer.Option(
        "--publishers",
        metavar="N",
        min=1,
        max=limits.BENCH_PUBLISHERS_MAX,
        help="Connections that publish; may be repeated.  Default: 1, 4, 16.",
        rich_help_panel=LOAD_PANEL,
        show_default=False,
    ),
]
Messages = Annotated[
    int | None,
    typer.Option(
        "--messages",
        metavar="N",
        min=1,
        max=limits.BENCH_MESSAGES_MAX,
        help="Messages of one round.  Default: 100,000.",
        rich_help_panel=LOAD_PANEL,
        show_default=False,
    ),
]
Seconds = Annotated[
    str | None,
    typer.Option(
        "--seconds",
        metavar="DURATION",
        help="A round stops sending after this time.  Default: 10s.",
        rich_help_panel=LOAD_PANEL,
        show_default=False,
    ),
]
Every = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Every combination of sizes, windows and publishers, not one thing at a time.",
        rich_help_panel=LOAD_PANEL,
    ),
]


@clearly
def throughput(
    against: AgainstAny = None,
    size: Sizes = None,
    window: Windows = None,
    publishers: Publishers = None,
    messages: Messages = None,
    seconds: Seconds = None,
    every: Every = False,
    replicas: Replicas = 1,
    short: Short = False,
    kafka_address: KafkaAddress = None,
    liftbridge_address: LiftbridgeAddress = None,
    liftbridge_nats: LiftbridgeNats = None,
    only: Only = None,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure throughput: acked messages per second, and messages per second that a consumer reads.

    Publishes messages of random content until all are acked, reads them back, and lets consumers read. Penstock is
    measured with fsync before ack (its default), with durability os and in memory; JetStream at its defaults, with
    sync_interval always, with persist_mode async and in memory; beside them what acks at once and stores nothing. Kafka
    and Liftbridge are not started for you: say where they listen. With --replicas 3 Penstock is three brokers on one
    nats-server, and JetStream a cluster of three; nothing reads then.

    Without lists of your own, sizes, windows and publishers vary one at a time around 256 bytes, a window of 4,000 and
    one publisher. Lists that you give are combined.
    """
    from penstock_bench.runs import machine_limits
    from penstock_bench.runs import throughput as measured

    wish = measured.Wish(
        against=tuple(against or ()),
        only=tuple(only or ()),
        addresses=product_addresses.addresses(kafka_address, liftbridge_address, liftbridge_nats),
        axes=measured.Axes(sizes(size), tuple(window or ()), tuple(publishers or ())),
        messages=messages,
        seconds_max=None if seconds is None else seconds_of("--seconds", seconds, limits.BENCH_SECONDS_MAX),
        rounds=rounds,
        every=every,
        short=short,
        replicas=replicas,
    )
    plan = measured.planned(wish)
    check_against(wish.against, measured.systems_of(replicas)[1], plan.variants)
    product_addresses.check_used(wish.addresses, plan.variants)
    check_windows(wish, plan)
    total = plan.measurements + machine_limits.count(plan.rounds)
    place = BenchPlace(folder, plan.bytes_needed, "give fewer --messages")
    with running("throughput", place, total=total, json_file=json_file, html_file=html_file) as run:
        run.will_take(plan.seconds + machine_limits.seconds(plan.rounds))
        measured.run(plan, run.folder, run.said, run.show)
        run.found["limits"] = machine_limits.measured(run.folder, rounds=plan.rounds, said=run.step)


def check_windows(wish: Wish, plan: ThroughputPlan) -> None:
    """Raise BadParameter if a window exceeds the messages of a round; note limits on default windows."""
    from penstock_bench.load.generator import Load

    messages = plan.loads[0].messages
    if any(window > messages for window in wish.axes.windows):
        raise typer.BadParameter(
            f"{max(wish.axes.windows):,} messages cannot be unacked in a round of {messages:,}: give more --messages",
            param_hint="'--window'",
        )
    if not wish.axes.windows and messages < Load().window:
        say_note(f"windows are at most {messages:,} here: a round has no more messages")
    for window in wish.axes.windows:
        if (most := max(load.publishers for load in plan.loads)) > window:
            say_note(f"a window of {window:,} is raised to the number of publishers: {most:,} need one message each")
