"""What a run found out, as data: the JSON form, from which the tables and the plots are made.

Rules: every measurement is kept, void ones with their reason; what is derived from them (medians, ratios) stands beside
them, so that a reader need not compute. A rate above CEILING_SHARE of its generator's ceiling is marked, and so are its
ratios: the product may be faster. Units are in the names. A report can be read again, also by a later version.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from penstock.bench.generator import Load
from penstock.bench.latency import ACK, CONSUMER, PATHS
from penstock.bench.latency_summary import LatencyComparison
from penstock.bench.machine import Machine
from penstock.bench.rounds import Measurement, Ratio, counted, cpu_ratio, ratio

FORMAT = 1
CEILING_SHARE = 0.7  # of the generator's ceiling in the same run: what is faster may be bounded by the generator
SHARED = (
    "Generator, NATS and brokers shared the machine: rates of one product say how it fares there, ratios within this "
    "run are what can be compared."
)

BUSY_LOAD_SHARE = 0.5  # of the cores: a load average above it before a run says that others used the machine too
ROUND_SECONDS_MIN = 0.2  # of publishing: what a shorter round says is chance
_STORE_NOTHING = frozenset({"null", "echo", "echo-raw", "kafka-null"})  # ceilings: as short as they are fast
WIDE_SPREAD = 2.0  # times that the rounds of one system may lie apart before a run is not to be trusted
STOPPED = "The run ended before its time: what stands here was measured, and the rest was not."


class Summary(msgspec.Struct, frozen=True):
    """One system in one comparison. CPU is of all its processes (generator and readers too), by what they are."""

    title: str
    median: float | None  # None: no round counts
    low: float | None
    high: float | None
    rounds: int  # that count
    void: int
    void_reason: str
    cpu_us_per_message: dict[str, float]
    bounded_by: str = ""  # the generator's ceiling, if this rate is near it


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The same done by several systems, interleaved. Ratios are named `system / other`."""

    name: str
    title: str
    unit: str
    load: Load | None = None
    systems: dict[str, Summary]
    ratios: dict[str, Ratio]
    cpu_ratios: dict[str, Ratio] = {}  # of the CPU time of a message, all processes together: less is better
    notes: dict[str, str] = {}  # by ratio: what a reader must know beside it
    measurements: list[Measurement]


class Limit(msgspec.Struct, frozen=True):
    """What the machine itself can do, measured in the same run."""

    name: str
    title: str
    unit: str
    median: float
    low: float
    high: float
    rounds: int


class Reach(msgspec.Struct, frozen=True):
    """A goal, and what was got: ratios, of which more is better unless `at_most`."""

    what: str
    reach: float
    stretch: float | None
    got: Ratio | None
    at_most: bool = False
    why: str = ""  # it was not measured

    @property
    def is_reached(self) -> bool | None:
        """None: it could not be measured."""
        if self.got is None:
            return None
        return self.got.median <= self.reach if self.at_most else self.got.median >= self.reach


class Figure(msgspec.Struct, frozen=True):
    """A number of ours alone, of which less is better unless `at_least`, and the goal for it (None: there is none)."""

    name: str
    what: str
    unit: str
    got: float
    reach: float | None = None
    stretch: float | None = None
    low: float | None = None  # of the values whose median it is; None: it was measured once
    high: float | None = None
    at_least: bool = False

    @property
    def is_reached(self) -> bool | None:
        """None: nothing was promised."""
        if self.reach is None:
            return None
        return self.got >= self.reach if self.at_least else self.got <= self.reach


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    kind: str  # reach, throughput, latency, replicated, scale, many, limits
    command: str
    started: datetime
    seconds: float = 0.0
    machine: Machine
    notes: tuple[str, ...] = (SHARED,)
    comparisons: list[Comparison] = []
    latencies: list[LatencyComparison] = []
    limits: list[Limit] = []
    reach: list[Reach] = []
    figures: list[Figure] = []
    format: int = FORMAT


class _Format(msgspec.Struct, frozen=True):
    """All that is known of a report of any version."""

    format: int


def compared(
    *,
    name: str,
    title: str,
    titles: dict[str, str],
    measurements: Sequence[Measurement],
    pairs: Iterable[tuple[str, str]],
    unit: str = "messages/s",
    load: Load | None = None,
    notes: Mapping[str, str] = MappingProxyType({}),
    ceilings: Mapping[str, str] = MappingProxyType({}),
) -> Comparison:
    """The comparison that these measurements make, with the ratios of `pairs`.

    `notes` are by ratio; those to ratios that are there are kept. `ceilings` name each system's ceiling.
    """
    names = {f"{one} / {other}": (one, other) for one, other in pairs}
    ratios = {name: ratio(measurements, *pair) for name, pair in names.items()}
    cpu_ratios = {name: cpu_ratio(measurements, *pair) for name, pair in names.items()}
    systems = {system: summary(measurements, system, text) for system, text in titles.items()}
    systems = {system: _bounded(one, ceilings.get(system, ""), systems) for system, one in systems.items()}
    kept = [key for key, found in ratios.items() if found is not None]
    told = {key: _note(notes.get(key), names[key], systems) for key in kept}
    return Comparison(
        name=name,
        title=title,
        unit=unit,
        load=load,
        systems=systems,
        ratios={key: found for key, found in ratios.items() if found is not None},
        cpu_ratios={key: found for key, found in cpu_ratios.items() if found is not None},
        notes={key: note for key, note in told.items() if note},
        measurements=list(measurements),
    )


def _bounded(one: Summary, ceiling: str, systems: Mapping[str, Summary]) -> Summary:
    """Marked, if its rate is near that of its ceiling."""
    most = systems[ceiling].median if ceiling in systems else None
    if one.median is None or most is None or one.median <= CEILING_SHARE * most:
        return one
    return msgspec.structs.replace(one, bounded_by=ceiling)


def _note(known: str | None, pair: tuple[str, str], systems: Mapping[str, Summary]) -> str:
    """What is known of a pair, and which of the two is bounded."""
    bounded = [name for name in pair if name in systems and systems[name].bounded_by]
    verb = "is" if len(bounded) == 1 else "are"
    said = f"{', '.join(bounded)} {verb} bounded by the generator" if bounded else ""
    return "; ".join(part for part in (known, said) if part)


def bounded_text(one: Summary) -> str:
    """What stands beside a rate that is near its ceiling; empty beside others."""
    if not one.bounded_by:
        return ""
    return f"bounded by the generator: more than {CEILING_SHARE:.0%} of {one.bounded_by}"


def short_text(comparison: Comparison) -> str:
    """Whose rounds of publishing were too short to say much; empty if none were."""
    if not comparison.name.startswith("publish"):
        return ""
    names = [name for name in comparison.systems if name not in _STORE_NOTHING]
    rounds = {name: [one.seconds for one in counted(comparison.measurements, name)] for name in names}
    took = {name: statistics.median(seconds) for name, seconds in rounds.items() if seconds}
    short = [name for name, seconds in took.items() if 0 < seconds < ROUND_SECONDS_MIN]
    if not short:
        return ""
    least = min(took[name] for name in short)
    return f"{', '.join(short)}: rounds of {1_000 * least:,.0f} ms say little: give more --messages"


def summary(measurements: Sequence[Measurement], system: str, title: str) -> Summary:
    """The rounds of one system in a few numbers."""
    valid = counted(measurements, system)
    void = [one.void for one in measurements if one.system == system and one.void is not None]
    values = [one.value for one in valid]
    processes = dict.fromkeys(name for one in valid for name in one.cpu_seconds)
    cpu = {
        name: statistics.median(one.cpu_seconds.get(name, 0.0) * 1e6 / max(1, one.messages) for one in valid)
        for name in processes
    }
    return Summary(
        title=title,
        median=statistics.median(values) if values else None,
        low=min(values, default=None),
        high=max(values, default=None),
        rounds=len(valid),
        void=len(void),
        void_reason=void[0] if void else "",
        cpu_us_per_message=cpu,
    )


class _Spread(NamedTuple):
    """How far the rounds of one system, or of a ratio of two, lie apart."""

    times: float
    name: str
    where: str

    @property
    def products(self) -> set[str]:
        """`penstock` of penstock-os: whose rounds they are."""
        return {one.partition("-")[0] for one in self.name.split(" / ")}


def busy_text(report: Report) -> str:
    """Why the run is not to be trusted, because of the machine or of one product's rounds; empty if nothing says so."""
    facts = report.machine
    reasons = []
    if facts.load_average > BUSY_LOAD_SHARE * facts.cores:
        reasons.append(f"its load average was {facts.load_average:g} on {facts.cores} cores before the run")
    spreads = _spreads(report)
    if wide := [one for one in spreads if one.times > WIDE_SPREAD]:
        widest = max(wide)
        far = f"rounds of {widest.name} lie {widest.times:.1f} times apart ({widest.where})"
        concerned = set.intersection(*(one.products for one in wide))
        others = set[str]().union(*(one.products for one in spreads)) - concerned
        if not reasons and len(concerned) == 1 and others:
            return f"The {far}, and those of others do not: it is hardly the machine. Use more --rounds."
        reasons.append(far)
    return f"The machine was busy: {'; '.join(reasons)}. Use more --rounds, or try again." if reasons else ""


def _spreads(report: Report) -> list[_Spread]:
    """Of the rates of every system, and of the medians of latencies, of which ratios are kept."""
    rates = [
        _Spread(one.high / one.low, name, comparison.title)
        for comparison in report.comparisons
        for name, one in comparison.systems.items()
        if one.low and one.high and one.rounds > 1
    ]
    return rates + [
        _Spread(found.rounds.high / found.rounds.low, pair, f"their median {PATHS[path]}, {latencies.title}")
        for latencies in report.latencies
        for pair, by_path in latencies.ratios.items()
        for path in (ACK, CONSUMER)
        if (found := by_path.get(path, {}).get("50")) and found.rounds is not None and found.rounds.low
    ]


def now() -> datetime:
    """For `started`."""
    return datetime.now(UTC)


def write_json(report: Report, file: Path) -> None:
    """As a document that people can read too."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def read_json(file: Path) -> Report:
    """A report that `write_json` wrote; ValueError that names the file if it is none, or of another format."""
    data = file.read_bytes()
    try:
        if (found := msgspec.json.decode(data, type=_Format).format) > FORMAT:
            raise ValueError(
                f"{file} is of format {found}, and this Penstock reads up to {FORMAT}: show it with a newer one"
            )
        return msgspec.json.decode(data, type=Report)
    except msgspec.DecodeError as error:
        raise ValueError(f"{file} is no report of `penstock bench`, which --json writes ({error})") from None
