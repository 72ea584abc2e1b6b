"""`penstock bench …`: measure Penstock, and other products in the same run, on this machine."""

from __future__ import annotations

import typer

from penstock.cli.terminal.connection_options import among_brokers_of_its_own
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.options import examples
from penstock_bench.cli import experiments, goals, latency, report, throughput

app = typer.Typer(
    cls=Group,
    help="Measure Penstock on this machine, and other products in the same run.\n\n"
    "A run starts the systems that it measures, reachable from this machine only, writes to a folder of its own, and "
    "removes both when it ends, also by Ctrl-C. Systems take turns, and a round counts only if all acked messages can "
    "be read back, byte for byte. Generator, NATS and brokers share the machine, so compare ratios, not rates.",
    epilog=examples(
        "# about 15 minutes: Penstock's goals, beside JetStream",
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

for _name, _command, _examples in (
    ("reach", goals.reach, goals.REACH_EXAMPLES),
    ("throughput", throughput.throughput, throughput.EXAMPLES),
    ("latency", latency.latency, latency.EXAMPLES),
    ("replicated", goals.replicated, goals.REPLICATED_EXAMPLES),
    ("partitions", experiments.partitions, experiments.PARTITIONS_EXAMPLES),
    ("tls", experiments.tls, experiments.TLS_EXAMPLES),
    ("decode", experiments.decode, experiments.DECODE_EXAMPLES),
    ("read-replicas", experiments.read_replicas, experiments.READ_REPLICAS_EXAMPLES),
    ("scale", experiments.scale, experiments.SCALE_EXAMPLES),
    ("many", experiments.many, experiments.MANY_EXAMPLES),
    ("subjects", experiments.subjects, experiments.SUBJECTS_EXAMPLES),
    ("key-values", experiments.key_values, experiments.KEY_VALUES_EXAMPLES),
    ("api-readers", experiments.api_readers, experiments.API_READERS_EXAMPLES),
    ("consumers", experiments.consumers, experiments.CONSUMERS_EXAMPLES),
    ("compaction", experiments.compaction, experiments.COMPACTION_EXAMPLES),
    ("compression", experiments.compression, experiments.COMPRESSION_EXAMPLES),
    ("spark", experiments.spark, experiments.SPARK_EXAMPLES),
    ("limits", experiments.limits_of_the_machine, experiments.LIMITS_EXAMPLES),
    ("report", report.report, report.EXAMPLES),
):
    app.command(_name, cls=Command, epilog=_examples)(_command)
