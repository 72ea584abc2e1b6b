"""Stories in tests/scenarios/raft/*.txt: commands, `----`, and what a person would see. Told in `stories`.

With REWRITE_SCENARIOS=1 the files are written anew from what happens; read the difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.raft.stories import Story

STORIES = sorted((Path(__file__).parents[2] / "scenarios" / "raft").glob("*.txt"))


def replayed(text: str) -> str:
    """The same story with what really happens."""
    story = Story()
    blocks = []
    for block in text.strip().split("\n\n"):
        told = block.split("\n----", 1)[0]
        lines = told.split("\n")
        seen = [line for command in lines if command and not command.startswith("#") for line in story.tell(command)]
        blocks.append("\n".join([told, "----", *seen]) if "\n----" in block or seen else told)
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    text = path.read_text()
    happened = replayed(text)
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(happened)
    assert happened == text


def test_there_are_stories() -> None:
    assert len(STORIES) >= 12
