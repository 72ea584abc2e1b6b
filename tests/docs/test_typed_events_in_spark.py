"""The page on typed events in Spark: its commands and its program run in order, as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.broker_process import running_broker
from tests.docs.pages import blocks
from tests.extent import needs_time

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/typed-events-in-spark.md").read_text(encoding="utf-8")


@needs_time
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        environment = os.environ | {"PENSTOCK_SERVER": broker.client_address, "COLUMNS": "200"}

        def run(*command: str) -> str:
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        penstock = f"{sys.executable} -m penstock"
        run("sh", "-c", f"{penstock} stream create orders 'orders.>'")
        for language, text in blocks(PAGE):
            if language == "":
                run("sh", "-ec", re.sub(r"^penstock ", f"{penstock} ", text, flags=re.MULTILINE))
        told = run(sys.executable, "-c", "\n".join(text for language, text in blocks(PAGE) if language == "python"))
    assert re.findall(r"\|\s*1\|\s*7\|Oslo\|", told)
    assert re.findall(r"\|.*(ends|type).*\|1 +\|", told)
    assert told.splitlines()[-1] == "1"


def test_the_index_names_it() -> None:
    assert "(how-to/typed-events-in-spark.md)" in (DOCS / "README.md").read_text(encoding="utf-8")
