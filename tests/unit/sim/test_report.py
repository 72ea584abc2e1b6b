"""Counters of a batch, and what is missing in it."""

from __future__ import annotations

from tests.sim.run.report import BATCH_SEEDS_MIN, Report, required
from tests.sim.run.world import RunResult


def result(seed: int, counters: dict[str, int], *, operations: int = 3_000, error: str = "") -> RunResult:
    return RunResult(seed, "", error, operations, 30, 60_000_000, counters)


def test_a_seed_that_does_too_little_is_told() -> None:
    report = Report(1)
    report.add(result(5, {}, operations=10))
    assert report.mistakes() == ["seed 5: 10 operations and 30 faults are too few"]


def test_a_batch_in_which_something_never_happens_is_told() -> None:
    counters = dict.fromkeys(required(1), 1)
    report = Report(1)
    for seed in range(BATCH_SEEDS_MIN):
        report.add(result(seed, counters))
    assert report.mistakes() == []
    del counters["fenced logs"]
    report = Report(1)
    for seed in range(BATCH_SEEDS_MIN):
        report.add(result(seed, counters))
    assert report.mistakes() == [f"it never happened in {BATCH_SEEDS_MIN} seeds: fenced logs"]


def test_a_cluster_has_more_to_happen() -> None:
    assert {"elections", "truncations", "fault: empty disk"} <= set(required(3)) - set(required(1))


def test_what_it_says() -> None:
    report = Report(1)
    report.add(result(1, {"acks": 7}))
    report.add(result(2, {"acks": 5}, error="lost"))
    assert [failed.seed for failed in report.failures] == [2]
    lines = list(report.lines(4.0))
    assert lines[0] == "2 seeds, 6000 operations, 60 faults"
    assert lines[1] == "120 simulated seconds in 4 s: 30 a second"
    assert lines[2].split() == ["acks", "12"]
