"""The future of a publish is a future of the standard library, and cheap until somebody waits for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import sys
import threading
from concurrent.futures import FIRST_EXCEPTION, as_completed, wait

import pytest

from penstock.client.blocking import publish_future
from penstock.client.blocking.publish_future import PublishFuture
from penstock.client.blocking.slots import Slots
from penstock.client.values import PubAck

ACK = PubAck("orders", 7)


@pytest.fixture
def slots() -> Slots:
    slots = Slots(100_000, 50_000)
    for _ in range(50_000):
        slots.take(0)
    return slots


def test_what_is_done_before_anybody_waits_needs_no_condition(slots: Slots) -> None:
    acked, failed, error = PublishFuture(slots), PublishFuture(slots), ValueError("no")
    acked.set_result(ACK)
    failed.set_exception(error)
    assert (acked.result(), acked.result(0), acked.exception(), acked.done()) == (ACK, ACK, None, True)
    assert (failed.exception(), failed.exception(0), failed.done()) == (error, error, True)
    with pytest.raises(ValueError, match="no"):
        failed.result()
    assert acked._made is None
    assert slots._taken == 50_000 - 2


def test_it_cannot_be_cancelled(slots: Slots) -> None:
    future = PublishFuture(slots)
    assert (future.done(), future.running(), future.cancelled(), future.cancel()) == (False, True, False, False)
    future.set_result(ACK)
    assert (future.done(), future.running(), future.cancelled(), future.cancel()) == (True, False, False, False)
    assert future.result() == ACK


@pytest.mark.parametrize("fails", [False, True])
def test_a_callback_that_ends_the_program_keeps_no_slot(slots: Slots, fails: bool) -> None:
    def leave(_: object) -> None:
        raise SystemExit

    future = PublishFuture(slots)
    future.add_done_callback(leave)
    with pytest.raises(SystemExit):
        future.set_exception(ValueError("no")) if fails else future.set_result(ACK)
    assert slots._taken == 50_000 - 1
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(ACK)
    assert slots._taken == 50_000 - 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_at_any_moment_leaves_the_child_with_futures_that_work() -> None:
    """Another thread holds the lock of all futures as this one forks."""
    with publish_future._making:
        child = os.fork()
        if not child:
            signal.alarm(5)  # ends it if it waits for that thread, which it does not have
            slots = Slots(2, 1)
            slots.take(0)
            future = PublishFuture(slots)
            future.set_result(ACK)
            os._exit(7 if future.result() == ACK else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_who_waits_is_told(slots: Slots) -> None:
    acked, failed = PublishFuture(slots), PublishFuture(slots)
    told: list[object] = []
    acked.add_done_callback(told.append)
    with pytest.raises(TimeoutError):
        acked.result(0.01)
    with pytest.raises(TimeoutError):
        failed.exception(0)
    timers = [
        threading.Timer(0.02, acked.set_result, (ACK,)),
        threading.Timer(0.02, failed.set_exception, (ValueError("no"),)),
    ]
    for timer in timers:
        timer.start()
    assert acked.result(10) == ACK
    assert isinstance(failed.exception(10), ValueError)
    for timer in timers:
        timer.join()
    failed.add_done_callback(told.append)
    assert told == [acked, failed]
    assert slots._taken == 50_000 - 2


@pytest.mark.parametrize("is_waited_for", [False, True])
def test_it_ends_once(slots: Slots, is_waited_for: bool) -> None:
    future = PublishFuture(slots)
    if is_waited_for:
        future.add_done_callback(lambda _: None)
    future.set_result(ACK)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_exception(ValueError("no"))
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(None)
    assert future.result() == ACK
    assert slots._taken == 50_000 - 1


def test_the_standard_library_waits_for_some_that_are_done_and_some_that_are_not(slots: Slots) -> None:
    futures = [PublishFuture(slots) for _ in range(4)]
    futures[0].set_result(ACK)

    def end() -> None:
        futures[2].set_result(None)
        futures[1].set_exception(ValueError("no"))

    timer = threading.Timer(0.02, end)
    timer.start()
    assert wait(futures, 10, FIRST_EXCEPTION) == (set(futures[:3]), {futures[3]})
    timer.join()
    assert wait(futures, 0.01).not_done == {futures[3]}
    assert next(as_completed(iter(futures))) is not futures[3]
    futures[3].set_result(None)
    assert set(as_completed(iter(futures))) == set(futures)


async def test_a_coroutine_awaits_it(slots: Slots) -> None:
    futures = [PublishFuture(slots) for _ in range(2)]
    futures[0].set_result(ACK)
    wrapped = [asyncio.wrap_future(future) for future in futures]
    threading.Timer(0.02, futures[1].set_result, (None,)).start()
    async with asyncio.timeout(10):
        assert await asyncio.gather(*wrapped) == [ACK, None]


def test_whoever_comes_at_the_moment_when_it_is_done_is_told(slots: Slots) -> None:
    """One thread ends them in order while others wait for each, by every way there is."""
    count, interval = 3_000, sys.getswitchinterval()
    futures = [PublishFuture(slots) for _ in range(count)]
    called: list[object] = []
    got: list[object] = []

    def results() -> None:
        got.extend(future.result(30) for future in futures)

    def callbacks() -> None:
        for future in futures:
            future.add_done_callback(called.append)

    def sets() -> None:
        for at in range(0, count, 10):
            done, not_done = wait(futures[at : at + 10], 30)
            assert (len(done), not_done) == (10, set())
        got.append("all")

    threads = [threading.Thread(target=work) for work in (results, callbacks, sets)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for future in futures:
            future.set_result(ACK)
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert got.count(ACK) == count
    assert got.count("all") == 1
    assert len(called) == count
    assert slots._taken == 50_000 - count
