"""Imports without the garbage collector, which is afterwards as it was."""

from __future__ import annotations

import gc

import pytest

from penstock.base.importing import undisturbed


def test_the_collector_rests_meanwhile() -> None:
    with undisturbed():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_comes_back_after_a_failed_import() -> None:
    with pytest.raises(ImportError):
        with undisturbed():
            import penstock.is_not_there  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        with undisturbed():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
