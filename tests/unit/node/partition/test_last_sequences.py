"""Messages that are stored only if a certain one is the last on their subject: who hears what, and what is read."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest

from penstock.base import limits
from penstock.live.row_set import RowSet
from penstock.messages import CreateStreamResponse
from penstock.node.partition.last_sequences import FindLasts
from penstock.node.partition.partition import Partition
from penstock.node.partition.visible_rows import AppliedMarks
from penstock.node.step import Lane
from penstock.vfs.faulty import FileFault, FileOperationKind, no_faults, nth
from tests.envelopes import enveloped, message
from tests.extent import each_change
from tests.unit.node.harness import Ack, Broker
from tests.unit.node.members import Brokers
from tests.unit.node.test_members import with_stream


def with_orders(**config: Any) -> Broker:
    broker = Broker().start()
    broker.answer(broker.create("orders", **config), CreateStreamResponse)
    return broker


def block(*lines: str) -> bytes:
    return ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


def expecting(sequence: int) -> bytes:
    return block(f"Nats-Expected-Last-Subject-Sequence: {sequence}")


def publish(broker: Broker, subject: str, sequence: int, reply: str = "r") -> None:
    broker.publish(subject, b"v", reply=reply, headers=expecting(sequence))


def said(ack: Ack) -> str:
    return str(ack.body["error"]["description"]) if ack.err_code else f"stored as {ack.body['seq']}"


def told(broker: Broker, subject: str, sequence: int) -> str:
    """What a publisher hears."""
    publish(broker, subject, sequence)
    return said(broker.acks[-1])


def test_only_what_follows_the_last_message_on_its_subject_is_stored() -> None:
    broker = with_orders()
    assert told(broker, "orders.a", 1) == "wrong last sequence: 0"
    assert told(broker, "orders.a", 0) == "stored as 1"
    assert told(broker, "orders.b", 0) == "stored as 2"
    assert told(broker, "orders.b", 1) == "wrong last sequence: 2"
    broker.publish("orders.a", b"without", b"headers")
    assert told(broker, "orders.a", 1) == "wrong last sequence: 4"
    assert told(broker, "orders.a", 4) == "stored as 5"
    assert broker.stream("orders").partitions[0].dropped == {"unmet_expectation": 3}
    broker = broker.crash().start()
    assert told(broker, "orders.b", 0) == "wrong last sequence: 2"
    assert told(broker, "orders.b", 2) == "stored as 6"


def told_of_other(broker: Broker, subject: str, sequence: int, other: str) -> str:
    """What a publisher hears that expects the last sequence of another subject."""
    name = "Nats-Expected-Last-Subject-Sequence"
    broker.publish(subject, b"v", reply="r", headers=block(f"{name}: {sequence}", f"{name}-Subject: {other}"))
    return said(broker.acks[-1])


def test_a_message_may_follow_the_last_one_on_another_subject() -> None:
    broker = with_orders()
    broker.publish("orders.a", b"1")
    broker.publish("orders.b", b"2")
    assert told_of_other(broker, "orders.a", 1, "orders.b") == "wrong last sequence: 2"
    assert told_of_other(broker, "orders.a", 2, "orders.b") == "stored as 3"
    assert told_of_other(broker, "orders.c", 0, "orders.c") == "stored as 4"
    assert told_of_other(broker, "orders.c", 1, "elsewhere") == "wrong last sequence: 0"
    broker = broker.crash().start()  # now the log is searched
    assert told_of_other(broker, "orders.d", 2, "orders.a") == "wrong last sequence: 3"
    assert told_of_other(broker, "orders.d", 3, "orders.a") == "stored as 5"
    together = [(b"orders.e", b"r", None, b"")]
    for expected in (6, 6, 5):
        name = "Nats-Expected-Last-Subject-Sequence"
        headers = block(f"{name}: {expected}", f"{name}-Subject: orders.e")
        together.append((b"orders.f", b"r", headers, b""))  # type: ignore[arg-type]
    broker.deliver(together)  # type: ignore[arg-type]
    assert sorted(map(said, broker.acks[-4:])) == [
        "stored as 6",
        "stored as 7",
        "stored as 8",
        "wrong last sequence: 6",
    ]


def test_what_is_no_other_subject_is_refused() -> None:
    broker = with_orders()
    for other in ("orders.*", ">", "orders..a"):
        assert "plain subject" in told_of_other(broker, "orders.a", 0, other)
        assert broker.acks[-1].err_code == 10003
    broker.publish("orders.a", b"v", reply="r", headers=block("Nats-Expected-Last-Subject-Sequence-Subject: orders.b"))
    assert broker.acks[-1].err_code == 10193
    broker.create("many", "many.*", partitions=2, partition_by="token:2")
    assert "one partition" in told_of_other(broker, "many.a", 0, "many.b")
    assert broker.values("orders") == []


def test_a_message_in_an_envelope() -> None:
    broker = with_orders()
    for expected in (0, 0):
        header = (b"Nats-Expected-Last-Subject-Sequence", b"%d" % expected)
        value = enveloped(message({"value": b"v", "correlation_id": b"c"}, [header]))
        broker.deliver([(b"orders.a", b"r", None, value)])
    assert [ack.err_code for ack in broker.acks] == [0, 10071]
    assert broker.values("orders") == [b"v"]


def test_the_checks_are_made_in_the_order_of_jetstream() -> None:
    broker = with_orders()
    headers = block("Nats-Expected-Last-Subject-Sequence: 0", "Nats-Msg-Id: x")
    for _ in range(2):  # sent again it is no duplicate, but too late
        broker.publish("orders.a", b"v", reply="r", headers=headers)
    assert [said(ack) for ack in broker.acks] == ["stored as 1", "wrong last sequence: 1"]
    broker.publish("orders.a", b"v", reply="r", headers=block("Nats-Msg-Id: x"))
    assert broker.acks[-1].body["duplicate"]


def test_who_expects_nothing_has_nothing_read() -> None:
    broker = with_orders()
    broker.publish("orders.a", b"0")
    broker = broker.crash().start()
    broker.disk_runs_at_once = False
    broker.publish("orders.a", b"1", headers=block("A: 1", "Nats-Expected-Last-Subject-Sequence:"))
    broker.append("orders", b"2")
    assert {type(work.run.__self__).__name__ for work in broker.disk} == {"Flush", "CheckAppend"}  # type: ignore[attr-defined]
    assert all(partition.lasts is None for partition in broker.node._partitions.values())


def test_messages_keep_their_order_while_the_log_is_read() -> None:
    broker = with_orders()
    broker.publish("orders.a", b"0")
    broker = broker.crash().start()
    broker.disk_runs_at_once = False
    publish(broker, "orders.a", 1, "r1")
    broker.publish("orders.a", b"2", reply="r2")
    publish(broker, "orders.a", 2, "r3")
    publish(broker, "orders.a", 3, "r4")
    (reading,) = broker.disk
    assert reading.lane is Lane.READ
    broker.append("orders", b"3", subject="orders.b")  # comes before those who wait
    broker.run_disk(1)
    broker.settle()
    assert {ack.reply: said(ack) for ack in broker.acks} == {
        "r1": "stored as 3", "r2": "stored as 4", "r3": "wrong last sequence: 4", "r4": "wrong last sequence: 4",
    }  # fmt: skip
    assert broker.node.in_flight_bytes == 0
    broker.disk_runs_at_once = True
    assert told(broker, "orders.b", 2) == "stored as 5"  # it was noted, though the log was being read


def test_ids_and_last_sequences_are_both_read() -> None:
    broker = with_orders()
    broker.publish("orders.a", b"0", headers=block("Nats-Msg-Id: x"))
    broker = broker.crash().start()
    broker.disk_runs_at_once = False
    broker.publish(
        "orders.a", b"1", reply="r", headers=block("Nats-Msg-Id: y", "Nats-Expected-Last-Subject-Sequence: 1")
    )
    assert len(broker.disk) == 1
    broker.settle()
    assert [said(ack) for ack in broker.acks] == ["stored as 2"]


def test_a_broker_that_stops_while_the_log_is_read_refuses_who_waits() -> None:
    broker = filled("a")
    broker.disk_runs_at_once = False
    publish(broker, "orders.a", 0)
    broker.disk.clear()
    broker.do(broker.node.stop(broker.clock.now))
    assert [ack.err_code for ack in broker.acks] == [10008]


def test_a_log_that_cannot_be_read_is_read_again() -> None:
    broker = with_orders()
    broker.publish("orders.a", b"0")
    broker = broker.crash().start()
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.READ, path_end=".arrows")
    broker.deliver([(b"orders.a", b"r1", expecting(1), b""), (b"orders.b", b"r2", None, b"")])
    assert {ack.reply: ack.err_code for ack in broker.acks} == {"r1": 10077, "r2": 0}
    broker.vfs.plan = no_faults
    assert told(broker, "orders.b", 2) == "stored as 3"
    assert told(broker, "orders.a", 1) == "stored as 4"


def test_what_the_disk_refuses_is_no_last_message() -> None:
    broker = with_orders()
    assert told(broker, "orders.a", 0) == "stored as 1"
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    assert "store failed" in told(broker, "orders.a", 1)
    broker.vfs.plan = no_faults
    assert told(broker, "orders.a", 1) == "stored as 2"


def test_a_read_of_which_a_part_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 2)
    broker = with_orders()
    assert told(broker, "orders.b", 0) == "stored as 1"
    broker.vfs.plan = nth(1, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    subjects = (b"orders.a", b"orders.a", b"orders.a", b"orders.b")
    broker.deliver([(subject, b"r%d" % n, None, b"") for n, subject in enumerate(subjects)])
    assert {ack.reply: ack.err_code for ack in broker.acks[1:]} == {"r0": 0, "r1": 0, "r2": 10077, "r3": 10077}
    broker.vfs.plan = no_faults
    assert told(broker, "orders.a", 3) == "stored as 4"
    assert told(broker, "orders.b", 1) == "stored as 5"


def test_what_retention_has_removed_is_no_last_message() -> None:
    broker = with_orders(max_messages=1)
    assert told(broker, "orders.a", 0) == "stored as 1"
    assert told(broker, "orders.b", 0) == "stored as 2"
    broker.tick(2_000)
    assert told(broker, "orders.a", 1) == "wrong last sequence: 0"
    assert told(broker, "orders.a", 0) == "stored as 3"


def test_what_compaction_has_taken_out_is_no_last_message() -> None:
    broker = with_orders(compact=True, segment_bytes=4096, tombstone_retention_ms=0, dedup_window_ms=None)
    for number in range(20):
        broker.publish(f"orders.{number % 2}", b"v", headers=block("Penstock-Key: k"))
    assert told(broker, "orders.0", 0) == "wrong last sequence: 19"
    for _ in range(20):
        broker.publish("orders.1", b"v", headers=block("Penstock-Key: k"))
    for _ in range(300):
        broker.tick(100)
    assert "orders.0" not in {row.subject for row in broker.read("orders")}
    assert told(broker, "orders.0", 19) == "wrong last sequence: 0"
    assert told(broker, "orders.1", 40) == "stored as 41"


def test_the_log_is_read_again_once_a_pass_of_compaction_is_over_and_not_for_each_segment() -> None:
    broker = with_orders(compact=True, segment_bytes=4096, tombstone_retention_ms=0, dedup_window_ms=None)
    for _ in range(40):
        broker.publish("orders.a", b"v", headers=block("Penstock-Key: k"))
    (partition,) = [one for one in broker.node._partitions.values() if one.stream.name == "orders"]
    seen: list[Any] = []
    for _ in range(100):
        assert told(broker, "orders.a", 0) == "wrong last sequence: 40"
        if partition.lasts not in seen:
            seen.append(partition.lasts)
        broker.tick(100)
    assert partition.counters["cleaned_segments"] > 2
    assert len(broker.read("orders")) < 20
    assert len(seen) == 2


# What has to be searched


def leading(broker: Broker) -> Partition:
    (partition,) = [one for one in broker.node._partitions.values() if one.stream.name == "orders"]
    return partition


def filled(names: str, **config: Any) -> Broker:
    """A broker that has started again, with a message on each of these subjects."""
    broker = with_orders(**config)
    for name in names:
        broker.publish(f"orders.{name}", b"v" * 100)
    return broker.crash().start()


def test_all_subjects_of_a_read_are_searched_at_once_while_others_go_on() -> None:
    broker = filled("abcd", segment_bytes=4_096)
    broker.answer(broker.create("others"), CreateStreamResponse)
    broker.disk_runs_at_once = False
    broker.deliver([(b"orders.%c" % name, b"r%d" % n, expecting(n + 1), b"") for n, name in enumerate(b"abx")])
    broker.publish("others.a", b"v", headers=block("Penstock-Ack: leader"), reply="other")
    publish(broker, "orders.c", 3, "r3")
    searches = [work for work in broker.disk if isinstance(getattr(work.run, "__self__", None), FindLasts)]
    assert [work.lane for work in searches] == [Lane.READ]
    assert [(ack.reply, said(ack)) for ack in broker.acks] == [("other", "stored as 1")]
    broker.settle()
    heard_here = {ack.reply: said(ack) for ack in broker.acks[1:]}
    assert heard_here == {
        "r0": "stored as 5", "r1": "stored as 6", "r2": "wrong last sequence: 0", "r3": "stored as 7"
    }  # fmt: skip
    assert broker.node.in_flight_bytes == 0


def test_a_search_that_reads_for_long_goes_on_among_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LAST_SEARCH_BYTES_MAX", 1)
    broker = filled("abc")
    broker.disk_runs_at_once = False
    publish(broker, "orders.a", 1, "r1")
    lanes = []
    for _ in range(2):
        (searching,) = broker.disk
        lanes.append(searching.lane)
        broker.run_disk(0)
    assert lanes == [Lane.READ, Lane.QUERY]
    broker.settle()
    assert said(broker.acks[0]) == "stored as 4"
    broker.disk_runs_at_once = True
    assert told(broker, "orders.d", 0) == "stored as 5"


@pytest.mark.parametrize("subjects_max", [2, 4])
def test_more_subjects_than_the_table_has_room_for(monkeypatch: pytest.MonkeyPatch, subjects_max: int) -> None:
    monkeypatch.setattr(limits, "SUBJECT_TABLE_MAX", subjects_max)
    broker = with_orders(segment_bytes=4_096)
    for number in range(60):
        assert told(broker, f"orders.{number}", 0) == f"stored as {number + 1}"
    assert leading(broker).log.view().segments[1:]
    for number in range(0, 60, 7):
        assert told(broker, f"orders.{number}", 0) == f"wrong last sequence: {number + 1}"
    everything = [(b"orders.%d" % n, b"r%d" % n, expecting(n + 1), b"") for n in range(60)]
    broker.acks.clear()
    broker.deliver(everything)
    assert [said(ack) for ack in broker.acks] == [f"stored as {n + 61}" for n in range(60)]


def test_what_left_the_table_during_a_search_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBJECT_TABLE_MAX", 2)
    broker = filled("abc")
    broker.disk_runs_at_once = False
    publish(broker, "orders.a", 1)
    searching = broker.disk.pop()
    broker.disk_runs_at_once = True
    for name in "adcd":  # appended while it waits: a comes again, and leaves the table
        broker.append("orders", b"v", subject=f"orders.{name}")
    broker.disk.append(searching)
    broker.settle()
    assert [said(ack) for ack in broker.acks[-1:]] == ["wrong last sequence: 4"]


def test_rows_that_are_hidden_during_a_search_make_it_void() -> None:
    broker = filled("aab")
    broker.disk_runs_at_once = False
    publish(broker, "orders.a", 1)
    (searching,) = broker.disk
    searching.run()
    leading(broker).hide(AppliedMarks(RowSet.of([1])))
    broker.settle()
    assert said(broker.acks[-1]) == "stored as 4"


def test_a_hidden_row_is_no_last_message() -> None:
    broker = filled("aabab", segment_bytes=4_096)
    leading(broker).hide(AppliedMarks(RowSet.of([3, 4])))
    assert told(broker, "orders.a", 4) == "wrong last sequence: 2"
    assert told(broker, "orders.b", 3) == "stored as 6"


def index_files(broker: Broker) -> list[str]:
    folder = leading(broker).log.view().segments[0].path.rpartition("/")[0]
    return [name for name in broker.vfs.list(folder) if ".subjects" in name]


def test_below_the_feature_level_of_indexes_none_is_made() -> None:
    """All older subjects are learnt by one reading instead."""
    broker = with_orders(segment_bytes=4_096)
    for number in range(60):
        broker.publish(f"orders.{number}", b"v" * 200)
    broker = broker.crash().start()
    partition = leading(broker)
    partition.log.configure(replace(partition.log.config, indexes_subjects=False))
    for name in index_files(broker):
        broker.vfs.remove(f"{partition.log.view().segments[0].path.rpartition('/')[0]}/{name}")
    assert told(broker, "orders.7", 7) == "wrong last sequence: 8"
    broker.disk_runs_at_once = False
    for number, sequence in ((8, 9), (59, 60), (60, 0)):
        publish(broker, f"orders.{number}", sequence)
    assert partition.log.log_end == 63
    broker.settle()
    assert [said(ack) for ack in broker.acks[1:]] == ["stored as 61", "stored as 62", "stored as 63"]
    assert not index_files(broker)


def test_below_that_level_what_was_not_learnt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBJECT_TABLE_MAX", 4)
    broker = filled("abcdefg")
    partition = leading(broker)
    partition.log.configure(replace(partition.log.config, indexes_subjects=False))
    for number, name in enumerate("abcdefg"):
        assert told(broker, f"orders.{name}", 0) == f"wrong last sequence: {number + 1}"
    assert told(broker, "orders.h", 0) == "stored as 8"
    assert not index_files(broker)


# Several brokers


def send(brokers: Brokers, sequence: int, reply: str) -> None:
    for member in list(brokers.members.values()):
        member.publish("s", b"v", reply=reply, headers=expecting(sequence))
    brokers.settle()


def heard(broker: Broker) -> list[str]:
    return [f"{ack.reply}: {said(ack)}" for ack in broker.acks]


def test_the_next_leader_knows_what_was_last() -> None:
    brokers = with_stream()
    send(brokers, 0, "r1")
    brokers.run(500)
    old = brokers.led("s").broker_id
    brokers.kill(old)
    brokers.run(8_000)
    new = brokers.led("s")
    assert new.broker_id != old
    send(brokers, 0, "r2")
    send(brokers, 1, "r3")
    brokers.run(200)
    assert heard(new) == ["r2: wrong last sequence: 1", "r3: stored as 2"]


@each_change
def test_what_was_cut_off_is_no_last_message() -> None:
    """A leader that nobody reaches takes a message; later it leads again, without it."""
    brokers = with_stream()
    send(brokers, 0, "r1")
    brokers.run(500)
    old = brokers.led("s")
    others = [one for one in brokers.ids if one != old.broker_id]
    for number in others:
        brokers.cut(old.broker_id, number)
    for _ in range(3):
        old.publish("s", b"cut off")
    brokers.run(8_000)
    assert brokers.led("s") is not old
    send(brokers, 1, "r2")
    brokers.join(old.broker_id, *others)
    brokers.run(60_000)  # the preferred leader leads again
    assert brokers.led("s") is old
    old.acks.clear()
    send(brokers, 4, "r3")
    send(brokers, 2, "r4")
    brokers.run(500)
    assert heard(old) == ["r3: wrong last sequence: 2", "r4: stored as 3"]
