"""nats.js's tests of key-value and objects, from a checkout, unmodified, on Node, with our stand-in for `nats-server`.

Rules: they are in no package, so CONFORMANCE_NATS_JS names the checkout; the client's other parts come from npm. The
tests are written for Deno; `tests/conformance/js` bundles them for Node and stands in for Deno's own functions.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.results import Outcome, Result
from tests.conformance.servers import System
from tests.conformance.suites import (
    BUILD,
    SuiteMissingError,
    carry_out,
    content,
    program,
    put_nats_server,
    reason,
    run_program,
)

PLACE = "CONFORMANCE_NATS_JS"
_COMMIT = "3a7b736b"
_CHECKSUM = "0eb344168f194db7a12bf199543fa9e6e366d282b798ba5ac0d55ae43f31300c"
_JS = Path(__file__).parent / "js"
_SKIPPED = 3  # exit code of bundle.mjs's program
_TEST_S = 90


class NatsJs:
    """The suite."""

    name = "nats.js"
    version = f"nats.js {_COMMIT}, kv/tests and obj/tests"

    def __init__(self) -> None:
        self._modules = BUILD / "js"
        self._program = self._modules / "nats.js.mjs"

    def prepare(self) -> None:
        """Find the checkout, check its content, and bundle its tests."""
        place = os.environ.get(PLACE)
        if not place or not (Path(place) / "kv/tests").is_dir():
            raise SuiteMissingError(f"{self.name} is in no package: set {PLACE} to the path of a checkout of nats.js")
        checkout = Path(place).resolve()
        found = content(checkout, *(f"{part}/{kind}/*" for part in ("kv", "obj", "nst") for kind in ("src", "tests")))
        if found != _CHECKSUM:
            raise SuiteMissingError(
                f"{self.name}: the tests in {place} have checksum {found}, not {_CHECKSUM}; take commit {_COMMIT}"
            )
        self._modules.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_JS / "package.json", self._modules / "package.json")
        npm = [program("npm", self.name), "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent"]
        carry_out(npm, self.name, self._modules)
        bundle = [program("node", self.name), str(_JS / "bundle.mjs"), *map(str, (self._modules, checkout))]
        carry_out([*bundle, str(self._program)], self.name, self._modules)

    def names(self) -> list[str]:
        """Return the names of all tests."""
        said = carry_out(["node", str(self._program), "list"], self.name, self._modules)
        return [json.loads(line) for line in said.splitlines()]

    async def run(self, system: System, tests: Sequence[str], folder: Path, jobs: int) -> list[Outcome]:
        """Run each test in a process of its own, `jobs` side by side."""
        environment = {**os.environ, "PATH": put_nats_server(folder / "bin", system)}
        free = asyncio.Semaphore(jobs)
        async with asyncio.TaskGroup() as group:
            numbered = enumerate(tests)
            tasks = [group.create_task(self._one(test, folder / str(n), environment, free)) for n, test in numbered]
        return [task.result() for task in tasks]

    async def _one(self, test: str, folder: Path, environment: dict[str, str], free: asyncio.Semaphore) -> Outcome:
        command = ["node", str(self._program), "run", test]
        async with free:
            folder.mkdir()
            ended = await run_program(command, self._modules, {**environment, "TMPDIR": str(folder)}, _TEST_S)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if ended.code == 0:
            return Outcome(test, Result.PASSED)
        if ended.code == _SKIPPED:
            return Outcome(test, Result.SKIPPED, "the suite leaves it out")
        said = re.search(r"^FAILED: (.*)", ended.output, re.MULTILINE)
        return Outcome(test, Result.FAILED, reason(said[1] if said is not None else ended.output[-200:]))
