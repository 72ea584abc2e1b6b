"""The page on rollups: its commands and its program run in order, as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.docs.test_message_ttl import DOCS, run_page
from tests.extent import needs_time

PAGE = (DOCS / "how-to/rollup.md").read_text(encoding="utf-8")


@needs_time
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    said, found, shown = run_page(PAGE, tmp_path / "data")
    assert said[4] == "4\n"
    assert [(one.value, one.headers["Nats-Rollup"]) for one in found] == [(b"everything", "all")]
    assert json.loads(shown)["config"]["allow_rollup"]


def test_every_linked_file_and_heading_is_there() -> None:
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", PAGE)
    assert links
    for name, heading in links:
        text = (DOCS / "how-to" / name).read_text(encoding="utf-8") if name else PAGE
        headings = [
            re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-") for one in re.findall(r"^#+ (.+)$", text, re.M)
        ]
        assert not heading or heading in headings, (name, heading)
    assert "(how-to/rollup.md)" in (DOCS / "README.md").read_text(encoding="utf-8")
