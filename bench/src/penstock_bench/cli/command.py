"""`penstock bench …`: measure Penstock, and other products in the same run, on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base import limits
from penstock.base.config import Compression
from penstock.cli.terminal.connection_options import among_brokers_of_its_own
from penstock.cli.terminal.failure import clearly, say_note
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.options import Debug, examples
from penstock_bench.cli import latency as bench_latency
from penstock_bench.cli import many as bench_many
from penstock_bench.cli import partitions as bench_partitions
from penstock_bench.cli import peers as bench_peers
from penstock_bench.cli import reach as bench_reach
from penstock_bench.cli import read_replicas as bench_read_replicas
from penstock_bench.cli import replicated as bench_replicated
from penstock_bench.cli import tls as bench_tls
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
from penstock_bench.cli.peers import KafkaAddress, LiftbridgeAddress, LiftbridgeNats
from penstock_bench.cli.run import BenchPlace, running

if TYPE_CHECKING:
    from penstock_bench.throughput import ThroughputPlan, Wish

app = typer.Typer(
    cls=Group,
    help="Measure Penstock on this machine, and other products in the same run.\n\n"
    "A run starts the systems that it measures, reachable from this machine only, writes to a folder of its own, and "
    "removes both when it ends, also by Ctrl-C. Systems take turns, and a round counts only if all acked messages can "
    "be read back, byte for byte. Generator, NATS and brokers share the machine, so compare ratios, not rates.",
    epilog=examples(
        "# about 12 minutes: Penstock's goals, beside JetStream",
        "penstock bench reach --short",
        "penstock bench throughput --against jetstream --size 1KiB --rounds 9",
        "# latency, with plots",
        "penstock bench latency --against jetstream --html latency.html",
    ),
    callback=among_brokers_of_its_own,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


_THROUGHPUT_EXAMPLES = examples(
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


@clearly
def throughput(
    against: AgainstAny = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="Bytes of a message, of random content; may be repeated.  Default: 256, 1024, 5120.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = None,
    window: Annotated[
        list[int] | None,
        typer.Option(
            "--window",
            metavar="N",
            min=1,
            help="Unacked messages of all publishers together; may be repeated.  Default: 1, 100, 4000.",
            rich_help_panel=LOAD_PANEL,
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
            rich_help_panel=LOAD_PANEL,
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
            rich_help_panel=LOAD_PANEL,
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        str | None,
        typer.Option(
            "--seconds",
            metavar="DURATION",
            help="A round stops sending after this time.  Default: 10s.",
            rich_help_panel=LOAD_PANEL,
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Every combination of sizes, windows and publishers, not one thing at a time.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = False,
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
    from penstock_bench import limits as machine_limits
    from penstock_bench import throughput as measured

    wish = measured.Wish(
        against=tuple(against or ()),
        only=tuple(only or ()),
        addresses=bench_peers.addresses(kafka_address, liftbridge_address, liftbridge_nats),
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
    bench_peers.check_used(wish.addresses, plan.variants)
    check_windows(wish, plan)
    total = plan.measurements + machine_limits.count(plan.rounds)
    place = BenchPlace(folder, plan.bytes_needed, "give fewer --messages")
    with running("throughput", place, total=total, json_file=json_file, html_file=html_file) as run:
        run.will_take(plan.seconds + machine_limits.seconds(plan.rounds))
        measured.run(plan, run.folder, run.said, run.show)
        run.found["limits"] = machine_limits.measured(run.folder, rounds=plan.rounds, said=run.step)


def check_windows(wish: Wish, plan: ThroughputPlan) -> None:
    """Raise BadParameter if a window exceeds the messages of a round; note limits on default windows."""
    from penstock_bench.generator import Load

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


_SCALE_EXAMPLES = examples(
    "# about 7 GB of disk meanwhile",
    "penstock bench scale",
    "penstock bench scale --streams 1000 --messages 10000000 --json scale.json",
)


@clearly
def scale(
    streams: Annotated[
        int,
        typer.Option("--streams", metavar="N", min=2, max=limits.BENCH_STREAMS_MAX, help="Number of idle streams."),
    ] = 10_000,
    messages: Annotated[
        int,
        typer.Option(
            "--messages", metavar="N", min=1, max=limits.BENCH_LONG_MESSAGES_MAX, help="Messages of the long stream."
        ),
    ] = 100_000_000,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="S",
            min=0.1,
            max=limits.BENCH_IDLE_SECONDS_MAX,
            help="How long the idle broker is measured.",
        ),
    ] = 20.0,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure the cost of idle streams, and compare a long stream with a short one.

    Creates many streams (default: 10,000), then measures the CPU and the memory of a broker that serves them while
    idle, and how long it takes to start, after a stop and after kill -9. Then creates one long stream of 16-byte
    messages (default: 100,000,000), and compares its start and its look-ups with those of a stream of 1,000,000. This
    takes about 7 GB of disk, most of it for the long stream; it is freed at the end.
    """
    from penstock_bench import scale as measured

    plan = measured.ScalePlan(streams, messages, min(messages, measured.ScalePlan().short_messages), seconds)
    place = BenchPlace(folder, plan.bytes_needed, "give fewer --messages")
    with running("scale", place, total=measured.STEPS, json_file=json_file) as run:
        run.will_take(plan.seconds)
        run.found["figures"] = measured.run(plan, run.folder, run.step)


_COMPACTION_EXAMPLES = examples(
    "# about 9 GB of disk meanwhile",
    "penstock bench compaction",
    "penstock bench compaction --messages 1000000 --keys 1000",
)


@clearly
def compaction(
    messages: Annotated[
        int,
        typer.Option(
            "--messages", metavar="N", min=1_000, max=limits.BENCH_LONG_MESSAGES_MAX, help="Messages of the stream."
        ),
    ] = 10_000_000,
    keys: Annotated[
        int,
        typer.Option("--keys", metavar="N", min=1, max=limits.BENCH_LONG_MESSAGES_MAX, help="Number of keys."),
    ] = 1_000_000,
    codec: Annotated[
        Compression,
        typer.Option(
            "--compression", metavar="|".join(Compression), help="Compress the stream before and after the compaction."
        ),
    ] = Compression.NONE,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure key compaction of a long stream, beside a plain copy of its files.

    Creates a log of 256-byte messages, then compacts it and copies it, in turn. Prints how long each took, the memory
    that the compaction needed, and the size that remains on the disk.
    """
    from penstock_bench import compaction as measured

    plan = measured.CompactionPlan(messages, keys, rounds or measured.ROUNDS, codec)
    place = BenchPlace(folder, plan.bytes_needed, "give fewer --messages")
    with running("compaction", place, total=plan.steps, json_file=json_file) as run:
        run.will_take(plan.seconds)
        run.found["figures"] = measured.run(plan, run.folder, run.step)


_COMPRESSION_EXAMPLES = examples(
    "# about 2 GB of disk meanwhile",
    "penstock bench compression",
    "penstock bench compression --messages 500000 --rounds 3",
)


@clearly
def compression(
    messages: Annotated[
        int,
        typer.Option(
            "--messages", metavar="N", min=1_000, max=limits.BENCH_LONG_MESSAGES_MAX, help="Messages of the stream."
        ),
    ] = 2_000_000,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure how many bytes compression saves, and its cost for the cleaner and for readers.

    Creates a log of JSON messages in small batches, then cleans it without compression, with LZ4 and with Zstandard, in
    turn, and reads each result with a client. Prints the sizes, and the times relative to those without compression.
    """
    from penstock_bench import compression as measured

    plan = measured.CompressionPlan(messages, rounds or measured.ROUNDS)
    place = BenchPlace(folder, plan.bytes_needed, "give fewer --messages")
    with running("compression", place, total=plan.steps, json_file=json_file) as run:
        run.will_take(plan.seconds)
        run.found["figures"] = measured.run(plan, run.folder, run.step)


_SPARK_EXAMPLES = examples(
    "# some 15 GB of disk meanwhile",
    "penstock bench spark",
    "penstock bench spark --messages 500000 --rounds 1",
)


@clearly
def spark(
    messages: Annotated[
        int,
        typer.Option(
            "--messages", metavar="N", min=1_000, max=limits.BENCH_LONG_MESSAGES_MAX, help="Messages of the stream."
        ),
    ] = 5_000_000,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure reads and writes of a stream with Spark, beside Parquet files of the same rows.

    With Spark on two cores, reads all columns of a stream, reads its offsets only, runs a streaming query, and writes a
    stream; in turn with reads and copies of Parquet. Prints the CPU time of all processes together.
    """
    from penstock.spark.versions import check_versions

    check_versions()
    from penstock_bench import spark as measured

    plan = measured.SparkPlan(messages, rounds or measured.ROUNDS)
    place = BenchPlace(folder, plan.bytes_needed, "give fewer --messages")
    with running("spark", place, total=plan.steps, json_file=json_file) as run:
        run.will_take(plan.seconds)
        run.found["figures"] = measured.run(plan, run.folder, run.step)


for _name, _command, _examples in (
    ("reach", bench_reach.reach, bench_reach.EXAMPLES),
    ("throughput", throughput, _THROUGHPUT_EXAMPLES),
    ("latency", bench_latency.latency, bench_latency.LATENCY_EXAMPLES),
    ("replicated", bench_replicated.replicated, bench_replicated.EXAMPLES),
    ("partitions", bench_partitions.partitions, bench_partitions.EXAMPLES),
    ("tls", bench_tls.tls, bench_tls.EXAMPLES),
    ("read-replicas", bench_read_replicas.read_replicas, bench_read_replicas.EXAMPLES),
    ("scale", scale, _SCALE_EXAMPLES),
    ("many", bench_many.many, bench_many.EXAMPLES),
    ("compaction", compaction, _COMPACTION_EXAMPLES),
    ("compression", compression, _COMPRESSION_EXAMPLES),
    ("spark", spark, _SPARK_EXAMPLES),
    ("limits", bench_latency.limits_of_the_machine, bench_latency.LIMITS_EXAMPLES),
    ("report", bench_latency.report, bench_latency.REPORT_EXAMPLES),
):
    app.command(_name, cls=Command, epilog=_examples)(_command)
