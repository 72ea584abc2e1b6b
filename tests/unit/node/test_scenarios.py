"""Stories in tests/scenarios/*.txt: commands, `----`, and what a person would see.

With REWRITE_SCENARIOS=1 the files are written anew from what happens; read the difference before you keep it.

| command                                            | does                                                            |
|----------------------------------------------------|-----------------------------------------------------------------|
| `broker [nats=down] [in_flight=N]`                 | starts a new broker on an empty disk                            |
| `create NAME [subject] [field=value …]`            | creates a stream, on `NAME.>` unless told otherwise             |
| `alter NAME field=value …`, `delete NAME`          | changes, deletes                                                |
| `publish SUBJECT VALUE … [reply=R] [header=K:V …]` | one read of the NATS connection; `xN` as a value is N bytes     |
| `fetch NAME OFFSET [wait=MS] [min=BYTES]`          | a long poll                                                     |
| `append NAME VALUE … [subject=S] [break=PART]`     | a batch over the socket; `break` damages it first               |
| `get NAME offset=N` or `key=K` or `subject=S`      | one message                                                     |
| `offsets NAME earliest` or `latest` or `+MS`       | list offsets; `+MS` counts from the beginning of the story      |
| `show NAME`, `read NAME`, `find SUBJECT`           | state, all readable messages, streams on a subject              |
| `partition=N` on `fetch` … `offsets`, `read`       | which partition; 0 unless told otherwise                        |
| `disk hold`, `disk run [n]`, `disk all`            | hold disk work back; run it                                     |
| `disk turn`                                        | all disk work is done before anything is carried out            |
| `disk broken`                                      | writes fail half-way and cannot be undone                       |
| `disk KIND fails ERROR [bytes=N]`, `disk works`    | every operation of that kind fails                              |
| `tick MS`, `clock back MS`                         | time passes; the calendar is set back                           |
| `nats down REASON`, `back`, `silent`               | the connection to NATS; `silent` confirms nothing               |
| `nats refuses NAME`                                | it does not let the broker subscribe for that stream            |
| `nats forbids SUBJECT`, `nats allows SUBJECT`      | permissions change while the connection is there                |
| `nats limit N`                                     | room for N subscriptions; it does not say which it refuses      |
| `subscriptions`                                    | what NATS delivers to the broker                                |
| `gone CALLER`, `stop`, `restart`, `crash`          | a client leaves; the broker's ends                              |
| `folder PATH`, `files [PREFIX]`                    | a stranger's folder; what is on the disk                        |
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import pytest

from tests.unit.node.stories import Story

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.txt"))


class Told(Protocol):
    """Whoever carries out a story."""

    def tell(self, command: str) -> list[str]:
        """The lines that a person would see."""


def replayed(text: str, story: Told) -> str:
    """The same story with what really happens."""
    blocks = []
    for block in text.strip().split("\n\n"):
        told = block.split("\n----", 1)[0]
        lines = told.split("\n")
        seen = [line for command in lines if command and not command.startswith("#") for line in story.tell(command)]
        blocks.append("\n".join([told, "----", *seen]) if "\n----" in block or seen else told)
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    happened = replayed(text, Story())
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(happened)
    assert happened == text


def test_there_are_stories() -> None:
    assert len(SCENARIOS) >= 15
