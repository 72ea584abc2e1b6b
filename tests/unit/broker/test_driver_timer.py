"""When the driver looks for the next deadline: soon, but after messages and their syncs, if nothing is due soon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock.base import limits
from penstock.broker.driver import Driver
from penstock.broker.process.disk_threads import DiskThreads
from penstock.messages import CreateStreamResponse
from penstock.node.step import DiskWork, Lane, Step
from tests.unit.broker.process.test_kernel_syncs import Kernel
from tests.unit.node.harness import Broker


class Loop:
    """The running loop, and the delays of its timers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.delays_s: list[float] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.delays_s.append(delay_s)
        return self._loop.call_later(3_600, callback)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def driver_of(broker: Broker, kernel: Kernel | None = None) -> tuple[Driver, Loop, DiskThreads]:
    """A driver that has just planned its timer: it is due in a second."""
    loop = Loop()
    plain = cast(asyncio.AbstractEventLoop, loop)
    disk = DiskThreads(plain, 1, kernel)
    driver = Driver(
        broker.node, plain, clock=lambda: broker.clock.now, disk=disk, in_flight_bytes_max=1 << 20, embedded_nats=False
    )
    return driver, loop, disk


async def test_after_work_of_a_thread_the_next_deadline_is_looked_for_soon() -> None:
    driver, loop, disk = driver_of(Broker().start())
    try:
        driver.do(Step(disk=[DiskWork(Lane.QUERY, lambda: None, lambda error: None)]))
        await asyncio.wait_for(disk.idle(), 10)
        assert loop.delays_s == [0.003], "a slice of the scrubber, which pauses for SCRUB_PAUSE_MS"
    finally:
        disk.close()


async def test_what_is_not_the_nodes_delays_no_later_plan() -> None:
    broker = Broker().start()
    driver, loop, disk = driver_of(broker, kernel := Kernel())
    try:
        driver.now()
        broker.clock.advance_ms(10_000)  # without an event of the node
        assert disk.sync(7, lambda error: None)
        kernel.end(0)
        await asyncio.wait_for(disk.idle(), 10)
        driver.now()
        driver.carry_out()
        assert loop.delays_s == [0.05, 0.003]
    finally:
        disk.close()


@pytest.mark.parametrize("too_many", [-1, 1])
async def test_readers_that_wait_for_their_turn_are_answered_soon(too_many: int) -> None:
    """Those beyond FETCHES_WOKEN_MAX: 128 readers had a message after 66 ms, not 16."""
    broker = Broker().start()
    broker.answer(broker.create("orders"), CreateStreamResponse)
    for _ in range(limits.FETCHES_WOKEN_MAX + too_many):
        broker.fetch("orders", 0, wait_ms_max=60_000)
    driver, loop, disk = driver_of(broker)
    try:
        broker.publish("orders.a", b"1")
        driver.groups_received({})
        assert loop.delays_s == [0.003 if too_many > 0 else 0.05]
    finally:
        disk.close()
