"""nats.go's tests of its package `jetstream`, from its module, unmodified, with our tester service.

Each test runs in a process of its own: one that hangs or panics takes no other along.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.results import Outcome, Result
from tests.conformance.servers import System
from tests.conformance.suites import BUILD, carry_out, go_module, program, reason, run_program
from tests.conformance.tester import running_tester

_MODULE, _VERSION = "github.com/nats-io/nats.go", "v1.55.0"
_CHECKSUM = "h1:Ng8QKHdvdHIWoaiq0+d/aH1BWkxvcJxWJ0Y/9BPKx3M="
_PACKAGE = "jetstream/test"
_TEST_S = 180
_ENDED = re.compile(r"^--- (PASS|FAIL|SKIP): (\S+) ", re.MULTILINE)
_SAID = re.compile(r"^\s+\w+_test\.go:\d+: (.*(?:\n {8,}\S.*)?)", re.MULTILINE)
_RESULTS = {"PASS": Result.PASSED, "FAIL": Result.FAILED, "SKIP": Result.SKIPPED}


class NatsGo:
    """The suite."""

    name = "nats.go"
    version = f"nats.go {_VERSION[1:]}, package jetstream/test"

    def __init__(self) -> None:
        self._program = BUILD / f"nats.go-{_VERSION}.test"
        self._folder = Path()

    def prepare(self) -> None:
        """Fetch the module and build its tests."""
        self._folder = go_module(_MODULE, _VERSION, _CHECKSUM, self.name)
        if self._program.exists():
            return
        new = self._program.with_suffix(".new")
        how = ["-mod=readonly", "-modfile=go_test.mod", "-tags=internal_testing", "-vet=off", "-o", str(new)]
        environment = {"GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"}
        carry_out([program("go", self.name), "test", "-c", *how, f"./{_PACKAGE}"], self.name, self._folder, environment)
        new.rename(self._program)

    def names(self) -> list[str]:
        """Return the names of all tests."""
        said = carry_out([str(self._program), "-test.list", "."], self.name, self._folder, {"TESTER_NATS_URL": "-"})
        return [line for line in said.splitlines() if line.startswith("Test")]

    async def run(self, system: System, tests: Sequence[str], folder: Path, jobs: int) -> list[Outcome]:
        """Run each test in a process of its own, `jobs` side by side."""
        free = asyncio.Semaphore(jobs)
        async with running_tester(system, folder) as url, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(test, url, free)) for test in tests]
        return [task.result() for task in tasks]

    async def _one(self, test: str, url: str, free: asyncio.Semaphore) -> Outcome:
        command = [str(self._program), "-test.run", f"^{test}$", "-test.v", f"-test.timeout={_TEST_S}s"]
        environment = {**os.environ, "TESTER_NATS_URL": url}
        async with free:
            ended = await run_program(command, self._folder / _PACKAGE, environment, _TEST_S + 10)
        return _outcome(test, ended.code, ended.output)


def _outcome(test: str, code: int, output: str) -> Outcome:
    results = {name: _RESULTS[word] for word, name in _ENDED.findall(output)}
    result = results.get(test, Result.FAILED)
    if result is Result.PASSED and code != 0:
        result = Result.FAILED
    if result is Result.PASSED:
        return Outcome(test, result)
    said = _SAID.search(output)
    if said is not None:
        return Outcome(test, result, reason(said[1]))
    panic = re.search(r"^(panic: .*|not ended .*)", output, re.MULTILINE)
    return Outcome(test, result, reason(panic[1] if panic is not None else output[-200:]))
