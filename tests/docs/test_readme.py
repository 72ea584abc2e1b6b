"""The README's examples do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced code blocks of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_every_linked_file_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


def test_python_examples_compile() -> None:
    found = blocks("python")
    assert len(found) == 2
    compile(found[0], "README.md", "exec")
    indented = found[1].replace("\n", "\n    ")
    compile(f"async def example():\n    {indented}", "README.md", "exec")


@pytest.mark.parametrize("command", ["demo", "test"])
def test_the_two_commands_exist(command: str) -> None:
    assert re.search(rf"^{command}\b|\b{command}\b.*:$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert f"make {command}" in README
    assert f"python3 dev.py {command}" in README
