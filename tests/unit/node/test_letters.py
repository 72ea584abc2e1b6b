"""Dead letters at the leader of the stream that keeps them: each is stored once, however often and late it comes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.base.ids import Offset, PartitionId, TimestampUs
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    AppendResponse,
    CreateStreamResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    StoreLetterRequest,
    StoreLetterResponse,
)
from penstock.node.api.letters import PrepareLetter
from tests.unit.node.harness import Broker, batch_of

DAY_MS = 86_400_000
OWN = "penstock.dead.dead.>"


@pytest.fixture
def broker() -> Broker:
    broker = Broker().start()
    broker.create("dead", OWN)
    return broker


def request_of(broker: Broker, letter: str, *, since_us: int | None = None, stream: str = "dead") -> StoreLetterRequest:
    since_us = broker.clock.now.wall_us if since_us is None else since_us
    return StoreLetterRequest(stream_id=broker.stream_id(stream), letter=letter, since_us=TimestampUs(since_us))


def batch(letter: str, value: bytes = b"v", subject: str = "penstock.dead.dead.x") -> Any:
    return batch_of([(subject, None, value, f"NATS/1.0\r\nA: b\r\nPenstock-Dead-Letter: {letter}\r\n\r\n".encode())])


def store(broker: Broker, letter: str, value: bytes = b"v", **fields: Any) -> StoreLetterResponse:
    return broker.ask(request_of(broker, letter, **fields), StoreLetterResponse, batch(letter, value))


def stored(broker: Broker) -> list[bytes | None]:
    return [row.value for row in broker.read("dead")]


def test_a_letter_is_stored_once(broker: Broker) -> None:
    first = store(broker, "a-1", b"1")
    other = store(broker, "a-2", b"2")
    again = store(broker, "a-1", b"1")
    assert [(one.offset, one.is_new) for one in (first, other, again)] == [(0, True), (1, True), (0, False)]
    assert stored(broker) == [b"1", b"2"]


def test_a_letter_is_known_long_after_the_deduplication_window_and_to_the_next_leader(broker: Broker) -> None:
    since_us = broker.clock.now.wall_us
    store(broker, "a-1", b"1")
    for number in range(5):
        broker.append("dead", b"%d" % number, subject="penstock.dead.dead.x")
    broker.clock.advance_ms(DAY_MS)
    broker = broker.crash().start()
    assert not store(broker, "a-1", b"1", since_us=since_us).is_new
    assert store(broker, "a-2", b"2").is_new
    assert not store(broker, "a-1", b"1", since_us=since_us).is_new


def test_a_letter_that_comes_twice_at_once_is_stored_once(broker: Broker) -> None:
    callers = [f"sender {number}" for number in range(3)]
    request = request_of(broker, "a-1")
    for caller in callers:
        broker.open_requests.add(caller)
        broker.node.request(caller, request, bytes(batch("a-1")), broker.clock.now)
    broker.turn()
    answers = [broker.replies[caller].response for caller in callers]
    assert [one.is_new for one in answers if isinstance(one, StoreLetterResponse)].count(True) == 1
    assert len(stored(broker)) == 1


@pytest.mark.parametrize(("subject", "counts"), [("orders.x", False), ("penstock.dead.dead.x", True)])
def test_a_letter_is_on_a_subject_of_dead_letters(subject: str, counts: bool) -> None:
    """A publisher on another subject of the stream made up the header: the letter was never stored."""
    broker = Broker().start()
    broker.answer(broker.create("dead", OWN, more_subjects=["orders.>"]), CreateStreamResponse)
    since_us = broker.clock.now.wall_us
    made_up = b"NATS/1.0\r\nPenstock-Dead-Letter: a-1\r\n\r\n"
    broker.ask(
        AppendRequest(stream_id=broker.stream_id("dead"), partition=PartitionId(0)),
        AppendResponse,
        batch_of([(subject, None, b"made up", made_up)]),
    )
    assert store(broker, "a-1", since_us=since_us).is_new is not counts


def test_a_letter_that_was_deleted_is_not_stored_again_while_the_log_has_it() -> None:
    """Who deletes a letter has seen it; its message is pending only because an answer was lost."""
    broker = Broker().start()
    broker.create("dead", OWN)
    since_us = broker.clock.now.wall_us
    store(broker, "a-1", b"1")
    store(broker, "a-2", b"2")
    request = DeleteMessagesRequest(stream_id=broker.stream_id("dead"), partition=PartitionId(0), offsets=(Offset(0),))
    broker.ask(request, DeleteMessagesResponse)
    assert stored(broker) == [b"2"]
    broker = broker.crash().start()
    assert not store(broker, "a-1", b"1", since_us=since_us).is_new
    assert stored(broker) == [b"2"]


def test_what_is_no_letter_of_this_stream_is_refused(broker: Broker) -> None:
    refusal = broker.refusal(request_of(broker, "a-1"), batch("a-1", subject="other.x"))
    assert refusal.code == ErrorCode.BAD_REQUEST
    refusal = broker.refusal(request_of(broker, "a-1"), batch_of([("penstock.dead.dead.x", None, b"1", None)] * 2))
    assert refusal.code == ErrorCode.BAD_REQUEST
    broker.create("wide", "wide", partitions=2)
    refusal = broker.refusal(request_of(broker, "a-1", stream="wide"), batch("a-1", subject="wide"))
    assert (refusal.code, "one partition" in refusal.message) == (ErrorCode.BAD_REQUEST, True)
    assert stored(broker) == []


def test_a_letter_that_was_refused_is_taken_later(broker: Broker) -> None:
    broker.create("small", max_messages=1, discard="new")
    for letter in ("a-1", "a-2"):
        broker.request(request_of(broker, letter, stream="small"), batch(letter, subject="small.x"))
    refusal = broker.refusal(request_of(broker, "a-2", stream="small"), batch("a-2", subject="small.x"))
    assert refusal.code == ErrorCode.STREAM_FULL
    broker.ask(AlterStreamRequest(name="small", changes={"max_messages": 5}), AlterStreamResponse)
    answer = broker.ask(request_of(broker, "a-2", stream="small"), StoreLetterResponse, batch("a-2", subject="small.x"))
    assert answer.is_new


@pytest.mark.parametrize(
    "config",
    [
        {"max_messages": 5, "discard": "new"},
        {"max_messages_per_subject": 5, "discard": "new", "discard_new_per_subject": True, "max_messages": 9},
    ],
    ids=["by messages", "by subject"],
)
def test_the_next_leader_of_a_stream_that_refuses_what_is_beyond_its_limits_takes_letters(config: Any) -> None:
    broker = Broker().start()
    broker.create("dead", OWN, **config)
    store(broker, "a-1", b"1")
    broker = broker.crash().start()
    answers = [broker.replies[broker.request(request_of(broker, "a-2"), batch("a-2"))].response for _ in range(2)]
    assert [one.is_new for one in answers if isinstance(one, StoreLetterResponse)] == [True, False]


def read_for_a_letter(broker: Broker, letter: str, since_us: int) -> tuple[int, StoreLetterResponse]:
    """Store a letter; return the bytes of the log that were read for it, too."""
    broker.hung = (PrepareLetter,)
    caller = broker.request(request_of(broker, letter, since_us=since_us), batch(letter))
    (number,) = (
        at for at, work in enumerate(broker.disk) if isinstance(getattr(work.run, "__self__", None), PrepareLetter)
    )
    query = getattr(broker.disk[number].run, "__self__", None)
    assert isinstance(query, PrepareLetter)
    broker.complete(broker.execute(number))
    broker.hung = ()
    broker.settle()
    return query.looked_bytes, broker.answer(caller, StoreLetterResponse)


def test_a_log_with_more_letters_than_are_remembered_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LETTERS_KNOWN_MAX", 10)
    broker = Broker().start()
    broker.create("dead", OWN)
    since_us = broker.clock.now.wall_us
    for number in range(25):
        store(broker, f"a-{number}", since_us=since_us)
    broker = broker.crash().start()
    read = [read_for_a_letter(broker, f"b-{number}", since_us)[0] for number in range(15)]
    assert [one > 0 for one in read] == [True] + [False] * 14
    known = [read_for_a_letter(broker, f"b-{number}", since_us) for number in range(5, 15)]
    assert {(size, answer.is_new) for size, answer in known} == {(0, False)}, "the last ones are remembered"
