"""Deadlines with one timer, on an event loop whose time passes only when nothing else is to do."""

import asyncio
import selectors

from penstock.frugal.deadlines import TICK_S, Deadlines


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

    def __init__(self):
        self.at = None

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
        assert ended.at is None
        assert kept.at is not None

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
    assert second.at is not None


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
