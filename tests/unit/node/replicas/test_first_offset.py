"""Streams whose logs begin at an offset of the creator's choice."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import count
from random import Random

import pytest

from penstock.base.ids import Offset
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.vfs.faulty import CHANGES, FileFault, FileOperation, no_faults
from penstock.vfs.memory import Keep
from tests.unit.node.harness import Broker
from tests.unit.node.members import formed

CONFIG = {"first_offset": 999}


def offsets(broker: Broker, partition: int = 0) -> list[int]:
    return [int(row.offset) for row in broker.read("orders", partition)]


def ends(broker: Broker) -> tuple[int | None, int | None]:
    part = broker.stream("orders").partitions[0]
    return part.log_start, part.committed_end


def test_the_first_message_has_the_first_offset_also_after_a_restart() -> None:
    broker = Broker().start()
    broker.create("orders", **CONFIG)
    assert ends(broker) == (999, 999)
    broker = broker.crash().start()
    assert ends(broker) == (999, 999)
    broker.publish("orders.a", b"x", reply="r", count=2)
    broker.settle()
    assert [ack.body["seq"] for ack in broker.acks] == [1000, 1001]
    broker.stop()
    broker = broker.crash().start()
    assert (ends(broker), offsets(broker)) == ((999, 1001), [999, 1000])
    assert broker.notices == []


def test_messages_are_deleted_and_purged_as_in_any_other() -> None:
    broker = Broker().start()
    broker.create("orders", **CONFIG)
    stream_id = broker.stream_id("orders")
    empty = broker.ask(TruncateRequest(stream_id=stream_id, before=Offset(999)), TruncateResponse)
    assert (empty.log_start, empty.messages) == (999, 0)
    broker.publish("orders.a", b"x", reply="r", count=4)
    gone = broker.ask(DeleteMessagesRequest(stream_id=stream_id, offsets=(Offset(1000),)), DeleteMessagesResponse)
    assert (gone.deleted, offsets(broker)) == (1, [999, 1001, 1002])
    purged = broker.ask(TruncateRequest(stream_id=stream_id, before=Offset(1002)), TruncateResponse)
    assert (purged.messages, offsets(broker)) == (2, [1002])


def test_a_stream_in_memory_begins_there_each_time() -> None:
    broker = Broker().start()
    broker.create("orders", storage="memory", **CONFIG)
    broker.publish("orders.a", b"x")
    assert offsets(broker) == [999]
    broker = broker.crash().start()
    assert ends(broker) == (999, 999)


def test_partitions_begin_there_each_also_those_that_are_added() -> None:
    broker = Broker().start()
    broker.create("orders", "orders", partitions=2, **CONFIG)
    broker.ask(AlterStreamRequest(name="orders", changes={"partitions": 3}), AlterStreamResponse)
    broker.append("orders", b"x", subject="orders.2", partition=2)
    assert [(part.log_start, part.committed_end) for part in broker.stream("orders").partitions] == [
        (999, 999),
        (999, 999),
        (999, 1000),
    ]
    assert offsets(broker, 2) == [999]


@pytest.mark.parametrize("keep", list(Keep))
def test_a_disk_error_while_the_log_is_made_changes_nothing_of_where_it_begins(keep: Keep) -> None:
    for operation in range(100):
        broker, seen = Broker().start(), count()

        def fails(one: FileOperation, seen: Iterator[int] = seen, first: int = operation) -> FileFault | None:
            is_counted = one.kind in CHANGES and "orders" in one.path
            return FileFault(errno.EIO) if is_counted and next(seen) >= first else None

        broker.vfs.plan = fails
        broker.create("orders", **CONFIG)
        has_failed = next(seen) > operation
        after = broker.crash(keep, Random(operation) if keep is Keep.SUBSET else None).start()
        broker.vfs.plan = no_faults
        broker.tick(60_000)
        for one in (broker, after):
            one.publish("orders.a", b"x")
            assert (operation, offsets(one)) == (operation, [999])
        if not has_failed:
            break
    assert 10 < operation < 99


def test_replicas_begin_there_and_a_broker_with_an_empty_disk_too() -> None:
    brokers = formed()
    caller = brokers[1].create("orders", replicas=3, min_isr=2, **CONFIG)
    brokers.run(2_000)
    assert caller not in brokers[1].open_requests
    first = brokers.led("orders")
    brokers.kill(int(first.broker_id))
    brokers.run(20_000)
    second = brokers.led("orders")
    assert second is not first
    assert ends(second) == (999, 999)
    brokers.publish("orders.a", b"x", b"y")
    brokers.run(1_000)
    assert offsets(second) == [999, 1000]
    brokers.start(int(first.broker_id), disk="another")
    brokers.run(20_000)
    assert len(brokers.partition("orders").isr) == 3
    brokers.kill(int(second.broker_id))
    brokers.run(20_000)
    assert offsets(brokers.led("orders")) == [999, 1000]
