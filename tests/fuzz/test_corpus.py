"""Every input that was worth keeping, in both modes of the hot path: what was found once stays mended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import hot
from tests.extent import each_change
from tests.fuzz import corpus
from tests.fuzz.replayed import digests
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def plain() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs all of them plain, meanwhile."""
    environment = {**os.environ, "PENSTOCK_PLAIN": "1"}
    command = [sys.executable, "-m", "tests.fuzz.replayed"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


@each_change
def test_all_of_it_compiled_and_plain(plain: subprocess.Popen[bytes]) -> None:
    here = {target: digests(target) for target in TARGETS}
    said, _ = plain.communicate(timeout=120)
    assert plain.returncode == 0
    there = json.loads(said)
    assert here.keys() == there.keys()
    for target, found in here.items():
        assert found == there[target], target
    if not hot.is_compiled():
        pytest.skip("nothing is compiled: both were plain")


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_some_small_ones(target: str) -> None:
    kept = corpus.read(target)
    assert 0 < len(kept) <= corpus.INPUTS_MAX
    assert all(len(data) <= corpus.BYTES_MAX for data in kept)
    names = sorted(path.name for path in (corpus.KEPT / target).iterdir())
    assert names == sorted(map(corpus.name_of, kept)), "each is named by what it holds"


def test_no_target_is_gone_of_which_inputs_are_kept() -> None:
    assert {path.name for path in corpus.KEPT.iterdir()} == TARGETS.keys()
