"""setup.py: what is compiled is never older than its source, and every way of building works."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from penstock import hot
from tests import hot_modes
from tests.extent import needs_time

pytestmark = needs_time

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 120
needs_a_compiler = pytest.mark.skipif(not hot.is_compiled(), reason="nothing is compiled on this machine")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project as it is, as far as a build needs it, nothing built yet, two small modules to compile."""
    return made(tmp_path)


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every test takes that begins with something built."""
    project = made(tmp_path_factory.mktemp("built"))
    finished = build(project, "build_ext", "--inplace", REQUIRE_CYTHON="1")
    assert finished.returncode == 0, finished.stderr
    assert compiled(project) == ["crc", "scan"]
    assert hot_modes.load_setup(project / "setup.py").stale_files() == []
    return project


@pytest.fixture
def built(built_once: Path, tmp_path: Path) -> Path:
    """The same, built in place."""
    return Path(shutil.copytree(built_once, tmp_path / "built"))


def made(tmp_path: Path) -> Path:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    ignored = shutil.ignore_patterns("*.egg-info", "__pycache__", "*.so", "compiled.json")
    shutil.copytree(ROOT / "src" / "penstock", tmp_path / "src" / "penstock", ignore=ignored)
    source = (tmp_path / "setup.py").read_text()
    start, end = source.index("COMPILED = ("), source.index(')\n"""Every module')
    small = 'COMPILED = (\n    "penstock.hot.crc",\n    "penstock.hot.scan",\n'
    (tmp_path / "setup.py").write_text(source[:start] + small + source[end:])
    for path in (tmp_path / "src" / "penstock" / "hot").glob("*.p*"):
        if path.stem not in {"__init__", "crc"}:
            path.unlink()
    (tmp_path / "src" / "penstock" / "hot" / "scan.py").write_text('"""Small."""\n\nNUMBER = 1\n')
    return tmp_path


def build(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run setup.py in `project`."""
    ours = {name: value for name, value in os.environ.items() if name not in {"REQUIRE_CYTHON", "SKIP_CYTHON", "CC"}}
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", *arguments],
        cwd=project,
        env={**ours, "CFLAGS": "-O0 -g0", **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def compiled(project: Path) -> list[str]:
    return sorted(path.name.split(".")[0] for path in (project / "src" / "penstock" / "hot").glob("*.so"))


def test_everything_in_hot_is_compiled_or_written_twice() -> None:
    setup = hot_modes.load_setup()
    (folder,) = hot.__path__
    found = {f"penstock.hot.{path.stem}" for path in Path(folder).glob("*.py") if path.stem != "__init__"}
    assert found == {*setup.COMPILED, *setup.WRITTEN_TWICE}


def test_a_build_without_a_compiler_is_plain_and_says_so(project: Path) -> None:
    finished = build(project, "build_ext", "--inplace", CC="a-compiler-that-nobody-has")
    assert finished.returncode == 0, finished.stderr
    (line,) = [line for line in finished.stderr.splitlines() if line.startswith("penstock: ")]
    assert line.startswith("penstock: the hot path stays plain Python, several times slower. It takes a C compiler")
    assert compiled(project) == []


def test_a_required_build_without_a_compiler_fails(project: Path) -> None:
    finished = build(project, "build_ext", "--inplace", CC="a-compiler-that-nobody-has", REQUIRE_CYTHON="1")
    assert finished.returncode == 1
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("penstock: the hot path cannot be compiled, and REQUIRE_CYTHON=1 asks for it. It takes a C ")
    assert "Traceback" not in finished.stderr


@needs_a_compiler
def test_a_build_says_how_far_it_is_and_how_long_it_takes(project: Path) -> None:
    said = build(project, "build_ext", "--inplace", REQUIRE_CYTHON="1").stderr
    first, second, third = re.findall(r"^compiling the hot path: (.*)$", said, flags=re.MULTILINE)
    assert re.fullmatch(r"2 modules, about \d+ s on \d+ cores?", first)
    assert re.fullmatch(r"1 of 2, about \d+ s left", second)
    assert third == "2 of 2"
    assert "compiling" not in build(project, "build_ext", "--inplace", REQUIRE_CYTHON="1").stderr  # all is fresh


def test_no_module_takes_in_what_cython_brings_for_memoryviews() -> None:
    (folder,) = hot.__path__
    typed = [path.name for path in Path(folder).glob("*.pxd") if re.search(r"\[::?1?\]", path.read_text())]
    assert typed == [], "20,000 lines of C in each module that includes the file: see load.pxd"


@needs_a_compiler
def test_one_mistake_leaves_nothing_compiled(built: Path) -> None:
    hot_folder = built / "src" / "penstock" / "hot"
    (hot_folder / "scan.pxd").write_text("this is no declaration\n")
    assert build(built, "build_ext", "--inplace").returncode == 0
    assert compiled(built) == []
    assert build(built, "build_ext", "--inplace", REQUIRE_CYTHON="1").returncode != 0


@needs_a_compiler
def test_what_changed_is_compiled_again_whatever_its_time_says(built: Path) -> None:
    source = built / "src" / "penstock" / "hot" / "scan.py"
    time = source.stat().st_mtime
    source.write_text(source.read_text().replace("NUMBER = 1", "NUMBER = 2"))
    os.utime(source, (time - 1000, time - 1000))
    module = hot_modes.load_setup(built / "setup.py")
    (stale,) = module.stale_files()
    assert stale.startswith("scan.")
    assert build(built, "build_ext", "--inplace").returncode == 0
    assert module.stale_files() == []
    code = "from penstock.hot import scan; print(scan.NUMBER, scan.__file__)"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(built / "src"), "PENSTOCK_PLAIN": ""},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    assert shown.stdout.startswith("2 ")
    assert shown.stdout.endswith(".so\n")


@needs_a_compiler
def test_a_source_that_is_edited_during_the_build_is_compiled_the_next_time(built: Path, tmp_path: Path) -> None:
    source = built / "src" / "penstock" / "hot" / "scan.py"
    source.write_text(source.read_text().replace("NUMBER = 1", "NUMBER = 2"))
    compiler = tmp_path / "compiler"
    edit = f"echo 'NUMBER = 3' >> {shlex.quote(str(source))}"
    compiler.write_text(f'#!/bin/sh\n{edit}\nexec {sysconfig.get_config_var("CC")} "$@"\n')
    compiler.chmod(0o755)
    assert build(built, "build_ext", "--inplace", REQUIRE_CYTHON="1", CC=str(compiler)).returncode == 0
    assert "NUMBER = 3" in source.read_text()
    (stale,) = hot_modes.load_setup(built / "setup.py").stale_files()
    assert stale.startswith("scan.")


@needs_a_compiler
def test_a_file_that_this_build_did_not_make_is_stale(built: Path) -> None:
    (extension,) = (built / "src" / "penstock" / "hot").glob("crc.*.so")
    with extension.open("ab") as file:
        file.write(b"by hand")
    assert hot_modes.load_setup(built / "setup.py").stale_files() == [extension.name]


@needs_a_compiler
def test_skipping_takes_away_what_was_compiled(built: Path) -> None:
    assert build(built, "build_ext", "--inplace", SKIP_CYTHON="1").returncode == 0
    assert compiled(built) == []


def test_to_require_and_to_skip_the_compiler_contradict_each_other(project: Path) -> None:
    finished = build(project, "build_ext", "--inplace", REQUIRE_CYTHON="1", SKIP_CYTHON="1")
    assert finished.returncode == 1
    assert finished.stderr == "penstock: SKIP_CYTHON=1 and REQUIRE_CYTHON=1 contradict each other: set one of them\n"


@pytest.mark.parametrize("mode", [pytest.param("compiled", marks=needs_a_compiler), "plain", "failed"])
def test_a_wheel_holds_the_hot_path(project: Path, tmp_path_factory: pytest.TempPathFactory, mode: str) -> None:
    out = tmp_path_factory.mktemp("wheel")
    modes = {"compiled": {"REQUIRE_CYTHON": "1"}, "plain": {"SKIP_CYTHON": "1"}, "failed": {"CC": "false"}}
    environment = modes[mode]
    finished = build(project, "bdist_wheel", "--dist-dir", str(out), **environment)
    assert finished.returncode == 0, finished.stderr
    (wheel,) = out.glob("*.whl")
    files = [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("penstock/hot/")]
    assert {"penstock/hot/__init__.py", "penstock/hot/crc.py", "penstock/hot/scan.py"} <= set(files)
    extensions = [name for name in files if name.endswith(".so")]
    assert len(extensions) == (2 if mode == "compiled" else 0)
    assert wheel.name.endswith("-py3-none-any.whl") == (mode != "compiled")


def test_a_module_depends_on_every_declaration_that_it_takes_in() -> None:
    stems = [path.stem for path in hot_modes.load_setup().included("classification")]
    assert {"classification", "headers", "memory"} <= set(stems)  # memory only through the others
    assert "keyhash" not in stems


def test_every_declaration_is_taken_in_the_way_that_is_found() -> None:
    (folder,) = hot.__path__
    for path in Path(folder).glob("*.p[xy]*"):
        for line in path.read_text().splitlines():
            if "cimport" in line and "penstock" in line and not line.lstrip().startswith(("#", '"')):
                assert hot_modes.load_setup().CIMPORT.match(line), f"{path.name}: {line}"
