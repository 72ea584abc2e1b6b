"""Deleting single messages, and those of a subject, on one broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, partialmethod

import msgspec
import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.live import row_set
from penstock.live.live_rows import LiveRows
from penstock.live.marks import HideReason, HideRows, MadeUnder, encode
from penstock.live.row_set import RowSet
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    GetRequest,
    GetResponse,
    PurgeSubjectRequest,
    PurgeSubjectResponse,
    SetIntakeRequest,
    TruncateRequest,
)
from penstock.metadata.companions import marks_key, target_key
from penstock.node.partition.decisions import DecideRows
from penstock.node.partition.log_queries import Query, QueryGivenUpError
from penstock.node.partition.row_search import FindOffsets, FindSubject
from penstock.node.replicas import hidden_rows
from penstock.node.replicas.companions import CompanionRow, ReadCompanionRows
from tests.unit.node.harness import Broker
from tests.unit.node.replicas.companion_brokers import key_of

EXPECTS = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n"


def with_messages(count: int = 12, **settings: object) -> Broker:
    broker = Broker(**settings).start()
    broker.create("orders", segment_bytes=4096)
    for number in range(count):
        broker.publish(f"orders.{number % 3}", b"%d" % number)
    return broker


def delete(broker: Broker, *offsets: int) -> DeleteMessagesRequest:
    return DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=tuple(map(Offset, offsets)))


def purge(broker: Broker, subject: str, **options: int | bool) -> PurgeSubjectRequest:
    return PurgeSubjectRequest(stream_id=broker.stream_id("orders"), subject=subject, **options)  # type: ignore[arg-type]


def offsets(broker: Broker) -> list[int]:
    return [row.offset for row in broker.read("orders")]


def done(broker: Broker, request: DeleteMessagesRequest | PurgeSubjectRequest) -> DeleteMessagesResponse:
    """Answer of a deletion; the first one of a stream waits until there is a companion log."""
    caller = broker.request(request)
    broker.tick(1_000)
    kind = DeleteMessagesResponse if isinstance(request, DeleteMessagesRequest) else PurgeSubjectResponse
    return broker.answer(caller, kind)  # type: ignore[return-value]


def test_deleted_messages_are_gone_and_the_others_keep_their_offsets() -> None:
    broker = with_messages()
    answer = done(broker, delete(broker, 3, 7, 8))
    assert (answer.deleted, answer.already_deleted, answer.missing) == (3, 0, ())
    assert offsets(broker) == [0, 1, 2, 4, 5, 6, 9, 10, 11]
    error = broker.refusal(GetRequest(stream_id=broker.stream_id("orders"), offset=Offset(7)))
    assert error.code == ErrorCode.MESSAGE_NOT_FOUND
    broker.publish("orders.1", b"next")
    assert offsets(broker)[-1] == 12


def test_a_repeated_request_deletes_nothing_twice() -> None:
    broker = with_messages()
    done(broker, delete(broker, 3))
    answer = done(broker, delete(broker, 3, 4))
    assert (answer.deleted, answer.already_deleted, answer.missing) == (1, 1, ())
    answer = done(broker, delete(broker, 3, 4, 99))
    assert (answer.deleted, answer.already_deleted, answer.missing) == (0, 2, (99,))


def test_a_stream_with_metadata_and_several_subjects_loses_messages_as_any_other() -> None:
    broker = Broker().start()
    broker.create("orders", more_subjects=("parts",), description="d", metadata={"team": "shop"})
    for subject in ("orders.1", "parts", "orders.2"):
        broker.publish(subject, b"1")
    assert done(broker, delete(broker, 1)).deleted == 1
    assert offsets(broker) == [0, 2]
    broker.create("next")
    assert broker.stream("next").config.name == "next", "the metadata leader goes on"


def test_they_stay_gone_through_a_crash_at_once() -> None:
    broker = with_messages()
    done(broker, delete(broker, 0, 5, 11))
    after = broker.crash().start()
    after.tick(1_000)
    assert offsets(after) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    after.publish("orders.1", b"next")
    assert offsets(after)[-1] == 12


def test_a_subject_is_purged_but_for_the_last_ones() -> None:
    broker = with_messages()
    would = done(broker, purge(broker, "orders.1", is_dry_run=True))
    assert (would.messages, would.before, would.next_offset) == (4, 12, None)  # type: ignore[attr-defined]
    assert len(offsets(broker)) == 12
    gone = done(broker, purge(broker, "orders.1", keep=1))
    assert (gone.messages, gone.before) == (3, 10)  # type: ignore[attr-defined]
    assert offsets(broker) == [0, 2, 3, 5, 6, 8, 9, 10, 11]
    gone = done(broker, purge(broker, "orders.*", before=9))
    assert gone.messages == 6  # type: ignore[attr-defined]
    assert offsets(broker) == [9, 10, 11]


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_purge_ends_where_the_last_messages_are_deleted(is_dry_run: bool) -> None:
    """Nothing is read behind the last message that is shown: the answer named this place again, without end."""
    broker = with_messages(4)
    done(broker, delete(broker, 2, 3))
    for subject, count in (("other", 0), ("orders.1", 1)):
        answer = done(broker, purge(broker, subject, is_dry_run=is_dry_run))
        assert isinstance(answer, PurgeSubjectResponse)
        assert (answer.messages, answer.before, answer.next_offset) == (count, 4, None)


def test_all_that_waits_at_a_stop_is_answered_once() -> None:
    broker = with_messages()
    broker.disk_runs_at_once = False
    callers = [broker.request(delete(broker, offset)) for offset in (1, 2, 3)]
    assert broker.open_requests.issuperset(callers)
    broker.do(broker.node.stop(broker.clock.now))  # a second answer to a caller fails
    assert not broker.open_requests


def test_a_sealed_stream_keeps_its_messages() -> None:
    broker = with_messages()
    broker.request(SetIntakeRequest(name="orders", intake="sealed"))  # type: ignore[arg-type]
    assert broker.refusal(delete(broker, 3)).code == ErrorCode.READ_ONLY


def test_what_a_stream_denies_is_refused_and_the_rest_is_not() -> None:
    broker = with_messages()
    broker.ask(AlterStreamRequest(name="orders", changes={"deny_delete": True}), AlterStreamResponse)
    refused = broker.refusal(delete(broker, 3))
    assert (refused.code, "deny_delete is set, for ever" in str(refused)) == (ErrorCode.READ_ONLY, True)
    assert done(broker, purge(broker, "orders.1")).messages == 4  # type: ignore[attr-defined]
    broker.ask(AlterStreamRequest(name="orders", changes={"deny_purge": True}), AlterStreamResponse)
    for request in (
        purge(broker, "orders.2"),
        purge(broker, "orders.2", is_dry_run=True),
        TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(3)),
    ):
        refused = broker.refusal(request)
        assert (refused.code, "deny_purge is set, for ever" in str(refused)) == (ErrorCode.READ_ONLY, True)
    assert len(offsets(broker)) == 8


@pytest.mark.parametrize("offset", [12, 10**12])
def test_what_is_not_there_is_told(offset: int) -> None:
    broker = with_messages()
    answer = done(broker, delete(broker, offset))
    assert (answer.deleted, answer.missing, answer.committed_end) == (0, (offset,), 12)


def test_internal_streams_are_not_for_users() -> None:
    broker = with_messages()
    done(broker, delete(broker, 1))
    request = DeleteMessagesRequest(stream_id=broker.stream_id("orders") | 1 << 40, offsets=(Offset(0),))  # type: ignore[arg-type]
    refusal = broker.replies[broker.request(request)].response
    assert isinstance(refusal, RemoteError), refusal


def last_of(broker: Broker, subject: str) -> int:
    request = GetRequest(stream_id=broker.stream_id("orders"), subject=subject)
    return int(broker.ask(request, GetResponse).offset)


def test_the_last_message_of_a_subject_is_the_last_one_that_is_not_deleted() -> None:
    broker = with_messages(60)
    broker.publish("orders.rare", b"once")
    for number in range(60):
        broker.publish("orders.0", b"." * 900 + b"%d" % number)  # several segments
    assert last_of(broker, "orders.rare") == 60
    assert last_of(broker, "orders.0") == 120
    done(broker, delete(broker, 120, 119))
    assert last_of(broker, "orders.0") == 118
    done(broker, delete(broker, 60))
    request = GetRequest(stream_id=broker.stream_id("orders"), subject="orders.rare")
    assert broker.refusal(request).code == ErrorCode.MESSAGE_NOT_FOUND
    assert any(path.endswith(".subjects") for path in broker.memory.files())


def test_a_message_that_gets_the_offset_of_a_lost_one_is_shown_though_that_was_deleted() -> None:
    broker = Broker().start()
    broker.create("orders", durability="os")
    for number in range(4):
        broker.publish("orders.a", b"%d" % number)
    assert done(broker, delete(broker, 2)).deleted == 1
    broker.tick(1_000)  # all this is synced
    for number in range(4, 10):
        broker.publish("orders.a", b"%d" % number)
    assert broker.ask(delete(broker, 8), DeleteMessagesResponse).deleted == 1
    after = broker.crash().start()
    lost = len(after.values("orders"))
    assert lost < 6, "some messages are lost, as `os` allows"
    for number in range(10):
        after.publish("orders.a", b"new %d" % number)
    after.tick(1_000)
    after.tick(1_000)
    shown = after.read("orders")
    assert 2 not in [row.offset for row in shown], "it was not lost, and stays deleted"
    new = [row.value for row in shown if row.value is not None and row.value.startswith(b"new")]
    assert new == [b"new %d" % number for number in range(10)]


def test_a_deletion_beside_a_snapshot_stays() -> None:
    broker = with_messages(marks_per_snapshot_max=2)
    done(broker, delete(broker, 0))
    done(broker, delete(broker, 1))
    broker.syncs_hang = True
    callers = [broker.request(delete(broker, 2))]
    broker.tick(1_000)  # the snapshot is written, and does not know of that one
    callers += [broker.request(delete(broker, number)) for number in (3, 4)]
    broker.syncs_hang = False
    broker.settle()
    for caller in callers:
        assert broker.answer(caller, DeleteMessagesResponse).deleted == 1
    assert offsets(broker) == [5, 6, 7, 8, 9, 10, 11]
    after = broker.crash().start()
    after.tick(1_000)
    assert offsets(after) == [5, 6, 7, 8, 9, 10, 11]


def test_a_search_that_took_too_long_is_given_up() -> None:
    broker = with_messages()
    broker.disk_runs_at_once = False
    caller = broker.request(purge(broker, "orders.1"))
    (asked,) = broker.node._deletions._waiting.values()
    broker.tick(limits.DELETION_TIMEOUT_MS)
    refusal = broker.replies[caller].response
    assert isinstance(refusal, RemoteError)
    assert refusal.code == ErrorCode.TIMED_OUT
    with pytest.raises(QueryGivenUpError):
        asked.query.run()


def test_many_marks_are_applied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = with_messages()
    for number in range(6):
        done(broker, delete(broker, number))
    monkeypatch.setattr(limits, "COMPANION_BYTES_AT_ONCE", 30)  # two marks
    takes: list[int] = []
    apply = hidden_rows._folded

    def counted(live: LiveRows, rows: Sequence[CompanionRow]) -> LiveRows:
        takes.append(len(rows))
        return apply(live, rows)

    monkeypatch.setattr(hidden_rows, "_folded", counted)
    after = broker.crash().start()
    after.tick(1_000)
    assert offsets(after) == [6, 7, 8, 9, 10, 11]
    assert sum(takes) == 6
    assert max(takes) < 6


def _called(query: Query, call: Callable[[Query], None]) -> None:
    call(query)


@pytest.fixture
def on_loop(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is done on the event loop that takes long with many scattered rows."""
    found: list[object] = []
    depth = 0

    def in_thread(run: Callable[[Query], None], query: Query) -> None:
        nonlocal depth
        depth += 1
        run(query)
        depth -= 1

    def noted(call: Callable[..., object], *args: object) -> object:
        if not depth:
            found.append(call)
        return call(*args)

    monkeypatch.setattr(limits, "COMPANION_BYTES_ON_LOOP", 0)  # the marks of a few messages stand for those of many
    for kind in (FindOffsets, FindSubject, DecideRows, ReadCompanionRows):
        monkeypatch.setattr(kind, "run", partialmethod(_called, partial(in_thread, kind.run)))
    monkeypatch.setattr(row_set, "_encoded", partial(noted, row_set._encoded))
    monkeypatch.setattr(row_set, "_run_list", partial(noted, row_set._run_list))
    monkeypatch.setattr(hidden_rows, "_folded", partial(noted, hidden_rows._folded))
    return found


def test_marks_are_encoded_read_and_applied_in_disk_threads(on_loop: list[object]) -> None:
    """A purge of a million scattered messages takes seconds: nothing of that is done on the event loop."""
    broker = with_messages()
    done(broker, delete(broker, 0))
    done(broker, purge(broker, "orders.*"))
    assert offsets(broker) == []
    broker.create("lasts", max_messages_per_subject=1)
    for _ in range(3):
        broker.publish("lasts.a", b"one")
    broker.settle()
    broker.tick(limits.DECISION_PAUSE_MS_MAX)
    broker.settle()
    assert [row.offset for row in broker.read("lasts")] == [2]
    assert not on_loop


def test_secure_deletions_are_put_together_in_disk_threads(on_loop: list[object]) -> None:
    broker = with_messages()
    for number in (2, 4, 6):
        request = msgspec.structs.replace(delete(broker, number), is_secure=True)
        assert done(broker, request).deleted == 1
    del on_loop[:]
    assert done(broker, msgspec.structs.replace(delete(broker, 8, 9), is_secure=True)).deleted == 2
    assert done(broker, msgspec.structs.replace(delete(broker, 2, 4), is_secure=True)).already_deleted == 2
    assert not on_loop


def test_the_last_sequence_of_a_subject_is_that_of_the_last_message_that_is_not_deleted() -> None:
    broker = with_messages()  # 9 is the last one of orders.0
    done(broker, delete(broker, 9))
    broker.publish("orders.0", b"next", reply="_INBOX.1", headers=EXPECTS % 7)
    assert offsets(broker)[-1] == 12
    done(broker, delete(broker, 12))
    after = broker.crash().start()
    after.tick(1_000)
    after.publish("orders.0", b"next", reply="_INBOX.2", headers=EXPECTS % 7)
    assert offsets(after)[-1] == 13


def test_an_expectation_waits_until_a_new_leader_knows_what_is_deleted() -> None:
    broker = with_messages()  # 9 is the last one of orders.0
    done(broker, delete(broker, 9))
    after = broker.crash()
    after.hung = (ReadCompanionRows,)
    after.start()
    after.publish("orders.0", b"late", reply="_INBOX.1", headers=EXPECTS % 10)
    after.publish("orders.0", b"next", reply="_INBOX.2", headers=EXPECTS % 7)
    after.publish("orders.1", b"expects nothing")
    assert after.acks == [], "nothing is answered by what may be deleted"
    after.hung = ()
    after.settle()
    answers = {ack.reply: ack.body.get("error", {}).get("description") for ack in after.acks}
    assert answers == {"_INBOX.1": "wrong last sequence: 7", "_INBOX.2": None}
    assert offsets(after)[-2:] == [12, 13]


def test_a_mark_of_the_largest_size_is_taken() -> None:
    broker = with_messages()
    done(broker, delete(broker, 0))
    partition = broker.node._partitions[key_of(broker, "orders")]
    scattered = RowSet.of(range(0, 16 * limits.MARK_BYTES_MAX, 2))  # a bit for each offset
    under = MadeUnder(leader_epoch=1, log_end=16 * limits.MARK_BYTES_MAX)
    marks = list(HideRows(under, HideReason.PURGE, scattered).split())
    assert len(encode(marks[0])) > limits.MARK_BYTES_MAX * 0.9
    answers: list[object] = []
    rows = [(one.kind.encode(), encode(one)) for one in marks]
    broker.node._router.storing.append_to_companion(partition, rows, answers.append)
    broker.settle()
    assert isinstance(answers[0], AppendResponse), answers
    assert offsets(broker) == [1, 3, 5, 7, 9, 11]


def test_where_an_unclean_election_has_lost_all_marks_nothing_is_hidden_any_more() -> None:
    broker = with_messages()
    done(broker, delete(broker, 3, 4))
    target, log = (broker.node._partitions[of(key_of(broker, "orders"))] for of in (target_key, marks_key))
    assert target.log.hidden == RowSet.of([3, 4])
    task = log.log.truncate(0)  # as a follower of the leader that has none of them
    assert task is not None
    task.run()
    log.log.truncated(task)
    log.committed_end = 0
    broker.node._replicas.role_due(log)
    broker.settle()
    assert target.log.hidden is None


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_the_last_messages_that_stay_are_looked_for_in_steps(is_dry_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker().start()
    broker.create("orders", segment_bytes=4096)
    for number in range(60):
        broker.publish("orders.rare" if number in (1, 2, 4, 50) else "orders.other", b"%d" % number)
    monkeypatch.setattr(limits, "PURGED_BYTES_AT_ONCE", 5_000)
    request = purge(broker, "orders.rare", keep=2, is_dry_run=is_dry_run)
    messages, steps = 0, []
    while True:
        answer = done(broker, request)
        assert isinstance(answer, PurgeSubjectResponse)
        messages += answer.messages
        steps.append(answer.keep)
        if answer.keep:
            assert not answer.messages
            request = msgspec.structs.replace(request, before=answer.before, keep=answer.keep)
        elif answer.next_offset is None:
            break
        else:
            request = msgspec.structs.replace(request, start=answer.next_offset, before=answer.before, keep=0)
    assert messages == 2
    assert set(steps) == {0, 1, 2}
    assert len(steps) > 6, "each one reads a bounded part"
    left = set(range(60)) - (set() if is_dry_run else {1, 2})
    assert set(offsets(broker)) == left
