"""The pages on partitions and on groups of streams: their commands work as they stand, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.broker_process import running_broker
from tests.docs.test_consumer_groups import run as run_program
from tests.docs.test_verify import run
from tests.extent import needs_time

DOCS = Path(__file__).parents[2] / "docs"


@needs_time
@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("partitions", "{{partition(4,1)}}"),
        ("more-partitions", "2, then 4"),
        ("stream-groups", "stores jobs.>"),
    ],
)
def test_the_page_does_what_it_says(tmp_path: Path, page: str, said: str) -> None:
    text = (DOCS / f"how-to/{page}.md").read_text(encoding="utf-8")
    commands = re.findall(r"^penstock .*$", text, flags=re.MULTILINE)
    assert len(commands) > 2
    with running_broker(tmp_path / "data") as broker:
        done = [run(tmp_path, line, broker.client_address) for line in commands]
        assert [(line, one.stderr) for line, one in zip(commands, done, strict=True) if one.returncode] == []
        assert any(said in one.stdout for one in done)
        for program in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
            run_program(broker.client_address, "-W", "error", "-c", program)
    assert f"(how-to/{page}.md)" in (DOCS / "README.md").read_text(encoding="utf-8")
