"""What holds for every test."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests import hot_modes
from tests.costs import Costs, file_of_costs
from tests.extent import DECIDES, RUNS_ALL, code_seed, examples, why_left_out

# How long an example takes says more about the machine than about the code. A failing example is printed as a
# decorator that replays it, also where the example database is not kept.
settings.register_profile("penstock", deadline=None, print_blob=True, max_examples=examples(100))
settings.load_profile("penstock")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before Hypothesis looks at its options."""
    if (path := file_of_costs()) is not None:
        config.pluginmanager.register(Costs(path))
    if DECIDES:
        config.option.hypothesis_seed = str(code_seed())


# Where the tests run in the background of a shell, SIGINT is ignored, and so it would be by every process that they
# start: those that are to end by it would not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# What tests write is theirs alone: brokers and clients refuse files with secrets that others may read.
os.umask(0o077)

# What takes long begins early, for what begins last decides when all has ended.
_EARLY = (
    *("unit/test_build.py", "unit/hot/test_modes.py", "docs/test_readme.py"),
    *("integration/", "crash/", "sim/", "chaos/", "spark/"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests are left out where there is no time. Whole modules change places: what a module prepares for its tests
    it prepares once.
    """
    root = Path(__file__).parent
    for item in items:
        if item.get_closest_marker("needs_time") and (reason := why_left_out(item.nodeid)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: not item.path.relative_to(root).as_posix().startswith(_EARLY))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker has all tests on Spark, whose start takes longer than most of them; unless all of them are run."""
    if config.getoption("dist") != "loadscope" or RUNS_ALL:
        return None
    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = _scope
    return scheduling


def _scope(test: str) -> str:
    return "tests/spark" if test.startswith("tests/spark/") else test.rpartition("::")[0]


def pytest_sessionstart() -> None:
    """A compiled file that is older than its source would be tested in the source's place."""
    if stale := hot_modes.load_setup().stale_files():
        pytest.exit(f"not built from the source as it is: {stale}; run `python setup.py build_ext --inplace`", 3)
