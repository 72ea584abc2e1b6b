"""Requests in progress: how many at a time, who waits, who is refused, and what a drain does."""

import asyncio
import contextvars

import pytest

from penstock.frugal.codecs import BINARY
from penstock.frugal.context import Context
from penstock.frugal.errors import FrugalError, InternalError, ServiceDraining, ServiceOverloaded
from penstock.frugal.framing import FRUGAL
from penstock.frugal.processor import Processor
from penstock.frugal.workers import Job, Workers
from tests.frugal_shop import PING, SHOP, WAIT_FOR, Shop


class Front:
    """Submits requests, and keeps what was answered: the result, or the error."""

    def __init__(self, shop, *, concurrency_max=1, waiting_max=10):
        self.processor = Processor([(SHOP, shop)], now=lambda: 0.0)
        self.workers = Workers(self.processor, concurrency_max=concurrency_max, waiting_max=waiting_max)
        self.answers: asyncio.Queue[object] = asyncio.Queue()

    async def submit(self, method, *, then=None, **arguments):
        packet = FRUGAL.encode_request(
            BINARY, method, Context(timeout_ms=60_000), 1, 0.0, method.arguments(**arguments)
        )

        async def reply(answer):
            try:
                result = FRUGAL.decode_answer(BINARY, method, Context(), 1, answer)
                self.answers.put_nowait(getattr(result, "success", None))
            except FrugalError as error:
                self.answers.put_nowait(error)
            if then is not None:
                await then()

        job = Job(self.processor.accept(packet), reply, 1000)
        await self.workers.submit(job)
        return job


async def test_requests_wait_their_turn_in_order():
    shop = Shop()
    front = Front(shop, concurrency_max=2, waiting_max=2)
    for name in "abcd":
        await front.submit(WAIT_FOR, name=name)
    await shop.begun["b"].wait()
    assert (front.workers.running, front.workers.waiting) == (2, 2)
    assert "c" not in shop.begun
    await front.submit(WAIT_FOR, name="e")
    assert type(await front.answers.get()) is ServiceOverloaded
    for name in "bcda":
        shop.gates[name].set()
        assert await front.answers.get() == name
    await front.workers.drain(60)
    assert (front.workers.running, front.workers.waiting, front.workers.overloaded) == (0, 0, 1)


async def test_a_request_that_comes_as_a_worker_ends_does_not_wait_for_nobody():
    """It comes after the only worker has looked at the queue for the last time, before the event loop forgets it."""
    front = Front(Shop())
    loop = asyncio.get_running_loop()

    def submit_at_once():
        with pytest.raises(StopIteration):
            front.submit(PING).send(None)

    async def soon():
        loop.call_soon(submit_at_once)

    await front.submit(PING, then=soon)
    for _ in range(2):
        async with asyncio.timeout(60):
            assert await front.answers.get() is None


async def test_many_requests_at_every_step_are_all_answered():
    front = Front(Shop(), concurrency_max=3, waiting_max=1000)

    async def submit_some():
        for _ in range(50):
            await front.submit(PING)
            await asyncio.sleep(0)

    await asyncio.gather(*(submit_some() for _ in range(4)))
    async with asyncio.timeout(60):
        for _ in range(200):
            assert await front.answers.get() is None
    assert front.workers.waiting == 0


async def test_a_drain_has_a_time_out_and_then_refuses():
    shop = Shop()
    front = Front(shop)
    await front.submit(WAIT_FOR, name="a")
    await front.submit(WAIT_FOR, name="b")
    await shop.begun["a"].wait()
    await front.workers.drain(0)
    assert [type(await front.answers.get()) for _ in range(2)] == [ServiceDraining] * 2
    await front.submit(PING)
    assert type(await front.answers.get()) is ServiceDraining
    assert shop.cancelled["a"].is_set()
    assert shop.pings == 0
    await front.workers.drain(0)


@pytest.mark.parametrize("steps", range(8))
async def test_a_request_that_comes_at_the_end_of_a_drain_is_answered(steps):
    shop = Shop()
    front = Front(shop, concurrency_max=2)
    await front.submit(WAIT_FOR, name="a")
    await shop.begun["a"].wait()
    draining = asyncio.create_task(front.workers.drain(0))
    for _ in range(steps):
        await asyncio.sleep(0)
    await front.submit(WAIT_FOR, name="b")
    async with asyncio.timeout(60):
        await draining
        assert [type(await front.answers.get()) for _ in range(2)] == [ServiceDraining] * 2


class Stubborn(Shop):
    """Its handler of "stubborn" swallows its cancellation, and those of "own…" ask for one."""

    async def wait_for(self, ctx, name):
        if name.startswith("own"):
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            return await super().wait_for(ctx, name)
        except asyncio.CancelledError:
            if name != "stubborn":
                raise
            return name


async def test_a_handler_that_swallows_its_cancellation_strands_no_request():
    shop = Stubborn()
    front = Front(shop)
    first = await front.submit(WAIT_FOR, name="stubborn")
    second = await front.submit(WAIT_FOR, name="b")
    await front.submit(WAIT_FOR, name="c")
    await shop.begun["stubborn"].wait()
    front.workers.abandon(first)
    front.workers.abandon(first)  # once more, before the first cancellation has arrived
    async with asyncio.timeout(60):
        assert await front.answers.get() == "stubborn"
        await shop.begun["b"].wait()
        front.workers.abandon(second)  # is one cancellation again, not the second
        await shop.begun["c"].wait()
        shop.gates["c"].set()
        assert await front.answers.get() == "c"
    await front.workers.drain(60)
    assert (front.workers.running, front.workers.waiting, front.answers.empty()) == (0, 0, True)


async def test_a_worker_that_its_handler_cancels_hands_its_queue_on():
    shop = Stubborn()
    front = Front(shop)
    for name in ("own", "b", "own, and waits", "c"):
        await front.submit(WAIT_FOR, name=name)
        if name != "own, and waits":  # there the cancellation arrives in the handler, else behind it
            shop.gates[name].set()
    async with asyncio.timeout(60):
        answers = [await front.answers.get() for _ in range(4)]
    assert [answers[0], answers[1], answers[3]] == ["own", "b", "c"]
    assert type(answers[2]) is ServiceDraining
    await front.workers.drain(60)
    assert (front.workers.running, front.workers.waiting) == (0, 0)


async def test_a_drain_refuses_from_its_first_moment_on():
    """Else a service under load would never be drained: it would answer what comes until the time-out."""
    shop = Shop()
    front = Front(shop, concurrency_max=2)
    await front.submit(WAIT_FOR, name="a")
    await shop.begun["a"].wait()
    draining = asyncio.create_task(front.workers.drain(60))
    await asyncio.sleep(0)
    await front.submit(PING)
    assert type(await front.answers.get()) is ServiceDraining
    assert not draining.done()
    shop.gates["a"].set()
    async with asyncio.timeout(60):
        await draining
        assert await front.answers.get() == "a"


async def test_a_handler_that_is_cancelled_by_its_own_doing_is_answered(caplog):
    class Odd(Shop):
        async def ping(self, ctx):
            raise asyncio.CancelledError

    front = Front(Odd())
    await front.submit(PING)
    assert type(await front.answers.get()) is InternalError
    await front.submit(WAIT_FOR, name="a")  # the worker goes on
    front_shop_answer = asyncio.create_task(front.answers.get())
    await front.workers.drain(0)
    assert type(await front_shop_answer) is ServiceDraining
    caplog.clear()


async def test_a_reply_that_fails_does_not_end_the_worker(caplog):
    front = Front(Shop())

    async def fail():
        raise OSError("gone")

    await front.submit(PING, then=fail)
    await front.submit(PING)
    for _ in range(2):
        async with asyncio.timeout(60):
            assert await front.answers.get() is None
    await front.workers.drain(60)
    assert "the answer of 'ping' was not sent" in caplog.text
    caplog.clear()


class Curious(Shop):
    """Notes the task of each handler, and what the one before has left in a context variable."""

    def __init__(self):
        super().__init__()
        self.tasks = []
        self.left = []

    async def ping(self, ctx):
        self.tasks.append(asyncio.current_task())
        await super().ping(ctx)

    async def wait_for(self, ctx, name):
        self.tasks.append(asyncio.current_task())
        self.left.append(LEFT.get())
        LEFT.set(Odd() if name == "odd" else name)
        return name if name in {"now", "odd"} else await super().wait_for(ctx, name)


class Odd:
    """A value that refuses comparison, as those of some libraries do."""

    def __eq__(self, other):
        raise TypeError("compare me element by element")

    __hash__ = None


LEFT: contextvars.ContextVar[object] = contextvars.ContextVar("left", default=None)


async def test_one_worker_runs_handlers_that_never_wait():
    shop = Curious()
    front = Front(shop, concurrency_max=10)
    for _ in range(10):
        await front.submit(PING)
    assert (front.workers.running, front.workers.waiting) == (10, 0)
    for _ in range(10):
        assert await front.answers.get() is None
    assert len(set(shop.tasks)) == 1


async def test_a_handler_that_waits_holds_up_none_behind_it():
    shop = Curious()
    front = Front(shop, concurrency_max=4)
    for name in "abc":
        await front.submit(WAIT_FOR, name=name)
    await front.submit(PING)
    async with asyncio.timeout(60):
        assert await front.answers.get() is None
    assert (front.workers.running, front.workers.waiting) == (3, 0)
    assert len(set(shop.tasks)) == 4
    for name in "cab":
        shop.gates[name].set()
        assert await front.answers.get() == name


async def test_an_answer_that_waits_holds_up_no_request_behind_it():
    front, gate = Front(Shop(), concurrency_max=2), asyncio.Event()
    await front.submit(PING, then=gate.wait)
    await front.submit(PING)
    async with asyncio.timeout(60):
        for _ in range(2):
            assert await front.answers.get() is None
    assert front.workers.running == 1
    gate.set()
    await front.workers.drain(60)


@pytest.mark.parametrize("names", [("now", "now", "now"), ("odd", "now", "odd"), ("a", "now", "b")])
async def test_no_handler_sees_the_context_variables_of_another(names):
    shop = Curious()
    for name in names:
        shop.gates[name].set()
    front = Front(shop, concurrency_max=2)
    for name in names:
        await front.submit(WAIT_FOR, name=name)
    async with asyncio.timeout(60):
        assert {await front.answers.get() for _ in names} == set(names)
    assert shop.left == [None] * len(names)


async def test_no_handler_sees_the_context_variables_of_the_first_request():
    """Tracers set some around each message, such as the current span."""
    shop = Curious()
    front = Front(shop)
    front.workers.begin()

    async def submit_traced():
        LEFT.set("the span of the first request")
        await front.submit(WAIT_FOR, name="now")

    await asyncio.create_task(submit_traced())
    await front.submit(WAIT_FOR, name="now")
    async with asyncio.timeout(60):
        assert [await front.answers.get() for _ in range(2)] == ["now"] * 2
    assert shop.left == [None, None]


def test_limits_are_sensible():
    for concurrency_max, waiting_max in ((0, 1), (1, -1)):
        with pytest.raises(ValueError, match="from 1 and 0 on"):
            Workers(
                Processor([(SHOP, Shop())], now=lambda: 0.0), concurrency_max=concurrency_max, waiting_max=waiting_max
            )
