"""Streams that refuse a second message of a subject: what is refused, what makes room, and what a new leader knows."""

from __future__ import annotations

import errno
from collections.abc import Callable, Hashable, Sequence

import pytest

from penstock.base import limits
from penstock.base.config import Discard
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    AppendResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    PublishStagedResponse,
    PurgeSubjectRequest,
    PurgeSubjectResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.node.partition.decisions import DecideRows
from penstock.node.partition.last_sequences import FindLasts
from penstock.vfs.faulty import FileFault, FileOperationKind, no_faults, nth
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.members import Member, formed
from tests.unit.node.staging import publishing, staged

FULL = "maximum messages per subject exceeded"
CONFIG = {"discard": Discard.NEW, "max_messages_per_subject": 1, "discard_new_per_subject": True}


def limited(**config: object) -> Broker:
    broker = Broker().start()
    broker.create("orders", segment_bytes=4096, **{**CONFIG, **config})
    return broker


def publish(broker: Broker, subjects: str, headers: bytes | None = None) -> list[str]:
    """Publish one message for each letter, in one read; return what each publisher hears: sequence or error."""
    broker.acks.clear()
    names = enumerate(subjects.encode())
    broker.deliver([(b"orders.%c" % name, b"r.%d" % number, headers, b"v" * 100) for number, name in names])
    return heard(broker)


def heard(broker: Broker) -> list[str]:
    acks = sorted(broker.acks, key=lambda ack: int(ack.reply.partition(".")[2]))
    return [ack.body["error"]["description"] if ack.err_code else str(ack.body["seq"]) for ack in acks]


def appending(broker: Broker, subjects: Sequence[str]) -> Hashable:
    request = AppendRequest(stream_id=broker.stream_id("orders"), partition=PartitionId(0))
    return broker.request(request, batch_of([(f"orders.{name}", None, b"v" * 100, None) for name in subjects]))


def append(broker: Broker, subjects: Sequence[str]) -> str:
    """Append one message for each letter, in one batch; return its first offset, or the code of the error."""
    response = broker.replies[appending(broker, subjects)].response
    return str(response.base_offset) if isinstance(response, AppendResponse) else str(getattr(response, "code", ""))


def delete(broker: Broker, *offsets: int) -> None:
    request = DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=tuple(map(Offset, offsets)))
    caller = broker.request(request)
    broker.tick(1_000)
    assert broker.answer(caller, DeleteMessagesResponse).deleted == len(offsets)


def shown(broker: Broker) -> str:
    return "".join(row.subject[-1] for row in broker.read("orders"))


def test_each_message_sees_those_before_it_and_nothing_is_hidden() -> None:
    broker = limited()
    assert publish(broker, "abab") == ["1", "2", FULL, FULL]
    assert publish(broker, "bca") == [FULL, "3", FULL]
    (refused, *_) = [ack for ack in broker.acks if ack.err_code]
    assert refused.body["error"] == {"code": 503, "err_code": 10077, "description": FULL}
    assert shown(broker) == "abc"
    assert broker.stream("orders").partitions[0].dropped == {"refused": 4}


def test_what_goes_makes_room_at_once() -> None:
    broker = limited()
    publish(broker, "abcde")
    delete(broker, 1)
    assert publish(broker, "ba") == ["6", FULL]
    caller = broker.request(PurgeSubjectRequest(stream_id=broker.stream_id("orders"), subject="orders.d"))
    broker.tick(1_000)
    assert broker.answer(caller, PurgeSubjectResponse).messages == 1
    assert publish(broker, "dd") == ["7", FULL]
    broker.ask(TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(1)), TruncateResponse)
    assert publish(broker, "aac") == ["8", FULL, FULL]
    assert shown(broker) == "cebda"


def test_expired_messages_make_room_once_a_pass_of_the_cleaner_is_over() -> None:
    broker = limited(allow_message_ttl=True, dedup_window_ms=1)
    assert publish(broker, "ab", b"NATS/1.0\r\nNats-TTL: 10s\r\n\r\n") == ["1", "2"]
    for number in range(4):
        broker.publish(f"orders.{number}", b"." * 400)
    assert publish(broker, "a") == [FULL]
    for _ in range(12):
        broker.tick(3_600_000)
    assert publish(broker, "aab") == ["7", FULL, "8"]


def test_a_write_that_fails_takes_no_room() -> None:
    broker = limited()
    publish(broker, "a")
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    (failed,) = publish(broker, "b")
    assert "store failed" in failed
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    assert append(broker, "c") == ErrorCode.STORAGE_FAILED
    broker.vfs.plan = no_faults
    assert publish(broker, "bcb") == ["2", "3", FULL]


def test_a_read_of_which_a_part_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 2)
    broker = limited()
    publish(broker, "x")
    broker.vfs.plan = nth(1, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    found = publish(broker, "abcd")
    assert (found[:2], all("store failed" in one for one in found[2:])) == (["2", "3"], True)
    broker.vfs.plan = no_faults
    assert publish(broker, "abcd") == [FULL, FULL, "4", "5"]


def test_a_batch_of_a_client_is_stored_as_a_whole_or_not_at_all() -> None:
    broker = limited()
    assert append(broker, "ab") == "0"
    for batch in ("cb", "cc"):
        refused = broker.replies[appending(broker, batch)].response
        assert isinstance(refused, RemoteError)
        assert (refused.code, FULL in refused.message) == (ErrorCode.STREAM_FULL, True)
    assert publish(broker, "ac") == [FULL, "3"]
    assert append(broker, "d") == "3"
    assert shown(broker) == "abcd"


@pytest.mark.parametrize("subjects_max", [2, 6, limits.SUBJECT_TABLE_MAX])
def test_after_a_restart_older_messages_are_looked_up(monkeypatch: pytest.MonkeyPatch, subjects_max: int) -> None:
    monkeypatch.setattr(limits, "SUBJECT_TABLE_MAX", subjects_max)
    names = "abcdefghijklmnopqrstuvwxyz"
    broker = limited()
    for name in names:
        publish(broker, name)
    delete(broker, 3)
    broker = broker.crash().start()
    assert append(broker, "ez") == ErrorCode.STREAM_FULL
    assert publish(broker, "abcA") == [FULL, FULL, FULL, "27"]
    assert append(broker, "BC") == "27"
    assert append(broker, "DA") == ErrorCode.STREAM_FULL
    broker = broker.crash().start()
    assert publish(broker, "ABCddz") == [FULL, FULL, FULL, "30", FULL, FULL]
    assert sorted(shown(broker)) == sorted(f"{names}ABC")


def test_messages_and_batches_wait_for_look_ups_in_turn() -> None:
    broker = limited()
    publish(broker, "ab")
    broker = broker.crash()
    broker.hung = (FindLasts,)
    broker.start()
    broker.deliver([(b"orders.%c" % name, b"r.%d" % n, None, b"v") for n, name in enumerate(b"ac")])
    appends = [appending(broker, names) for names in ("d", "b", "e")]
    assert not broker.acks
    assert not any(one in broker.replies for one in appends)
    broker.hung = ()
    broker.settle()
    assert [getattr(broker.replies[one].response, "code", "") for one in appends] == ["", ErrorCode.STREAM_FULL, ""]
    assert heard(broker)[0] == FULL
    assert sorted(shown(broker)) == list("abcde")


@pytest.mark.parametrize(
    ("act", "failed", "full"),
    [
        (append, "storage_failed", "stream_full"),
        (lambda broker, name: publish(broker, name)[0], "cannot be read", FULL),
    ],
)
def test_a_look_up_that_fails_is_made_again(act: Callable[[Broker, str], str], failed: str, full: str) -> None:
    broker = limited()
    publish(broker, "ab")
    broker = broker.crash().start()
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.READ, path_end=".arrows")
    assert failed in act(broker, "a")
    broker.vfs.plan = no_faults
    assert act(broker, "a") == full
    assert append(broker, "c") == "2"


def test_a_run_is_published_once_its_subjects_are_looked_up() -> None:
    broker = limited()
    publish(broker, "ab")
    rows = staged(broker, b"1")
    broker.tick(1_000)
    broker = broker.crash().start()
    for _ in range(3):
        caller = publishing(broker, 0, rows)
        broker.tick(1_000)
        answer = broker.replies[caller].response
        if not isinstance(answer, RemoteError):
            break
        assert "looks up" in answer.message
        publish(broker, "ab")  # what comes between does not void it
    assert isinstance(answer, PublishStagedResponse), answer
    again = broker.replies[publishing(broker, 1, staged(broker, b"2"))].response
    assert isinstance(again, RemoteError)
    assert again.code == ErrorCode.STREAM_FULL


def test_expectations_and_ids_beside_it() -> None:
    broker = limited()
    header = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n"
    assert publish(broker, "aa", header % 0) == ["1", "wrong last sequence: 1"]
    assert publish(broker, "a", header % 1) == [FULL]
    ids = b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n"
    assert publish(broker, "bb", ids) == ["2", "2"], "sent again it is a duplicate"
    other = b"NATS/1.0\r\nNats-Msg-Id: y\r\n\r\n"
    assert publish(broker, "ac", other) == [FULL, "3"], "the id of what was refused is not known"


def rollup(kind: str) -> bytes:
    return f"NATS/1.0\r\nNats-Rollup: {kind}\r\n\r\n".encode()


def test_a_rollup_takes_the_place_of_what_there_is_as_in_jetstream() -> None:
    broker = limited(allow_rollup=True)
    assert publish(broker, "ab") == ["1", "2"]
    assert publish(broker, "aac", rollup("sub")) == ["3", "4", "5"]
    assert publish(broker, "abc") == [FULL, FULL, FULL]
    for _ in range(2):
        broker.tick(1_000)
    assert shown(broker) == "bac"
    assert publish(broker, "abc") == [FULL, FULL, FULL]


def test_what_a_rollup_of_all_is_about_to_take_is_no_message_any_more() -> None:
    """That it is decided and hidden takes a moment: its publisher may go on at once."""
    broker = limited(allow_rollup=True)
    publish(broker, "abc")
    broker.hung = (DecideRows,)
    broker.acks.clear()
    broker.deliver([
        (b"orders.a", b"r.0", None, b"v"), (b"orders.b", b"r.1", rollup("all"), b"v"),
        (b"orders.a", b"r.2", None, b"v"), (b"orders.b", b"r.3", None, b"v"), (b"orders.a", b"r.4", None, b"v"),
    ])  # fmt: skip
    assert heard(broker) == [FULL, "4", "5", FULL, FULL]
    assert append(broker, "cd") == "5"
    assert publish(broker, "abcde") == [FULL] * 4 + ["8"]
    broker.hung = ()
    for _ in range(3):
        broker.settle()
        broker.tick(1_000)
    assert shown(broker) == "bacde"
    assert publish(broker, "abcde") == [FULL] * 5


def test_a_rollup_that_a_client_appends() -> None:
    broker = limited(allow_rollup=True)
    publish(broker, "ab")
    request = AppendRequest(stream_id=broker.stream_id("orders"), partition=PartitionId(0))
    one = broker.request(request, batch_of([("orders.a", None, b"v", rollup("sub"))]))
    assert broker.answer(one, AppendResponse).base_offset == 2
    two = broker.request(request, batch_of([(f"orders.{name}", None, b"v", rollup("sub")) for name in "ab"]))
    refused = broker.replies[two].response
    assert isinstance(refused, RemoteError), "several rows are stored as a whole, or not"
    assert refused.code == ErrorCode.STREAM_FULL
    broker.tick(1_000)
    assert shown(broker) == "ba"


def test_beside_a_limit_of_all_messages() -> None:
    broker = limited(max_messages=2)
    assert publish(broker, "aab") == ["1", FULL, "2"]
    assert publish(broker, "cb") == ["maximum messages exceeded", FULL]
    assert append(broker, "c") == ErrorCode.STREAM_FULL


def test_a_stream_may_be_altered_to_and_from_it() -> None:
    broker = limited(discard_new_per_subject=False)
    publish(broker, "aab")
    broker.tick(1_000)
    assert shown(broker) == "ab"
    changes = {"discard_new_per_subject": True}
    broker.ask(AlterStreamRequest(name="orders", changes=changes), AlterStreamResponse)
    assert publish(broker, "abc") == [FULL, FULL, "4"]
    assert shown(broker) == "abc", "at once, without a decision"
    changes = {"discard_new_per_subject": False}
    broker.ask(AlterStreamRequest(name="orders", changes=changes), AlterStreamResponse)
    assert publish(broker, "a") == ["5"]
    for _ in range(2):
        broker.tick(1_000)
    assert shown(broker) == "bca"


def test_a_new_leader_knows_what_there_is_before_it_stores() -> None:
    brokers = formed()
    caller = brokers.leader.create("s", subject="s.*", replicas=3, **CONFIG)
    brokers.run(1_000)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]

    def send(*names: str) -> None:
        for member in list(brokers.members.values()):
            member.deliver([(b"s.%b" % one.encode(), b"r.%b" % one.encode(), None, b"v") for one in names])
        brokers.settle()

    send("a", "b")
    brokers.run(500)
    old: Member = brokers.led("s")
    deleting = old.request(DeleteMessagesRequest(stream_id=old.stream_id("s"), offsets=(Offset(0),)))
    brokers.run(1_000)
    assert old.answer(deleting, DeleteMessagesResponse).deleted == 1
    brokers.kill(old.broker_id)
    brokers.run(8_000)
    new = brokers.led("s")
    assert new is not old
    send("b", "a")
    send("a")
    brokers.run(1_000)
    told = [(ack.reply, ack.body["error"]["description"] if ack.err_code else ack.body["seq"]) for ack in new.acks]
    assert sorted(map(str, told)) == sorted(map(str, [("r.b", FULL), ("r.a", 3), ("r.a", FULL)]))
