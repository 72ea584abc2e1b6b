"""A bug in one API request costs the others nothing, and its caller gets an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.base.clock import Now
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.conversations import Conversation, ask
from penstock.jetstream.lookups import Lookups
from penstock.messages import ListOffsetsRequest, ListOffsetsResponse
from tests.groups import Message
from tests.unit.jetstream.api_broker import ApiBroker

NAMES = b"$JS.API.STREAM.NAMES"
BUG = (500, 10051)


class BugError(Exception):
    """Not for anyone to handle."""


class PartWithBug:
    """A part of the gateway that fails with each message, and each time."""

    has_next_turn = False
    next_deadline_us = None

    def heard(self, subject: str, now: Now) -> None:
        raise BugError(subject)

    def interest_lost(self, subjects: Sequence[bytes], now: Now) -> None:
        raise BugError

    def interest_known(self, now: Now) -> None:
        raise BugError

    def tick(self, now: Now) -> None:
        raise BugError

    def shut_down(self) -> None:
        raise BugError

    def turn(self, now: Now) -> None:
        """Do nothing."""


def fails(call: ApiCall, subject: ApiSubject, now: Now) -> None:
    raise BugError(subject.operation)


def read(broker: ApiBroker, *calls: Message) -> None:
    """One read with these requests, one of which has a bug."""
    with pytest.raises(BugError):
        broker.take_calls(list(calls))
    while broker.gateway.has_next_turn:
        broker.gateway.turn(broker.clock.now)
    broker.turn()


def told(broker: ApiBroker, reply: str) -> tuple[int, int]:
    error = json.loads(broker.answers[reply])["error"]
    return error["code"], error["err_code"]


def test_a_bug_with_one_row_of_a_read_leaves_the_others() -> None:
    broker = ApiBroker().start()
    broker.gateway.parts.append(PartWithBug())
    read(broker, (NAMES, b"one", None, b""), (b"$JS.API.elsewhere", None, None, b""), (NAMES, b"two", None, b""))
    assert broker.answers.keys() == {"one", "two"}


def test_a_bug_in_a_request_is_answered() -> None:
    broker = ApiBroker().start()
    broker.gateway.handlers["INFO"] = fails
    broker.gateway.handlers["CONSUMER.MSG.NEXT"] = fails
    calls = [(b"$JS.API.INFO", b"info"), (NAMES, b"names"), (b"$JS.API.CONSUMER.MSG.NEXT.s.c", b"next")]
    read(broker, *[(subject, reply, None, b"") for subject, reply in calls])
    assert told(broker, "info") == BUG
    assert "error" not in json.loads(broker.answers["names"])
    assert broker.blocks["next"].startswith(b"NATS/1.0 500 internal error (bug)")
    assert broker.gateway.errors["INFO", 10051] == 1


@pytest.mark.parametrize("is_late", [False, True])
def test_a_bug_in_a_conversation_is_answered(is_late: bool) -> None:
    broker = ApiBroker().start()
    broker.create("s")

    def talk() -> Conversation:
        if is_late:
            yield from ask(ListOffsetsRequest(stream_id=broker.stream_id("s"), at="latest"), ListOffsetsResponse)
        raise BugError

    def begins(call: ApiCall, subject: ApiSubject, now: Now) -> None:
        broker.gateway.converse(call, subject, now, talk())

    broker.gateway.handlers["INFO"] = begins
    with pytest.raises(BugError):
        broker.call("INFO")
    broker.turn()
    assert told(broker, "_INBOX.caller") == BUG
    assert broker.gateway.under_way == 0


def test_a_bug_of_a_stream_s_gets_leaves_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = ApiBroker().start()
    for name in ("odd", "orders"):
        broker.create(name, name)
        broker.publish(name, b"x")
    kept, odd = broker.node.kept_lasts, broker.stream_id("odd")

    def kept_lasts(stream_id: Any, *more: Any) -> Any:
        if stream_id == odd:
            raise BugError
        return kept(stream_id, *more)

    monkeypatch.setattr(broker.node, "kept_lasts", kept_lasts)
    read(broker, *[(b"$JS.API.DIRECT.GET.%b.%b" % (one, one), one, None, b"") for one in (b"odd", b"orders")])
    assert [broker.answers[one] for one in ("odd", "orders")] == [b"x", b"x"]  # `odd` was looked up by itself


def test_a_bug_in_an_answer_at_once_leaves_the_get_to_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = ApiBroker().start()
    broker.create("s", "s")
    broker.publish("s", b"x")
    for _ in range(2):
        broker.take_calls([(b"$JS.API.DIRECT.GET.s.s", b"before", None, b"")])
        broker.settle()
    lookups, bugs = broker.gateway.lookups, 1
    answer = lookups._answer_kept

    def answer_kept(*some: Any) -> Any:
        nonlocal bugs
        if bugs:
            bugs -= 1
            raise BugError
        return answer(*some)

    monkeypatch.setattr(Lookups, "_answer_kept", lambda _, *some: answer_kept(*some))
    assert lookups._certain is not None, "the next one is answered at once"
    read(broker, (b"$JS.API.DIRECT.GET.s.s", b"one", None, b""))
    assert (bugs, broker.answers["one"]) == (0, b"x")


def test_a_bug_in_one_part_does_not_stop_the_time_of_the_others() -> None:
    broker = ApiBroker().start()
    broker.create("s", "s")
    broker.publish("s", b"x")
    broker.disk_runs_at_once = False
    broker.call("STREAM.INFO.s", waits_ms=0)
    broker.gateway.parts.insert(0, PartWithBug())
    broker.clock.advance_ms(5_000)
    with pytest.raises(BugError):
        broker.gateway.tick(broker.clock.now)
    broker.turn()
    assert told(broker, "_INBOX.caller") == (503, 10008)
