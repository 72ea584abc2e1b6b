"""Staged rows published as runs: once, whole, in their order, whoever asks again."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode
from penstock.base.ids import Offset, PartitionId, PartitionKey
from penstock.base.staged import staged_for, staged_name
from penstock.batch import codec
from penstock.batch.header import ENDS_RUN, OF_RUN
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    CreateStreamResponse,
    FetchRequest,
    FetchResponse,
    GetRequest,
    GetResponse,
    ListPublishedRequest,
    ListPublishedResponse,
    PublishStagedResponse,
    SetIntakeRequest,
    SetIntakeResponse,
    StagedRange,
    StagedStreamRequest,
    StagedStreamResponse,
    StageRequest,
    StageResponse,
)
from penstock.vfs.faulty import FileFault, FileOperationKind, no_faults, nth
from penstock.vfs.memory import Keep
from tests.extent import each_change
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.members import Brokers, formed
from tests.unit.node.staging import (
    QUERY,
    moved,
    place,
    plan,
    published,
    publishing,
    range_of,
    refused,
    staged,
    staged_stream,
    staging,
)
from tests.unit.node.test_members import with_stream

DAY_MS = 24 * 3_600_000


def with_orders(**config: Any) -> Broker:
    broker = Broker().start()
    broker.answer(broker.create("orders", **config), CreateStreamResponse)
    return broker


def headers_of(broker: Broker, name: str = "orders") -> list[Any]:
    data = memoryview(broker.payloads[broker.fetch(name)])
    found = []
    while data:
        found.append(codec.verify(data[: codec.read_header(data).size_bytes]))
        data = data[found[-1].size_bytes :]
    return found


# The stream that holds what is staged


def test_a_stream_of_its_own_holds_what_is_staged() -> None:
    broker = with_orders(partitions=3, subject="orders")
    target = broker.stream("orders")
    info = staged_stream(broker)
    assert info.name == staged_name(target.stream_id)
    assert staged_for(info.name, info.subject) == target.stream_id
    assert info.config.is_internal
    assert (info.config.max_age_ms, info.config.max_bytes) == (DAY_MS, limits.STAGED_BYTES_MAX)
    assert [one.replicas for one in info.partitions] == [one.replicas for one in target.partitions]
    assert staged_stream(broker).stream_id == info.stream_id
    assert list(broker.nats.subscriptions.values()) == ["orders", "orders.1", "orders.2"]


def test_it_goes_with_the_stream_that_it_is_for() -> None:
    broker = with_orders()
    name = staged_stream(broker).name
    rows = staged(broker, b"a")
    broker.delete("orders")
    assert name not in broker.streams()
    broker.answer(broker.create("orders"), CreateStreamResponse)
    assert staged_stream(broker).name != name
    caller = publishing(broker, 0, rows)
    assert refused(broker, caller) == ErrorCode.STAGED_LOST


def test_nothing_is_staged_for_what_is_penstocks_own_or_is_not_there() -> None:
    broker = with_orders()
    info = staged_stream(broker)
    assert broker.refusal(StagedStreamRequest(stream_id=info.stream_id)).code == ErrorCode.BAD_REQUEST
    assert broker.refusal(StagedStreamRequest(stream_id=info.stream_id + 50)).code == ErrorCode.STREAM_NOT_FOUND
    raw = batch_of([("orders.x", None, b"a", None)])
    assert broker.refusal(AppendRequest(stream_id=info.stream_id), raw).code == ErrorCode.READ_ONLY
    not_it = StageRequest(stream_id=broker.stream_id("orders"), partition=0)
    assert broker.refusal(not_it, raw).code == ErrorCode.BAD_REQUEST
    assert broker.refusal(AppendRequest(stream_id=info.stream_id), raw).code == ErrorCode.READ_ONLY
    broker.answer(broker.create("lines"), CreateStreamResponse)
    rows = staged(broker, b"a")
    assert refused(broker, publishing(broker, 0, rows, name="lines", staged_name="orders")) == ErrorCode.BAD_REQUEST


@pytest.mark.parametrize("name", ["__staged-", "__staged-x", "__staged-07", "staged-7", "__staged-²", "__offsets"])
def test_other_names_are_of_other_streams(name: str) -> None:
    assert staged_for(name, "$PENSTOCK.staged.7") is None
    assert staged_for("__staged-7", "$PENSTOCK.staged.8") is None
    assert staged_for("__staged-7", "$PENSTOCK.staged.7") == 7


def test_what_the_stream_does_not_take_is_not_staged() -> None:
    broker = with_orders(max_message_bytes=10)
    assert refused(broker, staging(broker, b"x" * 11)) == ErrorCode.TOO_LARGE
    ttl = b"NATS/1.0\r\nNats-TTL: 1s\r\n\r\n"
    info = staged_stream(broker)
    request = StageRequest(stream_id=info.stream_id, partition=0)
    for row in [("orders.x", None, b"a", ttl), ("other.x", None, b"a", None), (info.subject, None, b"a", None)]:
        assert broker.refusal(request, batch_of([row])).code in (ErrorCode.BAD_REQUEST, ErrorCode.TOO_LARGE), row
    assert broker.values(info.name) == []


# Published once


def test_staged_rows_are_published_as_one_batch() -> None:
    broker = with_orders()
    first, second = staged(broker, b"a", b"b"), staged(broker, b"c")
    assert broker.values("orders") == []
    broker.append("orders", b"between")
    answer = published(broker, 7, [second, first])
    assert place(answer) == (1, 4, False)
    assert (answer.is_complete, answer.pieces, answer.plan, answer.fsynced) == (True, 1, None, True)
    assert broker.values("orders") == [b"between", b"c", b"a", b"b"]
    assert [row.key for row in broker.read("orders")][1:] == [b"kc", b"ka", b"kb"]
    _, header = headers_of(broker)
    assert codec.producer_of(header) == codec.BatchProducer(0, 0, 7, QUERY)
    assert header.flags == OF_RUN | ENDS_RUN


def test_a_row_of_a_run_is_got_like_any_other() -> None:
    broker = with_orders()
    published(broker, 7, staged(broker, b"a", b"b"))
    caller = broker.request(GetRequest(stream_id=broker.stream_id("orders"), offset=Offset(1)))
    assert broker.answer(caller, GetResponse).offset == 1
    header = codec.verify(broker.payloads[caller])
    assert (header.flags, header.run_id, header.run_plan) == (0, bytes(16), 0)


def test_a_batch_that_comes_again_is_published_once() -> None:
    broker = with_orders()
    rows, others = staged(broker, b"a"), staged(broker, b"other")
    assert place(published(broker, 0, rows)) == (0, 1, False)
    assert place(published(broker, 0, others)) == (0, 1, True)  # another attempt
    assert place(published(broker, 1, others)) == (1, 2, False)
    late = published(broker, 0, rows)
    assert place(late) == (None, None, True)
    assert (late.pieces, late.is_complete) == (None, True)
    assert place(published(broker, 0, rows, query_id=b"q" * 16)) == (2, 3, False)
    assert broker.values("orders") == [b"a", b"other", b"a"]


def test_a_run_of_several_pieces_is_published_piece_by_piece() -> None:
    broker = with_orders()
    one, two, three = (staged(broker, value) for value in (b"a", b"b", b"c"))
    at = plan(broker)
    first = published(broker, 4, one, is_last=False, plan=at)
    assert (first.is_complete, first.pieces, first.plan) == (False, 1, at)
    broker.append("orders", b"between")
    assert refused(broker, publishing(broker, 5, two)) == ErrorCode.RUN_UNFINISHED
    assert refused(broker, publishing(broker, 4, three, piece=2, plan=at)) == ErrorCode.OUT_OF_SEQUENCE
    again = published(broker, 4, three, is_last=False, plan=at)
    assert place(again) == (0, 1, True)
    assert published(broker, 4, two, piece=1, is_last=False, plan=at).pieces == 2
    last = published(broker, 4, three, piece=2, plan=at)
    assert (last.is_complete, last.pieces, place(last)) == (True, 3, (3, 4, False))
    assert place(published(broker, 4, one, is_last=False, plan=at)) == (None, None, True)
    assert published(broker, 4, one, piece=9, plan=at).is_complete
    assert broker.values("orders") == [b"a", b"between", b"b", b"c"]
    marks = [(header.producer_epoch, header.run_plan, header.flags) for header in headers_of(broker) if header.flags]
    assert marks == [(0, at + 1, OF_RUN), (1, at + 1, OF_RUN), (2, at + 1, OF_RUN | ENDS_RUN)]


def test_another_plan_does_not_go_on_with_what_one_has_begun() -> None:
    broker = with_orders()
    one, two = staged(broker, b"a"), staged(broker, b"b")
    mine, other = plan(broker), plan(broker)
    published(broker, 0, one, is_last=False, plan=mine)
    for fields in ({"plan": other, "is_last": False}, {}, {"piece": 1, "plan": other}):
        answer = published(broker, 0, two, **fields)
        assert (answer.duplicate, answer.is_complete, answer.pieces, answer.plan) == (True, False, 1, mine)
    assert broker.values("orders") == [b"a"]


def test_what_makes_no_sense_is_refused() -> None:
    broker = with_orders()
    rows = staged(broker, b"a")
    assert refused(broker, publishing(broker, 0, rows, query_id=bytes(16))) == ErrorCode.BAD_REQUEST
    assert refused(broker, publishing(broker, 0, rows, piece=1)) == ErrorCode.BAD_REQUEST
    assert refused(broker, publishing(broker, 0, rows, is_last=False)) == ErrorCode.BAD_REQUEST
    assert refused(broker, publishing(broker, 0, rows, piece=1, plan=9)) == ErrorCode.OUT_OF_SEQUENCE
    assert refused(broker, publishing(broker, 0, StagedRange(1, 1, 1))) == ErrorCode.BAD_REQUEST
    assert refused(broker, publishing(broker, 0, StagedRange(0, 65_537, 1))) == ErrorCode.TOO_LARGE
    assert broker.values("orders") == []
    assert not published(broker, 0, rows).duplicate


# Rows that are not there


def test_other_rows_are_never_published() -> None:
    broker = with_orders()
    rows = staged(broker, b"a")
    assert refused(broker, publishing(broker, 0, moved(rows, epoch=-1))) == ErrorCode.STAGED_LOST
    assert refused(broker, publishing(broker, 0, moved(rows, by=1))) == ErrorCode.STAGED_LOST
    after = broker.crash().start()
    more = staged(after, b"b")
    assert more.leader_epoch > rows.leader_epoch
    assert refused(after, publishing(after, 0, moved(rows, by=1))) == ErrorCode.STAGED_LOST
    assert refused(after, publishing(after, 0, StagedRange(0, 2, more.leader_epoch))) == ErrorCode.STAGED_LOST
    assert place(published(after, 0, [rows, more])) == (0, 2, False)


def test_staged_rows_expire() -> None:
    broker = with_orders()
    rows = staged(broker, b"a")
    broker.tick(limits.STAGED_SEGMENT_AGE_MS + 1_000)
    staged(broker, b"b")
    for _ in range(4):
        broker.tick(DAY_MS)
    assert refused(broker, publishing(broker, 0, rows)) == ErrorCode.STAGED_LOST
    fresh = staged(broker, b"c")
    assert place(published(broker, 0, fresh)) == (0, 1, False)


def test_rules_that_have_changed_since_are_kept() -> None:
    broker = with_orders()
    rows = staged(broker, b"x" * 100)
    broker.ask(AlterStreamRequest(name="orders", changes={"max_message_bytes": 10}), AlterStreamResponse)
    assert refused(broker, publishing(broker, 0, rows)) == ErrorCode.TOO_LARGE
    broker.ask(AlterStreamRequest(name="orders", changes={"max_message_bytes": 1_000}), AlterStreamResponse)
    broker.ask(SetIntakeRequest(name="orders", intake=Intake.READ_ONLY), SetIntakeResponse)
    assert refused(broker, publishing(broker, 0, rows)) == ErrorCode.READ_ONLY
    broker.ask(SetIntakeRequest(name="orders", intake=Intake.OPEN), SetIntakeResponse)
    assert place(published(broker, 0, rows)) == (0, 1, False)
    broker.ask(SetIntakeRequest(name="orders", intake=Intake.READ_ONLY), SetIntakeResponse)
    assert place(published(broker, 0, rows)) == (0, 1, True)


def test_a_piece_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = with_orders()
    rows = [staged(broker, b"x" * 1_000) for _ in range(3)]
    monkeypatch.setattr(limits, "BATCH_ROWS_BYTES_MAX", 3_000)
    assert refused(broker, publishing(broker, 0, rows)) == ErrorCode.TOO_LARGE
    assert not published(broker, 0, rows[:1]).duplicate


# What is known


@pytest.mark.parametrize("keep", [Keep.SYNCED, Keep.ALL])
def test_what_was_published_is_known_after_a_crash(keep: Keep) -> None:
    broker = with_orders()
    rows = [staged(broker, b"%d" % number) for number in range(4)]
    at = plan(broker)
    published(broker, 0, rows[0])
    published(broker, 1, rows[1], is_last=False, plan=at)
    for number in range(50):
        broker.append("orders", b"x%d" % number)
    after = broker.crash(keep).start()
    assert place(published(after, 0, rows[0])) == (None, None, True)
    assert place(published(after, 1, rows[1], is_last=False, plan=at)) == (1, 2, True)
    assert refused(after, publishing(after, 2, rows[3])) == ErrorCode.RUN_UNFINISHED
    assert place(published(after, 1, rows[2], piece=1, plan=at)) == (52, 53, False)
    assert place(published(after, 2, rows[3])) == (53, 54, False)


def test_what_was_not_synced_is_published_again() -> None:
    broker = with_orders()
    rows = staged(broker, b"a")
    broker.disk_runs_at_once = False
    caller = publishing(broker, 0, rows)
    log = broker.node._partitions[PartitionKey(broker.stream_id("orders"), PartitionId(0))].log
    while not log.log_end:
        broker.run_disk()
    assert caller in broker.open_requests
    after = broker.crash().start()
    assert place(published(after, 0, rows)) == (0, 1, False)


def test_a_duplicate_is_told_once_its_first_is_committed() -> None:
    broker = with_orders()
    rows = staged(broker, b"a")
    broker.syncs_hang = True
    first = publishing(broker, 0, rows)
    again = publishing(broker, 0, rows)
    earlier_query = publishing(broker, 0, rows, query_id=b"q" * 16)
    assert {first, again, earlier_query} <= broker.open_requests
    broker.syncs_hang = False
    broker.settle()
    answers = [broker.replies[caller].response for caller in (first, again, earlier_query)]
    assert [place(one) for one in answers] == [(0, 1, False), (0, 1, True), (1, 2, False)]  # type: ignore[arg-type]


def test_the_same_piece_twice_at_once_is_one_batch() -> None:
    broker = with_orders()
    rows = staged(broker, b"a")
    broker.disk_runs_at_once = False
    callers = [publishing(broker, 0, rows) for _ in range(5)]
    broker.settle()
    answers = [place(broker.replies[caller].response) for caller in callers]  # type: ignore[arg-type]
    assert answers == [(0, 1, False), *[(0, 1, True)] * 4]
    assert broker.values("orders") == [b"a"]


def test_the_window_forgets() -> None:
    broker = with_orders(max_age_ms=None)
    rows = staged(broker, b"a")
    published(broker, 0, rows)
    broker.clock.advance_ms(limits.PUBLISHED_WINDOW_MS - 1_000)
    assert published(broker, 0, rows).duplicate
    after = broker.crash().start()
    assert published(after, 0, rows).duplicate
    after.clock.advance_ms(2_000)
    fresh = staged(after, b"b")
    assert not published(after, 0, fresh).duplicate
    assert after.values("orders") == [b"a", b"b"]


def test_runs_that_cannot_be_read_are_read_again() -> None:
    broker = with_orders()
    rows = staged(broker, b"a")
    published(broker, 0, rows)
    after = broker.crash().start()
    after.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.READ, path_end=".arrows")
    assert refused(after, publishing(after, 0, rows)) == ErrorCode.STORAGE_FAILED
    after.vfs.plan = no_faults
    assert place(published(after, 0, rows)) == (0, 1, True)


def test_a_disk_that_takes_nothing_publishes_nothing() -> None:
    broker = with_orders()
    rows = staged(broker, b"a")
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    assert refused(broker, publishing(broker, 0, rows)) == ErrorCode.STORAGE_FAILED
    broker.vfs.plan = no_faults
    assert place(published(broker, 0, rows)) == (0, 1, False)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUBLISHES_WAITING_MAX", 2)
    broker = with_orders()
    rows = staged(broker, b"a")
    broker.disk_runs_at_once = False
    callers = [publishing(broker, number, rows) for number in range(2)]
    assert refused(broker, publishing(broker, 2, rows)) == ErrorCode.OVERLOADED
    broker.settle()
    assert not broker.open_requests.intersection(callers)
    broker.disk_runs_at_once = True
    assert not published(broker, 2, rows).duplicate


def test_partitions_wait_for_each_other_only_where_too_many_are_at_work() -> None:
    broker = with_orders(partitions=4, subject="orders")
    rows = [staged(broker, b"%d" % number, partition=number) for number in range(4)]
    for number in range(4):
        published(broker, 0, rows[number], partition=number)
    broker.disk_runs_at_once = False
    callers = [publishing(broker, 1, rows[number], partition=number) for number in range(4)]
    assert len(broker.disk) == limits.PUBLISHES_AT_WORK_MAX
    broker.settle()
    assert not broker.open_requests.intersection(callers)
    assert [broker.values("orders", number) for number in range(4)] == [[b"%d" % number] * 2 for number in range(4)]


def test_a_stream_that_is_deleted_meanwhile() -> None:
    broker = with_orders()
    rows = staged(broker, b"a")
    broker.disk_runs_at_once = False
    callers = [publishing(broker, number, rows) for number in range(2)]
    deleted = broker.delete("orders")
    broker.settle()
    assert deleted in broker.replies
    assert [refused(broker, caller) for caller in callers] == [ErrorCode.STREAM_CHANGED] * 2


def test_a_broker_that_stops_tells_who_waits() -> None:
    broker = with_orders()
    rows = staged(broker, b"a")
    broker.disk_runs_at_once = False
    callers = [publishing(broker, number, rows) for number in range(2)]
    executed = [broker.execute() for _ in range(len(broker.disk))]
    broker.do(broker.node.stop(broker.clock.now))
    assert [refused(broker, caller) for caller in callers] == [ErrorCode.STOPPING] * 2
    assert executed


def test_who_publishes_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUBLISHED_PER_ANSWER_MAX", 2)
    broker = with_orders()
    rows = staged(broker, b"a", b"b")
    at = plan(broker)
    for number in range(3):
        published(broker, number, rows, query_id=b"%016d" % number)
    published(broker, 8, rows, query_id=b"%016d" % 1, is_last=False, plan=at)

    def page(after: bytes) -> list[tuple[int, int, int, bool, int]]:
        request = ListPublishedRequest(stream_id=broker.stream_id("orders"), after_query_id=after)
        found = broker.ask(request, ListPublishedResponse).queries
        return [(int(one.query_id), one.batch_id, one.pieces, one.is_complete, one.last_offset) for one in found]

    assert page(b"") == [(0, 0, 1, True, 1), (1, 8, 1, False, 7)]
    assert page(b"%016d" % 1) == [(2, 2, 1, True, 5)]
    assert page(b"%016d" % 2) == []


def test_rows_are_taken_out_of_what_the_cleaner_has_merged() -> None:
    """Ranges lie inside larger batches then, of which the rest is somebody else's."""
    broker = with_orders()
    rows = [staged(broker, b"%d" % number) for number in range(40)]
    info = staged_stream(broker)
    broker.tick(limits.STAGED_SEGMENT_AGE_MS + 1_000)
    staged(broker, b"next")
    for _ in range(20):
        broker.tick(1_000)
    answer = broker.request(FetchRequest(stream_id=info.stream_id, offset=0))
    broker.settle()
    broker.answer(answer, FetchResponse)
    assert codec.read_header(broker.payloads[answer]).count == 40
    published(broker, 0, [rows[7], rows[3], StagedRange(9, 12, rows[0].leader_epoch)])
    assert broker.values("orders") == [b"7", b"3", b"9", b"10", b"11"]
    assert [row.offset for row in broker.read("orders")] == list(range(5))


def test_who_publishes_nothing_has_nothing_read() -> None:
    broker = with_orders()
    broker.append("orders", b"0")
    broker = broker.crash().start()
    reads = []
    broker.vfs.plan = lambda call: (
        reads.append(call) if call.kind is FileOperationKind.READ and call.path.endswith(".arrows") else None
    )
    rows = staged(broker, b"a")
    broker.append("orders", b"1")
    broker.publish("orders.x", b"2")
    assert reads == []
    published(broker, 0, rows)
    assert reads
    assert broker.values("orders") == [b"0", b"1", b"2", b"a"]


# Several brokers


def make_staged(brokers: Brokers) -> None:
    """Have the stream made that holds what is staged for s."""
    leader = brokers.led("s")
    caller = leader.request(StagedStreamRequest(stream_id=leader.stream_id("s")))
    brokers.run(500)
    replicas = [leader.image.by_name(name).partitions[0].replicas for name in ("s", held(brokers))]
    assert leader.answer(caller, StagedStreamResponse).stream.partitions[0].replicas == replicas[0] == replicas[1]


def apart(brokers: Brokers | None = None) -> Brokers:
    """Stream s, and what is staged for it, are led by two brokers."""
    brokers = brokers or with_stream()
    make_staged(brokers)
    brokers.led("s").nats.forbid("s")
    brokers.led("s").hear()
    brokers.run(10_000)
    assert brokers.led("s") is not brokers.led(held(brokers))
    return brokers


def held(brokers: Brokers) -> str:
    """The name of the stream that holds what is staged for s."""
    return staged_name(brokers.leader.stream_id("s"))


def staged_by(brokers: Brokers, *values: bytes) -> StagedRange:
    """Rows that are staged once all brokers had their time."""
    leader = brokers.led(held(brokers))
    caller = staging(leader, *values, name="s")
    brokers.run(500)
    return range_of(leader.answer(caller, StageResponse))


def test_the_leader_publishes_what_another_one_has_staged() -> None:
    brokers = apart()
    rows = staged_by(brokers, b"a", b"b")
    caller = publishing(brokers.led("s"), 0, rows, name="s")
    brokers.run(500)
    assert place(brokers.led("s").answer(caller, PublishStagedResponse)) == (0, 2, False)
    assert brokers.led("s").values("s") == [b"a", b"b"]


def test_what_is_not_here_yet_is_waited_for() -> None:
    brokers = apart()
    leader, holder = brokers.led("s"), brokers.led(held(brokers))
    staged_by(brokers, b"0")
    brokers.cut(leader.broker_id, holder.broker_id)
    caller = staging(holder, b"a", name="s")
    brokers.settle()
    rows = StagedRange(1, 2, holder.image.by_name(held(brokers)).partitions[0].leader_epoch)
    publish = publishing(leader, 0, rows, name="s")
    later = publishing(leader, 1, rows, name="s")
    brokers.settle()
    assert {publish, later} <= leader.open_requests
    brokers.join(leader.broker_id, holder.broker_id)
    brokers.run(1_000)
    assert range_of(holder.answer(caller, StageResponse)) == rows
    answers = [leader.answer(one, PublishStagedResponse) for one in (publish, later)]
    assert [place(one) for one in answers] == [(0, 1, False), (1, 2, False)]


def test_what_is_not_here_yet_holds_up_its_own_query_alone() -> None:
    brokers = apart()
    leader, holder = brokers.led("s"), brokers.led(held(brokers))
    here = staged_by(brokers, b"0")
    brokers.cut(leader.broker_id, holder.broker_id)
    staging(holder, b"a", name="s")
    brokers.settle()
    rows = StagedRange(1, 2, holder.image.by_name(held(brokers)).partitions[0].leader_epoch)
    callers = [
        publishing(leader, 0, rows, name="s"),
        publishing(leader, 1, here, name="s"),  # of the same query: it would be there before the one above
        *[publishing(leader, number, here, name="s", query_id=b"%016d" % 1) for number in range(3)],
    ]
    brokers.settle()
    brokers.join(leader.broker_id, holder.broker_id)
    brokers.run(1_000)
    answers = [leader.answer(one, PublishStagedResponse) for one in callers]
    assert [place(one) for one in answers] == [(at, at + 1, False) for at in (3, 4, 0, 1, 2)]


@each_change
def test_the_end_of_a_wait_lets_the_same_query_go_on() -> None:
    brokers = apart()
    leader = brokers.led("s")
    rows = staged_by(brokers, b"a")
    callers = [
        publishing(leader, 0, moved(rows, by=1), name="s"),
        publishing(leader, 1, moved(rows, by=1), name="s"),
        publishing(leader, 2, rows, name="s"),
    ]
    brokers.run(limits.PUBLISH_WAIT_MS + 2_000)
    assert [refused(leader, one) for one in callers[:2]] == [ErrorCode.NOT_YET] * 2
    assert place(leader.answer(callers[2], PublishStagedResponse)) == (0, 1, False)


def test_the_wait_has_an_end() -> None:
    brokers = apart()
    leader = brokers.led("s")
    rows = staged_by(brokers, b"a")
    caller = publishing(leader, 0, moved(rows, by=1), name="s")
    brokers.run(limits.PUBLISH_WAIT_MS - 100)
    assert caller in leader.open_requests
    brokers.run(2_000)
    assert refused(leader, caller) == ErrorCode.NOT_YET


def test_the_next_leader_knows_what_was_published() -> None:
    brokers = with_stream()
    make_staged(brokers)
    rows = [staged_by(brokers, b"%d" % number) for number in range(3)]
    at = 3  # nobody looks for it
    old = brokers.led("s")
    callers = [publishing(old, 0, rows[0], name="s"), publishing(old, 1, rows[1], name="s", is_last=False, plan=at)]
    brokers.run(500)
    assert [place(old.answer(one, PublishStagedResponse)) for one in callers] == [(0, 1, False), (1, 2, False)]
    brokers.kill(old.broker_id)
    brokers.run(8_000)
    new = brokers.led("s")
    assert new is not old
    callers = [
        publishing(new, 0, rows[0], name="s"),
        publishing(new, 1, rows[2], name="s"),
        publishing(new, 1, rows[2], name="s", piece=1, plan=at),
        publishing(new, 2, rows[0], name="s"),
    ]
    brokers.run(1_000)
    answers = [place(new.answer(one, PublishStagedResponse)) for one in callers]
    assert answers == [(None, None, True), (1, 2, True), (2, 3, False), (3, 4, False)]
    assert new.values("s") == [b"0", b"1", b"2", b"0"]


@each_change
def test_what_was_cut_off_is_published_again() -> None:
    """A leader that nobody reaches takes a piece; later it leads again, without it."""
    brokers = with_stream()
    make_staged(brokers)
    rows = staged_by(brokers, b"a")
    old = brokers.led("s")
    others = [one for one in brokers.ids if one != old.broker_id]
    for number in others:
        brokers.cut(old.broker_id, number)
    lost = [publishing(old, 0, rows, name="s") for _ in range(2)]
    brokers.run(8_000)
    assert brokers.led("s") is not old
    brokers.join(old.broker_id, *others)
    brokers.run(60_000)  # the preferred leader leads again
    assert brokers.led("s") is old
    assert {refused(old, caller) for caller in lost} <= {ErrorCode.FENCED_EPOCH, ErrorCode.NOT_LEADER}
    callers = [publishing(old, 0, rows, name="s") for _ in range(2)]
    brokers.run(500)
    answers = [place(old.answer(one, PublishStagedResponse)) for one in callers]
    assert answers == [(0, 1, False), (0, 1, True)]
    assert old.values("s") == [b"a"]


def test_rows_that_an_unclean_election_has_lost_are_not_published() -> None:
    brokers = formed()
    caller = brokers.leader.create("s", subject="s", replicas=2, min_isr=1, allow_unclean_election=True)
    brokers.run(500)
    assert caller in brokers.leader.replies
    make_staged(brokers)
    old = brokers.led(held(brokers))
    (other,) = [one for one in brokers.partition("s").replicas if one != old.broker_id]
    memory = brokers.kill(other)
    brokers.run(10_000)
    rows = staged_by(brokers, b"lost")
    brokers.kill(old.broker_id)
    brokers.start(other, memory)
    brokers.run(20_000)
    new = brokers.led("s")
    assert new.broker_id == other
    publish = publishing(new, 0, rows, name="s")
    assert refused(new, publish) == ErrorCode.STAGED_LOST
    caller = staging(new, b"others", name="s")
    brokers.run(500)
    assert range_of(new.answer(caller, StageResponse)).base_offset == rows.base_offset
    publish = publishing(new, 0, rows, name="s")
    assert refused(new, publish) == ErrorCode.STAGED_LOST
    assert new.values("s") == []
