"""How many handshakes there are at once, and how much of a turn of the loop they get."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.base import limits
from penstock.broker.transport.tls_handshakes import TlsHandshakes


async def test_the_oldest_gives_way_and_one_that_is_finished_does_not() -> None:
    gone: list[int] = []
    handshakes = TlsHandshakes(asyncio.get_running_loop(), lambda: 0, unfinished_max=2)
    first, second, third, fourth = ((lambda number=number: gone.append(number)) for number in (1, 2, 3, 4))
    handshakes.begin(first, "10.0.0.1:1")
    handshakes.begin(second, "10.0.0.1:2")
    handshakes.end(first)
    handshakes.begin(third, "10.0.0.1:3")
    assert gone == []
    handshakes.begin(fourth, "10.0.0.1:4")
    assert gone == [2]
    assert len(handshakes) == 2
    handshakes.end(second)  # twice is fine


async def test_whoever_begins_many_from_one_address_is_in_nobody_elses_way() -> None:
    gone: list[int] = []
    handshakes = TlsHandshakes(asyncio.get_running_loop(), lambda: 0, unfinished_max=8)
    handshakes.begin(partial(gone.append, 0), "10.0.0.2:1")
    for number in range(1, 101):
        handshakes.begin(partial(gone.append, number), "10.0.0.1:1")
    assert gone == list(range(1, 94))
    assert len(handshakes) == 8


async def test_a_turn_of_the_loop_does_only_so_much() -> None:
    now_us = 0
    done = 0

    def step() -> None:
        nonlocal now_us, done
        now_us += limits.TLS_HANDSHAKE_TURN_US_MAX // 4
        done += 1

    handshakes = TlsHandshakes(asyncio.get_running_loop(), lambda: now_us)
    for turn in (1, 2, 3):
        assert [handshakes.step(step) for _ in range(6)] == [True] * 4 + [False] * 2
        assert done == 4 * turn
        await asyncio.sleep(0)
