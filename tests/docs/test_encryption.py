"""The page on encryption: its commands and its program run in order, as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.broker_process import BrokerProcess, broker_environment
from tests.extent import needs_time

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/encryption.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)


class Reader:
    """Does what the page says, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = BrokerProcess(folder / "penstock-data")
        self.said: dict[str, str] = {}

    def run(self, *arguments: str) -> str:
        environment = {**broker_environment({}), "PENSTOCK_SERVER": self.broker.client_address}
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, cwd=self.folder, env=environment, check=False
        )
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def do(self, line: str) -> None:
        words = shlex.split(line)
        if words[:2] == ["penstock", "serve"]:
            self.broker.arguments += [str(self.folder / one) if one.endswith(".keys") else one for one in words[2:]]
            self.broker.start()
        elif words[0] == "kill":
            assert line == 'kill -HUP "$(cat penstock-data/LOCK)"'
            seen = len(self.broker.stderr or ())
            subprocess.run(["sh", "-c", line], cwd=self.folder, check=True)
            self.broker.logged("were read again", after=seen)
        else:
            assert words[0] == "penstock"
            self.said[line] = self.said.get(line, "") + self.run("-m", "penstock", *words[1:])


@pytest.fixture
def reader(tmp_path: Path):
    made = Reader(tmp_path)
    yield made
    made.broker.end()


@needs_time
def test_the_page_does_what_it_says(reader: Reader) -> None:
    for language, text in BLOCKS:
        if language == "sh":
            for line in text.splitlines():
                reader.do(line)
        else:
            reader.run("-c", text)
    assert "Ada Lovelace" in reader.said["penstock read patients"]
    first, second = (line.split()[0] for line in reversed((reader.folder / "penstock.keys").read_text().splitlines()))
    listed = reader.said["penstock keys list penstock-data"]
    assert listed.index(first) < listed.rindex(second)
    assert listed.count(first) == 1
    table = pyarrow.parquet.read_table(reader.folder / "patients.parquet")
    assert table.column("value").to_pylist() == [b"Ada Lovelace"]
    for path in (reader.folder / "penstock-data").rglob("*.arrows"):
        assert b"Lovelace" not in path.read_bytes()
    assert os.stat(reader.folder / "penstock.keys").st_mode & 0o777 == 0o600


@needs_time
def test_the_config_of_such_a_stream_says_so(reader: Reader) -> None:
    for line in ("penstock keys new --file penstock.keys", "penstock serve --encryption-keys-file penstock.keys"):
        reader.do(line)
    reader.do("penstock stream create patients 'patients.>' --encryption aes-256-gcm")
    shown = json.loads(reader.run("-m", "penstock", "stream", "show", "patients", "--json"))
    assert shown["config"]["encryption"] == "aes-256-gcm"
