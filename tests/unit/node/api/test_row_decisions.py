"""Limits by subject on one broker: what readers are shown, and that they wait for decisions on what was acked."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import msgspec
import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.live.marks import Decided, HideReason, HideRows, MadeUnder, Mark, encode
from penstock.live.row_set import RowSet
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    FetchResponse,
    GetRequest,
    GetResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListSubjectsRequest,
    ListSubjectsResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.node.partition.decisions import DecideRows
from penstock.node.partition.partition import Partition
from penstock.node.replicas.companions import CompanionRow, ReadCompanionRows
from penstock.vfs.memory import Keep
from tests.unit.node.harness import Broker, rows_of


def limited(limit: int | None = 1, **config: object) -> Broker:
    broker = Broker().start()
    broker.create("orders", segment_bytes=4096, max_messages_per_subject=limit, **config)
    broker.settle()
    return broker


def publish(broker: Broker, *subjects: str) -> None:
    for subject in subjects:
        broker.publish(f"orders.{subject}", subject.encode())


def decide(broker: Broker) -> None:
    """Decide on all that is committed; a second decision comes after a pause."""
    broker.hung = ()
    for _ in range(2):
        broker.settle()
        broker.tick(limits.DECISION_PAUSE_MS_MAX)
    broker.settle()


def offsets(broker: Broker) -> list[int]:
    if not broker.hung:
        decide(broker)
    return [row.offset for row in broker.read("orders")]


def test_a_limit_without_a_message_says_nothing_of_an_erasure() -> None:
    broker = Broker().start()
    broker.create("orders", max_messages_per_subject=1)
    broker.tick(1_000)
    (part,) = broker.stream("orders").partitions
    assert (part.to_erase, part.to_erase_reason) == (0, "")


def shown(broker: Broker) -> tuple[list[int], int]:
    """Offsets of the messages that a reader gets, and the end that it is told."""
    found: list[int] = []
    start = end = 0
    while start < end or not start:
        caller = broker.fetch("orders", start)
        answer = broker.answer(caller, FetchResponse)
        rows = rows_of(broker.payloads[caller], broker.stream_id("orders")) if caller in broker.payloads else []
        found += [row.offset for row in rows]
        start, end = answer.end_offset, answer.committed_end
    return found, end


def partition_of(broker: Broker) -> Partition:
    return next(one for key, one in broker.node._partitions.items() if key.stream_id == broker.stream_id("orders"))


def alter(broker: Broker, **changes: object) -> None:
    request = AlterStreamRequest(name="orders", changes=changes)
    broker.ask(request, AlterStreamResponse)
    broker.tick(1_000)
    broker.settle()


def get_last(broker: Broker, subject: str) -> Hashable:
    return broker.request(GetRequest(stream_id=broker.stream_id("orders"), subject=f"orders.{subject}"))


def undecided(limit: int = 1) -> Broker:
    """Messages 0 and 1 are shown; messages 2 and 3, on the same subjects, are acked and not decided on."""
    broker = limited(limit)
    publish(broker, *"ab")
    assert offsets(broker) == [0, 1]
    broker.hung = (DecideRows,)
    publish(broker, *"ab")
    broker.tick(limits.DECISION_PAUSE_MS_MAX)
    return broker


def test_lone_messages_share_a_decision_unless_a_reader_asks_for_more_than_is_shown() -> None:
    broker = limited(1)
    publish(broker, "a")
    assert offsets(broker) == [0]
    partition = partition_of(broker)
    broker.tick(limits.DECISION_PAUSE_MS_MAX)
    broker.settle()

    def publish_one(wait_ms: int) -> int:
        publish(broker, "a")
        broker.tick(wait_ms)
        broker.settle()
        return partition.visible_end

    assert publish_one(0) == 2, "the first one after a pause is decided on at once"
    assert publish_one(limits.DECISION_PAUSE_MS) == 2
    assert publish_one(limits.DECISION_PAUSE_MS_MAX - limits.DECISION_PAUSE_MS) == 4
    assert publish_one(0) == 4
    caller = broker.fetch("orders", 4, wait_ms_max=1_000)
    assert publish_one(limits.DECISION_PAUSE_MS) == 6
    assert broker.answer(caller, FetchResponse).base_offset == 4


def test_a_leader_reads_none_of_the_marks_that_it_has_just_written() -> None:
    broker = limited(1)
    publish(broker, "a")
    assert offsets(broker) == [0]
    broker.hung = (ReadCompanionRows,)
    broker.tick(limits.DECISION_PAUSE_MS_MAX)
    publish(broker, *"ab")
    broker.tick(limits.DECISION_PAUSE_MS_MAX)
    broker.settle()
    assert shown(broker) == ([1, 2], 3)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_only_the_last_messages_of_each_subject_are_shown(limit: int) -> None:
    broker = limited(limit)
    subjects = "abcabaacddccaab" * 3
    rows: dict[str, list[int]] = {}
    for offset, subject in enumerate(subjects):
        publish(broker, subject)
        rows.setdefault(subject, []).append(offset)
        if offset % 7 == 0:
            assert offsets(broker) == sorted(one for of in rows.values() for one in of[-limit:])
    assert offsets(broker) == sorted(one for of in rows.values() for one in of[-limit:])


def test_a_message_whose_time_to_live_is_over_counts_no_more_once_it_was_removed() -> None:
    broker = limited(2, allow_message_ttl=True, segment_age_ms=1_000, dedup_window_ms=None)
    publish(broker, "a")
    broker.publish("orders.a", b"short", headers=b"NATS/1.0\r\nNats-TTL: 5s\r\n\r\n")
    assert offsets(broker) == [0, 1]
    broker.tick(2_000)  # rolls
    publish(broker, "b")
    decide(broker)
    for _ in range(120):
        broker.tick(1_000)
        broker.settle()
    assert offsets(broker) == [0, 2]
    publish(broker, "a")
    assert offsets(broker) == [0, 2, 3]
    publish(broker, "a")
    assert offsets(broker) == [2, 3, 4]


@pytest.mark.parametrize("limit", [1, 2])
def test_a_broker_that_starts_again_goes_on_with_what_its_log_holds(limit: int) -> None:
    broker = limited(limit)
    publish(broker, *"abcab")
    broker.settle()
    for number in range(3):
        broker = broker.crash().start()
        broker.tick(1_000)
        publish(broker, *"ad" if number else "cd")
        broker.settle()
    last = {"a": [0, 3, 7, 9], "b": [1, 4], "c": [2, 5], "d": [6, 8, 10]}
    assert offsets(broker) == sorted(one for of in last.values() for one in of[-limit:])


def test_no_message_is_shown_before_it_is_decided_which_ones_it_hides() -> None:
    broker = undecided()
    partition = partition_of(broker)
    assert (partition.visible_end, partition.committed_end) == (2, 4)
    waiting = broker.fetch("orders", 2, wait_ms_max=60_000)
    answer = broker.answer(broker.fetch("orders", 0), FetchResponse)
    assert (answer.end_offset, answer.committed_end) == (2, 2)
    assert waiting in broker.open_requests
    decide(broker)
    assert broker.answer(waiting, FetchResponse).end_offset > 2
    assert offsets(broker) == [2, 3]


def test_a_list_of_subjects_waits_until_all_that_was_acked_is_decided_on() -> None:
    broker = undecided()
    request = ListSubjectsRequest(stream_id=broker.stream_id("orders"), subjects=(">",))
    listing = broker.request(msgspec.structs.replace(request, limit=10))
    counting = broker.request(request)
    assert {listing, counting} <= set(broker.open_requests)
    decide(broker)
    listed = broker.answer(listing, ListSubjectsResponse)
    assert [(one.subject, one.messages, one.last_offset) for one in listed.subjects] == [
        ("orders.a", 1, 2),
        ("orders.b", 1, 3),
    ]
    counted = broker.answer(counting, ListSubjectsResponse)
    assert (counted.messages, counted.committed_end) == (2, 4)


def test_a_request_for_the_last_message_waits_until_all_that_was_acked_is_decided_on() -> None:
    broker = undecided()
    stream_id = broker.stream_id("orders")
    by_subject = get_last(broker, "a")
    by_offset = broker.request(GetRequest(stream_id=stream_id, offset=Offset(3)))
    latest = broker.request(ListOffsetsRequest(stream_id=stream_id, at="latest", counts_rows=True))
    earlier = broker.request(GetRequest(stream_id=stream_id, offset=Offset(1)))
    broker.turn()
    assert {by_subject, by_offset, latest, earlier} <= broker.open_requests
    decide(broker)
    error = broker.replies[earlier].response
    assert isinstance(error, RemoteError)
    assert error.code == ErrorCode.MESSAGE_NOT_FOUND, "what was acked has replaced it"
    assert broker.answer(by_subject, GetResponse).offset == 2
    assert broker.answer(by_offset, GetResponse).offset == 3
    listed = broker.answer(latest, ListOffsetsResponse)
    assert listed.live is not None
    assert (listed.offset, listed.committed_end, listed.live.rows) == (4, 4, 2)


def test_a_request_does_not_wait_for_ever() -> None:
    broker = undecided()
    waiting = get_last(broker, "a")
    broker.tick(6_000)
    error = broker.replies[waiting].response
    assert isinstance(error, RemoteError)
    assert error.code == ErrorCode.NOT_YET
    assert "not decided on yet" in str(error)


def test_a_message_that_is_deleted_at_once_has_hidden_the_one_before_it() -> None:
    broker = undecided()
    caller = broker.request(DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=(Offset(2),)))
    broker.turn()
    assert caller in broker.open_requests
    decide(broker)
    assert broker.answer(caller, DeleteMessagesResponse).deleted == 1
    assert offsets(broker) == [3]


def test_a_limit_in_messages_applies_to_what_a_decision_shows() -> None:
    broker = limited(1, max_messages=3)
    publish(broker, *"abcdef")  # nothing is published after them: the decision alone pushes out
    assert offsets(broker) == [3, 4, 5]
    publish(broker, *"dd")
    assert offsets(broker) == [4, 5, 7]
    alter(broker, max_messages_per_subject=None)
    assert offsets(broker) == [4, 5, 7]


def test_a_deleted_message_does_not_count() -> None:
    broker = limited(2)
    publish(broker, *"aaab")
    assert offsets(broker) == [1, 2, 3]
    broker.ask(
        DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=(Offset(2),)), DeleteMessagesResponse
    )
    publish(broker, "a")
    assert offsets(broker) == [1, 3, 4]
    publish(broker, "a")
    assert offsets(broker) == [3, 4, 5]


def test_a_limit_that_is_set_applies_to_what_is_there_and_shows_no_less_meanwhile() -> None:
    broker = limited(None)
    publish(broker, *"aabbab")
    assert offsets(broker) == [0, 1, 2, 3, 4, 5]
    broker.hung = (DecideRows,)
    alter(broker, max_messages_per_subject=2)
    partition = partition_of(broker)
    publish(broker, "a")
    broker.turn()
    assert (partition.visible_end, partition.committed_end) == (6, 7), "what readers have seen stays"
    decide(broker)
    assert offsets(broker) == [3, 4, 5, 6]
    alter(broker, max_messages_per_subject=1)
    assert offsets(broker) == [5, 6]
    alter(broker, max_messages_per_subject=3)
    publish(broker, *"aaa")
    assert offsets(broker) == [5, 7, 8, 9]
    alter(broker, max_messages_per_subject=None)
    publish(broker, *"aaa")
    assert offsets(broker) == [5, 7, 8, 9, 10, 11, 12], "what was hidden stays hidden"


def test_a_lower_limit_is_carried_on_after_a_crash_in_the_midst() -> None:
    broker = limited(2)
    publish(broker, *"abaabb")
    assert offsets(broker) == [2, 3, 4, 5]
    broker.hung = (DecideRows,)
    alter(broker, max_messages_per_subject=1)
    after = broker.crash().start()
    after.tick(1_000)
    assert offsets(after) == [3, 5]


def test_a_decision_by_the_limit_before_leaves_no_subject_without_its_last_message() -> None:
    broker = limited(2)
    publish(broker, *"ab")
    assert offsets(broker) == [0, 1]
    broker.hung = (DecideRows,)
    broker.publish("orders.a", b"1", b"2", b"3")
    broker.tick(limits.DECISION_PAUSE_MS_MAX)
    broker.request(AlterStreamRequest(name="orders", changes={"max_messages_per_subject": 1}))
    broker.turn()
    assert partition_of(broker).stream.config.subject_limit == 1
    assert shown(broker) == ([0, 1], 2)
    broker.run_disk()  # the decision that was under way, by the limit of 2; the next one hangs
    broker.turn()
    assert shown(broker) == ([1, 3, 4], 5)
    decide(broker)
    assert offsets(broker) == [1, 4]


def test_a_stream_whose_deletion_is_suspended_shows_all_until_it_is_not() -> None:
    broker = limited(1)
    publish(broker, *"aab")
    assert offsets(broker) == [1, 2]
    alter(broker, suspend_deletion="yes")
    publish(broker, *"bb")
    assert offsets(broker) == [1, 2, 3, 4]
    alter(broker, suspend_deletion="no")
    publish(broker, "a")
    assert offsets(broker) == [4, 5]


def test_what_is_hidden_stays_so_if_it_cannot_be_marked_and_is_marked_later() -> None:
    broker = limited(1)
    publish(broker, "a")
    broker.settle()
    broker.hung = (DecideRows,)
    publish(broker, "a")
    broker.turn()
    broker.tick(1_000)
    broker.hung = ()
    broker.tick(1_000)
    assert offsets(broker) == [1]


def test_a_replica_hides_nothing_before_the_messages_that_hide_it_are_known_to_be_committed() -> None:
    broker = limited(1)
    publish(broker, "a")
    assert offsets(broker) == [0]
    broker.hung = (DecideRows,)
    partition = partition_of(broker)
    hidden = broker.node._replicas.hidden_rows

    def told(number: int, *rows: int, end: int) -> None:
        under = MadeUnder(leader_epoch=1, log_end=9, decided_end=end, limit=1)
        mark = HideRows(under, HideReason.LIMIT, RowSet.of(rows))
        row = CompanionRow(Offset(number), b"limit", encode(mark))
        hidden.take(partition.key, hidden.applying(partition.key)([row]), number + 1)

    told(1, 0, end=2)
    told(2, 1, end=3)
    told(3, 2, end=4)
    assert shown(broker) == ([0], 1)
    publish(broker, "a")
    assert shown(broker) == ([1], 2)
    publish(broker, "a")
    assert shown(broker) == ([1], 2), "of those that wait, the first and the newest are kept"
    publish(broker, "a")
    assert shown(broker) == ([3], 4)


def test_a_replica_shows_no_row_that_is_known_to_be_erased_while_later_marks_wait_for_messages() -> None:
    broker = limited(1)
    publish(broker, "a")
    assert offsets(broker) == [0]
    broker.hung = (DecideRows,)
    partition = partition_of(broker)
    hidden = broker.node._replicas.hidden_rows
    under = MadeUnder(leader_epoch=1, log_end=2)
    told: list[Mark] = [
        HideRows(replace(under, decided_end=2, limit=1), HideReason.LIMIT, RowSet.of([0])),
        HideRows(under, HideReason.DELETE, RowSet.of([1]), is_secure=True),
        Decided(replace(under, log_end=3, decided_end=3, limit=1)),
    ]
    for number, one in enumerate(told, 1):
        row = CompanionRow(Offset(number), one.kind.encode(), encode(one))
        hidden.take(partition.key, hidden.applying(partition.key)([row]), number + 1)
    publish(broker, "a")
    assert shown(broker) == ([], 2), "its leader has erased it: the log may have a blank row in its place"
    publish(broker, "a")
    assert shown(broker) == ([2], 3)


def test_all_that_was_committed_by_then_is_shown() -> None:
    broker = undecided()
    partition = partition_of(broker)
    assert partition.shown_as_of(1_000) != 1_000
    decide(broker)
    assert partition.shown_as_of(2_000) == 2_000
    broker.hung = (DecideRows,)
    publish(broker, "a")
    broker.turn()
    assert partition.shown_as_of(3_000) == 2_000
    decide(broker)
    broker.hung = (DecideRows,)
    publish(broker, "a")
    broker.turn()
    assert partition.shown_as_of(4_000) == 3_000, "of which all is shown, though there is more"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_messages_per_subject": 0}, "max_messages_per_subject: 0 is not between 1"),
        ({"max_messages_per_subject": 1, "compact": True}, "max_messages_per_subject: with 'compact'"),
        ({"max_messages_per_subject": 1, "group": "g"}, "max_messages_per_subject: messages of a subject go to random"),
        (
            {"max_messages_per_subject": 1, "partitions": 2, "partition_by": "group"},
            "choose a partition_by that keeps a subject together",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(config: dict[str, object], words: str) -> None:
    broker = Broker().start()
    error = broker.replies[broker.create("orders", **config)].response
    assert isinstance(error, RemoteError)
    assert error.code == ErrorCode.INVALID_CONFIG
    assert words in str(error)


@pytest.mark.parametrize("limit", [1, 2])
def test_what_a_power_loss_leaves_of_a_log_is_read_though_marks_outlive_their_messages(limit: int) -> None:
    broker = limited(limit, durability="os")
    publish(broker, *"ab")
    assert offsets(broker) == [0, 1]
    broker.tick(10_000)
    broker.settle()
    publish(broker, *"cdcdcd")
    assert offsets(broker) == [0, 1, *range(8 - 2 * limit, 8)]
    after = broker.crash(Keep.SYNCED).start()
    after.tick(1_000)
    assert offsets(after) == [0, 1], "no message of the new leadership is there yet"
    publish(after, *"bcb")
    expected = [0, 3, 4] if limit == 1 else [0, 2, 3, 4]
    assert offsets(after) == expected
    assert offsets(after.crash(Keep.ALL).start()) == expected


def truncate(broker: Broker, before: int) -> None:
    request = TruncateRequest(stream_id=broker.stream_id("orders"), partition=PartitionId(0), before=Offset(before))
    caller = broker.request(request)
    for _ in range(20):
        broker.tick(100)
        broker.turn()
    assert broker.answer(caller, TruncateResponse).log_start == before


def answered_at_once(broker: Broker) -> ErrorCode:
    """The answer to a request that waits for decisions, of a log without a message."""
    caller = get_last(broker, "a")
    broker.turn()
    response = broker.replies[caller].response
    assert isinstance(response, RemoteError), response
    return ErrorCode(response.code)


def test_a_log_without_a_message_waits_for_no_decision_though_its_limit_is_new() -> None:
    broker = limited(None)
    publish(broker, *"abc")
    truncate(broker, 3)
    alter(broker, max_messages_per_subject=1)
    after = broker.crash().start()
    partition = partition_of(after)
    assert (partition.log_start, partition.visible_end, partition.committed_end) == (3, 3, 3)
    assert answered_at_once(after) == ErrorCode.MESSAGE_NOT_FOUND
    publish(after, *"aa")
    assert offsets(after) == [4]


def test_what_is_truncated_before_it_was_decided_on_needs_no_decision() -> None:
    broker = undecided()
    truncate(broker, 4)
    decide(broker)
    partition = partition_of(broker)
    assert (partition.log_start, partition.visible_end, partition.committed_end) == (4, 4, 4)
    assert answered_at_once(broker) == ErrorCode.MESSAGE_NOT_FOUND
