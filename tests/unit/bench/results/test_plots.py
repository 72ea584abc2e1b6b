"""Drawings and the page: well-formed, escaped, without anything from outside, and with words for who does not see."""

from __future__ import annotations

import re
from base64 import b64decode
from datetime import UTC, datetime
from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_bench.load.generator import Load
from penstock_bench.machine.facts import Machine
from penstock_bench.measure import latency_summary
from penstock_bench.measure.histogram import Latencies
from penstock_bench.measure.latency import ACK, CONSUMER, LATE, LatencyLoad, LatencyMeasurement
from penstock_bench.measure.rounds import Measurement, Ratio
from penstock_bench.results.page import page, text_of
from penstock_bench.results.plots import (
    COLOURS,
    Curve,
    Line,
    Plot,
    Spread,
    look,
    percentile_plot,
    spread_plot,
    window_plot,
)
from penstock_bench.results.report import Figure, Limit, Reach, Report, compared

HOSTILE = "<script>alert('1')</script> \"&amp; \x00\ud800 ]]>"
SVG = "{http://www.w3.org/2000/svg}"
VOID_ELEMENTS = {"meta", "br", "link", "img", "input"}
PLACE = st.floats(0.31, 6.0)
VALUE = st.floats(1e-4, 1e6)
POINTS = st.lists(st.tuples(PLACE, VALUE), min_size=1, max_size=30).map(
    lambda points: list(zip(sorted(x for x, _ in points), sorted(y for _, y in points), strict=True))
)


def parsed(plot: Plot) -> ElementTree.Element:
    return ElementTree.fromstring(plot.svg)


def texts_of(plot: Plot) -> list[str]:
    return ["".join(text.itertext()).strip() for text in parsed(plot).iter(f"{SVG}text")]


@given(st.text())
def test_any_text_is_text(text: str) -> None:
    found = ElementTree.fromstring(f'<t a="{text_of(text)}">{text_of(text)}</t>')
    kept = re.sub("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]", "\ufffd", text)
    assert (found.text or "") == kept.replace("\r\n", "\n").replace("\r", "\n")


@settings(max_examples=10)
@given(st.lists(st.tuples(st.text(max_size=20), POINTS), max_size=5))
def test_any_percentile_plot_is_a_drawing(curves: list[tuple[str, list]]) -> None:
    drawn = percentile_plot(HOSTILE, [Curve(name, number, points) for number, (name, points) in enumerate(curves)])
    assert parsed(drawn).tag == f"{SVG}svg"


@settings(max_examples=10)
@given(st.lists(st.tuples(VALUE, st.lists(VALUE, max_size=5)), max_size=5))
def test_any_spread_plot_is_a_drawing(rows: list[tuple[float, list[float]]]) -> None:
    drawn = spread_plot("rates", [Spread(f"system {n}", n, *row) for n, row in enumerate(rows)], lambda v: f"{v:g}")
    assert parsed(drawn).tag == f"{SVG}svg"
    assert [f"system {n}: {median:g}" for n, (median, _) in enumerate(rows)] == [
        text for text in texts_of(drawn) if text.startswith("system")
    ]


@settings(max_examples=10)
@given(st.lists(st.lists(st.tuples(st.integers(1, 9_999), VALUE), min_size=1, max_size=5), min_size=1, max_size=5))
def test_any_window_plot_is_a_drawing(lines: list[list[tuple[int, float]]]) -> None:
    drawn = window_plot(HOSTILE, [Line(HOSTILE, n, sorted(points)) for n, points in enumerate(lines)], HOSTILE)
    assert parsed(drawn).tag == f"{SVG}svg"


def test_a_window_plot_names_each_window_and_tells_each_rate() -> None:
    drawn = window_plot("r", [Line("a", 0, [(1, 2_000.0), (100, 50_000.0), (4_000, 300_000.0)])], "messages/s")
    assert {"1", "100", "4,000", "a", "messages/s"} <= {*texts_of(drawn)}
    assert drawn.described == (
        "a: window 1: 2,000 messages/s, window 100: 50,000 messages/s, window 4,000: 300,000 messages/s."
    )


def test_a_plot_names_its_systems_and_its_axes_as_they_are() -> None:
    drawn = percentile_plot("t", [Curve("_a $x^2$ & <b>", 0, [(0.4, 1.0), (2.1, 100.0)]), Curve("b", 1, [(0.4, 2.0)])])
    told = texts_of(drawn)
    assert {"_a $x^2$ & <b>", "b", "50", "90", "99", "99.9", "1", "10", "100", "ms"} <= {*told}
    assert "99.99" not in told  # nothing so rare was measured


def test_a_spread_shows_each_round() -> None:
    def markers(*values: float) -> int:
        uses = parsed(spread_plot("r", [Spread("a", 0, 3.0, values)], str)).iter(f"{SVG}use")
        return len([one for one in uses if COLOURS[0] in one.attrib["style"]])

    assert markers(2.0, 3.0, 4.0) == markers() + 3


def test_a_plot_tells_what_it_shows() -> None:
    drawn = percentile_plot("acks", [Curve("Penstock", 0, [(0.30103, 0.5), (2.0, 1.25)])])
    assert drawn.described == "Penstock: percentile 50 0.50 ms, percentile 90 0.50 ms, percentile 99 1.25 ms."


def test_a_spread_tells_each_round() -> None:
    assert spread_plot("r", [Spread("a", 0, 2.0, [1.0, 3.0, 2.0])], "{:g}/s".format).described == (
        "a: median 2/s, rounds 1/s, 3/s, 2/s."
    )


@pytest.mark.parametrize("curves", [[], [Curve("a", 0, [])]])
def test_nothing_to_plot_is_said(curves: list[Curve]) -> None:
    assert "not enough samples for any percentile" in texts_of(percentile_plot("t", curves))


def test_a_long_name_stays_within_the_plot() -> None:
    (label,) = [
        text for text in texts_of(spread_plot("r", [Spread("n" * 99, 0, 5.0, [])], "{:g}/s".format)) if "n" in text
    ]
    assert len(label) == 64
    assert label.endswith("n…: 5/s")
    assert "name: 5.0" in texts_of(spread_plot("r", [Spread("name " + f"({'n' * 99})", 0, 5.0, [])], str))


def test_no_two_series_look_alike() -> None:
    assert len({str(look(series)) for series in range(40)}) == 40


def test_the_same_figures_are_the_same_drawing() -> None:
    assert len({percentile_plot("t", [Curve("a", 0, [(0.4, 1.0), (2.0, 3.0)])]).svg for _ in range(2)}) == 1


def test_a_known_system_has_the_same_colour_on_every_page() -> None:
    def colours(*names: str) -> set[str]:
        rates = [Measurement(system=name, round_number=0, value=1.0) for name in names]
        one = compared(name="x", title="x", titles={name: name for name in names}, measurements=rates, pairs=[])
        (svg,) = plots_of(page(msgspec.structs.replace(report_of(), latencies=[], comparisons=[one])))
        return {colour for colour in COLOURS if colour in svg}

    assert colours("penstock") == {COLOURS[0]}
    assert colours("jetstream", "penstock") == {COLOURS[0], *colours("jetstream")}


# The page


def measurement(system: str, number: int, us: int) -> LatencyMeasurement:
    encoded = Latencies([us * 1_000 + step for step in range(1_000)]).encode()
    histograms = {ACK: encoded, CONSUMER: encoded, LATE: encoded}
    return LatencyMeasurement(system=system, round_number=number, histograms=histograms)


def report_of(text: str = "a") -> Report:
    rounds = [measurement(name, number, us) for number in range(3) for name, us in (("a", 300), ("b", 200))]
    void = LatencyMeasurement(system="a", round_number=3, void=f"3 messages {text}")
    pairs = [("a", "b")]
    titles = {"a": f"A {text}", "b": "B"}
    rates = [Measurement(system=name, round_number=0, value=1e5, cpu_seconds={text: 0.1}) for name in titles]
    return Report(
        kind=text,
        command=f"penstock bench latency {text}",
        started=datetime(2026, 11, 21, 12, 0, tzinfo=UTC),
        seconds=90.0,
        machine=Machine(text, 2, 8 << 30, text, text, text, text, text, text, {text: text}, 0.1),
        notes=[text],
        latencies=[latency_summary.compared(text, LatencyLoad(), titles, [*rounds, void], pairs)],
        comparisons=[
            compared(name=text, title=text, titles=titles, measurements=rates, pairs=pairs, unit=text, load=Load())
        ],
        figures=[Figure(text, text, text, 2.5, 3.0, 1.0), Figure(text, text, text, 4.0)],
        limits=[Limit("sendfile", text, text, 1.0, 0.5, 2.0, 3)],
        reach=[Reach(text, 1.3, 1.0, Ratio(1.2, 1.1, 1.4, 5), at_most=True), Reach(text, 2.0, None, None)],
    )


class Checker(HTMLParser):
    """Every element that is opened is closed; what is in it is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def plots_of(html: str) -> list[str]:
    return [b64decode(data).decode() for data in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)]


def checked(report: Report) -> Checker:
    checker = Checker()
    checker.feed(page(report))
    checker.close()
    assert checker.open == []
    return checker


def test_a_page_is_well_formed_and_loads_nothing() -> None:
    found = checked(report_of())
    assert not {tag for tag, _ in found.tags} & {"script", "link", "iframe", "object", "use", "image"}
    for tag, attributes in found.tags:
        assert not attributes.keys() & {"href", "xlink:href", "style", "onload", "onclick"}
        assert (tag == "img") == ("src" in attributes)
    for svg in plots_of(page(report_of())):
        root = ElementTree.fromstring(svg)
        assert not {one.tag for one in root.iter()} & {f"{SVG}script", f"{SVG}image", f"{SVG}foreignObject"}
        places = [value for one in root.iter() for name, value in one.attrib.items() if name.endswith("href")]
        assert all(place.startswith("#") for place in places)
    policy = [attributes["content"] for tag, attributes in found.tags if "http-equiv" in attributes]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
    assert "url(" not in page(report_of())


def test_what_a_report_says_is_text_on_the_page() -> None:
    hostile = checked(report_of(HOSTILE))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in checked(report_of()).tags]
    assert any("<script>alert('1')</script>" in word for word in hostile.words)


def test_a_page_has_a_language_headings_captions_and_a_description_for_every_plot() -> None:
    found = checked(report_of())
    tags = [tag for tag, _ in found.tags]
    assert dict(found.tags)["html"] == {"lang": "en"}
    assert tags.count("h1") == 1
    assert tags.count("table") == tags.count("caption")
    assert tags.count("img") == tags.count("figure") == tags.count("figcaption") == 3
    assert all(attributes["alt"] for tag, attributes in found.tags if tag == "img")
    assert any("width=device-width" in (attributes.get("content") or "") for _, attributes in found.tags)
    identifiers = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))


def test_a_page_tells_figures_ratios_goals_and_void_rounds() -> None:
    text = " ".join(checked(report_of()).words)
    assert "1 of 4 rounds does not count" in text
    assert "1.50 × (1.50 to 1.50)" in text
    assert "1.20 × (1.10 to 1.40, 5 rounds)" in text
    assert "reached" in text
    assert "not measured" in text
    assert "99.9" not in re.findall(r"p([\d.]+)", text)  # 3,000 samples do not say it


def test_a_page_without_figures_is_a_page() -> None:
    empty = msgspec.structs.replace(report_of(), latencies=[], comparisons=[], limits=[], reach=[])
    assert "section" in {tag for tag, _ in checked(empty).tags}


def test_a_page_marks_what_the_generator_bounds_and_says_what_is_unlike() -> None:
    rates = [Measurement(system=name, round_number=0, value=value) for name, value in (("a", 90.0), ("null", 100.0))]
    one = compared(
        name="x",
        title="x",
        titles={"a": "A", "null": "N"},
        measurements=rates,
        pairs=[("a", "null")],
        notes={"a / null": "unlike"},
        ceilings={"a": "null"},
    )
    text = page(msgspec.structs.replace(report_of(), comparisons=[one]))
    assert 'A (bounded by the generator: more than 70% of null)<span class="name">a</span>' in text
    assert "a / null (unlike; a is bounded by the generator)" in text


def test_a_page_says_loudly_what_is_void_and_what_never_came() -> None:
    text = page(report_of())
    assert "a / b (1 round VOID for one of them)" in text
    assert "never came" not in text
    report = report_of()
    measured = [msgspec.structs.replace(one, missing={ACK: 2}) for one in report.latencies[0].measurements[:2]]
    late = latency_summary.compared("x", LatencyLoad(), {"a": "A", "b": "B"}, measured, [("a", "b")])
    text = page(msgspec.structs.replace(report, latencies=[late]))
    assert "A: never came, and counts as the time waited (30 s and more): publish → ack: 2" in text
    assert "VOID" not in text


def test_a_page_tells_ratios_of_latencies_round_by_round_and_marks_what_is_the_senders() -> None:
    rounds = [
        msgspec.structs.replace(measurement(name, number, us), histograms={ACK: acked, LATE: late})
        for number in range(3)
        for name, us in (("a", 300 + 100 * number), ("b", 200))
        for acked, late in [[Latencies([each * 1_000] * 1_000).encode() for each in (us, 80)]]
    ]
    titles = {"a": "A", "b": "B"}
    one = latency_summary.compared("x", LatencyLoad(), titles, rounds, [("a", "b")])
    goal = Reach("p99", 1.3, None, None, why="40% of b is the sender's own delay")
    text = page(msgspec.structs.replace(report_of(), latencies=[one], reach=[goal]))
    assert "<td>2.00 × (1.50 to 2.50)*</td>" in text
    assert "<td>0.20*</td>" in text
    assert "<td>0.40</td>" in text
    assert text_of("*: more than a third is the sender's own delay") in text
    assert text_of("not measured: 40% of b is the sender's own delay") in text
