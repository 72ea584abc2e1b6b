"""The rest of a coroutine that was begun by hand is awaited as the whole would be."""

import asyncio
import contextlib
import types

import pytest

from penstock.frugal.steps import rest_of


async def waiting(gate, seen):
    seen.append("begun")
    try:
        for _ in range(2):
            await asyncio.sleep(0)
        got = await gate
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise
    finally:
        seen.append("ended")
    return got


async def begun_by_hand(running):
    return await rest_of(running, running.send(None))


async def test_it_has_the_result():
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    seen: list[str] = []
    task = asyncio.create_task(begun_by_hand(waiting(gate, seen)))
    gate.set_result(7)
    assert await task == 7
    assert seen == ["begun", "ended"]


async def test_it_has_the_error_of_what_it_waits_for():
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    seen: list[str] = []
    task = asyncio.create_task(begun_by_hand(waiting(gate, seen)))
    gate.set_exception(LookupError("gone"))
    with pytest.raises(LookupError, match="gone"):
        await task


async def test_a_cancellation_arrives_in_it():
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    seen: list[str] = []
    task = asyncio.create_task(begun_by_hand(waiting(gate, seen)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["begun", "cancelled", "ended"]


async def test_what_it_makes_of_a_cancellation_counts():
    async def stubborn():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "done"

    task = asyncio.create_task(begun_by_hand(stubborn()))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "done"


async def test_its_time_out_belongs_to_the_task_that_awaits_it():
    async def limited():
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await asyncio.create_task(begun_by_hand(limited()))


def test_it_is_closed_with_what_awaits_it():
    seen: list[str] = []

    @types.coroutine
    def step():
        yield

    async def endless():
        try:
            while True:
                await step()
        finally:
            seen.append("ended")

    outer = begun_by_hand(endless())
    outer.send(None)
    outer.send(None)
    outer.close()
    assert seen == ["ended"]
