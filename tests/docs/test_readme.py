"""The README's examples do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.extent import needs_time

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced code blocks of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_python_examples_compile() -> None:
    found = blocks("python")
    assert len(found) == 2
    compile(found[0], "README.md", "exec")
    compile(found[1], "README.md", "exec")


@needs_time
def test_the_example_satisfies_a_strict_type_checker(tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    example.write_text(blocks("python")[0])
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--ignore-missing-imports", str(example)],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_every_extra_is_listed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in set(extras) - {"fuzz", "node", "site", "test", "wheels"}:
        assert f"| `{name}` |" in README


@pytest.mark.parametrize("command", ["demo", "test"])
def test_the_two_commands_exist(command: str) -> None:
    assert re.search(rf"^{command}\b|\b{command}\b.*:$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert f"make {command}" in README
    assert f"python3 dev.py {command}" in README


def test_make_alone_says_what_there_is() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^(\w[\w -]*):$", makefile, flags=re.MULTILINE)
    assert targets[0] == "help"  # the first one is what `make` alone does
    assert set(makefile.partition(".PHONY: ")[2].partition("\n")[0].split()) == set(" ".join(targets).split())
