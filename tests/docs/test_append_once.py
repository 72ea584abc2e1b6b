"""The page on appending once: its programs run in order, as they stand, and do what it says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.broker_process import running_broker
from tests.docs.test_consumer_groups import run
from tests.extent import needs_time

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/append-once.md").read_text(encoding="utf-8")


@needs_time
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    first, *others = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(others) == 2
    with running_broker(tmp_path / "data") as broker:
        assert run(broker.client_address, "-W", "error", "-c", first) == "0 1000\n"
        said = [run(broker.client_address, "-W", "error", "-c", text) for text in others]
    assert said == ["2000\n", "producer_fenced\n"]


def test_every_linked_file_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE)
    assert links
    assert [link for link in links if not (DOCS / "how-to" / link).exists()] == []
    assert "(how-to/append-once.md)" in (DOCS / "README.md").read_text(encoding="utf-8")
