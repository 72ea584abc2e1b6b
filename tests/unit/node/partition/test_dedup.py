"""Messages that come again: acked with the offset of the first, once that is committed, through whatever happens."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from penstock.base.ids import Offset
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendResponse,
    CreateStreamResponse,
    DeleteStreamResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.vfs.faulty import FileFault, FileOperationKind, no_faults, nth
from penstock.vfs.memory import Keep
from tests.envelopes import enveloped, message
from tests.extent import each_change
from tests.groups import Columns, encoded
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers
from tests.unit.node.test_members import with_stream

WINDOW_MS = 120_000


def block(*lines: str) -> bytes:
    return ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


def named(message_id: str) -> bytes:
    return block(f"Nats-Msg-Id: {message_id}")


def with_orders(**config: Any) -> Broker:
    broker = Broker().start()
    broker.answer(broker.create("orders", **config), CreateStreamResponse)
    return broker


def publish(broker: Broker, message_id: str, reply: str, value: bytes = b"v") -> None:
    broker.publish("orders.a", value, reply=reply, headers=named(message_id))


def heard(broker: Broker) -> list[tuple[str, int, bool]]:
    """Who was acked, where the message is, and whether it is a duplicate."""
    plain = [ack for ack in broker.acks if "seq" in ack.body]
    return [(ack.reply, ack.body["seq"] - 1, ack.body.get("duplicate", False)) for ack in plain]


def alter(broker: Broker, **changes: Any) -> None:
    broker.ask(AlterStreamRequest(name="orders", changes=changes), AlterStreamResponse)


def test_what_comes_again_is_acked_and_not_stored() -> None:
    broker = with_orders()
    publish(broker, "x", "r1", b"one")
    publish(broker, "y", "r2", b"two")
    publish(broker, "x", "r3", b"one again")
    assert heard(broker) == [("r1", 0, False), ("r2", 1, False), ("r3", 0, True)]
    assert broker.acks[-1].body == {
        "stream": "orders", "seq": 1, "duplicate": True, "offset": 0, "partition": 0, "epoch": 1, "replicas": 1,
        "fsynced": True,
    }  # fmt: skip
    assert broker.values("orders") == [b"one", b"two"]
    assert broker.stream("orders").partitions[0].dedup_ids == 2


def test_twice_in_one_read() -> None:
    broker = with_orders()
    messages = [(b"orders.a", b"r%d" % n, named(name), b"%d" % n) for n, name in enumerate("xyxzx")]
    broker.deliver(messages)
    assert sorted(heard(broker)) == [("r0", 0, False), ("r1", 1, False), ("r2", 0, True), ("r3", 2, False),
                                     ("r4", 0, True)]  # fmt: skip
    assert broker.values("orders") == [b"0", b"1", b"3"]


def test_the_ack_waits_until_the_first_is_committed() -> None:
    broker = with_orders()
    publish(broker, "x", "r1")
    broker.syncs_hang = True
    publish(broker, "y", "r2")
    publish(broker, "y", "r3")
    publish(broker, "x", "r4")
    broker.publish("orders.a", b"v", reply="r5", headers=block("Nats-Msg-Id: y", "Penstock-Ack: leader"))
    broker.publish("orders.a", b"v", reply="r6", headers=block("Nats-Msg-Id: y", "Penstock-Ack: none"))
    assert heard(broker) == [("r1", 0, False), ("r4", 0, True)]  # of these alone the first is committed
    broker.settle()
    assert heard(broker)[2:] == [("r2", 1, False), ("r3", 1, True), ("r5", 1, True)]
    assert broker.node.in_flight_bytes == 0


def test_who_waits_for_a_sync_that_fails_hears_so() -> None:
    broker = with_orders()
    publish(broker, "x", "r1")
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC, path_end=".arrows")
    broker.deliver([(b"orders.a", b"r%d" % n, named("y"), b"") for n in (2, 3)])
    assert [(ack.reply, ack.err_code) for ack in broker.acks[1:]] == [("r2", 10077), ("r3", 10077)]
    assert all("may or may not" in ack.body["error"]["description"] for ack in broker.acks[1:])


def test_what_the_disk_refuses_was_not_there() -> None:
    broker = with_orders()
    publish(broker, "x", "r1")
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    broker.deliver([(b"orders.a", b"r%d" % n, named(name), b"") for n, name in enumerate("yyx", 2)])
    told = {ack.reply: (ack.err_code, ack.body.get("duplicate", False)) for ack in broker.acks[1:]}
    assert told == {"r2": (10077, False), "r3": (10077, False), "r4": (0, True)}
    broker.vfs.plan = no_faults
    publish(broker, "y", "r5", b"again")
    publish(broker, "y", "r6", b"and again")
    assert heard(broker)[-2:] == [("r5", 1, False), ("r6", 1, True)]
    assert broker.values("orders") == [b"v", b"again"]


@pytest.mark.parametrize("keep", [Keep.SYNCED, Keep.ALL])
def test_ids_are_known_again_after_a_crash(keep: Keep) -> None:
    broker = with_orders(segment_bytes=4096)
    for number in range(20):
        publish(broker, f"id-{number}", f"r{number}", bytes(900))
    broker.syncs_hang = True
    publish(broker, "lost", "r")
    after = broker.crash(keep).start()
    for number in range(20):
        publish(after, f"id-{number}", f"r{number}")
    publish(after, "lost", "again", b"it")
    assert heard(after)[:20] == [(f"r{number}", number, True) for number in range(20)]
    # Only the log says what was there: what the power took is unknown.
    assert heard(after)[20:] == [("again", 20, keep is Keep.ALL)]
    assert len(after.values("orders")) == 21


def test_a_window_has_an_end() -> None:
    broker = with_orders()
    publish(broker, "x", "r1")
    broker.clock.advance_ms(WINDOW_MS)
    publish(broker, "x", "r2")
    broker.clock.advance_ms(1)
    publish(broker, "x", "r3")
    assert heard(broker) == [("r1", 0, False), ("r2", 0, True), ("r3", 1, False)]


def test_only_the_window_is_read_after_a_start() -> None:
    broker = with_orders()
    publish(broker, "old", "r1")
    broker.clock.advance_ms(WINDOW_MS - 10)
    publish(broker, "new", "r2")
    broker.clock.advance_ms(11)
    after = broker.crash().start()
    publish(after, "new", "r3")
    publish(after, "old", "r4")
    assert heard(after) == [("r3", 1, True), ("r4", 2, False)]


def test_the_window_does_not_go_back_with_the_clock() -> None:
    """An id that was forgotten comes again as a new message: its timestamp says that this was later."""
    broker = with_orders()
    publish(broker, "x", "r1")
    broker.clock.advance_ms(WINDOW_MS + 1)
    broker.publish("orders.a", b"v", headers=block("Nats-Expected-Last-Msg-Id: other"))
    publish(broker, "y", "r2")
    broker.clock.set_back_ms(WINDOW_MS)
    publish(broker, "x", "r3")
    assert heard(broker)[-1] == ("r3", 2, False)


def test_an_altered_window_holds_at_once() -> None:
    broker = with_orders(dedup_window_ms=1_000)
    publish(broker, "x", "r1")
    broker.clock.advance_ms(2_000)
    publish(broker, "y", "r2")
    alter(broker, dedup_window_ms=10_000)
    publish(broker, "x", "r3")
    assert heard(broker)[-1] == ("r3", 0, True)
    alter(broker, dedup_window_ms=None)
    publish(broker, "x", "r4")
    assert heard(broker)[-1] == ("r4", 2, False)
    alter(broker, dedup_window_ms=10_000)
    publish(broker, "x", "r5")
    assert heard(broker)[-1] == ("r5", 2, True)  # ids are marked in the log, whether anybody looks for them or not


def test_with_too_many_ids_the_oldest_go_and_are_counted() -> None:
    broker = with_orders(dedup_ids_max=3)
    for name in "abcd":
        publish(broker, name, name)
    part = broker.stream("orders").partitions[0]
    assert (part.dedup_ids, part.dedup_ids_forgotten) == (3, 1)
    publish(broker, "b", "b2")
    publish(broker, "a", "a2")
    assert heard(broker)[-2:] == [("b2", 1, True), ("a2", 4, False)]
    after = broker.crash().start()
    publish(after, "c", "c2")
    publish(after, "b", "b3")
    assert heard(after) == [("c2", 2, True), ("b3", 5, False)]


def test_an_expected_last_id() -> None:
    broker = with_orders()

    def expecting(name: str, message_id: str, reply: str) -> None:
        lines = (f"Nats-Msg-Id: {message_id}", f"Nats-Expected-Last-Msg-Id: {name}")
        broker.publish("orders.a", b"v", reply=reply, headers=block(*lines))

    expecting("x", "y", "r1")
    publish(broker, "x", "r2")
    expecting("x", "y", "r3")
    expecting("x", "y", "r4")  # a duplicate comes first, as in JetStream
    expecting("x", "z", "r5")
    broker.publish("orders.a", b"without an id")
    expecting("y", "z", "r6")
    codes = {ack.reply: ack.err_code for ack in broker.acks}
    assert codes == {"r1": 10070, "r2": 0, "r3": 0, "r4": 0, "r5": 10070, "r6": 10070}
    publish(broker, "w", "r7")
    broker.clock.advance_ms(10 * WINDOW_MS)
    broker = broker.crash().start()
    expecting("w", "v", "r8")  # however old it is
    assert heard(broker) == [("r8", 4, False)]


def test_ids_that_come_over_the_socket_are_known() -> None:
    broker = with_orders()
    columns = Columns([b"orders.a"] * 3, None, [b"0", b"1", b"2"], [named("x"), None, named("y")])
    caller = broker.request(_append(broker), encoded(columns))
    assert broker.answer(caller, AppendResponse).end_offset == 3
    publish(broker, "y", "r1")
    caller = broker.request(_append(broker), encoded(columns))  # an append is stored whole
    assert broker.answer(caller, AppendResponse).end_offset == 6
    publish(broker, "x", "r2")
    after = broker.crash().start()
    publish(after, "x", "r3")
    assert heard(broker) == [("r1", 2, True), ("r2", 3, True)]
    assert heard(after) == [("r3", 3, True)]


def test_a_message_in_an_envelope_that_comes_again_is_acked_as_the_first_was() -> None:
    broker = with_orders()

    def envelope(message_id: str, correlation: str, policy: int = 1) -> bytes:
        fields = {"value": b"v", "correlation_id": correlation.encode(), "ack_policy": policy}
        return enveloped(message(fields, [(b"Nats-Msg-Id", message_id.encode())]))

    broker.publish("orders.a", envelope("w", "c0"), reply="r")
    broker.syncs_hang = True
    values = [envelope("x", "c1"), envelope("x", "c2"), envelope("w", "c3"), envelope("x", "c4", policy=2)]
    broker.deliver([(b"orders.a", b"r", None, value) for value in values])
    publish(broker, "x", "plain")
    assert [ack.body["correlation_id"] for ack in broker.acks] == ["c0", "c3"]
    broker.settle()
    told = [(ack.body["correlation_id"], ack.body.get("offset", 0)) for ack in broker.acks[1:-1]]
    assert told == [("c3", 0), ("c1", 1), ("c2", 1)]
    assert heard(broker)[-1] == ("plain", 1, True)
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    broker.deliver([(b"orders.a", b"r", None, envelope("y", name)) for name in ("c5", "c6")])
    assert [(ack.body["correlation_id"], ack.err_code) for ack in broker.acks[-2:]] == [("c5", 10077), ("c6", 10077)]


def test_what_is_appended_while_ids_are_read_is_known_as_well() -> None:
    broker = with_orders()
    publish(broker, "x", "r1")
    broker = broker.crash().start()
    broker.disk_runs_at_once = False
    publish(broker, "x", "r2")
    (reading,) = broker.disk
    broker.disk = []
    columns = Columns([b"orders.a"], None, [b"1"], [named("y")])
    broker.request(_append(broker), encoded(columns))
    broker.settle()
    publish(broker, "y", "r3")
    assert not broker.acks
    broker.disk.append(reading)
    broker.settle()
    assert heard(broker) == [("r2", 0, True), ("r3", 1, True)]


def _append(broker: Broker) -> Any:
    from penstock.messages import AppendRequest

    return AppendRequest(stream_id=broker.stream_id("orders"))


def test_messages_keep_their_order_while_ids_are_read() -> None:
    broker = with_orders()
    broker.publish("orders.a", b"0", reply="r0")
    broker = broker.crash().start()
    broker.disk_runs_at_once = False
    publish(broker, "x", "r1", b"1")
    broker.publish("orders.a", b"2", reply="r2")
    publish(broker, "x", "r3", b"3")
    assert broker.node.in_flight_bytes
    broker.settle()
    assert sorted(heard(broker)) == [("r1", 1, False), ("r2", 2, False), ("r3", 1, True)]
    assert broker.values("orders") == [b"0", b"1", b"2"]
    assert broker.node.in_flight_bytes == 0


def test_a_broker_that_stops_while_ids_are_read_refuses_what_waits() -> None:
    broker = with_orders()
    broker.disk_runs_at_once = False
    publish(broker, "x", "r1")
    broker.disk.clear()
    broker.do(broker.node.stop(broker.clock.now))
    assert [(ack.reply, ack.err_code) for ack in broker.acks] == [("r1", 10008)]


def test_ids_that_cannot_be_read_are_read_again() -> None:
    broker = with_orders()
    publish(broker, "x", "r1")
    broker = broker.crash().start()
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.READ, path_end=".arrows")
    publish(broker, "x", "r2")
    assert [ack.err_code for ack in broker.acks] == [10077]
    broker.vfs.plan = no_faults
    publish(broker, "x", "r3")
    assert heard(broker)[1:] == [("r3", 0, True)]


def test_who_sends_no_ids_has_nothing_read() -> None:
    broker = with_orders()
    broker.publish("orders.a", b"0", headers=block("A: 1"))
    broker = broker.crash().start()
    broker.disk_runs_at_once = False
    broker.publish("orders.a", b"1", headers=block("A: 1", "Nats-Msg-Id:"))
    (sync,) = broker.disk
    assert type(sync.run.__self__).__name__ == "Flush"  # type: ignore[attr-defined]
    assert broker.stream("orders").partitions[0].dedup_ids == 0


def test_ids_that_retention_has_removed_are_unknown_to_the_next_leader() -> None:
    broker = with_orders(max_messages=1)
    publish(broker, "x", "r1")
    publish(broker, "y", "r2")
    broker.tick(2_000)
    broker.settle()
    assert broker.stream("orders").partitions[0].log_start == 1
    publish(broker, "x", "r3")
    assert heard(broker)[-1] == ("r3", 0, True)  # it is still in memory
    after = broker.crash().start()
    publish(after, "x", "r4")
    assert heard(after) == [("r4", 2, False)]


def purge(broker: Broker, before: int, *, is_dry_run: bool = False) -> None:
    request = TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(before), is_dry_run=is_dry_run)
    broker.ask(request, TruncateResponse)


def test_a_purge_forgets_the_ids_of_what_it_takes_at_once_and_for_good() -> None:
    broker = with_orders()
    for message_id in "xyz":
        publish(broker, message_id, "r")
    purge(broker, 2, is_dry_run=True)
    publish(broker, "x", "dry")
    assert heard(broker)[-1] == ("dry", 0, True)
    purge(broker, 2)
    for message_id in "xz":
        publish(broker, message_id, f"again-{message_id}")
    assert heard(broker)[-2:] == [("again-x", 3, False), ("again-z", 2, True)]
    purge(broker, 4)
    after = broker.crash().start()
    for message_id in "xzx":
        publish(after, message_id, message_id)
    assert heard(after) == [("x", 4, False), ("z", 5, False), ("x", 4, True)]


def test_a_purge_for_whose_answer_nobody_waits_forgets_the_ids_too() -> None:
    broker = with_orders()
    publish(broker, "x", "r")
    broker.disk_runs_at_once = False
    caller = broker.request(TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(1)))
    while not broker.node.image.by_name("orders").truncated:
        broker.run_disk(0)
    broker.node.callers_disconnected([caller])
    broker.open_requests.discard(caller)
    broker.disk_runs_at_once = True
    broker.settle()
    assert broker.stream("orders").partitions[0].log_start == 1
    publish(broker, "x", "again")
    assert heard(broker)[-1] == ("again", 1, False)


def test_a_purge_while_ids_are_read_forgets_them_too() -> None:
    broker = with_orders()
    publish(broker, "x", "r")
    broker = broker.crash().start()
    broker.disk_runs_at_once = False
    publish(broker, "x", "r1")  # has the log read
    caller = broker.request(TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(1)))
    reading = next(number for number, work in enumerate(broker.disk) if type(work.run.__self__).__name__ == "ReadIds")  # type: ignore[attr-defined]
    read = broker.execute(reading)
    while caller in broker.open_requests:
        broker.run_disk(0)
    broker.complete(read)
    broker.disk_runs_at_once = True
    broker.settle()
    assert heard(broker) == [("r1", 1, False)]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_stream_that_is_made_again_knows_no_id_of_the_one_before(restarts: bool) -> None:
    broker = with_orders()
    publish(broker, "x", "first")
    broker.answer(broker.delete("orders"), DeleteStreamResponse)
    broker.answer(broker.create("orders"), CreateStreamResponse)
    broker = broker.crash().start() if restarts else broker
    publish(broker, "x", "anew")
    publish(broker, "x", "again")
    assert heard(broker)[-2:] == [("anew", 0, False), ("again", 0, True)]


def test_after_a_purge_the_last_message_has_no_id() -> None:
    broker = with_orders()
    publish(broker, "x", "r")
    purge(broker, 1)
    broker.publish("orders.a", b"v", reply="expects", headers=block("Nats-Expected-Last-Msg-Id: x"))
    assert broker.acks[-1].err_code == 10070


# Several brokers


def test_the_next_leader_does_not_know_what_was_purged_either() -> None:
    brokers = with_stream()
    send(brokers, "x", "r")
    brokers.run(500)
    old = brokers.led("s")
    caller = old.request(TruncateRequest(stream_id=old.stream_id("s"), before=Offset(1)))
    brokers.run(500)
    old.answer(caller, TruncateResponse)
    send(brokers, "x", "anew")
    brokers.run(500)
    assert heard(old)[-1] == ("anew", 1, False)
    brokers.kill(old.broker_id)
    brokers.run(8_000)
    send(brokers, "x", "again")
    brokers.run(200)
    assert heard(brokers.led("s")) == [("again", 1, True)]


def send(brokers: Brokers, message_id: str, reply: str, value: bytes = b"v") -> None:
    for member in list(brokers.members.values()):
        member.publish("s", value, reply=reply, headers=named(message_id))
    brokers.settle()


def test_the_next_leader_knows_the_ids() -> None:
    brokers = with_stream()
    for number in range(5):
        send(brokers, f"id-{number}", f"r{number}")
    brokers.run(500)
    old = brokers.led("s").broker_id
    brokers.kill(old)
    brokers.run(8_000)
    new = brokers.led("s")
    assert new.broker_id != old
    for number in range(5):
        send(brokers, f"id-{number}", f"again{number}")
    brokers.run(200)
    assert heard(new) == [(f"again{number}", number, True) for number in range(5)]


@each_change
def test_what_was_cut_off_is_unknown_again() -> None:
    """A leader that nobody reaches takes a message; later it leads again, without it."""
    brokers = with_stream()
    send(brokers, "x", "r1")
    brokers.run(500)
    old = brokers.led("s")
    for number in (one for one in brokers.ids if one != old.broker_id):
        brokers.cut(old.broker_id, number)
    old.publish("s", b"cut off", reply="r2", headers=named("y"))
    old.publish("s", b"cut off", reply="r3", headers=named("y"))
    assert heard(old) == [("r1", 0, False)]
    brokers.run(8_000)
    new = brokers.led("s")
    assert new is not old
    send(brokers, "z", "r4")
    brokers.join(old.broker_id, *(one for one in brokers.ids if one != old.broker_id))
    brokers.run(60_000)  # the preferred leader leads again
    assert brokers.led("s") is old
    send(brokers, "y", "r5", b"here")
    send(brokers, "y", "r6")
    send(brokers, "z", "r7")
    brokers.run(500)
    assert heard(old) == [("r1", 0, False), ("r5", 2, False), ("r6", 2, True), ("r7", 1, True)]
    assert old.values("s") == [b"v", b"v", b"here"]


def test_duplicates_of_what_nobody_has_yet_hear_nothing_when_the_leader_resigns() -> None:
    brokers = with_stream(min_isr=2)
    send(brokers, "x", "r1")
    brokers.run(500)
    old = brokers.led("s")
    for number in (one for one in brokers.ids if one != old.broker_id):
        brokers.hang(number)
    old.publish("s", b"v", reply="r2", headers=named("y"))
    old.publish("s", b"v", reply="r3", headers=named("y"))
    old.publish("s", b"v", reply="r4", headers=named("x"))
    assert heard(old) == [("r1", 0, False), ("r4", 0, True)]
    for number in (one for one in brokers.ids if one != old.broker_id):
        brokers.wake(number)
    brokers.run(1_000)
    assert heard(old)[2:] == [("r2", 1, False), ("r3", 1, True)]
