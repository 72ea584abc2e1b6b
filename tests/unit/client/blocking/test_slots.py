"""Slots between threads: bounded, in order, and nobody waits in vain."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable

import pytest

from penstock.client.blocking.slots import Slots
from tests.extent import needs_time


class Line(deque[threading.Event]):
    """Tells when somebody joins."""

    def __init__(self) -> None:
        super().__init__()
        self.joined = threading.Semaphore(0)

    def append(self, place: threading.Event) -> None:
        super().append(place)
        self.joined.release()


def taken(slots_max: int, low: int) -> Slots:
    """With all slots taken."""
    slots = Slots(slots_max, low)
    slots._line = Line()
    assert all(slots.take(0) for _ in range(slots_max))
    return slots


class Waiting:
    """A thread that stands in line, from the moment on when this returns."""

    def __init__(self, slots: Slots, then: Callable[[], object] = lambda: None) -> None:
        self.got: bool | None = None
        self._slots, self._then = slots, then
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert isinstance(slots._line, Line)
        assert slots._line.joined.acquire(timeout=10)

    def _run(self) -> None:
        self.got = self._slots.take(10)
        self._then()

    def join(self) -> bool | None:
        self.thread.join(10)
        return self.got


def test_no_more_are_taken_than_there_are() -> None:
    slots = taken(3, 1)
    assert not slots.take(0)
    slots.give_back()
    assert slots.take(0)
    assert not slots.take(0)


def test_a_line_moves_at_the_low_mark_for_as_many_as_fit() -> None:
    slots = taken(4, 1)
    line = [Waiting(slots) for _ in range(4)]
    for _ in range(2):
        slots.give_back()
    assert [place.got for place in line] == [None] * 4
    slots.give_back()
    assert [place.join() for place in line[:3]] == [True] * 3
    assert line[3].got is None
    for _ in range(3):
        slots.give_back()
    assert line[3].join()


def test_nobody_passes_who_stands_in_line() -> None:
    slots = taken(4, 1)
    order: list[str] = []
    first = Waiting(slots, then=lambda: order.append("first"))
    slots.give_back()
    slots.give_back()  # two are free, above the low mark
    second = Waiting(slots, then=lambda: order.append("second"))
    assert order == []
    slots.give_back()
    assert first.join()
    assert second.join()
    assert sorted(order) == ["first", "second"]


def test_who_gives_up_takes_a_slot_that_is_free_above_the_low_mark() -> None:
    slots = taken(4, 1)
    slots.give_back()
    slots._line.append(blocker := threading.Event())  # somebody is in line, so that we wait too
    assert slots.take(0.01)
    assert not slots.take(0.01)
    assert list(slots._line) == [blocker]


@needs_time
@pytest.mark.parametrize("is_admitted", [False, True])
def test_an_interrupt_leaves_no_place_and_no_slot_behind(is_admitted: bool) -> None:
    slots = taken(2, 0)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        assert isinstance(slots._line, Line)
        assert slots._line.joined.acquire(timeout=10)
        with slots._lock:
            signal.pthread_kill(main, signal.SIGINT)
            if is_admitted:  # at the same moment: before it can leave
                slots._line.popleft().set()

    other = threading.Thread(target=interrupt)
    other.start()
    interrupted = False
    try:
        slots.take(10)
    except KeyboardInterrupt:
        interrupted = True
    other.join()
    assert interrupted
    assert not slots._line
    assert slots._taken == (1 if is_admitted else 2)


def test_many_threads_all_get_through() -> None:
    slots = Slots(8, 4)
    most = now = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal most, now
        for _ in range(200):
            assert slots.take(30)
            with lock:
                now += 1
                most = max(most, now)
            with lock:
                now -= 1
            slots.give_back()

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (now, slots._taken) == (0, 0)
    assert most <= 8
