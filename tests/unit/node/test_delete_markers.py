"""Messages that expire within a second, and the delete markers that the last ones of their subjects leave."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    DeleteMessagesRequest,
    PurgeSubjectRequest,
    PurgeSubjectResponse,
    SetIntakeRequest,
    SetIntakeResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.node.partition.decisions import DecideRows
from penstock.node.partition.expiry import FindExpired
from penstock.node.partition.row_search import FindOffsets, FindSubject
from penstock.node.step import DiskWork
from penstock.vfs.faulty import FileFault, FileOperationKind, nth
from tests.unit.node.harness import Broker, Executed

TTL = {"allow_message_ttl": True, "dedup_window_ms": None}
MARKED = {**TTL, "allow_rollup": True, "subject_delete_marker_ttl_ms": 10_000}
BUCKET = {**MARKED, "max_messages_per_subject": 1}
MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 10s\r\nNats-Rollup: sub\r\n\r\n"


def started(**config: Any) -> Broker:
    broker = Broker().start()
    broker.create("orders", **config)
    return broker


def publish(broker: Broker, subject: str, value: bytes = b"v", *lines: str) -> None:
    block = ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()
    broker.publish(f"orders.{subject}", value, reply="r", headers=block if lines else None)
    broker.settle()


def go_on(broker: Broker, ms: int, step_ms: int = 100) -> None:
    for _ in range(0, ms, step_ms):
        broker.tick(step_ms)
        broker.settle()


def rows(broker: Broker) -> list[tuple[str, bytes | None]]:
    return [(row.subject.removeprefix("orders."), row.value) for row in broker.read("orders")]


def marked(broker: Broker) -> list[str]:
    return [row.subject.removeprefix("orders.") for row in broker.read("orders") if row.headers == MARKER]


def is_search(work: DiskWork) -> bool:
    return isinstance(getattr(work.run, "__self__", None), FindExpired)


def searched(broker: Broker) -> Executed:
    """Run a round's search of the log; the node is not told yet."""
    broker.hung = (FindExpired,)
    broker.tick(1_000)
    broker.hung = ()
    (number,) = [number for number, one in enumerate(broker.disk) if is_search(one)]
    return broker.execute(number)


# Within a second


def test_a_message_goes_within_a_second_and_the_others_stay() -> None:
    broker = started(**TTL)
    publish(broker, "a", b"kept")
    publish(broker, "a", b"gone", "Nats-TTL: 5s")
    publish(broker, "a", b"later", "Nats-TTL: 1h")
    publish(broker, "a", b"ever", "Nats-TTL: never")
    go_on(broker, 4_900)
    assert len(rows(broker)) == 4
    go_on(broker, 1_000)
    assert [value for _, value in rows(broker)] == [b"kept", b"later", b"ever"]
    go_on(broker, 3_595_000, 5_000)
    assert [value for _, value in rows(broker)] == [b"kept", b"ever"]
    assert broker.notices == []
    after = broker.crash().start()
    go_on(after, 2_000)
    assert [value for _, value in rows(after)] == [b"kept", b"ever"]
    after.stop()


def test_after_a_kill_what_was_over_meanwhile_goes_at_once() -> None:
    broker = started(**TTL)
    publish(broker, "a", b"gone", "Nats-TTL: 5s")
    publish(broker, "a", b"kept", "Nats-TTL: 1h")
    broker.clock.advance_ms(10_000)
    after = broker.crash().start()
    go_on(after, 2_000)
    assert [value for _, value in rows(after)] == [b"kept"]
    after.stop()


def test_a_message_with_an_id_goes_in_time_and_is_still_a_duplicate() -> None:
    broker = started(allow_message_ttl=True)
    publish(broker, "a", b"gone", "Nats-TTL: 1", "Nats-Msg-Id: x")
    go_on(broker, 2_000)
    assert rows(broker) == []
    after = broker.crash().start()
    publish(after, "a", b"again", "Nats-Msg-Id: x")
    assert rows(after) == []
    after.stop()


def test_ids_count_for_their_window_where_the_log_start_follows_what_is_hidden() -> None:
    broker = started(**{**BUCKET, "dedup_window_ms": 120_000}, max_age_ms=3_600_000)
    publish(broker, "a", b"gone", "Nats-TTL: 1", "Nats-Msg-Id: x")
    go_on(broker, 3_000)
    assert rows(broker) == [("a", b"")]
    after = broker.crash().start()
    publish(after, "a", b"again", "Nats-Msg-Id: x")
    assert rows(after) == [("a", b"")], "a duplicate is stored"
    go_on(after, 20_000, 1_000)
    assert rows(after) == []
    assert after.stream("orders").partitions[0].log_start == 0
    go_on(after, 240_000, 5_000)
    assert after.stream("orders").partitions[0].log_start == 2, "it follows, with nothing else to do"
    after.stop()


def test_a_stream_that_allows_it_later_finds_what_it_has() -> None:
    broker = started(dedup_window_ms=None)
    publish(broker, "a", b"kept")
    broker.ask(AlterStreamRequest(name="orders", changes={"allow_message_ttl": True}), AlterStreamResponse)
    publish(broker, "a", b"gone", "Nats-TTL: 1")
    go_on(broker, 2_000)
    assert [value for _, value in rows(broker)] == [b"kept"]


def test_a_stream_without_times_to_live_is_not_read() -> None:
    broker = started(dedup_window_ms=None)
    publish(broker, "a")
    before = broker.node.next_wake_us
    publish(broker, "a")
    assert len(broker.node._expiries._rounds) == 0
    assert broker.node.next_wake_us >= before


# Markers


@pytest.mark.parametrize("config", [MARKED, BUCKET])
def test_the_last_message_of_a_subject_leaves_a_marker_which_goes_too(config: dict[str, Any]) -> None:
    broker = started(**config)
    publish(broker, "a", b"first", "Nats-TTL: 20")
    publish(broker, "b", b"kept")
    go_on(broker, 21_000)
    assert rows(broker) == [("b", b"kept"), ("a", b"")]
    assert marked(broker) == ["a"]
    assert [row.offset for row in broker.read("orders")] == [1, 2]
    go_on(broker, 11_000)
    assert rows(broker) == [("b", b"kept")]
    go_on(broker, 30_000, 1_000)
    assert rows(broker) == [("b", b"kept")], "a marker leaves none"
    assert broker.notices == []


def test_a_marker_of_the_maximum_age_and_the_log_start_follows() -> None:
    broker = started(**BUCKET, max_age_ms=5_000)
    publish(broker, "a", b"gone")
    publish(broker, "b", b"ever", "Nats-TTL: never")
    publish(broker, "c", b"gone", "Nats-TTL: 1h")
    go_on(broker, 4_800)
    assert len(rows(broker)) == 3
    go_on(broker, 1_200)
    assert rows(broker) == [("b", b"ever"), ("a", b""), ("c", b"")]
    assert broker.stream("orders").partitions[0].log_start == 1
    go_on(broker, 12_000)
    assert rows(broker) == [("b", b"ever")]


def test_no_marker_while_another_message_of_the_subject_is_there() -> None:
    broker = started(**MARKED)
    publish(broker, "a", b"kept")
    publish(broker, "a", b"gone", "Nats-TTL: 10")
    publish(broker, "b", b"gone", "Nats-TTL: 10")
    publish(broker, "b", b"newer")
    go_on(broker, 12_000)
    assert rows(broker) == [("a", b"kept"), ("b", b"newer")]


def test_several_messages_of_a_subject_that_go_at_once_leave_one_marker() -> None:
    broker = started(**MARKED)
    for number in range(5):
        publish(broker, "a", b"%d" % number, "Nats-TTL: 10")
    go_on(broker, 12_000)
    assert rows(broker) == [("a", b"")]
    assert marked(broker) == ["a"]


def test_a_shorter_time_to_live_than_that_of_a_marker_counts_as_that_unless_one_stays() -> None:
    for config, left in ((MARKED, 1), (BUCKET, 0)):
        broker = started(**config)
        publish(broker, "a", b"v", "Nats-TTL: 2")
        go_on(broker, 4_000)
        assert len([row for row in broker.read("orders") if row.value == b"v"]) == left
        broker.stop()


@pytest.mark.parametrize("others", [0, 2 * limits.EXPIRY_PICKED_ROWS_MAX])  # their rows are read one by one, or not
@pytest.mark.parametrize("space", ["", " ", "   "])
def test_a_purge_of_a_bucket_is_a_marker(space: str, others: int) -> None:
    broker = started(**BUCKET)
    publish(broker, "a", b"v")
    publish(broker, "a", b"", f"KV-Operation:{space}PURGE", "Nats-Rollup: sub", "Nats-TTL: 2")
    for number in range(others):
        publish(broker, f"a{number}", b"", f"KV-Operation:{space}PURGE", "Nats-Rollup: sub", "Nats-TTL: 2")
    publish(broker, "b", b"", f"KV-Operation:{space}DEL", "Nats-TTL: 2")
    go_on(broker, 4_000)
    assert marked(broker) == ["b"]


def test_a_message_that_comes_while_the_log_is_read_is_not_replaced() -> None:
    broker = started(**BUCKET)
    publish(broker, "a", b"gone", "Nats-TTL: 2")
    publish(broker, "b", b"gone", "Nats-TTL: 2")
    go_on(broker, 1_500)
    executed = searched(broker)
    publish(broker, "a", b"newer")
    broker.complete(executed)
    broker.settle()
    go_on(broker, 2_000)
    assert rows(broker) == [("a", b"newer"), ("b", b"")]


def test_rows_that_are_hidden_while_the_log_is_read_keep_no_marker_from_being_written() -> None:
    """As with rollups at a high rate: each of them ends the table of last sequences."""
    broker = started(**MARKED)
    publish(broker, "a", b"gone", "Nats-TTL: 10")
    publish(broker, "b", b"gone", "Nats-TTL: 10")
    go_on(broker, 9_500)
    executed = searched(broker)
    for number in range(3):
        publish(broker, "c", b"%d" % number, "Nats-Rollup: sub")
        broker.tick(50)
        broker.settle()
    publish(broker, "a", b"newer")
    publish(broker, "c", b"last", "Nats-Rollup: sub")
    (partition,) = [one for one in broker.node._partitions.values() if one.stream.name == "orders"]
    assert partition.log.hidden
    broker.complete(executed)
    broker.settle()
    assert partition.committed_end == 8, "in this round, not in a later one"
    go_on(broker, 1_000)
    assert rows(broker) == [("a", b"newer"), ("c", b"last"), ("b", b"")]


def test_a_message_stays_until_its_marker_is_shown() -> None:
    broker = started(**BUCKET)
    publish(broker, "z", b"v", "Nats-Expected-Last-Subject-Sequence: 0")  # from then on last sequences are known
    publish(broker, "a", b"gone", "Nats-TTL: 2")
    go_on(broker, 1_500)
    broker.hung = (DecideRows,)
    for _ in range(20):
        broker.tick(100)
    assert any(isinstance(getattr(one.run, "__self__", None), DecideRows) for one in broker.disk)
    (partition,) = [one for one in broker.node._partitions.values() if one.stream.name == "orders"]
    assert (partition.committed_end, partition.visible_end) == (3, 2), "its marker is not decided on yet"
    assert not partition.log.hidden
    broker.hung = ()
    broker.settle()
    go_on(broker, 500)
    assert rows(broker) == [("z", b"v"), ("a", b"")]


def test_a_message_that_is_purged_while_the_log_is_read_leaves_no_marker() -> None:
    broker = started(**BUCKET)
    publish(broker, "a", b"purged", "Nats-TTL: 2")
    publish(broker, "b", b"gone", "Nats-TTL: 2")
    go_on(broker, 1_500)
    executed = searched(broker)
    request = PurgeSubjectRequest(stream_id=broker.stream_id("orders"), subject="orders.a")
    assert broker.answer(broker.request(request), PurgeSubjectResponse).messages == 1
    broker.complete(executed)
    broker.settle()
    go_on(broker, 2_000)
    assert rows(broker) == [("b", b"")]


def test_a_message_that_is_truncated_while_the_log_is_read_leaves_no_marker() -> None:
    broker = started(**BUCKET)
    publish(broker, "a", b"truncated", "Nats-TTL: 2")
    publish(broker, "b", b"gone", "Nats-TTL: 2")
    go_on(broker, 1_500)
    executed = searched(broker)
    request = TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(1))
    assert broker.ask(request, TruncateResponse).messages == 1
    broker.complete(executed)
    broker.settle()
    go_on(broker, 2_000)
    assert rows(broker) == [("b", b"")]


def works_of(broker: Broker, kind: type) -> list[int]:
    return [at for at, one in enumerate(broker.disk) if isinstance(getattr(one.run, "__self__", None), kind)]


@pytest.mark.parametrize("kind", ["purge", "delete"])
def test_a_message_that_is_being_purged_leaves_no_marker(kind: str) -> None:
    """The purge has searched, or will, before its message expires: it would not find the marker."""
    broker = started(**BUCKET)
    publish(broker, "a", b"purged", "Nats-TTL: 2")
    publish(broker, "b", b"gone", "Nats-TTL: 2")
    go_on(broker, 1_500)
    executed = searched(broker)
    broker.hung = (FindSubject, FindOffsets)
    stream_id = broker.stream_id("orders")
    purge = PurgeSubjectRequest(stream_id=stream_id, subject="orders.a")
    delete = DeleteMessagesRequest(stream_id=stream_id, offsets=(Offset(0),))
    asked = broker.request(purge if kind == "purge" else delete)
    assert works_of(broker, FindSubject if kind == "purge" else FindOffsets)
    broker.complete(executed)
    broker.settle()
    for _ in range(10):
        broker.tick(100)
    assert ("a", b"") not in rows(broker)
    broker.hung = ()
    broker.settle()
    assert asked in broker.replies
    assert not isinstance(broker.replies[asked].response, RemoteError)
    go_on(broker, 2_000)
    assert rows(broker) == [("b", b"")]


def test_a_purge_finds_the_marker_that_is_on_its_way() -> None:
    broker = started(**BUCKET)
    publish(broker, "a", b"gone", "Nats-TTL: 2")
    publish(broker, "b", b"gone", "Nats-TTL: 2")
    go_on(broker, 1_500)
    executed = searched(broker)
    broker.syncs_hang = True
    broker.complete(executed)
    request = PurgeSubjectRequest(stream_id=broker.stream_id("orders"), subject="orders.a")
    asked = broker.request(request)
    broker.tick(100)
    assert asked not in broker.replies
    broker.syncs_hang = False
    broker.turn()
    broker.settle()
    go_on(broker, 2_000)
    broker.answer(asked, PurgeSubjectResponse)
    assert rows(broker) == [("b", b"")]


def test_a_restart_writes_no_marker_twice() -> None:
    broker = started(**BUCKET)
    for name in "abc":
        publish(broker, name, b"gone", "Nats-TTL: 2")
    go_on(broker, 3_000)
    assert sorted(marked(broker)) == ["a", "b", "c"]
    after = broker.crash().start()
    go_on(after, 3_000)
    assert sorted(marked(after)) == ["a", "b", "c"]
    assert len(after.read("orders")) == 3
    after.stop()


def test_a_full_stream_and_a_paused_one_lose_what_expires_without_markers() -> None:
    broker = started(**BUCKET, discard="new", max_bytes=2_000)
    publish(broker, "a", b"v" * 900, "Nats-TTL: 2")
    broker.request(SetIntakeRequest(name="orders", intake=Intake.PAUSED))
    go_on(broker, 4_000)
    assert rows(broker) == []
    broker.ask(SetIntakeRequest(name="orders", intake=Intake.OPEN), SetIntakeResponse)
    publish(broker, "b", b"v" * 600, "Nats-TTL: 2")
    go_on(broker, 4_000)
    assert rows(broker) == []


def test_markers_are_not_new_messages_where_a_subject_refuses_these() -> None:
    broker = started(**BUCKET, discard="new", discard_new_per_subject=True)
    for subject in ("a", "b"):
        publish(broker, subject, b"v", "Nats-TTL: 10")
    go_on(broker, 12_000)
    assert marked(broker) == ["a", "b"]


def test_many_subjects_at_once_take_several_bounded_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPIRED_SUBJECT_ROWS_AT_ONCE", 400)
    broker = started(**BUCKET)
    count = limits.EXPIRED_SUBJECT_ROWS_AT_ONCE + 100
    for number in range(count):
        broker.publish(f"orders.{number}", b"v", headers=b"NATS/1.0\r\nNats-TTL: 2\r\n\r\n")
    broker.settle()
    go_on(broker, 5_000)
    found = broker.read("orders")
    assert {row.headers for row in found} == {MARKER}
    assert len({row.subject for row in found}) == len(found) == count


def test_a_round_does_not_read_on_once_it_has_found_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPIRED_SUBJECT_ROWS_AT_ONCE", 2)
    broker = started(**BUCKET)
    for number in range(20):
        publish(broker, f"{number}", b"v" * 4_096, "Nats-TTL: 5")
    go_on(broker, 4_500)
    broker.hung = (FindExpired,)
    rounds: list[FindExpired] = []
    for _ in range(100):
        broker.tick(50)
        for number in [number for number, one in enumerate(broker.disk) if is_search(one)]:
            query = getattr(broker.disk[number].run, "__self__", None)
            assert isinstance(query, FindExpired)
            rounds.append(query)
            broker.complete(broker.execute(number))
    assert len(marked(broker)) == 20
    found = [one for one in rounds if one.emptied]
    assert len(found) == 10
    assert max(one.looked_bytes for one in found) < 5 * 4_096


def test_what_is_no_config() -> None:
    broker = Broker().start()
    wrong = {
        "allow_message_ttl": {"allow_rollup": True, "subject_delete_marker_ttl_ms": 5_000},
        "allow_rollup": {"allow_message_ttl": True, "subject_delete_marker_ttl_ms": 5_000},
        "compact": {**MARKED, "compact": True},
        "until-archived": {**MARKED, "max_age_ms": 60_000, "retain": "until-archived"},
        "not between": {**MARKED, "subject_delete_marker_ttl_ms": 999},
    }
    for text, config in wrong.items():
        caller = broker.create("orders", **config)
        refusal = broker.replies[caller].response
        assert isinstance(refusal, RemoteError)
        assert refusal.code == ErrorCode.INVALID_CONFIG
        assert text in refusal.message


def test_a_message_that_is_not_decided_on_yet_is_not_replaced() -> None:
    broker = started(**BUCKET)
    publish(broker, "z", b"v", "Nats-Expected-Last-Subject-Sequence: 0")  # from then on last sequences are known
    publish(broker, "a", b"gone", "Nats-TTL: 2")
    go_on(broker, 1_500)
    broker.hung = (DecideRows,)
    broker.publish("orders.a", b"newer", reply="r")
    broker.turn()
    for _ in range(20):
        broker.tick(100)
    assert any(isinstance(getattr(one.run, "__self__", None), DecideRows) for one in broker.disk)
    broker.hung = ()
    broker.settle()
    go_on(broker, 1_000)
    assert rows(broker) == [("z", b"v"), ("a", b"newer")]


def test_a_read_that_failed_once_is_no_trouble_any_more() -> None:
    broker = started(**TTL)
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.READ)
    publish(broker, "a", b"v", "Nats-TTL: 1h")
    go_on(broker, 1_000)
    assert broker.notices.pop().startswith("stream 'orders': expired messages stay for now: ")
    go_on(broker, 2 * limits.MAINTENANCE_RETRY_MS)
    assert broker.stream("orders").partitions[0].state_reason == ""
