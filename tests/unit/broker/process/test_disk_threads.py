"""Disk threads: lanes that do not wait for each other, and an end that waits for nobody."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import cast

from penstock.base import limits
from penstock.broker.process.disk_threads import DiskThreads
from penstock.node.step import Lane
from tests.extent import each_change


async def test_lanes_do_not_hold_each_other_up() -> None:
    threads = DiskThreads(asyncio.get_running_loop(), 1)
    goes_on = threading.Event()
    done: asyncio.Queue[str] = asyncio.Queue()
    try:
        threads.submit(Lane.READ, lambda: assert_waited(goes_on), lambda error: done.put_nowait("read"))
        threads.submit(Lane.WRITE, lambda: None, lambda error: done.put_nowait("write"))
        assert await asyncio.wait_for(done.get(), 10) == "write"
        assert threads.open_count == 1
        goes_on.set()
        await asyncio.wait_for(threads.idle(), 10)
        assert await asyncio.wait_for(done.get(), 10) == "read"
    finally:
        goes_on.set()
        threads.close()


def assert_waited(event: threading.Event) -> None:
    assert event.wait(10)


async def test_an_error_comes_back() -> None:
    threads = DiskThreads(asyncio.get_running_loop(), 2)
    found: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def fail() -> None:
        raise OSError("broken")

    try:
        threads.submit(Lane.WRITE, fail, found.set_result)
        error = await asyncio.wait_for(found, 10)
        assert isinstance(error, OSError)
    finally:
        threads.close()


class CountingLoop:
    """The running loop, and how often it was woken."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.wakes = 0

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        self.wakes += 1
        self._loop.call_soon_threadsafe(callback)


async def test_what_is_finished_while_the_loop_is_busy_wakes_it_once() -> None:
    loop = CountingLoop()
    threads = DiskThreads(cast(asyncio.AbstractEventLoop, loop), 1)
    all_run = threading.Event()
    back: list[int] = []

    def came_back(number: int, _error: Exception | None) -> None:
        back.append(number)

    try:
        for number in range(100):
            threads.submit(Lane.WRITE, lambda: None, partial(came_back, number))
        threads.submit(Lane.WRITE, all_run.set, lambda error: None)
        assert all_run.wait(10)  # the loop does nothing else meanwhile
        assert back == []
        await asyncio.wait_for(threads.idle(), 10)
        assert back == list(range(100))
        assert loop.wakes <= 2, "the last one may come after the loop has looked"
    finally:
        threads.close()


async def test_whoever_comes_back_behind_a_failure_is_heard() -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context.get("exception")))
    threads = DiskThreads(asyncio.get_running_loop(), 1)
    all_run = threading.Event()
    failure = RuntimeError("a mistake of ours")

    def fail(_error: Exception | None) -> None:
        raise failure

    try:
        threads.submit(Lane.WRITE, lambda: None, fail)
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        threads.submit(Lane.WRITE, lambda: None, lambda error: heard.set_result(None))
        threads.submit(Lane.WRITE, all_run.set, lambda error: None)
        assert all_run.wait(10)
        await asyncio.wait_for(heard, 10)
        assert failures == [failure]
    finally:
        threads.close()


async def test_work_that_comes_back_after_the_loop_has_ended_harms_nobody() -> None:
    goes_on, ended = threading.Event(), threading.Event()

    async def abandon() -> DiskThreads:
        threads = DiskThreads(asyncio.get_running_loop(), 1)
        threads.submit(Lane.READ, lambda: assert_waited(goes_on), lambda error: None)
        return threads

    threads = await asyncio.to_thread(asyncio.run, abandon())
    goes_on.set()
    threads.submit(Lane.READ, ended.set, lambda error: None)  # the thread is still well
    assert await asyncio.to_thread(ended.wait, 10)
    threads.close()


_HANGS = """
import asyncio, threading
from penstock.base import limits
from penstock.broker.process.disk_threads import DiskThreads
from penstock.node.step import Lane
async def main():
    begun = threading.Event()
    def hang():
        begun.set()
        threading.Event().wait()
    DiskThreads(asyncio.get_running_loop(), 1).submit(Lane.WRITE, hang, print)
    await asyncio.to_thread(begun.wait)
asyncio.run(main())
"""
_HANGS_ITSELF = """
import sys, threading
from penstock.broker.serve import _end_process_after
_end_process_after(0.05)
threading.Event().wait()
"""


def test_a_process_ends_while_a_disk_thread_hangs() -> None:
    subprocess.run([sys.executable, "-c", _HANGS], check=True, timeout=20)


@each_change
def test_a_process_ends_while_its_own_thread_hangs() -> None:
    ended = subprocess.run([sys.executable, "-c", _HANGS_ITSELF], check=False, timeout=20, stderr=subprocess.PIPE)
    assert ended.returncode == 1
    assert b"the process ends as it is" in ended.stderr


async def test_users_take_turns_where_they_read() -> None:
    """One thread; bob has asked for twenty reads before eve asks for one."""
    threads = DiskThreads(asyncio.get_running_loop(), 1)
    goes_on = threading.Event()
    order: list[str] = []
    try:
        threads.submit(Lane.READ, lambda: assert_waited(goes_on), lambda error: order.append("first"), "bob")
        for _ in range(20):
            threads.submit(Lane.READ, lambda: None, lambda error: order.append("bob"), "bob")
        threads.submit(Lane.READ, lambda: None, lambda error: order.append("eve"), "eve")
        threads.submit(Lane.READ, lambda: None, lambda error: order.append("broker"))
        goes_on.set()
        await asyncio.wait_for(threads.idle(), 10)
    finally:
        goes_on.set()
        threads.close()
    assert len(order) == 23
    assert order.index("eve") <= limits.DISK_WORK_AHEAD + 2
    assert order.index("broker") <= limits.DISK_WORK_AHEAD + 3
