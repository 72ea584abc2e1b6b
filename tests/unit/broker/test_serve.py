"""What a broker does around its start."""

from __future__ import annotations

import gc

import pytest

from penstock.broker.serve import made_to_stay


def test_what_a_start_makes_is_not_looked_at_again() -> None:
    before = gc.get_freeze_count()
    try:
        with made_to_stay():
            assert not gc.isenabled()
            made = [[number] for number in range(1_000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() - before > len(made)
        assert not any(one is made for one in gc.get_objects())
    finally:
        gc.unfreeze()


def test_a_start_that_fails_leaves_the_collector_at_work() -> None:
    with pytest.raises(OSError, match="no"), made_to_stay():
        raise OSError("no")
    assert gc.isenabled()
