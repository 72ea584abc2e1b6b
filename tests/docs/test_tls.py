"""The page on TLS: its commands work as they stand."""

from __future__ import annotations

import asyncio
import re
import shlex
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.broker.config.config import load
from penstock.broker.config.settings import SETTINGS
from tests.broker_process import broker_environment, running_broker
from tests.cli_app import root_command
from tests.docs.pages import settings_of
from tests.extent import each_change, needs_time
from tests.metrics_page import get, url_of

PAGE = (Path(__file__).parents[2] / "docs/how-to/tls.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINES = [line for kind, block in BLOCKS if not kind for line in block.splitlines()]
(PROGRAM,) = (block for kind, block in BLOCKS if kind == "python")
TIMEOUT_S = 120


def lines(start: str) -> list[list[str]]:
    return [shlex.split(line) for line in LINES if line.startswith(start)]


def run(words: list[str], folder: Path, **environment: str) -> str:
    command = [sys.executable, "-W", "error", *(words if words[0] == "-c" else ["-m", *words])]
    done = subprocess.run(
        command,
        cwd=folder,
        env=broker_environment(environment),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def serving(words: list[str], folder: Path) -> list[str]:
    """Options of a `penstock serve` line, whose files are in the folder."""
    assert words[:2] == ["penstock", "serve"]
    return [str(folder / word) if "/" in word else word for word in words[2:]]


@needs_time
def test_what_is_tried_works(tmp_path: Path) -> None:
    run(lines("penstock certs")[0], tmp_path)
    open_line, shown_line, strict_line = (words for words in lines("penstock serve") if "--cluster" not in words)
    with running_broker(tmp_path / "open", *serving(open_line, tmp_path)) as broker:
        server = broker.client_address
        plain, as_json, _ = lines("penstock status")
        assert "TLS" in run(plain, tmp_path, PENSTOCK_SERVER=server)
        assert '"tls_expires_us"' in run(as_json, tmp_path, PENSTOCK_SERVER=server)
        (variable,) = (line.removeprefix("export ") for line in LINES if line.startswith("export"))
        environment = dict((variable.split("=", 1),), PENSTOCK_SERVER=server)
        said = ""
        for words in (*lines("penstock stream"), *lines("penstock publish"), *lines("penstock read")):
            said = run(words, tmp_path, **environment)
        assert "42" in said
        assert "127.0.0.1:7422" in PROGRAM
        assert int(run(["-c", PROGRAM.replace("127.0.0.1:7422", server)], tmp_path)) > 0
        address = re.search(r"`(tls://127\.0\.0\.1:7422\?\S+)`", PAGE)
        assert address is not None
        run(["penstock", "status", "--server", address.group(1).replace("127.0.0.1:7422", server)], tmp_path)
    with running_broker(tmp_path / "shown", *serving(shown_line, tmp_path)) as broker:
        (asked,) = (block.split() for kind, block in BLOCKS if kind == "sh")
        assert asked[:3] == ["curl", "-s", "--cacert"]
        url = urlsplit(asked[4])
        assert (url.scheme, url.netloc) == ("https", str(SETTINGS["http"].default))
        trusted = ssl.create_default_context(cafile=tmp_path / asked[3])
        assert asyncio.run(get(f"{url_of(broker)}{url.path}", trusted=trusted)).text == "ready\n"
    with running_broker(tmp_path / "strict", *serving(strict_line, tmp_path)) as broker:
        run(lines("penstock status")[2], tmp_path, PENSTOCK_SERVER=broker.client_address)


@each_change
def test_its_cluster_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(lines("penstock certs")[1], tmp_path)
    (words,) = (words for words in lines("penstock serve") if "--cluster" in words)
    names = "a.example.com,b.example.com,c.example.com"
    assert f"--tls-peer-names {names}" in PAGE
    config = load(environment={}, flags={**settings_of(words[2:]), "tls_peer_names": names})
    assert config.tls.load().dialling is not None


def test_every_option_that_it_names_is_there() -> None:
    known = set()
    stack = [root_command()]
    while stack:
        command = stack.pop()
        known |= {name for one in command.params for name in one.opts}
        stack += getattr(command, "commands", {}).values()
    assert set(re.findall(r"--(?:http-)?tls[a-z-]*", PAGE)) <= known
