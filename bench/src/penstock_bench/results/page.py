"""The report as one HTML file: plots, tables, machine facts and the command, without external resources.

Rules: The page uses no script, font or image from elsewhere; its own content security policy forbids them. All values
from a report are escaped. The page follows the reader's light or dark mode (its plots are dark on white in both), is
readable on a phone, and gives every plot a table of its numbers and a description in words. A system has the same
colour, dashes and mark in every plot of a page; a known system also on other pages. Void results are shown with their
reason.

| part       | source                                      |
|------------|---------------------------------------------|
| head       | the command, when it ran, notes             |
| reach      | `Report.reach`: goals and measured ratios   |
| latency    | `Report.latencies`: percentile plots        |
| by window  | `Report.comparisons`, if it has several     |
| throughput | `Report.comparisons`: medians and rounds    |
| figures    | `Report.figures`: numbers of Penstock alone |
| limits     | `Report.limits`: limits of the machine      |
| machine    | `Report.machine`                            |
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from penstock.base.units import format_bytes
from penstock_bench.measure import latency
from penstock_bench.measure.histogram import PERCENTILES, SAMPLES_BEYOND_MIN
from penstock_bench.measure.latency_summary import LatencyComparison, is_senders, missing_text, void_text
from penstock_bench.measure.reader_table import READERS
from penstock_bench.results import wording
from penstock_bench.results.plots import Curve, Line, Plot, Spread, percentile_plot, spread_plot, window_plot
from penstock_bench.results.report import Comparison, Figure, Limit, Reach, Report, bounded_text, busy_text, short_text
from penstock_bench.systems import clusters, external
from penstock_bench.systems.system import VARIANTS

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
# Each colour is defined once for light and once for dark mode, each readable on its ground (contrast of text at least
# 7). Sizes follow the reader's font; only elements that scroll by themselves are wider than the screen.
_STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --text: #1c2024; --muted: #50565e; --rule: #d4d9df;
  --warn: #8a2c0d; --focus: #0b5fa5; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --text: #e8eaed; --muted: #aab1ba; --rule: #3a4149;
  --warn: #ffb59b; --focus: #7cb8ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; margin: 0.5rem 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.5rem; border-bottom: 1px solid var(--rule); }
pre { overflow-x: auto; padding: 0.6rem; border: 1px solid var(--rule); border-radius: 4px; white-space: pre; }
figure { margin: 1rem 0; max-width: 40rem; }
figcaption, caption, header p { color: var(--muted); }
caption { text-align: left; padding: 0.3rem 0; }
img { width: 100%; height: auto; display: block; background: #ffffff; border-radius: 4px; }
.scroll { overflow-x: auto; margin: 0.5rem 0 1rem; }
.scroll:focus-visible, pre:focus-visible { outline: 2px solid var(--focus); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.7rem 0.25rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
.numbers td, .numbers th[scope=col] { text-align: right; white-space: nowrap; }
.numbers thead :first-child { text-align: left; }
th[scope=row] { font-weight: 500; min-width: 11rem; }
.name { display: block; color: var(--muted); font: 0.85rem/1.3 ui-monospace, monospace; }
.void { color: var(--warn); }
"""
_WINDOWS_MIN = 3  # for a plot by window
_KNOWN = (*VARIANTS, *clusters.VARIANTS, *(reader.name for reader in READERS), *external.KNOWN)
_SERIES = {name: series for series, name in enumerate(_KNOWN)}


class _Row(NamedTuple):
    """The title of a row, and the name that ratios use for it."""

    title: str
    name: str


_Cell = _Row | str | float | int | None
_Line = Sequence[_Cell]


def write_html(report: Report, file: Path) -> None:
    """Write one file for any browser."""
    file.write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    """Return the whole document."""
    title = f"penstock bench {report.kind}"
    colours = _colours(report)
    parts = [
        _head(report, title),
        _reach(report.reach),
        *(_latency(one, colours) for one in report.latencies),
        *(_by_window(*found, colours) for found in by_window(report.comparisons)),
        *(_throughput(one, colours) for one in report.comparisons),
        _figures(report.figures),
        _limits(report.limits),
        _machine(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text_of(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><main>\n{chr(10).join(part for part in parts if part)}\n</main></body></html>\n"
    )


# The parts


def _head(report: Report, title: str) -> str:
    notes = "".join(f"<li>{text_of(note)}</li>" for note in report.notes)
    when = f"{report.started:%Y-%m-%d %H:%M} UTC, {wording.minutes(report.seconds)}"
    busy = f'<p class="void">{text_of(text)}</p>' if (text := busy_text(report)) else ""
    return (
        f"<header><h1>{text_of(title)}</h1><p>{text_of(when)}</p>{busy}"
        f'<pre tabindex="0" aria-label="the command">{text_of(report.command)}</pre><ul>{notes}</ul></header>'
    )


def _reach(goals: Sequence[Reach]) -> str:
    if not goals:
        return ""
    rows = [
        (
            one.what,
            *(wording.goal(each, at_most=one.at_most, unit="×") for each in (one.reach, one.stretch)),
            wording.got(one.got, one.why),
            wording.VERDICTS[one.is_reached],
        )
        for one in goals
    ]
    return _section("Reach", _table("Goals as ratios, and what was got", ("what", "reach", "stretch", "got", ""), rows))


def _latency(one: LatencyComparison, colours: dict[str, int]) -> str:
    load = one.load
    title = f"Latency: {one.title}"
    intro = (
        f"{load.size:,} bytes, {load.rate_per_s:g} messages a second for {load.seconds:g} s a round, counted from when "
        f"each was due. A percentile is told where at least {SAMPLES_BEYOND_MIN} samples lie beyond it."
    )
    parts = [f"<p>{text_of(intro)}</p>", _voids(one), _missing(one)]
    for path in (latency.ACK, latency.CONSUMER):
        found = [(name, system) for name, system in one.systems.items() if path in system.paths]
        if not found:
            continue
        name_of_path = latency.PATHS[path]
        curves = [
            Curve(system.title, colours[name], [(x, us / 1000) for x, us in system.paths[path].latencies.curve_us()])
            for name, system in found
        ]
        parts.append(_figure(percentile_plot(f"{one.title}, {name_of_path}", curves), name_of_path))
        parts.append(_percentile_table(one, path))
    parts.append(_percentile_table(one, latency.LATE))
    return _section(title, *parts)


def _percentile_table(one: LatencyComparison, path: str) -> str:
    found = {name: system for name, system in one.systems.items() if path in system.paths}
    if not found:
        return ""
    said = [p for p in PERCENTILES if any(p in system.paths[path].percentiles_us for system in found.values())]
    rows: list[_Line] = []
    for name, system in found.items():
        summary = system.paths[path]
        values = [summary.percentiles_us.get(p) for p in said]
        told = [
            "–" if value is None else wording.milliseconds(value / 1000) + wording.SENDERS * is_senders(system, path, p)
            for p, value in zip(said, values, strict=True)
        ]
        greatest = wording.milliseconds(summary.max_us / 1000)
        rows.append((_Row(system.title, name), *told, greatest, f"{summary.samples:,}"))
    headers = ("", *(f"p{p}" for p in said))
    caption = f"{latency.PATHS[path]}, {one.title}: milliseconds"
    table = _table(caption, (*headers, "greatest", "samples"), rows)
    if any(is_senders(system, path, p) for system in found.values() for p in said):
        table += f"<p>{text_of(wording.SENDERS_LEGEND)}</p>"
    if path == latency.LATE:
        return table
    ratios: list[_Line] = [
        (_with_void(pair, one), *(_latency_ratio(one, pair, path, p) for p in said))
        for pair, by_path in one.ratios.items()
        if path in by_path
    ]
    described = f"{latency.PATHS[path]}, {one.title}: ratios, round by round: median (least to greatest)"
    return table + (_table(described, headers, ratios) if ratios else "")


def _with_void(pair: str, one: LatencyComparison) -> str:
    void = one.void_rounds.get(pair)
    return f"{pair} ({void_text(void)})" if void else pair


def _latency_ratio(one: LatencyComparison, pair: str, path: str, percentile: str) -> str:
    found = one.ratios[pair][path].get(percentile)
    if found is None:
        return "–"
    mark = wording.SENDERS * any(is_senders(one.systems[name], path, percentile) for name in pair.split(" / "))
    return wording.ratio(found.ratio, count_rounds=False) + mark


def by_window(comparisons: Sequence[Comparison]) -> list[tuple[str, list[Comparison]]]:
    """Return the comparisons that differ by their window alone, with a title for each such group."""
    groups: dict[tuple[int, int, int], list[Comparison]] = {}
    for one in comparisons:
        if one.load is not None and one.name.startswith("publish-"):  # not what consumers read
            groups.setdefault((one.load.size, one.load.publishers, one.load.subjects), []).append(one)
    return [
        (f"acked publish by window, {size} B, {publishers} publisher{'' if publishers == 1 else 's'}", found)
        for (size, publishers, _), found in groups.items()
        if len({one.load.window for one in found if one.load is not None}) == len(found) >= _WINDOWS_MIN
    ]


def rates_by_window(title: str, found: Sequence[Comparison], colours: dict[str, int]) -> Plot:
    """Draw the median rates of comparisons that differ by their window."""
    points: dict[str, list[tuple[int, float]]] = {}
    titles: dict[str, str] = {}
    for one in sorted(found, key=lambda each: 0 if each.load is None else each.load.window):
        for name, system in one.systems.items():
            if one.load is not None and system.median is not None:
                points.setdefault(name, []).append((one.load.window, system.median))
                titles[name] = system.title
    lines = [Line(titles[name], colours[name], each) for name, each in points.items()]
    return window_plot(title, lines, found[0].unit)


def _by_window(title: str, found: Sequence[Comparison], colours: dict[str, int]) -> str:
    return _section(title, _figure(rates_by_window(title, found, colours), "medians; both axes are logarithmic"))


def _throughput(one: Comparison, colours: dict[str, int]) -> str:
    def written(value: float) -> str:
        return f"{wording.number(value)} {one.unit}"

    rows: list[_Line] = []
    spreads = []
    for name, system in one.systems.items():
        values = [each.value for each in one.measurements if each.system == name and each.void is None]
        cpu = wording.cpu_columns(system.cpu_us_per_message)
        if system.median is None or system.low is None or system.high is None:
            rows.append((_Row(system.title, name), "–", "–", 0, *cpu))
            continue
        spreads.append(Spread(system.title, colours[name], system.median, values))
        spread = wording.spread(system.low, system.high, system.rounds)
        title = f"{system.title} ({bounded})" if (bounded := bounded_text(system)) else system.title
        rows.append((_Row(title, name), wording.number(system.median), spread, system.rounds, *cpu))
    headers = ("", one.unit, "least to greatest", "rounds", *(f"CPU {column}" for column in wording.CPU_COLUMNS))
    ratios: list[_Line] = [
        (
            f"{pair} ({note})" if (note := one.notes.get(pair)) else pair,
            wording.ratio(found),
            "–" if pair not in one.cpu_ratios else wording.ratio(one.cpu_ratios[pair], count_rounds=False),
        )
        for pair, found in one.ratios.items()
    ]
    return _section(
        one.title,
        _voids(one),
        f'<p class="void">{text_of(short)}</p>' if (short := short_text(one)) else "",
        _figure(spread_plot(one.title, spreads, written), "filled: median; rings: rounds; logarithmic")
        if spreads
        else "",
        _table(f"{one.title}. {wording.CPU_LEGEND}", headers, rows),
        _table("Ratios, round by round: median (least to greatest)", ("", one.unit, "CPU a message"), ratios)
        if ratios
        else "",
    )


def _figures(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    rows = [
        (
            one.what,
            f"{wording.figure(one.got, one.low, one.high)} {one.unit}",
            *(wording.goal(each, at_most=not one.at_least) for each in (one.reach, one.stretch)),
            wording.VERDICTS[one.is_reached],
        )
        for one in figures
    ]
    return _section("Figures", _table("What was got", ("", "got", "reach", "stretch", ""), rows))


def _voids(one: Comparison | LatencyComparison) -> str:
    told = [
        f"<li>{text_of(wording.voids(system.title, system.void, system.rounds, system.void_reason))}</li>"
        for system in one.systems.values()
        if system.void
    ]
    return f'<ul class="void">{"".join(told)}</ul>' if told else ""


def _missing(one: LatencyComparison) -> str:
    told = [
        f"<li>{text_of(f'{system.title}: {text}')}</li>"
        for system in one.systems.values()
        if (text := missing_text(system))
    ]
    return f'<ul class="void">{"".join(told)}</ul>' if told else ""


def _limits(limits: Sequence[Limit]) -> str:
    rows = [
        (
            one.title,
            f"{wording.number(one.median)} {one.unit}",
            wording.spread(one.low, one.high, one.rounds),
        )
        for one in limits
    ]
    if not rows:
        return ""
    caption = "What the machine itself did in this run"
    return _section("Limits of the machine", _table(caption, ("", "median", "least to greatest"), rows))


def _machine(report: Report) -> str:
    facts = report.machine
    packages = ", ".join(f"{name} {version}" for name, version in facts.packages.items())
    rows = [
        ("CPU", f"{facts.cpu}, {facts.cores} cores"),
        ("memory", format_bytes(facts.memory_bytes)),
        ("kernel", facts.kernel),
        ("file system of the logs", facts.file_system or "unknown"),
        ("Penstock", f"{facts.penstock}, hot path: {facts.hot_path}"),
        ("nats-server", facts.nats_server),
        ("Python", facts.python),
        ("packages", packages),
        ("load average before", f"{facts.load_average:g}"),
    ]
    return _section("Machine", _table("What the figures were taken on", ("", ""), rows, numbers=False))


# Pieces


_NOT_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def text_of(value: object) -> str:
    """Escape `value` for HTML, also for attributes."""
    return escape(_NOT_XML.sub("\ufffd", str(value)), quote=True)


def _colours(report: Report) -> dict[str, int]:
    """Assign a series to every system: the same in all plots, and for known systems on all pages."""
    latencies = (one.systems for one in report.latencies)
    names = dict.fromkeys(chain(*latencies, *(one.systems for one in report.comparisons)))
    others = count(len(_SERIES))
    return {name: _SERIES[name] if name in _SERIES else next(others) for name in names}


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{text_of(title)}</h2>{''.join(parts)}</section>"


def _figure(plot: Plot, caption: str) -> str:
    data = b64encode(plot.svg.encode()).decode()
    image = f'<img alt="{text_of(plot.described)}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure><figcaption>{text_of(caption)}</figcaption>{image}</figure>"


def _table(caption: str, headers: Sequence[str], rows: Iterable[_Line], *, numbers: bool = True) -> str:
    """Return a table that scrolls by itself if it is too wide; the first column is the row header."""
    head = "".join(f'<th scope="col">{text_of(one)}</th>' if one else "<td></td>" for one in headers)
    lines = []
    for first, *others in rows:
        cells = "".join(f"<td>{text_of('' if one is None else one)}</td>" for one in others)
        lines.append(f'<tr><th scope="row">{_row_text(first)}</th>{cells}</tr>')
    kind = "numbers" if numbers else "facts"
    header = f"<thead><tr>{head}</tr></thead>" if any(headers) else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text_of(caption)}"><table class="{kind}">'
        f"<caption>{text_of(caption)}</caption>{header}<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _row_text(first: _Cell) -> str:
    if not isinstance(first, _Row):
        return text_of(first)
    return f'{text_of(first.title)}<span class="name">{text_of(first.name)}</span>'
