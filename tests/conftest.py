"""What holds for every test."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests import hot_modes
from tests.costs import Costs, file_of_costs
from tests.extent import SEEDED_BY_CODE, code_seed, examples, why_left_out

# How long an example takes says more about the machine than about the code. A failing example is printed as a
# decorator that replays it, also where the example database is not kept.
settings.register_profile("penstock", deadline=None, print_blob=True, max_examples=examples(100))
settings.load_profile("penstock")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before Hypothesis looks at its options."""
    if (path := file_of_costs()) is not None:
        config.pluginmanager.register(Costs(path))
    if SEEDED_BY_CODE:
        config.option.hypothesis_seed = str(code_seed())


# Where the tests run in the background of a shell, SIGINT is ignored, and so it would be by every process that they
# start: those that are to end by it would not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# What tests write is theirs alone: brokers and clients refuse files with secrets that others may read.
os.umask(0o077)

# What takes long begins early, for what begins last decides when all has ended. Spark is first: one worker has it all.
_ORDER = ("spark/", "unit/test_build.py", "docs/test_readme.py", "integration/", "crash/", "sim/", "chaos/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests are left out where there is no time. Whole modules change places: what a module prepares for its tests
    it prepares once.
    """
    root = Path(__file__).parent
    for item in items:
        needs_time = item.get_closest_marker("needs_time") is not None
        if (reason := why_left_out(item.nodeid, needs_time=needs_time)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(root).as_posix()
        return next((number for number, start in enumerate(_ORDER) if path.startswith(start)), len(_ORDER))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker has all tests on Spark: they share one JVM, whose start costs more than most of them."""
    if config.getoption("dist") != "loadscope":
        return None
    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = _scope
    return scheduling


def _scope(test: str) -> str:
    return "tests/spark" if test.startswith("tests/spark/") else test.rpartition("::")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Twelve thousand tests stay in memory: garbage collection need not walk them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def pytest_sessionstart() -> None:
    """A compiled file that is older than its source would be tested in the source's place."""
    if stale := hot_modes.load_setup().stale_files():
        pytest.exit(f"not built from the source as it is: {stale}; run `python setup.py build_ext --inplace`", 3)
