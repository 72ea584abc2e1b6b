"""Stories of three brokers in tests/scenarios/cluster/*.txt: commands, `----`, and what a person would see.

With REWRITE_SCENARIOS=1 the files are written anew from what happens; read the difference before you keep it.

| command                                     | does                                                                   |
|---------------------------------------------|------------------------------------------------------------------------|
| `cluster metadata=N`                        | three brokers with empty disks; N becomes the metadata leader          |
| `create N NAME [SUBJECT] [field=value …]`   | a client asks broker N for a stream, on `NAME.>` unless told otherwise |
| `alter N NAME field=value …`                | … for a change of it                                                   |
| `delete N NAME`                             | … for its end                                                          |
| `intake N NAME INTAKE`                      | … to have it open, paused, read_only or sealed                         |
| `truncate N NAME before=OFFSET [dry=yes]`   | a client asks broker N to give up what comes before                    |
| `publish SUBJECT VALUE … [reply=R]`         | messages from NATS, to whoever subscribes                              |
| `append N NAME VALUE …`                     | a client sends a batch to broker N                                     |
| `show NAME`                                 | each partition: the image, and what each replica has and shows         |
| `files N`                                   | the folders of streams on N's disk                                     |
| `brokers`                                   | who leads the metadata, and who is live                                |
| `waits N`                                   | what broker N waits for                                                |
| `kill N …`, `power N …`                     | processes end; with `power` all that is not synced is lost             |
| `stop N`, `start N`, `wipe N`               | a clean stop; a start; an empty disk                                   |
| `copy N`, `start N copy`                    | a copy of its disk is kept; a start on that                            |
| `hang N`, `wake N`                          | it gets no turn, but keeps its connections; it goes on                 |
| `cut N M …`, `heal`                         | no connection between N and these; all connections                     |
| `disk N waits`, `disk N works`              | its disk work is held back; it is done                                 |
| `disk N hangs`                              | the syncs of its logs do not come back until it works                  |
| `disk N spent`                              | no room but what is given back, such as the reserve                    |
| `disk N full`, `disk N fails` `[A,B]`       | no room, or no sync; for files that begin so                           |
| `flip N NAME OFFSET`                        | a bit flips on its disk, in the batch that holds this offset           |
| `tick MS`                                   | time passes                                                            |
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.node.member_stories import MemberStory
from tests.unit.node.test_scenarios import replayed

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios" / "cluster").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    happened = replayed(text, MemberStory())
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(happened)
    assert happened == text


def test_there_are_stories() -> None:
    assert len(SCENARIOS) >= 10
