"""Commands of `penstock bench` that measure one thing, and the limits of the machine."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.base import limits
from penstock.base.config import Compression
from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Debug, examples
from penstock_bench.cli.options import Dir, HtmlFile, JsonFile, Rounds
from penstock_bench.cli.run import BenchPlace, run_experiment, running

PARTITIONS_EXAMPLES = examples(
    "penstock bench partitions",
    "penstock bench partitions --partitions 8 --rounds 3",
)
TLS_EXAMPLES = examples(
    "penstock bench tls",
    "penstock bench tls --messages 50000 --rounds 3",
)
DECODE_EXAMPLES = examples(
    "penstock bench decode",
    "penstock bench decode --messages 100000 --rounds 3",
)
READ_REPLICAS_EXAMPLES = examples(
    "penstock bench read-replicas",
    "penstock bench read-replicas --consumers 200 --rounds 3",
)
SCALE_EXAMPLES = examples(
    "# about 7 GB of disk meanwhile",
    "penstock bench scale",
    "penstock bench scale --streams 1000 --messages 10000000 --json scale.json",
)
MANY_EXAMPLES = examples(
    "# about five minutes, and 2 GB of disk meanwhile",
    "penstock bench many",
    "penstock bench many --streams 1000 --seconds 5 --json many.json",
)
SUBJECTS_EXAMPLES = examples(
    "# some 13 GB of disk meanwhile",
    "penstock bench subjects",
    "penstock bench subjects --messages 1000000 --subjects 10000",
)
KEY_VALUES_EXAMPLES = examples(
    "penstock bench key-values",
    "penstock bench key-values --keys 1000000 --replicas 3 --json key-values.json",
)
API_READERS_EXAMPLES = examples(
    "penstock bench api-readers",
    "penstock bench api-readers --messages 1000000 --json readers.json",
)
CONSUMERS_EXAMPLES = examples(
    "penstock bench consumers",
    "penstock bench consumers --replicas 3 --consumers 10000 --json r3.json",
)
COMPACTION_EXAMPLES = examples(
    "# about 9 GB of disk meanwhile",
    "penstock bench compaction",
    "penstock bench compaction --messages 1000000 --keys 1000",
)
COMPRESSION_EXAMPLES = examples(
    "# about 2 GB of disk meanwhile",
    "penstock bench compression",
    "penstock bench compression --messages 500000 --rounds 3",
)
SPARK_EXAMPLES = examples(
    "# some 15 GB of disk meanwhile",
    "penstock bench spark",
    "penstock bench spark --messages 500000 --rounds 1",
)
LIMITS_EXAMPLES = examples("penstock bench limits", "penstock bench limits --rounds 9 --dir /data --json limits.json")


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
    from penstock_bench.experiments.partitions import experiment

    plan = experiment(count, messages, rounds)
    run_experiment("partitions", plan, folder, json_file)


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
    from penstock_bench.experiments.tls import experiment

    plan = experiment(messages, rounds=rounds)
    run_experiment("tls", plan, folder, json_file)


@clearly
def decode(
    messages: Annotated[
        int, typer.Option("--messages", metavar="N", min=1_000, max=10_000_000, help="Messages of each stream.")
    ] = 1_000_000,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure reading a stream into typed columns, beside decoding its messages one by one, and JSON beside Polars.

    Streams of Frugal's messages and of JSON, each with its schema, with the same flat structs. Needs the extras
    `frugal` and `polars`.
    """
    from penstock_bench.experiments.decoding import experiment

    plan = experiment(messages, rounds)
    run_experiment("decode", plan, folder, json_file)


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
    from penstock_bench.experiments.read_replicas import experiment

    plan = experiment(consumers, rounds=rounds)
    run_experiment("read-replicas", plan, folder, json_file, less="give --dir a larger disk")


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
    from penstock_bench.experiments.scale import ScalePlan

    plan = ScalePlan(streams, messages, min(messages, ScalePlan().short_messages), seconds)

    run_experiment("scale", plan, folder, json_file)


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
    from penstock_bench.experiments.many import ManyStreamsPlan

    plan = ManyStreamsPlan(streams, seconds)
    run_experiment("many", plan, folder, json_file, less="give fewer --streams")


@clearly
def subjects(
    messages: Annotated[
        int,
        typer.Option(
            "--messages", metavar="N", min=1_000, max=limits.BENCH_LONG_MESSAGES_MAX, help="Messages of the stream."
        ),
    ] = 10_000_000,
    count: Annotated[
        int,
        typer.Option("--subjects", metavar="N", min=1, max=limits.BENCH_LONG_MESSAGES_MAX, help="Number of subjects."),
    ] = 1_000_000,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure a stream with many subjects, beside the same in JetStream.

    Publishes messages of 256 bytes to random subjects. Prints the memory that each server has grown by, how long it
    takes to start after kill -9, how long a look-up of the last message of a subject takes, and the rate of messages
    that expect a new subject, and of those to a stream that keeps the last message of each subject.
    """
    from penstock_bench.experiments.subjects import SubjectsPlan

    further = min(messages, SubjectsPlan().further)
    run_experiment("subjects", SubjectsPlan(messages, count, further), folder, json_file, less="give fewer --messages")


@clearly
def key_values(
    keys: Annotated[
        int,
        typer.Option("--keys", metavar="N", min=100, max=limits.BENCH_LONG_MESSAGES_MAX, help="Number of keys."),
    ] = 100_000,
    replicas: Annotated[
        int, typer.Option("--replicas", metavar="1|3", min=1, max=3, help="Replicas of the bucket: 1 or 3.")
    ] = 1,
    operations: Annotated[
        int,
        typer.Option(
            "--operations", metavar="N", min=100, max=10_000_000, help="Gets and puts in a round, many in flight."
        ),
    ] = 20_000,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure a key-value bucket of NATS, beside the same in JetStream.

    Puts and gets values of 200 bytes through JetStream's API, one by one and many in flight, and takes the first values
    of a watch of all keys. Prints rates, latencies, and the CPU time of all servers for each.
    """
    if replicas not in (1, 3):
        raise typer.BadParameter("give 1 or 3", param_hint="--replicas")
    from penstock_bench.experiments.key_values import experiment

    plan = experiment(keys, replicas, operations, rounds)
    run_experiment("key-values", plan, folder, json_file, less="give fewer --keys")


@clearly
def api_readers(
    messages: Annotated[
        int,
        typer.Option("--messages", metavar="N", min=1_000, max=10_000_000, help="Messages of the log that is read."),
    ] = 300_000,
    readers: Annotated[
        int, typer.Option("--readers", metavar="N", min=1, max=10_000, help="Consumers that follow a stream at once.")
    ] = 1_000,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="S", min=1, max=600, help="Seconds of publishing to them, and without."),
    ] = 5.0,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure consumers without acks of JetStream's API, beside the same in JetStream.

    Reads a log with ordered pull and push consumers, and publishes to many consumers that follow a stream. Prints
    rates, the ack latency beside them, their memory, and the CPU time of all servers.
    """
    from penstock_bench.experiments.api_readers import experiment

    plan = experiment(messages, readers, seconds, rounds)
    run_experiment("api-readers", plan, folder, json_file, less="give fewer --messages")


@clearly
def consumers(
    messages: Annotated[
        int,
        typer.Option("--messages", metavar="N", min=1_000, max=10_000_000, help="Messages of the log that is pulled."),
    ] = 200_000,
    count: Annotated[
        int,
        typer.Option("--consumers", metavar="N", min=1, max=100_000, help="Durable consumers that wait for messages."),
    ] = 1_000,
    replicas: Annotated[
        int, typer.Option("--replicas", metavar="1|3", min=1, max=3, help="Replicas of the streams: 1 or 3.")
    ] = 1,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="S",
            min=1,
            max=600,
            help="Seconds of waiting, of publishing alone, and to all.",
        ),
    ] = 5.0,
    rounds: Rounds = None,
    json_file: JsonFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure durable consumers with explicit acks of JetStream's API, beside the same in JetStream.

    Pulls a log and acks each message, and makes many consumers that wait. Prints rates, CPU time and memory of all
    servers, how long a message takes to all consumers, what that costs another publisher, and, with one replica, how
    long a consumer is without messages after kill -9.
    """
    if replicas not in (1, 3):
        raise typer.BadParameter("give 1 or 3", param_hint="--replicas")
    from penstock_bench.experiments.consumers import experiment

    plan = experiment(messages, count, replicas, seconds, rounds)
    run_experiment("consumers", plan, folder, json_file, less="give fewer --messages")


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
    from penstock_bench.experiments.compaction import experiment

    plan = experiment(messages, keys, rounds, codec)
    run_experiment("compaction", plan, folder, json_file)


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
    from penstock_bench.experiments.compression import experiment

    plan = experiment(messages, rounds)
    run_experiment("compression", plan, folder, json_file)


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
    from penstock.spark.runtime.versions import check_versions

    check_versions()
    from penstock_bench.experiments.spark import experiment

    plan = experiment(messages, rounds)
    run_experiment("spark", plan, folder, json_file)


@clearly
def limits_of_the_machine(
    rounds: Rounds = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    folder: Dir = None,
    debug: Debug = False,
) -> None:
    """Measure the limits of this machine: NATS round trips, raw NATS, sendfile, the page cache, fdatasync.

    No product can exceed these in the same run; a result near them is good.
    """
    from penstock_bench.runs import machine_limits

    wanted = rounds or machine_limits.ROUNDS
    place, total = BenchPlace(folder, limits.GIB), machine_limits.count(wanted)
    with running("limits", place, total=total, json_file=json_file, html_file=html_file) as run:
        run.found["limits"] = machine_limits.measured(run.folder, rounds=wanted, said=run.step)
