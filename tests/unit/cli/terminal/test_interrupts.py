"""However often Ctrl-C is pressed, what runs is ended once, and its ending is not disturbed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest
from nats.js.errors import APIError

from penstock.base.errors import OperationalError
from penstock.cli.demo.run import cancelled_when_it_is
from penstock.cli.terminal.failure import Interrupted
from penstock.cli.terminal.interrupts import Interrupts


@pytest.fixture(autouse=True)
def signals_put_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_one_interrupts_and_further_ones_do_nothing(number: signal.Signals) -> None:
    Interrupts()
    with pytest.raises(Interrupted) as caught:
        signal.raise_signal(number)
    assert caught.value.exit_code == 128 + number
    signal.raise_signal(number)
    signal.raise_signal(signal.SIGINT)


def test_a_coroutine_is_cancelled_and_ends_in_good_order() -> None:
    interrupts = Interrupts()
    ended = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
            ended.append(True)

    with pytest.raises(Interrupted) as caught:
        interrupts.run(work())
    assert ended == [True]
    assert caught.value.exit_code == 143


def test_without_a_signal_the_result_and_the_error_come_through() -> None:
    async def work() -> int:
        return 7

    async def failing() -> int:
        raise OperationalError("no")

    interrupts = Interrupts()
    assert interrupts.run(work()) == 7
    with pytest.raises(OperationalError):
        interrupts.run(failing())


def test_a_client_that_says_something_else_when_it_is_cancelled() -> None:
    interrupts = Interrupts()

    async def work() -> None:
        async with cancelled_when_it_is():
            signal.raise_signal(signal.SIGINT)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise APIError from None

    with pytest.raises(KeyboardInterrupt):
        interrupts.run(work())

    async def refused() -> None:
        async with cancelled_when_it_is():
            raise APIError

    with pytest.raises(APIError):
        interrupts.run(refused())
