"""dev.py: what it decides, and what it says when it cannot go on."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKERS = min(4, (os.cpu_count() or 1) + 1)


@pytest.fixture
def dev(tmp_path: Path) -> ModuleType:
    """dev.py as it runs from a project folder of its own."""
    (tmp_path / "tests" / "compat" / "js").mkdir(parents=True)
    (tmp_path / "src" / "penstock" / "hot").mkdir(parents=True)
    (tmp_path / "bench").mkdir()
    deciding = ("bench/pyproject.toml", "bench/setup.py", "tests/compat/js/package.json", "src/penstock/__init__.py")
    for name in ("dev.py", "setup.py", "pyproject.toml", "constraints.txt", *deciding):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    spec = importlib.util.spec_from_file_location("dev_under_test", tmp_path / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ready(dev: ModuleType) -> ModuleType:
    """dev.py beside a `.venv` in which the demo is set up."""
    Path(dev.PYTHON).parent.mkdir(parents=True)
    Path(dev.PYTHON).touch()
    Path(dev.OURS).touch()
    Path(dev.HOT, "scan.so").touch()
    dev.Plan(dev.Stamp(), dev.EXTRAS["demo"]).stamp.write()
    return dev


def run(dev: ModuleType, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(dev.__file__), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_old_python_can_read_it() -> None:
    source = (ROOT / "dev.py").read_text()
    tree = ast.parse(source, feature_version=(3, 6))
    assert not any(isinstance(node, ast.AnnAssign) for node in ast.walk(tree))
    imported = {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module}
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize("version", [(3, 6, 15), (3, 10, 13)])
def test_an_old_python_is_told_what_to_install(dev: ModuleType, version: tuple[int, ...]) -> None:
    mistake = dev.python_mistake(version, "Linux")
    assert "Penstock needs Python 3.11 or newer" in mistake
    assert "apt install python3.12 python3.12-venv" in mistake


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 13, 1), (3, 14, 0)])
def test_a_new_python_will_do(dev: ModuleType, version: tuple[int, ...]) -> None:
    assert dev.python_mistake(version, "Darwin") is None


def test_windows_is_told_of_wsl(dev: ModuleType) -> None:
    assert "WSL" in dev.python_mistake((3, 12, 1), "Windows")


def test_a_fresh_clone_needs_everything(dev: ModuleType) -> None:
    plan = dev.Plan(dev.Stamp.read(), dev.EXTRAS["demo"])
    assert (plan.new_venv, plan.install, plan.install_js) == (True, True, False)
    assert plan.download_mb == dev.SIZES_MB["core"][0] + dev.SIZES_MB["demo"][0]


def test_nothing_is_done_the_second_time(ready: ModuleType) -> None:
    assert ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"]).is_empty


def test_tests_after_the_demo_add_only_what_they_need(ready: ModuleType) -> None:
    plan = ready.Plan(ready.Stamp.read(), ready.EXTRAS["test"])
    assert (plan.new_venv, plan.install, plan.install_js) == (False, True, True)
    assert plan.fetched == {"spark", "java", "lake", "site", "test", "js"}


def test_the_demo_on_spark_adds_what_spark_needs(ready: ModuleType) -> None:
    plan = ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo --spark"])
    assert (plan.new_venv, plan.install, plan.fetched) == (False, True, {"spark", "java", "lake"})
    assert plan.download_mb == sum(ready.SIZES_MB[extra][0] for extra in ("spark", "java", "lake"))
    plan.stamp.write()
    assert ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"]).is_empty
    assert ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo --spark"]).is_empty


@pytest.mark.parametrize(
    ("arguments", "fetched"), [(("--rows", "10"), None), (("--rows", "10", "--spark"), "java, lake, spark")]
)
def test_the_demo_says_what_it_fetches_for_spark(
    ready: ModuleType, arguments: tuple[str, ...], fetched: str | None
) -> None:
    Path(ready.PYTHON).write_text('#!/bin/sh\necho "pip: $@"\n')
    command = Path(ready.VENV) / "bin" / "penstock"
    command.write_text('#!/bin/sh\necho "penstock $@"\n')
    for path in (Path(ready.PYTHON), command):
        path.chmod(0o755)
    finished = run(ready, "demo", *arguments)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == " ".join(("penstock demo", *arguments))
    announced = re.search(r"Bringing up to date Penstock in .venv: (.*)\. This is needed once", finished.stdout)
    assert (announced and announced[1]) == fetched, finished.stdout


def test_all_that_is_set_up_has_a_size(dev: ModuleType) -> None:
    assert set().union(*dev.EXTRAS.values()) | {"node"} == set(dev.SIZES_MB)


def test_the_demo_after_the_tests_needs_nothing_and_keeps_them(ready: ModuleType) -> None:
    ready.Plan(ready.Stamp.read(), ready.EXTRAS["test"]).stamp.write()
    plan = ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"])
    assert plan.is_empty
    assert plan.extras == ready.EXTRAS["test"]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("pyproject.toml", "nats-py>=", "nats-py>"),
        ("constraints.txt", "nats-py==", "nats-py>"),
        ("src/penstock/__init__.py", '__version__ = "', '__version__ = "1'),
    ],
)
def test_other_pins_bring_the_packages_up_to_date(ready: ModuleType, name: str, old: str, new: str) -> None:
    path = Path(ready.ROOT) / name
    path.write_text(path.read_text().replace(old, new))
    plan = ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"])
    assert (plan.new_venv, plan.install) == (False, True)


def test_what_was_installed_by_the_former_name_is_removed_first(ready: ModuleType) -> None:
    (Path(ready.VENV) / "lib/python3.11/site-packages/penstock-0.2.0.dist-info").mkdir(parents=True)
    (Path(ready.ROOT) / "src/penstock.egg-info").mkdir()
    Path(ready.PYTHON).write_text('#!/bin/sh\necho "$@" >> "$0.log"\n')
    Path(ready.PYTHON).chmod(0o755)
    (Path(ready.ROOT) / "constraints.txt").write_text("# changed\n")
    command = Path(ready.VENV) / "bin" / "penstock"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    finished = run(ready, "demo")
    assert finished.returncode == 0, finished.stderr
    said = Path(ready.PYTHON + ".log").read_text().splitlines()
    steps = [re.sub(r"^-m pip (--\S+ )*|--\S+ ", "", line).split()[0] for line in said]
    assert steps == ["install", "setup.py", "uninstall", "install"]
    assert said[2].endswith("uninstall --yes penstock")
    assert not (Path(ready.ROOT) / "src/penstock.egg-info").exists()


@pytest.mark.parametrize("name", ["setup.py", "src/penstock/hot/scan.py", "src/penstock/hot/scan.pxd"])
def test_another_hot_path_is_built_without_a_network(ready: ModuleType, name: str) -> None:
    with (Path(ready.ROOT) / name).open("a") as file:
        file.write("# changed\n")
    plan = ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"])
    assert (plan.new_venv, plan.install, plan.build_hot) == (False, False, True)
    assert plan.fetched == set()


def test_a_compiler_that_came_later_is_used(ready: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "can_compile", lambda: False)
    ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"]).stamp.write()
    assert ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"]).is_empty
    monkeypatch.setattr(ready, "can_compile", lambda: True)
    assert ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"]).build_hot


def test_a_hot_path_that_is_gone_is_built_again(ready: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "can_compile", lambda: True)
    ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"]).stamp.write()
    assert ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"]).is_empty
    Path(ready.HOT, "scan.so").unlink()
    assert ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"]).build_hot


def test_the_hot_path_is_not_compiled_against_ones_will(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIP_CYTHON", "1")
    assert not dev.can_compile()


def test_a_missing_compiler_is_noticed(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKIP_CYTHON", raising=False)
    monkeypatch.setenv("CC", "a-compiler-that-nobody-has")
    assert not dev.can_compile()


def test_the_settings_of_a_tool_need_no_network(ready: ModuleType) -> None:
    with (Path(ready.ROOT) / "pyproject.toml").open("a") as file:
        file.write("[tool.unheard-of]\n")
    assert ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"]).is_empty


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"venv": 1}', b"\xff"])
def test_an_interrupted_set_up_starts_over(ready: ModuleType, content: bytes | None) -> None:
    if content is None:
        Path(ready.STAMP).unlink()
    else:
        Path(ready.STAMP).write_bytes(content)
    assert ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"]).new_venv


def test_a_moved_folder_is_set_up_anew(ready: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "ROOT", ready.ROOT + "-moved")
    assert ready.Stamp.read().venv != ready.venv_identity()


def test_somebody_elses_venv_is_left_alone(ready: ModuleType) -> None:
    Path(ready.OURS).unlink()
    Path(ready.STAMP).unlink()
    for command in ("demo", "clean"):
        finished = run(ready, command)
        assert finished.returncode == 1
        assert "was not made by this script" in finished.stderr
    assert Path(ready.PYTHON).exists()


def test_clean_removes_the_venv_and_keeps_data(ready: ModuleType) -> None:
    data = Path(ready.ROOT) / "penstock-data"
    data.mkdir()
    assert run(ready, "clean").returncode == 0
    assert not Path(ready.VENV).exists()
    assert data.is_dir()


def test_arguments_reach_the_command(ready: ModuleType) -> None:
    command = Path(ready.VENV) / "bin" / "penstock"
    command.write_text('#!/bin/sh\necho "$@"\nexit 7\n')
    command.chmod(0o755)
    finished = run(ready, "demo", "--rows", "10", "-h")
    assert (finished.returncode, finished.stdout) == (7, "demo --rows 10 -h\n")


PLANTED = '''"""Module."""

# The caller is told, whoever that is; `why_nobody` is a name.


def size() -> int:
    """Whether it is large.

    Nobody asks twice, and nobody waits.
    """
    return len("nobody")
'''


def test_a_vague_word_in_a_docstring_or_comment_fails_the_check(ready: ModuleType) -> None:
    ready.Plan(ready.Stamp(), ready.EXTRAS["test"]).stamp.write()
    for tool in ("ruff", "mypy", "lint-imports", "python"):
        command = Path(ready.VENV) / "bin" / tool
        command.write_text("#!/bin/sh\n")
        command.chmod(0o755)
    assert run(ready, "check").returncode == 0
    package = Path(ready.ROOT) / "src" / "penstock" / "raft"
    package.mkdir()
    (package / "planted.py").write_text(PLANTED)
    finished = run(ready, "check")
    assert finished.returncode == 1
    assert finished.stdout.endswith("Failed: vocabulary\n")
    found = [line for line in finished.stdout.splitlines() if "planted.py" in line]
    place = "src/penstock/raft/planted.py"
    assert found[0].startswith(f'{place}:3: "whoever"; name the actor: the client')
    assert found[1] == f'{place}:7: a docstring begins with "Whether"; begin with True if'
    assert found[2].startswith(f'{place}:9: "Nobody"; name the actor')
    assert len(found) == 4  # also the second one of that line, but not names in backticks or strings in code


@pytest.mark.parametrize(
    ("arguments", "passed_on", "tier"),
    [
        ((), f"-n {WORKERS} --dist loadscope --no-loadscope-reorder", ""),
        (("--full",), f"-n {WORKERS} --dist loadscope --no-loadscope-reorder", "full"),
        (("tests/crash", "--long", "-x"), "tests/crash -x", "long"),
    ],
)
def test_tests_may_keep_their_bytecode_and_have_a_tier(
    ready: ModuleType, arguments: tuple[str, ...], passed_on: str, tier: str
) -> None:
    ready.Plan(ready.Stamp(), ready.EXTRAS["test"]).stamp.write()
    Path(ready.PYTHON).write_text('#!/bin/sh\necho "$@, $PYTHONDONTWRITEBYTECODE, $TESTS"\n')
    Path(ready.PYTHON).chmod(0o755)
    finished = run(ready, "test", *arguments, PYTHONDONTWRITEBYTECODE="1", TESTS="")
    assert finished.stdout == f"-m pytest {passed_on}, , {tier}\n", finished.stderr


def test_a_missing_command_shows_the_help(dev: ModuleType) -> None:
    finished = run(dev)
    assert finished.returncode == 2
    assert "demo" in finished.stdout


def test_an_unreachable_index_leaves_what_worked(ready: ModuleType) -> None:
    # A pip that fails as it does without a network, in the place of the one in .venv.
    Path(ready.PYTHON).write_text("#!/bin/sh\necho 'Max retries exceeded: Connection refused'\nexit 1\n")
    Path(ready.PYTHON).chmod(0o755)
    finished = run(ready, "test")
    assert finished.returncode == 1
    assert "Max retries exceeded" in finished.stdout
    assert "could not be reached" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert ready.Plan(ready.Stamp.read(), ready.EXTRAS["demo"]).is_empty


def test_what_points_outside_is_not_passed_on(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX"):
        monkeypatch.setenv(name, "/elsewhere")
    kept = {"PIP_INDEX_URL": "http://127.0.0.1:9/packages", "https_proxy": "http://127.0.0.1:9", "PIP_CERT": "ca.pem"}
    for name, value in kept.items():
        monkeypatch.setenv(name, value)
    environment = dev.clean_environment()
    assert "/elsewhere" not in environment.values()
    assert kept.items() <= environment.items()
    assert environment["PIP_USER"] == "0"


def test_a_missing_venv_module_is_explained(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(dev.shutil, "which", lambda name: None)
    with pytest.raises(dev.SetUpError, match=r"no module venv and no ensurepip(?s:.*)apt install python3\.\d+-venv"):
        dev._venv_command()


def test_virtualenv_stands_in_for_a_missing_venv_module(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())
    assert dev._venv_command()[1:3] == ["-m", "virtualenv"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  Downloading pyarrow-26.0.1-cp311.whl (55.0 MB)", "fetching     pyarrow-26.0.1                     55.0 MB"),
        ("Using cached numpy-2.4.6-cp311-x.whl (16.9 MB)", "from cache   numpy-2.4.6                        16.9 MB"),
        ("  Downloading rich-15.0.0-py3-none-any.whl (310 kB)", None),
        ("Installing collected packages: a, b, c", "unpacking 3 packages…"),
        ("compiling the hot path: 7 of 25, about 9 s left", "compiling the hot path: 7 of 25, about 9 s left"),
        ("Collecting pyarrow", None),
    ],
)
def test_progress_shows_what_takes_time(dev: ModuleType, line: str, shown: str | None) -> None:
    assert dev.progress(line) == shown


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("ERROR: No matching distribution found for pyarrow", "no version that fits"),
        ("Cannot connect to proxy: 407 Proxy Authentication Required", "proxy refused"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate", "CA to trust"),
        ("npm error code ENOTFOUND", "could not be reached"),
    ],
)
def test_a_failure_comes_with_a_hint(dev: ModuleType, text: str, part: str) -> None:
    assert part in dev.hint(text)


def test_constraints_pin_versions_and_name_no_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 40
    for pin in pins:
        name, _, version = pin.partition("==")
        assert name, pin
        # The betas of OpenTelemetry and sphinx-basic-ng are what releases stand on.
        assert re.fullmatch(r"[0-9]+(\.[0-9]+)*(b[0-9]+)?(\.post[0-9]+)?", version), pin
