"""A follower whose metadata is older than its leader's: it must not show what it does not know how to show."""

from __future__ import annotations

import errno

from penstock.base.ids import Offset
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
)
from penstock.raft.tasks import LOG_PATH
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, no_faults
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.replicas.companion_brokers import key_of, target


def no_metadata(operation: FileOperation) -> FileFault | None:
    is_refused = operation.kind is FileOperationKind.WRITE and operation.path.startswith(LOG_PATH)
    return FileFault(errno.ENOSPC) if is_refused else None


def nothing_written(operation: FileOperation) -> FileFault | None:
    return FileFault(errno.ENOSPC) if operation.kind is FileOperationKind.WRITE else None


def with_stream() -> tuple[Brokers, Member]:
    """They hold a stream `s`; and a follower that does not lead the metadata."""
    brokers = formed()
    caller = brokers.leader.create("s", subject="s.>", replicas=3, min_isr=2, dedup_window_ms=None)
    brokers.run(500)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    led = brokers.led("s")
    return brokers, next(one for one in brokers.members.values() if one is not led and one is not brokers.leader)


def publish(brokers: Brokers, subject: str, *values: bytes) -> None:
    for value in values:
        brokers.led("s").publish(subject, value)
    brokers.run(300)


def delete(brokers: Brokers, *offsets: int) -> None:
    """Delete messages securely."""
    led = brokers.led("s")
    deleted = tuple(Offset(one) for one in offsets)
    caller = led.request(DeleteMessagesRequest(stream_id=key_of(led).stream_id, offsets=deleted, is_secure=True))
    brokers.run(1_000)
    led.answer(caller, DeleteMessagesResponse)


def shown(member: Member) -> list[bytes | None]:
    """The values that a reader of that broker is shown."""
    return [row.value for row in member.read("s")]


def test_a_follower_that_has_not_heard_that_there_are_deletions_shows_none_of_what_they_left() -> None:
    """It fetched the cover of deleted messages, and showed it as a message without a subject."""
    brokers, follower = with_stream()
    publish(brokers, "s.a", b"0")
    follower.vfs.plan = nothing_written
    publish(brokers, "s.a", b"1", b"2", b"3")
    delete(brokers, 1, 2, 3)
    assert shown(brokers.led("s")) == [b"0"]
    follower.vfs.plan = no_metadata
    brokers.run(2_000)
    assert target(follower).log.log_end == 4
    assert not target(follower).stream.has_marks
    assert shown(follower) == [b"0"]
    follower.vfs.plan = no_faults
    brokers.run(10_000)
    assert shown(follower) == [b"0"]
    assert target(follower).committed_end == 4


def test_a_follower_that_has_not_heard_of_a_limit_by_subject_shows_no_row_beyond_it() -> None:
    """It showed each message before its leader decided what that pushes out."""
    brokers, follower = with_stream()
    publish(brokers, "s.a", b"0")
    follower.vfs.plan = no_metadata
    led = brokers.led("s")
    caller = led.request(AlterStreamRequest(name="s", changes={"max_messages_per_subject": 1}))
    brokers.run(500)
    led.answer(caller, AlterStreamResponse)
    publish(brokers, "s.a", b"1")
    assert target(led).visible_end == 1, "that is not decided yet"
    assert target(follower).log.log_end == 2
    assert shown(follower) == [b"0"]
    follower.vfs.plan = no_faults
    brokers.run(10_000)
    assert shown(follower) == [b"1"]
