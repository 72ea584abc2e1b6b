"""Deadlines with one timer, and those of handlers, on an event loop whose time passes when nothing else is to do."""

import asyncio
import math
import selectors

import pytest

from penstock.frugal.codecs import BINARY
from penstock.frugal.context import Context
from penstock.frugal.deadlines import TICK_S, Deadlines
from penstock.frugal.errors import DeadlineExceeded
from penstock.frugal.framing import FRUGAL
from penstock.frugal.processor import Processor
from tests.frugal_shop import SHOP, WAIT_FOR, Shop


class Time(selectors.DefaultSelector):
    """A selector that waits for nothing: what it should wait is the time that has passed."""

    def __init__(self):
        super().__init__()
        self.passed_s = 0.0
        self.looks = 0

    def select(self, timeout=None):
        found = super().select(0)
        if not found and timeout:
            self.passed_s += timeout
            self.looks += 1
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self.clock = Time()
        super().__init__(self.clock)

    def time(self):
        return self.clock.passed_s


class Timed:
    """A call that notes when it expired."""

    at = math.inf  # not yet

    def expire(self):
        self.at = asyncio.get_running_loop().time()


def run(work):
    loop = VirtualLoop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()
    return loop.clock


def test_each_call_expires_at_its_time_and_up_to_a_tick_later():
    async def work():
        deadlines = Deadlines()
        calls = {left_s: Timed() for left_s in (3.0, 0.5, 2.0, 0.501, 1.0, 0.0)}
        for left_s, call in calls.items():
            deadlines.add(call, left_s)
        await asyncio.sleep(10)
        assert len(deadlines) == 0
        for left_s, call in calls.items():
            assert left_s <= call.at <= left_s + TICK_S + 1e-6

    run(work())


def test_a_call_that_is_discarded_does_not_expire():
    async def work():
        deadlines, kept, ended = Deadlines(), Timed(), Timed()
        deadlines.add(ended, 1.0)
        deadlines.add(kept, 2.0)
        deadlines.discard(ended)
        deadlines.discard(ended)
        await asyncio.sleep(10)
        assert ended.at == math.inf
        assert kept.at < 10

    run(work())


def test_ten_thousand_calls_that_end_in_time_need_few_looks():
    async def work():
        deadlines = Deadlines()
        for _ in range(10_000):
            call = Timed()
            deadlines.add(call, 5.0)
            await asyncio.sleep(0.001)
            deadlines.discard(call)
        assert len(deadlines) == 0

    # 10,000 sleeps of 1 ms, and a look each 5 s
    assert run(work()).looks <= 10_000 + 5


def test_the_next_event_loop_has_a_timer_of_its_own():
    deadlines, first, second = Deadlines(), Timed(), Timed()

    async def begin():
        deadlines.add(first, 1.0)

    async def begin_again():
        deadlines.add(second, 2.0)
        await asyncio.sleep(10)

    run(begin())
    run(begin_again())
    assert second.at < 10


def test_a_call_may_begin_another_one_as_it_expires():
    deadlines, later = Deadlines(), Timed()

    class Again(Timed):
        def expire(self):
            super().expire()
            deadlines.add(later, 1.0)

    async def work():
        deadlines.add(Again(), 1.0)
        await asyncio.sleep(10)
        assert 2.0 <= later.at <= 2.0 + 2 * TICK_S

    run(work())


def running():
    """Return the task that runs."""
    task = asyncio.current_task()
    assert task is not None
    return task


async def answer(shop, timeout_ms):
    """Return the answer to a call of `waitFor`."""
    processor = Processor([(SHOP, shop)], now=asyncio.get_running_loop().time)
    arguments = WAIT_FOR.arguments(name="a")
    sent = FRUGAL.encode_request(BINARY, WAIT_FOR, Context(timeout_ms=timeout_ms), 1, 0.0, arguments)
    packet = await processor.answer(processor.accept(sent), bytes_max=1000)
    return FRUGAL.decode_answer(BINARY, WAIT_FOR, Context(), 1, packet).success


def test_a_handler_is_cancelled_when_its_time_is_over_and_its_task_goes_on():
    async def work():
        shop = Shop()
        with pytest.raises(DeadlineExceeded, match="at the service"):
            await answer(shop, 2_000)
        assert 2.0 <= asyncio.get_running_loop().time() <= 2.0 + TICK_S + 1e-6
        assert shop.cancelled["a"].is_set()
        assert running().cancelling() == 0

    run(work())


def test_a_handler_that_ends_well_in_spite_of_its_deadline_is_answered():
    class Stubborn(Shop):
        async def wait_for(self, ctx, name):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return "just so"

    async def work():
        assert await answer(Stubborn(), 2_000) == "just so"
        assert running().cancelling() == 0

    run(work())


def test_a_task_that_is_cancelled_as_the_time_is_over_stays_cancelled():
    class Cancelling(Shop):
        async def wait_for(self, ctx, name):
            try:
                await asyncio.sleep(60)
            finally:
                running().cancel()

    async def work():
        task = asyncio.create_task(answer(Cancelling(), 2_000))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() == 1

    run(work())
