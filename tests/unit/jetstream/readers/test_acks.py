"""Consumers with acks: deliveries, acks, and messages that come again."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.base.ids import PartitionId, PartitionKey
from penstock.consumers.config import AckConfig
from penstock.consumers.state import ConsumerState
from penstock.hot import pending
from penstock.jetstream.readers.stored.acks import DELAY_US_MAX, parsed_ack
from penstock.metadata.companions import consumers_key
from tests.unit.jetstream.readers.gateways import Delivered, ReaderBroker

MS = 1_000_000  # ns
S = 1_000 * MS


@pytest.fixture
def broker() -> ReaderBroker:
    broker = ReaderBroker().start()
    broker.create("s")
    return broker


def publish(broker: ReaderBroker, *values: bytes) -> None:
    for value in values:
        broker.publish("s.a", value)
    broker.tick(1)


def values(messages: list[Delivered]) -> list[bytes]:
    return [one.value for one in messages if one.stream_seq]


def info(broker: ReaderBroker, name: str = "d") -> tuple[int, int, int, int, int, int, int]:
    """Return delivered and floor (consumer, stream), in hand, redelivered, pending."""
    told = broker.api(f"CONSUMER.INFO.s.{name}")
    sequences = [told[part][of] for part in ("delivered", "ack_floor") for of in ("consumer_seq", "stream_seq")]
    first, second, third, fourth = sequences
    return first, second, third, fourth, told["num_ack_pending"], told["num_redelivered"], told["num_pending"]


def test_a_durable_consumer_tells_its_config_and_state(broker: ReaderBroker) -> None:
    made = broker.durable("s", "d")
    assert "error" not in made, made
    config = made["config"]
    assert (config["durable_name"], config["ack_policy"], config["ack_wait"]) == ("d", "explicit", 30 * S)
    assert (config["max_ack_pending"], config["max_deliver"]) == (1_000, -1)
    assert "inactive_threshold" not in config
    assert info(broker) == (0, 0, 0, 0, 0, 0, 0)
    assert broker.api("CONSUMER.NAMES.s")["consumers"] == ["d"]


def test_an_acked_message_does_not_come_again(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    publish(broker, b"1", b"2", b"3")
    first, second = broker.pulled("s", "d", 2)
    assert (first.stream_seq, first.consumer_seq, first.deliveries, first.pending) == (1, 1, 1, 2)
    assert info(broker) == (2, 2, 0, 0, 2, 0, 1)
    broker.ack(second)
    assert info(broker) == (2, 2, 0, 0, 1, 0, 1)
    broker.ack(first, b"+ACK")
    assert info(broker) == (2, 2, 2, 2, 0, 0, 1)
    broker.tick(31_000)
    assert values(broker.pulled("s", "d", 5)) == [b"3"]


def test_a_message_without_an_ack_comes_again_before_new_ones(broker: ReaderBroker) -> None:
    broker.durable("s", "d", ack_wait=2 * S)
    publish(broker, b"1", b"2")
    broker.pulled("s", "d", 1)
    broker.tick(1_900)
    assert values(broker.pulled("s", "d", 1)) == [b"2"]
    broker.tick(200)
    publish(broker, b"3")
    (again, new, *_) = broker.pulled("s", "d", 5)
    assert (again.value, again.deliveries, again.consumer_seq, again.stream_seq) == (b"1", 2, 3, 1)
    assert (new.value, new.deliveries) == (b"3", 1)
    assert info(broker)[4:] == (3, 1, 0)


def test_a_waiting_request_gets_a_message_that_is_due(broker: ReaderBroker) -> None:
    broker.durable("s", "d", ack_wait=2 * S)
    publish(broker, b"1")
    broker.pulled("s", "d", 1)
    inbox = broker.send("CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": 1, "expires": 30 * S}))
    assert broker.delivered(inbox) == []
    broker.tick(2_100)
    assert values(broker.delivered(inbox)) == [b"1"]


def test_a_client_says_when_a_message_is_to_come_again(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    publish(broker, b"1")
    (first, *_) = broker.pulled("s", "d")
    broker.ack(first, b"-NAK")
    (second, *_) = broker.pulled("s", "d")
    assert (second.value, second.deliveries) == (b"1", 2)
    broker.ack(second, b'-NAK {"delay": 5000000000}')
    assert values(broker.pulled("s", "d")) == []
    broker.tick(4_900)
    assert values(broker.pulled("s", "d")) == []
    broker.tick(200)
    (third, *_) = broker.pulled("s", "d")
    assert third.deliveries == 3
    broker.tick(29_000)
    broker.ack(third, b"+WPI")
    broker.tick(29_000)
    assert values(broker.pulled("s", "d")) == []
    broker.ack(third, b"+TERM broken")
    broker.tick(60_000)
    assert values(broker.pulled("s", "d")) == []
    assert info(broker)[:5] == (3, 1, 3, 1, 0)


def test_a_double_ack_is_answered_once_it_is_committed(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    publish(broker, b"1")
    (first, *_) = broker.pulled("s", "d")
    broker.ack(first, b"", reply="_INBOX.ack")
    assert broker.answers["_INBOX.ack"] == b""


def test_a_forged_ack_changes_nothing_and_gets_no_answer(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    publish(broker, b"1")
    (first, *_) = broker.pulled("s", "d")
    head, _, pending = first.reply.rpartition(".")
    forged = f"{head[:-3]}{(int(head[-3:]) + 1) % 1_000:03}.{pending}"
    broker.ack(first._replace(reply=forged), b"", reply="_INBOX.ack")
    broker.ack(first._replace(reply=first.reply.replace(".s.d.", ".s.other.")), b"", reply="_INBOX.ack")
    assert "_INBOX.ack" not in broker.answers
    assert info(broker)[4] == 1


def test_an_ack_with_the_next_request(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    publish(broker, b"1", b"2", b"3")
    (first, *_) = broker.pulled("s", "d")
    broker.ack(first, b'+NXT {"batch": 2}', reply="_INBOX.next")
    assert values(broker.delivered("_INBOX.next")) == [b"2", b"3"]
    assert info(broker)[4] == 2


def test_max_deliver_is_kept_and_told(broker: ReaderBroker) -> None:
    broker.durable("s", "d", max_deliver=2, ack_wait=1 * S)
    publish(broker, b"1")
    for count in (1, 2):
        (one, *_) = broker.pulled("s", "d")
        assert one.deliveries == count
        broker.tick(1_100)
    assert values(broker.pulled("s", "d")) == []
    assert info(broker)[:5] == (2, 1, 2, 1, 0)
    told = json.loads(broker.answers["$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.s.d"])
    assert (told["type"], told["stream_seq"], told["deliveries"]) == ("io.nats.jetstream.advisory.v1.max_deliver", 1, 2)


def test_backoff_is_the_wait_of_each_delivery(broker: ReaderBroker) -> None:
    broker.durable("s", "d", backoff=[1 * S, 3 * S], max_deliver=5)
    publish(broker, b"1")
    broker.pulled("s", "d")
    broker.tick(1_100)
    assert values(broker.pulled("s", "d")) == [b"1"]
    broker.tick(2_800)
    assert values(broker.pulled("s", "d")) == []
    broker.tick(300)
    assert values(broker.pulled("s", "d")) == [b"1"]


def test_max_ack_pending_stops_until_an_ack_comes(broker: ReaderBroker) -> None:
    broker.durable("s", "d", max_ack_pending=2)
    publish(broker, b"1", b"2", b"3")
    inbox = broker.send("CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": 3, "expires": 30 * S}))
    first, second = broker.delivered(inbox)
    broker.tick(100)
    assert broker.delivered(inbox) == []
    broker.ack(second)
    assert values(broker.delivered(inbox)) == [b"3"]
    assert first.value == b"1"


def test_a_request_that_does_not_wait_ends_while_acks_are_missing(broker: ReaderBroker) -> None:
    broker.durable("s", "d", max_ack_pending=1)
    publish(broker, b"1", b"2")
    request = json.dumps({"batch": 5, "no_wait": True, "expires": 2 * S, "idle_heartbeat": S // 10})
    inbox = broker.send("CONSUMER.MSG.NEXT.s.d", request)
    (first,) = broker.delivered(inbox)
    broker.tick(150)
    assert [one.status for one in broker.delivered(inbox)] == ["404 No Messages"]
    broker.ack(first)
    assert broker.delivered() == []
    assert info(broker)[4:] == (0, 0, 1)


def test_an_ack_of_all(broker: ReaderBroker) -> None:
    broker.durable("s", "d", ack_policy="all")
    publish(broker, b"1", b"2", b"3")
    _, second, _ = broker.pulled("s", "d", 3)
    broker.ack(second)
    assert info(broker)[:5] == (3, 3, 2, 2, 1)


def test_a_durable_consumer_without_acks_goes_on_where_it_was(broker: ReaderBroker) -> None:
    broker.durable("s", "d", ack_policy="none")
    publish(broker, b"1", b"2", b"3")
    assert values(broker.pulled("s", "d", 2)) == [b"1", b"2"]
    assert info(broker)[:5] == (2, 2, 2, 2, 0)


def test_push_with_acks(broker: ReaderBroker) -> None:
    broker.durable("s", "d", deliver_subject="inbox", deliver_group="g", ack_wait=2 * S)
    publish(broker, b"1", b"2")
    first, second = broker.delivered("inbox")
    assert (first.value, first.group) == (b"1", "g")
    broker.ack(first)
    broker.tick(2_100)
    (again,) = broker.delivered("inbox")
    assert (again.value, again.deliveries) == (b"2", 2)
    broker.ack(second, b"+ACK")  # late: the work is done
    assert info(broker)[:5] == (3, 2, 3, 2, 0)


def test_messages_that_are_gone_leave_the_table(broker: ReaderBroker) -> None:
    broker.durable("s", "d", ack_wait=1 * S)
    publish(broker, b"1", b"2", b"3")
    broker.pulled("s", "d", 3)
    assert "error" not in broker.api("STREAM.MSG.DELETE.s", {"seq": 2})
    assert info(broker)[4] == 2
    assert "error" not in broker.api("STREAM.PURGE.s", {"seq": 2})
    assert info(broker)[4] == 1
    broker.tick(1_100)
    assert values(broker.pulled("s", "d", 3)) == [b"3"]
    assert "error" not in broker.api("STREAM.PURGE.s")
    broker.tick(1_100)
    assert info(broker)[4] == 0
    publish(broker, b"4")
    assert values(broker.pulled("s", "d", 3)) == [b"4"]


def test_a_consumer_is_there_again_after_a_crash(broker: ReaderBroker) -> None:
    broker.durable("s", "d", ack_wait=5 * S, description="mine")
    publish(broker, b"1", b"2", b"3")
    first, *_ = broker.pulled("s", "d", 2)
    broker.ack(first, b"", reply="_INBOX.ack")
    broker.tick(100)
    after = broker.crash()
    after.start()
    after.tick(100)
    told = after.api("CONSUMER.INFO.s.d")
    assert told["config"]["description"] == "mine"
    assert info(after) == (2, 2, 1, 1, 1, 0, 1)
    assert values(after.pulled("s", "d", 5)) == [b"3"]
    after.tick(5_100)
    (again, *_) = after.pulled("s", "d", 5)
    assert (again.value, again.deliveries) == (b"2", 2)


def test_a_deleted_consumer_is_gone_also_after_a_crash(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    broker.durable("s", "e")
    assert broker.api("CONSUMER.DELETE.s.d")["success"]
    after = broker.crash()
    after.start()
    after.tick(100)
    assert after.api("CONSUMER.NAMES.s")["consumers"] == ["e"]


def test_update_pause_and_reset(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    publish(broker, b"1", b"2")
    broker.pulled("s", "d", 2)
    assert broker.durable("s", "d", max_ack_pending=7)["config"]["max_ack_pending"] == 7
    assert broker.durable("s", "d", ack_policy="all")["error"]["err_code"] == 10012
    reset = broker.api("CONSUMER.RESET.s.d", {"seq": 1})
    assert "error" not in reset, reset
    assert (reset["num_ack_pending"], reset["num_pending"]) == (0, 2)
    (first, *_) = broker.pulled("s", "d", 2)
    assert (first.stream_seq, first.consumer_seq, first.deliveries) == (1, 1, 1)
    assert broker.api("CONSUMER.PAUSE.s.d", {"pause_until": "2099-01-01T00:00:00Z"})["paused"]
    after = broker.crash()
    after.start()
    after.tick(100)
    assert after.api("CONSUMER.INFO.s.d")["paused"]
    assert after.api("CONSUMER.INFO.s.d")["config"]["max_ack_pending"] == 7


@pytest.mark.parametrize("payload", [b"+NAK", b"\xff" * 50, b"-NAK {", b"-NAK xyz", b"+TERM\xff", b'-NAK {"delay":-5}'])
def test_hostile_acks_do_no_harm(broker: ReaderBroker, payload: bytes) -> None:
    broker.durable("s", "d")
    publish(broker, b"1")
    (one, *_) = broker.pulled("s", "d")
    for reply in (
        one.reply,
        "$JS.ACK.s.d",
        "$JS.ACK.s.d.1.2.3",
        "$JS.ACK.s.d.x.y.z.a.b",
        f"{one.reply}.7",
        "$JS.ACK.s.",
    ):
        broker.deliver([(reply.encode(), None, None, payload)])
        broker.deliver([(reply.encode(), b"_INBOX.ack", None, payload)])
    assert broker.api("CONSUMER.INFO.s.d")["name"] == "d"


def of_group(broker: ReaderBroker, **more: Any) -> list[Delivered]:
    return broker.pulled("s", "d", group="g", **more)


def test_overflow_only_lets_requests_out_beyond_their_limit(broker: ReaderBroker) -> None:
    broker.durable("s", "d", priority_policy="overflow", priority_groups=["g"])
    publish(broker, b"1")
    inbox = broker.send(
        "CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": 5, "expires": 30 * S, "group": "g", "min_pending": 3})
    )
    assert values(broker.delivered(inbox)) == []
    publish(broker, b"2", b"3")
    assert values(broker.delivered(inbox))[:1] == [b"1"]


def test_overflow_looks_at_its_limit_before_each_message(broker: ReaderBroker) -> None:
    broker.durable("s", "d", priority_policy="overflow", priority_groups=["g"])
    broker.publish("s.a", b"1", b"2", b"3", b"4", b"5")
    broker.tick(1)
    assert values(overflow(broker, min_pending=3)) == [b"1", b"2", b"3"]
    broker.tick(2_000)
    assert values(overflow(broker, min_pending=3)) == []
    broker.tick(2_000)
    assert values(overflow(broker, min_pending=3, min_ack_pending=3)) == [b"4", b"5"]


def test_overflow_counts_messages_that_come_again(broker: ReaderBroker) -> None:
    broker.durable("s", "d", priority_policy="overflow", priority_groups=["g"])
    broker.publish("s.a", b"1", b"2")
    broker.tick(1)
    for one in of_group(broker, batch=2):
        broker.ack(one, b"-NAK")
    broker.publish("s.a", b"3", b"4")
    broker.tick(1)
    assert values(overflow(broker, min_pending=2)) == [b"1", b"2", b"3"]


def overflow(broker: ReaderBroker, **limits: int) -> list[Delivered]:
    """What a request for more than there is gets at once."""
    request = json.dumps({"batch": 9, "expires": S, "group": "g", **limits})
    return broker.delivered(broker.send("CONSUMER.MSG.NEXT.s.d", request))


def test_the_least_priority_comes_first(broker: ReaderBroker) -> None:
    broker.durable("s", "d", priority_policy="prioritized", priority_groups=["g"])
    low = json.dumps({"batch": 1, "expires": 30 * S, "group": "g", "priority": 2})
    high = json.dumps({"batch": 1, "expires": 30 * S, "group": "g", "priority": 1})
    later, sooner = broker.send("CONSUMER.MSG.NEXT.s.d", low), broker.send("CONSUMER.MSG.NEXT.s.d", high)
    publish(broker, b"1")
    assert [one.inbox for one in broker.delivered()] == [sooner]
    publish(broker, b"2")
    assert [one.inbox for one in broker.delivered()] == [later]


def test_one_client_is_pinned(broker: ReaderBroker) -> None:
    broker.durable("s", "d", priority_policy="pinned_client", priority_groups=["g"], priority_timeout=5 * S)
    publish(broker, b"1", b"2", b"3")
    (first, *_) = of_group(broker)
    pin = first.headers.decode().partition("Nats-Pin-Id: ")[2].split("\r\n")[0]
    assert pin
    assert broker.api("CONSUMER.INFO.s.d")["priority_groups"][0]["pinned_client_id"] == pin
    assert values(of_group(broker, expires=1 * S)) == []
    assert values(of_group(broker, id=pin)) == [b"2"]
    assert of_group(broker, id="other")[0].status == "423 Nats-Pin-Id mismatch"
    broker.tick(1_100)
    assert broker.api("CONSUMER.UNPIN.s.d", {"group": "g"}).get("error") is None
    assert values(of_group(broker)) == [b"3"]
    assert broker.api("CONSUMER.UNPIN.s.d", {"group": "x"})["error"]["err_code"] == 10160


def waiting(broker: ReaderBroker) -> str:
    """Return the inbox of a request of the group that waits."""
    return broker.send("CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": 5, "expires": 30 * S, "group": "g"}))


def test_a_pin_that_ran_out_goes_to_the_request_that_waits(broker: ReaderBroker) -> None:
    broker.durable("s", "d", priority_policy="pinned_client", priority_groups=["g"], priority_timeout=5 * S)
    publish(broker, b"1", b"2")
    assert values(of_group(broker)) == [b"1"]
    inbox = waiting(broker)
    broker.tick(4_900)
    assert values(broker.delivered(inbox)) == []
    broker.tick(200)
    assert values(broker.delivered(inbox)) == [b"2"], "no message had to come before"


def test_the_pin_goes_to_no_request_whose_client_is_gone(broker: ReaderBroker) -> None:
    broker.durable("s", "d", priority_policy="pinned_client", priority_groups=["g"], priority_timeout=50 * S)
    publish(broker, b"1", b"2")
    assert values(of_group(broker)) == [b"1"]
    gone, there = waiting(broker), waiting(broker)
    broker.leaf.deserted.add(gone.encode())
    broker.api("CONSUMER.UNPIN.s.d", {"group": "g"})
    assert [(one.inbox, one.value) for one in broker.delivered() if one.stream_seq] == [(there, b"2")]


def rows_of_consumers(broker: ReaderBroker) -> int:
    key = PartitionKey(broker.node.image.by_name("s").stream_id, PartitionId(0))
    return broker.node._partitions[consumers_key(key)].log.log_end


@pytest.mark.parametrize("is_deleted", [False, True])
def test_clients_that_wait_to_create_the_same_consumer_get_one(broker: ReaderBroker, *, is_deleted: bool) -> None:
    broker.durable("s", "e")
    rows = rows_of_consumers(broker)
    broker.durable("s", "d")
    rows_each = rows_of_consumers(broker) - rows
    rows += rows_each
    if is_deleted:
        broker.disk_runs_at_once = False
        broker.send("CONSUMER.DELETE.s.d")
    else:
        broker.api("CONSUMER.DELETE.s.d")
        broker.leaf.is_up = False
    body = {"stream_name": "s", "config": {"durable_name": "d", "ack_policy": "explicit"}}
    inboxes = [broker.send("CONSUMER.CREATE.s.d", body) for _ in range(3)]
    broker.tick(50)
    broker.leaf.is_up = broker.disk_runs_at_once = True
    for _ in range(100):
        broker.tick(20)
    assert [json.loads(broker.answers[inbox]).get("name") for inbox in inboxes] == ["d"] * 3
    assert rows_of_consumers(broker) == rows + 2 * rows_each, "it was deleted, and made once"


def test_clients_that_create_the_same_consumer_at_once_all_get_it(broker: ReaderBroker) -> None:
    request = json.dumps({"stream_name": "s", "config": {"durable_name": "d", "ack_policy": "explicit"}}).encode()
    inboxes = [f"_INBOX.w{number}" for number in range(5)]
    broker.deliver([(b"$JS.API.CONSUMER.CREATE.s.d", inbox.encode(), None, request) for inbox in inboxes])
    for _ in range(100):
        broker.tick(20)
    answers = [json.loads(broker.answers[inbox]) for inbox in inboxes]
    assert len({one.get("created") for one in answers}) == 1, answers
    assert "error" not in answers[0]


def test_an_ephemeral_consumer_with_acks_ends_when_nobody_asks(broker: ReaderBroker) -> None:
    name = broker.consumer("s", ack_policy="explicit", inactive_threshold=5 * S)["name"]
    broker.tick(4_000)
    broker.pulled("s", name)
    broker.tick(4_000)
    assert broker.api("CONSUMER.NAMES.s")["consumers"] == [name]
    broker.tick(6_100)
    assert broker.api("CONSUMER.NAMES.s")["consumers"] == []
    after = broker.crash()
    after.start()
    after.tick(100)
    assert after.api("CONSUMER.NAMES.s")["consumers"] == []


def test_a_consumer_that_is_deleted_can_be_made_again(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    publish(broker, b"1", b"2")
    first, _ = broker.pulled("s", "d", 2)
    assert broker.api("CONSUMER.DELETE.s.d")["success"]
    assert "error" not in broker.durable("s", "d")
    assert info(broker)[:5] == (0, 0, 0, 0, 0)
    broker.ack(first, b"", reply="_INBOX.ack")  # of the one before
    assert "_INBOX.ack" not in broker.answers
    again, _ = broker.pulled("s", "d", 2)
    assert (again.value, again.deliveries) == (b"1", 1)


def test_a_delivery_is_committed_before_it_is_sent_where_it_is_counted(broker: ReaderBroker) -> None:
    broker.durable("s", "d", max_deliver=3)
    publish(broker, b"1", b"2")
    broker.disk_runs_at_once = False
    inbox = broker.send("CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": 5, "no_wait": True}))
    assert broker.delivered(inbox) == []
    broker.disk_runs_at_once = True
    broker.tick(10)
    first, second, end = broker.delivered(inbox)
    assert (first.value, second.value, end.status) == (b"1", b"2", "404 No Messages")


def test_a_large_message_comes_again_after_a_crash(broker: ReaderBroker) -> None:
    broker.durable("s", "d", ack_wait=1 * S)
    large = b"x" * 900_000
    publish(broker, b"small", large, b"last", b"new")
    assert len(broker.pulled("s", "d", 3)) == 3
    broker.tick(100)
    after = broker.crash()
    after.start()
    after.tick(1_200)
    found = after.pulled("s", "d", 9)
    assert [(len(one.value), one.deliveries, one.pending) for one in found if one.stream_seq] == [
        (5, 2, 1), (900_000, 2, 1), (4, 2, 1), (3, 1, 0),
    ]  # fmt: skip


def advisory(broker: ReaderBroker, kind: str, of: str = "ADVISORY") -> dict[str, Any]:
    """Take what was told of consumer d."""
    found: dict[str, Any] = json.loads(broker.answers.pop(f"$JS.EVENT.{of}.CONSUMER.{kind}.s.d"))
    assert (found["stream"], found["consumer"]) == ("s", "d")
    return found


def test_advisories_say_what_happened(broker: ReaderBroker) -> None:
    broker.durable("s", "d", sample_freq="100%")
    assert advisory(broker, "CREATED")["action"] == "create"
    publish(broker, b"1", b"2")
    first, second = broker.pulled("s", "d", 2)
    broker.ack(first, b"-NAK")
    told = advisory(broker, "MSG_NAKED")
    assert (told["stream_seq"], told["consumer_seq"], told["deliveries"]) == (1, 1, 1)
    (again, *_) = broker.pulled("s", "d", 1)
    broker.ack(again, b"+TERM it is broken")
    told = advisory(broker, "MSG_TERMINATED")
    assert (told["stream_seq"], told["deliveries"], told["reason"]) == (1, 2, "it is broken")
    broker.ack(second)
    told = advisory(broker, "ACK", "METRIC")
    assert (told["stream_seq"], told["deliveries"]) == (2, 1)
    broker.api("CONSUMER.PAUSE.s.d", {"pause_until": "2099-01-01T00:00:00Z"})
    assert advisory(broker, "PAUSE")["paused"]
    broker.api("CONSUMER.DELETE.s.d")
    assert advisory(broker, "DELETED")["action"] == "delete"


def test_advisories_have_a_rate(broker: ReaderBroker) -> None:
    broker.durable("s", "d", max_ack_pending=1_000)
    publish(broker, *(b"%d" % number for number in range(300)))
    messages = broker.pulled("s", "d", 300)
    before = len(broker.published)
    for message in messages[:300]:
        broker.ack(message, b"-NAK {}")
    told = [one for one in broker.published[before:] if b"MSG_NAKED" in one]
    assert 50 < len(told) <= 120


@pytest.mark.parametrize(
    ("payload", "kind", "delay_us"),
    [
        (b"", pending.ACK, 0), (b"+ACK", pending.ACK, 0), (b"+OK", pending.ACK, 0), (b"+WPI", pending.IN_PROGRESS, 0),
        (b"-NAK", pending.NAK, 0), (b"-NAK 1m30.5s", pending.NAK, 90_500_000), (b"-NAK 15ms", pending.NAK, 15_000),
        (b'-NAK {"delay": 2000}', pending.NAK, 2), (b"-NAK 5 apples", pending.NAK, 0), (b"-NAK -5s", pending.NAK, 0),
        (b"-NAK 9999999999999999h", pending.NAK, DELAY_US_MAX), (b"+TERM", pending.TERM, 0),
    ],
)  # fmt: skip
def test_payloads_of_acks(payload: bytes, kind: int, delay_us: int) -> None:
    ack = parsed_ack(payload)
    assert ack is not None
    assert (ack.kind, ack.delay_us) == (kind, delay_us)


def test_what_is_no_ack() -> None:
    assert [parsed_ack(payload) for payload in (b"+NOPE", b"hello", b"+", b"\xff")] == [None] * 4


def test_an_update_of_priorities_takes_effect(broker: ReaderBroker) -> None:
    broker.durable("s", "d", priority_policy="prioritized", priority_groups=["g"])
    broker.durable("s", "d", priority_policy="prioritized", priority_groups=["h"])
    publish(broker, b"1")
    assert of_group(broker)[0].status.startswith("400")
    assert values(broker.pulled("s", "d", group="h")) == [b"1"]
    broker.consumer("s", "m")
    assert broker.consumer("s", "m", priority_policy="overflow", priority_groups=["g"])["error"]["err_code"] == 10012


def test_an_answered_ack_is_stored_whatever_else_changes_its_consumer_at_that_moment(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    publish(broker, b"1", b"2")
    first, second = broker.pulled("s", "d", 2)
    broker.tick(100)  # the deliveries are stored
    broker.disk_runs_at_once = False
    broker.ack(first, b"", reply="_INBOX.first")
    executed = broker.execute()
    broker.ack(second, b"", reply="_INBOX.second")
    broker.send("CONSUMER.PAUSE.s.d", {"pause_until": "2099-01-01T00:00:00Z"})
    broker.complete(executed)
    assert "_INBOX.first" in broker.answers
    after = broker.crash()
    after.start()
    after.tick(100)
    is_told = "_INBOX.second" in broker.answers
    assert (is_told, info(after)[4]) == (False, 1)
    broker.settle()
    assert "_INBOX.second" in broker.answers
    after = broker.crash()
    after.start()
    after.tick(100)
    assert info(after)[4] == 0


@pytest.mark.parametrize("how", ["reset", "create"])
def test_a_place_far_behind_all_messages_keeps_the_log_of_consumers_readable(broker: ReaderBroker, how: str) -> None:
    """One row with a number that no leader reads would take all consumers of the stream with it."""
    broker.durable("s", "a")
    if how == "reset":
        broker.durable("s", "b")
        assert broker.api("CONSUMER.RESET.s.b", {"seq": 2**63 - 1})["reset_seq"] == 2**63 - 1
    else:
        made = broker.durable("s", "b", deliver_policy="by_start_sequence", opt_start_seq=2**63 - 1)
        assert "error" not in made, made
    broker.tick(1_000)
    after = broker.crash()
    after.start()
    assert after.api("CONSUMER.NAMES.s")["consumers"] == ["a", "b"]


def test_of_two_stored_consumers_of_one_name_the_newer_one_is_kept(broker: ReaderBroker) -> None:
    """A deletion that was refused leaves one beside the one that was created since."""
    broker.durable("s", "d", max_ack_pending=7)
    publish(broker, b"1")
    state = broker.node.image.by_name("s")
    log = broker.node.consumer_log(state.stream_id, PartitionId(0))
    ids = []
    for number, (created_us, limit) in enumerate(((1, 8), (1_800_000_000_000_000, 9), (2, 6))):
        config = {"durable_name": "d", "name": "d", "ack_policy": "explicit", "max_ack_pending": limit}
        told = msgspec.json.encode({"name": "d", "created_us": created_us, "config": config})
        made = ConsumerState.new(b"%08d" % number, AckConfig(1_000_000, max_ack_pending=limit), told, 0, 0)
        ids.append(made.consumer_id)
        log.append(made.first_rows(), lambda error: None)
    broker.tick(100)
    for _ in range(2):  # the others are deleted, not only passed over
        broker = broker.crash()
        broker.start()
        broker.tick(100)
        assert broker.api("CONSUMER.INFO.s.d")["config"]["max_ack_pending"] == 9
        assert broker.api("CONSUMER.NAMES.s")["consumers"] == ["d"]
        broker.tick(100)
    assert broker.api("CONSUMER.DELETE.s.d")["success"]
    broker.tick(100)
    broker = broker.crash()
    broker.start()
    broker.tick(100)
    assert broker.api("CONSUMER.NAMES.s")["consumers"] == []


def test_a_request_whose_client_has_just_gone_gets_nothing(broker: ReaderBroker) -> None:
    """nats-server tells of the end of a subscription later than the next request comes, but it is asked."""
    broker.durable("s", "d")
    publish(broker, b"1")
    broker.leaf.is_slow = True
    inbox = broker.send("CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": 1, "expires": S}))
    assert broker.delivered() == []
    broker.leaf.deserted.add(inbox.encode())
    broker.interest_known()
    broker.turn()
    broker.tick(200)
    assert broker.delivered() == []
    assert info(broker) == (0, 0, 0, 0, 0, 0, 1)


def test_a_message_goes_to_the_new_request_of_a_client_that_has_left_the_old_one(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    old = broker.send("CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": 1, "expires": 60 * S}))
    broker.leaf.is_slow = True
    new = broker.send("CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": 1, "expires": 60 * S}))
    broker.leaf.deserted.add(old.encode())
    broker.gateway.interest_lost([old.encode()], broker.clock.now)
    broker.interest_known()
    broker.turn()
    publish(broker, b"1")
    assert [(one.inbox, one.value) for one in broker.delivered()] == [(new, b"1")]


def test_requests_that_come_meanwhile_share_the_next_barrier(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    publish(broker, b"1", b"2", b"3")
    broker.leaf.is_slow = True
    inboxes = [broker.send("CONSUMER.MSG.NEXT.s.d", b"1") for _ in range(3)]
    assert (broker.leaf.asked, broker.delivered()) == (1, [])
    broker.interest_known()
    broker.turn()
    assert [one.inbox for one in broker.delivered()] == inboxes[:1]
    broker.interest_known()
    broker.turn()
    assert [one.inbox for one in broker.delivered()] == inboxes[1:]
    assert broker.leaf.asked == 2


def test_a_request_is_held_no_longer_than_the_broker_or_its_consumer_lives(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    broker.durable("s", "gone")
    broker.leaf.is_slow = True
    first = broker.send("CONSUMER.MSG.NEXT.s.gone", b"1")
    second = broker.send("CONSUMER.MSG.NEXT.s.d", b"1")
    broker.api("CONSUMER.DELETE.s.gone")
    broker.gateway.shut_down()
    broker.turn()
    assert [one.status for one in broker.delivered(second)] == ["409 Server Shutdown"]
    assert broker.blocks[first].startswith(b"NATS/1.0 503")


def test_requests_of_a_leaf_connection_that_is_down_are_not_held(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    publish(broker, b"1")
    broker.leaf.is_up = False
    inbox = broker.send("CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": 1, "expires": 60 * S}))
    broker.leaf.is_up = True
    broker.tick(1_500)
    assert values(broker.delivered(inbox)) == [b"1"]
