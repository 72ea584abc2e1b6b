"""A broker in the test's event loop, with a clock that the test moves; NATS and sockets are real."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.clock import Now
from penstock.broker.driver import Driver, wall_clock
from penstock.broker.nats.link import NatsLink
from penstock.broker.peers.peers import PeerConnections
from penstock.broker.process.disk_threads import DiskThreads
from penstock.broker.security.nats_credentials import NatsAccess, parse_nats_urls
from penstock.broker.socket_api.acceptor import bind
from penstock.broker.socket_api.server import Server
from penstock.messages import PeerHelloRequest
from penstock.node.node import Node
from penstock.node.settings import Settings
from penstock.vfs import Vfs
from penstock.vfs.real import RealVfs


class MovedClock:
    """The machine's time plus offsets that the test sets."""

    def __init__(self) -> None:
        self.wall_us = 0  # offset
        self.elapsed_us = 0

    def __call__(self) -> Now:
        now = wall_clock()
        return Now(now.wall_us + self.wall_us, now.elapsed_us + self.elapsed_us)


@dataclass(frozen=True, slots=True)
class InProcess:
    """A running broker."""

    address: str
    driver: Driver

    @property
    def server(self) -> Server:
        return self.driver.server


def _raise(error: BaseException) -> None:
    raise error


@asynccontextmanager
async def broker_in_process(
    vfs: Vfs,
    nats_url: str,
    *,
    clock: MovedClock | None = None,
    open_files_max: int = 1_000,
    buffer_bytes_max: int = limits.BROKER_BUFFER_BYTES_MAX,
    stop_timeout_s: float = 4.0,
    stops_clean: bool = True,
    broker_id: int = 1,
    cluster_id: str = "",
    remember_cluster: Callable[[str], None] = lambda cluster_id: None,
    failed: Callable[[BaseException], None] | None = None,
) -> AsyncIterator[InProcess]:
    """Run a broker on a file system within the block; `stops_clean`: the expected result of its stop."""
    clock = clock or MovedClock()
    loop = asyncio.get_running_loop()
    servers = parse_nats_urls(nats_url)
    listeners, address = bind(Address("127.0.0.1", 0))
    settings = Settings(
        broker_id=broker_id,
        broker_version="test",
        cluster_id=cluster_id,
        data_dir_id=f"disk-{broker_id}",
        process=secrets.token_hex(8),
        address=str(address),
        nats_urls=(nats_url,),
    )
    node = Node(vfs, settings, random.Random(1))
    driver = Driver(
        node,
        loop,
        clock=clock,
        disk=DiskThreads(loop, 2),
        in_flight_bytes_max=1 << 28,
        embedded_nats=False,
        remember_cluster=remember_cluster,
        failed=failed or _raise,
    )
    driver.server = Server(
        driver,
        listeners,
        loop,
        driver.elapsed_us,
        open_files_max=open_files_max,
        buffer_bytes_max=buffer_bytes_max,
    )
    driver.link = NatsLink(
        driver, NatsAccess(servers), clock_us=lambda: clock().wall_us, random=random.Random(1).random
    )
    hello = PeerHelloRequest(
        cluster_id=cluster_id, broker_id=broker_id, data_dir_id=settings.data_dir_id, broker_version="test"
    )
    driver.peers = PeerConnections(driver, hello, driver.elapsed_us, random.Random(1).random, failed=_raise)
    driver.do(node.start(driver.now()))
    driver.carry_out()
    driver.server.start()
    task = asyncio.create_task(driver.link.run())
    try:
        await driver.link.wait_up(10_000)
        yield InProcess(str(address), driver)
    finally:
        assert await driver.stop(stop_timeout_s) is stops_clean
        await asyncio.wait_for(task, 10)


@asynccontextmanager
async def broker_with_clock(data_dir: Path, nats_url: str, clock: MovedClock) -> AsyncIterator[str]:
    """Run a broker within the block, and yield its address; it must stop cleanly."""
    async with broker_in_process(RealVfs(data_dir), nats_url, clock=clock) as broker:
        yield broker.address
