"""FastStream's tests of JetStream's subscribers, from a checkout, unmodified, with our `nats-server`.

Rules: its tests are in no package, so CONFORMANCE_FASTSTREAM names the checkout; what they need comes from PyPI, into
an environment of their own. They want a server on port 4222, so each test runs with its own in a network of its own.
Only tests that ask JetStream for something are on its list: the others do with nats-server alone, or without.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.nats_py import outcome_of_pytest
from tests.conformance.results import Outcome
from tests.conformance.servers import System
from tests.conformance.suites import (
    BUILD,
    SuiteMissingError,
    alone_in_a_network,
    carry_out,
    content,
    put_nats_server,
    run_program,
)

PLACE = "CONFORMANCE_FASTSTREAM"
_COMMIT, _VERSION = "7c9a125d", "0.7.4"
_CHECKSUM = "318dbc2d08e62db8383a8205117f752a3e1c104c1f3dbeb8b6970a2aa1631446"
_FILES = (
    "brokers/nats/test_consume.py",
    "brokers/nats/test_kv_declarer_cache.py",
    "brokers/nats/test_os_declarer_cache.py",
    "brokers/nats/test_publish.py",
    "brokers/nats/test_requests.py",
    "docs/nats",
    "examples/nats",
)
_SOURCES = ("faststream/**/*.py", "tests/**/*.py", "examples/nats/*.py", "docs/docs_src/nats/**/*.py")
_NEEDED = (
    f"faststream[cli,nats]=={_VERSION}",
    "dirty-equals==0.11",
    "freezegun>=1.5.5",
    "httpx==0.28.1",
    "nats-py==2.16.0",
    "pytest==9.0.3",
    "pytest-asyncio==1.3.0",
    "pytest-rerunfailures>=15.1",
    "pytest-timeout>=2.4.0",
)
_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "-m", "connected")
_WITH_SERVER = """\
nats-server -js -a 127.0.0.1 -p 4222 -sd {store} > {log} 2>&1 &
until grep -q 'Server is ready' {log}; do sleep 0.05; done
{command}
"""
_TEST_S = 90


class FastStream:
    """The suite."""

    name = "faststream"
    version = f"FastStream {_VERSION} ({_COMMIT}), subscribers of JetStream"

    def __init__(self) -> None:
        self._folder = Path()
        self._python = BUILD / "faststream" / "bin" / "python"
        self._alone: tuple[str, ...] = ()

    def prepare(self) -> None:
        """Find the checkout, check its content, and install what its tests need."""
        place = os.environ.get(PLACE)
        if not place or not (Path(place) / "tests/brokers/nats").is_dir():
            raise SuiteMissingError(f"{self.name}'s tests are in no package: set {PLACE} to the path of a checkout")
        if (found := content(Path(place), *_SOURCES)) != _CHECKSUM:
            raise SuiteMissingError(
                f"{self.name}: the tests in {place} have checksum {found}, not {_CHECKSUM}; take commit {_COMMIT}"
            )
        self._folder = Path(place).resolve()
        BUILD.mkdir(parents=True, exist_ok=True)
        if not self._python.exists():
            carry_out([sys.executable, "-m", "venv", str(self._python.parents[1])], self.name, BUILD)
        carry_out([str(self._python), "-m", "pip", "install", "-q", *_NEEDED], self.name, BUILD)
        self._alone = alone_in_a_network(self.name)

    def names(self) -> list[str]:
        """Return the names of all tests."""
        command = [str(self._python), *_PYTEST, "--collect-only", "-o", "addopts=", *(f"tests/{one}" for one in _FILES)]
        said = carry_out(command, self.name, self._folder, self._environment({}))
        return [line.removeprefix("tests/") for line in said.splitlines() if "::" in line]

    async def run(self, system: System, tests: Sequence[str], folder: Path, jobs: int) -> list[Outcome]:
        """Run each test with a server in a network of its own, `jobs` side by side."""
        environment = self._environment({"PATH": put_nats_server(folder / "bin", system)})
        free = asyncio.Semaphore(jobs)
        async with asyncio.TaskGroup() as group:
            numbered = enumerate(tests)
            tasks = [group.create_task(self._one(test, folder / str(n), environment, free)) for n, test in numbered]
        return [task.result() for task in tasks]

    async def _one(self, test: str, folder: Path, environment: dict[str, str], free: asyncio.Semaphore) -> Outcome:
        report = folder.with_suffix(".xml")
        pytest = [str(self._python), *_PYTEST, f"--junitxml={report}", f"tests/{test}"]
        script = _WITH_SERVER.format(store=folder / "store", log=folder / "log", command=shlex.join(pytest))
        async with free:
            folder.mkdir()
            own = {**environment, "TMPDIR": str(folder)}
            ended = await run_program([*self._alone, "sh", "-c", script], self._folder, own, _TEST_S)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return outcome_of_pytest(test, report, ended.output)

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**kept, **more, "PYTHONDONTWRITEBYTECODE": "1"}
