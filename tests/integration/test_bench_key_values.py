"""`penstock bench key-values` with real servers: every figure is there, and no time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_bench.experiments.key_values import experiment
from tests.extent import needs_time


@needs_time
@pytest.mark.parametrize("replicas", [1, 3])
def test_both_servers_take_and_give_all_keys(tmp_path: Path, replicas: int) -> None:
    plan = experiment(keys=300, replicas=replicas, operations=200, rounds=1)
    steps: list[str] = []
    found = plan.run(tmp_path, steps.append)
    assert len(steps) == plan.steps
    assert not found.notes
    assert [one.name for one in found.figures] == [row.name for row in plan.rows]
    assert all(one.got > 0 for one in found.figures if not one.name.endswith("-cpu"))
