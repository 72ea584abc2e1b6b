"""`penstock bench` with real brokers and real nats-servers: tiny runs, of which no time is asserted."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from penstock_bench.load.content import Content, difference
from penstock_bench.load.generator import Load, Published
from penstock_bench.load.readers import (
    PASSES,
    Consumed,
    ReadTask,
    read_batches,
    read_blocking,
    read_messages,
    read_nats_py,
)
from penstock_bench.machine import worker
from penstock_bench.machine.processes import children_of
from penstock_bench.measure.rounds import Measurement, publish_measure, untrue
from penstock_bench.results.report import Comparison, Report, read_json
from penstock_bench.runs.throughput import publishing, reading, started
from penstock_bench.systems.system import VARIANTS, JetStreamLog, MeasuredLog, PenstockLog
from tests.broker_process import OF_OTHERS
from tests.extent import each_change, needs_time

TIMEOUT_S = 150.0
LOAD = Load(size=100, messages=600, window=40, seconds_max=20.0)


def valid(comparison: Comparison) -> dict[str, int]:
    reasons = {name: one.void_reason for name, one in comparison.systems.items() if one.void}
    assert not reasons
    return {name: one.rounds for name, one in comparison.systems.items()}


@needs_time
def test_every_kind_of_system_is_published_to_and_read(tmp_path: Path) -> None:
    names = ("penstock", "jetstream", "echo-raw", "null")
    told: list[Measurement] = []
    with started(names, tmp_path) as systems:
        several = publishing(systems, msgspec.structs.replace(LOAD, publishers=3), 1, told.append)
        assert valid(several) == dict.fromkeys(names, 1)
        assert len(told) == len(names)
        assert all(one.messages == LOAD.messages and one.value > 0 for one in told)
        costs = several.systems["penstock"].cpu_us_per_message
        assert set(costs) == {"broker", "nats-server", "generator"}
        assert all(micros > 0 for micros in costs.values())
        consumed = reading(systems, LOAD, 1, told.append)
        assert set(valid(consumed)) == {
            "penstock-batches",
            "penstock-blocking",
            "penstock-loaded",
            "penstock-messages",
            "nats-py",
            "sendfile",
        }
        assert "penstock-batches / nats-py" in consumed.ratios


class Tampering(MeasuredLog):
    """A log into which somebody else writes one message more."""

    def __init__(self, log: PenstockLog) -> None:
        self._log = log

    def publish(self, load: Load) -> Published:
        published = self._log.publish(load)
        self._log.load(msgspec.structs.replace(load, messages=1))
        return published

    def read_back(self, *, ordered: bool) -> Content:
        return self._log.read_back(ordered=ordered)


@each_change
def test_what_was_not_sent_voids_the_round(tmp_path: Path) -> None:
    with VARIANTS["penstock"].start(tmp_path) as system, system.log() as log:
        assert isinstance(log, PenstockLog)
        tampered = Tampering(log)
        assert untrue(tampered, tampered.publish(LOAD), ordered=True) == "600 messages were acked, 601 came back"


@needs_time
@pytest.mark.parametrize(
    ("name", "readers"),
    [("penstock", (read_batches, read_blocking, read_messages)), ("jetstream", (read_nats_py,))],
)
def test_every_reader_takes_as_many_passes_behind_a_warm_up(
    tmp_path: Path, name: str, readers: Sequence[Callable[[ReadTask], Iterator[Consumed]]]
) -> None:
    with VARIANTS[name].start(tmp_path) as system, system.log() as log:
        assert isinstance(log, PenstockLog | JetStreamLog)
        sent = log.publish(LOAD).sent
        address = log.client_address if isinstance(log, PenstockLog) else f"nats://{log.nats}"
        stream = log.stream.name if isinstance(log, PenstockLog) else log.stream
        for read, passes in itertools.product(readers, (1, 3)):
            task = ReadTask(address, stream, log.subject, sent.messages, passes)
            consumed = worker.run(read, task, timeout_s=TIMEOUT_S)
            # A pass that took another one's messages has another checksum.
            assert difference(sent, consumed.found) is None, (read, passes)
    assert ReadTask(address, stream, log.subject, sent.messages).passes == PASSES > 1


def test_refusals_are_no_acks(tmp_path: Path) -> None:
    with VARIANTS["penstock"].start(tmp_path) as system:
        system.config = {"max_message_bytes": 50}  # type: ignore[attr-defined]
        void = publish_measure("penstock", system, LOAD)(0).void
    assert void is not None
    assert void.startswith("600 answers were no acks; the first: ")


@each_change
def test_time_limits_what_is_sent_and_all_of_it_is_acked(tmp_path: Path) -> None:
    with VARIANTS["echo-raw"].start(tmp_path) as system, system.log() as log:
        published = log.publish(Load(messages=1_000_000, window=1, seconds_max=0.2))
        assert 0 < published.acks == published.sent.messages < 1_000_000
        assert published.errors == 0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "penstock", "bench", *arguments]


@needs_time
def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    file = tmp_path / "results" / "report.json"
    file.parent.mkdir()
    arguments = (
        "--only",
        "penstock",
        "--size",
        "64",
        "--window",
        "20",
        "--messages",
        "200",
        "--rounds",
        "1",
        "--seconds",
        "5s",
    )
    finished = subprocess.run(
        command("throughput", *arguments, "--json", str(file), "--html", f"{file}.html", "--dir", str(tmp_path)),
        env={**os.environ, **OF_OTHERS},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    report: Report = read_json(file)
    assert [one.name for one in report.comparisons] == ["publish-64B-w20-p1", "read-64B"]
    for comparison in report.comparisons:
        assert comparison.title in finished.stdout
        valid(comparison)
    assert "--window 20" in report.command
    assert {one.name for one in report.limits} >= {"sendfile", "fdatasync"}
    assert "acked publish, 64 B" in Path(f"{file}.html").read_text()
    assert list(tmp_path.glob("penstock-bench-*")) == []


@each_change
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    measured = command("throughput", "--messages", "1000", "--window", "10", "--rounds", "1000", "--dir", str(tmp_path))
    # An interrupt within an import leaves the module's file to the garbage collection: no user sees that warning.
    measured[3:3] = ["-W", "ignore::ResourceWarning"]
    process = subprocess.Popen(measured, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        assert any(re.match(r"Penstock \S+ \(hot path: ", line) for line in process.stdout)
        begun = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    finally:
        watchdog.cancel()
        process.kill()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
    for process_id in begun:
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)
