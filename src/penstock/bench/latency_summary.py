"""What the rounds of a latency run say together: percentiles, and how many times as long one system takes as another.

Rules: percentiles are of all samples of the rounds that count, put together; each needs enough samples beyond it. A
ratio is taken within a round, between neighbours in time: the median of the rounds is told, with the least and the
greatest. Where single rounds have too few samples for a percentile, the ratio is of all samples together, without a
spread, and is told as that. Void rounds are counted, and nothing else of them is used: a ratio whose systems do not
both count in a round says so, because what voids a round may be what makes a system slow.

Every latency contains the sender's own delay, which grows with the load of the machine, so with what is measured: it
may draw a ratio to either side. Where it comes to more than SENDER_SHARE_MAX of a percentile, that is marked, and no
goal is judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.bench.histogram import PERCENTILES, Latencies
from penstock.bench.latency import ACK_WAIT_S, LATE, PATHS, LatencyLoad, LatencyMeasurement
from penstock.bench.rounds import Measurement, Ratio, ratio

SENDER_SHARE_MAX = 1 / 3


class PathSummary(msgspec.Struct, frozen=True):
    """One path of one system, in microseconds. `histogram` holds all samples, as `Latencies.encode` gives them."""

    samples: int
    percentiles_us: dict[str, float]
    mean_us: float
    max_us: float
    histogram: str

    @property
    def latencies(self) -> Latencies:
        """The samples again."""
        return Latencies.decode(self.histogram)


class LatencySummary(msgspec.Struct, frozen=True, kw_only=True):
    """One system in one comparison."""

    title: str
    rounds: int  # that count
    void: int
    void_reason: str
    held: int  # messages that waited in the sender for the connection
    missing: dict[str, int] = {}  # samples by path that never came, and count as the time that was waited
    paths: dict[str, PathSummary]


class LatencyRatio(msgspec.Struct, frozen=True):
    """Between two systems at one percentile."""

    pooled: float
    rounds: Ratio | None  # None: a single round has too few samples for this percentile

    @property
    def told(self) -> Ratio:
        """Of the single rounds if these say it; else of all of them as one."""
        return self.rounds or Ratio(self.pooled, self.pooled, self.pooled, 1, pooled=True)


class LatencyComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One size at one rate, interleaved. `ratios` go by `system / other`, then by path, then by percentile.

    `void_rounds`: by `system / other`, the rounds in which one of the two does not count; only pairs that have some.
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
    """The comparison that these measurements make."""
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
    """What stands beside a ratio when so many rounds lack one of its two systems."""
    return f"{rounds} {'round' if rounds == 1 else 'rounds'} VOID for one of them"


def sender_share(summary: LatencySummary, path: str, percentile: str) -> float:
    """How much of a percentile the sender's own delay at the same one is; 0.0 where one of the two is not said."""
    late, whole = (
        summary.paths[each].percentiles_us.get(percentile, 0.0) if each in summary.paths else 0.0
        for each in (LATE, path)
    )
    return late / whole if whole > 0 else 0.0


def is_senders(summary: LatencySummary, path: str, percentile: str) -> bool:
    """Whether a percentile says too much of the sender to be a figure of the system."""
    return path != LATE and sender_share(summary, path, percentile) > SENDER_SHARE_MAX


def missing_text(summary: LatencySummary) -> str:
    """`1 ack …`: what never came; empty if all came."""
    told = ", ".join(f"{PATHS[path]}: {count:,}" for path, count in summary.missing.items())
    return f"never came, and counts as the time waited ({ACK_WAIT_S:g} s and more): {told}" if told else ""


def pooled(measurements: Sequence[LatencyMeasurement], system: str, path: str) -> Latencies:
    """All samples of one system's rounds that count."""
    together = Latencies()
    for one in measurements:
        if one.system == system and one.void is None and path in one.histograms:
            together.add(Latencies.decode(one.histograms[path]))
    return together


def _void_rounds(measurements: Sequence[LatencyMeasurement], one: str, other: str) -> int:
    """In how many rounds not both of them count."""
    of_pair = [each for each in measurements if each.system in (one, other)]
    counts = [{each.round_number for each in of_pair if each.system == name and not each.void} for name in (one, other)]
    return len({each.round_number for each in of_pair} - (counts[0] & counts[1]))


def _as_latency(one: Measurement) -> LatencyMeasurement:
    """A round that failed altogether comes as a plain measurement."""
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
    """What counts, with what it found on this path."""
    valid = [single for single in measurements if single.void is None and path in single.histograms]
    return [(single, Latencies.decode(single.histograms[path])) for single in valid]


def _round_ratio(rounds: Sequence[_Round], one: str, other: str, percentile: str) -> Ratio | None:
    """Round by round; None where a single round says too little."""
    values = []
    for single, latencies in rounds:
        value = latencies.percentile_us(percentile)
        if value is not None:
            values.append(Measurement(system=single.system, round_number=single.round_number, value=value))
    return ratio(values, one, other)
