"""The event loop of a simulated program: simulated time, always the same order, and no world."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import queue
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.testing import Cluster, NotLiveError, NotSimulatedError, SpinningError, StuckError
from tests.extent import each_change

DAY_S = 86_400


def ran(main: Coroutine[Any, Any, Any], seed: int = 0, **options: Any) -> Any:
    return Cluster(seed, brokers=1, **options).run(main)


@each_change
def test_an_hour_of_sleep_is_an_hour_of_simulated_time_and_none_of_ours() -> None:
    async def main() -> tuple[float, float, float]:
        loop = asyncio.get_running_loop()
        began = loop.time(), time.monotonic(), time.time()
        await asyncio.sleep(1_000)
        return loop.time() - began[0], time.monotonic() - began[1], time.time() - began[2]

    assert ran(main()) == pytest.approx((1_000, 1_000, 1_000), abs=0.001)


def test_what_is_ready_runs_in_its_order_and_timers_at_their_moments() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(0.2, said.append, "late")
        loop.call_later(0.1, said.append, "early")
        cancelled = loop.call_later(0.15, said.append, "never")
        loop.call_soon(said.append, "first")
        loop.call_soon(said.append, "second")
        cancelled.cancel()
        await asyncio.sleep(1)
        return said

    assert ran(main()) == ["first", "second", "early", "late"]


def test_a_timer_that_is_cancelled_in_its_own_turn_does_not_fire() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        loop = asyncio.get_running_loop()
        when = loop.time() + 0.1
        timers: list[asyncio.TimerHandle] = []

        def first() -> None:
            said.append("first")
            timers[1].cancel()

        timers += [loop.call_at(when, first), loop.call_at(when, said.append, "other")]
        await asyncio.sleep(1)
        return said

    assert ran(main()) == ["first"]


def test_time_outs_groups_and_locks_of_asyncio_work() -> None:
    async def main() -> list[Any]:
        found: list[Any] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def put() -> None:
            for number in range(3):
                await asyncio.sleep(1)
                await queue.put(number)

        async with asyncio.TaskGroup() as group:
            group.create_task(put())
            found += [await queue.get() for _ in range(3)]
        return [*found, await asyncio.to_thread(sum, [1, 2])]

    assert ran(main()) == [0, 1, 2, 3]


def test_a_set_of_tasks_has_the_same_order_in_every_run() -> None:
    async def main() -> list[int]:
        async def number(one: int) -> int:
            await asyncio.sleep(1)
            return one

        done, _ = await asyncio.wait([asyncio.create_task(number(one)) for one in range(20)])
        return [task.result() for task in done]

    kept = [bytearray(100 * number) for number in range(50)]  # what is allocated where changes nothing
    first = ran(main())
    del kept
    assert ran(main()) == first


def test_chance_is_the_seeds_and_what_was_drawn_before_goes_on_afterwards() -> None:
    async def main() -> tuple[Any, ...]:
        return (
            random.random(),
            random.Random().random(),
            uuid.uuid4(),
            secrets.token_hex(8),
            random.SystemRandom().random(),
        )

    random.seed(5)
    ours = random.Random(5)
    assert ran(main(), 1) == ran(main(), 1)
    assert ran(main(), 1) != ran(main(), 2)
    assert random.random() == ours.random()


def test_other_threads_go_on_in_the_world_and_take_nothing_from_the_seed() -> None:
    async def main() -> tuple[Any, ...]:
        found = [random.random(), random.Random().random(), uuid.uuid4(), secrets.token_hex(8)]
        step.set()
        assert said.get(timeout=60) == []
        return (*found, random.random(), random.Random().random(), uuid.uuid4(), random.choice(range(1 << 20)))

    def other() -> None:
        while step.wait() and not is_over:
            step.clear()
            wrong = []
            for call in (random.random, random.Random, uuid.uuid4, lambda: secrets.token_hex(8)):
                call()
            if abs(time.time() - time.clock_gettime(time.CLOCK_REALTIME)) > DAY_S:
                wrong.append("time")
            try:
                time.sleep(0)
                thread = threading.Thread(target=random.random)
                thread.start()
                thread.join()
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", 0))
            except NotSimulatedError as error:
                wrong.append(str(error))
            said.put(wrong)

    step, said, is_over = threading.Event(), queue.SimpleQueue[list[str]](), False
    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert ran(main(), 1) == ran(main(), 1)
    finally:
        is_over = True
        step.set()
        thread.join()


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def connect() -> None:
    with socket.socket() as sock:
        sock.connect(("127.0.0.1", 9))


@pytest.mark.parametrize(
    ("leave", "instead"),
    [
        (lambda: time.sleep(1), "asyncio.sleep"),
        (lambda: threading.Thread(target=print).start(), "penstock.aio"),
        (connect, "asyncio.open_connection"),
        (lambda: socket.socketpair(), "asyncio.open_connection"),
        (lambda: subprocess.run([sys.executable, "-V"], check=True), "cluster.start"),
        (lambda: subprocess.Popen([sys.executable, "-V"]), "cluster.start"),
        (lambda: os.system("true"), "cluster.start"),
        (fork, "cluster.start"),
        (lambda: os.posix_spawn(sys.executable, [sys.executable, "-V"], {}), "cluster.start"),
        (lambda: multiprocessing.get_context("spawn").Process(target=print).start(), "cluster.start"),
        (lambda: asyncio.get_running_loop().add_reader(0, print), "asyncio.open_connection"),
        (lambda: asyncio.get_running_loop().run_forever(), "await something"),
    ],
    ids=[
        *("sleep", "thread", "socket", "socketpair", "run", "popen", "system", "fork", "spawn", "multiprocessing"),
        *("reader", "forever"),
    ],
)
def test_what_leaves_the_simulation_is_refused_with_what_to_do_instead(leave: Callable[[], Any], instead: str) -> None:
    async def main() -> None:
        leave()

    with pytest.raises(NotSimulatedError, match=instead):
        ran(main())


async def test_the_world_is_there_again_afterwards() -> None:
    with pytest.raises(ZeroDivisionError):
        ran(_divide())
    done = threading.Event()
    thread = threading.Thread(target=done.set)
    thread.start()
    thread.join()
    assert done.is_set()
    one, other = socket.socketpair()
    one.close()
    other.close()
    assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0
    assert abs(time.time() - time.clock_gettime(time.CLOCK_REALTIME)) < DAY_S
    await asyncio.sleep(0)


async def _divide() -> None:
    raise ZeroDivisionError


def test_a_machine_that_is_not_there_is_named_with_those_that_are() -> None:
    async def main() -> None:
        await asyncio.open_connection("example.org", 80)

    with pytest.raises(socket.gaierror, match="there are b1, nats"):
        ran(main())


def test_tls_is_refused() -> None:
    async def main() -> None:
        await asyncio.open_connection("nats", 4222, ssl=True)

    with pytest.raises(NotSimulatedError, match="TLS"):
        ran(main())


@each_change
def test_a_program_that_spins_is_told_so() -> None:
    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(SpinningError, match="sleep"):
        ran(main())


def test_a_test_that_waits_for_ever_is_told_where() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NotLiveError, match=r"it waits in .*locks\.py:\d+ "):
        ran(main(), limit_s=100)


def test_who_waits_is_named_with_the_seed() -> None:
    cluster = Cluster(6, brokers=1, limit_s=100)

    async def reader() -> None:
        await asyncio.sleep(1e12)

    async def broken() -> None:
        await asyncio.sleep(1)
        raise ConnectionError("nobody there")

    async def main() -> None:
        cluster.start(reader)
        cluster.start(lambda: asyncio.sleep(0), "done")
        await cluster.start(broken).finished()

    with pytest.raises(NotLiveError) as raised:
        cluster.run(main())
    said = str(raised.value)
    assert said.startswith("seed 6, after 100 simulated seconds: the test has not ended; it waits in ")
    assert "; reader waits in " in said
    assert "test_loop.py:" in said
    assert "runs, the last ended with ConnectionError: nobody there" in said
    assert "done" not in said


@each_change
def test_a_program_that_holds_the_simulation_up_is_named_with_where_it_stands() -> None:
    cluster = Cluster(6, brokers=1, real_limit_s=1.0)

    async def greedy() -> None:
        while True:
            try:
                queue.Queue[int]().get()
            except Exception:  # noqa: BLE001 (as a program may)
                continue

    async def main() -> None:
        await cluster.start(greedy).finished()

    with pytest.raises(StuckError, match=r"seed 6: greedy has .* 1 s .*test_loop\.py:\d+.*real_limit_s"):
        cluster.run(main())


@each_change
def test_last_words_that_hold_the_simulation_up_are_told_too() -> None:
    cluster = Cluster(6, brokers=1, real_limit_s=1.0)

    async def greedy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            threading.Event().wait()

    async def main() -> None:
        program = cluster.start(greedy)
        await asyncio.sleep(1)
        program.kill()

    with pytest.raises(StuckError, match="greedy"):
        cluster.run(main())
