"""The hot path, compiled and plain: which of them runs, and that the same tests pass both ways."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import hot
from tests import hot_modes
from tests.extent import each_change, needs_time

ROOT = Path(__file__).resolve().parents[3]
SECONDS_MAX = 180
BOTH_WAYS = (
    "tests/unit/hot",
    "tests/unit/batch",
    "tests/unit/ingest",
    "tests/unit/schemas",
    "tests/property/test_batch_damage.py",
)
"""Tests of what the hot path does: run compiled by the test run itself, and plain by this file."""

RUNS_PLAIN = os.environ.get("PENSTOCK_PLAIN") == "1"


def version(**environment: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    return finished.stdout


@pytest.mark.skipif(RUNS_PLAIN, reason="asked to run plain")
@pytest.mark.skipif(os.environ.get("REQUIRE_CYTHON") != "1", reason="plain is allowed here")
def test_it_is_compiled_where_that_is_required() -> None:
    assert hot.is_compiled(), "REQUIRE_CYTHON=1, but the hot path is plain: run `python setup.py build_ext --inplace`"


def test_all_is_compiled_or_nothing() -> None:
    origins = {name: str(hot_modes.running(name).__file__).endswith(".py") for name in hot_modes.names()}
    assert set(origins.values()) == {not hot.is_compiled()}, origins


@each_change
def test_the_version_says_how_it_runs() -> None:
    assert version().endswith("(hot path: compiled)\n" if hot.is_compiled() else "(hot path: plain Python)\n")
    assert version(PENSTOCK_PLAIN="1").endswith("(hot path: plain Python)\n")


@hot_modes.needs_compiled
def test_plain_and_compiled_modules_lie_side_by_side() -> None:
    before = {name: hot_modes.running(name) for name in hot_modes.names()}
    for name, module in before.items():
        assert str(hot_modes.plain(name).__file__).endswith(".py")
        assert str(module.__file__).endswith(".so")
        assert hot_modes.running(name) is module
        assert getattr(hot, name) is module


@needs_time
@hot_modes.needs_compiled
def test_the_same_tests_pass_plain() -> None:
    present = [path for path in BOTH_WAYS if (ROOT / path).exists()]
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *present],
        cwd=ROOT,
        env={**os.environ, "PENSTOCK_PLAIN": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-5000:]
