"""The recipes on reading the files, run in order as they stand, on files of a real layout."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import penstock
from penstock.batch.schema import schema_message
from tests.extent import each_change
from tests.groups import Columns, encoded

PAGE = (Path(__file__).parents[2] / "docs/how-to/read-the-files.md").read_text(encoding="utf-8")
TIMEOUT_S = 180


def write_stream(folder: Path) -> None:
    folder.mkdir(parents=True)
    for base in (0, 2):
        values: list[bytes | None] = [b'{"total": %d}' % (base * 10), b'{"total": 5}' if base else None]
        columns = Columns(
            [b"orders.eu", b"orders.us"], [b"k", None], values, [b"NATS/1.0\r\nColour: red\r\n\r\n", None]
        )
        batch = encoded(columns, base_offset=base, timestamp_us=1_000_000 + base, leader_epoch=1)
        segment = schema_message(2, 0) + bytes(batch)
        (folder / f"{base:020d}.arrows").write_bytes(segment)
        if base == 0:  # written anew, and the broker was killed before it removed the old one
            (folder / f"{base:020d}.1.arrows").write_bytes(segment)


@each_change
def test_the_recipes_do_what_they_say(tmp_path: Path) -> None:
    write_stream(tmp_path / "penstock-data/streams/00000004-orders/0")
    recipes = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(recipes) == 7
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(recipes)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(penstock.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "4 0 3" in said  # all rows, from the first offset to the last
    assert said.splitlines()[1].startswith("4 [{'offset': 0,")  # pyarrow alone
    assert "[0, 20, 5]" in said  # pyarrow's totals, without the tombstone
    assert "[('orders.eu', 2, 20), ('orders.us', 2, 5)]" in said
    assert "shape: (4, 4)" in said  # Polars
    assert re.findall(r"^\d+ +(\d+) +orders\.", said, flags=re.MULTILINE) == ["0", "2", "3"]  # pandas
    assert "red ['red']" in said
    assert "None []" in said


def test_the_columns_in_the_table_are_those_of_the_log() -> None:
    from penstock.client.checks import COLUMNS

    assert tuple(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)) == COLUMNS
