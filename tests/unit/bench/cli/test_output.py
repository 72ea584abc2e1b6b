"""What tables of results say beside their numbers, on wide and on narrow terminals."""

from __future__ import annotations

from io import StringIO

import msgspec
import pytest
from rich.console import Console

from penstock_bench.cli.output import Shown, steps
from penstock_bench.load.generator import Load
from penstock_bench.measure import latency_summary
from penstock_bench.measure.histogram import Latencies
from penstock_bench.measure.latency import ACK, LATE, LatencyLoad, LatencyMeasurement
from penstock_bench.measure.rounds import Measurement
from penstock_bench.results.report import Comparison, compared
from penstock_bench.runs.throughput import NOTES, pairs_of
from penstock_bench.systems.system import VARIANTS

NAMES = [name for name in VARIANTS if name != "echo-raw"]


def shown_on(width: int, *comparisons: Comparison) -> list[str]:
    text = StringIO()
    shown = Shown(Console(file=text, width=width, soft_wrap=True))  # as `output.console` makes it
    for one in comparisons:
        shown.comparison(one)
    return text.getvalue().splitlines()


def whole(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def everything(*, rounds: int = 5, void: str = "") -> Comparison:
    measurements = [
        Measurement(
            system=name,
            round_number=number,
            value=1_000_000.0 + 1_000.0 * number,
            messages=1_000,
            cpu_seconds={"broker": 0.001, "nats-server": 0.002, "generator": 0.003},
            void="3 messages are missing" if name == void and number == 0 else None,
        )
        for number in range(rounds)
        for name in NAMES
    ]
    return compared(
        name="publish",
        title="acked publish, 256 B",
        titles={name: VARIANTS[name].title for name in NAMES},
        measurements=measurements,
        pairs=pairs_of(NAMES),
        notes=NOTES,
        load=Load(),
    )


def test_what_the_generator_bounds_is_marked_below_its_table() -> None:
    rates = {"a": 90.0, "b": 10.0, "null": 100.0}
    comparison = compared(
        name="x",
        title="x",
        titles={name: name.upper() for name in rates},
        measurements=[Measurement(system=name, round_number=0, value=value) for name, value in rates.items()],
        pairs=[("a", "b")],
        notes={"a / b": "unlike"},
        ceilings={"a": "null", "b": "null"},
    )
    lines = shown_on(120, comparison)
    assert [line.split()[:2] for line in lines if line.startswith(("a ", "b "))][:2] == [["a", "*"], ["b", "10"]]
    assert "* a: bounded by the generator: more than 70% of null" in whole(lines)
    assert "a / b: unlike; a is bounded by the generator" in whole(lines)


def test_no_line_is_wider_than_a_narrow_terminal_and_no_row_is_broken() -> None:
    lines = shown_on(80, everything())
    assert max(map(len, lines)) <= 80
    for name in NAMES:
        (row,) = [line for line in lines if line.startswith(f"{name} ") and " / " not in line]
        assert "1,000,000 to 1,004,000" in row
        assert row.split()[-3:] == ["1.00", "2.00", "3.00"]
    for one, other in pairs_of(NAMES):
        (row,) = [line for line in lines if line.startswith(f"{one} / {other} ")]
        assert row.endswith("1.00 ×")


def test_what_a_name_stands_for_is_told_once() -> None:
    lines = shown_on(80, everything(), everything())
    assert len([line for line in lines if line.endswith("Penstock, durability os")]) == 1
    assert whole(lines).count("it has no broker") == 1


def test_what_is_to_be_known_of_several_ratios_is_told_once() -> None:
    one = everything()
    one.notes.clear()
    one.notes.update({"a / b": "unlike", "c / d": "other", "e / f": "unlike"})
    lines = shown_on(120, one)
    assert "  a / b, e / f: unlike" in lines
    assert "  c / d: other" in lines


def test_another_title_of_a_name_is_told_again() -> None:
    again = everything()
    again.systems["penstock"] = msgspec.structs.replace(again.systems["penstock"], title="Penstock (100 a batch)")
    lines = shown_on(80, everything(), again)
    assert len([line for line in lines if line.startswith("  penstock  Penstock (100 a batch)")]) == 1


def test_rounds_are_counted_once_for_all_or_in_each_row() -> None:
    assert "acked publish, 256 B: messages/s, 5 rounds" in shown_on(120, everything())
    lines = shown_on(120, everything(void="echo"))
    assert "acked publish, 256 B: messages/s" in lines
    assert [line.split()[-1] for line in lines if line.startswith(("echo ", "null "))] == ["4", "5"]
    assert "  echo: 1 of 5 rounds does not count: 3 messages are missing" in lines


def test_one_round_shows_no_spread() -> None:
    text = whole(shown_on(120, everything(rounds=1)))
    assert "1,000,000 1 round: no spread" in text
    assert "penstock / jetstream 1.00 × (1 round: no spread)" in text


def test_a_ratio_of_latencies_has_its_spread_and_what_is_the_senders_is_marked() -> None:
    measurements = [
        LatencyMeasurement(
            system=name,
            round_number=number,
            histograms={path: Latencies([each * 1_000] * 400).encode() for path, each in ((ACK, us), (LATE, 80))},
        )
        for number in range(3)
        for name, us in (("a", 300 + 100 * number), ("b", 200))
    ]
    comparison = latency_summary.compared("256 B", LatencyLoad(), {"a": "A", "b": "B"}, measurements, [("a", "b")])
    text = StringIO()
    Shown(Console(file=text, width=80, soft_wrap=True)).latency(comparison)
    acks = text.getvalue().partition("the sender's own delay")[0].splitlines()
    rows = {line.strip().partition("  ")[0]: line.split() for line in acks}
    assert rows["a"][1] == "0.40"
    assert rows["b"][1] == "0.20*"
    assert rows["a / b"][3:5] == ["2.00", "×"]
    assert rows["a / b"][-2:] == ["2.50", "×°"]  # the 99th: of all rounds as one
    assert rows["least"][1:3] == ["1.50", "×"]
    assert rows["greatest"][1:3] == ["2.50", "×"]
    assert "more than a third is the sender's own delay" in whole(text.getvalue().splitlines())


def test_a_table_does_not_run_into_the_bar() -> None:
    text = StringIO()
    console = Console(file=text, width=80, force_terminal=True, soft_wrap=True)
    with steps(2, console) as step:
        step("penstock")
        console.print("a table")
        step("jetstream")
    assert "━" in text.getvalue()
    assert "\x1b[2Ka table\n" in text.getvalue()  # in a line that was erased before


def test_without_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    text = StringIO()
    with steps(1, Console(file=text, width=80)) as step:
        step("penstock")
    assert text.getvalue() == ""
    assert capsys.readouterr().err.strip() == ""
