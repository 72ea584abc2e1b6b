"""nats.py's tests of JetStream and key-value, from a checkout, unmodified, with our stand-in for `nats-server`.

Rules: they are in no package, so CONFORMANCE_NATS_PY names the checkout; its tests must have the pinned content. They use
fixed ports, so each test runs in a network of its own, with a loopback interface only (`unshare`, Linux).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree

from penstock.broker.nats.server import find_nats_server
from tests.conformance.results import Outcome, Result
from tests.conformance.servers import System
from tests.conformance.suites import ROOT, SuiteMissingError, carry_out, reason, run_program

PLACE = "CONFORMANCE_NATS_PY"
_COMMIT, _FOLDER, _TESTS = "06b6778", "nats", "tests/test_js.py"
_CHECKSUM = "2e845e1935d28099efd53e4b37cca7abfb85157ad198971466074c046e5ef208"
_TEST_S = 90
_SIDE_BY_SIDE = 2
_LOOPBACK = "import fcntl, os, socket, struct, sys\n" + (
    "with socket.socket() as s: fcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 0x49))\n"  # SIOCSIFFLAGS: up
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)
_PYTEST = ("-p", "unittest.mock", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist", "-p", "no:randomly", "-W", "ignore")


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
        if (found := _content(self._folder)) != _CHECKSUM:
            raise SuiteMissingError(
                f"{self.name}: the tests in {place} have checksum {found}, not {_CHECKSUM}; take commit {_COMMIT}"
            )
        self._alone = alone_in_a_network(self.name)

    def names(self) -> list[str]:
        """Return the names of all tests."""
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *_PYTEST, _TESTS]
        said = carry_out(command, self.name, self._folder, self._environment({}))
        return [line.partition("::")[2] for line in said.splitlines() if "::" in line]

    async def run(self, system: System, tests: Sequence[str], folder: Path) -> list[Outcome]:
        """Run each test in a process and a network of its own, some side by side."""
        programs = folder / "bin"
        programs.mkdir(parents=True)
        stand_in(programs / "nats-server", system)
        environment = self._environment({"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"})
        free = asyncio.Semaphore(_SIDE_BY_SIDE)
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
        return _outcome(test, report, ended.output)

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        return {**os.environ, **more, "PYTHONPATH": str(self._folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def _content(folder: Path) -> str:
    """Return the checksum of the client and its tests."""
    digest = sha256()
    for path in sorted([*folder.glob("src/**/*.py"), *folder.glob("tests/*.py"), *folder.glob("tests/conf/*")]):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def stand_in(path: Path, system: System) -> None:
    """Put a program `nats-server` in place: the real one, or our stand-in with a broker of Penstock."""
    if system is System.NATS_SERVER:
        path.symlink_to(find_nats_server())
        return
    sources = os.pathsep.join(map(str, (ROOT, ROOT / "src")))
    command = f'PYTHONPATH="{sources}" exec "{sys.executable}" -P -m tests.conformance.stand_in "$@"'
    path.write_text(f"#!/bin/sh\nunset PYTHONDONTWRITEBYTECODE\n{command}\n", encoding="utf-8")
    path.chmod(0o755)


def alone_in_a_network(suite: str) -> tuple[str, ...]:
    """Return the beginning of a command that runs in a network of its own; raise SuiteMissingError."""
    for how in ((), ("--map-root-user",)):
        begin = ("unshare", "--net", *how, sys.executable, "-c", _LOOPBACK)
        try:
            if subprocess.run((*begin, "true"), capture_output=True, check=False).returncode == 0:
                return begin
        except OSError:
            break
    raise SuiteMissingError(f"{suite} uses fixed ports, and no network of its own can be made here (`unshare --net`)")


def _outcome(test: str, report: Path, output: str) -> Outcome:
    """Read what came of one test from pytest's report."""
    if not report.exists():
        return Outcome(test, Result.FAILED, reason(output[-200:]))
    case = ElementTree.parse(report).find(".//testcase")  # noqa: S314 (pytest wrote it just now)
    report.unlink()
    if case is None:
        return Outcome(test, Result.NOT_RUN, reason(output[-200:]))
    for kind, result in (("failure", Result.FAILED), ("error", Result.FAILED), ("skipped", Result.SKIPPED)):
        if (found := case.find(kind)) is not None:
            return Outcome(test, result, reason(re.sub(r"^\S*?(\w+):", r"\1:", found.get("message", ""))))
    return Outcome(test, Result.PASSED)

