"""Stored consumers of a cluster: another leader goes on with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.conversations import Answered, Deed
from penstock.messages import (
    AskConsumersRequest,
    ConsumerOperation,
    ListOffsetsRequest,
    ListOffsetsResponse,
    StoreLetterRequest,
)
from penstock.node.step import PeerRequest
from tests.unit.jetstream.api_broker import ApiBrokers, ApiMember
from tests.unit.jetstream.readers.gateways import Delivered, parsed
from tests.unit.node.members import Asked, Member

S = 1_000_000_000


def call(brokers: ApiBrokers, member: ApiMember, operation: str, request: Any = None) -> dict[str, Any]:
    """Return the answer of a broker to a request, which may be passed on."""
    payload = b"" if request is None else json.dumps(request).encode()
    for one in brokers.all:
        one.answers.pop("_INBOX.caller", None)
    member.deliver([(f"$JS.API.{operation}".encode(), b"_INBOX.caller", None, payload)])
    for _ in range(60):
        brokers.run(50)
        for one in brokers.all:
            if answer := one.answers.pop("_INBOX.caller", None):
                found: dict[str, Any] = json.loads(answer)
                return found
    raise AssertionError(f"no answer to {operation}")


def leader_of(brokers: ApiBrokers, stream: str) -> ApiMember:
    member = brokers.all[0]
    leader = member.image.by_name(stream).partitions[0].leader
    assert leader is not None
    return brokers[leader]


def pulled(brokers: ApiBrokers, member: ApiMember, batch: int, **more: Any) -> list[Delivered]:
    """Return what a pull request gets."""
    member.leaf.frames.clear()
    request = json.dumps({"batch": batch, "no_wait": True, **more}).encode()
    member.deliver([(b"$JS.API.CONSUMER.MSG.NEXT.s.d", b"_INBOX.pull", None, request)])
    brokers.run(200)
    return parsed(b"".join(member.leaf.frames))


def test_the_next_leader_goes_on_with_a_consumer() -> None:
    brokers = ApiBrokers(1, 2, 3)
    brokers.run(6_000)
    assert "error" not in call(brokers, brokers[1], "STREAM.CREATE.s", {"name": "s", "num_replicas": 3})
    brokers.run(1_000)
    first = leader_of(brokers, "s")
    config = {"durable_name": "d", "ack_policy": "explicit", "ack_wait": 5 * S}
    other = next(one for one in brokers.all if one is not first)
    made = call(brokers, other, "CONSUMER.CREATE.s.d", {"stream_name": "s", "config": config})
    assert "error" not in made, made
    for number in range(4):
        first.publish("s", b"%d" % number)
    brokers.run(500)
    taken = pulled(brokers, first, 3)
    assert [one.value for one in taken] == [b"0", b"1", b"2"]
    first.deliver([(taken[0].reply.encode(), b"_INBOX.ack", None, b"")])
    brokers.run(500)
    assert first.answers["_INBOX.ack"] == b""
    brokers.kill(first.broker_id)
    brokers.run(10_000)
    second = leader_of(brokers, "s")
    assert second is not first
    told = call(brokers, second, "CONSUMER.INFO.s.d")
    assert (told["num_ack_pending"], told["num_pending"], told["ack_floor"]["stream_seq"]) in ((2, 1, 1), (0, 1, 1))
    brokers.run(6_000)
    again = [(one.value, one.deliveries) for one in pulled(brokers, second, 9) if one.stream_seq]
    assert again == [(b"1", 2), (b"2", 2), (b"3", 1)]


def slept(
    *, published: bytes, before: Callable[[ApiMember, Delivered], None] | None = None, **config: Any
) -> tuple[ApiBrokers, ApiMember, ApiMember, list[Delivered]]:
    """Return brokers of which one slept while another came to lead, both, and what the first one delivered.

    A pull request waits at the first one; all that was published before it slept is in hand, and is due by now.
    `before` happens last, with that message.
    """
    brokers = ApiBrokers(1, 2, 3)
    brokers.run(6_000)
    assert "error" not in call(brokers, brokers[1], "STREAM.CREATE.s", {"name": "s", "num_replicas": 3})
    dead = {"name": "dead", "subjects": ["penstock.dead.dead.>"], "num_replicas": 3}
    assert "error" not in call(brokers, brokers[1], "STREAM.CREATE.dead", dead)
    brokers.run(1_000)
    first = leader_of(brokers, "s")
    config = {"durable_name": "d", "ack_policy": "explicit", "ack_wait": 5 * S, **config}
    made = call(brokers, first, "CONSUMER.CREATE.s.d", {"stream_name": "s", "config": config})
    assert "error" not in made, made
    first.publish("s", published)
    brokers.run(500)
    taken = pulled(brokers, first, 1)
    assert [one.value for one in taken] == [published]
    request = json.dumps({"batch": 5, "expires": 60 * S}).encode()
    first.deliver([(b"$JS.API.CONSUMER.MSG.NEXT.s.d", b"_INBOX.waits", None, request)])
    brokers.run(500)
    if before is not None:
        before(first, taken[0])
    brokers.hang(first.broker_id)
    brokers.run(2 * limits.SESSION_MS)
    second = next(one for one in brokers.all if one is not first)
    second = brokers[second.image.by_name("s").partitions[0].leader]
    assert second is not first
    first.leaf.frames.clear()
    return brokers, first, second, taken


def test_who_slept_does_not_deliver_what_the_next_leader_has_confirmed() -> None:
    brokers, first, second, taken = slept(published=b"x")
    acked_at(brokers, second, taken[0])
    first.gateway.tick(first.clock.now)  # the first thing that it does
    while first.gateway.has_next_turn:
        first.gateway.turn(first.clock.now)
    first.turn()
    assert [one for one in parsed(b"".join(first.leaf.frames)) if one.stream_seq] == []


def acked_at(brokers: ApiBrokers, second: ApiMember, message: Delivered) -> None:
    """The next leader confirms the ack of a message that the first one has delivered."""
    second.deliver([(message.reply.encode(), b"_INBOX.ack", None, b"")])
    brokers.run(500)
    assert second.answers["_INBOX.ack"] == b""


def test_who_slept_exports_no_state_that_may_be_outdated() -> None:
    brokers, first, second, taken = slept(published=b"x")
    acked_at(brokers, second, taken[0])
    stream_id = first.image.by_name("s").stream_id
    for operation in (ConsumerOperation.EXPORT, ConsumerOperation.EXPORT_ALL):
        name = "d" if operation == ConsumerOperation.EXPORT else ""
        refused = first.refusal(AskConsumersRequest(stream_id=stream_id, operation=operation, consumer=name))
        assert refused.code == ErrorCode.NOT_YET
        assert "another broker may lead" in refused.message


def test_who_slept_while_it_looked_tells_no_state_that_may_be_outdated() -> None:
    def ask(first: ApiMember, _: Delivered) -> None:
        first.publish("s", b"y", b"z")
        first.brokers.run(500)
        first.deliver([(b"$JS.API.STREAM.MSG.DELETE.s", b"_INBOX.deleted", None, b'{"seq":3}')])
        first.brokers.run(500)
        assert json.loads(first.answers["_INBOX.deleted"])["success"]
        first.disk_runs_at_once = False
        first.deliver([(b"$JS.API.CONSUMER.INFO.s.d", b"_INBOX.info", None, b"")])
        first.brokers.run(100)  # the others promise not to lead

    brokers, first, second, taken = slept(published=b"x", before=ask, max_ack_pending=1)
    assert first.disk
    acked_at(brokers, second, taken[0])
    first.settle()
    assert json.loads(first.answers["_INBOX.info"])["error"]["err_code"] == 10008


def test_who_slept_stores_no_letter_of_a_message_whose_ack_the_next_leader_has_confirmed() -> None:
    def give_up(first: ApiMember, message: Delivered) -> None:
        first.disk_runs_at_once = False
        first.deliver([(message.reply.encode(), None, None, b"+TERM")])

    metadata = {"penstock.dead_letters": "dead"}
    brokers, first, second, taken = slept(published=b"x", before=give_up, ack_wait=60 * S, metadata=metadata)
    assert first.disk
    assert leader_of(brokers, "dead") is not first
    acked_at(brokers, second, taken[0])
    first.settle()
    brokers.settle()
    assert not brokers.asked[StoreLetterRequest]
    tries = first.gateway.reader_numbers().letters_failed
    first.gateway_tick(5_000)
    first.settle()
    assert first.gateway.reader_numbers().letters_failed == tries  # it waits, and tries in vain no more
    deadline_us = first.gateway.next_deadline_us
    assert deadline_us is not None
    assert deadline_us > first.clock.now.elapsed_us
    first.disk_runs_at_once = True
    brokers.wake(first.broker_id)
    brokers.run(5_000)
    assert call(brokers, second, "STREAM.INFO.dead")["state"]["messages"] == 0


class LostAnswers(ApiBrokers):
    """A cluster in which answers about dead letters are lost, or the requests."""

    lost = ""

    def _take(self, to: Member, caller: Asked, request: PeerRequest) -> None:
        if isinstance(request.request, StoreLetterRequest) and self.lost:
            if self.lost == "request":
                return
            caller = caller._replace(era=-1)  # of a connection that is gone
        super()._take(to, caller, request)


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_dead_letter_is_stored_once_though_the_leader_dies_behind_it(lost: str) -> None:
    brokers = LostAnswers(1, 2, 3)
    brokers.run(6_000)
    made = {"num_replicas": 3}
    assert "error" not in call(brokers, brokers[1], "STREAM.CREATE.s", {"name": "s", **made})
    dead = {"name": "dead", "subjects": ["penstock.dead.dead.>"], **made}
    assert "error" not in call(brokers, brokers[1], "STREAM.CREATE.dead", dead)
    brokers.run(1_000)
    first = leader_of(brokers, "s")
    assert leader_of(brokers, "dead") is not first
    config: dict[str, Any] = {"durable_name": "d", "ack_policy": "explicit", "ack_wait": S, "max_deliver": 1}
    config["metadata"] = {"penstock.dead_letters": "dead"}
    assert "error" not in call(brokers, first, "CONSUMER.CREATE.s.d", {"stream_name": "s", "config": config})
    for number in range(3):
        first.publish("s", b"%d" % number)
    brokers.run(500)
    assert len(pulled(brokers, first, 3)) == 3
    brokers.lost = lost
    brokers.run(2_000)
    told = call(brokers, first, "CONSUMER.INFO.s.d")
    assert (told["ack_floor"]["stream_seq"], told["dead_letters"]["waiting"]) == (0, 3)
    state = call(brokers, first, "STREAM.INFO.dead")["state"]
    assert state["messages"] == (0 if lost == "request" else 1)
    brokers.lost = ""
    brokers.kill(first.broker_id)
    brokers.run(10_000)
    second = leader_of(brokers, "s")
    brokers.run(10_000)
    told = call(brokers, second, "CONSUMER.INFO.s.d")
    assert (told["ack_floor"]["stream_seq"], told["dead_letters"]["waiting"]) == (3, 0)
    assert call(brokers, second, "STREAM.INFO.dead")["state"]["messages"] == 3


@pytest.mark.parametrize(
    ("operation", "payload"),
    [
        ("CONSUMER.RESET", b'{"seq": 1}'),
        ("CONSUMER.PAUSE", b'{"pause_until": "2100-01-01T00:00:00Z"}'),
        ("CONSUMER.CREATE", b'{"stream_name": "s", "config": {"durable_name": "d", "ack_policy": "explicit"}}'),
    ],
)
def test_a_change_under_which_the_leadership_ends_does_not_say_that_there_is_no_consumer(
    operation: str, payload: bytes
) -> None:
    brokers = ApiBrokers(1, 2, 3)
    brokers.run(6_000)
    assert "error" not in call(brokers, brokers[1], "STREAM.CREATE.s", {"name": "s", "num_replicas": 3})
    brokers.run(1_000)
    first = leader_of(brokers, "s")
    config = {"durable_name": "d", "ack_policy": "explicit", "ack_wait": 5 * S}
    assert "error" not in call(brokers, first, "CONSUMER.CREATE.s.d", {"stream_name": "s", "config": config})
    subject = ApiSubject("$JS.API.", operation, "s", "d")
    asked = ApiCall(f"$JS.API.{operation}.s.d", b"_INBOX.change", None, payload)
    talk = first.gateway.talks[operation](asked, subject, first.clock.now)
    questions = next(talk)
    while isinstance(questions[0].request, ListOffsetsRequest):
        told = ListOffsetsResponse(offset=0, log_start=0, committed_end=0, leader_epoch=0)
        questions = talk.send([Answered(told)])
    assert isinstance(questions[0].request, Deed)  # its rows are handed over
    others = [one for one in brokers.all if one is not first]
    for one in others:
        brokers.cut(first.broker_id, one.broker_id)
    brokers.run(15_000)
    for one in others:
        brokers.join(first.broker_id, one.broker_id)
    brokers.run(5_000)
    assert "error" not in call(brokers, first, "CONSUMER.INFO.s.d")
    with pytest.raises(RemoteError) as refusal:
        talk.send([Answered(None)])
    assert refusal.value.code == ErrorCode.NOT_LEADER


def test_a_second_deletion_is_not_answered_before_the_first_one_is_committed() -> None:
    brokers = ApiBrokers(1, 2, 3)
    brokers.run(6_000)
    assert "error" not in call(brokers, brokers[1], "STREAM.CREATE.s", {"name": "s", "num_replicas": 3})
    brokers.run(1_000)
    first = leader_of(brokers, "s")
    config = {"durable_name": "d", "ack_policy": "explicit"}
    assert "error" not in call(brokers, first, "CONSUMER.CREATE.s.d", {"stream_name": "s", "config": config})
    others = [one for one in brokers.all if one is not first]
    for one in others:
        brokers.cut(first.broker_id, one.broker_id)
    for number in range(2):
        first.deliver([(b"$JS.API.CONSUMER.DELETE.s.d", b"_INBOX.%d" % number, None, b"")])
    assert [one for one in first.answers if one.startswith("_INBOX.") and one != "_INBOX.caller"] == []
    brokers.run(15_000)
    for one in others:
        brokers.join(first.broker_id, one.broker_id)
    brokers.run(5_000)
    assert [json.loads(first.answers[f"_INBOX.{number}"])["error"]["code"] for number in range(2)] == [503, 503]
    assert "error" not in call(brokers, first, "CONSUMER.INFO.s.d")


def test_who_does_not_know_a_streams_consumers_does_not_say_that_there_is_none() -> None:
    brokers = ApiBrokers(1, 2, 3)
    brokers.run(6_000)
    assert "error" not in call(brokers, brokers[1], "STREAM.CREATE.s", {"name": "s", "num_replicas": 3})
    brokers.run(1_000)
    first = leader_of(brokers, "s")
    config = {"durable_name": "d", "ack_policy": "explicit"}
    assert "error" not in call(brokers, first, "CONSUMER.CREATE.s.d", {"stream_name": "s", "config": config})
    other = next(one for one in brokers.all if one is not first)
    for operation in ("CONSUMER.INFO", "CONSUMER.DELETE", "CONSUMER.PAUSE", "CONSUMER.RESET"):
        asked = ApiCall(f"$JS.API.{operation}.s.d", b"_INBOX.change", None, b"")
        talk = other.gateway.talks[operation](asked, ApiSubject("$JS.API.", operation, "s", "d"), other.clock.now)
        assert isinstance(next(talk)[0].request, Deed)
        with pytest.raises(RemoteError):
            talk.send([Answered(None)])  # it goes on: they cannot be known now
