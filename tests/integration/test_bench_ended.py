"""A process that is measured ends: the bench ends, or rounds do not count, and it says which process it was."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock.base import limits
from penstock_bench.load.generator import Load
from penstock_bench.machine.processes import child, children_of
from penstock_bench.machine.vital import EndedError
from penstock_bench.measure.latency import LatencyLoad, latency_measure
from penstock_bench.measure.rounds import interleave, publish_measure
from penstock_bench.runs.throughput import publishing, reading, started
from tests.broker_process import eventually
from tests.extent import needs_time

pytestmark = needs_time

LOAD = Load(size=100, messages=2_000_000, window=1, seconds_max=60.0)
SOON_S = 15.0  # waiting for a broker that is gone takes a minute


def kill_while_measured(victim: int) -> None:
    before = set(children_of(os.getpid()))

    async def is_measuring() -> bool:
        return bool(set(children_of(os.getpid())) - before)

    asyncio.run(eventually(is_measuring, "a generator runs"))
    os.kill(victim, signal.SIGKILL)


@pytest.mark.parametrize(("system", "process"), [("penstock", "broker"), ("jetstream", "nats-server")])
def test_a_killed_process_ends_the_bench(system: str, process: str, tmp_path: Path) -> None:
    with started([system], tmp_path) as systems:
        killer = threading.Thread(target=kill_while_measured, args=(systems[system].processes[process],))
        killer.start()
        began_s = time.monotonic()
        with pytest.raises(EndedError, match=rf"{process} ended while it was measured \(killed by SIGKILL\)"):
            publishing(systems, LOAD, 3, lambda measured: None)
        assert time.monotonic() - began_s < SOON_S
        killer.join()


def test_rounds_do_not_count_in_which_nats_server_is_another_one_than_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BENCH_END_S", 0.01)  # behind each round: nothing here ends
    with child("gone", [sys.executable, "-S", "-c", "pass"]) as ended:
        gone = ended.process_id
    load = Load(size=100, messages=100, window=40)
    with started(["penstock"], tmp_path) as systems:
        system = systems["penstock"]
        watched = dict(system.processes)
        system.processes = watched | {"nats-server": gone}  # as after its end: the broker has started another one
        measures = {
            "publish": publish_measure("publish", system, load),
            "latency": latency_measure("latency", system, LatencyLoad(rate_per_s=100.0, seconds=0.1)),
        }
        reasons = {one.system: one.void or "" for one in interleave(measures, rounds=1, warm_up=False)}
        consumed = reading(systems, load, 1, lambda measured: None)
        reasons |= {name: one.void_reason for name, one in consumed.systems.items()}
        assert set(reasons) >= {"publish", "latency", "penstock-batches", "sendfile"}
        assert [name for name, why in reasons.items() if "nats-server ended while it was measured" not in why] == []
