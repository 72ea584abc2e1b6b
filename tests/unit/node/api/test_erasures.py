"""Secure deletions: no file of any live broker holds the bytes once they are told as erased."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from random import Random

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.base.ids import Offset
from penstock.commitlog.files import files
from penstock.messages import (
    AppendRequest,
    AwaitErasureRequest,
    AwaitErasureResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    ErasureState,
    FetchRequest,
    PurgeSubjectRequest,
    PurgeSubjectResponse,
    ReplicaErasure,
    TruncateRequest,
)
from penstock.metadata.companions import marks_key
from penstock.node.replicas.companions import ReadCompanionRows
from penstock.vfs.memory import Keep, MemoryVfs
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.members import Brokers, formed
from tests.unit.node.replicas.companion_brokers import key_of
from tests.unit.node.staging import QUERY, published, staged

ROWS = 12
NAME = "orders"


def parts_of(number: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Subject, key, value and headers of a message, which stand nowhere else."""
    return (
        b"orders.person-%03d" % number,
        b"key-of-%03d!" % number,
        b"value-of-%03d!" % number,
        b"NATS/1.0\r\nNats-Msg-Id: id-of-%03d!\r\n\r\n" % number,
    )


def append(broker: Broker, numbers: Iterable[int], *, at_once: int = 1) -> None:
    """Store these messages, some in each batch."""
    rows = [(parts[0].decode(), *parts[1:]) for parts in map(parts_of, numbers)]
    for begin in range(0, len(rows), at_once):
        data = batch_of(rows[begin : begin + at_once])
        broker.request(AppendRequest(stream_id=broker.stream_id(NAME)), data)


def with_messages(*, at_once: int = 1, **config: object) -> Broker:
    settings = {"cleaner_bytes_per_s": config.pop("cleaner_bytes_per_s")} if "cleaner_bytes_per_s" in config else {}
    broker = Broker(**settings).start()
    broker.create(NAME, segment_bytes=4096, **config)
    append(broker, range(ROWS), at_once=at_once)
    return broker


def files_of(broker: Broker) -> MemoryVfs:
    """The files of the stream, which are not on the disk if it is in memory."""
    vfs = broker.node._partitions[key_of(broker, NAME)].vfs
    return vfs if isinstance(vfs, MemoryVfs) else broker.memory


def files_with(memory: MemoryVfs, *texts: bytes) -> set[str]:
    """The files that hold one of these texts."""
    found = set()
    for path in memory.files():
        file = memory.open(path, read_only=True)
        data = file.read_at(0, file.size())
        file.close()
        if any(text in data for text in texts):
            found.add(path)
    return found


def held(memory: MemoryVfs, *numbers: int) -> set[str]:
    """The files that hold anything of these messages."""
    texts = [text for number in numbers for text in (*parts_of(number)[:3], b"id-of-%03d!" % number)]
    return files_with(memory, *texts)


def delete(broker: Broker, *offsets: int) -> DeleteMessagesRequest:
    return DeleteMessagesRequest(stream_id=broker.stream_id(NAME), offsets=tuple(map(Offset, offsets)), is_secure=True)


def deleted(broker: Broker, *offsets: int) -> DeleteMessagesResponse:
    """The answer of a secure deletion: it is marked."""
    caller = broker.request(delete(broker, *offsets))
    broker.tick(1_000)
    return broker.answer(caller, DeleteMessagesResponse)


def wait(broker: Broker, marks_end: int) -> Hashable:
    return broker.request(AwaitErasureRequest(stream_id=broker.stream_id(NAME), marks_end=Offset(marks_end)))


def states(broker: Broker, caller: Hashable) -> tuple[ReplicaErasure, ...]:
    return broker.answer(caller, AwaitErasureResponse).replicas


def erased(broker: Broker, marks_end: int, seconds: int = 20) -> None:
    """Wait for the erasure, as a client does."""
    caller = wait(broker, marks_end)
    for _ in range(seconds):
        if caller not in broker.open_requests:
            if all(one.state == ErasureState.ERASED for one in states(broker, caller)):
                return
            caller = wait(broker, marks_end)
        broker.tick(1_000)
    raise AssertionError(broker.replies.get(caller))


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("config", [{}, {"compact": True}, {"compression": "zstd"}, {"storage": "memory"}])
def test_nothing_of_a_message_is_left_in_any_file_once_it_is_told_as_erased(
    at_once: int, config: dict[str, object]
) -> None:
    broker = with_messages(at_once=at_once, **config)
    gone = (2, 5, 11)
    disk = files_of(broker)
    assert held(disk, *gone)
    answer = deleted(broker, *gone)
    assert (answer.deleted, answer.already_deleted, answer.missing) == (3, 0, ())
    assert [row.offset for row in broker.read(NAME)] == [at for at in range(ROWS) if at not in gone]
    erased(broker, answer.marks_end)
    assert held(disk, *gone) == set()
    assert [row.offset for row in broker.read(NAME)] == [at for at in range(ROWS) if at not in gone]
    append(broker, [ROWS])
    assert broker.read(NAME)[-1].offset == ROWS
    again = deleted(broker, *gone)
    assert (again.deleted, again.already_deleted) == (0, 3)
    erased(broker, again.marks_end, seconds=1)


def test_many_deletions_share_a_pass_of_the_segment() -> None:
    broker = with_messages()
    for offset in range(8):
        answer = broker.ask(delete(broker, offset), DeleteMessagesResponse) if offset else deleted(broker, offset)
    before = broker.node._partitions[key_of(broker, NAME)].counters["cleaned_segments"]
    erased(broker, answer.marks_end)
    after = broker.node._partitions[key_of(broker, NAME)].counters["cleaned_segments"]
    assert after - before <= 4, "of three segments and what was active"
    assert held(broker.memory, *range(8)) == set()


def test_it_is_not_told_as_erased_while_a_file_holds_it() -> None:
    broker = with_messages()
    answer = deleted(broker, 11)
    for _ in range(20):
        caller = wait(broker, answer.marks_end)
        if caller in broker.open_requests:
            assert held(broker.memory, 11)
            broker.tick(limits.ERASURE_ANSWER_MS // 4)
            continue
        assert not held(broker.memory, 11)
        return
    raise AssertionError("never erased")


def test_a_waiting_request_is_answered_in_time_with_what_it_waits_for() -> None:
    broker = with_messages()
    broker.disk_runs_at_once = False
    broker.request(delete(broker, 1))
    while broker.disk:
        broker.run_disk()
    broker.tick(1_000)
    while broker.disk:
        broker.run_disk()
    caller = wait(broker, 1)
    broker.tick(limits.ERASURE_ANSWER_MS)
    (one,) = states(broker, caller)
    assert (one.broker_id, one.state, one.messages) == (broker.node._settings.broker_id, ErasureState.WAITING, 1)
    assert "segments are to be rewritten" in one.waits_for
    (part,) = broker.stream(NAME).partitions
    assert (part.to_erase, part.to_erase_reason) == (1, one.waits_for)
    broker.disk_runs_at_once = True
    erased(broker, 1)
    (part,) = broker.stream(NAME).partitions
    assert (part.to_erase, part.to_erase_reason) == (0, "")


def test_what_was_deleted_before_is_erased_on_request() -> None:
    broker = with_messages()
    plain = DeleteMessagesRequest(stream_id=broker.stream_id(NAME), offsets=(Offset(3), Offset(4)))
    broker.request(plain)
    broker.tick(1_000)
    for _ in range(20):
        broker.tick(1_000)
    assert held(broker.memory, 3), "an hour has not passed"
    answer = deleted(broker, 3)
    assert (answer.deleted, answer.already_deleted) == (0, 1)
    erased(broker, answer.marks_end)
    assert not held(broker.memory, 3)
    assert held(broker.memory, 4), "it is in the deduplication window, and nobody asked for it"


def test_a_subject_is_purged_and_erased() -> None:
    broker = with_messages()
    purge = PurgeSubjectRequest(stream_id=broker.stream_id(NAME), subject="orders.person-007", is_secure=True)
    caller = broker.request(purge)
    broker.tick(1_000)
    answer = broker.answer(caller, PurgeSubjectResponse)
    assert answer.messages == 1
    erased(broker, answer.marks_end)
    assert not held(broker.memory, 7)
    assert broker.ask(purge, PurgeSubjectResponse).messages == 0


def test_it_is_erased_with_the_cleaner_switched_off() -> None:
    broker = with_messages(cleaner_bytes_per_s=0)
    erased(broker, deleted(broker, 2, 11).marks_end)
    assert not held(broker.memory, 2, 11)


def test_side_files_that_may_hold_it_go_and_others_stay() -> None:
    broker = with_messages()
    log = broker.node._partitions[key_of(broker, NAME)].log
    segments = log.view().segments
    assert len(segments) > 1
    for segment in (segments[0], segments[-1]):
        source = broker.memory.open(segment.path, read_only=True)
        files.copy_aside(broker.memory, source, 0, source.size())
        source.close()
    kept = files.side_files(broker.memory, segments[-1].path, 0)
    erased(broker, deleted(broker, 0).marks_end)
    assert not held(broker.memory, 0)
    assert files.side_files(broker.memory, segments[0].path, 0) == []
    assert files.side_files(broker.memory, segments[-1].path, 0) == kept


def test_what_lies_before_the_log_start_by_then_is_erased_too() -> None:
    broker = Broker().start()
    broker.create(NAME)
    append(broker, range(ROWS))
    answer = deleted(broker, 2)
    request = TruncateRequest(stream_id=broker.stream_id(NAME), before=Offset(6))
    broker.request(request)
    erased(broker, answer.marks_end)
    assert not held(broker.memory, 2)
    assert broker.read(NAME)[0].offset == 6


def test_an_erasure_does_not_wait_for_messages_that_a_power_loss_took() -> None:
    broker = with_messages(durability="os")
    broker.tick(10_000)
    append(broker, [ROWS])
    answer = broker.ask(delete(broker, 1, ROWS), DeleteMessagesResponse)
    assert answer.deleted == 2
    after = broker.crash(Keep.SYNCED).start()
    assert after.node._partitions[key_of(after, NAME)].log.log_end == ROWS
    erased(after, answer.marks_end)
    assert not held(after.memory, 1)


@pytest.mark.parametrize("keep", list(Keep))
def test_a_broker_that_crashes_at_any_step_erases_it_when_it_is_back(keep: Keep) -> None:
    broker = with_messages()
    answer = deleted(broker, 1, 11)
    broker.disk_runs_at_once = False
    steps = 0
    while steps < 60:
        after = broker.crash(keep, Random(steps) if keep is Keep.SUBSET else None).start()
        for _ in range(4):
            after.tick(1_000)
        erased(after, answer.marks_end, seconds=30)
        assert not held(after.memory, 1, 11), steps
        assert [row.offset for row in after.read(NAME)] == [at for at in range(ROWS) if at not in (1, 11)]
        steps += 1
        if broker.disk:
            broker.run_disk()
        else:
            broker.tick(500)
        if not held(broker.memory, 1, 11):
            break
    assert not held(broker.memory, 1, 11)
    assert steps > 5


def in_cluster() -> Brokers:
    brokers = formed()
    caller = brokers.leader.create(NAME, replicas=3, segment_bytes=4096)
    brokers.run(1_000)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    append(brokers.led(NAME), range(ROWS))
    brokers.run(1_000)
    return brokers


def asked(brokers: Brokers, *offsets: int) -> int:
    """Delete securely; the end of the marks."""
    broker = brokers.led(NAME)
    caller = broker.request(delete(broker, *offsets))
    brokers.run(2_000)
    return int(broker.answer(caller, DeleteMessagesResponse).marks_end)


def all_states(brokers: Brokers, marks_end: int, seconds: int = 30) -> dict[int, str]:
    broker = brokers.led(NAME)
    for _ in range(seconds):
        caller = wait(broker, marks_end)
        brokers.run(limits.ERASURE_ANSWER_MS + 1_000)
        found = {one.broker_id: one.state for one in states(broker, caller)}
        if ErasureState.WAITING not in found.values():
            return {int(broker_id): state for broker_id, state in found.items()}
    raise AssertionError(found)


def test_all_brokers_erase_it_and_an_absent_one_is_named_and_does_so_when_it_is_back() -> None:
    brokers = in_cluster()
    leader = int(brokers.led(NAME).broker_id)
    absent = next(one for one in (1, 2, 3) if one not in (leader, int(brokers.leader.broker_id)))
    left = brokers.kill(absent)
    brokers.run(30_000)
    marks_end = asked(brokers, 3, 11)
    found = all_states(brokers, marks_end)
    assert found == {one: ErasureState.ABSENT if one == absent else ErasureState.ERASED for one in (1, 2, 3)}
    for member in brokers.members.values():
        assert not held(member.memory, 3, 11)
    assert held(left, 3, 11)
    back = brokers.start(absent, left, f"disk-{absent}")
    brokers.run(5_000)
    assert set(all_states(brokers, marks_end).values()) == {ErasureState.ERASED}
    assert not held(back.memory, 3, 11)


def test_a_replica_without_the_marks_is_not_told_as_one_that_has_erased() -> None:
    brokers = in_cluster()
    leader = brokers.led(NAME)
    other = next(one for one in brokers.members.values() if one is not leader and one is not brokers.leader)
    asked(brokers, 0)
    companion = other.node._partitions[marks_key(key_of(other, NAME))]
    end = companion.log.log_end
    brokers.cut(int(leader.broker_id), int(other.broker_id))
    brokers.run(200)
    caller = leader.request(delete(leader, 5))
    brokers.run(1_000)
    caller_wait = wait(leader, end + 1)
    brokers.run(limits.ERASURE_ANSWER_MS + 1_000)
    found = {one.broker_id: one for one in states(leader, caller_wait)}
    assert found[other.broker_id].state != ErasureState.ERASED
    brokers.join(int(leader.broker_id), int(other.broker_id))
    brokers.run(20_000)
    leader.answer(caller, DeleteMessagesResponse)
    assert set(all_states(brokers, end + 1).values()) == {ErasureState.ERASED}
    assert not held(other.memory, 5)


def test_a_replica_shows_nothing_of_what_others_have_erased_before_it_knows_of_it() -> None:
    brokers = in_cluster()
    leader = brokers.led(NAME)
    other = next(one for one in brokers.members.values() if one is not leader and one is not brokers.leader)
    asked(brokers, 0)
    assert [row.offset for row in other.read(NAME)] == list(range(1, ROWS))
    brokers.cut(int(leader.broker_id), int(other.broker_id))
    brokers.run(30_000)
    append(leader, range(ROWS, ROWS + 20))
    brokers.run(1_000)
    asked(brokers, ROWS + 3, ROWS + 4)
    brokers.run(20_000)
    assert not held(leader.memory, ROWS + 3, ROWS + 4)
    other.hung = (ReadCompanionRows,)  # it has the marks, and does not know them yet
    brokers.join(int(leader.broker_id), int(other.broker_id))
    brokers.run(5_000)
    assert int(other.node._partitions[key_of(other, NAME)].committed_end) == ROWS + 20
    refusal = other.refusal(FetchRequest(stream_id=other.stream_id(NAME), offset=Offset(ROWS)))
    assert refusal.code == ErrorCode.NOT_YET
    other.hung = ()
    brokers.run(1_000)
    shown = [row.offset for row in other.read(NAME)]
    assert shown == [one for one in range(1, ROWS + 20) if one not in (ROWS + 3, ROWS + 4)]


def test_of_a_stream_whose_deletion_is_suspended_nothing_is_erased() -> None:
    broker = with_messages(suspend_deletion="yes")
    refusal = broker.refusal(delete(broker, 3))
    assert refusal.code == ErrorCode.READ_ONLY
    assert "without `secure`" in refusal.message


def test_it_is_not_told_as_erased_while_rows_staged_for_it_are_there() -> None:
    broker = Broker(staged_keep_ms=4_000).start()
    broker.create(NAME)
    rows = staged(broker, b"Ada Lovelace", query_id=QUERY, batch_id=0)
    published(broker, 0, rows)
    answer = deleted(broker, 0)
    caller = wait(broker, answer.marks_end)
    for _ in range(5):
        broker.tick(1_000)
    (one,) = states(broker, caller)
    assert (one.state, one.messages) == (ErasureState.WAITING, 0)
    assert "staged" in one.waits_for
    assert files_with(broker.memory, b"Ada Lovelace")
    staged(broker, b"Grace Hopper", query_id=QUERY, batch_id=1)  # is not waited for: it came later
    erased(broker, answer.marks_end)
    assert not files_with(broker.memory, b"Ada Lovelace")
    assert files_with(broker.memory, b"Grace Hopper")


def test_a_side_file_of_a_segment_that_retention_has_removed_counts() -> None:
    broker = with_messages()
    segments = broker.node._partitions[key_of(broker, NAME)].log.view().segments
    source = broker.memory.open(segments[0].path, read_only=True)
    files.copy_aside(broker.memory, source, 0, source.size())
    source.close()
    answer = deleted(broker, 0)
    broker.request(TruncateRequest(stream_id=broker.stream_id(NAME), before=Offset(segments[-1].base_offset)))
    for _ in range(10):
        held_before = held(broker.memory, 0)
        caller = wait(broker, answer.marks_end)
        if caller not in broker.open_requests:
            assert not held_before
            return
        broker.tick(1_000)
    raise AssertionError(broker.stream(NAME).partitions[0].to_erase_reason)


@pytest.mark.parametrize("way", ["purged", "pushed out"])
@pytest.mark.parametrize("by", ["offset", "subject"])
def test_what_lies_before_the_log_start_already_is_erased_too(way: str, by: str) -> None:
    broker = with_messages(max_messages=6 if way == "pushed out" else None)
    stream_id = broker.stream_id(NAME)
    if way == "purged":
        broker.request(TruncateRequest(stream_id=stream_id, before=Offset(6)))
    broker.tick(1_000)
    assert broker.stream(NAME).partitions[0].log_start == 6
    assert held(files_of(broker), 5)
    if by == "offset":
        answer = deleted(broker, 5)
        assert (answer.deleted, answer.already_deleted, answer.missing) == (0, 1, ())
        marks_end = answer.marks_end
    else:
        request = PurgeSubjectRequest(stream_id=stream_id, subject="orders.person-005", is_secure=True)
        caller = broker.request(request)
        broker.tick(1_000)
        purged = broker.answer(caller, PurgeSubjectResponse)
        assert purged.messages == 0
        marks_end = purged.marks_end
    erased(broker, marks_end)
    assert not held(files_of(broker), 5)
    assert len(broker.read(NAME)) == 6
