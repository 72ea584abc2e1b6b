"""The page on consumer groups: its commands and programs run in order, as they stand, and do what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import penstock
from tests.broker_process import running_broker
from tests.extent import needs_time

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/consumer-groups.md").read_text(encoding="utf-8")
TIMEOUT_S = 60


def run(server: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PENSTOCK_SERVER": server, "PYTHONPATH": str(Path(penstock.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


@needs_time
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "python", "python", "sh", "python", "sh"]
    said: list[str] = []
    with running_broker(tmp_path / "data") as broker:
        with penstock.connect(broker.client_address) as client:
            client.create_stream("orders", "orders")
        for language, text in blocks:
            if language == "python":
                said.append(run(broker.client_address, "-W", "error", "-c", text))
                continue
            for line in text.splitlines():
                words = shlex.split(line)
                assert words[0] == "penstock"
                said.append(run(broker.client_address, "-m", "penstock", *words[1:]))
    reads = [text.count('"offset"') for text in said[:5]]
    assert (reads[2], reads[4]) == (2, 1)  # the second time only what came since
    assert said[5].splitlines() == ["0 b'1'", "1 b'2'", "2 b'3'", "3 {0: 0}"]
    assert said[6] == ""  # it has all
    assert "billing" in said[7]
    assert said[9].splitlines() == ["0 3 0 None"]
    assert "would go on in orders at offset 0; it was at 3" in said[10]
    assert "goes on in orders at offset 2; it was at 0" in said[12]


def test_every_linked_file_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE)
    assert links
    assert [link for link in links if not (DOCS / "how-to" / link).exists()] == []
    assert "(how-to/consumer-groups.md)" in (DOCS / "README.md").read_text(encoding="utf-8")
