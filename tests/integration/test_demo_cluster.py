"""The demo of a cluster as people run it, and what it would say if something were lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.cli.demo.check import Disagreement
from penstock.cli.demo.cluster import check
from tests.broker_process import OF_OTHERS, running_broker
from tests.extent import each_change, needs_time

TIMEOUT_S = 240.0


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1]), **OF_OTHERS}
    command = [sys.executable, "-m", "penstock", "demo", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@needs_time
def test_three_brokers_lose_nothing_that_was_acked_and_leave_nobody_running(tmp_path: Path) -> None:
    done = demo(tmp_path, "--brokers", "3")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.count("Killed  ") == 2
    assert "deleted its data directory" in done.stdout
    assert "acked messages are where their acks said: nothing was lost" in done.stdout
    folder = tmp_path / "penstock-demo" / "cluster"
    assert sorted(path.name for path in folder.glob("broker-*")) == ["broker-1", "broker-2", "broker-3"]
    for broker in folder.glob("broker-*"):
        process_id = int((broker / "LOCK").read_text())
        assert not Path(f"/proc/{process_id}").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--brokers", "2"), "with two a loss stops both"), (("--brokers", "3", "--rows", "5"), "--rows")],
)
def test_what_cannot_be_shown_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = demo(tmp_path, *arguments)
    assert done.returncode != 0
    assert said in done.stderr.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_who_interrupts_it_is_told_that_nothing_was_proved(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "demo", "--brokers", "3"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "3 brokers" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0
    assert "before the end, and nothing was proved" in said


@each_change
def test_a_lost_or_doubled_message_is_found(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.>")
        for number in (0, 1, 2):
            client.publish("orders.demo", b"%d" % number)
        assert check({0: 0, 2: 2}, client) == 3
        with pytest.raises(Disagreement, match="message 7 was acked at offset 1, and is at None"):
            check({7: 1}, client)
        client.publish("orders.demo", b"1")
        with pytest.raises(Disagreement, match="message 1 is stored twice, at 1 and at 3"):
            check({0: 0}, client)
