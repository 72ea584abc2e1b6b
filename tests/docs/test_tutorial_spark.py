"""The tutorial on Spark: its commands and programs run in order, as they stand, and do what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.broker_process import running_broker
from tests.docs.test_consumer_groups import environment
from tests.extent import needs_time
from tests.spark.delta import delta_rows

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tutorial/spark.md").read_text(encoding="utf-8")
TIMEOUT_S = 240


@needs_time
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)
    shown = re.findall(r"```text\n(\+.*?)```", PAGE, flags=re.DOTALL)
    assert len(shown) == 1
    with running_broker(tmp_path / "data") as broker:

        def run(*arguments: str) -> str:
            command = [sys.executable, *arguments]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment(broker.client_address),
                capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (arguments, done.stdout, done.stderr)
            return done.stdout

        said = []
        for kind, text in blocks:
            if kind == "sh":
                for line in text.splitlines():
                    words = shlex.split(line)
                    assert words[0] == "penstock"
                    said.append(run("-m", *words))
            elif "def per_minute" in text:
                (tmp_path / "windows.py").write_text(text)
            else:
                said.append(run("-W", "ignore", "-c", text))
    rows = delta_rows(tmp_path / "tables" / "per-minute").to_pylist()
    minutes = sorted((one["minute"].strftime("%H:%M"), one["orders"], one["total"]) for one in rows)
    assert any(one.startswith("3 messages of orders archived in lake, in 1 file\n") for one in said)
    assert said[5].replace("\n\n", "\n").strip() == shown[0].replace("\n\n", "\n").strip()
    assert said[7].splitlines() == [
        """b'anna' b'{"total": 20, "at": "2026-11-20T10:01:30Z"}'""",
        """b'ben' b'{"total": 7, "at": "2026-11-20T10:00:50Z"}'""",
    ]
    assert minutes == [("10:00", 2, 49.0), ("10:01", 1, 20.0)]


def test_pages_name_files_that_are_there() -> None:
    for page in ("tutorial/spark.md", "how-to/spark-cluster.md", "how-to/replay.md", "reference/spark.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)#]+)", text)
        assert [one for one in links if not ((DOCS / page).parent / one).exists()] == []
        assert f"({page})" in (DOCS / "README.md").read_text(encoding="utf-8")
