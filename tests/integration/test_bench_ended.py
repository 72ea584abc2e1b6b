"""A process that is measured ends: the bench ends at once, and says which one it was."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from penstock.bench.generator import Load
from penstock.bench.processes import children_of
from penstock.bench.throughput import publishing, started
from penstock.bench.vital import EndedError
from tests.broker_process import eventually

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
