"""`penstock bench subjects` with real servers: what it publishes is there, and no time is asserted."""

from __future__ import annotations

from pathlib import Path

from penstock_bench.experiments import subjects
from tests.extent import needs_time


@needs_time
def test_both_servers_take_all_messages_and_find_subjects_after_a_kill(tmp_path: Path) -> None:
    steps: list[str] = []
    plan = subjects.SubjectsPlan(messages=3_000, subjects=100, further=1_000, look_ups=5, window=1_000)
    found = subjects.measure(plan, tmp_path, steps.append)
    assert len(steps) == plan.steps
    for one in found.values():
        assert one.published.keys() == set(subjects.STREAMS)
        assert one.present_us > 0
        assert one.absent_us > 0
    names = [one.name for one in subjects.figures(plan, found)]
    assert len(set(names)) == len(names)
    assert {one.name for one in subjects.figures(plan, found) if one.reach is not None} == {
        "memory", "start", "present", "absent", "expects", "limited",
    }  # fmt: skip
