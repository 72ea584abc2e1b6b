"""Costs of each test module: seconds, and seconds of CPU, which depend less on other programs on the machine.

TEST_COSTS=FILE writes both, by module, to a JSON file, and prints the most expensive modules at the end of the run.
CPU includes the worker and its child processes that have ended; a process that outlives its tests, such as Spark's
JVM, is counted for the module in which it ends.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import warm

_SHOWN = 25


def file_of_costs() -> Path | None:
    """Return the file for the costs; None if they are not written."""
    named = os.environ.get("TEST_COSTS")
    return Path(named) if named else None


def _cpu_s() -> float:
    return sum(os.times()[:4]) + warm.cpu_s()


@dataclass(eq=False)
class _Cost:
    tests: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0


@dataclass(eq=False)
class Costs:
    """Pytest plugin: workers measure, and the controlling process sums up their reports."""

    path: Path
    modules: dict[str, _Cost] = field(default_factory=lambda: defaultdict(_Cost))
    _before_s: float = field(default_factory=_cpu_s)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """Add the CPU time of each phase of a test to its report."""
        report = yield
        now_s = _cpu_s()
        report.user_properties.append(("cpu_s", now_s - self._before_s))
        self._before_s = now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Sum up, in the controlling process."""
        cost = self.modules[report.nodeid.partition("::")[0]]
        cost.tests += report.when == "call"
        cost.seconds += report.duration
        cost.cpu_s += sum(float(str(value)) for name, value in report.user_properties[-1:] if name == "cpu_s")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write and print the costs, in the controlling process only."""
        if hasattr(terminalreporter.config, "workerinput") or not self.modules:
            return
        known: dict[str, dict[str, Any]] = {name: vars(cost) for name, cost in sorted(self.modules.items())}
        self.path.write_text(json.dumps(known, indent=1))
        all_s, all_cpu_s = (sum(one[what] for one in known.values()) for what in ("seconds", "cpu_s"))
        terminalreporter.section(f"{all_cpu_s / 60:.1f} minutes of CPU, {all_s / 60:.1f} minutes of tests")
        for name, one in sorted(known.items(), key=lambda item: -item[1]["cpu_s"])[:_SHOWN]:
            terminalreporter.write_line(f"{one['cpu_s']:7.1f} s CPU {one['seconds']:7.1f} s {one['tests']:5} {name}")
