"""Floods of API requests: they wait in a queue, are served in slices, and are refused beyond it."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.jetstream import api_queue, gateway, lookups
from penstock.jetstream.api_call import ApiCall
from penstock.jetstream.api_queue import ApiQueue
from penstock.jetstream.ownership import WATCH_US
from tests.groups import group_of
from tests.unit.jetstream.test_lookups import GatewayBroker, with_messages

INFO = b"$JS.API.STREAM.INFO.orders"
GET = b"$JS.API.DIRECT.GET.orders.orders.1"


def read(broker: GatewayBroker, *subjects: bytes) -> None:
    """One read of the connection with these requests."""
    calls = [(subject, b"reply.%d" % number, None, b"") for number, subject in enumerate(subjects)]
    broker.gateway.messages_received(group_of(calls), broker.clock.now)  # type: ignore[arg-type]


def served(broker: GatewayBroker) -> int:
    """Carry out what was decided; return the number of answers since the last call."""
    broker.turn()
    count = len(broker.got)
    broker.got.clear()
    return count


def test_a_flood_is_served_in_slices() -> None:
    broker = with_messages()
    read(broker, *[INFO] * 100)
    first = -(-gateway.SLICE_US // gateway._CALL_US)
    assert served(broker) == first
    assert broker.gateway.has_next_turn
    turns = 0
    while broker.gateway.has_next_turn:
        broker.gateway.turn(broker.clock.now)
        assert 0 < served(broker) <= first
        turns += 1
    assert turns == -(-(100 - first) // first)


def test_gets_that_are_certain_in_memory_are_served_by_the_thousand() -> None:
    broker = with_messages()
    read(broker, GET)
    assert served(broker) == 1  # now it is kept
    before = broker.gateway.requests["DIRECT.GET"]
    read(broker, *[GET] * 2_500)
    assert served(broker) == api_queue.ROWS_AT_ONCE
    for left in (api_queue.ROWS_AT_ONCE, 2_500 - 2 * api_queue.ROWS_AT_ONCE):
        broker.gateway.turn(broker.clock.now)
        assert served(broker) == left
    assert not broker.gateway.has_next_turn
    assert broker.gateway.requests["DIRECT.GET"] == before + 2_500


def test_what_has_waited_for_too_long_is_refused_so_that_the_next_ones_are_answered_in_time() -> None:
    broker = with_messages()
    pull = b"$JS.API.CONSUMER.MSG.NEXT.orders.none"  # its client waits for as long as it says
    read(broker, *[INFO] * 50, pull)
    first = served(broker)
    broker.clock.advance_ms(gateway.QUEUED_US_MAX / 1_000)
    broker.gateway.turn(broker.clock.now)
    on_time = first + served(broker)
    broker.clock.advance_ms(1)
    while broker.gateway.has_next_turn:
        broker.gateway.turn(broker.clock.now)
    broker.turn()
    refusals = [json.loads(body)["error"] for reply, body in broker.got if reply != "reply.50"]
    assert len(refusals) == 50 - on_time
    assert {(one["code"], one["err_code"]) for one in refusals} == {(503, 10008)}
    assert broker.gateway.errors["STREAM.INFO", 10008] == len(refusals)
    assert b"too many requests" not in dict(broker.got).get("reply.50", b"")
    read(broker, INFO)
    broker.got.clear()
    broker.turn()
    assert "error" not in json.loads(dict(broker.got)["reply.0"])


def test_what_does_not_fit_is_refused_at_once_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_queue, "API_QUEUE_MAX", 40)
    broker = with_messages()
    read(broker, *[INFO] * 38, b"$JS.API.DIRECT.GET.orders", GET, INFO, GET)
    broker.turn()
    answers = dict(broker.got)
    error = json.loads(answers["reply.40"])["error"]
    assert (error["code"], error["err_code"]) == (503, 10008)
    assert "too many requests at once" in error["description"]
    assert answers["reply.41"].startswith(b"NATS/1.0 503 too many requests at once")
    assert broker.gateway.errors.total() == 2
    while broker.gateway.has_next_turn:
        broker.gateway.turn(broker.clock.now)
    broker.turn()
    assert len(broker.got) == 42
    assert json.loads(dict(broker.got)["reply.0"])["config"]["name"] == "orders"


def test_a_full_queue_does_not_look_like_another_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that is refused like other requests would have the broker that sent it withdraw the whole cluster."""
    monkeypatch.setattr(api_queue, "API_QUEUE_MAX", 2)
    broker = with_messages()
    headers = b"NATS/1.0\r\nPenstock-Probe: 1\r\n\r\n"
    flood = [(INFO, b"reply.%d" % number, None, b"") for number in range(4)]
    probes = [(b"$JS.API.INFO", b"_INBOX.probe", headers, b""), (b"$JS.API.INFO", None, headers, b"")]
    broker.gateway.messages_received(group_of([*flood, *probes]), broker.clock.now)
    broker.turn()
    answers = [(reply, payload) for reply, payload in broker.got if reply == "_INBOX.probe"]
    ((_, answer),) = answers
    assert answer.startswith(f"NATS/1.0\r\nPenstock-Cluster: {broker.node.cluster_id}\r\n".encode())
    assert [reply for reply, payload in broker.got if b"too many" in payload] == ["reply.2", "reply.3"]
    assert broker.gateway.errors["", 10008] == 2


def test_a_pull_that_does_not_fit_is_refused_by_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client would take JSON for a message."""
    monkeypatch.setattr(api_queue, "API_QUEUE_MAX", 1)
    broker = with_messages()
    read(broker, INFO, b"$JS.API.CONSUMER.MSG.NEXT.orders.c")
    broker.turn()
    assert dict(broker.got)["reply.1"].startswith(b"NATS/1.0 503 too many requests at once")


def test_answers_are_timed_from_memory_and_from_the_disk() -> None:
    broker = with_messages()
    for _ in range(2):  # the second time it is kept
        read(broker, GET, b"$JS.API.DIRECT.GET.orders.orders.*")
        served(broker)
    calls = [ApiCall(GET.decode(), b"reply", None, b"", 1)]
    broker.gateway.passed_on(msgspec.msgpack.encode(calls), broker.clock.now)
    seconds = broker.gateway.seconds["DIRECT.GET"]
    assert (seconds.count, seconds.sum < 1_000_000) == (5, True)


def test_what_is_no_request_is_heard_when_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers to flow control, and to the broker's own requests."""
    monkeypatch.setattr(api_queue, "API_QUEUE_MAX", 1)
    broker = with_messages()
    broker.others = None
    broker.gateway_tick(WATCH_US / 1_000)
    inboxes = [inbox.encode() for _, inbox in broker.probes[-2:]]
    calls = [(INFO, b"reply", None, b"")] * 2
    broker.gateway.messages_received(
        group_of([*calls, *((one, None, None, b"{}") for one in inboxes)]), broker.clock.now
    )
    broker.turn()
    assert broker.served == []  # another service answers


def test_requests_of_other_brokers_wait_in_the_same_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_queue, "API_QUEUE_MAX", 3)
    queue = ApiQueue()
    four = group_of([(b"x", b"r", None, b"")] * 4)
    assert queue.add(four, 1, 7) == 3
    assert queue.add(four, 0, 8) == 0
    assert queue.take_rows() == (four, 0, 3, 1, 7)


def test_gets_that_were_passed_on_are_answered_from_memory_too() -> None:
    broker = with_messages()
    read(broker, GET)
    served(broker)
    calls = [ApiCall(GET.decode(), b"reply.%d" % number, None, b"", 1) for number in range(50)]
    before = broker.gateway.requests.total()
    broker.gateway.passed_on(msgspec.msgpack.encode(calls), broker.clock.now)
    broker.turn()
    assert broker.writes == 2  # one for each read
    assert served(broker) == 50
    assert broker.gateway.requests.total() == before  # counted where they came in


def test_a_queue_is_bounded_in_bytes_but_takes_any_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_queue, "API_QUEUE_BYTES_MAX", 100)
    queue = ApiQueue()
    large = group_of([(b"x", b"r", None, b"v" * 200)] * 2)
    assert queue.add(large, 0, 7) == 2
    assert queue.add(large, 0, 8) == 0
    assert queue.take_rows() == (large, 0, 2, 0, 7)
    assert not queue
    assert queue.add(large, 0, 9) == 2


def test_the_rows_of_a_read_are_taken_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_queue, "ROWS_AT_ONCE", 2)
    queue = ApiQueue()
    one, other = group_of([(b"a", b"r", None, b"")] * 3), group_of([(b"b", b"r", None, b"")])
    queue.add(one, 0, 7)
    queue.add(other, 0, 8)
    taken = [(one, 0, 2, 0, 7), (one, 2, 3, 0, 7), (other, 0, 1, 0, 8), None]
    assert [queue.take_rows() for _ in range(4)] == taken


def test_gets_that_wait_for_the_node_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "GETS_ASKED_MAX", 500)
    broker = with_messages()
    read(broker, *[b"$JS.API.DIRECT.GET.orders.orders.other%d" % number for number in range(1_000)])
    broker.turn()
    codes = [payload[9:12] for _, payload in broker.got]
    assert sorted(set(codes)) == [b"404", b"503"]
    assert codes.count(b"404") == lookups.GETS_MAX + 1_000 % lookups.GETS_MAX  # the last ones fit again
    assert len(codes) == 1_000
    broker.got.clear()
    read(broker, GET)  # and then there is room again
    assert served(broker) == 1
