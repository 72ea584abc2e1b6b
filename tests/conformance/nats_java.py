"""nats.java's tests of JetStream, key-value and objects, from a checkout, unmodified, with our `nats-server`.

Rules: they are in no package, so CONFORMANCE_NATS_JAVA names the checkout, and CONFORMANCE_NATS_JAVA_RUNNER one of
java-nats-server-runner, with which they start servers; all else comes from Maven Central (`java/pom.xml`). That runner
is compiled with one change, for both systems: it waits until the server says that it is ready, where it waits 100 ms.
Each test runs in a Java and a network of its own: the runner takes ports that were free a moment ago.
"""

from __future__ import annotations

import asyncio
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
    alone_in_a_network,
    carry_out,
    content,
    program,
    put_nats_server,
    reason,
    run_program,
)

PLACE, RUNNER_PLACE = "CONFORMANCE_NATS_JAVA", "CONFORMANCE_NATS_JAVA_RUNNER"
_COMMIT, _RUNNER_COMMIT = "103c3653", "fe26e325"
_CHECKSUM = "342bb1c3887a85b8f80e07242b8952419d168f2f5fe977b4ccd798518d7f1170"
_RUNNER_CHECKSUM = "b8a2df2222c21cd9e302d111ea424fcd720937fc821f2712e0081162e5d1fe19"
_STARTS = "isServerReachable(_ports.get(NATS_PORT_KEY), connectValidateTimeout);"
_WAITS = """\
for (int seen = 0, looks = 0; looks < 6_000 && process.isAlive(); looks++) {
    while (seen < nol.getStartupLines().size() && !nol.getStartupLines().get(seen).contains("Server is ready")) seen++;
    if (seen < nol.getStartupLines().size()) break;
    sleep(10);
}
"""
_SOURCES = ("src/**/*.java", "src/test/resources/*.conf", "src/test/resources/data/*")
_POM = Path(__file__).parent / "java" / "pom.xml"
_PACKAGE = "io.nats.client.impl"
_CLASSES = (
    "JetStreamConsumerTests",
    "JetStreamGeneralTests",
    "JetStreamManagementTests",
    "JetStreamMirrorAndSourcesTests",
    "JetStreamPubTests",
    "JetStreamPullTests",
    "JetStreamPushAsyncTests",
    "JetStreamPushQueueTests",
    "JetStreamPushTests",
    "KeyValueTests",
    "ObjectStoreTests",
    "SimplificationTests",
)
_JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # a short life
_CONSOLE = ("org.junit.platform.console.ConsoleLauncher",)
_PLAIN = ("--disable-banner", "--disable-ansi-colors")
_TEST_S = 120
_FOUND = re.compile(r"\[class:(\S+?)\]/\[(?:method|test-template):(.+?)\]$", re.MULTILINE)
_DRAWN = re.compile(r"(?<=[-_])(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{10}\b")  # the end of a name of a stream or bucket
_SAID = re.compile(r" :: (?:FAILED|SKIPPED|ABORTED)\n\t(.*)")


class NatsJava:
    """The suite."""

    name = "nats.java"
    version = f"nats.java {_COMMIT}, JetStream, key-value and objects"

    def __init__(self) -> None:
        self._build = BUILD / "java"
        self._checkout = Path()
        self._alone: tuple[str, ...] = ()
        self._selectors: dict[str, str] = {}

    def prepare(self) -> None:
        """Find the checkouts, check their content, and compile them."""
        self._checkout = self._found(PLACE, _COMMIT, _CHECKSUM)
        runner = self._found(RUNNER_PLACE, _RUNNER_COMMIT, _RUNNER_CHECKSUM)
        program("java", self.name)
        self._build.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_POM, self._build / "pom.xml")
        self._copy_runner(runner / "src/main/java/io/nats", self._build / "runner/src/main/java/io/nats")
        places = [f"-Dcheckout={self._checkout}", f"-Drunner={self._build / 'runner'}"]
        steps = ["test-compile", "dependency:build-classpath", "-Dmdep.outputFile=classpath.txt"]
        carry_out([program("mvn", self.name), "--quiet", "--batch-mode", *places, *steps], self.name, self._build)
        classes = [part for one in _CLASSES for part in ("--select-class", f"{_PACKAGE}.{one}")]
        said = carry_out([*self._console(), "discover", *_PLAIN, "--details=verbose", *classes], self.name, self._build)
        for where, method in _FOUND.findall(said):
            self._selectors[f"{where.rpartition('.')[2]}.{method.partition('(')[0]}"] = f"{where}#{method}"
        self._alone = alone_in_a_network(self.name)

    def names(self) -> list[str]:
        """Return the names of all tests: class, then method."""
        return sorted(self._selectors)

    async def run(self, system: System, tests: Sequence[str], folder: Path, jobs: int) -> list[Outcome]:
        """Run each test in a process and a network of its own, `jobs` side by side."""
        put_nats_server(folder / "bin", system)
        free = asyncio.Semaphore(jobs)
        async with asyncio.TaskGroup() as group:
            numbered = enumerate(tests)
            tasks = [group.create_task(self._one(test, folder, f"{n}", free)) for n, test in numbered]
        return [task.result() for task in tasks]

    async def _one(self, test: str, folder: Path, own: str, free: asyncio.Semaphore) -> Outcome:
        place = folder / own
        how = [*_PLAIN, "--details=testfeed", "--fail-if-no-tests", "--select-method", self._selectors[test]]
        environment = {**os.environ, "nats_server_path": str(folder / "bin" / "nats-server"), "TMPDIR": str(place)}
        command = [*self._alone, *self._console(f"-Djava.io.tmpdir={place}"), "execute", *how]
        async with free:
            place.mkdir()
            ended = await run_program(command, self._checkout, environment, _TEST_S)
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
        return outcome_of_junit(test, ended.code, ended.output)

    def _copy_runner(self, source: Path, target: Path) -> None:
        """Copy the runner of servers with its change; keep what is the same, so that it is not compiled again."""
        target.mkdir(parents=True, exist_ok=True)
        for path in source.glob("*.java"):
            text = path.read_text(encoding="utf-8").replace(_STARTS, _WAITS + _STARTS)
            copy = target / path.name
            if not copy.exists() or copy.read_text(encoding="utf-8") != text:
                copy.write_text(text, encoding="utf-8")

    def _found(self, variable: str, commit: str, checksum: str) -> Path:
        place = os.environ.get(variable)
        if not place or not (Path(place) / "src/main/java/io/nats").is_dir():
            raise SuiteMissingError(f"{self.name} is in no package: set {variable} to the path of a checkout")
        if (found := content(Path(place), *_SOURCES)) != checksum:
            raise SuiteMissingError(
                f"{self.name}: the sources in {place} have checksum {found}, not {checksum}; take commit {commit}"
            )
        return Path(place).resolve()

    def _console(self, *options: str) -> list[str]:
        classes = [str(self._build / "target" / name) for name in ("classes", "test-classes")]
        jars = (self._build / "classpath.txt").read_text(encoding="utf-8").strip()
        return [*_JAVA, *options, "-cp", os.pathsep.join([*classes, jars]), *_CONSOLE]


def outcome_of_junit(test: str, code: int, output: str) -> Outcome:
    """Read what came of one test from what JUnit prints."""
    if code == 0 and " :: SUCCESSFUL" in output:
        return Outcome(test, Result.PASSED)
    said = _SAID.search(output)
    result = Result.SKIPPED if code == 0 and " :: SKIPPED" in output else Result.FAILED
    return Outcome(test, result, reason(_DRAWN.sub("DRAWN", said[1] if said is not None else output[-200:])))
