"""`penstock bench throughput`: acked messages per second, and messages per second of a consumer.

Rules: Loads vary one axis at a time around a base (256 bytes, window 4,000, one publisher), unless values are given or
all combinations are requested. Systems that are compared are measured in the same rounds. Consumers read a log of one
publisher, so that the order can be verified, too.
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
from penstock_bench.load import readers
from penstock_bench.load.content import Content, difference
from penstock_bench.load.generator import Load
from penstock_bench.machine import vital
from penstock_bench.measure import rounds
from penstock_bench.measure.reader_table import READERS, Reader, Write, readers_of
from penstock_bench.measure.rounds import Measure, Measurement
from penstock_bench.results.report import Comparison, compared
from penstock_bench.systems import clusters, external, kafka
from penstock_bench.systems.system import VARIANTS, MeasuredLog, PenstockLog, System, Variant, variant

PENSTOCK = ("penstock", "penstock-os", "penstock-memory")
AGAINST = {"jetstream": ("jetstream", "jetstream-always", "jetstream-async", "jetstream-memory"), **external.NAMES}
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
"""Text that qualifies a ratio, by ratio."""

_SHORT_MESSAGES = 20_000
_SHORT_SECONDS = 3.0
_READ_MESSAGES = 1_000_000
_SHORT_READ_MESSAGES = 400_000
_READ_BYTES = 256 * limits.MIB
# Messages per second for the time estimate, on a machine with two cores and its own disk.
_RATE = 200_000
_RATE_ALONE = 5_000  # with a window of 1
_RATE_SYNCED = 1_500
_SYNC_EACH = ("jetstream-always", "kafka-fsync", "kafka-fsync-linger-0")
_RATE_READ = 1_500_000
_RATES_READ = {"nats-py": 150_000, "confluent-kafka": 500_000, "grpc": 50_000, "penstock-messages": 500_000}
_TURN_SECONDS = 2.1  # overhead of each turn: starting and stopping it, and verifying its log
_CLUSTER_TURN_SECONDS = 9.0  # of one with several replicas: an election comes first
_MESSAGE_BYTES = 100  # overhead of a stored row

Said = Callable[[Measurement], None]
"""Receives every measurement when it is done."""


class Axes(NamedTuple):
    """The values over which loads vary."""

    sizes: tuple[int, ...] = (256,)
    windows: tuple[int, ...] = (4_000,)
    publishers: tuple[int, ...] = (1,)


_LONG = Axes((256, 1_024, 5_120), (1, 100, 4_000), (1, 4, 16))
_SHORT = Axes(windows=(1, 4_000))


class ThroughputPlan(msgspec.Struct, frozen=True):
    """The variants, loads and rounds of a run."""

    variants: tuple[str, ...]
    loads: tuple[Load, ...]
    reads: tuple[Load, ...]
    rounds: int
    others: tuple[Variant, ...] = ()  # rows of `variants` that `VARIANTS` lacks: clusters and external products

    @property
    def measurements(self) -> int:
        """Number of measurements for a progress bar, without warm-ups."""
        reads = len(self.reads) * len(readers_of(self.variants))
        return self.rounds * (len(self.loads) * len(self.variants) + reads)

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds, warm-ups included."""
        publishing = sum(_publish_seconds(load, name) for load in self.loads for name in self.variants)
        reading = sum(_read_seconds(load, reader.name) for load in self.reads for reader in readers_of(self.variants))
        return (self.rounds + 1) * (publishing + reading)

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most: two logs at a time, row overhead, and a reserve."""
        return limits.GIB + 4 * max(load.messages * (load.size + _MESSAGE_BYTES) for load in self.loads + self.reads)


class Wish(msgspec.Struct, frozen=True):
    """The user's options; empty and None mean the default."""

    against: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    addresses: external.ProductAddresses = external.ProductAddresses()
    axes: Axes = Axes((), (), ())
    messages: int | None = None
    seconds_max: float | None = None
    rounds: int | None = None
    every: bool = False
    short: bool = False
    replicas: int = 1


def _publish_seconds(load: Load, name: str) -> float:
    """Estimate the seconds to publish and read back. A window does not help a system that syncs each message."""
    rate = _RATE_SYNCED if name in _SYNC_EACH else min(_RATE, load.window_in_effect * _RATE_ALONE)
    published = min(load.seconds_max, load.messages / rate)
    turn = _CLUSTER_TURN_SECONDS if "-r3" in name else _TURN_SECONDS
    return turn + published + published * rate / _RATE_READ


def _read_seconds(load: Load, name: str) -> float:
    """Estimate the seconds of one turn of a consumer, with all its passes."""
    return _TURN_SECONDS + readers.PASSES * load.messages / _RATES_READ.get(name, _RATE_READ)


def planned(wish: Wish) -> ThroughputPlan:
    """Return the plan for a wish. Loads combine the given lists, or the default ones if `every`; else one axis varies.

    No window exceeds the messages of its round. Raise ValueError if the address of an external product is missing, or
    if a product has no variants with `replicas` replicas.
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
    others = (*clusters.variants(names), *external.variants(names, wish.addresses))
    return ThroughputPlan(names, loads, reads, rounds_count, others)


def systems_of(replicas: int) -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Return the variants with `replicas` replicas: Penstock's, and each product's."""
    return (PENSTOCK, AGAINST) if replicas == 1 else (clusters.PENSTOCK, clusters.AGAINST)


def read_load(base: Load, messages: int) -> Load:
    """Return the load for a consumer's log: long enough for the fastest one, bounded in bytes, not in time."""
    messages = max(1, min(messages, _READ_BYTES // base.size))
    return msgspec.structs.replace(base, messages=messages, window=Load().window, seconds_max=limits.BENCH_SECONDS_MAX)


def _given_or(given: Axes, default: Axes) -> Axes:
    return Axes(*(one or other for one, other in zip(given, default, strict=True)))


def star(axes: Axes, base: Load) -> tuple[Load, ...]:
    """Return one load for each value of each axis; the other axes are as in `base`."""
    loads = [msgspec.structs.replace(base, size=size) for size in axes.sizes]
    loads += [msgspec.structs.replace(base, window=window) for window in axes.windows]
    loads += [msgspec.structs.replace(base, publishers=count) for count in axes.publishers]
    return tuple(dict.fromkeys(loads))


def cross(axes: Axes, base: Load) -> tuple[Load, ...]:
    """Return every combination of the axes."""
    return tuple(
        msgspec.structs.replace(base, size=size, window=window, publishers=count)
        for size, window, count in itertools.product(*axes)
    )


@contextmanager
def started(names: Sequence[str], folder: Path, others: Sequence[Variant] = ()) -> Iterator[dict[str, System]]:
    """Start these variants, from the table or from `others`, each in a folder of its own."""
    with ExitStack() as running:
        yield {name: running.enter_context(variant(name, others).start(folder / name)) for name in names}


def publishing(
    systems: dict[str, System], load: Load, rounds_count: int, said: Said, others: Sequence[Variant] = ()
) -> Comparison:
    """Measure acked messages per second of all systems; `others` are the variants that `VARIANTS` lacks."""
    measures = {name: rounds.publish_measure(name, system, load) for name, system in systems.items()}
    return compared(
        name=f"publish-{load.size}B-w{load.window}-p{load.publishers}",
        title=f"acked publish, {title_of(load)}",
        titles={name: variant(name, others).title for name in systems},
        measurements=rounds.interleave(measures, rounds=rounds_count, said=said),
        pairs=pairs_of(list(systems)),
        load=load,
        notes=NOTES,
        ceilings=ceilings_of(list(systems), others),
    )


def ceilings_of(names: Sequence[str], others: Sequence[Variant] = ()) -> dict[str, str]:
    """Return the ceiling variant of each system, whose rate the generator cannot exceed: `null`, `echo` or Kafka's."""
    of_nats = next((one for one in ("null", "echo") if one in names), None)
    found = {}
    for name in names:
        of_kafka = variant(name, others).product == "kafka" or name == kafka.CEILING
        ceiling = kafka.CEILING if of_kafka else of_nats
        if ceiling is not None and ceiling in names and ceiling != name:
            found[name] = ceiling
    return found


def title_of(load: Load) -> str:
    """Format a load: `256 B, window 4,000, 1 publisher`."""
    noun = "publisher" if load.publishers == 1 else "publishers"
    return f"{load.size:,} B, window {load.window_in_effect:,}, {load.publishers} {noun}"


def pairs_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs to compare: those in `_PAIRS`, and each of Penstock's with each name that no table has."""
    in_tables = {*VARIANTS, *clusters.VARIANTS, *external.KNOWN, *(reader.name for reader in READERS)}
    unknown = [name for name in names if name not in in_tables]
    ours = [name for name in names if name.startswith("penstock")]
    known = [(one, other) for one, other in _PAIRS if one in names and other in names]
    return known + [(one, other) for one in ours for other in unknown]


# Readers


class Written(NamedTuple):
    """A log for readers."""

    log: MeasuredLog
    sent: Content
    void: str | None


def reading(systems: dict[str, System], load: Load, rounds_count: int, said: Said) -> Comparison:
    """Measure messages per second of consumers, on logs that one publisher wrote."""
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
            measurements=rounds.interleave(measures, rounds=rounds_count, said=said),
            pairs=pairs_of([reader.name for reader in used]),
            load=load,
            notes=NOTES,
        )


def _written(reader: Reader, log: MeasuredLog, load: Load) -> Written:
    """Write the log of a reader. A failure voids the rounds of the readers of this log only."""
    try:
        return Written(log, *reader.write(log, load))
    except (PenstockError, OSError) as error:
        vital.check(limits.BENCH_END_S)
        return Written(log, Content(0, 0, None, None), str(error) or type(error).__name__)


def _title(reader: Reader, written: Written) -> str:
    """Return the reader's title with the mean batch size: small batches cost more."""
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


def run(plan: ThroughputPlan, folder: Path, said: Said, done: Callable[[Comparison], None]) -> list[Comparison]:
    """Run the whole plan; `done` receives every comparison."""
    found = []
    with started(plan.variants, folder, plan.others) as systems:
        for load in plan.loads:
            found.append(publishing(systems, load, plan.rounds, said, plan.others))
            done(found[-1])
        for load in plan.reads if readers_of(plan.variants) else ():
            found.append(reading(systems, load, plan.rounds, said))
            done(found[-1])
    return found
