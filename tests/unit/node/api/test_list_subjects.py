"""Lists and counts of subjects, of one broker: what is deleted does not count, and each answer is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.base.ids import PartitionId, PartitionKey
from penstock.messages import (
    DeleteMessagesRequest,
    ListSubjectsRequest,
    ListSubjectsResponse,
    RaiseFeatureLevelRequest,
    RaiseFeatureLevelResponse,
)
from penstock.vfs.faulty import FileOperation, FileOperationKind
from tests.unit.node.harness import Broker


def with_messages(count: int = 60) -> Broker:
    """Messages on `orders.0` to `orders.2` in turn, in several segments."""
    broker = Broker().start()
    broker.create("orders", segment_bytes=4096)
    for number in range(count):
        broker.publish(f"orders.{number % 3}", b"%d" % number + b"." * 100)
    return broker


def segments(broker: Broker) -> int:
    key = PartitionKey(broker.stream_id("orders"), PartitionId(0))
    return len(broker.node._replicas.partitions[key].log.view().segments)


def request(broker: Broker, *patterns: str, **options: Any) -> ListSubjectsRequest:
    return ListSubjectsRequest(stream_id=broker.stream_id("orders"), subjects=patterns, **options)


def ask(broker: Broker, *patterns: str, **options: Any) -> ListSubjectsResponse:
    return broker.answer(broker.request(request(broker, *patterns, **options)), ListSubjectsResponse)


def listed(broker: Broker, *patterns: str, **options: Any) -> list[tuple[str, int, int, int]]:
    found = ask(broker, *patterns, **{"limit": 100} | options).subjects
    return [(one.subject, one.messages, one.first_offset, one.last_offset) for one in found]


def delete(broker: Broker, *offsets: int) -> None:
    broker.request(DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=offsets))  # type: ignore[arg-type]
    broker.tick(1_000)


@pytest.mark.parametrize("options", [{"limit": 100}, {}], ids=["a list", "a count"])
def test_no_sum_is_kept_of_what_a_request_cuts_off(options: dict[str, int]) -> None:
    broker = with_messages()
    key = PartitionKey(broker.stream_id("orders"), PartitionId(0))
    found = broker.node._replicas.partitions[key].log.view().segments
    ask(broker, ">", limit=100)
    active = found[-1].subjects.summed
    assert active is not None
    for segment in found:
        ask(broker, ">", begin=segment.base_offset + 1, **options)
    assert [one.subjects.summed for one in found] == [*[None] * (len(found) - 1), active]


def test_subjects_with_their_messages() -> None:
    broker = with_messages()
    assert segments(broker) > 2
    wanted = [("orders.0", 20, 0, 57), ("orders.1", 20, 1, 58), ("orders.2", 20, 2, 59)]
    assert listed(broker, ">") == wanted
    assert listed(broker, "orders.1", "orders.2", "other.>") == wanted[1:]
    assert listed(broker, ">", limit=2) == wanted[:2]
    assert listed(broker, ">", after="orders.1") == wanted[2:]
    assert listed(broker, "other") == []
    broker.publish("orders.9", b"last")
    assert listed(broker, ">", after="orders.2") == [("orders.9", 1, 60, 60)]
    answer = ask(broker, ">", limit=1)
    assert (answer.end_offset, answer.committed_end, answer.log_start, answer.messages) == (61, 61, 0, 0)


def test_deleted_messages_do_not_count() -> None:
    broker = with_messages()
    delete(broker, 0, 3, 58, 11)
    assert listed(broker, ">") == [("orders.0", 18, 6, 57), ("orders.1", 19, 1, 55), ("orders.2", 19, 2, 59)]
    assert ask(broker, "orders.*").messages == 56
    assert ask(broker, "orders.0").messages == 18
    delete(broker, *range(0, 60, 3))
    assert listed(broker, ">", limit=1) == [("orders.1", 19, 1, 55)]


def test_deleted_messages_are_read_once_for_all_lists() -> None:
    broker = with_messages()
    delete(broker, 0, 1, 3)
    wanted = listed(broker, ">")
    reads: list[str] = []

    def count(operation: FileOperation) -> None:
        if operation.kind is FileOperationKind.READ and operation.path.endswith("/00000000000000000000.arrows"):
            reads.append(operation.path)

    broker.vfs.plan = count
    assert listed(broker, ">") == wanted
    assert not reads
    delete(broker, 2)
    reads.clear()
    assert listed(broker, ">")[2] == ("orders.2", 19, 5, 59)
    assert reads


def test_a_range_of_offsets() -> None:
    broker = with_messages()
    assert listed(broker, ">", begin=10, end=14) == [
        ("orders.0", 1, 12, 12),
        ("orders.1", 2, 10, 13),
        ("orders.2", 1, 11, 11),
    ]
    assert ask(broker, "orders.1", begin=10, end=14).messages == 2
    for begin, end in ((60, None), (70, None), (5, 5), (9, 3)):
        assert ask(broker, ">", begin=begin, end=end).messages == 0
        assert listed(broker, ">", begin=begin, end=end) == []


def test_a_count_goes_on_where_the_last_answer_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBJECTS_COUNTED_BYTES_MAX", 1)
    broker = with_messages()
    total = begin = answers = 0
    while begin < 60:
        answer = ask(broker, "orders.1", begin=begin)
        assert answer.end_offset > begin
        total, begin, answers = total + answer.messages, answer.end_offset, answers + 1
    assert (total, answers) == (20, segments(broker))


def test_a_list_that_looks_through_too_much_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = with_messages()
    assert len(listed(broker, "*.1")) == 1
    monkeypatch.setattr(limits, "SUBJECTS_LISTED_BYTES_MAX", 10)
    refused = broker.refusal(request(broker, "*.1", limit=5))
    assert refused.code == ErrorCode.TOO_LARGE
    assert "name more of the subject" in refused.message


def test_indexes_that_are_being_made_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = with_messages()
    monkeypatch.setattr(limits, "SUBJECTS_LISTED_BYTES_MAX", 10)
    refused = broker.refusal(request(broker, "orders.1", limit=5))
    assert (refused.code, "indexes of the stream are being made" in refused.message) == (ErrorCode.NOT_YET, True)


@pytest.mark.parametrize("subject", ["a..b", "a b", "a.>.b"])
def test_a_subject_that_no_message_can_have(subject: str) -> None:
    refused = with_messages(3).refusal(request(with_messages(3), subject, limit=5))
    assert (refused.code, refused.message[:14]) == (ErrorCode.BAD_REQUEST, "list_subjects:")


def index_files(broker: Broker) -> int:
    (folder,) = [path for path in broker.memory.list("streams") if path.endswith("-orders/")]
    return sum(name.endswith(".subjects") for name in broker.memory.list(f"streams/{folder}0"))


def test_below_the_feature_level_there_are_no_indexes_and_above_the_cleaner_makes_them() -> None:
    broker = Broker(broker_version="0.3.0").start()
    broker.create("orders", segment_bytes=4096)
    for number in range(60):
        broker.publish(f"orders.{number % 3}", b"%d" % number + b"." * 100)
    broker.tick(60_000)
    refused = broker.refusal(request(broker, ">"))
    assert refused.code == ErrorCode.UNSUPPORTED_VERSION
    assert "the index of subjects needs feature level 0.4" in refused.message
    assert not index_files(broker)
    broker.settings["broker_version"] = "0.4.0"
    broker = broker.crash().start()
    broker.ask(RaiseFeatureLevelRequest(), RaiseFeatureLevelResponse)
    for _ in range(80):  # one segment at a time is merged, then indexed
        broker.tick(60_000)
    assert index_files(broker) == segments(broker) - 1 > 1
    assert ask(broker, "orders.1").messages == 20
