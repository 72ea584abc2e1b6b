"""The page on verifying: its commands run as they stand, on the data directories of a real layout."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import penstock
from penstock.vfs.real import RealVfs
from tests.broker_process import running_broker
from tests.extent import needs_time
from tests.logs import append, open_log, save

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/verify.md").read_text(encoding="utf-8")
TIMEOUT_S = 180


def write_disk(path: Path) -> None:
    path.mkdir(parents=True)
    log = open_log(RealVfs(str(path)))
    log.start_epoch(1)
    for number in range(10):
        append(log, 3, number)
    save(log)
    log.note_committed(log.log_end)
    log.close()


def run(folder: Path, line: str, server: str = "") -> subprocess.CompletedProcess[str]:
    words = shlex.split(line)
    assert words[0] == "penstock"
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", *words],
        cwd=folder,
        env={"PYTHONPATH": str(Path(penstock.__file__).parents[1]), "PENSTOCK_SERVER": server},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@needs_time
def test_the_commands_on_files_do_what_they_say(tmp_path: Path) -> None:
    for name in ("penstock-data", "disks/1", "disks/2", "disks/3"):
        write_disk(tmp_path / name)
    alone, one_stream, replicas = re.findall(r"```sh\n(penstock verify .*)\n```", PAGE)
    said = run(tmp_path, alone)
    assert (said.returncode, said.stderr) == (0, "")
    shown = re.findall(r"```text\n(stream .*)\n─", PAGE)
    assert said.stdout.splitlines()[0].split() == shown[0].split()
    assert said.stdout.endswith("Sound: 1 log, 30 rows.\n")
    assert json.loads(run(tmp_path, one_stream).stdout)["verdict"] == "sound"
    said = run(tmp_path, replicas)
    assert (said.returncode, said.stdout.count("0 to 29")) == (0, 6)
    segment = min((tmp_path / "disks/2").rglob("*.arrows"))
    data = bytearray(segment.read_bytes())
    data[1_300] ^= 1
    segment.write_bytes(data)
    said = run(tmp_path, replicas)
    assert said.returncode == 1
    (promised,) = re.findall(r"^DAMAGE in .*$", PAGE, re.MULTILINE)
    (shown_line,) = re.findall(r"^DAMAGE in .*$", said.stdout, re.MULTILINE)
    assert re.sub(r"[0-9a-f]{8}|\d+", "N", shown_line) == re.sub(r"[0-9a-f]{8}|\d+", "N", promised)


@needs_time
def test_the_commands_on_streams_do_what_they_say(tmp_path: Path) -> None:
    commands, *_ = re.findall(r"```sh\n((?:penstock verify.*\n)+)```", PAGE)
    with running_broker(tmp_path / "data") as broker:
        with penstock.connect(broker.client_address) as client:
            client.create_stream("orders", "orders")
            client.append("orders", [{"value": b"x"}] * 30)
        for line in commands.splitlines():
            said = run(tmp_path, line, broker.client_address)
            assert (said.returncode, said.stderr) == (0, "")
            assert said.stdout.splitlines()[2].split()[:4] == ["orders/0", "broker", "1", "0"]
            assert said.stdout.endswith("Sound: 1 log, 30 rows.\n")
        (tmp_path / "orders").mkdir()
        assert "orders holds no log" in run(tmp_path, "penstock verify orders", broker.client_address).stderr
        there = f"penstock verify orders --server {broker.client_address}"
        assert run(tmp_path, there).returncode == 0
