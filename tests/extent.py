"""How much is tried where chance decides, or where one more round is one more chance: what `make test` has time for.

With LONG_TESTS=1 it is several times as much: `make test ARGS=--long`. The short form is the beginning of the long one.
Tests that take some seconds are marked with `each_change`: `make test` leaves them out, since people wait for it; each
change has to pass them. Those that take longer are marked with `needs_time`. Where the tests decide about a change,
chance has a seed that the code itself gives: the same code has the same examples and the same long tests every time,
and any other code has others.

| set by                     | is              | `each_change` | `needs_time` | examples      | seed of chance |
|----------------------------|-----------------|---------------|--------------|---------------|----------------|
| nobody: `make test`        |                 | none          | none         | a sixth       | Hypothesis'    |
| `.ci/run`                  | ALL_TESTS=third | all           | one of three | all           | the code       |
| who wants to have run them | ALL_TESTS=1     | all           | all          | all           | the code       |
| `make test ARGS=--long`    | LONG_TESTS=1    | all           | all          | several times | Hypothesis'    |
"""

from __future__ import annotations

import os
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

IS_LONG = os.environ.get("LONG_TESTS") == "1"

_ALL_TESTS = os.environ.get("ALL_TESTS", "")
_THIRD = "third"
assert _ALL_TESTS in ("", "0", "1", _THIRD), f"ALL_TESTS is 1 or {_THIRD}, not {_ALL_TESTS}"

DECIDES = _ALL_TESTS in ("1", _THIRD) and not IS_LONG
"""Whether what chance finds here stands in the way of a change."""

HAS_TIME = IS_LONG or DECIDES

RUNS_ALL = IS_LONG or _ALL_TESTS == "1"
"""Whether every long test is run."""

each_change = pytest.mark.skipif(not HAS_TIME, reason="takes some seconds: `make test ARGS=--long` runs it")
needs_time = pytest.mark.needs_time
_PARTS = 3


def why_left_out(test: str) -> str | None:
    """Why a test that needs time is not run, by its full name; None: it is."""
    if not HAS_TIME:
        return "takes long: `make test ARGS=--long` runs it"
    if not RUNS_ALL and not is_in_part(test, code_seed()):
        return "takes long: other changes run it, or `make test ARGS=--long`"
    return None


def is_in_part(test: str, seed: int) -> bool:
    """Whether a test is one of the third that this seed runs. Seeds that follow each other run all of them."""
    return (int.from_bytes(sha256(test.encode()).digest()[:4]) + seed) % _PARTS == 0


def extent(short: int, long: int) -> int:
    """So many seeds, rounds or examples."""
    assert 0 < short < long
    return long if IS_LONG else short


def examples(count: int) -> int:
    """So many of them, where there is time."""
    return count if HAS_TIME else max(10, count // 6)


@cache
def code_seed() -> int:
    """A number from 0 to 2**32 - 1 that the sources of the package come to, wherever they are."""
    source = Path(__file__).resolve().parents[1] / "src"
    digest = sha256()
    for path in sorted(source.rglob("*.py")):
        digest.update(path.relative_to(source).as_posix().encode() + b"\0" + path.read_bytes())
    return int.from_bytes(digest.digest()[:4])
