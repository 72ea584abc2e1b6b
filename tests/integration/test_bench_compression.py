"""`penstock bench compression`: a small run, of which no time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.config import Compression
from penstock.base.errors import OperationalError
from penstock_bench.experiments import compaction, compression
from tests.extent import needs_time


@needs_time
def test_a_small_run_measures_everything(tmp_path: Path) -> None:
    steps: list[str] = []
    plan = compression.experiment(messages=150_000, rounds=1)
    figures = {one.name: one for one in plan.run(tmp_path, steps.append).figures}
    assert len(steps) == plan.steps
    assert all(one.got > 0 for one in figures.values())
    assert figures["zstd-size"].got < figures["lz4-size"].got < 0.8 * figures["none-size"].got


@needs_time
def test_a_log_that_is_read_otherwise_fails_a_round(tmp_path: Path) -> None:
    crc = compression.make(tmp_path / "made", messages=1_000)
    with pytest.raises(OperationalError, match="1,000 messages were read that are not the 1,000 that were made"):
        compression.read(tmp_path / "made", 1_000, crc + 1)


def test_what_fails_in_its_process_says_why(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match=r"^the cleaning of the log failed: ValueError"):
        compression.in_a_process(tmp_path, Compression.LZ4)


@needs_time
def test_compaction_of_a_compressed_log(tmp_path: Path) -> None:
    plan = compaction.experiment(messages=700_000, keys=1_000, rounds=1, compression=Compression.ZSTD)
    figures = {one.name: one for one in plan.run(tmp_path, lambda _: None).figures}
    assert figures["compaction-before"].got < 120, "it was compressed before"
    assert figures["compaction-after"].got < figures["compaction-before"].got
