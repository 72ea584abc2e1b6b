"""`penstock bench decode` measures what it says, on few messages."""

from __future__ import annotations

from pathlib import Path

from penstock_bench.experiments.decoding import experiment
from tests.extent import needs_time


@needs_time
def test_all_decode_the_same_values_and_every_figure_is_found(tmp_path: Path) -> None:
    steps: list[str] = []
    plan = experiment(messages=11_000, rounds=1)
    found = plan.run(tmp_path, steps.append)
    figures = {figure.name: figure for figure in found.figures}
    assert (len(steps), found.notes) == (plan.steps, ())
    assert set(figures) == {"columns", "thrift", "json", "polars", "columns-thrift", "json-polars"}
    for name, of, against in (("columns-thrift", "columns", "thrift"), ("json-polars", "json", "polars")):
        assert abs(figures[name].got - figures[of].got / figures[against].got) < 1e-9
