"""Stories in tests/scenarios/replication/*.txt: commands, `----`, and what a person would see.

With REWRITE_SCENARIOS=1 the files are written anew from what happens; read the difference before you keep it.

| command                                                 | does                                                       |
|---------------------------------------------------------|------------------------------------------------------------|
| `cluster [brokers=3] [min_isr=2] [durability=auto]`     | new brokers, all in sync; `catch_up`: bytes per second     |
| `show`, `batches B`, `latest B`, `ack B end=N`          | all brokers; one log; what its leader may say              |
| `unreachable B`                                         | which leaders B cannot reach, for how long                 |
| `append B [records=1] [size=100]`                       | one batch from a publisher                                 |
| `flush B`, `retain B start=N`, `merge B end=N`          | its disk; its retention; its cleaner                       |
| `fetch B`                                               | one round with its leader                                  |
| `settle`, `tick by_ms=N`                                | all that is on its way arrives; and time passes            |
| `wait by_ms=N`                                          | time passes, and nothing arrives                           |
| `part A B`, `join A B`, `drop A B`, `late`              | connections (0: the metadata); what was dropped comes late |
| `metadata away` or `back`, `changes arrive` or `return` | the metadata leader; one message to it, or from it         |
| `deaf B`, `hears B`                                     | B hears of no change of the metadata                       |
| `stop B [power]`, `start B [clean]`                     | with `power`, what is not flushed is lost                  |
| `fence B`, `elect B [unclean]`                          | the metadata decides                                       |
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.replication.stories import Story

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios" / "replication").glob("*.txt"))


def replayed(text: str) -> str:
    """The same story with what really happens."""
    story = Story()
    blocks = []
    for block in text.strip().split("\n\n"):
        told = block.split("\n----", 1)[0]
        commands = [line for line in told.split("\n") if line and not line.startswith("#")]
        seen = [line for command in commands for line in story.tell(command)]
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
    assert len(SCENARIOS) >= 12
