"""The long poll: nobody is forgotten, nobody is answered twice."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.clock import Now
from penstock.base.ids import Offset, PartitionId, PartitionKey, StreamId
from penstock.messages import FetchRequest
from penstock.node.api.parked_fetches import ParkedFetch, ParkedFetches
from penstock.node.security.access import Authorization, Call


def key(partition: int) -> PartitionKey:
    return PartitionKey(StreamId(1), PartitionId(partition))


def waiter(caller: str, partition: int = 1, deadline_us: int = 100, wanted_bytes: int = 1) -> ParkedFetch:
    request = FetchRequest(stream_id=StreamId(1), partition=PartitionId(partition), offset=Offset(0))
    call = Call(caller, cast(Authorization, None), request, b"", Now(0, 0))
    return ParkedFetch(call, request, deadline_us, wanted_bytes)


def test_first_come_first() -> None:
    waiters = ParkedFetches()
    for caller in "abc":
        waiters.park(waiter(caller))
    waiters.park(waiter("d", partition=2))
    assert [one.caller for one in waiters.waiting(key(1))] == ["a", "b", "c"]
    assert len(waiters) == 4


def test_ready_are_those_for_whom_there_is_enough() -> None:
    waiters = ParkedFetches()
    for caller, wanted_bytes in (("a", 10), ("b", 30), ("c", 20), ("gone", 5)):
        waiters.park(waiter(caller, wanted_bytes=wanted_bytes))
    waiters.park(waiter("elsewhere", partition=2))
    waiters.drop(["gone"])
    assert [one.caller for one in waiters.ready(key(1), 9)] == []
    assert [one.caller for one in waiters.ready(key(1), 20)] == ["a", "c"]
    assert [one.caller for one in waiters.ready(key(1), 20)] == []
    assert [one.caller for one in waiters.waiting(key(1))] == ["b"]
    assert [one.caller for one in waiters.expired(100)] == ["b", "elsewhere"]
    assert [one.caller for one in waiters.ready(key(1), 1_000)] == []


def test_taken_is_gone_and_taking_twice_is_nothing() -> None:
    waiters = ParkedFetches()
    one = waiter("a")
    waiters.park(one)
    waiters.take(one)
    waiters.take(one)
    assert len(waiters) == 0
    assert waiters.next_deadline_us is None
    assert waiters.expired(1_000) == []


def test_expired_at_the_deadline_not_before() -> None:
    waiters = ParkedFetches()
    waiters.park(waiter("late", deadline_us=200))
    waiters.park(waiter("soon", deadline_us=100))
    assert waiters.next_deadline_us == 100
    assert waiters.expired(99) == []
    assert [one.caller for one in waiters.expired(100)] == ["soon"]
    assert waiters.next_deadline_us == 200
    assert waiters.waiting(key(1)) != []


def test_a_caller_waits_once() -> None:
    waiters = ParkedFetches()
    waiters.park(waiter("a"))
    with pytest.raises(AssertionError):
        waiters.park(waiter("a", partition=2))


def test_a_caller_may_come_again() -> None:
    waiters = ParkedFetches()
    first, second = waiter("a", deadline_us=1), waiter("a", deadline_us=50)
    waiters.park(first)
    waiters.take(first)
    waiters.park(second)
    assert waiters.next_deadline_us == 50
    assert waiters.expired(10) == []
    assert waiters.expired(50) == [second]


def test_drop_forgets_only_who_has_gone() -> None:
    waiters = ParkedFetches()
    for caller in "abc":
        waiters.park(waiter(caller))
    waiters.drop(["a", "c", "stranger"])
    assert [one.caller for one in waiters.waiting(key(1))] == ["b"]


def test_many_answered_waiters_leave_no_trace() -> None:
    waiters = ParkedFetches()
    stays = waiter("stays", deadline_us=10**9)
    waiters.park(stays)
    for number in range(10_000):
        one = waiter(f"c{number}", partition=number, deadline_us=10**6 + number)
        waiters.park(one)
        waiters.take(one)
    assert len(waiters._deadlines) < 100
    assert waiters.expired(10**9) == [stays]


@given(st.lists(st.tuples(st.sampled_from(["park", "take", "drop", "expire"]), st.integers(0, 7), st.integers(0, 20))))
def test_like_a_plain_list(steps: list[tuple[str, int, int]]) -> None:
    waiters, model = ParkedFetches(), {}
    for kind, number, time_us in steps:
        if kind == "park" and number not in model:
            model[number] = waiter(str(number), partition=number % 3, deadline_us=time_us)
            waiters.park(model[number])
        elif kind == "take" and number in model:
            waiters.take(model.pop(number))
        elif kind == "drop":
            waiters.drop([str(number)])
            model.pop(number, None)
        elif kind == "expire":
            late = {one for one in model.values() if one.deadline_us <= time_us}
            found = waiters.expired(time_us)
            assert set(found) == late
            assert [one.deadline_us for one in found] == sorted(one.deadline_us for one in late)
            model = {name: one for name, one in model.items() if one not in late}
        assert len(waiters) == len(model)
        assert waiters.next_deadline_us == min((one.deadline_us for one in model.values()), default=None)
        for partition in range(3):
            assert waiters.waiting(key(partition)) == [one for one in model.values() if one.partition == key(partition)]
