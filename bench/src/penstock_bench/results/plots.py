"""The plots of a report, drawn by matplotlib as SVG: latency by percentile, rates with their spread, rates by window.

Rules: A plot shows what was measured: a curve ends at the last percentile with enough samples, and the axis at the next
tick after it. All axes are logarithmic, because systems differ by factors; the percentile axis counts nines (90, 99,
99.9 are equally far apart). A series differs from others by its dashes and its marker, too, never by its colour alone.
A plot has no external resource and no script.

| plot              | horizontal                | vertical                                     |
|-------------------|---------------------------|----------------------------------------------|
| `percentile_plot` | percentile, 50 to 99.9999 | latency in milliseconds, one curve a system  |
| `spread_plot`     | value, logarithmic        | a line a system: its median and its rounds   |
| `window_plot`     | window, logarithmic       | messages/s, one line a system: medians       |
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from penstock_bench.results.wording import milliseconds

COLOURS = ("#0b5fa5", "#c2410c", "#15803d", "#7e22ce", "#b4235a", "#0e7490", "#7a4a06", "#475569", "#5b6b00", "#111827")
_DASHES = ((), (7, 4), (2, 3), (10, 3, 2, 3), (4, 4), (12, 5), (1, 4), (6, 2, 1, 2), (9, 2, 2, 2, 2, 2), (3, 2, 10, 2))
_MARKERS = "osD^"
_WIDTH = 6.5  # inches, as all sizes of a figure
_HEIGHT = 4.0
_LINE = 0.28  # of text
_CHARS_MAX = 64  # in a line of text as wide as the plot
_LAST_TICKS_FROM = 3  # an axis that ends before 99.9 would make a short run look like a long one
_NINES = (("90", 1.0), ("99", 2.0), ("99.9", 3.0), ("99.99", 4.0), ("99.999", 5.0), ("99.9999", 6.0))
_PERCENTILE_TICKS = (("50", math.log10(2)), *_NINES)
_LEAST_MS = 1e-6
_ROOM = 1.15  # factor by which an axis exceeds its lowest and highest value
_NOT_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
_STYLE: Any = {  # its keys are a type of matplotlib's
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "penstock",  # the same figures give the same file
    "text.parse_math": False,
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


class Curve(NamedTuple):
    """One system's latencies: points (decades of percentile, milliseconds), rising in both."""

    name: str
    series: int  # its colour, dashes and marker
    points: Sequence[tuple[float, float]]


class Spread(NamedTuple):
    """One system's figure: the values of its rounds, and their median."""

    name: str
    series: int
    median: float
    values: Sequence[float]


class Line(NamedTuple):
    """One system's median rates: points (window, rate) with rising windows."""

    name: str
    series: int
    points: Sequence[tuple[int, float]]


class Plot(NamedTuple):
    """A plot as an SVG document, and what it shows in words."""

    svg: str
    described: str


def look(series: int) -> dict[str, Any]:
    """Return colour, dashes and marker of a series; series 10 has the colour of series 0, and other dashes."""
    colour, turn = series % len(COLOURS), series % len(COLOURS) + series // len(COLOURS)
    dashes = _DASHES[turn % len(_DASHES)]
    return {
        "color": COLOURS[colour],
        "linestyle": (0, dashes) if dashes else "-",
        "marker": _MARKERS[turn % len(_MARKERS)],
    }


def percentile_plot(title: str, curves: Sequence[Curve]) -> Plot:
    """Draw latency over percentile."""
    shown = [curve for curve in curves if curve.points]
    with mpl.rc_context(_STYLE):
        figure = Figure((_WIDTH, _HEIGHT + _LINE * len(shown)), layout="constrained")
        axes = figure.subplots()
        if not shown:
            axes.text(0.5, 0.5, "not enough samples for any percentile", ha="center", transform=axes.transAxes)
            axes.set_axis_off()
            return _drawn(figure, title, "Not enough samples for any percentile.")
        last = max(max(curve.points[-1][0] for curve in shown), _LAST_TICKS_FROM)
        ticks = [tick for tick in _PERCENTILE_TICKS if tick[1] < last + 1 - 1e-9]
        for curve in shown:
            decades = [place for place, _ in curve.points]
            values = [max(value, _LEAST_MS) for _, value in curve.points]
            axes.plot(decades, values, markevery=[-1], label=f" {_text(curve.name)}", **look(curve.series))
        every = [max(value, _LEAST_MS) for curve in shown for _, value in curve.points]
        axes.set_xlim(ticks[0][1], ticks[-1][1])
        axes.set_xticks([place for _, place in ticks], [name for name, _ in ticks])
        axes.set_yscale("log")
        _name_values(axes.set_ylim, axes.yaxis, every)
        axes.set_xlabel("percentile of the messages")
        axes.set_ylabel("ms")
        axes.grid(visible=True, alpha=0.4)
        figure.legend(loc="outside lower left", frameon=False, handlelength=4)
        return _drawn(figure, title, " ".join(_told(curve) for curve in shown))


def spread_plot(title: str, rows: Sequence[Spread], written: Callable[[float], str]) -> Plot:
    """Draw a filled marker for each median, a ring for each round, a line between them; `written` formats a value."""
    described = [
        f"{row.name}: median {written(row.median)}"
        + (f", rounds {', '.join(written(value) for value in row.values)}." if row.values else ".")
        for row in rows
    ]
    with mpl.rc_context(_STYLE):
        figure = Figure((_WIDTH, 0.8 + 0.6 * max(len(rows), 1)), layout="constrained")
        axes: Axes = figure.subplots()
        positive = [value for row in rows for value in (*row.values, row.median) if value > 0] or [1.0]
        axes.set_xscale("log")
        low, high = _name_values(axes.set_xlim, axes.xaxis, positive)
        axes.set_ylim(max(len(rows), 1) - 0.4, -0.7)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(visible=True, axis="x", alpha=0.4)
        for place, row in enumerate(rows):
            style = look(row.series)
            found = [min(max(value, low), high) for value in (*row.values, row.median)]
            axes.plot([min(found), max(found)], [place, place], color=style["color"], linestyle=style["linestyle"])
            style["linestyle"] = "none"
            axes.plot(found[:-1], [place] * len(row.values), markerfacecolor="white", **style)
            axes.plot(found[-1:], [place], **style)
            label = _fitting(row.name, f": {written(row.median)}")
            axes.text(0.01, place - 0.3, _text(label), transform=axes.get_yaxis_transform())
        return _drawn(figure, title, " ".join(described) or "Nothing was measured.")


def window_plot(title: str, lines: Sequence[Line], unit: str) -> Plot:
    """Draw rates over the number of messages in flight; every line must have a point."""
    with mpl.rc_context(_STYLE):
        figure = Figure((_WIDTH, _HEIGHT + _LINE * len(lines)), layout="constrained")
        axes = figure.subplots()
        for line in lines:
            axes.plot(*zip(*line.points, strict=True), label=f" {_text(line.name)}", **look(line.series))
        windows = sorted({window for line in lines for window, _ in line.points})
        axes.set_xscale("log")
        axes.set_xlim(windows[0] / _ROOM, windows[-1] * _ROOM)
        axes.set_xticks(windows, [f"{window:,}" for window in windows], minor=False)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_yscale("log")
        _name_values(axes.set_ylim, axes.yaxis, [rate for line in lines for _, rate in line.points])
        axes.set_xlabel("window: messages in flight")
        axes.set_ylabel(_text(unit))
        axes.grid(visible=True, alpha=0.4)
        figure.legend(loc="outside lower left", frameon=False, handlelength=4)
        told = (
            f"{line.name}: {', '.join(f'window {window:,}: {rate:,.0f} {unit}' for window, rate in line.points)}."
            for line in lines
        )
        return _drawn(figure, title, " ".join(told))


def _name_values(limit: Callable[..., Any], axis: Any, values: Sequence[float]) -> tuple[float, float]:
    """Set the limits and ticks of a logarithmic axis; return its limits."""
    low, high = min(values) / _ROOM, max(values) * _ROOM
    limit(low, high)
    decades = math.log10(high / low)
    steps = (1.0,) if decades > 3 else (1.0, 2.0, 5.0) if decades > 1 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    axis.set_major_locator(LogLocator(subs=steps, numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
    return low, high


def _drawn(figure: Figure, title: str, described: str) -> Plot:
    svg = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's fonts may have it
        figure.savefig(svg, format="svg", metadata={"Title": _text(title), "Date": None, "Creator": None})
    return Plot(svg.getvalue(), described)


def _text(value: str) -> str:
    """Replace the characters that are invalid in XML, and the line ends."""
    return _NOT_XML.sub("\ufffd", " ".join(value.splitlines()))


def _fitting(name: str, value: str) -> str:
    """Return name and value within the width of the plot: a long name loses its text in brackets, or is cut."""
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
