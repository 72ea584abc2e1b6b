"""The page on read replicas: its commands and its program run in order, as they stand, on three brokers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from textwrap import dedent

import penstock
from tests.docs.test_consumer_groups import run
from tests.extent import needs_time
from tests.integration.clusters import running_cluster

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/read-replicas.md").read_text(encoding="utf-8")


@needs_time
async def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        server = cluster.brokers[1].client_address
        said = []
        for language, text in re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL):
            if language == "python":
                said.append(run(server, "-c", dedent(text)))
                continue
            for line in text.splitlines():
                words = shlex.split(line)
                assert words[0] == "penstock"
                said.append(run(server, "-m", "penstock", *words[1:]))
                if words[1:3] == ["stream", "create"]:
                    with penstock.connect(server) as client:
                        client.append("news", [{"value": b"1"}, {"value": b"2"}])
    read, nearest, program, shown = said[2:]
    assert read.count("\n") == nearest.count("\n") == 2
    assert program == "0 b'1'\n1 b'2'\n2\n"
    assert re.search(r"observed by +\d \((\?|[0-9.]+ s)\), \d \(", shown), shown


def test_every_linked_file_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE)
    assert links
    assert [link for link in links if not (DOCS / "how-to" / link).exists()] == []
    assert "(how-to/read-replicas.md)" in (DOCS / "README.md").read_text(encoding="utf-8")
