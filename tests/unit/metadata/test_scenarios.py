"""Stories of who leads in tests/scenarios/metadata/*.txt: commands, `----`, and what becomes of the partitions.

With REWRITE_SCENARIOS=1 the files are written anew from what happens; read the difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.metadata.stories import Story

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios" / "metadata").glob("*.txt"))


def replayed(text: str) -> str:
    """The same story with what really happens."""
    story = Story()
    blocks = []
    for block in text.strip().split("\n\n"):
        told = block.split("\n----", 1)[0]
        seen = [line for command in told.split("\n") if not command.startswith("#") for line in story.tell(command)]
        blocks.append("\n".join([told, "----", *seen]) if "\n----" in block or seen else told)
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    happened = replayed(text)
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(happened)
    assert happened == text


def test_there_are_stories() -> None:
    assert len(SCENARIOS) >= 10
