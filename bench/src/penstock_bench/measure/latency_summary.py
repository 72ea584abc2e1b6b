"""The summary of all rounds of a latency run: percentiles, and latency ratios of two systems.

Rules: Percentiles are computed from all samples of the valid rounds together; each needs enough samples beyond it. A
ratio is taken within a round, between neighbours in time; the median, minimum and maximum of the rounds are reported.
If single rounds have too few samples for a percentile, the ratio is that of all samples pooled, without a spread, and
is marked. Void rounds are counted and not used otherwise: beside a ratio stands the number of rounds in which one of
its systems is void, because a slow system may fail its slowest rounds.

Every latency contains the sender's own delay, which grows with the load of the machine, and so with the measured
system: the delay may shift a ratio to either side. A percentile is marked if the delay's same percentile exceeds
SENDER_SHARE_MAX of it, and no goal is judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock_bench.measure.histogram import PERCENTILES, Latencies
from penstock_bench.measure.latency import ACK_WAIT_S, LATE, PATHS, LatencyLoad, LatencyMeasurement
from penstock_bench.measure.rounds import Measurement, Ratio, ratio

SENDER_SHARE_MAX = 1 / 3


class PathSummary(msgspec.Struct, frozen=True):
    """One path of one system, in microseconds. `histogram` holds all samples (`Latencies.encode`)."""

    samples: int
    percentiles_us: dict[str, float]
    mean_us: float
    max_us: float
    histogram: str

    @property
    def latencies(self) -> Latencies:
        """The decoded histogram."""
        return Latencies.decode(self.histogram)


class LatencySummary(msgspec.Struct, frozen=True, kw_only=True):
    """One system in one comparison."""

    title: str
    rounds: int  # valid ones
    void: int
    void_reason: str
    held: int  # messages delayed in the sender by a busy connection
    missing: dict[str, int] = {}  # by path; each counts with the time waited for it
    paths: dict[str, PathSummary]


class LatencyRatio(msgspec.Struct, frozen=True):
    """The ratio of two systems at one percentile."""

    pooled: float
    rounds: Ratio | None  # None: single rounds have too few samples for this percentile

    @property
    def ratio(self) -> Ratio:
        """The ratio to report: by rounds if known, else of all samples pooled."""
        return self.rounds or Ratio(self.pooled, self.pooled, self.pooled, 1, pooled=True)


class LatencyComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One size at one rate, interleaved. `ratios` are keyed by `system / other`, then by path, then by percentile.

    `void_rounds` counts by `system / other` the rounds in which one of the two is void; pairs without any are omitted.
    """

    title: str
    load: LatencyLoad
    systems: dict[str, LatencySummary]
    ratios: dict[str, dict[str, dict[str, LatencyRatio]]]
    void_rounds: dict[str, int] = {}
    measurements: list[LatencyMeasurement]


def compared(
    title: str,
    load: LatencyLoad,
    titles: Mapping[str, str],
    measurements: Iterable[Measurement],
    pairs: Iterable[tuple[str, str]],
) -> LatencyComparison:
    """Make a comparison of these measurements."""
    kept = [_as_latency(one) for one in measurements]
    pairs = list(pairs)
    void = {f"{one} / {other}": _void_rounds(kept, one, other) for one, other in pairs}
    systems = {name: _summary(kept, name, text) for name, text in titles.items()}
    return LatencyComparison(
        title=title,
        load=load,
        systems=systems,
        ratios={f"{one} / {other}": _ratios(kept, systems, one, other) for one, other in pairs},
        void_rounds={pair: count for pair, count in void.items() if count},
        measurements=kept,
    )


def void_text(rounds: int) -> str:
    """Return the text beside a ratio with this number of void rounds."""
    return f"{rounds} {'round' if rounds == 1 else 'rounds'} VOID for one of them"


def sender_share(summary: LatencySummary, path: str, percentile: str) -> float:
    """Return the sender's delay as a share of the latency, both at `percentile`; 0.0 if a value is missing."""
    late, whole = (
        summary.paths[each].percentiles_us.get(percentile, 0.0) if each in summary.paths else 0.0
        for each in (LATE, path)
    )
    return late / whole if whole > 0 else 0.0


def is_senders(summary: LatencySummary, path: str, percentile: str) -> bool:
    """True if the sender's share of a percentile exceeds SENDER_SHARE_MAX."""
    return path != LATE and sender_share(summary, path, percentile) > SENDER_SHARE_MAX


def missing_text(summary: LatencySummary) -> str:
    """Return the numbers of missing messages by path as text; empty if none is missing."""
    told = ", ".join(f"{PATHS[path]}: {count:,}" for path, count in summary.missing.items())
    return f"never came, and counts as the time waited ({ACK_WAIT_S:g} s and more): {told}" if told else ""


def pooled(measurements: Sequence[LatencyMeasurement], system: str, path: str) -> Latencies:
    """Merge all samples of one system's valid rounds."""
    together = Latencies()
    for one in measurements:
        if one.system == system and one.void is None and path in one.histograms:
            together.add(Latencies.decode(one.histograms[path]))
    return together


def _void_rounds(measurements: Sequence[LatencyMeasurement], one: str, other: str) -> int:
    """Count the rounds in which one of the two is void."""
    of_pair = [each for each in measurements if each.system in (one, other)]
    counts = [{each.round_number for each in of_pair if each.system == name and not each.void} for name in (one, other)]
    return len({each.round_number for each in of_pair} - (counts[0] & counts[1]))


def _as_latency(one: Measurement) -> LatencyMeasurement:
    """Convert the plain measurement of a round that failed with an error."""
    if isinstance(one, LatencyMeasurement):
        return one
    assert one.void is not None
    return LatencyMeasurement(system=one.system, round_number=one.round_number, void=one.void)


def _summary(measurements: Sequence[LatencyMeasurement], system: str, title: str) -> LatencySummary:
    own = [one for one in measurements if one.system == system]
    void = [one.void for one in own if one.void is not None]
    together = {path: pooled(own, system, path) for path in PATHS}
    return LatencySummary(
        title=title,
        rounds=len(own) - len(void),
        void=len(void),
        void_reason=void[0] if void else "",
        held=sum(one.held for one in own if one.void is None),
        missing=_missing(own),
        paths={path: _path(found) for path, found in together.items() if found.count},
    )


def _missing(measurements: Sequence[LatencyMeasurement]) -> dict[str, int]:
    counts = {path: sum(one.missing.get(path, 0) for one in measurements) for path in PATHS}
    return {path: count for path, count in counts.items() if count}


def _path(found: Latencies) -> PathSummary:
    return PathSummary(found.count, found.percentiles_us(), found.mean_us, found.max_us, found.encode())


def _ratios(
    measurements: Sequence[LatencyMeasurement], systems: Mapping[str, LatencySummary], one: str, other: str
) -> dict[str, dict[str, LatencyRatio]]:
    found: dict[str, dict[str, LatencyRatio]] = {}
    for path in PATHS:
        if path not in systems[one].paths or path not in systems[other].paths:
            continue
        ours, theirs = (systems[system].paths[path].percentiles_us for system in (one, other))
        rounds = _rounds(measurements, path)
        found[path] = {
            percentile: LatencyRatio(
                ours[percentile] / theirs[percentile], _round_ratio(rounds, one, other, percentile)
            )
            for percentile in PERCENTILES
            if percentile in ours and percentile in theirs
        }
    return found


_Round = tuple[LatencyMeasurement, Latencies]


def _rounds(measurements: Sequence[LatencyMeasurement], path: str) -> list[_Round]:
    """Return the valid rounds with their decoded histograms of this path."""
    valid = [single for single in measurements if single.void is None and path in single.histograms]
    return [(single, Latencies.decode(single.histograms[path])) for single in valid]


def _round_ratio(rounds: Sequence[_Round], one: str, other: str, percentile: str) -> Ratio | None:
    """Return the ratio by rounds; None if single rounds have too few samples."""
    values = []
    for single, latencies in rounds:
        value = latencies.percentile_us(percentile)
        if value is not None:
            values.append(Measurement(system=single.system, round_number=single.round_number, value=value))
    return ratio(values, one, other)
