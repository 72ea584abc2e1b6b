"""Limits in messages and bytes: which messages are refused, and which are shown, at once and after a restart."""

from __future__ import annotations

import errno
from collections.abc import Hashable, Mapping

import pytest

from penstock.base.config import Discard, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.live import row_set
from penstock.live.row_set import NONE, RowSet
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    LiveRowsInfo,
    PublishStagedResponse,
    PurgeSubjectRequest,
    PurgeSubjectResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.node.partition.row_limit import ReadGaps, RowLimit
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, no_faults, nth
from tests.unit.node.harness import Broker
from tests.unit.node.staging import publishing, staged

IDS = b"NATS/1.0\r\nNats-Msg-Id: %s\r\n\r\n"
FULL = {"code": 503, "err_code": 10077, "description": "maximum messages exceeded"}


def test_a_limit_that_is_lowered_passes_many_scattered_deletions_at_once() -> None:
    rows = 1 << 20
    limit = RowLimit(StreamConfig(name="s", subject="s", max_messages=10))
    limit.known(NONE)
    assert limit.start_of_newest(0, rows, RowSet.of_bits(0, b"\x55" * (rows // 8))) == rows - 20


def test_a_mark_has_only_that_counted_anew_which_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some hidden rows have left the files, and are gaps: the two sets of a large log take a second to put together."""
    rows = 1 << 20
    gaps, hidden = (RowSet.of_bits(0, bits * (rows // 8)) for bits in (b"\x15", b"\x55"))
    limit = RowLimit(StreamConfig(name="s", subject="s", max_messages=10))
    limit.known(gaps)
    assert limit.rows(0, rows, hidden) == rows // 2
    chunks: list[int] = []
    add_union = row_set._Spans.add_union

    def counted(self: row_set._Spans, chunk: int, one: row_set.Box, other: row_set.Box, one_count: int) -> None:
        chunks.append(chunk)
        add_union(self, chunk, one, other, one_count)

    later = hidden | RowSet.of([1, 3, 70_001])
    monkeypatch.setattr(row_set._Spans, "add_union", counted)
    assert limit.rows(0, rows, later) == rows // 2 - 3
    assert chunks == [0, 1]


def with_limit(**config: object) -> Broker:
    broker = Broker().start()
    broker.create("orders", segment_bytes=4096, **config)
    return broker


def live(broker: Broker) -> LiveRowsInfo:
    request = ListOffsetsRequest(stream_id=broker.stream_id("orders"), at="latest", counts_rows=True)
    found = broker.ask(request, ListOffsetsResponse).live
    assert found is not None
    return found


def delete(broker: Broker, *offsets: int) -> None:
    request = DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=tuple(map(Offset, offsets)))
    caller = broker.request(request)
    broker.tick(1_000)
    assert broker.answer(caller, DeleteMessagesResponse).deleted == len(offsets)


def offsets(broker: Broker) -> list[int]:
    return [row.offset for row in broker.read("orders")]


def alter(broker: Broker, **changes: object) -> None:
    broker.ask(AlterStreamRequest(name="orders", changes=changes), AlterStreamResponse)
    broker.settle()


def errors(broker: Broker) -> list[Mapping[str, object] | None]:
    """The error of each new ack, by the number of its reply subject; None for one that is none."""
    acks = sorted(broker.acks, key=lambda ack: int(ack.reply.partition(".")[2] or 0))
    broker.acks.clear()
    return [ack.body.get("error") for ack in acks]


def refusal(broker: Broker, caller: Hashable) -> RemoteError:
    response = broker.replies[caller].response
    assert isinstance(response, RemoteError), response
    return response


def truncate(broker: Broker, before: int) -> None:
    broker.ask(TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(before)), TruncateResponse)


# Discard old.


def test_no_reader_is_shown_more_than_the_limit_after_an_ack() -> None:
    broker = with_limit(max_messages=3)
    for number in range(8):
        broker.publish("orders.a", b"%d" % number, reply="r")
        assert len(broker.acked()) == number + 1
        assert offsets(broker) == list(range(max(0, number - 2), number + 1)), "at once, without a tick"
    found = live(broker)
    assert (found.rows, found.first_offset, found.last_offset, found.deleted) == (3, 5, 7, 0)
    broker.tick(1_000)
    assert broker.stream("orders").partitions[0].log_start == 5


def test_a_deleted_message_is_none_of_those_that_stay() -> None:
    broker = with_limit(max_messages=4)
    broker.publish("orders.a", *(b"%d" % number for number in range(10)))
    assert offsets(broker) == [6, 7, 8, 9]
    delete(broker, 7, 8)
    assert offsets(broker) == [6, 9], "what was pushed out stays so"
    broker.publish("orders.a", b"10", b"11")
    assert offsets(broker) == [6, 9, 10, 11]
    broker.publish("orders.a", b"12")
    assert offsets(broker) == [9, 10, 11, 12]
    assert (live(broker).rows, live(broker).deleted) == (4, 0)


@pytest.mark.parametrize("has_ticked", [False, True])
def test_after_a_crash_nothing_comes_back_that_was_pushed_out_before_a_deletion(*, has_ticked: bool) -> None:
    """Only a few messages are left: without the mark of the limit, the next leader would fill up with older ones."""
    broker = with_limit(max_messages=4)
    broker.publish("orders.a", *(b"%d" % number for number in range(10)), reply="r")
    if has_ticked:
        broker.tick(1_000)
    delete(broker, 7, 8)
    assert offsets(broker) == [6, 9]
    broker = broker.crash().start()
    broker.settle()
    assert offsets(broker) == [6, 9]
    assert live(broker).rows == 2
    broker.publish("orders.a", b"10", b"11", b"12")
    assert offsets(broker) == [9, 10, 11, 12]


def test_a_lower_limit_holds_at_once_and_a_higher_one_brings_nothing_back() -> None:
    broker = with_limit()
    broker.publish("orders.a", *(b"%d" % number for number in range(10)))
    alter(broker, max_messages=5)
    broker.tick(1_000)
    assert offsets(broker) == [5, 6, 7, 8, 9]
    alter(broker, max_messages=2)
    assert offsets(broker) == [8, 9]
    alter(broker, max_messages=50)
    assert offsets(broker) == [8, 9]
    alter(broker, max_messages=None)
    assert offsets(broker) == [8, 9]


def test_a_sealed_stream_and_one_whose_deletion_is_suspended_keep_more() -> None:
    broker = with_limit(max_messages=2, suspend_deletion="yes")
    broker.publish("orders.a", b"1", b"2", b"3")
    assert offsets(broker) == [0, 1, 2]
    alter(broker, suspend_deletion="no")
    broker.tick(1_000)
    assert offsets(broker) == [1, 2]


# Discard new.


def test_messages_beyond_the_limit_are_refused_one_by_one_until_there_is_room() -> None:
    broker = with_limit(max_messages=3, discard=Discard.NEW)
    broker.publish("orders.a", b"1", b"2", b"3", b"4", b"5", reply="r")
    assert errors(broker) == [None] * 3 + [FULL] * 2
    delete(broker, 1)
    broker.publish("orders.a", b"6", b"7", reply="r")
    assert errors(broker) == [None, FULL], "a deletion makes room at once"
    truncate(broker, 3)
    broker.publish("orders.a", b"8", b"9", b"10", reply="r")
    assert errors(broker) == [None, None, FULL], "so does a purge"
    assert live(broker).rows == 3


def test_each_message_sees_those_before_it_in_the_same_read() -> None:
    """A refused one has no effect: neither its id is known, nor does it count for an expectation."""
    broker = with_limit(max_messages=2, discard=Discard.NEW)
    sent = [(b"orders.a", b"r.%d" % at, IDS % (b"%d" % number), b"v") for at, number in enumerate((1, 1, 2, 3, 3, 2))]
    broker.deliver(sent)  # type: ignore[arg-type]
    assert errors(broker) == [None, None, None, FULL, FULL, None]
    truncate(broker, 1)
    broker.deliver(sent[3:])  # type: ignore[arg-type]
    assert errors(broker) == [None, None, None], "3 was not stored before; 2 was, and is told as a duplicate"
    assert len(offsets(broker)) == 2


def test_a_large_message_that_does_not_fit_leaves_room_for_a_small_one_behind_it() -> None:
    broker = with_limit(max_bytes=6_000, discard=Discard.NEW)
    broker.publish("orders.a", b"." * 100, b"." * 6_000, b"." * 200, reply="r")
    full = {**FULL, "description": "maximum bytes exceeded"}
    assert errors(broker) == [None, full, None]
    assert broker.values("orders") == [b"." * 100, b"." * 200]
    while errors(broker) in ([], [None]):
        broker.publish("orders.a", b"." * 50, reply="r")
    info = broker.stream("orders").partitions[0]
    assert 4_500 < info.size_bytes <= 6_000
    truncate(broker, info.committed_end or 0)
    broker.tick(1_000)
    broker.publish("orders.a", b"." * 2_000, reply="r")
    assert errors(broker) == [None]


def test_a_write_that_fails_takes_no_room() -> None:
    broker = with_limit(max_messages=2, discard=Discard.NEW)
    broker.publish("orders.a", b"1", reply="r")
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.WRITE)
    broker.publish("orders.a", b"2", reply="r")
    (_, failed) = errors(broker)
    assert failed is not None
    assert "store failed" in str(failed["description"])
    broker.publish("orders.a", b"3", b"4", reply="r")
    assert errors(broker) == [None, FULL]
    assert broker.values("orders") == [b"1", b"3"]


def test_a_batch_of_a_client_is_stored_as_a_whole_or_not_at_all() -> None:
    broker = with_limit(max_messages=3, discard=Discard.NEW)
    assert broker.answer(broker.append("orders", b"1", b"2"), AppendResponse).base_offset == 0
    error = refusal(broker, broker.append("orders", b"3", b"4"))
    assert (error.code, "purge it, or alter max_messages" in str(error)) == (ErrorCode.STREAM_FULL, True)
    assert broker.answer(broker.append("orders", b"3"), AppendResponse).base_offset == 2
    assert broker.values("orders") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("discard", [Discard.OLD, Discard.NEW])
def test_a_new_leader_counts_before_it_stores(discard: Discard) -> None:
    """What comes meanwhile waits; deleted messages that have left the files are not counted."""
    broker = with_limit(max_messages=30, discard=discard)
    broker.publish("orders.a", *(b"." * 400 for _ in range(30)))
    delete(broker, *range(3, 20))
    broker.tick(1_000)
    broker.tick(4 * 3_600_000)
    broker.stop()
    broker = broker.crash()
    broker.hung = (ReadGaps,)
    broker.start()
    broker.publish("orders.a", *(b"%d" % number for number in range(20)), reply="r")
    append = broker.append("orders", b"21")
    assert broker.acks == []
    assert append in broker.open_requests
    broker.hung = ()
    broker.settle()
    if discard is Discard.NEW:
        assert broker.answer(append, AppendResponse).base_offset == 30
        assert errors(broker) == [None] * 16 + [FULL] * 4
        assert live(broker).rows == 30
        assert offsets(broker)[0] == 0
    else:
        assert errors(broker) == [None] * 20
        assert live(broker).rows == 30
        assert offsets(broker) == [*range(21, 51)]


def test_a_run_is_published_once_a_log_that_could_not_be_counted_can_be_read() -> None:
    """Nothing else comes to the stream that would have it counted again."""
    broker = with_limit(max_messages=30, discard=Discard.NEW)
    for _ in range(20):
        broker.publish("orders.a", b"." * 400)
    rows = staged(broker, b"a")
    broker.tick(1_000)
    broker.stop()
    broker = broker.crash()
    broker.hung = (ReadGaps,)
    broker.start()
    broker.vfs.plan = lambda one: (
        FileFault(errno.EIO) if one.kind is FileOperationKind.READ and "-orders/" in one.path else None
    )
    broker.hung = ()
    broker.settle()
    broker.vfs.plan = no_faults
    for attempt in range(3):
        caller = publishing(broker, 0, rows)
        broker.tick(1_000)
        broker.settle()
        answer = broker.replies[caller].response
        if not isinstance(answer, RemoteError):
            break
        assert attempt or "cannot be counted" in answer.message
    assert isinstance(answer, PublishStagedResponse), answer
    assert answer.base_offset == 20


def test_expired_messages_make_room() -> None:
    broker = with_limit(max_messages=20, discard=Discard.NEW, allow_message_ttl=True, dedup_window_ms=1)
    headers = b"NATS/1.0\r\nNats-TTL: 10s\r\n\r\n"
    broker.deliver([(b"orders.a", b"r", headers, b"." * 400) for _ in range(20)])
    assert errors(broker) == [None] * 20
    broker.publish("orders.a", b"1", reply="r")
    assert errors(broker) == [FULL]
    for _ in range(110):
        broker.tick(100)
        broker.settle()
    broker.publish("orders.a", *(b"%d" % number for number in range(21)), reply="r")
    assert errors(broker) == [None] * 20 + [FULL]


def test_a_purge_of_a_subject_makes_room() -> None:
    broker = with_limit(max_messages=4, discard=Discard.NEW)
    broker.publish("orders.a", b"1", b"2")
    broker.publish("orders.b", b"3", b"4", b"5", reply="r")
    assert errors(broker) == [None, None, FULL]
    caller = broker.request(PurgeSubjectRequest(stream_id=broker.stream_id("orders"), subject="orders.a"))
    broker.tick(1_000)
    assert broker.answer(caller, PurgeSubjectResponse).messages == 2
    broker.publish("orders.b", b"6", b"7", b"8", reply="r")
    assert errors(broker) == [None, None, FULL]


def test_a_log_that_cannot_be_counted_is_read_again_for_the_next_message_only() -> None:
    broker = with_limit(max_messages=30, discard=Discard.NEW)
    for _ in range(20):
        broker.publish("orders.a", b"." * 400)
    broker.tick(1_000)
    broker.stop()
    broker = broker.crash()
    reads = 0

    def plan(one: FileOperation) -> FileFault | None:
        nonlocal reads
        is_of_gaps = one.kind is FileOperationKind.READ and "-orders/" in one.path
        reads += is_of_gaps
        return FileFault(errno.EIO) if is_of_gaps else None

    broker.hung = (ReadGaps,)
    broker.start()
    broker.vfs.plan = plan
    broker.hung = ()
    broker.settle()
    for _ in range(5):
        broker.publish("orders.b", b"1", reply="r")
    told = [one for one in errors(broker) if one is not None]
    assert told
    assert all("cannot be counted" in str(one["description"]) for one in told)
    broker.tick(1_000)
    before = reads
    for _ in range(3):
        broker.tick(1_000)
    assert reads == before, "no message asks for it"
    broker.vfs.plan = lambda _: None
    for _ in range(2):
        broker.publish("orders.b", b"1", reply="r")
    assert errors(broker)[-1] is None


# Beside a limit by subject


def settle(broker: Broker) -> None:
    for _ in range(3):
        broker.settle()
        broker.tick(1_000)


@pytest.mark.parametrize("discard", list(Discard))
def test_messages_that_a_limit_by_subject_has_replaced_take_no_bytes_from_others(discard: Discard) -> None:
    broker = with_limit(max_messages_per_subject=1, max_bytes=16_384, discard=discard)
    for subject in ("b", "c", "d"):
        broker.publish(f"orders.{subject}", b"kept", reply="r.0")
    for number in range(120):
        broker.publish("orders.a", b"." * 900, reply="r.0")
        if not number % 4:
            settle(broker)
    settle(broker)
    stored = broker.stream("orders").partitions[0].size_bytes
    assert errors(broker) == [None] * 123
    assert {row.subject for row in broker.read("orders")} == {"orders.a", "orders.b", "orders.c", "orders.d"}
    for _ in range(60):  # the deduplication window passes, then the cleaner
        broker.tick(10_000)
        settle(broker)
    assert broker.stream("orders").partitions[0].size_bytes < stored / 2


def test_messages_for_a_stream_that_seems_full_wait_until_it_is_known_which_ones_they_replace() -> None:
    broker = with_limit(max_messages_per_subject=1, max_messages=5, discard=Discard.NEW)
    broker.settle()
    for subject in ("b", "c", "d"):
        broker.publish(f"orders.{subject}", b"kept", reply="r.0")
    for _ in range(20):
        broker.publish("orders.a", b"x", reply="r.0")
    for _ in range(40):
        broker.settle()
        broker.tick(20)
    assert errors(broker) == [None] * 23
    assert live(broker).rows == 4
    broker.publish("orders.e", b"x", reply="r.0")
    settle(broker)
    broker.publish("orders.f", b"x", reply="r.1")
    settle(broker)
    assert errors(broker) == [None, FULL]
