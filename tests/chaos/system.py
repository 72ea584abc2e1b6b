"""The system under test: brokers and nats-servers as processes, their disks, clocks and addresses, and what they say.

Rules: every process ends with the run. What a process has said is kept, over all its starts, in a file beside its disk.
Every broker's disk can lose what was not synced (`unsynced`), and its clock can be moved.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random

from penstock import aio
from penstock.base.errors import PenstockError
from penstock.broker.nats.server import find_nats_server
from penstock.messages import PartitionInfo, StreamInfo
from tests.broker_process import BrokerProcess, Child, eventually
from tests.chaos import unsynced
from tests.chaos.history import Place
from tests.chaos.network import CannotError, Loopback, Network, small_disk
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
CHILD = ROOT / "tests" / "chaos" / "child"
RECOVERY_S = 180.0
DISK_BYTES = 512 << 20
CLOCK_STEP_S_MAX = 3600.0
_DEDUP_WINDOW_MS = int(3 * CLOCK_STEP_S_MAX * 1000)
"""Longer than any two clocks are apart: by the promise the window is one of timestamps, and these are the leaders'."""

STREAMS: Mapping[str, Mapping[str, object]] = {
    "orders": {"subject": "orders", "partitions": 2, "durability": "auto"},
    "ledger": {"subject": "ledger.>", "durability": "fsync"},
    "keyed": {"subject": "keyed.*", "durability": "auto", "compression": "lz4"},
}
"""What they are made with; each has three replicas, and needs two in sync."""

PLACES = tuple(
    Place(stream, partition)
    for stream, config in STREAMS.items()
    for partition in range(int(str(config.get("partitions", 1))))
)


class NatsNode(Child):
    """One nats-server of several that have routes to each other."""

    def __init__(self, name: str, folder: Path, network: Network, port: int, route: int) -> None:
        super().__init__()
        self.name, self.port, self.route = name, port, route
        self.host = network.host(name)
        self.url = f"nats://{self.host}:{port}"
        self._before_exec = network.before_exec(name)
        self._config = folder / f"{name}.conf"

    def configure(self, all_of_them: list[NatsNode]) -> None:
        """Whom it has routes to."""
        routes = ", ".join(f"nats://{one.host}:{one.route}" for one in all_of_them if one is not self)
        cluster = f'cluster {{ name: chaos, listen: "{self.host}:{self.route}", routes: [{routes}] }}\n'
        text = f'server_name: {self.name}\nlisten: "{self.host}:{self.port}"\n'
        self._config.write_text(text + (cluster if len(all_of_them) > 1 else ""))

    def start(self) -> None:
        """Start it and return once it serves."""
        self._launch([str(find_nats_server()), "-c", str(self._config)], os.environ, self._before_exec)
        assert self.stderr is not None
        self.stderr.wait_for("Server is ready")


class System:
    """All of it."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        brokers: int,
        nats_servers: int,
        *,
        small: bool,
        mutant: str,
        lies: bool,
        recovery_s: float,
    ) -> None:
        """`small`: the disks can be filled. `mutant`, `lies`: a planted mistake, and disks that lie about syncs.

        `recovery_s`: so long it may take until every replica is in sync, whatever happened.
        """
        self.folder, self.network = folder, network
        self.can_fill = small
        self.recovery_s = recovery_s
        self.paused: set[int] = set()
        self._mutant, self._lies = mutant, lies
        self._logged: set[int] = set()
        self.ended_by_themselves: list[str] = []  # brokers that nobody killed or stopped, and how
        is_local = isinstance(network, Loopback)
        ports = free_ports(brokers + 2 * nats_servers) if is_local else [7422] * brokers + [4222, 6222] * nats_servers
        self.nats = [
            NatsNode(f"nats{number + 1}", folder, network, *ports[brokers + 2 * number :][:2])
            for number in range(nats_servers)
        ]
        for server in self.nats:
            server.configure(self.nats)
        addresses = {
            number: f"{network.host(f'broker{number}')}:{ports[number - 1]}" for number in range(1, brokers + 1)
        }
        self._voters = ",".join(f"{number}@{address}" for number, address in addresses.items())
        self.brokers = {number: self._broker(number, address) for number, address in addresses.items()}

    def _broker(self, number: int, address: str) -> BrokerProcess:
        place = self.folder / f"broker{number}"
        place.mkdir(parents=True)
        if self.can_fill:
            try:
                small_disk(place, DISK_BYTES)
            except CannotError:
                self.can_fill = False
        clock = self.folder / f"broker{number}.clock"
        clock.write_bytes(bytes(8))
        servers = [server.url for server in self.nats]
        urls = ",".join(servers[number % len(servers) :] + servers[: number % len(servers)])
        environment = {
            "PYTHONPATH": os.pathsep.join((str(CHILD), str(ROOT))),
            "CHAOS_UNSYNCED": "1",
            "CHAOS_NO_SYNC": "1" if self._lies else "",
            "CHAOS_CLOCK": str(clock),
            "CHAOS_MUTANT": self._mutant,
        }
        arguments = ("--id", str(number), "--cluster", self._voters, "--insecure", "--scrub-interval", "1s")
        broker = BrokerProcess(
            *(place / "data", *arguments),
            nats=urls,
            environment=environment,
            before_exec=self.network.before_exec(f"broker{number}"),
        )
        broker.listen = broker.client_address = address
        return broker

    # Processes

    def start(self) -> None:
        """Start all at once."""
        for server in self.nats:
            server.start()
        for number in self.brokers:
            self.launch(number)

    def launch(self, number: int) -> None:
        """Start a broker that has ended."""
        self._keep_log(number)
        unsynced.notes_lie_at(self.data(number), self.folder / f"broker{number}.notes")
        self.brokers[number].launch()

    def _keep_log(self, number: int) -> None:
        broker = self.brokers[number]
        if broker.process is not None and broker.pid not in self._logged:
            assert not broker.is_running
            self._logged.add(broker.pid)
            code = broker.process.returncode
            if code not in (0, -signal.SIGKILL):
                self.ended_by_themselves.append(f"broker {number}, exit code {code}: {broker.said[-300:]}")
            with (self.folder / f"broker{number}.log").open("a") as log:
                log.write(f"--- process {broker.pid}, exit code {code}\n{broker.said}")

    def running(self) -> list[int]:
        """Brokers whose processes are there."""
        return [number for number, broker in self.brokers.items() if broker.is_running]

    def kill(self, *numbers: int) -> None:
        """kill -9, all before the first of them is waited for."""
        for number in numbers:
            if self.brokers[number].is_running:
                self.brokers[number].signal(signal.SIGKILL)
        for number in numbers:
            self.brokers[number].kill()
            self.paused.discard(number)

    def pause(self, number: int) -> None:
        """It does nothing more, and its connections stay."""
        if self.brokers[number].is_running:
            self.brokers[number].signal(signal.SIGSTOP)
            self.paused.add(number)

    def resume(self) -> None:
        """All go on."""
        for number in self.paused:
            if self.brokers[number].is_running:
                self.brokers[number].signal(signal.SIGCONT)
        self.paused.clear()

    def end(self) -> None:
        """Leave no process behind."""
        self.kill(*self.brokers)
        for number, broker in self.brokers.items():
            self._keep_log(number)
            broker.end()
        for server in self.nats:
            server.kill()
            (self.folder / f"{server.name}.log").write_text(server.said)
            server.end()

    # Disks and clocks

    def data(self, number: int) -> Path:
        """The data directory of a broker."""
        return self.brokers[number].data_dir

    def empty_disk(self, number: int) -> None:
        """Put a new disk into the place of that broker's."""
        assert not self.brokers[number].is_running
        for path in (self.data(number), unsynced.beside(self.data(number))):
            shutil.rmtree(path, ignore_errors=True)
        (self.folder / f"broker{number}.notes").unlink(missing_ok=True)

    def fill(self, number: int) -> None:
        """No room is left on its disk."""
        with (self.data(number).parent / "ballast").open("wb", buffering=0) as rest, suppress(OSError):
            while True:
                rest.write(bytes(65_536))

    def make_room(self) -> None:
        """On all disks."""
        for number in self.brokers:
            (self.data(number).parent / "ballast").unlink(missing_ok=True)

    def set_clock(self, number: int, off_s: float) -> None:
        """Move its clock, while it runs or before it does."""
        with (self.folder / f"broker{number}.clock").open("r+b") as file:
            file.write(struct.pack("<q", int(off_s * 1e9)))

    def log_folders(self, number: int, place: Place) -> list[Path]:
        """Where a broker has its log of a place, if it has one."""
        return sorted(self.data(number).glob(f"streams/*-{place.stream}/{place.partition}"))

    def segments(self, number: int, place: Place) -> list[Path]:
        """Its segments, the oldest first."""
        return [path for folder in self.log_folders(number, place) for path in sorted(folder.glob("*.arrows"))]

    def unsynced(self, members: Mapping[Place, tuple[int, ...]]) -> dict[Place, list[unsynced.Waiting]]:
        """Of each place that every member in sync lacks something of, on the disk: what each of them lacks."""
        found = {}
        for place, isr in members.items():
            lacking = [
                unsynced.unsynced(self.data(one), folder.relative_to(self.data(one)).as_posix())
                for one in isr
                for folder in self.log_folders(one, place)
            ]
            waiting = [one for one in lacking if one is not None]
            if waiting and len(waiting) == len(lacking):
                found[place] = waiting
        return found

    def power_fails(self, numbers: list[int], chance: Random) -> int:
        """They lose what was not synced; they were killed before."""
        return sum(unsynced.power_fails(self.data(number), Random(chance.random())) for number in numbers)

    # What they say

    def addresses(self) -> list[str]:
        """Where clients find it."""
        return [broker.client_address for broker in self.brokers.values()]

    async def make_streams(self) -> None:
        """Once all brokers are live; all replicas are then in sync."""
        await eventually(self._all_live, "all brokers are live", RECOVERY_S)
        async with await aio.connect(self.addresses(), name="chaos") as client:
            usual = {"replicas": 3, "min_isr": 2, "segment_bytes": 65_536, "dedup_window_ms": _DEDUP_WINDOW_MS}
            for name, config in STREAMS.items():
                more: dict[str, object] = {**usual, **config}
                await client.create_stream(name, timeout=60.0, **more)  # type: ignore[arg-type]
        await self.in_sync()

    async def _all_live(self) -> bool:
        with suppress(PenstockError, OSError):
            for number in self.running():
                async with await aio.connect(self.brokers[number].client_address, timeout=3.0) as client:
                    status = await client.status(timeout=3.0)
                    live = {one.broker_id for one in status.brokers if one.is_live}
                    if status.waits_for or live != set(self.brokers):
                        return False
            return len(self.running()) == len(self.brokers)
        return False

    async def streams(self) -> list[StreamInfo] | None:
        """All of ours as some broker sees them; None: nobody answers."""
        for address in self.addresses():
            with suppress(PenstockError, OSError):
                async with asyncio.timeout(8.0), await aio.connect(address, timeout=2.0) as client:
                    return [one for one in await client.streams(timeout=3.0) if one.name in STREAMS]
        return None

    async def partitions(self) -> dict[Place, PartitionInfo] | None:
        """Each place as some broker sees it; None: nobody answers."""
        streams = await self.streams()
        if streams is None:
            return None
        return {Place(one.name, int(part.partition)): part for one in streams for part in one.partitions}

    async def is_in_sync(self) -> dict[Place, PartitionInfo] | None:
        """Where everything is, if every replica is in sync; None: not so."""
        if len(self.running()) < len(self.brokers) or not await self._all_live():
            return None
        parts = await self.partitions()
        if parts is None or parts.keys() != set(PLACES):
            return None
        good = all(
            part.leader_id is not None and set(part.isr) == set(part.replicas) and part.state == "online"
            for part in parts.values()
        )
        return parts if good else None

    async def in_sync(self) -> dict[Place, PartitionInfo]:
        """Once every replica of every place is in sync."""
        found = await eventually(self.is_in_sync, "every replica is in sync", self.recovery_s)
        assert found is not None
        return found

    async def at_rest(self) -> dict[Place, PartitionInfo]:
        """Once every replica is in sync, and all that is stored is committed."""

        async def look() -> dict[Place, PartitionInfo] | None:
            parts = await self.is_in_sync()
            if parts is None:
                return None
            return parts if all(one.committed_end == one.log_end is not None for one in parts.values()) else None

        found = await eventually(look, "everything is committed", self.recovery_s)
        assert found is not None
        return found

    async def stop(self) -> dict[int, int]:
        """SIGTERM to all; their exit codes."""
        for broker in self.brokers.values():
            broker.signal(signal.SIGTERM)
        return {number: await asyncio.to_thread(broker.wait) for number, broker in self.brokers.items()}


def now_s() -> float:
    """The clock that every event and every note of a disk is on."""
    return time.monotonic()
