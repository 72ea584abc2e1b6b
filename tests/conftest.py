"""Settings and hooks for all tests."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests import hot_modes, rewriting
from tests.costs import Costs, file_of_costs
from tests.extent import SEEDED_BY_CODE, code_seed, examples, why_left_out

# No deadline, and no check of how fast examples are made: both durations depend on the machine more than on the code.
# A failing example is printed as a decorator that replays it, for machines without the example database.
settings.register_profile(
    "penstock",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    max_examples=examples(100),
)
settings.load_profile("penstock")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set the seed before Hypothesis reads its options."""
    if (path := file_of_costs()) is not None:
        config.pluginmanager.register(Costs(path))
    if SEEDED_BY_CODE:
        config.option.hypothesis_seed = str(code_seed())


# In the background of a shell, SIGINT is ignored, and child processes would inherit that: it could not end them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Files of tests are private: brokers and clients refuse files with secrets that other users can read.
os.umask(0o077)

# Long tests begin early, so that none runs alone at the end. Spark is first: one worker runs all of its tests.
_ORDER = ("spark/", "unit/test_build.py", "docs/test_readme.py", "integration/", "crash/", "sim/", "chaos/")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Share the rewriting of test modules with the other workers."""
    if (worker := getattr(session.config, "workerinput", None)) is not None:
        number = int(worker["workerid"].removeprefix("gw"))
        rewriting.write_share(session.config, session.config.args, number, worker["workercount"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that this tier leaves out, and sort by `_ORDER`. Modules stay together: they share fixtures."""
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
    """Run all tests on Spark in one worker: they share a JVM, whose start costs more than most of them."""
    if config.getoption("dist") != "loadscope":
        return None
    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = _scope
    return scheduling


def _scope(test: str) -> str:
    return "tests/spark" if test.startswith("tests/spark/") else test.rpartition("::")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Freeze the collected tests, about twelve thousand, so that garbage collection does not walk them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def pytest_sessionstart() -> None:
    """Exit if a compiled file is older than its source: the tests would run the old code."""
    if stale := hot_modes.load_setup().stale_files():
        pytest.exit(f"not built from the source as it is: {stale}; run `python setup.py build_ext --inplace`", 3)
