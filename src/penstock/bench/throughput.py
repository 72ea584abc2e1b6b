"""`penstock bench throughput`: how many acked messages a second, and how many a consumer takes.

Rules: loads vary one thing at a time around a base (256 bytes, window 4,000, one publisher), unless all combinations
are asked for. Everything that is compared is measured in the same rounds. Consumers read what one publisher wrote, so
that the order can be checked too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.errors import OperationalError, PenstockError
from penstock.bench import clusters, kafka, liftbridge, peers, readers, rounds, vital, worker
from penstock.bench.content import Content, difference
from penstock.bench.generator import Load
from penstock.bench.readers import Consumed, ReadTask
from penstock.bench.report import Comparison, compared
from penstock.bench.rounds import Measure, Measurement
from penstock.bench.systems import VARIANTS, JetStreamLog, Log, PenstockLog, System, Variant, variant

PENSTOCK = ("penstock", "penstock-os", "penstock-memory")
AGAINST = {"jetstream": ("jetstream", "jetstream-always", "jetstream-async", "jetstream-memory"), **peers.NAMES}
CEILINGS = ("echo", "null")
_PAIRS = (
    ("penstock", "jetstream"),
    ("penstock-os", "jetstream"),
    ("penstock", "jetstream-always"),
    ("penstock-os", "jetstream-async"),
    ("penstock-memory", "jetstream-async"),
    ("penstock-memory", "jetstream-memory"),
    ("penstock", "kafka"),
    ("penstock-os", "kafka"),
    ("penstock-os", "kafka-linger-0"),
    ("penstock", "kafka-fsync"),
    ("penstock", "kafka-fsync-linger-0"),
    ("penstock", "liftbridge"),
    ("penstock-os", "liftbridge"),
    ("penstock-os", "echo"),
    ("penstock-encrypted", "penstock"),
    ("penstock-os-encrypted", "penstock-os"),
    ("penstock-encrypted-batches", "penstock-batches"),
    ("penstock-encrypted-loaded", "penstock-loaded"),
    ("penstock-r3", "jetstream-r3"),
    ("penstock-r3", "jetstream-r3-away"),
    ("penstock-r3-fsync", "jetstream-r3-always"),
    ("penstock-batches", "nats-py"),
    ("penstock-blocking", "nats-py"),
    ("penstock-loaded", "nats-py"),
    ("penstock-messages", "nats-py"),
    ("penstock-batches", "confluent-kafka"),
    ("penstock-blocking", "confluent-kafka"),
    ("penstock-loaded", "confluent-kafka"),
    ("penstock-messages", "confluent-kafka"),
    ("penstock-batches", "grpc"),
    ("penstock-blocking", "grpc"),
    ("penstock-loaded", "grpc"),
    ("penstock-messages", "grpc"),
    ("penstock-batches", "sendfile"),
    ("penstock-blocking", "sendfile"),
    ("penstock-loaded", "sendfile"),
)

_IN_BATCHES = ("penstock-batches", "penstock-blocking", "penstock-loaded")
_ONE_CHECKSUM = "an Arrow batch takes one checksum over a column, the other one for each message"
NOTES = {
    **{f"{one} / {other}": _ONE_CHECKSUM for one in _IN_BATCHES for other in ("nats-py", "confluent-kafka", "grpc")},
    "penstock-os / jetstream-async": "acked after the write to the page cache, beside acked before it",
    "penstock-r3-fsync / jetstream-r3-always": "acked when all three have synced it, beside when two have",
    "penstock-memory / jetstream-async": "unlike: no file at all, beside a file that is written after the ack",
}
"""What a reader must know beside a ratio."""

_SHORT_MESSAGES = 20_000
_SHORT_SECONDS = 3.0
_READ_MESSAGES = 1_000_000
_SHORT_READ_MESSAGES = 400_000
_READ_BYTES = 256 * limits.MIB
# Messages a second, for the estimate of the time: of a machine with two cores and a disk of its own.
_RATE = 200_000
_RATE_ALONE = 5_000  # with a window of 1
_RATE_SYNCED = 1_500
_SYNC_EACH = ("jetstream-always", "kafka-fsync", "kafka-fsync-linger-0")
_RATE_READ = 1_500_000
_RATES_READ = {"nats-py": 150_000, "confluent-kafka": 500_000, "grpc": 50_000, "penstock-messages": 500_000}
_TURN_SECONDS = 0.7  # that each turn takes beside what is measured
_MESSAGE_BYTES = 100  # a row of a log beside its value

Said = Callable[[Measurement], None]
"""Is told of every measurement as it comes."""


class Axes(NamedTuple):
    """What loads vary in."""

    sizes: tuple[int, ...] = (256,)
    windows: tuple[int, ...] = (4_000,)
    publishers: tuple[int, ...] = (1,)


_LONG = Axes((256, 1_024, 5_120), (1, 100, 4_000), (1, 4, 16))
_SHORT = Axes(windows=(1, 4_000))


class Plan(msgspec.Struct, frozen=True):
    """What to measure."""

    variants: tuple[str, ...]
    loads: tuple[Load, ...]
    reads: tuple[Load, ...]
    rounds: int
    others: tuple[Variant, ...] = ()  # those of `variants` that are no row of `systems`: clusters, and other people's

    @property
    def measurements(self) -> int:
        """How many there will be, for a progress bar; warm-ups do not count."""
        reads = len(self.reads) * len(readers_of(self.variants))
        return self.rounds * (len(self.loads) * len(self.variants) + reads)

    @property
    def seconds(self) -> float:
        """About how long they take, warm-ups included."""
        publishing = sum(_publish_seconds(load, name) for load in self.loads for name in self.variants)
        reading = sum(_read_seconds(load, reader.name) for load in self.reads for reader in readers_of(self.variants))
        return (self.rounds + 1) * (publishing + reading)

    @property
    def bytes_needed(self) -> int:
        """Of disk, at most: two logs at a time, what stands beside the values, and room to spare."""
        return limits.GIB + 4 * max(load.messages * (load.size + _MESSAGE_BYTES) for load in self.loads + self.reads)


class Wish(msgspec.Struct, frozen=True):
    """What somebody asked for; empty and None: nothing said."""

    against: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    addresses: peers.Addresses = peers.Addresses()
    axes: Axes = Axes((), (), ())
    messages: int | None = None
    seconds_max: float | None = None
    rounds: int | None = None
    every: bool = False
    short: bool = False
    replicas: int = 1


def _publish_seconds(load: Load, name: str) -> float:
    """About how long one turn takes: to publish and to read back. Who syncs each message has no use of a window."""
    rate = _RATE_SYNCED if name in _SYNC_EACH else min(_RATE, load.window_in_effect * _RATE_ALONE)
    published = min(load.seconds_max, load.messages / rate)
    return _TURN_SECONDS + published + published * rate / _RATE_READ


def _read_seconds(load: Load, name: str) -> float:
    """The same of a consumer, with all its passes."""
    return _TURN_SECONDS + readers.PASSES * load.messages / _RATES_READ.get(name, _RATE_READ)


def planned(wish: Wish) -> Plan:
    """The plan that a wish makes. Lists that are given are combined; without any, one thing varies at a time.

    No window is larger than its round.
    ValueError where a product is asked for that is not started here, and its address is missing, or that has no rows
    with so many replicas.
    """
    base = Load(
        messages=wish.messages or (_SHORT_MESSAGES if wish.short else Load().messages),
        seconds_max=wish.seconds_max or (_SHORT_SECONDS if wish.short else Load().seconds_max),
    )
    rounds_count = wish.rounds or rounds.ROUNDS_MIN
    read = wish.messages or (_SHORT_READ_MESSAGES if wish.short else _READ_MESSAGES)
    axes = _SHORT if wish.short else _LONG
    if wish.every or any(wish.axes):
        loads = cross(_given_or(wish.axes, axes if wish.every else Axes()), base)
    else:
        loads = star(axes, base)
    loads = tuple(dict.fromkeys(msgspec.structs.replace(one, window=min(one.window, one.messages)) for one in loads))
    ours, theirs = systems_of(wish.replicas)
    if missing := next((product for product in wish.against if product not in theirs), ""):
        raise ValueError(f"{missing} is measured with one replica only")
    variants = (*ours, *(name for product in wish.against for name in theirs[product]), *CEILINGS)
    sizes = dict.fromkeys(load.size for load in loads)
    reads = tuple(read_load(msgspec.structs.replace(base, size=size), read) for size in sizes)
    names = wish.only or variants
    others = (*clusters.variants(names), *peers.variants(names, wish.addresses))
    return Plan(names, loads, reads, rounds_count, others)


def systems_of(replicas: int) -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Our variants with so many replicas, and those of each product."""
    return (PENSTOCK, AGAINST) if replicas == 1 else (clusters.PENSTOCK, clusters.AGAINST)


def read_load(base: Load, messages: int) -> Load:
    """A log for consumers: long enough for the fastest of them, bounded, and written in whatever time it takes."""
    messages = max(1, min(messages, _READ_BYTES // base.size))
    return msgspec.structs.replace(base, messages=messages, window=Load().window, seconds_max=limits.BENCH_SECONDS_MAX)


def _given_or(given: Axes, default: Axes) -> Axes:
    return Axes(*(one or other for one, other in zip(given, default, strict=True)))


def star(axes: Axes, base: Load) -> tuple[Load, ...]:
    """One load for each value of each axis, the others as in `base`."""
    loads = [msgspec.structs.replace(base, size=size) for size in axes.sizes]
    loads += [msgspec.structs.replace(base, window=window) for window in axes.windows]
    loads += [msgspec.structs.replace(base, publishers=count) for count in axes.publishers]
    return tuple(dict.fromkeys(loads))


def cross(axes: Axes, base: Load) -> tuple[Load, ...]:
    """Every combination."""
    return tuple(
        msgspec.structs.replace(base, size=size, window=window, publishers=count)
        for size, window, count in itertools.product(*axes)
    )


@contextmanager
def started(names: Sequence[str], folder: Path, others: Sequence[Variant] = ()) -> Iterator[dict[str, System]]:
    """These variants, of the table or of `others`, each running in a folder of its own."""
    with ExitStack() as running:
        yield {name: running.enter_context(variant(name, others).start(folder / name)) for name in names}


def publishing(
    systems: dict[str, System], load: Load, rounds_count: int, said: Said, others: Sequence[Variant] = ()
) -> Comparison:
    """Acked messages per second of all systems, which are of the table or of `others`."""
    measures = {name: rounds.publish_measure(name, system, load) for name, system in systems.items()}
    return compared(
        name=f"publish-{load.size}B-w{load.window}-p{load.publishers}",
        title=f"acked publish, {title_of(load)}",
        titles={name: variant(name, others).title for name in systems},
        measurements=_told(rounds.interleave(measures, rounds=rounds_count), said),
        pairs=pairs_of(list(systems)),
        load=load,
        notes=NOTES,
        ceilings=ceilings_of(list(systems), others),
    )


def ceilings_of(names: Sequence[str], others: Sequence[Variant] = ()) -> dict[str, str]:
    """By system, whose rate its generator cannot pass: `null`, or `echo` in a run without it; Kafka has its own."""
    of_nats = next((one for one in ("null", "echo") if one in names), None)
    found = {}
    for name in names:
        of_kafka = variant(name, others).product == "kafka" or name == kafka.CEILING
        ceiling = kafka.CEILING if of_kafka else of_nats
        if ceiling is not None and ceiling in names and ceiling != name:
            found[name] = ceiling
    return found


def _told(measurements: Iterator[Measurement], said: Said) -> list[Measurement]:
    taken = []
    for one in measurements:
        said(one)
        taken.append(one)
    return taken


def title_of(load: Load) -> str:
    """`256 B, window 4,000, 1 publisher`."""
    noun = "publisher" if load.publishers == 1 else "publishers"
    return f"{load.size:,} B, window {load.window_in_effect:,}, {load.publishers} {noun}"


def pairs_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """Whose ratios are told: like beside like; and each of ours beside what stands in no table here."""
    in_tables = {*VARIANTS, *clusters.VARIANTS, *peers.KNOWN, *(reader.name for reader in READERS)}
    unknown = [name for name in names if name not in in_tables]
    ours = [name for name in names if name.startswith("penstock")]
    known = [(one, other) for one, other in _PAIRS if one in names and other in names]
    return known + [(one, other) for one in ours for other in unknown]


# Readers


def _published(log: Log, load: Load) -> tuple[Content, str | None]:
    """Written as all is: through NATS, in the batches in which the broker took it."""
    published = log.publish(load)
    return published.sent, rounds.untrue(log, published, ordered=True)


def _loaded(log: Log, load: Load) -> tuple[Content, str | None]:
    """Appended by a bulk writer, in batches of many rows."""
    assert isinstance(log, PenstockLog)
    sent = log.load(load)
    found = log.read_back(ordered=True)
    return sent, difference(sent, found)


Write = Callable[[Log, Load], tuple[Content, str | None]]
"""Fills a log; what it holds then, and why that is not so."""


class Written(NamedTuple):
    """A log that readers read."""

    log: Log
    sent: Content
    void: str | None


class Reader(NamedTuple):
    """A row of the table in `readers`, with the variant whose log it reads, and who wrote it."""

    name: str
    title: str
    variant: str
    read: Callable[[Log, Content], Consumed]
    write: Write = _published


def _from_penstock(work: Callable[[ReadTask], Iterator[Consumed]]) -> Callable[[Log, Content], Consumed]:
    def read(log: Log, sent: Content) -> Consumed:
        assert isinstance(log, PenstockLog)
        address = log.client_address
        task = ReadTask(address, log.stream.name, log.subject, sent.messages, watched=dict(log.processes))
        return worker.run(work, task, timeout_s=_time_for(sent))

    return read


def _from_jetstream(log: Log, sent: Content) -> Consumed:
    assert isinstance(log, JetStreamLog)
    task = ReadTask(f"nats://{log.nats}", log.stream, log.subject, sent.messages, watched=dict(log.processes))
    return worker.run(readers.read_nats_py, task, timeout_s=_time_for(sent))


def _from_kafka(log: Log, sent: Content) -> Consumed:
    assert isinstance(log, kafka.KafkaLog)
    task = ReadTask(str(log.address), log.topic, "", sent.messages, watched=dict(log.processes))
    return worker.run(kafka.read, task, timeout_s=_time_for(sent))


def _from_liftbridge(log: Log, sent: Content) -> Consumed:
    assert isinstance(log, liftbridge.LiftbridgeLog)
    task = ReadTask(str(log.service), log.stream, log.subject, sent.messages, watched=dict(log.processes))
    return worker.run(liftbridge.read, task, timeout_s=_time_for(sent))


def _through_sendfile(log: Log, sent: Content) -> Consumed:
    assert isinstance(log, PenstockLog)
    files = log.files(".arrows")
    consumed = readers.through_sendfile(files, readers.PASSES)
    if (found := consumed.found.value_bytes) != (wanted := sum(file.stat().st_size for file in files)):
        raise OperationalError(f"{found:,} of {wanted:,} bytes came through sendfile")
    return msgspec.structs.replace(consumed, found=sent)  # it looks at no value: nothing to compare


def _time_for(sent: Content) -> float:
    return 4 * limits.BENCH_STALL_S + readers.PASSES * sent.messages / 10_000


READERS = (
    Reader("penstock-batches", "Penstock, Arrow batches", "penstock", _from_penstock(readers.read_batches)),
    Reader(
        "penstock-blocking",
        "Penstock, Arrow batches, blocking client",
        "penstock",
        _from_penstock(readers.read_blocking),
    ),
    Reader(
        "penstock-loaded",
        "Penstock, Arrow batches, loaded in bulk",
        "penstock",
        _from_penstock(readers.read_batches),
        _loaded,
    ),
    Reader(
        "penstock-encrypted-batches",
        "Penstock, encrypted, Arrow batches",
        "penstock-encrypted",
        _from_penstock(readers.read_batches),
    ),
    Reader(
        "penstock-encrypted-loaded",
        "Penstock, encrypted, loaded in bulk",
        "penstock-encrypted",
        _from_penstock(readers.read_batches),
        _loaded,
    ),
    Reader("penstock-messages", "Penstock, single messages", "penstock", _from_penstock(readers.read_messages)),
    Reader("nats-py", "JetStream, nats-py's ordered consumer", "jetstream", _from_jetstream),
    Reader("confluent-kafka", "Kafka, confluent-kafka's consumer", "kafka", _from_kafka),
    Reader("grpc", "Liftbridge, a gRPC subscription", "liftbridge", _from_liftbridge),
    Reader("sendfile", "sendfile of the same segments (limit)", "penstock", _through_sendfile),
)


def readers_of(variants: Sequence[str]) -> list[Reader]:
    """Those whose log is there."""
    return [reader for reader in READERS if reader.variant in variants]


def reading(systems: dict[str, System], load: Load, rounds_count: int, said: Said) -> Comparison:
    """Messages per second that consumers take, of logs that one publisher wrote."""
    used = readers_of(list(systems))
    with ExitStack() as logs:
        written: dict[tuple[str, Write], Written] = {}
        for reader in used:
            if (source := (reader.variant, reader.write)) not in written:
                written[source] = _written(reader, logs.enter_context(systems[reader.variant].log()), load)
        measures = {reader.name: _read_measure(reader, written[reader.variant, reader.write]) for reader in used}
        titles = {reader.name: _title(reader, written[reader.variant, reader.write]) for reader in used}
        return compared(
            name=f"read-{load.size}B",
            title=f"consume, {load.size:,} B, from the log's first message on",
            titles=titles,
            measurements=_told(rounds.interleave(measures, rounds=rounds_count), said),
            pairs=pairs_of([reader.name for reader in used]),
            load=load,
            notes=NOTES,
        )


def _written(reader: Reader, log: Log, load: Load) -> Written:
    """A log that a reader reads; one that cannot be written makes the reader's rounds void, and no others."""
    try:
        return Written(log, *reader.write(log, load))
    except (PenstockError, OSError) as error:
        vital.check(limits.BENCH_END_S)
        return Written(log, Content(0, 0, None, None), str(error) or type(error).__name__)


def _title(reader: Reader, written: Written) -> str:
    """The reader's, with the size of batches: small ones cost more."""
    batches = written.log.batches if isinstance(written.log, PenstockLog) and reader.name != "sendfile" else 0
    return f"{reader.title} ({written.sent.messages / batches:,.0f} a batch)" if batches else reader.title


def _read_measure(reader: Reader, written: Written) -> Measure:
    def measure(round_number: int) -> Measurement:
        if written.void is not None:
            raise OperationalError(f"the log was not written: {written.void}")
        consumed = reader.read(written.log, written.sent)
        return Measurement(
            system=reader.name,
            round_number=round_number,
            value=written.sent.messages / consumed.seconds,
            seconds=consumed.seconds,
            messages=written.sent.messages,
            cpu_seconds=consumed.cpu_seconds,
            void=difference(written.sent, consumed.found),
        )

    return measure


def run(plan: Plan, folder: Path, said: Said, done: Callable[[Comparison], None]) -> list[Comparison]:
    """The whole plan; `done` is told of every comparison."""
    found = []
    with started(plan.variants, folder, plan.others) as systems:
        for load in plan.loads:
            found.append(publishing(systems, load, plan.rounds, said, plan.others))
            done(found[-1])
        for load in plan.reads if readers_of(plan.variants) else ():
            found.append(reading(systems, load, plan.rounds, said))
            done(found[-1])
    return found
