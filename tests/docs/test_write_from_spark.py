"""The page on writing from Spark: its commands and its program run in order, as they stand, twice."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from penstock.base import limits
from penstock.spark.writing.rows import COLUMNS
from tests.broker_process import running_broker
from tests.extent import needs_time

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/write-from-spark.md").read_text(encoding="utf-8")


@needs_time
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    first, program, last = re.findall(r"```(?:python)?\n(.*?)```", PAGE, flags=re.DOTALL)
    with running_broker(tmp_path / "data") as broker:

        def run(*command: str) -> str:
            environment = os.environ | {"PENSTOCK_SERVER": broker.client_address, "COLUMNS": "200"}
            done = subprocess.run(
                [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        def shell(lines: str) -> list[str]:
            main = "from penstock.cli import main; main()"
            return [run("-c", main, *shlex.split(line)[1:]) for line in lines.splitlines()]

        shell(first)
        run("-c", program)
        run("-c", program)
        (read,) = shell(last)
    assert read.count("4200") == 1
    assert '"total": 42}' not in read


def test_its_columns_and_limits_are_those_of_the_code() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE) == list(COLUMNS)
    assert f"{limits.BATCH_ROWS_MAX:,} rows ({limits.PIECE_BYTES_MAX // limits.MIB} MiB)" in PAGE
