"""Divides the rewriting of test modules among the workers of a run.

Pytest rewrites the assertions of each test module and keeps the result in `__pycache__`: half a minute of CPU for all
of them. In a fresh checkout each worker would rewrite them all, at the same time. So each first writes its share, and
then finds the shares of the others. It uses what pytest itself calls; what it has not written, pytest writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def write_share(config: pytest.Config, places: Iterable[str], number: int, count: int) -> int:
    """Write the modules of worker `number` of `count` that are not written yet; return how many these were."""
    if sys.dont_write_bytecode:
        return 0
    written = 0
    for path in _modules(places)[number::count]:
        kept = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(path, kept) is not None or not rewrite.try_makedirs(kept.parent):
            continue
        source, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, kept)
        written += 1
    return written


def _modules(places: Iterable[str]) -> list[Path]:
    """Return the test modules in the folders among the arguments of a run, in the same order in each worker."""
    folders = [path for path in map(Path, places) if path.is_dir()]
    return sorted({path.resolve() for folder in folders for path in folder.rglob("test_*.py")})
