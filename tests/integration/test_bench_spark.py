"""`penstock bench spark`, in small: everything has its turn, and is what it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_bench import spark as measured
from tests.extent import needs_time


@needs_time
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PySpark, about pandas 3
def test_all_is_measured(tmp_path: Path) -> None:
    said: list[str] = []
    plan = measured.SparkPlan(messages=20_000, rounds=1)
    figures = {one.name: one for one in measured.run(plan, tmp_path, said.append)}
    assert len(said) == plan.steps
    assert {f"{goal}-ratio" for goal in ("read", "offsets", "available", "archive", "sink")} <= figures.keys()
    assert all(one.got > 0 for one in figures.values())
