"""`penstock bench compaction`: a small run, of which no time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import OperationalError
from penstock_bench.experiments import compaction
from tests.extent import needs_time


@needs_time
def test_a_small_run_measures_everything(tmp_path: Path) -> None:
    steps: list[str] = []
    plan = compaction.experiment(messages=700_000, keys=1_000, rounds=1)  # of 64 MiB are 250,000
    figures = {one.name: one for one in plan.run(tmp_path, steps.append).figures}
    assert len(steps) == plan.steps
    assert all(one.reach is None for one in figures.values())  # it is smaller than what has a goal
    assert all(one.got > 0 for one in figures.values())
    assert figures["compaction-after"].got < figures["compaction-before"].got / 2


def test_a_key_without_its_last_message_fails_a_round(tmp_path: Path) -> None:
    last = compaction.make(tmp_path, messages=2_000, keys=10)
    compaction.check(tmp_path, last)
    last[3] = 2_000
    with pytest.raises(OperationalError, match="1 keys have lost their last message, as that at offset 2000"):
        compaction.check(tmp_path, last)


def test_what_fails_in_its_process_says_why(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match=r"^the copy of the log failed: FileNotFoundError: .*No such file"):
        compaction.in_a_process("copy", tmp_path)
