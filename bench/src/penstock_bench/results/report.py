"""The results of a run as data: the JSON form, from which tables and plots are made.

Rules: Every measurement is kept, void ones with their reason; derived values (medians, ratios) are stored beside them.
A rate above CEILING_SHARE of its generator's ceiling is marked, and so are its ratios: the product may be faster. Units
are in the names. Later versions can read a report.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from penstock_bench.load.generator import Load
from penstock_bench.machine.facts import Machine
from penstock_bench.measure.latency import ACK, CONSUMER, PATHS
from penstock_bench.measure.latency_summary import LatencyComparison
from penstock_bench.measure.rounds import Measurement, Ratio, counted, cpu_ratio, ratio

FORMAT = 1
CEILING_SHARE = 0.7  # of the generator's ceiling in the same run; above this share the generator may be the bottleneck
SHARED = (
    "Generator, NATS and brokers shared the machine: absolute rates hold for this machine only; compare the ratios "
    "within this run."
)

BUSY_LOAD_SHARE = 0.5  # load average per core before a run; a higher one shows that other programs used the machine
ROUND_SECONDS_MIN = 0.2  # of publishing: shorter rounds are dominated by noise
_STORE_NOTHING = frozenset({"null", "echo", "echo-raw", "kafka-null"})  # ceilings: fast, so their rounds are short
WIDE_SPREAD = 2.0  # highest by lowest round of a system; a run with a wider spread is not trusted
STOPPED = "The run was ended early: this report holds only what was measured until then."


class Summary(msgspec.Struct, frozen=True):
    """One system in one comparison. CPU is that of all its processes (generator and readers too), by role."""

    title: str
    median: float | None  # None: no valid round
    low: float | None
    high: float | None
    rounds: int  # valid ones
    void: int
    void_reason: str
    cpu_us_per_message: dict[str, float]
    bounded_by: str = ""  # ceiling variant, if this rate is near it


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of several systems, whose rounds alternate. Ratios are named `system / other`."""

    name: str
    title: str
    unit: str
    load: Load | None = None
    systems: dict[str, Summary]
    ratios: dict[str, Ratio]
    cpu_ratios: dict[str, Ratio] = {}  # CPU time per message, all processes together: less is better
    notes: dict[str, str] = {}  # by ratio: text that qualifies it
    measurements: list[Measurement]


class Limit(msgspec.Struct, frozen=True):
    """A limit of the machine, measured in the same run."""

    name: str
    title: str
    unit: str
    median: float
    low: float
    high: float
    rounds: int


class Reach(msgspec.Struct, frozen=True):
    """A goal and the measured ratio; more is better unless `at_most`."""

    what: str
    reach: float
    stretch: float | None
    got: Ratio | None
    at_most: bool = False
    why: str = ""  # reason for a missing measurement

    @property
    def is_reached(self) -> bool | None:
        """True if the goal was reached; None: not measured."""
        if self.got is None:
            return None
        return self.got.median <= self.reach if self.at_most else self.got.median >= self.reach


class Figure(msgspec.Struct, frozen=True):
    """A single number of Penstock's; less is better unless `at_least`. `reach` is its goal, None without one."""

    name: str
    what: str
    unit: str
    got: float
    reach: float | None = None
    stretch: float | None = None
    low: float | None = None  # lowest value behind the median `got`; None: measured once
    high: float | None = None
    at_least: bool = False

    @property
    def is_reached(self) -> bool | None:
        """True if the goal was reached; None: there is no goal."""
        if self.reach is None:
            return None
        return self.got >= self.reach if self.at_least else self.got <= self.reach


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    kind: str  # subcommand of `penstock bench`, such as reach or latency
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
    """The part of a report that every version can read."""

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
    """Make a comparison of these measurements, with the ratios of `pairs`.

    `notes` are keyed by ratio; those of missing ratios are dropped. `ceilings` maps systems to their ceiling variants.
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
    """Mark a summary whose rate is near its ceiling."""
    most = systems[ceiling].median if ceiling in systems else None
    if one.median is None or most is None or one.median <= CEILING_SHARE * most:
        return one
    return msgspec.structs.replace(one, bounded_by=ceiling)


def _note(known: str | None, pair: tuple[str, str], systems: Mapping[str, Summary]) -> str:
    """Append to the known note of a pair which of its systems the generator bounds."""
    bounded = [name for name in pair if name in systems and systems[name].bounded_by]
    verb = "is" if len(bounded) == 1 else "are"
    said = f"{', '.join(bounded)} {verb} bounded by the generator" if bounded else ""
    return "; ".join(part for part in (known, said) if part)


def bounded_text(one: Summary) -> str:
    """Return the text beside a rate that is near its ceiling; empty for others."""
    if not one.bounded_by:
        return ""
    return f"bounded by the generator: more than {CEILING_SHARE:.0%} of {one.bounded_by}"


def short_text(comparison: Comparison) -> str:
    """Return a warning that names the systems with too short rounds; empty if there are none."""
    if not comparison.name.startswith("publish"):
        return ""
    names = [name for name in comparison.systems if name not in _STORE_NOTHING]
    rounds = {name: [one.seconds for one in counted(comparison.measurements, name)] for name in names}
    took = {name: statistics.median(seconds) for name, seconds in rounds.items() if seconds}
    short = [name for name, seconds in took.items() if 0 < seconds < ROUND_SECONDS_MIN]
    if not short:
        return ""
    least = min(took[name] for name in short)
    return f"{', '.join(short)}: rounds of {1_000 * least:,.0f} ms are too short to compare: raise --messages"


def summary(measurements: Sequence[Measurement], system: str, title: str) -> Summary:
    """Summarise the rounds of one system."""
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
    """`times`: highest by lowest round of one system's rate, or of two systems' latency ratio."""

    times: float
    name: str
    where: str

    @property
    def products(self) -> set[str]:
        """The products of the rounds: `penstock` of `penstock-os`."""
        return {one.partition("-")[0] for one in self.name.split(" / ")}


def busy_text(report: Report) -> str:
    """Return a warning if the machine or one product's rounds make the run untrustworthy; empty if not."""
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
    """Return the spreads of every system's rate, and of the latency ratios at the 50th percentile."""
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
    """Return the current time in UTC, for `Report.started`."""
    return datetime.now(UTC)


def write_json(report: Report, file: Path) -> None:
    """Write the report as indented JSON."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def read_json(file: Path) -> Report:
    """Read a file of `write_json`. Raise ValueError with its name if it is not a report, or of a newer format."""
    data = file.read_bytes()
    try:
        if (found := msgspec.json.decode(data, type=_Format).format) > FORMAT:
            raise ValueError(
                f"{file} is of format {found}, and this Penstock reads up to {FORMAT}: show it with a newer one"
            )
        return msgspec.json.decode(data, type=Report)
    except msgspec.DecodeError as error:
        raise ValueError(f"{file} is no report of `penstock bench`, which --json writes ({error})") from None
