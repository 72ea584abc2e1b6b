"""Texts and number formats of results: the same on a terminal and on a page.

Rules: Numbers have three significant digits, or all digits before the decimal point. A ratio has its spread beside it,
or the reason why it has none.
"""

from __future__ import annotations

from penstock_bench.measure.rounds import Ratio

CPU_COLUMNS = ("broker", "NATS", "client")
CPU_LEGEND = (
    "CPU: microseconds per message of the process that stores or answers it (broker), of nats-server (NATS), and of "
    "the generator or consumer (client). JetStream runs inside nats-server: it has no broker."
)
SENDERS = "*"
SENDERS_LEGEND = "*: more than a third is the sender's own delay, so it says little about the system"
POOLED = "°"
LATENCY_RATIOS = "ratios: median, least and greatest of the rounds; °: all rounds pooled, a single one is too short"
VERDICTS = {None: "", True: "reached", False: "missed"}
"""Texts by `is_reached`; None: there is no goal or no result."""
_CPU_COLUMN_OF = {"nats-server": "NATS", "generator": "client", "reader": "client"}  # all others: broker


def number(value: float) -> str:
    """Format a number: `0.65`, `67.4`, `7,016`."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def times(value: float) -> str:
    """Format a factor: `0.07 ×`, `1.32 ×`, `12.3 ×`, `340 ×`."""
    return f"{_factor(value)} ×"


def milliseconds(value: float) -> str:
    """Format milliseconds: `0.43`, `12.3`, `1,596`."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.01 else f"{value:.2g}"


def spread(low: float, high: float, rounds: int) -> str:
    """Format the spread of the values of so many rounds: `6,804 to 7,229`."""
    return f"{number(low)} to {number(high)}" if rounds > 1 else "1 round: no spread"


def ratio(found: Ratio, *, count_rounds: bool = True) -> str:
    """Format a ratio: `1.50 × (1.40 to 1.60, 5 rounds)`; the count may be left out."""
    if found.pooled:
        return f"{times(found.median)} (all rounds as one: no spread)"
    if found.rounds == 1:
        return f"{times(found.median)} (1 round: no spread)"
    counted = f", {rounds(found.rounds)}" if count_rounds else ""
    return f"{times(found.median)} ({_factor(found.low)} to {_factor(found.high)}{counted})"


def figure(value: float, low: float | None, high: float | None) -> str:
    """Format a figure: `0.48`, or `0.48 (0.46 to 0.52)` for a median with its spread."""
    return number(value) if low is None or high is None else f"{number(value)} ({number(low)} to {number(high)})"


def got(found: Ratio | None, why: str = "", *, count_rounds: bool = True) -> str:
    """Format the result of a goal: `not measured`, and why, without a ratio."""
    if found is None:
        return f"not measured: {why}" if why else "not measured"
    return ratio(found, count_rounds=count_rounds)


def rounds(count: int) -> str:
    """Format a count: `1 round`, `5 rounds`."""
    return _counted(count, "round")


def voids(name: str, void: int, valid: int, reason: str) -> str:
    """Describe the void rounds of a system, and why they are void."""
    return f"{name}: {void} of {rounds(void + valid)} {'does' if void == 1 else 'do'} not count: {reason}"


def cpu_columns(micros: dict[str, float]) -> list[str]:
    """Return microseconds per message as CPU_COLUMNS; empty for a column without processes."""
    sums: dict[str, float] = {}
    for process, one in micros.items():
        column = _CPU_COLUMN_OF.get(process, CPU_COLUMNS[0])
        sums[column] = sums.get(column, 0.0) + one
    return [f"{sums[column]:.2f}" if column in sums else "" for column in CPU_COLUMNS]


def goal(value: float | None, *, at_most: bool, unit: str = "") -> str:
    """Format a goal: `≥ 1.5 ×`, `≤ 3`; empty without one."""
    return "" if value is None else f"{'≤' if at_most else '≥'} {value:g}{unit and f' {unit}'}"


def minutes(seconds: float) -> str:
    """Format a duration roughly: `40 seconds`, `1 minute`, `8 minutes`."""
    if seconds < 60:
        return _counted(max(1, round(seconds)), "second")
    return _counted(round(seconds / 60), "minute")


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"
