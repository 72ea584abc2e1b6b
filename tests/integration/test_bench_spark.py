"""`penstock bench spark`, in small: everything has its turn, and is what it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import OperationalError
from penstock_bench.experiments import spark as measured
from tests.extent import needs_time


@needs_time
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PySpark, about pandas 3
def test_all_is_measured(tmp_path: Path) -> None:
    said: list[str] = []
    plan = measured.experiment(messages=20_000, rounds=1)
    figures = {one.name: one for one in plan.run(tmp_path, said.append).figures}
    assert len(said) == plan.steps
    assert {f"{goal}-ratio" for goal in ("read", "offsets", "available", "archive", "sink")} <= figures.keys()
    assert all(one.got > 0 for one in figures.values())


@needs_time
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PySpark, about pandas 3
def test_the_rows_of_every_measure_are_counted(tmp_path: Path) -> None:
    measured.make(tmp_path, 2_000)
    with measured.turns(tmp_path, 2_001) as turn:
        for name in measured.TITLES:
            with pytest.raises(OperationalError, match="2,000 messages, of 2,001"):
                turn(name, -1)
