"""A latency run: what a wish becomes, and which goals it answers."""

from __future__ import annotations

import msgspec
import pytest

from penstock_bench.measure import latency_summary
from penstock_bench.measure.histogram import Latencies
from penstock_bench.measure.latency import ACK, LATE, LatencyLoad, LatencyMeasurement
from penstock_bench.runs.latency_run import LatencyWish, planned, reached, size_text, too_short_for
from tests.extent import each_change


def test_without_a_wish_it_is_the_run_of_the_article() -> None:
    plan = planned(LatencyWish())
    assert [load.size for load in plan.loads] == [256, 1_024, 5_120, 1_000_000]
    assert {(load.rate_per_s, load.seconds, load.consumer) for load in plan.loads} == {(50.0, 30.0, True)}
    assert plan.variants == ("penstock", "penstock-os", "echo")
    assert plan.rounds == 5
    assert plan.measurements == 4 * 3 * 5
    assert plan.seconds == pytest.approx(4 * 3 * 5 * 32)


def test_a_wish_is_fulfilled() -> None:
    wish = LatencyWish(("jetstream",), (), (1_000, 256, 1_000), 10.0, 3.0, 2, consumer=False)
    plan = planned(wish)
    assert [load.size for load in plan.loads] == [1_000, 256]
    assert plan.loads[0] == LatencyLoad(1_000, 10.0, 3.0, consumer=False)
    assert plan.variants == ("penstock", "penstock-os", "jetstream", "echo")
    assert planned(wish._replace(only=("null", "echo", "null"))).variants == ("null", "echo")
    every = planned(wish._replace(every=True))
    assert {"penstock-memory", "jetstream-always", "jetstream-memory"} <= set(every.variants)


def test_a_short_run_is_a_matter_of_minutes() -> None:
    plan = planned(LatencyWish(("jetstream",), short=True))
    assert plan.seconds < 6 * 60
    assert planned(LatencyWish(short=True, seconds=1.0, sizes=(8,))).loads == (LatencyLoad(8, 50.0, 1.0),)


def test_the_disk_has_room_for_what_is_sent() -> None:
    plan = planned(LatencyWish())
    assert plan.bytes_needed > 2 * 50 * 31 * 1_000_000


@pytest.mark.parametrize(
    ("size", "text"), [(8, "8 B"), (256, "256 B"), (1_024, "1 KiB"), (5_120, "5 KiB"), (1_000_000, "1 MB")]
)
def test_sizes_as_people_say_them(size: int, text: str) -> None:
    assert size_text(size) == text


def compared(
    size: int, rounds: int, *, ours_us: int = 300, rate: float = 50.0, late_us: int = 30
) -> latency_summary.LatencyComparison:
    measurements = [
        LatencyMeasurement(
            system=name,
            round_number=number,
            histograms={
                path: Latencies([us * 1_000] * 1_500).encode() for path, us in ((ACK, acked_us), (LATE, late_us))
            },
        )
        for number in range(rounds)
        for name, acked_us in (("penstock", ours_us + number), ("jetstream", 200))
    ]
    titles = {"penstock": "P", "jetstream": "J"}
    load = LatencyLoad(size, rate)
    return latency_summary.compared("x", load, titles, measurements, [("penstock", "jetstream")])


def test_goals_are_told_with_the_spread_of_the_rounds_that_say_it() -> None:
    lines = reached([compared(256, 7)])
    assert [(line.what.split(": ")[0], line.at_most) for line in lines] == [
        ("ack at 50/s, 256 B, p99", True),
        ("ack at 50/s, 256 B, p99.9", True),
    ]
    first, last = lines
    assert first.got is not None
    assert last.got is not None
    assert first.got.low < first.got.median <= first.got.high
    assert (first.got.rounds, last.got.rounds) == (7, 1)
    assert last.got.low == last.got.median == last.got.high
    assert (first.got.pooled, last.got.pooled) == (False, True)
    assert [line.is_reached for line in lines] == [False, False]
    assert [line.is_reached for line in reached([compared(256, 7, ours_us=240)])] == [True, True]


def test_a_goal_is_not_judged_by_the_delay_of_the_sender() -> None:
    lines = reached([compared(256, 7, ours_us=1_000, late_us=80)])
    assert [(line.got, line.is_reached) for line in lines] == [(None, None)] * 2
    assert [line.why for line in lines] == ["40% of jetstream is the sender's own delay"] * 2
    assert [line.is_reached for line in reached([compared(256, 7, ours_us=1_000, late_us=60)])] == [False] * 2


def test_a_goal_that_a_run_is_too_short_for_is_not_measured() -> None:
    lines = reached([compared(256, 2)])
    assert [line.is_reached for line in lines] == [False, None]
    assert lines[1].what.endswith("p99.9: penstock / jetstream")
    assert [line.why for line in lines] == ["", "needs 10,000 samples, 3,000 are there"]


def test_a_megabyte_has_a_goal_of_its_own() -> None:
    (line,) = reached([compared(1_000_000, 1, ours_us=190)])
    assert (line.reach, line.stretch, line.is_reached) == (1.0, 0.5, True)


@each_change
def test_other_rates_and_sizes_have_no_goals() -> None:
    assert reached([compared(256, 7, rate=100.0), compared(2_000, 7)]) == []


@each_change
def test_a_goal_with_void_rounds_says_so() -> None:
    whole = compared(256, 7, ours_us=240)
    void = LatencyMeasurement(system="penstock", round_number=7, void="it broke")
    theirs = msgspec.structs.replace(whole.measurements[1], round_number=7)
    pairs = [("penstock", "jetstream")]
    found = latency_summary.compared(
        "x", LatencyLoad(256), {"penstock": "P", "jetstream": "J"}, [*whole.measurements, void, theirs], pairs
    )
    assert all("1 round VOID" in line.what for line in reached([found]))
    assert not any("VOID" in line.what for line in reached([whole]))


def test_a_run_says_beforehand_which_goals_it_is_too_short_for_and_how_long_is_long_enough() -> None:
    wish = LatencyWish(("jetstream",))
    (told,) = too_short_for(planned(wish))
    assert told == (
        "The goals at p99.9 of 256 B, 1 KiB, 5 KiB need 10,000 samples of a size, 5 rounds of 30 s make 7,500: "
        "--duration 40s answers them."
    )
    assert too_short_for(planned(wish._replace(seconds=40.0))) == []
    assert too_short_for(planned(LatencyWish(only=("penstock",)))) == []  # nothing beside it: there is no goal
    assert too_short_for(planned(wish._replace(rate_per_s=10.0))) == []
    short = too_short_for(planned(wish._replace(short=True)))
    assert [line.split(" need ")[0] for line in short] == ["The goals at p99.9 of 256 B"]
    assert short[0].endswith("--duration 40s answers them.")
