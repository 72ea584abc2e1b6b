"""The report as one HTML file: plots, tables, the machine's facts and the command, and nothing from outside.

Rules: no script, no font, no picture from elsewhere; the page itself forbids them. Whatever comes from a report is
escaped. It is light or dark as the reader's system is, readable on a phone, and every plot has its numbers in a table
and its description in words. A system has the same colour, dashes and mark in every plot. What does not count is shown
with its reason.

| part       | from                                        |
|------------|---------------------------------------------|
| head       | the command, when it ran, notes             |
| reach      | `Report.reach`: goals and what was got      |
| latency    | `Report.latencies`: percentile plots        |
| throughput | `Report.comparisons`: medians and rounds    |
| figures    | `Report.figures`: numbers of ours alone     |
| limits     | `Report.limits`: what the machine can do    |
| machine    | `Report.machine`                            |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from penstock.base.units import format_bytes
from penstock.bench import latency
from penstock.bench.histogram import PERCENTILES, SAMPLES_BEYOND_MIN
from penstock.bench.latency_summary import LatencyComparison, LatencyRatio, missing_text, void_text
from penstock.bench.plots import Curve, Spread, milliseconds, percentile_plot, spread_plot
from penstock.bench.report import Comparison, Figure, Limit, Reach, Report, bounded_text
from penstock.bench.rounds import Ratio
from penstock.bench.style import STYLE
from penstock.bench.svg import text_of
from penstock.bench.wording import minutes_text

_Cell = str | float | int | None


def write_html(report: Report, file: Path) -> None:
    """One file, to be opened in any browser."""
    file.write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    """The whole document."""
    title = f"penstock bench {report.kind}"
    colours = _colours(report)
    parts = [
        _head(report, title),
        _reach(report.reach),
        *(_latency(one, colours) for one in report.latencies),
        *(_throughput(one, colours) for one in report.comparisons),
        _figures(report.figures),
        _limits(report.limits),
        _machine(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text_of(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{chr(10).join(part for part in parts if part)}\n</main></body></html>\n"
    )


# The parts


def _head(report: Report, title: str) -> str:
    notes = "".join(f"<li>{text_of(note)}</li>" for note in report.notes)
    when = f"{report.started:%Y-%m-%d %H:%M} UTC, {minutes_text(report.seconds)}"
    return (
        f"<header><h1>{text_of(title)}</h1><p>{text_of(when)}</p>"
        f'<pre tabindex="0" aria-label="the command">{text_of(report.command)}</pre><ul>{notes}</ul></header>'
    )


def _reach(goals: Sequence[Reach]) -> str:
    if not goals:
        return ""
    rows = []
    for goal in goals:
        sign = "≤" if goal.at_most else "≥"
        verdict = {None: "not measured", True: "reached", False: "not reached"}[goal.is_reached]
        stretch = "" if goal.stretch is None else f"{sign} {goal.stretch:g} ×"
        rows.append((goal.what, f"{sign} {goal.reach:g} ×", stretch, _ratio_text(goal.got), verdict))
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
    rows: list[Sequence[_Cell]] = []
    for system in found.values():
        summary = system.paths[path]
        values = [summary.percentiles_us.get(p) for p in said]
        told = ["–" if value is None else milliseconds(value / 1000) for value in values]
        rows.append((system.title, *told, milliseconds(summary.max_us / 1000), f"{summary.samples:,}"))
    headers = ("", *(f"p{p}" for p in said))
    caption = f"{latency.PATHS[path]}, {one.title}"
    table = _table(caption, (*headers, "greatest", "samples"), rows)
    if path == latency.LATE:
        return table
    ratios = [
        (_with_void(pair, one), *(_latency_ratio(by_path[path].get(p)) for p in said))
        for pair, by_path in one.ratios.items()
        if path in by_path
    ]
    described = f"{caption}: ratios of all rounds together (of single rounds: least – greatest)"
    return table + (_table(described, headers, ratios) if ratios else "")


def _with_void(pair: str, one: LatencyComparison) -> str:
    void = one.void_rounds.get(pair)
    return f"{pair} ({void_text(void)})" if void else pair


def _latency_ratio(found: LatencyRatio | None) -> str:
    if found is None:
        return "–"
    spread = " (no spread)" if found.rounds is None else f" ({_times(found.rounds.low)} – {_times(found.rounds.high)})"
    return f"{_times(found.pooled)} ×{spread}"


def _throughput(one: Comparison, colours: dict[str, int]) -> str:
    def written(value: float) -> str:
        return f"{_number(value)} {one.unit}"

    rows: list[Sequence[_Cell]] = []
    spreads = []
    for name, system in one.systems.items():
        values = [each.value for each in one.measurements if each.system == name and each.void is None]
        cpu = ", ".join(f"{process} {us:.2f}" for process, us in system.cpu_us_per_message.items())
        if system.median is None or system.low is None or system.high is None:
            rows.append((system.title, "–", "–", 0, ""))
            continue
        spreads.append(Spread(system.title, colours[name], system.median, values))
        spread = f"{_number(system.low)} – {_number(system.high)}"
        title = f"{system.title} ({bounded})" if (bounded := bounded_text(system)) else system.title
        rows.append((title, _number(system.median), spread, system.rounds, cpu))
    headers = ("", one.unit, "least – greatest", "rounds", "CPU µs a message")
    ratios = [
        (
            f"{pair} ({note})" if (note := one.notes.get(pair)) else pair,
            _ratio_text(found),
            _ratio_text(one.cpu_ratios.get(pair)),
            found.rounds,
        )
        for pair, found in one.ratios.items()
    ]
    return _section(
        one.title,
        _voids(one),
        _figure(spread_plot(one.title, spreads, written), "filled: median; rings: rounds; logarithmic")
        if spreads
        else "",
        _table(one.title, headers, rows),
        _table("Ratios, round by round: median (least – greatest)", ("", one.unit, "CPU a message", "rounds"), ratios)
        if ratios
        else "",
    )


def _figures(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    rows = []
    for one in figures:
        goals = ["" if goal is None else f"≤ {_number(goal)}" for goal in (one.reach, one.stretch)]
        verdict = {None: "", True: "reached", False: "not reached"}[one.is_reached]
        rows.append((one.what, f"{_number(one.got)} {one.unit}", *goals, verdict))
    return _section("Figures", _table("What was got; less is better", ("", "got", "reach", "stretch", ""), rows))


def _voids(one: Comparison | LatencyComparison) -> str:
    told = [
        f"<li>{text_of(f'{system.title}: {system.void} of {system.void + system.rounds} rounds do not count: ')}"
        f"{text_of(system.void_reason)}</li>"
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
        (one.title, f"{_number(one.median)} {one.unit}", f"{_number(one.low)} – {_number(one.high)}") for one in limits
    ]
    if not rows:
        return ""
    caption = "What the machine itself did in this run"
    return _section("Limits of the machine", _table(caption, ("", "median", "least – greatest"), rows))


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


def _colours(report: Report) -> dict[str, int]:
    """A series for every system, the same in all plots."""
    names: dict[str, int] = {}
    for name in chain(*(one.systems for one in report.latencies), *(one.systems for one in report.comparisons)):
        names.setdefault(name, len(names))
    return names


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{text_of(title)}</h2>{''.join(parts)}</section>"


def _figure(drawing: str, caption: str) -> str:
    return f"<figure><figcaption>{text_of(caption)}</figcaption>{drawing}</figure>"


def _table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[_Cell]], *, numbers: bool = True) -> str:
    """A table that scrolls by itself where it is too wide; the first column names the row."""
    head = "".join(f'<th scope="col">{text_of(one)}</th>' if one else "<td></td>" for one in headers)
    lines = []
    for first, *others in rows:
        cells = "".join(f"<td>{text_of('' if one is None else one)}</td>" for one in others)
        lines.append(f'<tr><th scope="row">{text_of(first)}</th>{cells}</tr>')
    kind = "numbers" if numbers else "facts"
    header = f"<thead><tr>{head}</tr></thead>" if any(headers) else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text_of(caption)}"><table class="{kind}">'
        f"<caption>{text_of(caption)}</caption>{header}<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _ratio_text(found: Ratio | None) -> str:
    if found is None:
        return "–"
    if found.pooled:
        return f"{_times(found.median)} × (all rounds as one: no spread)"
    spread = "" if found.rounds == 1 else f" ({_times(found.low)} – {_times(found.high)})"
    return f"{_times(found.median)} ×{spread}"


def _times(value: float) -> str:
    """`0.07`, `1.32`, `12.3`, `340`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _number(value: float) -> str:
    """Three digits that matter, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
