"""How many handshakes there are at once, and how much of a turn of the loop they get."""

from __future__ import annotations

import asyncio

from penstock.base import limits
from penstock.broker.handshakes import Handshakes


async def test_the_oldest_gives_way_and_one_that_is_finished_does_not() -> None:
    gone: list[int] = []
    handshakes = Handshakes(asyncio.get_running_loop(), lambda: 0, unfinished_max=2)
    first, second, third, fourth = ((lambda number=number: gone.append(number)) for number in (1, 2, 3, 4))
    handshakes.begin(first)
    handshakes.begin(second)
    handshakes.end(first)
    handshakes.begin(third)
    assert gone == []
    handshakes.begin(fourth)
    assert gone == [2]
    assert len(handshakes) == 2
    handshakes.end(second)  # twice is fine


async def test_a_turn_of_the_loop_does_only_so_much() -> None:
    now_us = 0
    done = 0

    def step() -> None:
        nonlocal now_us, done
        now_us += limits.TLS_HANDSHAKE_TURN_US_MAX // 4
        done += 1

    handshakes = Handshakes(asyncio.get_running_loop(), lambda: now_us)
    for turn in (1, 2, 3):
        assert [handshakes.step(step) for _ in range(6)] == [True] * 4 + [False] * 2
        assert done == 4 * turn
        await asyncio.sleep(0)
