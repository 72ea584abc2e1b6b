"""The pytest plugin, in a pytest of its own: seeds, markers, options, and what a failure shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import penstock
from tests.extent import needs_time

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = "penstock.testing.plugin"  # by its name: it is there also where the package was installed before it had one

TESTS = """
import asyncio
import pytest
import penstock.aio

@pytest.mark.penstock(seeds=3, every_s=1.0)
async def test_seeds(penstock_cluster):
    async with penstock.aio.connect(timeout=60) as client:
        await client.create_stream("orders", "orders.>", timeout=60)
        await client.publish("orders.eu", b"1", retries=10, timeout=60)
    await asyncio.sleep(20)
    penstock_cluster.note("here")
    assert penstock_cluster.seed != 1, "seed one"

class TestClass:
    @pytest.fixture
    def five(self):
        return 5

    @pytest.mark.parametrize("number", [1, 2])
    @pytest.mark.penstock(faults=False)
    async def test_in_a_class_with_fixtures(self, five, number, penstock_cluster):
        assert five - number in (3, 4)
        assert "0 faults" in penstock_cluster.summary()

def test_not_a_coroutine_function(penstock_cluster):
    async def main():
        return await asyncio.sleep(1, "done")

    assert penstock_cluster.run(main()) == "done"
"""


def run(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_them.py").write_text(tests, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n", encoding="utf-8")
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            PLUGIN,
            "-p",
            "no:cacheprovider",
            "-W",
            "error",
            "--strict-markers",
            *options,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1]), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def outcomes(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return dict(re.findall(r"test_them\.py::(\S+) (PASSED|FAILED|ERROR)", done.stdout))


@needs_time
def test_each_seed_is_a_test_and_a_failure_shows_how_to_run_it_again(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS, "-v", "-o", "asyncio_mode=auto")
    assert outcomes(done) == {
        "test_seeds[seed0]": "PASSED",
        "test_seeds[seed1]": "FAILED",
        "test_seeds[seed2]": "PASSED",
        "TestClass::test_in_a_class_with_fixtures[seed0-1]": "PASSED",
        "TestClass::test_in_a_class_with_fixtures[seed0-2]": "PASSED",
        "test_not_a_coroutine_function[seed0]": "PASSED",
    }, done.stdout + done.stderr
    assert "run it again: pytest 'test_them.py::test_seeds' --penstock-seed=1" in done.stdout
    assert re.search(r"seed 1: \d+\.\d simulated seconds, [1-9]\d* faults \(", done.stdout)
    assert re.search(r"^\d+ test here$", done.stdout, flags=re.MULTILINE)
    assert re.search(r"^\d+ fault .* b[123] ", done.stdout, flags=re.MULTILINE)


@needs_time
def test_without_pytest_asyncio_it_is_the_same(tmp_path: Path) -> None:
    done = run(tmp_path, TESTS, "-v", "-p", "no:asyncio", "-o", "addopts=", "-W", "ignore::pytest.PytestConfigWarning")
    assert list(outcomes(done).values()).count("PASSED") == 5, done.stdout + done.stderr


@needs_time
def test_one_seed_or_so_many_can_be_asked_for(tmp_path: Path) -> None:
    one = run(tmp_path, TESTS, "-v", "-k", "test_seeds", "--penstock-seed=41", f"--penstock-trace={tmp_path / 'trace'}")
    assert outcomes(one) == {"test_seeds[seed41]": "PASSED"}
    trace = (tmp_path / "trace").read_text(encoding="utf-8").splitlines()
    assert trace[0] == "# test_them.py::test_seeds[seed41]"
    assert any(line.endswith("test here") for line in trace)
    many = run(tmp_path, TESTS, "-v", "-k", "test_not", "--penstock-seeds=5")
    assert len(outcomes(many)) == 5


@needs_time
def test_what_is_written_wrongly_is_said(tmp_path: Path) -> None:
    marked = TESTS.replace("seeds=3, every_s=1.0", "sedes=3")
    assert "takes brokers, every_s, faults, limit_s, real_limit_s, seeds" in run(tmp_path, marked).stdout
    none = run(tmp_path, TESTS, "--penstock-seeds=0")
    assert "seeds is 0; it can be 1 to" in none.stdout + none.stderr
    unused = run(tmp_path, "def test_nothing(penstock_cluster):\n    pass\n")
    assert "the test has run nothing on penstock_cluster: make it `async def`" in unused.stdout


def test_pytest_finds_the_plugin_of_an_installed_package_and_imports_nothing_heavy_for_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
    look = f"import sys, {PLUGIN}; print([one for one in ('pyarrow', 'nats', 'penstock.node') if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
