"""The tiers of the test run: which tests each of them runs, and how many examples, seeds and rounds it tries.

TESTS names the tier. A test marked with `each_change` takes seconds, one marked with `needs_time` longer. Tests of the
WORKSHOP (benchmarks, builds, demonstrations, exhaustive runs) belong to the last two tiers.

| tier     | run by                  | `each_change` | `needs_time` | WORKSHOP | examples      | seed       |
|----------|-------------------------|---------------|--------------|----------|---------------|------------|
| `quick`  | `make test`; no Spark   | no            | no           | no       | a sixth       | Hypothesis |
| `change` | `.ci/run`               | yes           | an eighth    | no       | all           | the code   |
| `full`   | `make test ARGS=--full` | yes           | yes          | yes      | all           | the code   |
| `long`   | `make test ARGS=--long` | yes           | yes          | yes      | several times | Hypothesis |

Where the code gives the seed, the same code has the same examples and the same eighth of the long tests on every
machine, and other code has others: a long test runs in one change of eight, on average.

Of the folders in _MANY the quick tier runs an eighth, also of tests without a mark.
"""

from __future__ import annotations

import os
from enum import StrEnum
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest


class Tier(StrEnum):
    """Test tiers, from the fastest to the slowest."""

    QUICK = "quick"
    CHANGE = "change"
    FULL = "full"
    LONG = "long"


TIER = Tier(os.environ.get("TESTS") or Tier.QUICK)

IS_LONG = TIER is Tier.LONG
HAS_TIME = TIER is not Tier.QUICK
RUNS_ALL = TIER in (Tier.FULL, Tier.LONG)

SEEDED_BY_CODE = TIER in (Tier.CHANGE, Tier.FULL)
"""True in runs that decide about a change: the result must not depend on randomness."""

WORKSHOP = (
    "compat/test_older_version.py",
    "docs/test_benchmark.py",
    "docs/test_readme.py",
    "docs/test_site.py",
    "integration/test_bench",
    "integration/test_core_install.py",
    "integration/test_demo",
    "integration/test_image.py",
    "spark/test_demo.py",
    "unit/bench/",
    "unit/hot/test_modes.py",
    "unit/test_build.py",
    "unit/test_deploy.py",
)
"""Files below tests/ whose long tests run only in the last two tiers."""

each_change = pytest.mark.skipif(not HAS_TIME, reason="takes seconds: TESTS=change or `make test ARGS=--full` runs it")
needs_time = pytest.mark.needs_time
_PARTS = 8
_SPARK = "tests/spark/"
_MANY = ("tests/integration/", "tests/scenarios/cluster/", "tests/sim/")  # of these the quick tier runs one part


def why_left_out(test: str, *, needs_time: bool) -> str | None:
    """Return why this tier does not run a test, given its full name and whether it has that mark; None: it runs."""
    if not HAS_TIME:
        if needs_time:
            return "takes long: `make test ARGS=--full` runs it"
        if test.startswith(_SPARK):
            return "starts Spark: TESTS=change or `make test ARGS=--full` runs it"
        if test.startswith(_MANY) and not is_in_part(test, code_seed()):
            return "one of many: TESTS=change or `make test ARGS=--full` runs it"
    if RUNS_ALL or not needs_time:
        return None
    if test.removeprefix("tests/").startswith(WORKSHOP):
        return "of the workshop: `make test ARGS=--full` runs it"
    if not is_in_part(test, code_seed()):
        return "takes long: other changes run it, or `make test ARGS=--full`"
    return None


def is_in_part(test: str, seed: int) -> bool:
    """Return whether a test is in the part that this seed runs. Seeds that follow each other run all parts."""
    return (int.from_bytes(sha256(test.encode()).digest()[:4]) + seed) % _PARTS == 0


def extent(short: int, long: int) -> int:
    """Return how many seeds, rounds or examples this tier tries."""
    assert 0 < short < long
    return long if IS_LONG else short


def examples(count: int) -> int:
    """Return how many examples this tier tries of those that `.ci/run` tries."""
    return count if HAS_TIME else max(10, count // 6)


@cache
def code_seed() -> int:
    """Return a number from 0 to 2**32 - 1 that is computed from the package's sources, wherever they lie."""
    root = Path(__file__).resolve().parents[1]
    digest = sha256()
    for source in (root / "src", root / "bench" / "src"):
        for path in sorted(source.rglob("*.py")):
            digest.update(path.relative_to(source).as_posix().encode() + b"\0" + path.read_bytes())
    return int.from_bytes(digest.digest()[:4])
