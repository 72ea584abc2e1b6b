"""The plots of a report: latency by percentile, and rates with their spread.

Rules: A plot shows what was measured: a curve ends at the last percentile with enough samples, and the axis at the next
tick after it. All axes are logarithmic, because systems differ by factors; the percentile axis counts nines (90, 99,
99.9 are equally far apart). Every plot is readable at the width of a phone.

| plot              | horizontal                | vertical                                     |
|-------------------|---------------------------|----------------------------------------------|
| `percentile_plot` | percentile, 50 to 99.9999 | latency in milliseconds, one curve a system  |
| `spread_plot`     | value, logarithmic        | a line a system: its median and its rounds   |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock_bench.svg import Drawing
from penstock_bench.wording import milliseconds

_WIDTH = 520.0
_HEIGHT = 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 14.0, 12.0, 44.0
_MARGIN = 30.0  # beside an axis without names: the outermost tick texts are centred
_ROW = 44.0
_TICKS_MAX = 9
_CHARS_MAX = 64  # in a text line as wide as the drawing
_LEGEND_ROW = 20.0
_DECADES_MIN = math.log10(2)
_LAST_TICKS_FROM = 3  # an axis that ends before 99.9 would make a short run look like a long one
_NINES = (("90", 1.0), ("99", 2.0), ("99.9", 3.0), ("99.99", 4.0), ("99.999", 5.0), ("99.9999", 6.0))
_PERCENTILE_TICKS = (("50", _DECADES_MIN), *_NINES)
_LEAST_MS = 1e-6
_ROOM = 1.15  # factor by which an axis exceeds its lowest and highest value


class Curve(NamedTuple):
    """One system's latencies: points (decades of percentile, milliseconds), rising in both."""

    name: str
    series: int  # its colour, dashes and mark
    points: Sequence[tuple[float, float]]


class Spread(NamedTuple):
    """One system's figure: the values of its rounds, and their median."""

    name: str
    series: int
    median: float
    values: Sequence[float]


def percentile_plot(title: str, curves: Sequence[Curve]) -> str:
    """Draw latency over percentile."""
    shown = [curve for curve in curves if curve.points]
    legend = _LEGEND_ROW * len(shown)
    drawing = Drawing(_WIDTH, _HEIGHT + legend)
    if not shown:
        drawing.text(_WIDTH / 2, _HEIGHT / 2, "not enough samples for any percentile", anchor="middle")
        return drawing.render(title, "Not enough samples for any percentile.")
    values = [max(value, _LEAST_MS) for curve in shown for _, value in curve.points]
    low, high = min(values) / _ROOM, max(values) * _ROOM
    last = max(max(curve.points[-1][0] for curve in shown), _LAST_TICKS_FROM)
    ticks = [tick for tick in _PERCENTILE_TICKS if tick[1] < last + 1 - 1e-9]
    across = _scale(_DECADES_MIN, ticks[-1][1], _LEFT, _WIDTH - _RIGHT)
    up = _scale(math.log10(low), math.log10(high), _HEIGHT - _BOTTOM, _TOP)
    _percentile_axes(drawing, ticks, across, up, log_ticks(low, high))
    for row, curve in enumerate(shown):
        series = curve.series
        places = [(across(decades), up(math.log10(max(value, _LEAST_MS)))) for decades, value in curve.points]
        drawing.curve(places, series)
        drawing.mark(*places[-1], series, told=f"{curve.name}: {milliseconds(curve.points[-1][1])} ms")
        y = _HEIGHT + _LEGEND_ROW * row + 6
        drawing.curve([(_LEFT, y), (_LEFT + 36, y)], series)
        drawing.mark(_LEFT + 18, y, series)
        drawing.text(_LEFT + 46, y + 5, curve.name)
    return drawing.render(title, " ".join(_told(curve) for curve in shown))


def spread_plot(title: str, rows: Sequence[Spread], written: Callable[[float], str]) -> str:
    """Draw a filled mark for each median, a ring for each round, a line between them; `written` formats a value."""
    values = [value for row in rows for value in (*row.values, row.median) if value > 0]
    drawing = Drawing(_WIDTH, _ROW * max(len(rows), 1) + _BOTTOM)
    low, high = min(values, default=1.0) / _ROOM, max(values, default=1.0) * _ROOM
    axis = _scale(math.log10(low), math.log10(high), _MARGIN, _WIDTH - _MARGIN)
    floor = drawing.height - _BOTTOM + 8

    def across(value: float) -> float:
        return axis(math.log10(min(max(value, low), high)))

    for tick in log_ticks(low, high)[:_TICKS_MAX]:
        drawing.line((across(tick), 4), (across(tick), floor), "grid")
        drawing.text(across(tick), floor + 16, f"{tick:,.10g}", anchor="middle", style="tick")
    for place, row in enumerate(rows):
        top, middle = _ROW * place, _ROW * place + 30.0
        drawing.text(_MARGIN, top + 16, _fitting(row.name, f": {written(row.median)}"))
        found = (*row.values, row.median)
        drawing.curve([(across(min(found)), middle), (across(max(found)), middle)], row.series)
        for number, value in enumerate(row.values, 1):
            told = f"round {number}: {written(value)}"
            drawing.mark(across(value), middle, row.series, told=told, filled=False)
        drawing.mark(across(row.median), middle, row.series, told=f"median: {written(row.median)}")
    drawing.line((_MARGIN, floor), (_WIDTH - _MARGIN, floor), "axis")
    described = [
        f"{row.name}: median {written(row.median)}"
        + (f", rounds from {written(min(row.values))} to {written(max(row.values))}." if row.values else ".")
        for row in rows
    ]
    return drawing.render(title, " ".join(described) or "Nothing was measured.")


def _fitting(name: str, value: str) -> str:
    """Return name and value within the width of the drawing: a long name loses its text in brackets, or is cut."""
    room = _CHARS_MAX - len(value)
    fitting = name if len(name) <= room else name.partition(" (")[0]
    return (fitting if len(fitting) <= room else f"{fitting[: max(0, room - 1)]}…") + value


def _told(curve: Curve) -> str:
    """Describe a curve in words: its values at the percentiles of the ticks."""
    last = curve.points[-1][0]
    told = []
    for name, decades in _PERCENTILE_TICKS:
        if decades <= last + 1e-9:
            nearest = min(curve.points, key=lambda point: abs(point[0] - decades))
            told.append(f"percentile {name} {milliseconds(nearest[1])} ms")
    return f"{curve.name}: {', '.join(told)}."


def _percentile_axes(
    drawing: Drawing,
    ticks: Sequence[tuple[str, float]],
    across: Callable[[float], float],
    up: Callable[[float], float],
    values: Sequence[float],
) -> None:
    floor, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for name, decades in ticks:
        x = across(decades)
        drawing.line((x, _TOP), (x, floor), "grid")
        # Centred on its tick, the last name would exceed the drawing.
        last = decades == ticks[-1][1]
        drawing.text(right if last else x, floor + 18, name, anchor="end" if last else "middle", style="tick")
    for value in values:
        y = up(math.log10(value))
        drawing.line((_LEFT, y), (right, y), "grid")
        drawing.text(_LEFT - 6, y + 4, f"{value:,.10g}", anchor="end", style="tick")
    drawing.line((_LEFT, floor), (right, floor), "axis")
    drawing.line((_LEFT, _TOP), (_LEFT, floor), "axis")
    drawing.text((_LEFT + right) / 2, floor + 37, "percentile of the messages", anchor="middle")
    drawing.text(4, _TOP + 2, "ms", style="tick")


def log_ticks(low: float, high: float) -> list[float]:
    """Return round values in [low, high] for a logarithmic axis: powers of ten, or finer steps for at least three."""
    assert 0 < low < high
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)):
        found = [step * 10.0**decade for decade in range(first, last + 1) for step in steps]
        found = [value for value in found if low <= value <= high]
        if len(found) >= 3:
            return found
    return found or [low]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return a linear map of [low, high] to the positions from start to end."""
    span = high - low or 1.0
    return lambda value: start + (end - start) * (value - low) / span
