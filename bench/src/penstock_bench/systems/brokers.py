"""Several Penstock brokers on one nats-server, as processes of this machine: for benchmarks of replicated streams.

Rules: All brokers are started at once, because none serves alone. Each is watched: one that ends by itself ends the
benchmark. A broker that is stopped or killed on purpose is not watched until it is started again.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError, PenstockError
from penstock.base.limits import BENCH_START_S
from penstock.broker.supervision.child import Launched, free_ports, launched, watched
from penstock.client.blocking import client as blocking
from penstock.client.blocking.client import Client
from penstock.messages import StreamInfo
from penstock_bench.machine import vital

TIMEOUT_S = 60.0
_ASK_S = 5.0
_LOOK_S = 0.05
_ROWS, _VALUE_BYTES = 4_096, 1_024  # of a batch of `fill`

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, timeout_s: float = BENCH_START_S) -> T:
    """Return the first true result of `look`. Raise OperationalError after the time-out."""
    deadline_s = time.monotonic() + timeout_s
    trouble = ""
    while True:
        try:
            if found := look():
                return found
        except (PenstockError, OSError) as error:
            trouble = f"; the last trouble was: {error}"
        vital.check()
        if time.monotonic() >= deadline_s:
            raise OperationalError(f"waited in vain until {what}{trouble}")
        time.sleep(_LOOK_S)


class Brokers:
    """Brokers 1 to `count`, each with a folder, a process and an address."""

    def __init__(self, folder: Path, nats: Address, count: int, *options: str) -> None:
        """`options`: of `penstock serve`, for all of them."""
        self.addresses = {number: f"127.0.0.1:{port}" for number, port in enumerate(free_ports(count), 1)}
        self.process_ids: dict[int, int] = {}
        self.client: Client
        self._folder = folder
        self._nats = nats
        self._options = options
        self._running: dict[int, ExitStack] = {}
        self._watched: dict[int, ExitStack] = {}

    def folder(self, number: int) -> Path:
        """Return the data directory of a broker."""
        return self._folder / f"broker-{number}"

    def start(self, *numbers: int) -> None:
        """Start these brokers and wait until they serve."""
        started = {number: self._launch(number) for number in numbers}
        for number, broker in started.items():
            self.process_ids[number] = broker.wait_until_ready().process_id
            watch = self._watched[number] = self._running[number].enter_context(ExitStack())
            watch.enter_context(watched(broker, watch.enter_context(vital.vital()).ended))

    def _launch(self, number: int) -> Launched:
        voters = ",".join(f"{one}@{address}" for one, address in self.addresses.items())
        options = ("--id", str(number), "--cluster", voters, "--nats", f"nats://{self._nats}", "--log-level", "error")
        stack = self._running[number] = ExitStack()
        return stack.enter_context(launched(self.folder(number), *options, *self._options))

    def stop(self, number: int) -> None:
        """Stop a broker cleanly."""
        self._running.pop(number).close()
        del self.process_ids[number]

    def kill(self, number: int) -> int:
        """End a broker with SIGKILL; return the time in nanoseconds of the monotonic clock."""
        self._watched[number].close()  # its end is expected
        killed_ns = time.monotonic_ns()
        os.kill(self.process_ids[number], signal.SIGKILL)
        self.stop(number)
        return killed_ns

    def empty_disk(self, number: int) -> None:
        """Delete the data directory of a stopped broker, as if it got an empty disk."""
        assert number not in self._running
        shutil.rmtree(self.folder(number))

    def close(self) -> None:
        """Stop all running brokers one by one, even if a stop fails."""
        with ExitStack() as last:
            for stack in self._running.values():
                last.push(stack)
        self._running.clear()

    def wait_until_live(self) -> None:
        """Wait until the metadata leader reports all brokers as live."""

        def are_live() -> bool:
            state = self.client.status(timeout=_ASK_S)
            return state.metadata_leader is not None and sum(one.is_live for one in state.brokers) == len(
                self.addresses
            )

        until(are_live, "all brokers are live")

    def wait_until_in_sync(self, stream: StreamInfo, count: int, timeout_s: float = BENCH_START_S) -> StreamInfo:
        """Wait until the stream's only partition has a leader and `count` in-sync replicas."""

        def look() -> StreamInfo | None:
            found = self.client.stream(stream.name, timeout=_ASK_S)
            part = found.partitions[0]
            return found if part.leader_id is not None and len(part.isr) == count else None

        return until(look, f"{count} replicas of {stream.name} are in sync", timeout_s)

    def fill(self, stream: StreamInfo | str, size_bytes: int) -> None:
        """Append values of random bytes in batches of many rows, as a bulk writer does; sync all disks afterwards."""
        import pyarrow as pa

        values = [random.Random(1).randbytes(_VALUE_BYTES) for _ in range(_ROWS)]  # noqa: S311 (content, no secret)
        table = pa.table({"value": pa.array(values, pa.binary())})
        for _ in range(-(-size_bytes // (_ROWS * _VALUE_BYTES))):
            self.client.append(stream, table, timeout=TIMEOUT_S)
        os.sync()  # else what is measured next would wait for the disk

    def by_number(self) -> Mapping[str, int]:
        """Return the process ids of all running brokers: `broker-1`, `broker-2`, …"""
        return {f"broker-{number}": process_id for number, process_id in sorted(self.process_ids.items())}

    def by_role(self, leader: int) -> Mapping[str, int]:
        """Return the process ids of the brokers by role, if broker `leader` leads the stream."""
        others = [number for number in sorted(self.process_ids) if number != leader]
        followers = {f"follower-{place}": self.process_ids[number] for place, number in enumerate(others, 1)}
        return {"leader": self.process_ids[leader], **followers}


@contextmanager
def running_brokers(folder: Path, nats: Address, count: int, *options: str) -> Iterator[Brokers]:
    """Run `count` brokers with a client; stop them when the context ends."""
    brokers = Brokers(folder, nats, count, *options)
    try:
        brokers.start(*brokers.addresses)
        with blocking.connect(
            list(brokers.addresses.values()), name="penstock-bench", timeout=TIMEOUT_S
        ) as brokers.client:
            brokers.wait_until_live()
            yield brokers
    finally:
        brokers.close()
