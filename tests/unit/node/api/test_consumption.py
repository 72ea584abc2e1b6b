"""Retention `workqueue` and `interest` on one broker and on three: what acks remove, and what no consumer wants."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, PartitionId, PartitionKey
from penstock.live.row_set import RowSet
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    CreateStreamResponse,
    GetRequest,
    GetResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from penstock.node.api.consumption import Done
from penstock.node.partition.decisions import DecideRows
from penstock.node.partition.partition import Partition
from penstock.node.replicas.companions import ReadCompanionRows
from penstock.vfs.memory import Keep
from tests.unit.node.harness import Broker, rows_of
from tests.unit.node.members import Brokers, formed


class Told:
    """A caller of the node, and what it was told."""

    def __init__(self) -> None:
        self.results: list[RemoteError | None] = []

    def __call__(self, error: RemoteError | None) -> None:
        self.results.append(error)

    @property
    def codes(self) -> list[str | None]:
        return [None if one is None else one.code for one in self.results]


def made(retention: str = "workqueue", **config: object) -> Broker:
    broker = Broker().start()
    broker.answer(broker.create("jobs", retention=retention, **config), CreateStreamResponse)
    broker.settle()
    return broker


def key_of(broker: Broker) -> PartitionKey:
    return PartitionKey(broker.stream_id("jobs"), PartitionId(0))


def partition_of(broker: Broker) -> Partition:
    return broker.node._partitions[key_of(broker)]


def publish(broker: Broker, *subjects: str) -> None:
    for subject in subjects:
        broker.publish(f"jobs.{subject}", subject.encode())
    broker.settle()


def consume(broker: Broker, *offsets: int, done: Done | None = None, is_awaited: bool = True) -> Told:
    told = Told()
    broker.node.consume(key_of(broker), RowSet.of(offsets), done or told, is_awaited=is_awaited)
    broker.turn()
    return told


def wanted(broker: Broker, *filters: str) -> None:
    broker.node.tell_interest(key_of(broker), filters)
    broker.settle()


def pass_time(broker: Broker, ms: int = limits.DECISION_PAUSE_MS_MAX) -> None:
    for _ in range(2):
        broker.tick(ms)
        broker.settle()


def shown(broker: Broker) -> list[int]:
    return [row.offset for row in broker.read("jobs")]


def counted(broker: Broker) -> tuple[int, int | None]:
    """The number of messages, and the first one."""
    stream_id = broker.stream_id("jobs")
    listed = broker.ask(ListOffsetsRequest(stream_id=stream_id, at="earliest", counts_rows=True), ListOffsetsResponse)
    assert listed.live is not None
    return listed.live.rows, listed.live.first_offset


def segments(broker: Broker) -> list[str]:
    return [one for one in broker.memory.files() if "-jobs/" in one and one.endswith(".arrows")]


def alter(broker: Broker, **changes: object) -> None:
    broker.ask(AlterStreamRequest(name="jobs", changes=changes), AlterStreamResponse)
    broker.tick(1_000)
    broker.settle()


def test_a_consumed_message_is_gone_once_the_caller_is_told() -> None:
    broker = made()
    publish(broker, *"abcd")
    assert consume(broker, 0, 2).codes == [None]
    assert shown(broker) == [1, 3]
    assert counted(broker) == (2, 1)


def test_it_is_still_gone_after_a_crash() -> None:
    broker = made()
    publish(broker, *"abcd")
    assert consume(broker, 0, 2).codes == [None]
    again = broker.crash(Keep.SYNCED).start()
    again.settle()
    assert shown(again) == [1, 3]


def test_the_caller_is_not_told_before_the_mark_is_on_the_disk() -> None:
    broker = made()
    publish(broker, *"ab")
    broker.syncs_hang = True
    told = consume(broker, 0)
    assert (told.results, shown(broker)) == ([], [0, 1])
    broker.syncs_hang = False
    broker.settle()
    assert (told.codes, shown(broker)) == ([None], [1])


def test_what_comes_while_a_mark_is_under_way_shares_the_next_one() -> None:
    broker = made()
    publish(broker, *"abcdef")
    broker.syncs_hang = True
    told = [consume(broker, 0), *(consume(broker, offset) for offset in (1, 3, 5))]
    marks = partition_of(broker).visible.shown_marks
    broker.syncs_hang = False
    broker.settle()
    assert [one.codes for one in told] == [[None]] * 4
    assert partition_of(broker).visible.shown_marks == marks + 2
    assert shown(broker) == [2, 4]


def test_rows_that_no_client_waits_for_share_a_mark_after_a_pause() -> None:
    broker = made()
    publish(broker, *"abcdef")
    assert consume(broker, 0, is_awaited=False).codes == [None]
    told = [consume(broker, offset, is_awaited=False) for offset in (1, 2, 3)]
    broker.settle()
    assert [one.codes for one in told] == [[]] * 3
    assert broker.node.next_wake_us <= broker.clock.elapsed_us + limits.CONSUME_PAUSE_MS * 1_000
    marks = partition_of(broker).visible.shown_marks
    broker.tick(limits.CONSUME_PAUSE_MS)
    broker.settle()
    assert [one.codes for one in told] == [[None]] * 3
    assert partition_of(broker).visible.shown_marks == marks + 1
    told = [consume(broker, 4, is_awaited=False), consume(broker, 5, is_awaited=True)]
    assert [one.codes for one in told] == [[None]] * 2, "a client that waits ends the pause"


def test_rows_behind_the_end_and_rows_that_are_gone_are_left_out() -> None:
    broker = made()
    publish(broker, *"ab")
    assert consume(broker, 0, 1, 7).codes == [None]
    publish(broker, *"cdefgh")
    assert shown(broker) == [2, 3, 4, 5, 6, 7]
    marks = partition_of(broker).visible.shown_marks
    assert consume(broker, 0, 1).codes == [None]
    assert partition_of(broker).visible.shown_marks == marks, "nothing is left to hide, so no mark is written"


def test_a_stream_with_limits_loses_nothing() -> None:
    broker = made("limits")
    publish(broker, *"ab")
    assert consume(broker, 0).codes == [None]
    assert shown(broker) == [0, 1]


def test_a_suspended_or_sealed_stream_loses_nothing() -> None:
    broker = made()
    publish(broker, *"ab")
    alter(broker, suspend_deletion="yes")
    with pytest.raises(RemoteError, match="suspended") as refused:
        consume(broker, 0)
    assert refused.value.code == ErrorCode.READ_ONLY
    alter(broker, suspend_deletion="no")
    assert consume(broker, 0).codes == [None]
    assert shown(broker) == [1]


def test_who_creates_a_consumer_waits_for_what_is_being_consumed() -> None:
    broker = made()
    publish(broker, *"abc")
    told = [Told(), Told(), Told()]
    broker.node.when_consumed(key_of(broker), told[0])
    assert told[0].codes == [None], "nothing is under way"
    broker.syncs_hang = True
    consume(broker, 0)
    broker.node.when_consumed(key_of(broker), told[1])
    consume(broker, 1, is_awaited=False)
    broker.node.when_consumed(key_of(broker), told[2])
    broker.turn()
    assert [one.codes for one in told[1:]] == [[], []]
    broker.syncs_hang = False
    broker.settle()
    assert [one.codes for one in told[1:]] == [[None], [None]]
    assert shown(broker) == [2]


def test_callers_of_a_leadership_that_ends_are_told() -> None:
    broker = made()
    publish(broker, *"ab")
    broker.syncs_hang = True
    key, told = key_of(broker), [consume(broker, 0), consume(broker, 1)]
    broker.delete("jobs")
    broker.syncs_hang = False
    broker.settle()
    assert [len(one.results) for one in told] == [1, 1]
    assert all(code is not None for one in told for code in one.codes)
    with pytest.raises(RemoteError):
        broker.node.consume(key, RowSet.of([0]), Told())


def test_a_full_queue_takes_messages_again_once_some_are_consumed() -> None:
    broker = made(max_messages=2, discard="new")
    for subject in "ab":
        broker.publish(f"jobs.{subject}", b"", reply="r")
    broker.publish("jobs.c", b"", reply="full")
    broker.settle()
    assert {one.reply: one.err_code for one in broker.acks}["full"] == 10077
    consume(broker, 0)
    broker.publish("jobs.c", b"", reply="room")
    broker.settle()
    assert {one.reply: one.err_code for one in broker.acks}["room"] == 0
    assert shown(broker) == [1, 2]


def test_the_log_start_follows_a_consumed_prefix_and_the_files_go() -> None:
    broker = made(segment_bytes=4096, dedup_window_ms=None)
    publish(broker, *"abcdefgh" * 8)
    files = len(segments(broker))
    consume(broker, *range(40), 45)
    pass_time(broker, 1_000)
    partition = partition_of(broker)
    assert (partition.log.log_start, counted(broker)) == (40, (23, 40))
    consume(broker, *range(40, 64))
    pass_time(broker, 1_000)
    pass_time(broker, limits.RETENTION_INTERVAL_MS)
    assert partition.log.log_start == 64
    assert files > 1
    assert len(segments(broker)) == 1
    assert partition.log.hidden is None or not partition.log.hidden.count


def test_message_ids_outlive_the_messages_that_are_consumed() -> None:
    broker = made(dedup_window_ms=60_000)
    broker.publish("jobs.a", b"", headers=b"NATS/1.0\r\nNats-Msg-Id: one\r\n\r\n", reply="first")
    broker.settle()
    consume(broker, 0)
    pass_time(broker, 1_000)
    assert partition_of(broker).log.log_start == 0
    again = broker.crash(Keep.SYNCED).start()
    again.publish("jobs.a", b"", headers=b"NATS/1.0\r\nNats-Msg-Id: one\r\n\r\n", reply="second")
    again.settle()
    assert [one.body.get("duplicate") for one in again.acks] == [True]
    pass_time(again, 60_000)
    assert partition_of(again).log.log_start == 1


# Interest


def test_nothing_is_shown_before_the_consumers_are_known() -> None:
    broker = made("interest")
    added = Told()
    broker.node.add_consumer_log(key_of(broker).stream_id, added)
    broker.settle()
    assert added.codes == [None]
    publish(broker, *"ab")
    pass_time(broker)
    assert partition_of(broker).visible_end == 0
    wanted(broker, "jobs.a")
    assert shown(broker) == [0]


def test_a_message_that_no_consumer_wants_is_acked_takes_its_sequence_and_is_never_shown() -> None:
    broker = made("interest")
    wanted(broker)
    broker.publish("jobs.a", b"", reply="r")
    broker.settle()
    assert [one.body["seq"] for one in broker.acks] == [1]
    pass_time(broker)
    assert shown(broker) == []
    assert partition_of(broker).visible_end == 1
    wanted(broker, "jobs.b", "jobs.*.x")
    publish(broker, "a", "b", "c.x", "c.y")
    pass_time(broker)
    assert shown(broker) == [2, 3]
    assert counted(broker) == (2, 2)


def test_an_unwanted_message_is_not_told_as_the_last_of_its_subject() -> None:
    broker = made("interest")
    wanted(broker, "jobs.a")
    publish(broker, "a")
    pass_time(broker)
    wanted(broker, "jobs.b")
    broker.hung = (DecideRows,)
    broker.publish("jobs.a", b"unwanted")
    asked = broker.request(GetRequest(stream_id=broker.stream_id("jobs"), subject="jobs.a"))
    broker.turn()
    assert (partition_of(broker).committed_end, partition_of(broker).lasts_end) == (2, 1)
    assert asked in broker.open_requests, "it waits until the message is decided on"
    broker.hung = ()
    pass_time(broker)
    assert broker.answer(asked, GetResponse).offset == 0


def test_a_message_that_is_committed_after_its_consumer_was_told_is_kept() -> None:
    broker = made("interest")
    wanted(broker)
    publish(broker, "a")
    pass_time(broker)
    broker.hung = (ReadCompanionRows,)
    broker.syncs_hang = True
    for subject in "ab":  # the decision on the first one is under way, the second one is not committed
        broker.publish(f"jobs.{subject}", subject.encode())
    broker.turn()
    broker.node.tell_interest(key_of(broker), ["jobs.>"])
    broker.hung, broker.syncs_hang = (), False
    publish(broker, "c")
    pass_time(broker)
    assert shown(broker) in ([1, 2, 3], [2, 3], [3])
    assert 3 in shown(broker)


def test_an_unwanted_message_replaces_none_that_is_wanted() -> None:
    broker = made("interest", max_messages_per_subject=1)
    wanted(broker, "jobs.a")
    publish(broker, *"ab")
    pass_time(broker)
    wanted(broker, "jobs.b")
    publish(broker, *"ab")
    pass_time(broker)
    assert shown(broker) == [0, 3]


def test_what_a_stream_has_when_it_gets_this_retention_stays() -> None:
    broker = made("limits")
    publish(broker, *"ab")
    alter(broker, retention="interest")
    wanted(broker, "jobs.b")
    publish(broker, *"ab")
    pass_time(broker)
    assert shown(broker) == [0, 1, 3]
    alter(broker, retention="limits")
    pass_time(broker, 1_000)
    publish(broker, *"ab")
    assert shown(broker) == [0, 1, 3, 4, 5]
    again = broker.crash(Keep.SYNCED).start()
    again.settle()
    alter(again, retention="interest")
    wanted(again)
    publish(again, *"ab")
    pass_time(again)
    assert shown(again) == [0, 1, 3, 4, 5]


def test_what_is_stored_while_deletion_is_suspended_stays() -> None:
    broker = made("interest")
    wanted(broker)
    publish(broker, "a")
    pass_time(broker)
    alter(broker, suspend_deletion="yes")
    publish(broker, "b")
    assert 1 in shown(broker)
    alter(broker, suspend_deletion="no")
    publish(broker, "c")
    pass_time(broker)
    assert shown(broker) == [1]


# Replicas


def shown_at(brokers: Brokers, broker: Broker) -> list[int]:
    caller = broker.fetch("jobs", 0)
    brokers.settle()
    stream_id = broker.stream_id("jobs")
    return [row.offset for row in rows_of(broker.payloads[caller], stream_id)] if caller in broker.payloads else []


@pytest.mark.parametrize("consumed", [(0, 2), (0, 1, 2), (3,)])
def test_the_next_leader_shows_nothing_that_was_consumed(consumed: Sequence[int]) -> None:
    brokers = formed()
    leader = brokers.leader
    leader.create("jobs", retention="workqueue", replicas=3)
    brokers.run(1_000)
    first = brokers.led("jobs")
    for subject in "abcd":
        brokers.publish(f"jobs.{subject}", subject.encode())
        brokers.settle()
    brokers.run(1_000)
    told = Told()
    first.node.consume(key_of(first), RowSet.of(consumed), told, is_awaited=True)
    brokers.settle()
    brokers.run(100)
    assert told.codes == [None]
    brokers.kill(first.node.broker_id)
    brokers.run(60_000)
    second = brokers.led("jobs")
    assert second.node.broker_id != BrokerId(first.node.broker_id)
    rest = [offset for offset in range(4) if offset not in consumed]
    partition = second.node._partitions[key_of(second)]
    hidden = partition.log.hidden
    assert hidden is not None
    assert [offset for offset in range(4) if offset not in hidden] == rest
