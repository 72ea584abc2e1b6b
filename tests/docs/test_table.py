"""The page on tables: its programs run in order, as they stand, and do what it says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.broker_process import running_broker
from tests.docs.test_consumer_groups import run
from tests.extent import needs_time

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/table.md").read_text(encoding="utf-8")


@needs_time
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    first, *others = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(others) == 2
    with running_broker(tmp_path / "data") as broker:
        said = [run(broker.client_address, "-W", "error", "-c", first)]
        said += [run(broker.client_address, "-W", "error", "-c", text) for text in others]
    assert said == ["b'11' None 1\nb'apple' b'11' 2\n", "b'12'\n", "b'apple' b'13'\n"]


def test_the_index_names_it() -> None:
    assert "(how-to/table.md)" in (DOCS / "README.md").read_text(encoding="utf-8")
