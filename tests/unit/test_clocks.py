"""No unit test and no property judges a time, which says more about the machine than about the code.

Count work instead: lines (`tests.work`), calls, comparisons, bytes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.extent import each_change

TESTS = Path(__file__).resolve().parents[1]
CLOCKS = {
    *("clock_gettime", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time"),
    *("process_time_ns", "thread_time", "thread_time_ns", "time_ns", "times", "timeit", "ru_utime", "ru_stime"),
}
# Modules whose subject is a clock: what they read is what they test, or it bounds how long they wait for a process.
THEIR_SUBJECT = {
    "unit/bench/machine/test_process_tree.py": "the CPU time of a tree of processes",
    "unit/bench/machine/test_processes.py": "the CPU time of a process",
    "unit/broker/config/test_tls_settings.py": "how long a certificate is valid",
    "unit/testing/test_loop.py": "the clocks that a program sees while it is simulated",
}


def clocks_read(source: str) -> Iterator[int]:
    """The lines in which a clock of the machine is read."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) if name in CLOCKS:
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr="time", value=ast.Name(id="time"))):
                yield node.lineno
            case ast.ImportFrom(module="time", names=names) if any(one.name in {*CLOCKS, "time"} for one in names):
                yield node.lineno
            case ast.Constant(value=str(text)) if any(f"time.{name}(" in text for name in {*CLOCKS, "time"}):
                yield node.lineno


@each_change
def test_nothing_judges_a_time() -> None:
    found = {}
    paths = sorted(path for folder in ("unit", "property") for path in (TESTS / folder).rglob("*.py"))
    assert len(paths) > 300
    for path in paths:
        if path != Path(__file__) and (lines := list(clocks_read(path.read_text()))):
            found[path.relative_to(TESTS).as_posix()] = lines
    assert found.keys() - THEIR_SUBJECT == set(), found
    assert THEIR_SUBJECT.keys() - found == set()


def test_a_clock_is_found_however_it_is_read() -> None:
    for line in (
        "import time\nbegan = time.process_time()",
        "from time import monotonic as now",
        "began = loop_time.perf_counter()",
        "code = 'import time; print(time.time())'",
        "clock = time.monotonic",
    ):
        assert list(clocks_read(line)), line
    assert list(clocks_read("loop.time(); timer.ticks(); sleep_until(3)")) == []
