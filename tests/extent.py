"""How much is tried where chance decides, or where one more round is one more chance: what `make test` has time for.

With LONG_TESTS=1 it is several times as much: `make test ARGS=--long`. The short form is the beginning of the long one.
A few tests take so long that only that runs them, and whoever sets ALL_TESTS=1, as `.ci/run` does.
"""

from __future__ import annotations

import os

import pytest

IS_LONG = os.environ.get("LONG_TESTS") == "1"

needs_time = pytest.mark.skipif(
    not IS_LONG and os.environ.get("ALL_TESTS") != "1",
    reason="takes long: `make test ARGS=--long` runs it",
)


def extent(short: int, long: int) -> int:
    """So many seeds, rounds or examples."""
    assert 0 < short < long
    return long if IS_LONG else short
