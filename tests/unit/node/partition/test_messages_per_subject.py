"""Streams that refuse what is beyond a limit by subject, or take it in the place of an older one though they are full.

What is refused, what makes room, and what a new leader knows.
"""

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
FULL_STREAM = "maximum messages exceeded"
CONFIG = {"discard": Discard.NEW, "max_messages_per_subject": 1, "discard_new_per_subject": True}
TWO = {"max_messages_per_subject": 2}
REPLACING = {"discard_new_per_subject": False}


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


@pytest.mark.parametrize("most", [1, 2])
def test_a_new_leader_knows_what_there_is_before_it_stores(most: int) -> None:
    brokers = formed()
    caller = brokers.leader.create("s", subject="s.*", replicas=3, **CONFIG | {"max_messages_per_subject": most})
    brokers.run(1_000)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]

    def send(*names: str) -> None:
        for member in list(brokers.members.values()):
            member.deliver([(b"s.%b" % one.encode(), b"r.%b" % one.encode(), None, b"v") for one in names])
        brokers.settle()

    send(*"ab" * most)
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
    assert sorted(map(str, told)) == sorted(map(str, [("r.b", FULL), ("r.a", 2 * most + 1), ("r.a", FULL)]))


# Several messages of a subject.


def test_each_message_sees_those_before_it_also_where_a_subject_may_have_several() -> None:
    broker = limited(**TWO)
    assert publish(broker, "aabab") == ["1", "2", "3", FULL, "4"]
    assert publish(broker, "abca") == [FULL, FULL, "5", FULL]
    assert publish(broker, "cc") == ["6", FULL]
    assert shown(broker) == "aabbcc"


def test_what_goes_makes_room_for_as_many() -> None:
    broker = limited(**TWO)
    publish(broker, "aabbcc")
    delete(broker, 0)
    assert publish(broker, "aab") == ["7", FULL, FULL]
    caller = broker.request(PurgeSubjectRequest(stream_id=broker.stream_id("orders"), subject="orders.b"))
    broker.tick(1_000)
    assert broker.answer(caller, PurgeSubjectResponse).messages == 2
    assert publish(broker, "bbb") == ["8", "9", FULL]
    broker.ask(TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(2)), TruncateResponse)
    assert publish(broker, "aac") == ["10", FULL, FULL]


def test_a_log_start_that_rises_between_the_messages_of_a_subject() -> None:
    """Nothing is hidden by that: the table of counts has to know."""
    broker = limited(**TWO)
    publish(broker, "abab")
    assert publish(broker, "ab") == [FULL, FULL]
    broker.ask(TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(1)), TruncateResponse)
    assert publish(broker, "abab") == ["5", FULL, FULL, FULL]


def test_a_write_that_fails_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 2)
    broker = limited(**TWO)
    publish(broker, "ab")
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    (failed,) = publish(broker, "a")
    assert "store failed" in failed
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    assert append(broker, "a") == ErrorCode.STORAGE_FAILED
    broker.vfs.plan = nth(1, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    found = publish(broker, "acbb")
    assert (found[:2], ["store failed" in one for one in found[2:]]) == (["3", "4"], [True, False])
    broker.vfs.plan = no_faults
    assert publish(broker, "abcb") == [FULL, "5", "6", FULL]


def test_a_batch_is_counted_as_a_whole() -> None:
    broker = limited(**TWO)
    assert append(broker, "aba") == "0"
    for batch in ("ca", "ccc", "bb"):
        assert append(broker, batch) == ErrorCode.STREAM_FULL
    assert append(broker, "bcc") == "3"
    assert publish(broker, "abcd") == [FULL, FULL, FULL, "7"]


@pytest.mark.parametrize("subjects_max", [2, 6, limits.SUBJECT_TABLE_MAX])
def test_after_a_restart_older_messages_are_counted(monkeypatch: pytest.MonkeyPatch, subjects_max: int) -> None:
    monkeypatch.setattr(limits, "SUBJECT_TABLE_MAX", subjects_max)
    names = "abcdefghijklmnopqrstuvwxyz"
    broker = limited(max_messages_per_subject=3)
    for name in names + names:
        publish(broker, name)
    delete(broker, 3, 30)  # d, e
    broker = broker.crash().start()
    assert append(broker, "ezzd") == ErrorCode.STREAM_FULL
    assert publish(broker, "abbA") == ["53", "54", FULL, "55"]
    assert append(broker, "dd") == "55"
    assert append(broker, "d") == ErrorCode.STREAM_FULL
    assert append(broker, "BA") == "57"
    broker = broker.crash().start()
    assert publish(broker, "adzzBBBeeA") == [FULL, FULL, "60", FULL, "61", "62", FULL, "63", "64", "65"]
    assert publish(broker, "Ae") == [FULL, FULL]


@pytest.mark.parametrize(
    ("act", "failed", "full"),
    [
        (append, "storage_failed", "stream_full"),
        (lambda broker, name: publish(broker, name)[0], "cannot be read", FULL),
    ],
)
def test_a_count_that_fails_is_made_again(act: Callable[[Broker, str], str], failed: str, full: str) -> None:
    broker = limited(**TWO)
    publish(broker, "abab")
    broker = broker.crash().start()
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.READ, path_end=".arrows")
    assert failed in act(broker, "a")
    broker.vfs.plan = no_faults
    assert act(broker, "a") == full
    assert append(broker, "c") == "4"


def test_a_rollup_leaves_itself_alone_at_once() -> None:
    broker = limited(allow_rollup=True, **TWO)
    publish(broker, "aabb")
    broker.hung = (DecideRows,)
    broker.acks.clear()
    said = [("a", None), ("a", rollup("sub")), ("a", None), ("a", None), ("b", rollup("sub")), ("b", None), ("b", None)]
    broker.deliver([(f"orders.{name}".encode(), b"r.%d" % n, kind, b"v") for n, (name, kind) in enumerate(said)])
    assert heard(broker) == [FULL, "5", "6", FULL, "7", "8", FULL]
    assert publish(broker, "abc") == [FULL, FULL, "9"]
    request = AppendRequest(stream_id=broker.stream_id("orders"), partition=PartitionId(0))
    broker.request(request, batch_of([("orders.a", None, b"v", rollup("sub"))]))
    refused = broker.replies[appending(broker, "a")].response
    assert isinstance(refused, RemoteError)
    assert refused.code == ErrorCode.NOT_YET, "what the rollup leaves is counted once it is applied"
    broker.hung = ()
    for _ in range(3):
        broker.settle()
        broker.tick(1_000)
    assert shown(broker) == "bbca"
    assert append(broker, "a") == "10"
    assert publish(broker, "aabbcc") == [FULL, FULL, FULL, FULL, "12", FULL]


def test_a_rollup_of_all_leaves_itself_alone_at_once() -> None:
    broker = limited(allow_rollup=True, **TWO)
    publish(broker, "aabbc")
    broker.hung = (DecideRows,)
    broker.acks.clear()
    said = [("c", None), ("a", None), ("b", rollup("all")), *((name, None) for name in "aaabbc")]
    broker.deliver([(f"orders.{name}".encode(), b"r.%d" % n, kind, b"v") for n, (name, kind) in enumerate(said)])
    assert heard(broker) == ["6", FULL, "7", "8", "9", FULL, "10", FULL, "11"]
    assert publish(broker, "abcc") == [FULL, FULL, "12", FULL]
    assert append(broker, "c") == ErrorCode.STREAM_FULL
    assert append(broker, "d") == "12"
    broker.hung = ()
    for _ in range(3):
        broker.settle()
        broker.tick(1_000)
    assert shown(broker) == "baabccd"
    assert publish(broker, "abcdd") == [FULL, FULL, FULL, "14", FULL]


def test_an_expectation_behind_a_rollup_of_all_in_one_read() -> None:
    broker = limited(allow_rollup=True, **TWO)
    publish(broker, "ab")
    broker.acks.clear()
    expects = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n"
    said = [("b", rollup("all")), ("a", expects % 1), ("a", expects % 0), ("a", expects % 4)]
    broker.deliver([(f"orders.{name}".encode(), b"r.%d" % n, kind, b"v") for n, (name, kind) in enumerate(said)])
    assert heard(broker) == ["3", "wrong last sequence: 0", "4", "5"]


def test_a_rollup_that_is_not_written_leaves_what_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 1)
    broker = limited(allow_rollup=True, **TWO)
    publish(broker, "aa")
    for kind in ("sub", "all"):
        broker.vfs.plan = nth(1, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
        said = [(f"{kind}", None), ("a", rollup(kind))]
        broker.acks.clear()
        broker.deliver([(f"orders.{name}".encode(), b"r.%d" % n, how, b"v") for n, (name, how) in enumerate(said)])
        assert ["store failed" in one for one in heard(broker)] == [False, True]
        broker.vfs.plan = no_faults
        for _ in range(3):
            broker.tick(1_000)
        assert publish(broker, "aa") == [FULL, FULL]


def test_a_rollup_that_is_written_before_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 1)
    broker = limited(allow_rollup=True, **TWO)
    publish(broker, "aa")
    broker.vfs.plan = nth(1, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    broker.acks.clear()
    broker.deliver([(b"orders.a", b"r.0", rollup("sub"), b"v"), (b"orders.b", b"r.1", None, b"v")])
    assert ["store failed" in one for one in heard(broker)] == [False, True]
    broker.vfs.plan = no_faults
    monkeypatch.undo()
    broker.hung = (DecideRows,)
    assert publish(broker, "aab") == []
    broker.hung = ()
    for _ in range(2):
        broker.settle()
        broker.tick(1_000)
    assert heard(broker) == ["4", FULL, "5"], "the table was forgotten, and rollups are applied before it is made anew"


def test_a_count_is_not_taken_for_that_of_another_limit() -> None:
    broker = limited(max_messages_per_subject=3)
    for name in "a" + "bcdefghijklmnopqrstuvwxyz" * 2 + "aaB":
        publish(broker, name)
    broker = broker.crash().start()
    for most, found in ((1, [FULL]), (2, [FULL]), (3, [FULL]), (4, ["55"])):
        broker.ask(AlterStreamRequest(name="orders", changes={"max_messages_per_subject": most}), AlterStreamResponse)
        assert publish(broker, "a") == found, most


def test_the_limit_may_be_altered() -> None:
    broker = limited(**TWO)
    assert publish(broker, "aaa") == ["1", "2", FULL]
    for most, found in ((3, ["3", FULL]), (1, [FULL, FULL]), (4, ["4", FULL])):
        broker.ask(AlterStreamRequest(name="orders", changes={"max_messages_per_subject": most}), AlterStreamResponse)
        assert publish(broker, "aa") == found


# A full stream in which the newest messages of a subject stay.


@pytest.mark.parametrize("most", [1, 2])
def test_a_full_stream_takes_what_replaces_another_as_jetstream_does(most: int) -> None:
    broker = limited(max_messages=3, max_messages_per_subject=most, **REPLACING)
    if most == 1:
        assert publish(broker, "abcd") == ["1", "2", "3", FULL_STREAM]
        assert publish(broker, "adbba") == ["4", FULL_STREAM, "5", "6", "7"]
    else:
        assert publish(broker, "aabb") == ["1", "2", "3", FULL_STREAM]
        assert publish(broker, "abca") == ["4", FULL_STREAM, FULL_STREAM, "5"]
    for _ in range(2):
        broker.tick(1_000)
    assert shown(broker) == ("cba" if most == 1 else "baa")
    assert publish(broker, "bd") == (["8", FULL_STREAM] if most == 1 else [FULL_STREAM, FULL_STREAM])


def test_what_replaces_another_leaves_the_room_to_others() -> None:
    broker = limited(max_messages=3, **REPLACING)
    publish(broker, "ab")
    assert publish(broker, "abcd") == ["3", "4", "5", FULL_STREAM]
    broker.tick(1_000)
    assert shown(broker) == "abc"


@pytest.mark.parametrize("most", [1, 2])
def test_a_batch_is_taken_if_all_that_is_new_has_room(most: int) -> None:
    broker = limited(max_messages=4, max_messages_per_subject=most, **REPLACING)
    publish(broker, "abc" if most == 1 else "aab")
    for batch, found in (("ade", "stream_full"), ("ada", "3"), ("ae", "stream_full"), ("aaa", "6")):
        assert append(broker, batch) == found
        broker.tick(1_000)
    assert shown(broker) == ("bcda" if most == 1 else "bdaa")


@pytest.mark.parametrize("most", [1, 2])
def test_it_goes_on_while_decisions_are_late(most: int) -> None:
    broker = limited(max_messages=2, max_messages_per_subject=most, **REPLACING)
    publish(broker, "ab" if most == 1 else "aa")
    broker.tick(1_000)
    broker.hung = (DecideRows,)
    assert publish(broker, "a") == ["3"]
    assert append(broker, "a") == "3"
    assert publish(broker, "ac") == ["5", FULL_STREAM]
    broker.hung = ()
    broker.settle()
    broker.tick(1_000)
    assert shown(broker) == ("ba" if most == 1 else "aa")


@pytest.mark.parametrize("subjects_max", [2, limits.SUBJECT_TABLE_MAX])
@pytest.mark.parametrize("most", [1, 2])
def test_a_full_stream_after_a_restart(monkeypatch: pytest.MonkeyPatch, subjects_max: int, most: int) -> None:
    monkeypatch.setattr(limits, "SUBJECT_TABLE_MAX", subjects_max)
    broker = limited(max_messages=12 * most, max_messages_per_subject=most, **REPLACING)
    for name in "abcdefghijkl" * (most + 1):
        publish(broker, name)
        broker.tick(100)
    end = 12 * (most + 1)
    broker = broker.crash().start()
    broker.tick(1_000)
    assert publish(broker, "amb") == [str(end + 1), FULL_STREAM, str(end + 2)]
    assert append(broker, "cdm") == ErrorCode.STREAM_FULL
    assert append(broker, "cda") == str(end + 2)
    for _ in range(2):
        broker.tick(1_000)
    delete(broker, end + 4)  # the last one of a
    assert publish(broker, "m") == [str(end + 6)]
    assert publish(broker, "ab") == [FULL_STREAM, str(end + 7)]


@pytest.mark.parametrize("is_appended", [True, False])
def test_what_a_rollup_is_about_to_free_is_waited_for(*, is_appended: bool) -> None:
    broker = limited(max_messages=4, max_messages_per_subject=3, allow_rollup=True, **REPLACING)
    publish(broker, "aaab")
    broker.tick(1_000)
    broker.hung = (DecideRows,)
    if is_appended:
        request = AppendRequest(stream_id=broker.stream_id("orders"), partition=PartitionId(0))
        broker.request(request, batch_of([("orders.a", None, b"v", rollup("sub"))]))
    else:
        assert publish(broker, "a", rollup("sub")) == ["5"]
    assert append(broker, "c") == ErrorCode.NOT_YET
    assert publish(broker, "cde") == []
    broker.hung = ()
    broker.settle()
    broker.tick(1_000)
    assert heard(broker) == ["6", "7", FULL_STREAM]


def test_nothing_is_replaced_while_the_limit_is_suspended() -> None:
    broker = limited(max_messages=2, **REPLACING)
    publish(broker, "ab")
    changes = {"suspend_deletion": "yes"}
    broker.ask(AlterStreamRequest(name="orders", changes=changes), AlterStreamResponse)
    assert publish(broker, "a") == [FULL_STREAM]


@pytest.mark.parametrize("is_decided", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_narrower_limit_has_hidden_makes_no_room(*, restarts: bool, is_decided: bool) -> None:
    broker = limited(**REPLACING, max_messages=3)
    for name in "aaabc":
        publish(broker, name)
        broker.tick(1_000)
    assert shown(broker) == "abc"

    def alter(**changes: int) -> None:
        broker.ask(AlterStreamRequest(name="orders", changes=changes), AlterStreamResponse)
        broker.tick(1_000)

    alter(**TWO)
    if is_decided:  # the wider limit has hidden something, too
        alter(max_messages=5)
        publish(broker, "cc")
        broker.tick(1_000)
        assert shown(broker) == "abcc"
        alter(max_messages=4)
    if restarts:
        broker = broker.crash().start()
        broker.tick(1_000)
    assert publish(broker, "a") == [FULL_STREAM]  # it has one message only
