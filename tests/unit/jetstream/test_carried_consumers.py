"""Consumers that are exported, and restored at another stream with the same messages."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import msgspec
import pytest

from penstock.access import Operation, Rule
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.consumers.config import AckConfig
from penstock.consumers.rows import encode_config, encode_snapshot
from penstock.consumers.state import CARRIED_CLOCK_MS_MAX, CARRIED_NUMBER_MAX
from penstock.hot.pending import PendingTable
from penstock.jetstream.readers.requests import transfers
from penstock.messages import AskConsumersResponse, ExportedConsumer
from penstock.node.security.access import consumer_group
from tests.unit.jetstream.readers.gateways import Delivered, ReaderBroker
from tests.unit.jetstream.test_consumer_requests import READ, guarded, request
from tests.unit.node.harness import Broker
from tests.unit.node.security.test_access import asking

S = 1_000_000_000  # ns


@pytest.fixture
def broker() -> ReaderBroker:
    """Two streams with the same five messages."""
    broker = ReaderBroker().start()
    for stream in ("s", "t"):
        broker.create(stream)
        for number in range(5):
            broker.publish(f"{stream}.a", b"%d" % number)
    broker.tick(1)
    return broker


def asked(broker: ReaderBroker, operation: str, consumer: str, raw: bytes = b"", **fields: Any) -> Any:
    caller = broker.request(request(broker, operation, consumer, **fields), raw)
    for _ in range(100):
        if caller in broker.replies:
            break
        broker.tick(50)
    broker.answer(caller, AskConsumersResponse)
    return json.loads(bytes(broker.payloads[caller]))[0]


def refusal(broker: ReaderBroker, consumer: str, raw: bytes = b"", **fields: Any) -> RemoteError:
    caller = broker.request(request(broker, "restore", consumer, **fields), raw)
    for _ in range(100):
        if caller in broker.replies:
            break
        broker.tick(50)
    found = broker.replies[caller].response
    assert isinstance(found, RemoteError)
    return found


def exported(broker: Broker, consumer: str = "d", stream: str = "s") -> ExportedConsumer:
    assert isinstance(broker, ReaderBroker)
    return msgspec.convert(asked(broker, "export", consumer, stream=stream), ExportedConsumer)


def restore(broker: ReaderBroker, one: ExportedConsumer, stream: str = "t") -> dict[str, Any]:
    found: dict[str, Any] = asked(
        broker, "restore", one.name, one.state, stream=stream, config=one.config, since=one.since
    )
    return found


def seen(messages: list[Delivered]) -> list[tuple[int, int]]:
    """Sequences and deliveries."""
    return [(one.stream_seq, one.deliveries) for one in messages if one.stream_seq]


def counts(broker: ReaderBroker, stream: str) -> tuple[Any, ...]:
    told = broker.api(f"CONSUMER.INFO.{stream}.d")
    places = [told[part][of] for part in ("delivered", "ack_floor") for of in ("consumer_seq", "stream_seq")]
    return (*places, told["num_ack_pending"], told["num_redelivered"], told["num_pending"])


def test_a_restored_consumer_goes_on_where_the_other_was(broker: ReaderBroker) -> None:
    broker.durable("s", "d", ack_wait=2 * S)
    first, second, _ = broker.pulled("s", "d", 3)
    broker.ack(first)
    broker.ack(second, b"-NAK")
    assert seen(broker.pulled("s", "d", 1)) == [(2, 2)]
    one = exported(broker)
    assert (one.name, one.next_offset, one.ack_pending, one.deliveries) == ("d", 3, 2, 4)
    told = restore(broker, one)
    assert (told["stream_name"], told["config"]["ack_wait"]) == ("t", 2 * S)
    assert counts(broker, "t") == counts(broker, "s") == (4, 3, 1, 1, 2, 1, 2)
    # What is in hand comes again in its time, with the next count; nothing that was acked does.
    assert seen(broker.pulled("t", "d", 1)) == [(4, 1)]
    broker.tick(2_100)
    assert seen(broker.pulled("t", "d", 9)) == [(2, 3), (3, 2), (4, 2), (5, 1)]


def test_an_ack_of_the_other_consumers_delivery_changes_nothing(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    (first,) = broker.pulled("s", "d", 1)
    restore(broker, exported(broker))
    broker.ack(first._replace(reply=first.reply.replace("$JS.ACK.s.", "$JS.ACK.t.")))
    assert counts(broker, "t")[4] == 1


def test_max_deliver_counts_what_was_delivered_before(broker: ReaderBroker) -> None:
    broker.durable("s", "d", ack_wait=S, max_deliver=2)
    for _ in range(2):
        assert len(broker.pulled("s", "d", 1)) == 1
        broker.tick(1_100)
    restore(broker, exported(broker))
    assert seen(broker.pulled("t", "d", 9))[:1] == [(2, 1)]


def test_a_repeated_restore_changes_nothing(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    broker.pulled("s", "d", 2)
    one = exported(broker)
    restore(broker, one)
    for message in broker.pulled("t", "d", 2):
        broker.ack(message)
    before = counts(broker, "t")
    restore(broker, one)
    assert counts(broker, "t") == before
    other = {**one.config, "description": "another"}
    assert refusal(broker, "d", one.state, stream="t", config=other).code == ErrorCode.CONSUMER_EXISTS


def test_a_restored_consumer_is_stored(broker: ReaderBroker) -> None:
    broker.durable("s", "d", ack_wait=60 * S)
    (first, _) = broker.pulled("s", "d", 2)
    broker.ack(first)
    restore(broker, exported(broker))
    before = counts(broker, "t")
    again = ReaderBroker(memory=broker.memory).start()
    assert counts(again, "t") == before


def test_one_without_a_state_begins_at_its_place(broker: ReaderBroker) -> None:
    config = {"durable_name": "d", "ack_policy": "explicit"}
    asked(broker, "restore", "d", stream="t", config=config, next_offset=3, deliveries=7)
    assert counts(broker, "t") == (7, 3, 7, 3, 0, 0, 2)
    asked(broker, "restore", "e", stream="t", config={**config, "durable_name": "e"}, next_offset=1_000)
    told = broker.api("CONSUMER.INFO.t.e")
    assert (told["ack_floor"]["stream_seq"], told["num_pending"]) == (5, 0)


def test_positions_beyond_the_end_go_back_to_it(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    assert len(broker.pulled("s", "d", 5)) == 5
    broker.create("short")
    broker.publish("short.a", b"0", b"1")
    broker.tick(1)
    told = restore(broker, exported(broker), "short")
    assert (told["delivered"]["stream_seq"], told["num_ack_pending"]) == (2, 2)


def test_a_state_that_is_none_is_refused(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    broker.pulled("s", "d", 5)
    one = exported(broker)
    for raw in (b"\0", one.state[:-1], one.state + b"x", b"\xff" * 40):
        assert refusal(broker, "d", raw, stream="t", config=one.config).code == ErrorCode.BAD_REQUEST
    large = bytes(limits.CONSUMER_ROW_BYTES_MAX + 1)
    assert refusal(broker, "d", large, stream="t", config=one.config).code == ErrorCode.TOO_LARGE
    assert broker.api("CONSUMER.NAMES.t")["consumers"] == []


def test_numbers_that_would_outgrow_a_row_are_refused(broker: ReaderBroker) -> None:
    """A row with a number that no reader takes would damage the log of all consumers of the stream."""
    broker.durable("s", "d")
    config = exported(broker).config
    error = refusal(broker, "d", stream="t", config=config, deliveries=CARRIED_NUMBER_MAX + 1)
    assert error.code == ErrorCode.BAD_REQUEST
    for delivered, generation, clock_ms in (
        (CARRIED_NUMBER_MAX + 1, 0, 0),
        (0, CARRIED_NUMBER_MAX + 1, 0),
        (0, 0, CARRIED_CLOCK_MS_MAX + 1),
    ):
        table = PendingTable(bytes(8), 0, 0, clock_ms)
        table.keep_generation(generation)
        table.delivered = delivered
        raw = encode_snapshot(encode_config(AckConfig()), 0, table)
        error = refusal(broker, "d", raw, stream="t", config=config)
        assert (error.code, "larger than any that was counted" in error.message) == (ErrorCode.BAD_REQUEST, True)
    assert broker.api("CONSUMER.NAMES.t")["consumers"] == []


def test_a_consumer_that_is_not_stored_is_not_exported(broker: ReaderBroker) -> None:
    broker.consumer("s", "c", inactive_threshold=60 * S)
    error = broker.refusal(request(broker, "export", "c", stream="s"))
    assert error.code == ErrorCode.BAD_REQUEST
    assert "not durable" in error.message
    assert broker.refusal(request(broker, "export", "x", stream="s")).code == ErrorCode.CONSUMER_NOT_FOUND


def test_the_operations_are_none_of_jetstreams_api(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    for operation in ("EXPORT", "RESTORE"):
        inbox = broker.send(f"CONSUMER.{operation}.s.d", b"{}")
        assert b'"error"' in broker.answers.get(inbox, b'"error"')
    assert broker.api("CONSUMER.NAMES.t")["consumers"] == []


def test_only_an_administrator_restores_a_push_consumer() -> None:
    broker = guarded(READ, Rule(Operation.COMMIT_OFFSETS, stream="orders", group="*"))
    push = {"durable_name": "p", "ack_policy": "explicit", "deliver_subject": "inbox.p"}
    with asking(broker, "bob"):
        assert refusal(broker, "p", config=push).code == ErrorCode.NOT_AUTHORIZED
    with asking(broker, "ann"):
        told = asked(broker, "restore", "p", config=push)
        assert told["config"]["deliver_subject"] == "inbox.p"


def test_who_may_see_a_consumer_may_export_it_and_needs_more_to_restore_it() -> None:
    broker = guarded(READ)
    config = {"durable_name": "d", "ack_policy": "explicit"}
    with asking(broker, "ann"):
        asked(broker, "restore", "d", config=config)
    with asking(broker, "bob"):
        assert b64decode(asked(broker, "export", "d")["state"])
        assert refusal(broker, "e", config={**config, "durable_name": "e"}).code == ErrorCode.NOT_AUTHORIZED


def exports(broker: ReaderBroker, after: str = "", stream: str = "s") -> tuple[list[str], str | None]:
    """The names of a page, and behind which name the next one begins."""
    caller = broker.request(request(broker, "export_all", after, stream=stream))
    answer = broker.answer(caller, AskConsumersResponse)
    found = msgspec.json.decode(bytes(broker.payloads[caller]), type=list[ExportedConsumer])
    return [one.name for one in found], answer.after_next


def test_all_are_exported_in_pages_that_deletions_do_not_move(
    broker: ReaderBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "INFOS_PER_ANSWER", 2)
    for name in "abcde":
        broker.durable("s", name)
    broker.consumer("s", "f")
    assert exports(broker) == (["a", "b"], "b")
    broker.api("CONSUMER.DELETE.s.a")
    broker.api("CONSUMER.DELETE.s.b")
    assert exports(broker, "b") == (["c", "d"], "d")
    assert exports(broker, "d") == (["e", "f"], None)
    assert exports(broker, "f") == ([], None)
    broker.pulled("s", "c", 2)
    (one,) = (one for one in all_of(broker) if one.name == "c")
    assert one == exported(broker, "c")
    monkeypatch.setattr(transfers, "EXPORTS_BYTES_MAX", 1)
    assert exports(broker) == (["c"], "c")


def test_a_page_names_no_consumer_that_the_caller_may_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [Rule(Operation.COMMIT_OFFSETS, stream="orders", group=consumer_group(name)) for name in "be"]
    broker = guarded(*own)
    for name in "abcdefg":
        broker.durable("orders", name)
    monkeypatch.setattr(transfers, "INFOS_PER_ANSWER", 2)
    found, after, asked_after = [], "", []
    with asking(broker, "bob"):
        while after is not None:
            asked_after.append(after)
            found_now, after = exports(broker, after, "orders")
            found += found_now
    assert (found, asked_after) == (["b", "e"], ["", "b", "e"])


def all_of(broker: ReaderBroker) -> list[ExportedConsumer]:
    caller = broker.request(request(broker, "export_all", "b", stream="s"))
    broker.answer(caller, AskConsumersResponse)
    return msgspec.json.decode(bytes(broker.payloads[caller]), type=list[ExportedConsumer])
