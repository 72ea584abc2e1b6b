"""`penstock bench tls` measures what it says, on few messages."""

from __future__ import annotations

from pathlib import Path

from penstock_bench.experiments.tls import experiment
from tests.extent import needs_time


@needs_time
def test_every_figure_is_found_and_what_was_read_is_what_was_sent(tmp_path: Path) -> None:
    steps: list[str] = []
    plan = experiment(messages=4_096, rounds=1)
    figures = {figure.name: figure for figure in plan.run(tmp_path, steps.append).figures}
    assert len(steps) == plan.steps
    assert set(figures) == {
        *("append-plain", "append-tls", "append-rate", "append-cpu"),
        *("read-plain", "read-tls", "read-rate", "read-cpu"),
        *("still-plain", "still-tls"),
    }
    for what in ("append", "read"):
        of_tls, plain = figures[f"{what}-tls"].got, figures[f"{what}-plain"].got
        assert abs(figures[f"{what}-rate"].got - of_tls / plain) < 1e-9
