"""async-nats's tests of JetStream, key-value and objects, from its crate, unmodified, with our `nats-server`.

Rules: the tests call a crate `nats-server` that is not published; `tests/conformance/rust` has its functions. A package
that is written here names the test files where cargo has put the crate. Some tests use fixed ports, so each runs in a
network of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.results import Outcome, Result
from tests.conformance.servers import System
from tests.conformance.suites import (
    BUILD,
    SuiteMissingError,
    alone_in_a_network,
    carry_out,
    program,
    put_nats_server,
    reason,
    run_program,
)

_CRATE, _VERSION = "async-nats", "0.51.0"
_CHECKSUM = "a4f92759f418774b78c36ef07885849150ce950c67d9bcdeff8a9c253f57d9a1"
_FILES = ("jetstream_tests", "kv_tests", "object_store")
_RUST = Path(__file__).parent / "rust"
_TEST_S = 150  # one waits for 100 s
_USED = ("version", "features", "default-features")  # of a dependency


class AsyncNats:
    """The suite."""

    name = "async-nats"
    version = f"{_CRATE} {_VERSION}, {', '.join(_FILES)}"

    def __init__(self) -> None:
        self._package = BUILD / f"{_CRATE}-{_VERSION}"
        self._crate = Path()
        self._programs: dict[str, str] = {}
        self._alone: tuple[str, ...] = ()

    def prepare(self) -> None:
        """Fetch the crate and build its tests."""
        cargo = program("cargo", self.name)
        self._package.mkdir(parents=True, exist_ok=True)
        (self._package / "lib.rs").touch()
        self._write(_manifest({_CRATE: {"version": f"={_VERSION}"}}, [], []))
        said = json.loads(carry_out([cargo, "metadata", "--format-version", "1"], self.name, self._package))
        (found,) = (one for one in said["packages"] if one["name"] == _CRATE)
        lock = (self._package / "Cargo.lock").read_text(encoding="utf-8")
        if f'checksum = "{_CHECKSUM}"' not in lock:
            raise SuiteMissingError(f"{self.name}: {_CRATE} {_VERSION} does not have the checksum {_CHECKSUM}")
        self._crate = Path(found["manifest_path"]).parent
        self._write(self._manifest_of_tests())
        build = [cargo, "test", "--no-run", "--message-format=json"]
        for line in carry_out(build, self.name, self._package).splitlines():
            told = json.loads(line)
            if told.get("executable") and told["target"]["name"] in _FILES:
                self._programs[told["target"]["name"]] = told["executable"]
        self._alone = alone_in_a_network(self.name)

    def names(self) -> list[str]:
        """Return the names of all tests: file, then the name in the file."""
        found = []
        for file in _FILES:
            said = carry_out([self._programs[file], "--list", "--format=terse"], self.name, self._crate)
            found += [f"{file}: {line.removesuffix(': test')}" for line in said.splitlines() if line.endswith(": test")]
        return found

    async def run(self, system: System, tests: Sequence[str], folder: Path, jobs: int) -> list[Outcome]:
        """Run each test in a process and a network of its own, `jobs` side by side."""
        environment = {**os.environ, "PATH": put_nats_server(folder / "bin", system)}
        free = asyncio.Semaphore(jobs)
        async with asyncio.TaskGroup() as group:
            numbered = enumerate(tests)
            tasks = [group.create_task(self._one(test, folder / str(n), environment, free)) for n, test in numbered]
        return [task.result() for task in tasks]

    async def _one(self, test: str, folder: Path, environment: dict[str, str], free: asyncio.Semaphore) -> Outcome:
        file, _, name = test.partition(": ")
        command = [*self._alone, self._programs[file], "--exact", name, "--nocapture"]
        async with free:
            folder.mkdir()
            ended = await run_program(command, self._crate, {**environment, "TMPDIR": str(folder)}, _TEST_S)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        if ended.code == 0 and "1 passed" in ended.output:
            return Outcome(test, Result.PASSED)
        if ended.code == 0:
            return Outcome(test, Result.SKIPPED, "the suite leaves it out")
        said = re.search(r"panicked at .*:\n(.*)", ended.output)
        return Outcome(test, Result.FAILED, reason(said[1] if said is not None else ended.output[-200:]))

    def _write(self, manifest: str) -> None:
        path = self._package / "Cargo.toml"
        if not path.exists() or path.read_text(encoding="utf-8") != manifest:
            path.write_text(manifest, encoding="utf-8")

    def _manifest_of_tests(self) -> str:
        """Return the manifest of a package with the test files, and with what of the crate's own they use."""
        of_crate = tomllib.loads((self._crate / "Cargo.toml").read_text(encoding="utf-8"))
        sources = [self._crate / "tests" / f"{file}.rs" for file in _FILES]
        text = "".join(path.read_text(encoding="utf-8") for path in sources)
        known = of_crate["dependencies"] | of_crate["dev-dependencies"]
        used = {name: one for name, one in known.items() if re.search(rf"\b{name.replace('-', '_')}::", text)}
        used |= {_CRATE: {"version": f"={_VERSION}"}, "nats-server": {"path": str(_RUST)}}
        used["tokio"] = {"version": known["tokio"]["version"], "features": ["full"]}
        return _manifest(used, sources, of_crate["features"]["default"])


def _manifest(dependencies: dict[str, dict[str, object]], tests: Sequence[Path], features: Sequence[str]) -> str:
    lines = ["[package]", 'name = "conformance"', 'version = "0.0.0"', 'edition = "2021"', "[lib]", 'path = "lib.rs"']
    lines += ["[workspace]", "[profile.dev]", "debug = false", "[features]", f"default = {json.dumps([*features])}"]
    lines += [f"{feature} = []" for feature in features]
    lines.append("[dependencies]")
    for name, given in dependencies.items():
        parts = (f"{key} = {json.dumps(given[key])}" for key in (*_USED, "path") if key in given)
        lines.append(f"{name} = {{ {', '.join(parts)} }}")
    for path in tests:
        lines += ["[[test]]", f"name = {json.dumps(path.stem)}", f"path = {json.dumps(str(path))}"]
    return "\n".join(lines) + "\n"
