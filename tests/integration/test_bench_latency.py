"""Latency runs with real processes: short, and true. Nothing here says how fast."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.bench import limits
from penstock.bench.histogram import Latencies
from penstock.bench.html import write_html
from penstock.bench.latency import ACK, CONSUMER, LATE, LatencyLoad, LatencyMeasurement, latency_measure
from penstock.bench.latency_sender import SendTask, Sent, send
from penstock.bench.machine import machine
from penstock.bench.report import Report, now
from penstock.bench.systems import System, nats_server, variant
from penstock.bench.worker import run


@pytest.fixture(scope="module", params=["penstock-os", "jetstream", "echo"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A product that runs."""
    with variant(request.param).start(tmp_path_factory.mktemp("bench")) as started:
        yield started


@pytest.mark.parametrize(("size", "rate", "seconds"), [(8, 500.0, 0.2), (1_000_000, 20.0, 0.3)])
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


def test_a_consumer_can_be_left_out(system: System) -> None:
    load = LatencyLoad(rate_per_s=100.0, seconds=0.1, consumer=False)
    measured = latency_measure("it", system, load)(0)
    assert isinstance(measured, LatencyMeasurement)
    assert measured.void is None
    assert measured.histograms.keys() == {ACK, LATE}


def test_messages_that_nobody_stores_have_no_latency(tmp_path: Path) -> None:
    plan = LatencyLoad(rate_per_s=100.0, seconds=0.1).plan(1)
    with nats_server(tmp_path) as (nats, _):
        sent = run(send, SendTask(nats, "nobody.listens", plan, 5.0), timeout_s=30.0)
    assert isinstance(sent, Sent)
    assert sent.errors == plan.count
    assert "503" in sent.first_error
    assert set(sent.acked_ns) == {-1}


def test_the_limits_of_the_machine_are_measured_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_TRIES": 20, "_SYNCS": 3, "_SENT_BYTES": 1 << 22, "_WRITTEN_BYTES": 1 << 20}.items():
        monkeypatch.setattr(limits, name, value)
    done: list[str] = []
    found = limits.measured(tmp_path, rounds=2, said=done.append)
    assert [one.name for one in found] == [kind.name for kind in limits.LIMITS]
    assert all(0 < one.low <= one.median <= one.high and one.rounds == 2 for one in found)
    assert done == 2 * [kind.name for kind in limits.LIMITS]
    assert list(tmp_path.iterdir()) == []
    report = Report(
        kind="limits", command="penstock bench limits", started=now(), machine=machine(tmp_path), limits=found
    )
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
    write_html(report, tmp_path / "report.html")
    assert "sendfile over loopback" in (tmp_path / "report.html").read_text()
