"""`penstock bench …`: measure Penstock, and others beside it, on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base import limits
from penstock.base.units import parse_bytes, parse_duration_us
from penstock.cli import bench_output, bench_peers, output
from penstock.cli.bench_peers import KafkaAddress, LiftbridgeAddress, LiftbridgeNats
from penstock.cli.failure import clearly
from penstock.cli.help import Command, Group
from penstock.cli.options import Debug, examples

if TYPE_CHECKING:
    from penstock.bench.report import Comparison
    from penstock.bench.rounds import Measurement

_PRODUCTS = ("jetstream",)  # those that we start
_ROUNDS_DEFAULT = 5
_ROUNDS_MAX = 1_000

app = typer.Typer(
    cls=Group,
    help="Measure Penstock on this machine, and others beside it in the same run.\n\n"
    "A run starts what it measures, on this machine and for this machine only, writes to a folder of its own, and "
    "removes both when it ends, also by Ctrl-C. Systems take turns, and a round counts only if what was acked can be "
    "read back, byte for byte. Generator, NATS and brokers share the machine, so compare ratios, not rates.",
    epilog=examples(
        "# a few minutes: what Penstock promises, beside JetStream",
        "penstock bench throughput --reach",
        "penstock bench throughput --against jetstream --size 256 --window 4000 --messages 1000000 --rounds 9",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _products(partly: str) -> list[str]:
    return [name for name in _PRODUCTS if name.startswith(partly)]


def _all_products(partly: str) -> list[str]:
    return [name for name in (*_PRODUCTS, *bench_peers.PRODUCTS) if name.startswith(partly)]


def _check_any_product(names: list[str] | None) -> list[str]:
    known = _all_products("")
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}")
    return names or []


def _check_product(names: list[str] | None) -> list[str]:
    unknown = [name for name in names or () if name not in _PRODUCTS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(_PRODUCTS)}")
    return names or []


def _systems(partly: str) -> list[str]:
    from penstock.bench import peers
    from penstock.bench.systems import VARIANTS

    return [name for name in (*VARIANTS, *peers.KNOWN) if name.startswith(partly)]


def _check_systems(names: list[str] | None) -> list[str]:
    known = _systems("") if names else []
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}")
    return names or []


def _sizes(texts: list[str] | None) -> tuple[int, ...]:
    try:
        sizes = tuple(parse_bytes(text) for text in texts or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    for size in sizes:
        if not 1 <= size <= limits.BENCH_MESSAGE_BYTES_MAX:
            raise typer.BadParameter(
                f"a message of {size:,} bytes; from 1 to {limits.BENCH_MESSAGE_BYTES_MAX:,} can be sent"
            )
    return sizes


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration_us(text) / 1e6
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not 0 < seconds <= limits.BENCH_SECONDS_MAX:
        raise typer.BadParameter(f"more than nothing, and at most {limits.BENCH_SECONDS_MAX:g}s")
    return seconds


_LOAD_PANEL = "Load"
_RUN_PANEL = "Run"

Against = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="PRODUCT",
        help=f"Measure it in turn with Penstock; may be repeated. One of: {', '.join(_PRODUCTS)}.",
        autocompletion=_products,
        callback=_check_product,
        show_default=False,
    ),
]
AgainstAny = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="PRODUCT",
        help=f"Measure it in turn with Penstock; may be repeated. One of: {', '.join(_all_products(''))}.",
        autocompletion=_all_products,
        callback=_check_any_product,
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="SYSTEM",
        help="Measure only this system, such as penstock-os or jetstream; may be repeated.",
        autocompletion=_systems,
        callback=_check_systems,
        rich_help_panel=_RUN_PANEL,
        show_default=False,
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        metavar="N",
        min=1,
        max=_ROUNDS_MAX,
        help=f"How often each system has its turn.  Default: {_ROUNDS_DEFAULT}; fewer say nothing of the spread.",
        rich_help_panel=_RUN_PANEL,
        show_default=False,
    ),
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", dir_okay=False, help="Write all results and the facts of the machine."),
]
Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        file_okay=False,
        help="Where logs are written meanwhile.  Default: the folder for temporary files, if it is on a disk.",
        rich_help_panel=_RUN_PANEL,
    ),
]


@app.command(
    "throughput",
    cls=Command,
    epilog=examples(
        "penstock bench throughput",
        "# beside JetStream, with all results in a file",
        "penstock bench throughput --against jetstream --json throughput.json",
        "# one load, longer",
        "penstock bench throughput --against jetstream --size 1KiB --window 4000 --publishers 1 --messages 1000000",
        "# beside a Kafka that you run",
        "penstock bench throughput --against kafka --kafka-address 127.0.0.1:9092",
        "# the promises of Penstock: reached or missed",
        "penstock bench throughput --reach",
    ),
)
@clearly
def throughput(
    against: AgainstAny = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="Bytes of a message, of random content; may be repeated.  Default: 256, 1024, 5120.",
            rich_help_panel=_LOAD_PANEL,
        ),
    ] = None,
    window: Annotated[
        list[int] | None,
        typer.Option(
            "--window",
            metavar="N",
            min=1,
            help="Unacked messages of all publishers together; may be repeated.  Default: 1, 100, 4000.",
            rich_help_panel=_LOAD_PANEL,
            show_default=False,
        ),
    ] = None,
    publishers: Annotated[
        list[int] | None,
        typer.Option(
            "--publishers",
            metavar="N",
            min=1,
            max=limits.BENCH_PUBLISHERS_MAX,
            help="Connections that publish; may be repeated.  Default: 1, 4, 16.",
            rich_help_panel=_LOAD_PANEL,
            show_default=False,
        ),
    ] = None,
    messages: Annotated[
        int | None,
        typer.Option(
            "--messages",
            metavar="N",
            min=1,
            max=limits.BENCH_MESSAGES_MAX,
            help="Messages of one round.  Default: 100,000.",
            rich_help_panel=_LOAD_PANEL,
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        str | None,
        typer.Option(
            "--seconds",
            metavar="DURATION",
            help="A round sends no further message after that.  Default: 10s.",
            rich_help_panel=_LOAD_PANEL,
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            metavar="",
            help="Every combination of sizes, windows and publishers, not one thing at a time.",
            rich_help_panel=_LOAD_PANEL,
        ),
    ] = False,
    reach: Annotated[
        bool,
        typer.Option(
            "--reach", metavar="", help="Measure what Penstock promises, beside JetStream, and say what it got."
        ),
    ] = False,
    short: Annotated[
        bool,
        typer.Option(
            "--short", metavar="", help="A few minutes: smaller rounds of one size.", rich_help_panel=_RUN_PANEL
        ),
    ] = False,
    kafka_address: KafkaAddress = None,
    liftbridge_address: LiftbridgeAddress = None,
    liftbridge_nats: LiftbridgeNats = None,
    only: Only = None,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """How many acked messages a second, and how many a consumer takes.

    Publishes messages of random content until all are acked, reads them back, and lets consumers read. Penstock is
    measured with fsync before ack (its default), with durability os and in memory; JetStream at its defaults, with
    sync_interval always, with persist_mode async and in memory; beside them what acks at once and stores nothing. Kafka
    and Liftbridge are not started for you: say where they listen.

    Without lists of your own, sizes, windows and publishers vary one at a time around 256 bytes, a window of 4,000 and
    one publisher. Lists that you give are combined.
    """
    from penstock.bench import reach as goals
    from penstock.bench import throughput as measured
    from penstock.bench.machine import machine
    from penstock.bench.place import place
    from penstock.bench.report import Report, now, write_json
    from penstock.cli.interrupts import Interrupts

    if reach and (size or window or publishers or every):
        raise typer.BadParameter("--reach has loads of its own: leave out --size, --window, --publishers and --all")
    wish = measured.Wish(
        against=tuple(against or ()),
        only=tuple(only or ()),
        addresses=bench_peers.addresses(kafka_address, liftbridge_address, liftbridge_nats),
        axes=measured.Axes(_sizes(size), tuple(window or ()), tuple(publishers or ())),
        messages=messages,
        seconds_max=None if seconds is None else _seconds(seconds),
        rounds=rounds,
        every=every,
        short=short,
        reach=reach,
    )
    plan = measured.planned(wish)
    Interrupts()
    console = output.console()
    started, started_s = now(), time.monotonic()
    with place(folder, bytes_needed=plan.bytes_needed) as inside, bench_output.steps(plan.measurements) as step:
        facts = machine(inside)
        bench_output.show_machine(console, facts)

        def said(one: Measurement) -> None:
            step(one.system)

        def done(one: Comparison) -> None:
            bench_output.show_comparison(console, one)

        comparisons = measured.run(plan, inside, said, done)
    report = Report(
        kind="throughput",
        command=bench_output.command_line(),
        started=started,
        seconds=round(time.monotonic() - started_s, 1),
        machine=facts,
        comparisons=comparisons,
        reach=goals.reached(comparisons) if reach else [],
    )
    bench_output.show_end(console, report)
    if json_file is not None:
        write_json(report, json_file)
