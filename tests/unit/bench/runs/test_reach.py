"""Goals: each can be measured by the run that is for it, and takes its ratio from where it says."""

from __future__ import annotations

import msgspec
import pytest

from penstock_bench.machine.facts import Machine
from penstock_bench.measure.histogram import SAMPLES_BEYOND_MIN
from penstock_bench.measure.reader_table import readers_of
from penstock_bench.measure.rounds import Ratio
from penstock_bench.results.report import Comparison, Reach, Report, now
from penstock_bench.runs import latency_run, reach
from penstock_bench.runs.throughput import pairs_of


@pytest.mark.parametrize("short", [False, True])
def test_every_goal_can_be_measured_by_its_own_run(short: bool) -> None:
    plan = reach.planned(short=short).throughput
    names = {f"publish-{load.size}B-w{load.window}-p{load.publishers}" for load in plan.loads}
    names |= {f"read-{load.size}B" for load in plan.reads}
    measured = [*plan.variants, *(reader.name for reader in readers_of(plan.variants))]
    pairs = {f"{one} / {other}" for one, other in pairs_of(measured)}
    for goal in reach.GOALS:
        assert goal.comparison in names
        assert goal.pair in pairs


@pytest.mark.parametrize("rounds", [1, 5, 9])
def test_the_long_run_has_samples_for_every_goal_of_latency(rounds: int) -> None:
    loads = {load.size: load for load in reach.planned(short=False, rounds=rounds).latency.loads}
    for goal in latency_run.GOALS:
        samples = max(1, rounds - 1) * loads[goal.size].plan(0).measured  # one round may be void
        assert samples * (100 - float(goal.percentile)) / 100 >= SAMPLES_BEYOND_MIN - 1e-6


def test_a_short_run_is_shorter_in_everything() -> None:
    short, long = (reach.planned(short=one) for one in (True, False))
    assert short.throughput.loads[0].messages < long.throughput.loads[0].messages
    assert short.latency.seconds < long.latency.seconds / 5
    assert short.scale.messages < long.scale.messages
    assert short.bytes_needed < long.bytes_needed
    assert short.throughput.rounds == long.throughput.rounds


def test_a_bar_has_a_step_for_everything() -> None:
    one, two = (reach.planned(short=True, rounds=rounds).steps for rounds in (1, 2))
    assert 2 * one > two > one > 0


def test_a_goal_takes_its_ratio_from_its_comparison() -> None:
    goal = reach.GOALS[0]
    ratio = Ratio(2.0, 1.0, 3.0, 5)
    comparison = Comparison(
        name=goal.comparison, title="", unit="", systems={}, ratios={goal.pair: ratio}, measurements=[]
    )
    found = reach.reached([comparison])
    assert found[0].got == ratio
    assert [line.what for line in found] == [goal.what for goal in reach.GOALS]
    assert all(line.got is None for line in found[1:])
    noted = msgspec.structs.replace(comparison, notes={goal.pair: "they are unlike"})
    assert reach.reached([noted])[0].what == f"{goal.what} (they are unlike)"


def test_the_goals_of_a_run_that_was_written_are_judged_by_its_comparisons() -> None:
    goal = reach.GOALS[0]
    ratios = {goal.pair: Ratio(2.0, 1.0, 3.0, 5)}
    comparison = Comparison(name=goal.comparison, title="", unit="", systems={}, ratios=ratios, measurements=[])
    facts = Machine("cpu", 2, 8 << 30, "k", "ext4", "py", "0", "compiled", "v2", {}, load_average=0.0)
    stored = [Reach("as an earlier version said it", 1.0, None, Ratio(9.0, 1.0, 3.0, 5))]
    run = Report(kind="reach", command="", started=now(), machine=facts, comparisons=[comparison], reach=stored)
    assert reach.of_report(run) == reach.reached([comparison])
    assert reach.of_report(msgspec.structs.replace(run, reach=[])) == []  # it was stopped before its end
    assert reach.of_report(msgspec.structs.replace(run, kind="latency")) == []
