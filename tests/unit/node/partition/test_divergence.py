"""A reader whose copy the log does not hold any more is told so, and nobody else is."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, PartitionKey
from penstock.messages import CreateStreamResponse, FetchRequest, FetchResponse
from penstock.vfs.memory import Keep
from tests.unit.node.harness import Broker


def with_stream(**config: object) -> Broker:
    broker = Broker().start()
    broker.answer(broker.create("orders", **config), CreateStreamResponse)
    return broker


def publish(broker: Broker, count: int) -> None:
    for number in range(count):
        broker.publish("orders.a", b"%d" % number)


def request(broker: Broker, offset: int, leader_epoch: int | None) -> FetchRequest:
    epoch = None if leader_epoch is None else LeaderEpoch(leader_epoch)
    return FetchRequest(stream_id=broker.stream_id("orders"), offset=Offset(offset), leader_epoch=epoch)


def agreed_end(broker: Broker, offset: int, leader_epoch: int) -> int:
    """What the refusal of this fetch says."""
    error = broker.refusal(request(broker, offset, leader_epoch))
    assert error.code == ErrorCode.LOG_TRUNCATED, error
    partition = broker.stream("orders").partitions[0]
    assert error.details["offset"] == offset
    assert error.details["log_start"] == partition.log_start
    assert error.details["committed_end"] == partition.committed_end
    assert f"read on from {error.details['end_offset']}" in error.message
    return int(error.details["end_offset"])


def agrees(broker: Broker, offset: int, leader_epoch: int | None) -> None:
    broker.ask(request(broker, offset, leader_epoch), FetchResponse)


def cut_and_written_anew() -> Broker:
    """Epoch 1 wrote 0 to 9, of which power loss left 0 to 4; epoch 2 wrote 5 to 11."""
    broker = with_stream(durability="os")
    publish(broker, 5)
    broker.tick(limits.CHECKPOINT_SYNC_INTERVAL_MS)
    broker.disk_runs_at_once = False
    publish(broker, 5)
    agrees(broker, 10, 1)
    after = broker.crash(Keep.SYNCED).start()
    assert len(after.values("orders")) == 5
    publish(after, 7)
    return after


def test_rows_that_a_power_loss_took_are_missed_by_their_readers() -> None:
    broker = cut_and_written_anew()
    assert agreed_end(broker, 10, 1) == 5  # also inside of what the log holds by now
    assert agreed_end(broker, 6, 1) == 5
    assert agreed_end(broker, 100, 1) == 5  # the truth, rather than that there is no such offset
    for offset in range(6):
        agrees(broker, offset, 1)
    for offset in range(13):
        agrees(broker, offset, 2)
    agrees(broker, 10, None)  # who does not say what it has read is not asked


def test_a_memory_stream_that_began_anew_agrees_with_nobody_who_has_read_it() -> None:
    broker = with_stream(storage="memory")
    publish(broker, 10)
    agrees(broker, 10, 1)
    after = broker.crash().start()
    assert agreed_end(after, 10, 1) == 0
    publish(after, 20)
    assert agreed_end(after, 10, 1) == 0
    agrees(after, 0, 1)
    agrees(after, 10, 2)
    again = after.crash().start()
    publish(again, 30)
    assert [agreed_end(again, 10, epoch) for epoch in (1, 2)] == [0, 0]


def test_an_epoch_that_wrote_nothing_is_not_missed() -> None:
    broker = with_stream()
    publish(broker, 3)
    for _ in range(3):
        broker = broker.crash().start()
    publish(broker, 3)
    for epoch in (1, 2, 3, 4):
        agrees(broker, 3, epoch)
    assert [agreed_end(broker, 4, epoch) for epoch in (1, 2, 3)] == [3, 3, 3]


def test_an_epoch_from_the_future_agrees_only_with_what_came_before_the_newest_one() -> None:
    broker = cut_and_written_anew()
    assert agreed_end(broker, 8, 9) == 5  # this log was put back from a copy, and 2 began on it
    assert agreed_end(broker, 4, 9) == 0  # no log whose epochs rise holds both
    agrees(broker, 0, 9)


def test_forgotten_epochs_below_log_start_alarm_nobody_falsely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINEAGE_ENTRIES_MAX", 2)
    broker = with_stream(max_messages=4, segment_bytes=4_096, max_message_bytes=4_096)
    for _ in range(5):
        for number in range(4):
            broker.publish("orders.a", b"%d" % number + b"x" * 2_000)
        broker.tick(1_000)
        broker.settle()
        broker = broker.crash().start()
    broker.tick(1_000)
    partition = broker.stream("orders").partitions[0]
    log_start, log_end = int(partition.log_start), int(partition.log_end)
    assert 0 < log_start < log_end == 20
    lineage = broker.node._partitions[PartitionKey(broker.stream_id("orders"), PartitionId(0))].log.lineage
    assert lineage[0].leader_epoch > 2, "nothing was forgotten"
    for epoch in range(1, 7):
        agrees(broker, log_start, epoch)
    for offset in range(log_start, log_end + 1):
        agrees(broker, offset, (offset - 1) // 4 + 1)
    assert agreed_end(broker, log_end, 1) <= log_start  # epoch 1 ended long before
