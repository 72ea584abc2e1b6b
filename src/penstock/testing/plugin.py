"""The pytest plugin: the fixture `penstock_cluster`, the marker `penstock`, three options, and the failure report.

Rules: a test with the fixture runs once per seed, each run a test of its own with the seed in its name. A coroutine
function runs on the cluster; any other test calls `penstock_cluster.run(coroutine())`. A failure shows the command that
repeats the seed, the faults, and the end of the trace. Heavy modules are imported only when a test needs them, because
pytest imports this module in every run on a machine with Penstock.

    @pytest.mark.penstock(seeds=20, brokers=3, faults=True, every_s=4.0, limit_s=3600.0, real_limit_s=60.0)

| option                 | seeds that run                           |
|------------------------|------------------------------------------|
| (none)                 | 0 to `seeds` - 1 of the marker, or 0     |
| `--penstock-seeds=N`   | 0 to N - 1                               |
| `--penstock-seed=S`    | S alone                                  |

`--penstock-trace=FILE` writes the whole trace, for debugging one seed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing.cluster import Cluster

FIXTURE = "penstock_cluster"
_MARKER = "penstock"
_OPTIONS = ("brokers", "every_s", "faults", "limit_s", "real_limit_s", "seeds")
_STORY_LINES = 60
_TRACE_LINES = 15
_SEEDS_MAX = 1_000_000
_CLUSTER = pytest.StashKey["Cluster"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """pytest: add the options."""
    group = parser.getgroup("penstock", "tests on a simulated Penstock cluster")
    group.addoption("--penstock-seed", type=int, metavar="S", help="run simulated tests with this seed alone")
    group.addoption("--penstock-seeds", type=int, metavar="N", help="run simulated tests with the seeds 0 to N - 1")
    group.addoption("--penstock-trace", metavar="FILE", help="write all that happens in simulated tests to this file")


def pytest_configure(config: pytest.Config) -> None:
    """pytest: register the marker."""
    options = "seeds=1, brokers=3, faults=True, every_s=4.0, limit_s=3600.0, real_limit_s=60.0"
    text = f"penstock({options}): how a simulated test is run"
    config.addinivalue_line("markers", text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """pytest: make one test for each seed."""
    if FIXTURE in metafunc.fixturenames:
        wanted = _wanted(metafunc.definition)
        seeds = _seeds(metafunc.config, wanted.get("seeds", 1))
        metafunc.parametrize(FIXTURE, seeds, indirect=True, ids=lambda seed: f"seed{seed}")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """pytest: wrap coroutine functions to run on the cluster, before other plugins see that they are coroutines."""
    found = yield
    for item in found if isinstance(found, list) else [found]:
        if isinstance(item, pytest.Function) and FIXTURE in item.fixturenames:
            test = item.obj
            if inspect.iscoroutinefunction(test):
                item.obj = _on_the_cluster(item, test)
    return found


@pytest.fixture
def penstock_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A simulated Penstock cluster that has not started: `run` starts it, also if the test is a coroutine function."""
    from penstock.testing.cluster import Cluster

    wanted = {"faults": True, **_wanted(request.node)}
    wanted.pop("seeds", None)
    seed = getattr(request, "param", None)
    if seed is None:  # used by another fixture, so it has no seed parameter
        seed = _seeds(request.config, 1)[0]
    with _trace(request) as show:
        cluster = request.node.stash[_CLUSTER] = Cluster(seed, **wanted, show=show)
        yield cluster
    if not cluster.was_run:
        pytest.fail(f"the test has run nothing on {FIXTURE}: make it `async def`, or call {FIXTURE}.run(coroutine())")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """pytest: add the failure report."""
    report = yield
    cluster = item.stash.get(_CLUSTER, None)
    if cluster is not None and report.when == "call" and report.failed:
        name = item.nodeid.partition("[")[0]
        again = f"run it again: pytest '{name}' --penstock-seed={cluster.seed}"
        story, trace = cluster.story[-_STORY_LINES:], cluster.trace[-_TRACE_LINES:]
        lines = [
            cluster.summary(),
            again,
            "what happened (microseconds, who, what):",
            *story,
            f"the end of the trace, which is {cluster.digest} (--penstock-trace=FILE writes all of it):",
            *trace,
        ]
        report.sections.append(("penstock", "\n".join(lines)))
    return report


@contextmanager
def _trace(request: pytest.FixtureRequest) -> Iterator[Callable[[str], None] | None]:
    """Return the function that writes the trace, if requested. Each test's part begins with its name."""
    path = request.config.getoption("--penstock-trace")
    if path is None:
        yield None
        return
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"# {request.node.nodeid}\n")
        yield lambda line: print(line, file=file)


def _on_the_cluster(item: pytest.Function, test: Any) -> Any:
    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        item.stash[_CLUSTER].run(test(*arguments, **fixtures))

    return run


def _wanted(node: Any) -> dict[str, Any]:
    """Return the markers' arguments, the nearest marker first. UsageError."""
    wanted: dict[str, Any] = {}
    for marker in node.iter_markers(_MARKER):
        if marker.args or not set(marker.kwargs) <= set(_OPTIONS):
            text = f"takes {', '.join(_OPTIONS)}, each by its name; not {marker.args or marker.kwargs}"
            raise pytest.UsageError(f"{node.nodeid}: @pytest.mark.{_MARKER} {text}")
        wanted = {**marker.kwargs, **wanted}
    return wanted


def _seeds(config: pytest.Config, count: int) -> list[int]:
    one = config.getoption("--penstock-seed")
    if one is not None:
        return [one]
    asked = config.getoption("--penstock-seeds")
    count = count if asked is None else asked
    if not isinstance(count, int) or not 1 <= count <= _SEEDS_MAX:
        raise pytest.UsageError(f"seeds is {count!r}; it can be 1 to {_SEEDS_MAX}")
    return list(range(count))
