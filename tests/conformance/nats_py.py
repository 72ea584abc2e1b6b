"""nats.py's tests of JetStream and key-value, from a checkout, unmodified, with our stand-in for `nats-server`.

Rules: they are in no package, so CONFORMANCE_NATS_PY names the checkout; its tests must have the pinned content. They
use fixed ports, so each test runs in a network of its own, with a loopback interface only (`unshare`, Linux).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.conformance.results import Outcome, Result
from tests.conformance.servers import System
from tests.conformance.suites import (
    SuiteMissingError,
    alone_in_a_network,
    carry_out,
    content,
    put_nats_server,
    reason,
    run_program,
)

PLACE = "CONFORMANCE_NATS_PY"
_COMMIT, _FOLDER, _TESTS = "06b6778", "nats", "tests/test_js.py"
_CHECKSUM = "2e845e1935d28099efd53e4b37cca7abfb85157ad198971466074c046e5ef208"
_TEST_S = 90
_PLUGINS = ("unittest.mock", "no:cacheprovider", "no:hypothesispytest", "no:xdist")  # the first is missing in the tests
_PYTEST = (*(part for plugin in _PLUGINS for part in ("-p", plugin)), "-W", "ignore")


class NatsPy:
    """The suite."""

    name = "nats.py"
    version = f"nats.py {_COMMIT}, {_FOLDER}/{_TESTS}"

    def __init__(self) -> None:
        self._folder = Path()
        self._alone: tuple[str, ...] = ()

    def prepare(self) -> None:
        """Find the checkout and check its content."""
        place = os.environ.get(PLACE)
        if not place or not (Path(place) / _FOLDER / _TESTS).is_file():
            raise SuiteMissingError(f"{self.name} is in no package: set {PLACE} to the path of a checkout of nats.py")
        self._folder = Path(place).resolve() / _FOLDER
        if (found := content(self._folder, "src/**/*.py", "tests/*.py", "tests/conf/*")) != _CHECKSUM:
            raise SuiteMissingError(
                f"{self.name}: the tests in {place} have checksum {found}, not {_CHECKSUM}; take commit {_COMMIT}"
            )
        self._alone = alone_in_a_network(self.name)

    def names(self) -> list[str]:
        """Return the names of all tests."""
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *_PYTEST, _TESTS]
        said = carry_out(command, self.name, self._folder, self._environment({}))
        return [line.partition("::")[2] for line in said.splitlines() if "::" in line]

    async def run(self, system: System, tests: Sequence[str], folder: Path, jobs: int) -> list[Outcome]:
        """Run each test in a process and a network of its own, `jobs` side by side."""
        environment = self._environment({"PATH": put_nats_server(folder / "bin", system)})
        free = asyncio.Semaphore(jobs)
        async with asyncio.TaskGroup() as group:
            numbered = enumerate(tests)
            tasks = [group.create_task(self._one(test, folder / str(n), environment, free)) for n, test in numbered]
        return [task.result() for task in tasks]

    async def _one(self, test: str, folder: Path, environment: dict[str, str], free: asyncio.Semaphore) -> Outcome:
        report = folder.with_suffix(".xml")
        pytest = [sys.executable, "-m", "pytest", "-q", *_PYTEST, f"--junitxml={report}", f"{_TESTS}::{test}"]
        async with free:
            folder.mkdir()
            ended = await run_program(
                [*self._alone, *pytest], self._folder, {**environment, "TMPDIR": str(folder)}, _TEST_S
            )
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return outcome_of_pytest(test, report, ended.output)

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        return {**os.environ, **more, "PYTHONPATH": str(self._folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def outcome_of_pytest(test: str, report: Path, output: str) -> Outcome:
    """Read what came of one test from pytest's report."""
    if not report.exists():
        return Outcome(test, Result.FAILED, reason(output[-200:]))
    case = ElementTree.parse(report).find(".//testcase")
    report.unlink()
    if case is None:
        return Outcome(test, Result.NOT_RUN, reason(output[-200:]))
    for kind, result in (("failure", Result.FAILED), ("error", Result.FAILED), ("skipped", Result.SKIPPED)):
        if (found := case.find(kind)) is not None:
            return Outcome(test, result, reason(re.sub(r"^\S*?(\w+):", r"\1:", found.get("message", ""))))
    return Outcome(test, Result.PASSED)
