"""The watchdog: what holds the simulation up in real time is raised where it stands."""

from __future__ import annotations

import queue
import select
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from penstock.testing.errors import StuckError
from penstock.testing.watchdog import watched
from penstock.testing.where import of_frame

LIMIT_S = 0.04
STEPS = 7


def spin() -> None:
    while True:
        pass


def lock_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def receive() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.recv(1)


def stuck(frame: FrameType) -> StuckError:
    return StuckError(of_frame(frame))


@pytest.mark.parametrize(
    "hold_up",
    [spin, lock_twice, lambda: queue.Queue[int]().get(), lambda: select.select([], [], [], None), receive],
    ids=["spin", "lock", "queue", "select", "socket"],
)
def test_what_holds_it_up_is_raised_there(hold_up: Callable[[], Any]) -> None:
    before = signal.getsignal(signal.SIGALRM)
    threads = set(threading.enumerate())
    with pytest.raises(StuckError, match=r"test_watchdog\.py:\d+"), watched(LIMIT_S, lambda: STEPS, stuck):
        hold_up()
    assert signal.getsignal(signal.SIGALRM) is before
    assert set(threading.enumerate()) <= threads  # those of other tests may end meanwhile


def test_what_goes_on_is_left_alone() -> None:
    looked: list[int] = []
    is_enough = threading.Event()

    def steps() -> int:
        looked.append(1)
        if len(looked) > 20:
            is_enough.set()
        return len(looked)

    with watched(LIMIT_S, steps, stuck):
        assert is_enough.wait(60)


def test_another_ones_alarm_is_passed_on() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    try:
        with watched(60, lambda: STEPS, stuck):
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert heard == [signal.SIGALRM]


def test_without_a_limit_nobody_watches() -> None:
    threads = set(threading.enumerate())
    with watched(float("inf"), lambda: STEPS, stuck):
        assert set(threading.enumerate()) <= threads  # those of other tests may end meanwhile


def test_in_another_thread_than_the_first_it_is_raised_too() -> None:
    raised: list[BaseException] = []
    where: list[str] = []

    def told(frame: FrameType) -> StuckError:
        where.append(of_frame(frame))
        return StuckError()

    def other() -> None:
        try:
            with watched(LIMIT_S, lambda: STEPS, told):
                spin()
        except StuckError as error:
            raised.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(60)
    assert len(raised) == 1
    assert "test_watchdog.py" in where[0]
