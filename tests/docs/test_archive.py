"""The pages on archives: their commands and programs run in order, as they stand, and do what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests.broker_process import running_broker
from tests.extent import needs_time

DOCS = Path(__file__).parents[2] / "docs"
TIMEOUT_S = 180


def page(name: str) -> str:
    return (DOCS / "how-to" / name).read_text(encoding="utf-8")


def run(folder: Path, server: str, *arguments: str) -> str:
    sources = str(Path(penstock.__file__).parents[1])
    environment = {**os.environ, "PENSTOCK_SERVER": server, "PYTHONPATH": sources}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def programs(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def commands(text: str) -> list[list[str]]:
    blocks = re.findall(r"```\n(penstock .*?)```", text, flags=re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


@needs_time
def test_the_pages_do_what_they_say(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        server = broker.client_address
        with penstock.connect(server) as client:
            client.create_stream("orders", "orders.in")
            client.append("orders", [{"value": b"%d" % number} for number in range(10)])
            first, *_, group = commands(page("archive.md"))
            said = run(tmp_path, server, "-m", "penstock", *first)
            done, how_far = said.splitlines()
            assert done == "10 messages of orders archived in lake, in 1 file"
            name = re.fullmatch(r"how far it is: penstock group show (archive-lake-[0-9a-f]{8})", how_far)
            assert name
            assert name[1] in run(tmp_path, server, "-m", "penstock", *group)
            assert " 10 " in run(tmp_path, server, "-m", "penstock", "group", "show", name[1])
            client.append("orders", [{"value": b"more"}])
        pages = ("archive.md", "audit.md", "one-history.md")
        program = "\n".join(one for name in pages for one in programs(page(name)))  # one Spark for all
        told = run(tmp_path, server, "-c", program).splitlines()
        assert told == ["1 1", "[('orders', 11, 10)]", "11", "11 True ()", "11 0", "True"]
        _, against = commands(page("audit.md"))
        assert "lake is equal to the log" in run(tmp_path, server, "-m", "penstock", *against)


def test_the_index_names_them() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert "(how-to/archive.md)" in index
    assert "(how-to/one-history.md)" in index
    assert "(how-to/audit.md)" in index
    assert "(how-to/schedule-pipelines.md)" in index


@pytest.mark.parametrize("name", ["archive.md", "audit.md", "schedule-pipelines.md"])
def test_the_options_that_are_named_exist(name: str) -> None:
    known = set(re.findall(r"--[a-z-]+", (DOCS / "reference/cli.md").read_text(encoding="utf-8")))
    text = re.sub(r"```sh\n.*?```", "", page(name), flags=re.DOTALL)  # commands of other programs
    used = set(re.findall(r"--[a-z-]+", text))
    assert used
    assert used <= known
