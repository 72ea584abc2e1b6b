"""Stories: each `*.txt` below this folder is one test. Commands, `----`, and what a person would see.

Rules: the folder says which world carries a story out; its module lists the commands. Empty lines separate blocks; a
line that begins with `#` is a comment. A story passes if what happens is what it says.

    pytest tests/scenarios/cluster/all_stop.txt
    REWRITE_SCENARIOS=1 pytest tests/scenarios     # writes what happens into the files: read the difference

| folder        | world                                               | commands                          |
|---------------|-----------------------------------------------------|-----------------------------------|
| `broker`      | one broker in memory                                | tests/unit/node/stories.py        |
| `cluster`     | three brokers in memory                             | tests/unit/node/member_stories.py |
| `replication` | a leader and its followers, without a broker        | tests/unit/replication/stories.py |
| `metadata`    | the cluster's metadata                              | tests/unit/metadata/stories.py    |
| `raft`        | Raft without a network                              | tests/unit/raft/stories.py        |
| `client`      | what a client knows of its cluster, and one request | tests/unit/client/stories.py      |
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol

import pytest

WORLDS = {
    "broker": ("tests.unit.node.stories", "Story"),
    "cluster": ("tests.unit.node.member_stories", "MemberStory"),
    "replication": ("tests.unit.replication.stories", "Story"),
    "metadata": ("tests.unit.metadata.stories", "Story"),
    "raft": ("tests.unit.raft.stories", "Story"),
    "client": ("tests.unit.client.stories", "Story"),
}


class World(Protocol):
    """Carries out the commands of one story."""

    def tell(self, command: str) -> list[str]:
        """Carry out one command; return the lines that a person would see."""


def replayed(text: str, world: World) -> str:
    """Return the same story with what really happens."""
    blocks = []
    for block in text.strip().split("\n\n"):
        told = block.split("\n----", 1)[0]
        commands = [line for line in told.split("\n") if line and not line.startswith("#")]
        seen = [line for command in commands for line in world.tell(command)]
        blocks.append("\n".join([told, "----", *seen]) if "\n----" in block or seen else told)
    return "\n\n".join(blocks) + "\n"


class StoryError(Exception):
    """Something else happens than the story says; the text is the difference."""


def check(path: Path) -> None:
    """Carry out a story. StoryError: something else happens."""
    module, name = WORLDS[path.parent.name]
    text = path.read_text(encoding="utf-8")
    happened = replayed(text, getattr(import_module(module), name)())
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(happened, encoding="utf-8")
    if happened != text:
        lines = difflib.unified_diff(text.splitlines(), happened.splitlines(), "told", "happened", lineterm="")
        raise StoryError("\n".join(lines))


class StoryItem(pytest.Item):
    """One story."""

    def runtest(self) -> None:
        check(self.path)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: str | None = None) -> str:  # type: ignore[override]
        if isinstance(excinfo.value, StoryError):
            return f"{excinfo.value}\n"
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.parent.name}: {self.path.stem}"


class StoryFile(pytest.File):
    """A file with one story."""

    def collect(self) -> Iterator[StoryItem]:
        yield StoryItem.from_parent(self, name=self.path.stem)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    """Every `*.txt` in the folder of a world is a story."""
    if file_path.suffix != ".txt":
        return None
    return StoryFile.from_parent(parent, path=file_path)  # type: ignore[no-any-return]
