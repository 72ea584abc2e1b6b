"""Results as data: derived numbers stand beside what they come from, and a report can be read again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock_bench.load.generator import Load
from penstock_bench.machine.facts import Machine, file_system, machine
from penstock_bench.measure.latency import ACK, LATE, LatencyLoad
from penstock_bench.measure.latency_summary import LatencyComparison, LatencyRatio
from penstock_bench.measure.rounds import Measurement, Ratio
from penstock_bench.results.report import (
    Comparison,
    Figure,
    Reach,
    Report,
    busy_text,
    compared,
    now,
    read_json,
    short_text,
    write_json,
)

FACTS = Machine("cpu", 2, 8 << 30, "k", "ext4", "py", "0", "compiled", "v2", {}, load_average=1.0)
MEASUREMENTS = [
    Measurement(system="a", round_number=0, value=30.0, messages=1_000, cpu_seconds={"broker": 0.002}),
    Measurement(system="b", round_number=0, value=10.0, messages=1_000, cpu_seconds={"broker": 0.004}),
    Measurement(system="b", round_number=1, value=0.0, void="10 were acked, 9 came back"),
    Measurement(system="a", round_number=1, value=20.0, messages=1_000, cpu_seconds={"broker": 0.004}),
]


def report_of(tmp_path: Path) -> Report:
    comparison = compared(
        name="publish",
        title="Publish",
        titles={"a": "A", "b": "B"},
        measurements=MEASUREMENTS,
        pairs=[("a", "b"), ("a", "nobody")],
        notes={"a / b": "a is not b", "a / nobody": "nobody is there"},
        load=Load(),
    )
    return Report(
        kind="throughput",
        command="penstock bench throughput",
        started=now(),
        machine=machine(tmp_path),
        comparisons=[comparison],
        reach=[Reach("more", 1.5, 3.0, Ratio(3.0, 3.0, 3.0, 1))],
    )


def test_medians_spread_cpu_and_void_rounds(tmp_path: Path) -> None:
    (comparison,) = report_of(tmp_path).comparisons
    a, b = comparison.systems["a"], comparison.systems["b"]
    assert (a.median, a.low, a.high, a.rounds, a.void) == (25.0, 20.0, 30.0, 2, 0)
    assert a.cpu_us_per_message == {"broker": pytest.approx(3.0)}
    assert (b.median, b.rounds, b.void, b.void_reason) == (10.0, 1, 1, "10 were acked, 9 came back")
    assert comparison.ratios == {"a / b": Ratio(3.0, 3.0, 3.0, 1)}
    assert comparison.notes == {"a / b": "a is not b"}
    assert comparison.cpu_ratios == {"a / b": Ratio(0.5, 0.5, 0.5, 1)}


def rates(**values: float) -> Comparison:
    measurements = [Measurement(system=name, round_number=0, value=value) for name, value in values.items()]
    measurements.append(Measurement(system="broken", round_number=0, void="no"))
    titles = {one.system: one.system for one in measurements}
    ceilings = {"fast": "null", "slow": "null", "echo": "null", "broken": "null", "lost": "gone"}
    return compared(
        name="publish",
        title="Publish",
        titles=titles,
        measurements=measurements,
        pairs=[("fast", "slow"), ("slow", "echo")],
        notes={"fast / slow": "unlike"},
        ceilings=ceilings,
    )


def test_a_rate_near_the_generators_ceiling_is_marked_and_so_are_its_ratios() -> None:
    found = rates(fast=71.0, slow=69.0, echo=10.0, lost=5.0, null=100.0)
    assert {name: one.bounded_by for name, one in found.systems.items()} == {
        "fast": "null",
        "slow": "",
        "echo": "",
        "lost": "",
        "null": "",
        "broken": "",
    }
    assert found.notes["fast / slow"] == "unlike; fast is bounded by the generator"
    assert "slow / echo" not in found.notes
    both = rates(fast=80.0, slow=90.0, echo=95.0, null=100.0).notes
    assert both["fast / slow"] == "unlike; fast, slow are bounded by the generator"
    assert both["slow / echo"] == "slow, echo are bounded by the generator"


def test_a_ceiling_that_was_not_measured_bounds_nothing() -> None:
    assert not any(one.bounded_by for one in rates(fast=71.0, slow=69.0, echo=10.0).systems.values())


def unsteady(**high: float) -> Comparison:
    """Two rounds of each: one of 10, and the other."""
    measurements = [
        Measurement(system=name.replace("_", "-"), round_number=number, value=value)
        for name, most in high.items()
        for number, value in enumerate((10.0, most))
    ]
    titles = {one.system: one.system for one in measurements}
    return compared(name="x", title="Publish", titles=titles, measurements=measurements, pairs=[])


@pytest.mark.parametrize(
    ("comparisons", "told"),
    [
        (
            [unsteady(penstock=11.0, jetstream=31.0), unsteady(jetstream_always=25.0, echo=12.0)],
            "The rounds of jetstream lie 3.1 times apart (Publish), and those of others do not: ",
        ),
        ([unsteady(penstock=21.0, jetstream=31.0)], "The machine was busy: rounds of jetstream lie 3.1 times apart"),
        ([unsteady(penstock=31.0, penstock_os=10.0)], "The machine was busy: rounds of penstock lie 3.1 times apart"),
    ],
)
def test_the_machine_is_not_blamed_for_what_one_product_does(comparisons: list[Comparison], told: str) -> None:
    report = Report(kind="throughput", command="it", started=now(), machine=FACTS, comparisons=comparisons)
    assert busy_text(report).startswith(told)
    loaded = msgspec.structs.replace(report, machine=msgspec.structs.replace(FACTS, load_average=1.5))
    assert busy_text(loaded).startswith("The machine was busy: its load average was")


def test_a_machine_that_was_busy_is_told() -> None:
    quiet = Report(kind="throughput", command="it", started=now(), machine=FACTS, comparisons=[rates(fast=1.0)])
    assert busy_text(quiet) == ""
    loaded = msgspec.structs.replace(quiet, machine=msgspec.structs.replace(FACTS, load_average=1.5))
    assert "its load average was 1.5 on 2 cores before the run." in busy_text(loaded)
    measurements = [Measurement(system="a", round_number=n, value=value) for n, value in enumerate((10.0, 31.0))]
    wide = compared(name="x", title="Publish", titles={"a": "A"}, measurements=measurements, pairs=[])
    varied = msgspec.structs.replace(quiet, comparisons=[*quiet.comparisons, wide])
    assert "rounds of a lie 3.1 times apart (Publish)." in busy_text(varied)
    late = {ACK: {"50": LatencyRatio(2.0, Ratio(2.0, 1.0, 4.0, 5))}, LATE: {"50": LatencyRatio(2.0, Ratio(2, 1, 9, 5))}}
    slow = LatencyComparison(title="1 MB", load=LatencyLoad(), systems={}, ratios={"a / b": late}, measurements=[])
    told = busy_text(msgspec.structs.replace(quiet, latencies=[slow]))
    assert "rounds of a / b lie 4.0 times apart (their median publish → ack, 1 MB)." in told


def test_a_report_can_be_read_again(tmp_path: Path) -> None:
    written = report_of(tmp_path)
    write_json(written, tmp_path / "report.json")
    assert read_json(tmp_path / "report.json") == written


def test_a_report_of_before_goals_had_reasons_and_figures_a_spread_can_be_read(tmp_path: Path) -> None:
    figure = Figure("long-start", "start", "s", 0.5, 2.0)
    written = msgspec.structs.replace(report_of(tmp_path), figures=[figure])
    as_data = msgspec.to_builtins(written)
    for one in as_data["reach"]:
        del one["why"]
    for one in as_data["figures"]:
        del one["low"], one["high"]
    (tmp_path / "old.json").write_bytes(msgspec.json.encode(as_data))
    assert read_json(tmp_path / "old.json") == written


def test_what_is_no_report_is_named(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"kind": 5}')
    with pytest.raises(ValueError, match=r"other\.json is no report"):
        read_json(file)
    file.write_bytes(b"\x00\xff")
    with pytest.raises(ValueError, match=r"other\.json is no report"):
        read_json(file)


def test_a_report_of_a_later_format_says_what_would_read_it(tmp_path: Path) -> None:
    file = tmp_path / "later.json"
    file.write_text('{"format": 2, "kind": {"all": "is different"}}')
    with pytest.raises(ValueError, match=r"later\.json is of format 2, and this Penstock reads up to 1: .* newer"):
        read_json(file)


@pytest.mark.parametrize(
    ("reach", "reached"),
    [
        (Reach("at least", 1.5, 3.0, Ratio(1.5, 1.0, 2.0, 5)), True),
        (Reach("at least", 1.5, 3.0, Ratio(1.4, 1.0, 2.0, 5)), False),
        (Reach("at most", 1.3, 1.0, Ratio(1.3, 1.0, 2.0, 5), at_most=True), True),
        (Reach("at most", 1.3, 1.0, Ratio(1.4, 1.0, 2.0, 5), at_most=True), False),
        (Reach("not measured", 1.3, None, None), None),
    ],
)
def test_a_goal_is_reached_by_the_median(reach: Reach, reached: bool | None) -> None:
    assert reach.is_reached is reached


def test_the_facts_of_the_machine(tmp_path: Path) -> None:
    facts = machine(tmp_path)
    assert facts.cores >= 1
    assert facts.memory_bytes > 0
    assert facts.nats_server.startswith("v2.")
    assert facts.hot_path in {"compiled", "plain Python"}
    assert "pyarrow" in facts.packages
    assert facts.file_system == file_system(tmp_path / "not" / "there")


@pytest.mark.parametrize(("got", "reach", "is_reached"), [(3.0, 3.0, True), (3.1, 3.0, False), (1.0, None, None)])
def test_a_figure_is_reached_by_less(got: float, reach: float | None, is_reached: bool | None) -> None:
    assert Figure("idle-cpu", "CPU", "%", got, reach).is_reached is is_reached


def test_rounds_that_are_too_short_to_say_much_are_told() -> None:
    seconds = {"penstock": 0.025, "jetstream": 0.3, "null": 0.001}
    measurements = [
        Measurement(system=name, round_number=number, value=1.0, seconds=one)
        for number in range(3)
        for name, one in seconds.items()
    ]
    named = {"title": "x", "titles": {name: name for name in seconds}, "measurements": measurements, "pairs": []}
    found = compared(name="publish-256B", **named)  # type: ignore[arg-type]
    assert short_text(found) == "penstock: rounds of 25 ms are too short to compare: raise --messages"
    assert short_text(compared(name="read-256B", **named)) == ""  # type: ignore[arg-type]
    assert short_text(msgspec.structs.replace(found, measurements=measurements[1:2])) == ""
