"""Queries: few at once, in a lane of their own, and none for somebody who has gone."""

from __future__ import annotations

from collections.abc import Hashable

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import StreamId
from penstock.messages import AppendResponse, CreateStreamResponse, GetRequest, ListOffsetsRequest, ListOffsetsResponse
from penstock.node.queries import QueryGivenUpError
from penstock.node.step import Lane
from tests.unit.node.harness import Broker


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
        self.node.gone(callers)
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
