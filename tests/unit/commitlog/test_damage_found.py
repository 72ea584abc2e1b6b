"""Damage that somebody else met who sent a range of a file: the next reader hears of it instead of meeting it too."""

from __future__ import annotations

from threading import Thread

import pytest

from penstock.base.errors import RemoteError
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import Log, LogState, NotWritableError
from penstock.commitlog.files.files import index_path, segment_path
from penstock.vfs.memory import Keep, MemoryVfs
from tests.damage import flip
from tests.logs import DIRECTORY, Message, append, flush, open_log, read_batches, read_slices

SHORT = "it is shorter than its index says"


def running_log() -> tuple[MemoryVfs, Log, list[Message]]:
    disk = MemoryVfs()
    log = open_log(disk)
    wanted: list[Message] = []
    while log.segment_count < 3:
        wanted += append(log, 2, log.log_end, size_bytes=400)
    flush(log)
    return disk, log, wanted


def bases(disk: MemoryVfs) -> list[int]:
    return sorted(int(name[:20]) for name in disk.list(DIRECTORY) if name.endswith(".arrows"))


def refused(log: Log, offset: int) -> dict[str, object]:
    with pytest.raises(RemoteError) as caught:
        log.view().slice(offset, end=log.log_end, bytes_max=10**6)
    assert caught.value.code == "corrupt_range"
    details = dict(caught.value.details)
    assert details.pop("expected")
    assert details.pop("found")
    return details


@pytest.mark.parametrize("within", [0, 1, 500])
def test_the_next_slice_of_a_shortened_segment_is_refused(within: int) -> None:
    disk, log, wanted = running_log()
    path = segment_path(DIRECTORY, 0)
    second, end = 2, bases(disk)[1]
    piece = log.view().slice(second, end=4, bytes_max=1)
    assert piece is not None
    disk.open(path).truncate(piece.position + within)
    reader = Thread(target=log.damage_found, args=(path, piece.position + within, SHORT))
    reader.start()
    reader.join()
    wanted_details = {"file": path, "position": piece.position, "base_offset": second, "end_offset": end}
    assert refused(log, second) == wanted_details
    assert refused(log, end - 1) == wanted_details
    assert log.state is LogState.READ_ONLY
    assert [(one.position, one.base_offset, one.end_offset, one.reason) for one in log.damage] == [
        (piece.position, second, end, SHORT)
    ]
    first = log.view().slice(0, end=log.log_end, bytes_max=10**6)
    assert first is not None
    assert first.end_offset == second, "it stops before the damage"
    assert read_slices(disk, log.view(), end) == wanted[end:]
    assert read_batches(log.view(), 0, second) == wanted[:second]
    with pytest.raises(NotWritableError):
        append(log)


def test_the_active_segment_may_be_the_shortened_one() -> None:
    disk, log, wanted = running_log()
    last = bases(disk)[-1]
    path = segment_path(DIRECTORY, last)
    disk.open(path).truncate(SCHEMA_BYTES)
    log.damage_found(path, SCHEMA_BYTES, SHORT)
    assert log.state is LogState.READ_ONLY
    assert refused(log, last) == {
        "file": path, "position": SCHEMA_BYTES, "base_offset": last, "end_offset": log.log_end
    }  # fmt: skip
    assert read_slices(disk, log.view(), 0, last) == wanted[:last]
    flush(log)
    log.close()
    again = open_log(disk)
    assert again.state is LogState.READ_ONLY
    assert refused(again, last)["end_offset"] == log.log_end


def test_what_is_reported_twice_is_one_damage() -> None:
    disk, log, _ = running_log()
    path = segment_path(DIRECTORY, 0)
    for position in (SCHEMA_BYTES, SCHEMA_BYTES + 5, SCHEMA_BYTES):
        log.damage_found(path, position, SHORT)
    assert len(log.damage) == 1
    log.damage_found(path, SCHEMA_BYTES + 9, SHORT)
    assert len(log.damage) == 1
    assert refused(log, 0)["end_offset"] == bases(disk)[1]


def test_without_an_index_the_whole_segment_is_taken_for_lost() -> None:
    """Reading it through would stop everything else meanwhile."""
    disk, log, wanted = running_log()
    path, end = segment_path(DIRECTORY, 0), bases(disk)[1]
    disk.remove(index_path(path))
    log.damage_found(path, SCHEMA_BYTES + 1000, SHORT)
    assert [(one.base_offset, one.end_offset) for one in log.damage] == [(0, end)]
    assert refused(log, 0)["end_offset"] == end
    assert read_slices(disk, log.view(), end) == wanted[end:]


def test_a_segment_that_retention_has_taken_meanwhile_is_no_damage() -> None:
    _, log, _ = running_log()
    log.damage_found(segment_path(DIRECTORY, 12345), 0, SHORT)
    assert (log.damage, log.state) == ((), LogState.WRITABLE)
    append(log)


@pytest.mark.parametrize("within", [0, 170], ids=["its first byte", "its header"])
def test_the_error_of_a_corrupt_batch_names_file_and_byte_once(within: int) -> None:
    disk, log, _ = running_log()
    path = segment_path(DIRECTORY, 0)
    flip(disk, path, SCHEMA_BYTES + within)
    for _ in range(2):  # found, then known
        with pytest.raises(RemoteError) as caught:
            list(log.view().batches(0, log.log_end))
        text, told = caught.value.message, caught.value.details
        assert text.startswith(f"{path} is damaged at byte {SCHEMA_BYTES}; offsets that cannot be read: 0 to 1; ")
        assert (text.count(path), text.count(f"byte {SCHEMA_BYTES}")) == (1, 1)
        assert text.endswith(f"; expected {told['expected']}, found {told['found']}")
        (damage,) = log.damage
        assert (damage.expected, damage.found) == (told["expected"], told["found"])


def test_a_log_whose_damage_was_found_meanwhile_is_closed_with_its_checkpoint_on_the_disk() -> None:
    """Behind the older one, a start after a power loss took the damage for a torn tail, and cut it off."""
    disk, log, wanted = running_log()
    log.note_flushed()
    path = segment_path(DIRECTORY, bases(disk)[1])
    flip(disk, path, SCHEMA_BYTES + 200)
    with pytest.raises(RemoteError):
        list(log.view().batches(0, log.log_end))
    assert log.state is LogState.READ_ONLY
    assert not log.is_on_disk
    log.close()
    assert log.is_on_disk
    left = disk.crash_clone(Keep.SYNCED)
    flip(left, path, SCHEMA_BYTES + 200)
    left.remove(index_path(path))  # else no start looks there
    again = open_log(left)
    assert (again.state, again.log_end, again.cuts) == (LogState.READ_ONLY, len(wanted), ())
