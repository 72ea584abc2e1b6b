"""Queries: few at once, in a lane of their own, and none for somebody who has gone."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from penstock.access import Operation, Rule
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import StreamId
from penstock.messages import (
    AppendResponse,
    CreateStreamResponse,
    FetchRequest,
    GetRequest,
    GetResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from penstock.node.partition.log_queries import Query, QueryGivenUpError
from penstock.node.partition.query_executor import QueryExecutor
from penstock.node.step import Lane, Outbox
from penstock.vfs.memory import MemoryVfs
from tests.logs import open_log
from tests.unit.node.harness import Broker
from tests.unit.node.security.test_access import asking, user


class Searched(Broker):
    """A broker with one stream of three messages, whose disk waits to be told."""

    def __init__(self) -> None:
        super().__init__()
        self.start()
        self.id: StreamId = self.answer(self.create("orders"), CreateStreamResponse).stream.stream_id
        for value in (b"1", b"2", b"3"):
            self.publish("orders.a", value)
        self.disk_runs_at_once = False

    def search(self, count: int = 1) -> list[Hashable]:
        """Ask for a key that is not there."""
        return [self.request(GetRequest(stream_id=self.id, key=b"k")) for _ in range(count)]

    def leave(self, callers: list[Hashable]) -> None:
        """Their connection has closed."""
        self.open_requests.difference_update(callers)
        self.node.callers_disconnected(callers)
        self.turn()

    def code(self, caller: Hashable) -> str:
        """Of the error that it got."""
        response = self.replies[caller].response
        assert isinstance(response, RemoteError), response
        return response.code


def test_searches_hold_up_neither_appends_nor_quick_questions() -> None:
    broker = Searched()
    searches = broker.search(50)
    offsets = broker.request(ListOffsetsRequest(stream_id=broker.id, at="latest"))
    append = broker.append("orders", b"x")
    lanes = [work.lane for work in broker.disk]
    assert lanes == [Lane.QUERY, Lane.QUERY, Lane.READ]
    while broker.disk[1:]:  # all but the first search
        broker.run_disk(1)
    assert broker.answer(offsets, ListOffsetsResponse).offset == 3
    assert broker.answer(append, AppendResponse).base_offset == 3
    broker.settle()
    assert {broker.code(caller) for caller in searches} == {ErrorCode.MESSAGE_NOT_FOUND}


def test_a_client_that_has_gone_is_not_searched_for() -> None:
    broker = Searched()
    running, *waiting = broker.search(20)
    (others,) = broker.search()
    broker.leave([running, *waiting])
    executed = broker.execute()
    assert isinstance(executed.error, QueryGivenUpError)
    broker.complete(executed)
    assert len(broker.disk) == 1
    broker.settle()
    assert broker.code(others) == ErrorCode.MESSAGE_NOT_FOUND
    assert not broker.open_requests


def test_too_many_queries_are_refused() -> None:
    broker = Searched()
    callers = broker.search(limits.QUERIES_WAITING_MAX + 2)
    assert broker.code(callers[-1]) == ErrorCode.OVERLOADED
    assert len(broker.open_requests) == limits.QUERIES_WAITING_MAX + 1
    broker.leave(callers[:-1])
    broker.settle()


def test_no_query_keeps_a_stop_waiting() -> None:
    broker = Searched()
    running, waiting = broker.search(2)
    broker.node.give_up_queries()
    broker.turn()
    assert broker.code(waiting) == ErrorCode.STOPPING
    broker.run_disk()
    assert broker.code(running) == ErrorCode.STOPPING
    broker.stop()


def of_users() -> Searched:
    """Bob and eve may read; ann rules."""
    broker = Searched()
    broker.disk_runs_at_once = True
    broker.request(user("ann", Rule(Operation.ADMIN)))
    with asking(broker, "ann"):
        for name in ("bob", "eve"):
            broker.request(user(name, Rule(Operation.READ, stream="orders")))
    broker.disk_runs_at_once = False
    return broker


def answered_after(broker: Searched, caller: Hashable) -> int:
    """How many pieces of work the disk does before that is answered."""
    done = 0
    while caller not in broker.replies:
        broker.run_disk()
        done += 1
    return done


def test_a_search_waits_for_one_of_each_other_user_and_not_for_all_of_them() -> None:
    broker = of_users()
    with asking(broker, "bob"):
        broker.search(50)
    with asking(broker, "eve"):
        (first,) = broker.search()
    assert answered_after(broker, first) == 2  # the one of bob's that ran already, and its own
    with asking(broker, "eve"):
        (second,) = broker.search()
    assert answered_after(broker, second) <= 3
    broker.settle()


def test_a_quick_question_waits_for_one_of_each_other_user() -> None:
    broker = of_users()
    at = GetRequest(stream_id=broker.id, offset=0)
    with asking(broker, "bob"):
        for _ in range(50):
            broker.request(at)
    with asking(broker, "eve"):
        asked = broker.request(at)
    assert answered_after(broker, asked) <= limits.QUERIES_RUNNING_MAX + 1
    assert isinstance(broker.replies[asked].response, GetResponse)
    broker.settle()


def test_a_search_is_begun_while_quick_questions_never_end() -> None:
    broker = of_users()
    at = GetRequest(stream_id=broker.id, offset=0)

    def asked_by_bob() -> None:
        with asking(broker, "bob"):
            broker.request(at)

    for _ in range(50):
        asked_by_bob()
    with asking(broker, "eve"):
        (search,) = broker.search()
    done = 0
    while search not in broker.replies and done < 50:
        broker.run_disk(1)
        asked_by_bob()  # so that as many wait as before
        done += 1
    assert done <= limits.QUERIES_RUNNING_MAX + 1
    broker.settle()


def test_a_fetch_of_some_subjects_waits_for_one_of_each_other_user() -> None:
    broker = of_users()
    some = FetchRequest(stream_id=broker.id, offset=0, subjects=("orders.b",))
    with asking(broker, "bob"):
        for _ in range(50):
            broker.request(some)
    with asking(broker, "eve"):
        asked = broker.request(some)
    assert answered_after(broker, asked) <= limits.PROJECTIONS_RUNNING_MAX + 1
    broker.settle()


def test_one_user_does_not_take_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.node.api.lookup_api.limits.QUERIES_WAITING_MAX", 20)
    broker = of_users()
    with asking(broker, "bob"):
        callers = broker.search(30)
    assert sum(caller in broker.open_requests for caller in callers) == 11  # one runs
    assert broker.code(callers[-1]) == ErrorCode.OVERLOADED
    with asking(broker, "eve"):
        (asked,) = broker.search()
    assert asked in broker.open_requests
    broker.settle()


def test_what_a_search_has_looked_through_is_told_found_or_not() -> None:
    broker = Searched()
    broker.disk_runs_at_once = True
    size_bytes = broker.stream("orders").partitions[0].size_bytes
    (absent,) = broker.search()
    found = broker.request(GetRequest(stream_id=broker.id, subject="orders.a"))
    one = broker.request(GetRequest(stream_id=broker.id, offset=0))
    assert isinstance(broker.replies[found].response, GetResponse)
    assert 0 < broker.replies[absent].looked_bytes <= size_bytes
    # The first search of a subject sums up the segment that is written, and reads the batch that it has found.
    assert size_bytes // 2 < broker.replies[found].looked_bytes <= 2 * size_bytes
    assert broker.replies[one].looked_bytes == 0  # it counts as what it brings


class Cached(Query):
    """A query that needs no disk: found, or an error."""

    def __init__(self, error: RemoteError | None) -> None:
        super().__init__(open_log(MemoryVfs()).view())
        self._error = error

    def run_if_cached(self) -> bool:
        if self._error is not None:
            raise self._error
        return True


@pytest.mark.parametrize("error", [None, RemoteError(ErrorCode.MESSAGE_NOT_FOUND, "none")])
def test_a_query_that_needs_no_disk_is_answered_at_once(error: RemoteError | None) -> None:
    outbox = Outbox()
    executor = QueryExecutor(outbox, running_max=1, waiting_max=1)
    heard: list[Exception | None] = []
    for _ in range(3):  # more than may wait
        executor.ask("caller", Cached(error), heard.append)
    assert heard == [error] * 3
    assert not outbox.step
