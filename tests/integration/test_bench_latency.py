"""Latency runs with real processes: short, and true. Nothing here says how fast."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from penstock_bench.load.latency_sender import SendTask, Sent, send
from penstock_bench.load.nats_socket import NatsSocket
from penstock_bench.machine.facts import machine
from penstock_bench.machine.worker import run
from penstock_bench.measure.histogram import Latencies
from penstock_bench.measure.latency import (
    ACK,
    CONSUMER,
    LATE,
    LatencyLoad,
    LatencyMeasurement,
    histograms_of,
    latency_measure,
    missing_of,
)
from penstock_bench.results.page import write_html
from penstock_bench.results.report import Report, now, read_json, write_json
from penstock_bench.runs import machine_limits
from penstock_bench.systems.system import System, nats_server, variant
from tests.cli_app import app
from tests.extent import each_change, needs_time

TIMEOUT_S = 150.0


@pytest.fixture(scope="module", params=["penstock-os", "jetstream", "echo"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A product that runs."""
    with variant(request.param).start(tmp_path_factory.mktemp("bench")) as started:
        yield started


@each_change
@pytest.mark.parametrize(
    ("size", "rate", "seconds"), [(8, 500.0, 0.2), pytest.param(1_000_000, 20.0, 0.3, marks=needs_time)]
)
def test_every_message_is_acked_and_delivered_on_the_clock(
    system: System, size: int, rate: float, seconds: float
) -> None:
    load = LatencyLoad(size=size, rate_per_s=rate, seconds=seconds)
    measured = latency_measure("it", system, load)(0)
    assert isinstance(measured, LatencyMeasurement)
    assert measured.void is None
    found = {path: Latencies.decode(encoded) for path, encoded in measured.histograms.items()}
    assert found.keys() >= {ACK, LATE}
    assert {path: one.count for path, one in found.items()} == dict.fromkeys(found, round(rate * seconds))
    assert found[ACK].max_us > 0
    assert measured.cpu_seconds["sender"] > 0
    if CONSUMER in found:
        assert measured.cpu_seconds["consumer"] > 0


@needs_time
def test_a_consumer_can_be_left_out(system: System) -> None:
    load = LatencyLoad(rate_per_s=100.0, seconds=0.1, consumer=False)
    measured = latency_measure("it", system, load)(0)
    assert isinstance(measured, LatencyMeasurement)
    assert measured.void is None
    assert measured.histograms.keys() == {ACK, LATE}


@each_change
def test_messages_that_nobody_stores_have_no_latency(tmp_path: Path) -> None:
    plan = LatencyLoad(rate_per_s=100.0, seconds=0.1).plan(1)
    with nats_server(tmp_path) as (nats, _):
        sent = run(send, SendTask(nats, "nobody.listens", plan, 5.0), timeout_s=120.0)
    assert isinstance(sent, Sent)
    assert sent.errors == plan.count
    assert "503" in sent.first_error
    assert set(sent.acked_ns) == {-1}


@each_change
def test_messages_that_nobody_acks_were_waited_for(tmp_path: Path) -> None:
    plan = LatencyLoad(rate_per_s=100.0, seconds=0.1).plan(1)
    with nats_server(tmp_path) as (nats, _), NatsSocket(nats) as silent:
        silent.send(b"SUB silence 1\r\n")
        silent.barrier()
        sent = run(send, SendTask(nats, "silence", plan, 0.2), timeout_s=120.0)
    assert isinstance(sent, Sent)
    assert (sent.errors, set(sent.acked_ns), sent.content.messages) == (0, {0}, plan.count)
    assert missing_of(plan, sent, None) == {ACK: plan.measured}
    samples = Latencies.decode(histograms_of(plan, sent, None)[ACK])
    assert samples.count == plan.measured
    assert samples.max_us >= 200_000  # as long as was waited, and not less


@needs_time
def test_the_limits_of_the_machine_are_measured_and_leave_nothing_behind(tmp_path: Path) -> None:
    done: list[str] = []
    few = machine_limits.Amounts(tries=20, syncs=3, sent_bytes=1 << 22, written_bytes=1 << 20)
    found = machine_limits.measured(tmp_path, rounds=2, said=done.append, amounts=few)
    assert [one.name for one in found] == [kind.name for kind in machine_limits.LIMITS]
    assert all(0 < one.low <= one.median <= one.high and one.rounds == 2 for one in found)
    assert done == 2 * [kind.name for kind in machine_limits.LIMITS]
    assert list(tmp_path.iterdir()) == []
    report = Report(
        kind="limits", command="penstock bench limits", started=now(), machine=machine(tmp_path), limits=found
    )
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    write_html(report, tmp_path / "report.html")
    assert "sendfile over loopback" in (tmp_path / "report.html").read_text()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "penstock", "bench", *arguments]


def finished(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@needs_time
def test_the_command_shows_writes_and_draws_what_it_measured(tmp_path: Path) -> None:
    json_file, page, again = tmp_path / "run.json", tmp_path / "run.html", tmp_path / "again.html"
    load = ("--size", "64", "--rate", "200", "--duration", "500ms", "--rounds", "2")
    files = ("--json", str(json_file), "--html", str(page), "--dir", str(tmp_path))
    run = finished("latency", "--only", "penstock-os", "--only", "jetstream", *load, *files)
    assert run.returncode == 0, run.stderr
    report = read_json(json_file)
    (comparison,) = report.latencies
    assert {name: (one.rounds, one.void) for name, one in comparison.systems.items()} == {
        "penstock-os": (2, 0),
        "jetstream": (2, 0),
    }
    assert list(comparison.systems["jetstream"].paths[CONSUMER].percentiles_us) == ["50", "75", "90", "95"]  # of 200
    assert comparison.ratios["penstock-os / jetstream"].keys() == {ACK, CONSUMER, LATE}
    assert "publish → consumer" in run.stdout
    assert "--rate 200" in report.command
    assert list(tmp_path.glob("penstock-bench-*")) == []
    shown = finished("report", str(json_file), "--html", str(again))
    assert shown.returncode == 0, shown.stderr
    assert "publish → consumer" in shown.stdout
    assert page.read_text() == again.read_text()


@each_change
def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write_json(Report(kind="latency", command="it", started=now(), machine=machine(tmp_path)), tmp_path / "run.json")
    shown = finished("report", str(tmp_path / "run.json"), "--html", "/dev/full")
    assert (shown.returncode, shown.stderr) == (1, "Error: /dev/full could not be written: No space left on device\n")


@needs_time
def test_a_page_is_written_although_nobody_reads_what_is_shown(tmp_path: Path) -> None:
    run = Report(kind="latency", command="it", started=now(), machine=machine(tmp_path), notes=["x" * 100] * 2_000)
    write_json(run, tmp_path / "run.json")
    shown = subprocess.Popen(
        command("report", str(tmp_path / "run.json"), "--html", str(tmp_path / "run.html")), stdout=subprocess.PIPE
    )
    assert shown.stdout is not None
    shown.stdout.close()
    assert shown.wait(TIMEOUT_S) == 0
    assert "penstock bench latency" in (tmp_path / "run.html").read_text()


@each_change
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("latency", "--size", "7"), "8 bytes"),
        (("latency", "--size", "2MB"), "can be sent"),
        (("latency", "--rate", "10000", "--duration", "1h"), "36,010,000 messages"),
        (("latency", "--duration", "0s"), "more than 0s"),
        (("latency", "--rate", "0"), "0.1"),
        (("latency", "--only", "kafka5"), "is not one of"),
        (("latency", "--only", "kafka"), "Invalid value for '--only': kafka is measured by"),
        (("latency", "--against", "kafka"), "'kafka' is not one of jetstream"),
        (("report", "nothing.json"), "does not exist"),
        (("latency", "--size", "x"), "Invalid value for '--size'"),
        (("latency", "--duration", "long"), "Invalid value for '--duration'"),
        (("throughput", "--seconds", "0s"), "Invalid value for '--seconds'"),
        (("throughput", "--messages", "10", "--window", "1", "--window", "11"), "Invalid value for '--window'"),
        (("throughput", "--kafka-address", "127.0.0.1:1"), "Invalid value for '--kafka-address'"),
        (("throughput", "--liftbridge-address", "127.0.0.1:1"), "Invalid value for '--liftbridge-address'"),
        (("throughput", "--liftbridge-nats", "127.0.0.1:1"), "add --against liftbridge"),
        (
            ("throughput", "--against", "jetstream", "--only", "penstock"),
            "leaves nothing of jetstream: add --only jets",
        ),
        (("latency", "--against", "jetstream", "--only", "echo"), "Invalid value for '--against'"),
        (("limits", "--dir", "/none"), "'/none' does not exist"),
        (("scale", "--json", "/nowhere/run.json"), "Invalid value for '--json': /nowhere is no folder"),
        (("reach", "--html", "/proc/run.html"), "Invalid value for '--html': /proc/run.html cannot be written"),
    ],
)
def test_what_cannot_be_measured_is_said_at_once(arguments: tuple[str, ...], said: str) -> None:
    run = CliRunner().invoke(app, ["bench", *arguments])
    assert run.exit_code == 2
    assert said in " ".join(run.stderr.replace("│", " ").split())


def test_what_is_no_report_is_named(tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("{}")
    run = finished("report", str(tmp_path / "no.json"))
    assert run.returncode != 0
    assert "no.json is no report" in " ".join(run.stderr.split())


def test_ctrl_c_ends_a_run_in_good_order(tmp_path: Path) -> None:
    load = ("--only", "jetstream", "--duration", "60s", "--size", "64")
    process = subprocess.Popen(
        command("latency", *load, "--dir", str(tmp_path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        assert any(line.startswith("about ") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    finally:
        watchdog.cancel()
        process.kill()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
