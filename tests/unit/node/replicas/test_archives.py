"""Archives report what they have, and retention waits for them: through leaders, epochs and restarts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.base.ids import LeaderEpoch, Offset, PartitionId
from penstock.base.subjects import partition_subject
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    CreateStreamResponse,
    PartitionInfo,
    ReportArchivedRequest,
    ReportArchivedResponse,
    TruncateRequest,
    TruncateResponse,
)
from tests.unit.node.harness import Broker
from tests.unit.node.members import formed


class Archived(Broker):
    """A broker with a stream that keeps three messages, and those that are not archived."""

    def __init__(self, subject: str | None = None, **config: Any) -> None:
        super().__init__()
        self.start()
        wanted = {"retain": "until-archived", "max_messages": 3, "segment_bytes": 4_096} | config
        self.answer(self.create("orders", subject, **wanted), CreateStreamResponse)

    def fill(self, count: int = 12) -> None:
        for number in range(count):
            self.publish("orders.a", bytes([number]) * 1_000)
        self.settle()

    def request_of(
        self, end: int | None, archive: str = "lake", partition: int = 0, epoch: int | None = None
    ) -> ReportArchivedRequest:
        return ReportArchivedRequest(
            stream_id=self.stream_id("orders"),
            partition=PartitionId(partition),
            archive=archive,
            end_offset=None if end is None else Offset(end),
            archived_epoch=None if epoch is None else LeaderEpoch(epoch),
        )

    def report(self, end: int | None, archive: str = "lake", partition: int = 0) -> int | None:
        return self.ask(self.request_of(end, archive, partition), ReportArchivedResponse).archived_end

    def part(self, number: int = 0) -> PartitionInfo:
        return self.stream("orders").partitions[number]

    def log_start(self) -> int | None:
        """Once retention has had its time."""
        for _ in range(3):
            self.tick(2_000)
            self.settle()
        return self.part().log_start


def test_nothing_goes_before_an_archive_has_reported() -> None:
    broker = Archived()
    broker.fill()
    assert broker.log_start() == 0
    assert (broker.part().archived_end, broker.part().archives) == (None, {})
    assert broker.report(0) == 0
    assert broker.log_start() == 0


def test_what_is_archived_goes_as_far_as_the_limits_say() -> None:
    broker = Archived()
    broker.fill()
    assert broker.report(5) == 5
    assert broker.log_start() == 5
    assert broker.report(12) == 12
    assert broker.log_start() == 9
    assert (broker.part().archived_end, broker.part().archives) == (12, {"lake": 12})


def test_the_archive_that_has_least_counts() -> None:
    broker = Archived()
    broker.fill()
    assert broker.report(2, "slow") == 2
    assert broker.report(7, "fast") == 2
    assert broker.log_start() == 2
    assert broker.report(None, "slow") == 7
    assert broker.log_start() == 7
    assert broker.report(None, "fast") is None
    broker.fill()
    assert broker.log_start() == 7


def test_a_late_report_takes_nothing_back() -> None:
    broker = Archived()
    broker.fill()
    broker.report(8)
    assert broker.report(4) == 8
    assert broker.part().archives == {"lake": 8}


def test_an_archive_that_has_not_told_of_a_partition_has_nothing_of_it() -> None:
    broker = Archived("orders", partitions=2)
    for partition in (0, 1):
        broker.append("orders", b"x", b"y", subject=partition_subject("orders", partition), partition=partition)
    assert broker.report(2, "a", 0) == 2
    assert broker.report(2, "b", 1) == 0
    assert (broker.part(0).archived_end, broker.part(1).archived_end) == (0, 0)
    assert broker.report(1, "b", 0) == 1


def test_what_is_not_committed_cannot_be_archived() -> None:
    broker = Archived()
    broker.fill(3)
    refusal = broker.refusal(broker.request_of(4))
    assert (refusal.code, refusal.details["committed_end"]) == (ErrorCode.OFFSET_OUT_OF_RANGE, 3)


def test_a_stream_has_few_archives() -> None:
    broker = Archived()
    for number in range(limits.ARCHIVES_MAX):
        broker.report(0, f"a{number}")
    assert broker.refusal(broker.request_of(0, "one-more")).code == ErrorCode.BAD_REQUEST
    broker.report(None, "a0")
    assert broker.report(0, "one-more") == 0


def test_another_leader_knows_it() -> None:
    before = Archived()
    before.fill()
    before.report(5)
    before.stop()
    after = Archived.__new__(Archived)
    Broker.__init__(after, before.memory, clock=before.clock)
    after.start()
    assert after.part().archives == {"lake": 5}
    assert after.log_start() == 5
    assert after.report(6) == 6
    assert after.log_start() == 6


def test_what_began_anew_is_not_archived() -> None:
    """A memory stream is empty after a restart: other messages stand at the offsets that were archived."""
    before = Archived(storage="memory")
    before.fill()
    before.report(12)
    before.stop()
    after = Archived.__new__(Archived)
    Broker.__init__(after, before.memory, clock=before.clock)
    after.start()
    after.fill()
    assert after.part().archives == {"lake": 12}
    assert after.part().archived_end == 0
    assert after.log_start() == 0


def test_what_was_archived_of_a_log_that_began_anew_is_no_report() -> None:
    """As many messages are there again: only the epoch tells that they are others, which nobody has archived."""
    before = Archived(storage="memory")
    before.fill()
    archived_epoch = before.part().leader_epoch
    before.stop()
    after = Archived.__new__(Archived)
    Broker.__init__(after, before.memory, clock=before.clock)
    after.start()
    after.fill()
    refusal = after.refusal(after.request_of(12, epoch=archived_epoch))
    assert (refusal.code, refusal.details["end_offset"]) == (ErrorCode.LOG_TRUNCATED, 0)
    assert after.log_start() == 0
    assert after.part().archives == {}
    now = after.request_of(12, epoch=after.part().leader_epoch)
    assert after.ask(now, ReportArchivedResponse).archived_end == 12
    assert after.log_start() == 9


def test_what_an_earlier_leader_told_and_is_still_there_counts() -> None:
    before = Archived()
    before.fill()
    archived_epoch = before.part().leader_epoch
    before.stop()
    after = Archived.__new__(Archived)
    Broker.__init__(after, before.memory, clock=before.clock)
    after.start()
    after.fill(3)
    assert after.ask(after.request_of(12, epoch=archived_epoch), ReportArchivedResponse).archived_end == 12
    refusal = after.refusal(after.request_of(13, epoch=archived_epoch))
    assert (refusal.code, refusal.details["end_offset"]) == (ErrorCode.LOG_TRUNCATED, 12)


@pytest.mark.parametrize(("retain", "expected"), [("limits", 9), ("until-archived", 0)])
def test_the_config_can_be_altered(retain: str, expected: int) -> None:
    broker = Archived(retain="limits", max_messages=None)
    broker.fill()
    changes = {"retain": retain, "max_messages": 3}
    broker.ask(AlterStreamRequest(name="orders", changes=changes), AlterStreamResponse)
    assert broker.log_start() == expected


def test_others_than_retention_do_not_wait() -> None:
    broker = Archived()
    broker.fill()
    request = TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(4))
    caller = broker.request(request)
    broker.settle()
    broker.tick(1_000)
    broker.settle()
    assert broker.answer(caller, TruncateResponse).log_start == 4


def test_leaders_hand_reports_on_to_whoever_leads_the_metadata() -> None:
    brokers = formed()
    for number in range(3):  # each broker leads one of them
        name = f"s{number}"
        brokers.leader.create(name, subject=name, replicas=3)
        brokers.run(500)
    leaders = {brokers.led(f"s{number}").broker_id for number in range(3)}
    assert len(leaders) == 3
    for number in range(3):
        name = f"s{number}"
        leader = brokers.led(name)
        request = ReportArchivedRequest(stream_id=leader.stream_id(name), archive="lake", end_offset=Offset(0))
        caller = leader.request(request)
        brokers.run(500)
        assert leader.answer(caller, ReportArchivedResponse).archived_end == 0
