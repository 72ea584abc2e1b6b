"""Times that are there or not."""

from __future__ import annotations

from penstock.base.clock import earliest


def test_the_first_time_counts_and_none_is_no_time() -> None:
    assert earliest() is None
    assert earliest(None, None) is None
    assert earliest(None, 7, 0, 3) == 0
    assert earliest(5, None, 4) == 4
