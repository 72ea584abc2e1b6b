"""A signal is heard, whatever the event loop is doing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from penstock.broker.process.signals import on_signals

DEADLINE_S = 20.0


@pytest.fixture(autouse=True)
def handler_afterwards() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


async def test_a_signal_that_comes_while_threads_have_much_to_tell_is_heard() -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    on_signals(loop, (signal.SIGUSR1,), told.set)
    for _ in range(20_000):
        loop.call_soon_threadsafe(int)
    signal.raise_signal(signal.SIGUSR1)
    async with asyncio.timeout(DEADLINE_S):
        await told.wait()


async def test_a_signal_wakes_an_idle_loop() -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    on_signals(loop, (signal.SIGUSR1,), told.set)
    await loop.run_in_executor(None, os.kill, os.getpid(), signal.SIGUSR1)
    async with asyncio.timeout(DEADLINE_S):
        await told.wait()


async def test_all_who_asked_are_told() -> None:
    loop = asyncio.get_running_loop()
    first, second = asyncio.Event(), asyncio.Event()
    on_signals(loop, (signal.SIGUSR1,), first.set)
    on_signals(loop, (signal.SIGUSR1,), second.set)
    signal.raise_signal(signal.SIGUSR1)
    async with asyncio.timeout(DEADLINE_S):
        await first.wait()
        await second.wait()


def test_a_loop_takes_the_place_of_one_that_has_ended() -> None:
    for _ in range(2):
        loop = asyncio.new_event_loop()
        on_signals(loop, (signal.SIGUSR1,), loop.stop)
        loop.call_soon(signal.raise_signal, signal.SIGUSR1)
        loop.run_forever()
        loop.close()


def test_a_signal_behind_the_end_of_the_loop_changes_nothing() -> None:
    loop = asyncio.new_event_loop()
    on_signals(loop, (signal.SIGUSR1,), loop.stop)
    loop.close()
    signal.raise_signal(signal.SIGUSR1)
