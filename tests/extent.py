"""How much is tried where chance decides, or where one more round is one more chance: what `make test` has time for.

With LONG_TESTS=1 it is several times as much: `make test ARGS=--long`. The short form is the beginning of the long one.
Some tests take so long that only that runs them, and whoever sets ALL_TESTS=1, as `.ci/run` does; all others look at a
third of the examples without it. So what `make test` does stays below five minutes. Where all tests decide about a
change, chance has a seed that the code itself gives: the same code has the same examples every time, and any other code
has new ones.
"""

from __future__ import annotations

import os
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

IS_LONG = os.environ.get("LONG_TESTS") == "1"

DECIDES = os.environ.get("ALL_TESTS") == "1" and not IS_LONG
"""Whether what chance finds here stands in the way of a change."""

HAS_TIME = IS_LONG or os.environ.get("ALL_TESTS") == "1"

needs_time = pytest.mark.skipif(
    not HAS_TIME,
    reason="takes long: `make test ARGS=--long` runs it",
)


def extent(short: int, long: int) -> int:
    """So many seeds, rounds or examples."""
    assert 0 < short < long
    return long if IS_LONG else short


def examples(count: int) -> int:
    """So many of them, where there is time."""
    return count if HAS_TIME else max(10, count // 3)


@cache
def code_seed() -> int:
    """A number from 0 to 2**32 - 1 that the sources of the package come to, wherever they are."""
    source = Path(__file__).resolve().parents[1] / "src"
    digest = sha256()
    for path in sorted(source.rglob("*.py")):
        digest.update(path.relative_to(source).as_posix().encode() + b"\0" + path.read_bytes())
    return int.from_bytes(digest.digest()[:4])
