"""Readers against callers who mean harm, and against each other: loops, races, many of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from penstock.access import Credential, CredentialKind, Operation, Rule
from penstock.access.handshake import Principal
from penstock.base.errors import ErrorCode, RemoteError
from penstock.hot.deliveries import Cursor
from penstock.jetstream import gateway
from penstock.jetstream.gateway import ApiRights
from penstock.jetstream.readers import feed, table
from penstock.jetstream.readers.reader import Reader
from penstock.jetstream.readers.running import counts, row_reads, schedule
from penstock.jetstream.readers.stored.led import ANSWERS_BYTES_MAX, HELD_BYTES_MAX
from penstock.messages import AlterStreamRequest, AlterStreamResponse, CreateUserRequest
from penstock.node.partition.partition import Partition
from penstock.node.replicas.companions import Companions
from penstock.node.step import Step
from tests.unit.jetstream.readers.gateways import ReaderBroker

S = 1_000_000_000  # ns


def started(messages: int = 5, **config: Any) -> ReaderBroker:
    broker = ReaderBroker().start()
    broker.create("s", **config)
    for number in range(messages):
        broker.publish(f"s.{number % 2}", b"%d" % number)
    broker.tick(1)
    return broker


def add_subject(broker: ReaderBroker, subject: str) -> None:
    broker.ask(AlterStreamRequest(name="s", changes={}, add_subjects=(subject,)), AlterStreamResponse)


def test_a_request_is_not_answered_into_a_stream() -> None:
    broker = started()
    broker.consumer("s", "c")
    broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 1_000_000, "expires": 60 * S}, reply="s.loop")
    (told,) = broker.delivered()
    assert told.status == "400 Bad Request - what is sent to this reply subject comes back to a stream or the API"
    assert broker.api("CONSUMER.INFO.s.c")["num_waiting"] == 0


@pytest.mark.parametrize("subject", ["$JS.here.API.STREAM.DELETE.s", "$JS.here.API.$KV.b.k", "s.x"])
def test_nothing_is_delivered_to_the_api_or_into_a_stream(subject: str) -> None:
    broker = started()
    assert broker.consumer("s", "c", deliver_subject=subject)["error"]["err_code"] == 10081
    broker.consumer("s", "pull")
    broker.send("CONSUMER.MSG.NEXT.s.pull", {"batch": 9}, reply=subject)
    assert [one.status[:3] for one in broker.delivered()] == ["400"]


def test_a_request_ends_when_a_stream_begins_to_store_its_inbox() -> None:
    broker = started(0)
    broker.consumer("s", "c")
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 9, "expires": 60 * S}, reply="later.x")
    other = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 1, "expires": 60 * S})
    add_subject(broker, "later.>")
    broker.gateway_tick(1)
    broker.publish("s.0", b"x")
    assert [one.inbox for one in broker.delivered()] == [other]
    assert inbox != other


@pytest.mark.parametrize("added", ["later.>", "*.x"])
def test_a_consumer_ends_when_a_stream_begins_to_store_its_deliver_subject(added: str) -> None:
    broker = started(0)
    assert "error" not in broker.consumer("s", "c", deliver_subject="later.x")
    assert "error" not in broker.consumer("s", "other", deliver_subject="later")
    broker.create("t", added, acks="never")
    broker.gateway_tick(1)
    broker.publish("s.0", b"x")
    assert [one.inbox for one in broker.delivered()] == ["later"]
    assert broker.api("CONSUMER.NAMES.s")["consumers"] == ["other"]


def test_a_consumer_that_is_deleted_while_it_is_updated_leaves_nothing() -> None:
    broker = started()
    broker.consumer("s", "c", deliver_subject="first")
    wanted = {"stream_name": "s", "config": {"name": "c", "deliver_subject": "second"}}
    broker.leaf.deserted.add(b"first")
    broker.deliver(
        [
            (b"$JS.API.CONSUMER.CREATE.s.c", b"_INBOX.update", None, json.dumps(wanted).encode()),
            (b"$JS.API.CONSUMER.DELETE.s.c", b"_INBOX.delete", None, b""),
        ]
    )
    assert json.loads(broker.answers["_INBOX.delete"])["success"]
    assert "error" not in json.loads(broker.answers["_INBOX.update"])
    assert broker.leaf.watched == set()
    assert broker.api("CONSUMER.NAMES.s")["total"] == 0


def test_a_consumer_that_is_made_anew_while_it_is_updated_stays() -> None:
    broker = started()
    broker.consumer("s", "c", filter_subject="s.0")
    wanted = {"stream_name": "s", "config": {"name": "c", "filter_subject": "s.1"}}
    anew = {"stream_name": "s", "config": {"name": "c", "deliver_policy": "new"}}
    broker.deliver(
        [
            (b"$JS.API.CONSUMER.CREATE.s.c.s.1", b"_INBOX.update", None, json.dumps(wanted).encode()),
            (b"$JS.API.CONSUMER.DELETE.s.c", b"_INBOX.delete", None, b""),
            (b"$JS.API.CONSUMER.CREATE.s.c", b"_INBOX.anew", None, json.dumps(anew).encode()),
        ]
    )
    assert json.loads(broker.answers["_INBOX.update"])["error"]["err_code"] == 10014
    assert "error" not in json.loads(broker.answers["_INBOX.anew"])
    assert "filter_subject" not in broker.api("CONSUMER.INFO.s.c")["config"]


def pull_all(broker: ReaderBroker, names: list[str], *more: bytes) -> None:
    """Ask for one message of each consumer in one read; `more`: operations behind it."""
    pulls = [(f"$JS.API.CONSUMER.MSG.NEXT.s.{name}".encode(), f"got.{name}".encode(), None, b"") for name in names]
    broker.deliver(pulls + [(b"$JS.API." + one, b"_INBOX.more", None, b"") for one in more])


def test_who_waits_for_a_read_goes_on_when_another_one_has_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_reads, "FETCHES_MAX", 1)
    broker = started(6)
    for name, subject in (("a", "s.0"), ("b", "s.1"), ("c", "s.1"), ("d", "s.1"), ("e", "s.1")):
        broker.consumer("s", name, filter_subjects=[subject, "s.none"])
    pull_all(broker, ["a", "b", "c", "d", "e"])
    assert sorted(one.inbox for one in broker.delivered()) == ["got.a", "got.b", "got.c", "got.d", "got.e"]


def test_many_counts_at_once_are_no_recursion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "COUNTS_MAX", 1)
    monkeypatch.setattr(gateway, "SLICE_US", 1_000_000)  # all pulls and the purge at once
    broker = started(6)
    names = [f"c{number}" for number in range(400)]
    for name in names:
        broker.consumer("s", name, filter_subjects=["s.1", f"s.none.{name}"], inactive_threshold=600 * S)
    broker.api("STREAM.MSG.DELETE.s", {"seq": 2, "no_erase": True})
    pull_all(broker, names, b"STREAM.PURGE.s")  # nothing is left to count
    broker.delivered()
    broker.publish("s.1", b"new")
    broker.tick(200)
    assert [one.value for one in broker.delivered() if one.value] == [b"new"] * len(names)


def test_a_count_that_the_node_cannot_give_yet_is_asked_for_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = started(6)
    broker.consumer("s", "c", inactive_threshold=600 * S)
    broker.api("STREAM.MSG.DELETE.s", {"seq": 2, "no_erase": True})
    asked = []

    def refuse(companions: Companions, partition: Partition) -> None:
        asked.append(partition)
        raise RemoteError(ErrorCode.NOT_YET, "its hidden rows are being read")

    with monkeypatch.context() as patched:
        patched.setattr(Companions, "check_readable", refuse)
        pull_all(broker, ["c"])
        assert len(asked) == 1
        broker.tick(10)
        assert len(asked) == 1
    broker.tick(30)
    broker.tick(200)
    assert [(one.stream_seq, one.pending) for one in broker.delivered() if one.stream_seq] == [(1, 4)]


def test_filter_subjects_of_all_consumers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "FILTER_SUBJECTS_MAX", 4)
    broker = started()
    assert "error" not in broker.consumer("s", "a", filter_subjects=["s.1", "s.2", "s.3"])
    assert "error" not in broker.consumer("s", "b", filter_subjects=["s.1", "s.2", "s.3"])
    assert broker.consumer("s", "c", filter_subjects=["s.1", "s.2"])["error"]["code"] == 503
    assert broker.api("CONSUMER.DELETE.s.a")["success"]
    assert broker.api("CONSUMER.DELETE.s.b")["success"]
    assert "error" not in broker.consumer("s", "c", filter_subjects=["s.1", "s.2"])


def test_the_filters_of_consumers_that_are_gone_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are dropped now and then, and as soon as their room is wanted."""
    monkeypatch.setattr(feed, "FILTER_SUBJECTS_MAX", 40)
    broker = started()
    for number in range(40):
        assert "error" not in broker.consumer("s", f"c{number}", filter_subject=f"s.{number}")
    assert broker.consumer("s", "late", filter_subject="s.late")["error"]["code"] == 503
    (readers,) = broker.gateway.parts
    assert isinstance(readers, table.Readers)
    (found,) = readers._registry._feeds.values()
    for number in range(20):
        assert broker.api(f"CONSUMER.DELETE.s.c{number}")["success"]
        assert len(found._filters) - len(found.readers) <= 2
    assert broker.consumer("s", "c39", filter_subject="s.0")["name"] == "c39"  # another filter, dropped before
    for number in range(20):
        assert "error" not in broker.consumer("s", f"d{number}", filter_subject=f"s.d{number}")


def test_requests_that_wait_are_bounded_for_all_consumers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PULLS_MAX", 4)
    monkeypatch.setattr(table, "PULLS_LOOKED_AT", 2)
    broker = started(0)
    for name in ("a", "b"):
        broker.consumer("s", name, inactive_threshold=600 * S)
    asked = [broker.send(f"CONSUMER.MSG.NEXT.s.{name}", {"expires": S}) for name in "abababab"]
    refused = [one.inbox for one in broker.delivered() if one.status == "409 Exceeded MaxWaiting"]
    assert refused == asked[5:]  # they are counted at every second one
    broker.tick(1_500)  # all have ended
    broker.delivered()
    broker.send("CONSUMER.MSG.NEXT.s.a", {"expires": S})
    assert broker.delivered() == []


@pytest.mark.parametrize("rule", [Rule(Operation.APPEND, subject="s.1"), Rule(Operation.ALTER, "s")])
@pytest.mark.parametrize("policy", ["all", "new", "last"])
def test_a_consumer_needs_the_right_to_read(rule: Rule, policy: str) -> None:
    broker = ReaderBroker(rights=ApiRights(user="api")).start()
    broker.create("s")
    broker.publish("s.1", b"x")
    key = Credential("password", CredentialKind.PASSWORD, 1, None, b"s" * 16, 600_000, bytes(32), bytes(32))
    broker.request(CreateUserRequest(name="ann", credentials=(key,), rules=(Rule(Operation.ADMIN),)))
    ann = broker.node.image.user("ann")
    broker.who = Principal("ann", ann.made_index, "password", ann.credentials[0].mark)
    broker.request(CreateUserRequest(name="api", credentials=(key,), rules=(rule,)))
    made = broker.consumer("s", "c", deliver_policy=policy)
    assert made["error"]["code"] == 403
    assert broker.api("CONSUMER.NAMES.s")["total"] == 0


def test_requests_without_a_subscriber_are_found_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.jetstream.readers.running.inboxes.INBOXES_LOOKED_AT", 2)
    broker = started(0)
    broker.consumer("s", "c", inactive_threshold=600 * S)
    inboxes = [broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 1}) for _ in range(5)]
    broker.leaf.deserted.update(one.encode() for one in (inboxes[0], inboxes[1], inboxes[2], inboxes[4]))
    waiting = [5]
    for _ in range(5):
        broker.tick(1_100)
        waiting.append(broker.api("CONSUMER.INFO.s.c")["num_waiting"])
    assert max(before - after for before, after in pairwise(waiting)) <= 2
    assert waiting[-1] == 1
    broker.publish("s.0", b"x")
    assert [one.inbox for one in broker.delivered()] == [inboxes[3]]


def test_one_turn_looks_at_few_of_the_readers_that_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "DUE_MAX", 2)
    broker = started(0)
    for number in range(7):
        broker.consumer("s", f"c{number}", deliver_subject=f"got.{number}", idle_heartbeat=S)
    broker.tick(1)
    broker.delivered()
    broker.clock.advance_ms(1_500)
    broker.gateway.tick(broker.clock.now)
    beats = []
    while broker.gateway.has_next_turn:
        broker.do(broker.node.take() or Step())
        beats.append(len(broker.delivered()))
        broker.gateway.turn(broker.clock.now)
    broker.turn()
    beats.append(len(broker.delivered()))
    assert sum(beats) == 7
    assert max(beats) == 2


def test_one_turn_serves_few_of_many_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "SERVED_MAX", 2)
    broker = started(0)
    for number in range(5):
        broker.consumer("s", f"c{number}", deliver_subject=f"got.{number}")
    broker.tick(1)
    broker.leaf.is_writable = False
    broker.publish("s.0", b"x")
    broker.leaf.is_writable = True
    got = []
    while broker.gateway.has_next_turn:
        broker.gateway.turn(broker.clock.now)
        broker.do(broker.node.take() or Step())
        got.append(len(broker.delivered()))
    assert sum(got) == 5
    assert max(got) == 2


def test_clients_that_leave_together_are_taken_out_of_the_followers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of followers is made anew each time: with 5,000 of them, 1,000 that left took 0.8 s."""
    broker = started(0)
    inboxes = [f"got.{number}".encode() for number in range(9)]
    for number, inbox in enumerate(inboxes):
        broker.consumer("s", f"c{number}", deliver_subject=inbox.decode())
    broker.tick(1)
    taken_out = []
    unfollow = feed.Feed.unfollow

    def noted(self: feed.Feed, cursors: Iterable[Cursor]) -> Iterator[Reader]:
        taken_out.append(len([*cursors]))
        return unfollow(self, cursors)

    monkeypatch.setattr(feed.Feed, "unfollow", noted)
    broker.leaf.deserted.update(inboxes[:7])
    broker.gateway.interest_lost(inboxes[:7], broker.clock.now)
    broker.turn()
    broker.publish("s.0", b"x")
    assert [one for one in taken_out if one] == [7]
    assert [one.inbox for one in broker.delivered()] == ["got.7", "got.8"]


def test_a_stream_that_is_made_anew_before_its_readers_are_ended_has_flow_control(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of the old one's readers took the name away from the new one: answers of its clients were not heard."""
    broker = started(0)
    broker.consumer("s", "old", deliver_subject="old")

    def refuse(companions: Companions, partition: Partition) -> None:
        raise RemoteError(ErrorCode.NOT_YET, "its hidden rows are being read")

    with monkeypatch.context() as patched:
        patched.setattr(Companions, "check_readable", refuse)
        broker.publish("s.0", b"x")  # the tail cannot be read: it is asked again after a pause
    broker.delete("s")
    broker.create("s")
    broker.consumer("s", "c", deliver_subject="got", flow_control=True, idle_heartbeat=5 * S)
    broker.tick(1)
    got = 0
    for _ in range(30):
        broker.publish("s.0", b"v" * 100_000)
        for one in broker.delivered("got"):
            got += bool(one.stream_seq)
            if one.status.startswith("100 FlowControl"):
                broker.flow(one.reply)
    assert got == 30


def test_answers_to_acks_that_cannot_be_stored_yet_are_bounded() -> None:
    broker = ReaderBroker().start()
    broker.create("s")
    broker.durable("s", "d")
    broker.publish("s.a", b"1")
    (first,) = broker.pulled("s", "d")
    broker.tick(100)
    broker.disk_runs_at_once = False
    count = 2 * ANSWERS_BYTES_MAX // 1_000
    for number in range(count):
        broker.ack(first, b"", reply=f"_INBOX.{number:0993}")
    broker.settle()
    answered = [reply for reply in broker.answers if reply.startswith("_INBOX.000")]
    assert len(answered) == pytest.approx(count / 2, abs=3)
    assert answered[0] == f"_INBOX.{0:0993}"
    broker.ack(first, b"", reply="_INBOX.again")
    assert "_INBOX.again" in broker.answers


def test_statuses_behind_deliveries_that_cannot_be_stored_are_bounded() -> None:
    broker = ReaderBroker().start()
    broker.create("s")
    broker.durable("s", "d", max_deliver=5, max_waiting=1_000)
    broker.publish("s.a", b"1")
    broker.tick(100)
    broker.disk_runs_at_once = False
    ends = 0
    inbox = "_INBOX." + 500 * "x"
    request = json.dumps({"batch": 1, "expires": 1_000_000_000, "idle_heartbeat": 100_000_000})
    for _ in range(12):
        for number in range(200):
            broker.send("CONSUMER.MSG.NEXT.s.d", request, f"{inbox}{number}")
        for _ in range(10):
            broker.tick(105)
        ends += 200
    broker.settle()
    frames = b"".join(broker.leaf.frames)
    assert ends == 2_400
    assert frames.count(b"Idle Heartbeat") > 100
    assert len(frames) < HELD_BYTES_MAX + 100_000
