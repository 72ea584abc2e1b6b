"""A follower appends what its leader's log holds, or refuses it as a whole."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from penstock.base.config import Compression
from penstock.batch import codec, layout
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import (
    LineageEntry,
    Log,
    LogConfig,
    LogState,
    NotWritableError,
    RangeRefusedError,
    StorageFullError,
)
from penstock.commitlog.fetched import FetchedAppend
from penstock.commitlog.files import lineage as lineages
from penstock.commitlog.files.files import segment_path
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, nth
from penstock.vfs.memory import Keep, MemoryVfs
from tests.batch_samples import resealed, sealed
from tests.logs import DIRECTORY, append, flush, flush_and_note, make_batch, messages_in, open_log, read_slices

WIDE = LogConfig(segment_bytes=100_000)


def batches(*specs: tuple[int, int, int, int]) -> bytes:
    """Batches end to end: base offset, rows, timestamp, leader epoch of each."""
    return b"".join(make_batch(base, rows, at_us, leader_epoch=epoch)[0] for base, rows, at_us, epoch in specs)


GOOD = batches((0, 2, 10, 1), (2, 1, 10, 1), (3, 3, 20, 3), (6, 1, 25, 4))


def test_what_a_leader_sent_lies_in_the_log_as_it_came() -> None:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    assert log.append_fetched(GOOD) == FetchedAppend(7, len(GOOD), 4)
    assert (log.log_end, log.last_timestamp_us, log.leader_epoch, log.last_epoch) == (7, 25, 4, 4)
    assert log.lineage == (LineageEntry(1, 0), LineageEntry(3, 3), LineageEntry(4, 6))
    file = disk.open(segment_path(DIRECTORY, 0))
    assert file.read_at(SCHEMA_BYTES, file.size()) == GOOD
    assert [message[0] for message in read_slices(disk, log.view())] == list(range(7))
    flush(log)
    again = open_log(disk.crash_clone(), WIDE)
    assert (again.log_end, again.lineage, again.last_epoch) == (7, log.lineage, 4)
    log.append_fetched(memoryview(batches((7, 1, 25, 4))))
    assert log.lineage == again.lineage, "an epoch that goes on is no news"


@pytest.mark.parametrize("kept", [2, 0])
def test_the_time_of_messages_that_were_lost_is_not_held_against_the_leader(kept: int) -> None:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    if kept:
        log.append_fetched(batches((0, kept, 10, 1)))
    flush(log)
    log.append_fetched(batches((kept, 1, 90, 1)))
    log.checkpoint()
    again = open_log(disk.crash_clone(Keep.SYNCED), WIDE)
    assert again.log_end == kept
    again.append_fetched(batches((kept, 1, 20, 2)))
    assert (again.log_end, again.last_timestamp_us) == (kept + 1, 20)


def test_nothing_is_a_range_too() -> None:
    log = open_log(MemoryVfs())
    assert log.append_fetched(b"") == FetchedAppend(0, 0, 0)


def test_batches_of_one_segment_and_epoch_are_one_write() -> None:
    vfs = FaultyVfs(MemoryVfs())
    log = open_log(vfs, WIDE)
    writes: list[int] = []

    def watch(operation: FileOperation) -> None:
        if operation.kind is FileOperationKind.WRITE and operation.path.endswith(".arrows"):
            writes.append(operation.length)

    vfs.watcher = watch
    data = batches(*((number, 1, number, 1) for number in range(20)))
    log.append_fetched(data)
    assert writes == [len(data)]


@pytest.mark.parametrize("config", [LogConfig(4096), LogConfig(100_000, segment_age_us=3), LogConfig(5000, 4)], ids=str)
def test_segments_roll_as_they_do_where_batches_are_appended_one_by_one(config: LogConfig) -> None:
    one_by_one, at_once = MemoryVfs(), MemoryVfs()
    log = open_log(one_by_one, config)
    log.start_epoch(1)
    made = [make_batch(2 * number, 2, number, size_bytes=number % 5 * 400) for number in range(40)]
    for data, header in made:
        log.append(data, header)
    follower = open_log(at_once, config)
    for first in range(0, 40, 10):
        follower.append_fetched(b"".join(data for data, _ in made[first : first + 10]))
    assert follower.segment_count == log.segment_count > 3
    assert content(at_once) == content(one_by_one)
    flush(follower)
    assert read_slices(at_once, open_log(at_once.crash_clone(), config).view()) == read_slices(one_by_one, log.view())


def content(disk: MemoryVfs) -> dict[str, bytes]:
    return {path: disk.open(path).read_at(0, 10**7) for path in disk.files() if path.endswith(".arrows")}


def flipped(place: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("data", "position", "reason"),
    [
        (flipped(len(GOOD) - 1)(GOOD), len(GOOD) - len(batches((6, 1, 25, 4))), "CRC-32C"),
        (GOOD[:-8], len(GOOD) - len(batches((6, 1, 25, 4))), "bytes"),
        (GOOD + b"\xff\xff\xff\xff", len(GOOD), "a batch header"),
        (bytes(4096), 0, "the start of a batch message"),
        (batches((1, 1, 10, 1)), 0, "expected offset 0, found 1"),
        (batches((0, 2, 10, 1), (3, 1, 10, 1)), len(batches((0, 2, 10, 1))), "expected offset 2, found 3"),
        (batches((0, 2, 10, 1), (0, 2, 10, 1)), len(batches((0, 2, 10, 1))), "expected offset 2, found 0"),
        (batches((0, 2, 10, 1), (2, 1, 9, 1)), len(batches((0, 2, 10, 1))), "a timestamp from 10 on, found 9"),
        (batches((0, 2, 10, 5), (2, 1, 10, 4)), len(batches((0, 2, 10, 5))), "leader epoch 5 or a later one, found 4"),
        (batches((0, 2, 10, 0)), 0, "leader epoch 1 or a later one, found 0"),
    ],
)
def test_a_mistake_anywhere_refuses_the_range_as_a_whole(data: bytes, position: int, reason: str) -> None:
    disk = MemoryVfs()
    vfs = FaultyVfs(disk)
    log = open_log(vfs, WIDE)
    before = {path: disk.open(path).read_at(0, 10**7) for path in disk.files()}
    with pytest.raises(RangeRefusedError) as caught:
        log.append_fetched(data)
    assert (caught.value.position, caught.value.truncate_to) == (position, None)
    assert reason in caught.value.reason
    assert (log.log_end, log.lineage, log.state, log.damage) == (0, (), LogState.WRITABLE, ())
    assert {path: disk.open(path).read_at(0, 10**7) for path in disk.files()} == before
    assert log.append_fetched(GOOD).log_end == 7


def test_what_follows_must_go_on_from_what_is_there() -> None:
    log = open_log(MemoryVfs(), WIDE)
    log.append_fetched(batches((0, 4, 100, 3)))
    for data in (batches((4, 1, 99, 3)), batches((4, 1, 100, 2)), batches((5, 1, 100, 3)), batches((2, 2, 100, 3))):
        with pytest.raises(RangeRefusedError) as caught:
            log.append_fetched(data)
        assert caught.value.truncate_to is None
    assert log.log_end == 4


def test_of_a_merged_batch_that_begins_before_the_end_the_rest_is_taken() -> None:
    vfs = MemoryVfs()
    log = open_log(vfs, WIDE)
    log.append_fetched(batches((0, 2, 1, 1), (2, 2, 2, 1)))
    appended = log.append_fetched(batches((2, 6, 2, 1), (8, 1, 3, 1)))
    assert (appended.log_end, appended.batches) == (9, 2)
    headers = [header for header, _ in log.view().batches(0, 9)]
    assert [(one.base_offset, one.end_offset, one.count) for one in headers] == [
        (0, 2, 2), (2, 4, 2), (4, 8, 4), (8, 9, 1)
    ]  # fmt: skip
    assert read_slices(vfs, log.view())[4:] == list(messages_in(batches((2, 6, 2, 1), (8, 1, 3, 1))))[2:]


@pytest.mark.parametrize("wished", [Compression.LZ4, Compression.ZSTD])
def test_of_a_compressed_batch_the_rest_is_taken_plain_and_others_as_they_came(wished: Compression) -> None:
    vfs = MemoryVfs()
    log = open_log(vfs, LogConfig(segment_bytes=10**6))
    log.append_fetched(batches((0, 40, 1, 1)))
    first, second = (bytes(codec.compressed(batches(one), wished)[0]) for one in ((20, 60, 2, 1), (80, 50, 3, 1)))
    appended = log.append_fetched(first + second)
    assert (appended.log_end, appended.batches) == (130, 2)
    found = log.view().slice(40, end=130, bytes_max=10**6)
    assert found is not None
    data = vfs.open(found.path).read_at(found.position, found.length)
    assert data.endswith(second), "byte for byte"
    rest = codec.verify(data[: -len(second)])
    assert (rest.flags, rest.base_offset, rest.end_offset) == (0, 40, 80)
    assert read_slices(vfs, log.view())[40:] == list(messages_in(batches((20, 60, 2, 1), (80, 50, 3, 1))))[20:]
    assert [header.size_bytes for header, data in log.view().batches(0, 130) if len(data) != header.size_bytes] == []


def test_a_compressed_batch_that_does_not_unpack_gives_no_rest() -> None:
    log = open_log(MemoryVfs(), WIDE)
    log.append_fetched(batches((0, 40, 1, 1)))
    data = bytearray(codec.compressed(batches((20, 60, 2, 1)), Compression.ZSTD)[0])
    data[layout.BODY_POSITION] ^= 1  # of the length of the first buffer
    with pytest.raises(RangeRefusedError, match="compressed buffers that unpack") as caught:
        log.append_fetched(sealed(data))
    assert caught.value.truncate_to is None, "what the follower has is sound"
    assert log.log_end == 40


def covering(data: bytes, base_offset: int, end_offset: int) -> bytes:
    message = bytearray(data)
    codec.covering(message, base_offset, end_offset)
    return bytes(message)


def test_where_no_row_is_left_behind_the_end_the_last_batch_here_covers_what_is_gone() -> None:
    """Compaction has taken them from the leader; and this log's batches begin elsewhere."""
    vfs = MemoryVfs()
    log = open_log(vfs, WIDE)
    log.append_fetched(batches((0, 4, 1, 1), (4, 2, 2, 1)))
    sent = covering(batches((2, 2, 1, 1)), 2, 9) + batches((9, 3, 3, 2))
    with pytest.raises(RangeRefusedError) as caught:
        log.append_fetched(sent)
    assert caught.value.truncate_to == 4
    assert log.log_end == 6
    task = log.truncate(4)
    assert task is not None
    task.run()
    log.truncated(task)
    log.append_fetched(caught.value.instead)
    assert [(header.base_offset, header.end_offset) for header, _ in log.view().batches(0, 12)] == [
        (0, 4), (4, 9), (9, 12)
    ]  # fmt: skip
    kept = list(messages_in(batches((0, 4, 1, 1), (4, 2, 2, 1), (9, 3, 3, 2))))
    assert [one for _, data in log.view().batches(0, 12) for one in messages_in(data)] == kept


def test_an_empty_log_takes_a_batch_whose_rows_come_before_its_end_as_a_whole() -> None:
    log = open_log(MemoryVfs(), WIDE)
    task = log.reset(6)
    task.run()
    log.truncated(task)
    with pytest.raises(RangeRefusedError) as caught:
        log.append_fetched(covering(batches((2, 2, 1, 1)), 2, 9))
    assert (caught.value.truncate_to, caught.value.instead) == (2, b"")


def test_a_damaged_batch_is_refused_though_only_its_rest_is_wanted() -> None:
    log = open_log(MemoryVfs(), WIDE)
    log.append_fetched(batches((0, 4, 1, 1)))
    data = bytearray(batches((2, 6, 2, 1)))
    data[-9] ^= 1
    with pytest.raises(RangeRefusedError) as caught:
        log.append_fetched(data)
    assert caught.value.truncate_to is None
    assert log.log_end == 4


def test_a_batch_of_a_producer_is_taken_whole_or_not_at_all() -> None:
    log = open_log(MemoryVfs(), WIDE)
    log.append_fetched(batches((0, 2, 1, 1), (2, 2, 2, 1)))
    merged = resealed(batches((2, 6, 2, 1)), producer_id=5)
    with pytest.raises(RangeRefusedError) as caught:
        log.append_fetched(merged)
    assert caught.value.truncate_to == 2
    with pytest.raises(RangeRefusedError) as caught:
        log.append_fetched(batches((4, 1, 2, 1), (3, 6, 2, 1)))
    assert caught.value.truncate_to is None, "only the first one can have been merged"


def test_a_full_disk_leaves_what_was_written_before() -> None:
    vfs = FaultyVfs(MemoryVfs())
    log = open_log(vfs)
    data = batches(*((number, 1, number, 1) for number in range(12)))
    vfs.plan = nth(0, FileFault(errno.ENOSPC, 100), FileOperationKind.WRITE, path_end=".arrows")
    with pytest.raises(StorageFullError):
        log.append_fetched(data)
    assert (log.log_end, log.last_epoch, log.state) == (0, 0, LogState.WRITABLE)
    vfs.plan = nth(
        1, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows"
    )  # the schema message of a second segment
    appended = log.append_fetched(data)
    assert 0 < appended.log_end == appended.batches == log.log_end < 12
    size = len(batches((0, 1, 0, 1)))
    vfs.plan = lambda _: None
    assert log.append_fetched(data[appended.log_end * size :]).log_end == 12
    assert [message[0] for message in read_slices(vfs, log.view())] == list(range(12))


def test_a_lineage_that_cannot_be_written_keeps_its_batches_out() -> None:
    vfs = FaultyVfs(MemoryVfs())
    log = open_log(vfs, WIDE)
    vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end="lineage")
    with pytest.raises(StorageFullError):
        log.append_fetched(GOOD)
    assert (log.log_end, log.lineage) == (0, ())
    assert log.append_fetched(GOOD).log_end == 7


def test_a_fenced_log_takes_nothing() -> None:
    vfs = FaultyVfs(MemoryVfs())
    log = open_log(vfs, WIDE)
    append(log)
    task = log.flush()
    assert task is not None
    log.flush_failed(task, OSError(errno.EIO, "broken"))
    with pytest.raises(NotWritableError):
        log.append_fetched(batches((1, 1, 0, 1)))


def test_an_own_leadership_that_wrote_nothing_gives_way_to_what_the_leader_has() -> None:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    log.append_fetched(batches((0, 2, 1, 4)))
    log.start_epoch(5)
    assert (log.last_epoch, log.epoch_end(4), log.epoch_end(5)) == (4, (4, 2), (5, 2))
    log.append_fetched(batches((2, 2, 1, 4)))
    assert (log.lineage, log.last_epoch) == ((LineageEntry(4, 0),), 4)
    assert log.leader_epoch == 5, "never again an epoch that was"
    flush(log)
    assert open_log(disk.crash_clone(), WIDE).lineage == log.lineage
    log.start_epoch(7)
    log.append_fetched(batches((4, 1, 1, 6)))
    assert log.lineage == (LineageEntry(4, 0), LineageEntry(6, 4))


def test_where_an_epoch_ended() -> None:
    log = open_log(MemoryVfs(), WIDE)
    assert (log.last_epoch, log.epoch_end(0), log.epoch_end(9)) == (0, (0, 0), (0, 0))
    log.append_fetched(batches((0, 2, 1, 2), (2, 3, 1, 5)))
    assert log.last_epoch == 5
    assert log.epoch_end(0) == (0, 5), "a log without batches has nothing that could differ"
    assert log.epoch_end(1) == (0, 0)
    assert log.epoch_end(2) == log.epoch_end(4) == (2, 2)
    assert log.epoch_end(5) == log.epoch_end(9) == (5, 5)


def epochs_in(log: Log) -> list[LineageEntry]:
    """The lineage as the batches say it."""
    found: list[LineageEntry] = []
    for header, _ in log.view().batches(log.log_start, log.log_end):
        if not found or found[-1].leader_epoch != header.leader_epoch:
            found.append(LineageEntry(header.leader_epoch, header.base_offset))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_after_a_crash_the_lineage_is_what_the_batches_say(seed: int) -> None:
    """An entry and its batches reach the disk in any order: either may be lost without the other."""
    from random import Random

    random = Random(seed)
    disk = MemoryVfs()
    log = open_log(disk)
    epoch = 1
    for number in range(random.randint(2, 25)):
        epoch += random.choice((0, 0, 1, 2))
        if random.random() < 0.3:
            log.start_epoch(max(epoch, log.leader_epoch) + 1)  # as a leader that writes nothing
        rows = random.randint(1, 3)
        log.append_fetched(batches((log.log_end, rows, number, epoch)))
        if random.random() < 0.2:
            flush(log)
            log.note_flushed()
    assert list(log.lineage) == epochs_in(log)
    for keep in (Keep.SYNCED, Keep.SUBSET, Keep.SUBSET, Keep.ALL):
        again = open_log(disk.crash_clone(keep, random if keep is Keep.SUBSET else None))
        assert again.state is LogState.WRITABLE
        data = [entry for entry in again.lineage if entry.start_offset < again.log_end]
        assert data == epochs_in(again)
        assert all(entry.start_offset <= again.log_end for entry in again.lineage)


def test_a_lineage_whose_sync_failed_is_written_again_by_the_next_start() -> None:
    """The kernel keeps what it could not write, and a later sync of it succeeds: a power loss took the entry."""
    memory = MemoryVfs()
    log = open_log(memory, WIDE)
    log.append_fetched(batches((0, 2, 10, 1)))
    flush_and_note(log)
    log.append_fetched(batches((2, 1, 20, 4)))
    memory.fail_sync(f"{DIRECTORY}/lineage")
    again = open_log(memory, WIDE)
    assert again.lineage == log.lineage == (LineageEntry(1, 0), LineageEntry(4, 2))
    assert again.flushed_end == 3
    flush_and_note(again)
    lineage = lineages.read(memory.crash_clone(), DIRECTORY)
    assert lineage.entries == log.lineage
