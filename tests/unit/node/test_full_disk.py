"""A disk without a free block: what frees room goes through, everything can be read, and a start is never refused."""

from __future__ import annotations

import errno

import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode
from penstock.base.ids import Offset
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    CreateStreamRequest,
    DeleteStreamRequest,
    DeleteStreamResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.raft.tasks import LOG_PATH, RESERVE_PATH
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind
from penstock.vfs.memory import Keep
from tests.extent import each_change
from tests.full_disk import fill
from tests.unit.node.harness import Broker


def journal_refuses(operation: FileOperation) -> FileFault | None:
    is_journal = operation.kind is FileOperationKind.WRITE and operation.path in (LOG_PATH, RESERVE_PATH)
    return FileFault(errno.ENOSPC) if is_journal else None


@pytest.fixture
def broker() -> Broker:
    broker = Broker().start()
    broker.create("orders")
    broker.publish("orders.a", b"before", reply="r1")
    return broker


def test_streams_are_altered_and_deleted_on_a_full_disk(broker: Broker) -> None:
    fill(broker.vfs)
    for number in range(200):
        broker.ask(AlterStreamRequest(name="orders", changes={"max_messages": 1_000 + number}), AlterStreamResponse)
    assert broker.stream("orders").config.max_messages == 1_199
    broker.ask(DeleteStreamRequest(name="orders"), DeleteStreamResponse)
    assert not [path for path in broker.memory.files() if path.startswith("streams/")]


def test_what_is_given_up_makes_room_on_a_full_disk(broker: Broker) -> None:
    broker.publish("orders.a", b"after", reply="r2")
    fill(broker.vfs)
    request = TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(1))
    assert broker.ask(request, TruncateResponse).messages == 1
    assert broker.crash().start().values("orders") == [b"after"]


@each_change
def test_a_broker_starts_again_and_again_on_a_full_disk(broker: Broker) -> None:
    fill(broker.vfs)
    for number in range(200):
        plan = broker.vfs.plan
        broker = broker.crash(Keep.ALL)
        broker.vfs.plan = plan
        fill(broker.vfs)
        broker.start()
        assert broker.values("orders") == [b"before"]
        assert broker.stream("orders").partitions[0].leader_epoch == number + 2


def test_a_start_that_cannot_be_journaled_serves_reads_and_leads_once_there_is_room(broker: Broker) -> None:
    broker.vfs.plan = journal_refuses
    broker = broker.crash()
    broker.vfs.plan = journal_refuses
    broker.start()
    assert any("streams can be read, and store nothing until the disk has room" in notice for notice in broker.notices)
    assert broker.values("orders") == [b"before"]
    broker.publish("orders.a", b"no", reply="r2")
    broker.tick(1_000)
    broker.publish("orders.a", b"no", reply="r3")
    assert broker.acks == []  # it is not subscribed: nats-server answers that nobody responds
    assert broker.stream("orders").partitions[0].state == "no_leader"
    request = TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(1))
    assert broker.refusal(request).code == ErrorCode.NOT_LEADER
    broker.vfs.plan = lambda operation: None
    broker.tick(1_000)
    broker.tick(1_000)
    info = broker.stream("orders").partitions[0]
    assert (info.state, info.leader_epoch) == ("online", 2)
    broker.publish("orders.a", b"after", reply="r4")
    assert broker.acks[-1].body["seq"] == 2
    assert broker.values("orders") == [b"before", b"after"]
    again = broker.crash().start()
    assert again.values("orders") == [b"before", b"after"]
    assert again.stream("orders").partitions[0].leader_epoch == 3


def test_a_stream_made_before_the_start_is_journaled_is_led_as_well(broker: Broker) -> None:
    broker = broker.crash()
    broker.vfs.plan = journal_refuses
    broker.start()
    refusal = broker.refusal(CreateStreamRequest(config=StreamConfig(name="late", subject="late.>")))
    assert "No space" in refusal.message
    broker.vfs.plan = lambda operation: None
    broker.tick(1_000)
    broker.tick(1_000)
    broker.create("late")
    broker.publish("late.x", b"yes", reply="r3")
    assert broker.acks[-1].body["seq"] == 1
