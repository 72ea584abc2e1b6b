"""How much is tried where chance decides, or where one more round is one more chance: what `make test` has time for.

With LONG_TESTS=1 it is several times as much: `make test ARGS=--long`. The short form is the beginning of the long one.
"""

from __future__ import annotations

import os

IS_LONG = os.environ.get("LONG_TESTS") == "1"


def extent(short: int, long: int) -> int:
    """So many seeds, rounds or examples."""
    assert 0 < short < long
    return long if IS_LONG else short
