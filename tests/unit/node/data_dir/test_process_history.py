"""The names of the runs of a data directory: durable before anybody hears of one, bounded, and never a false alarm."""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.metadata.disk_identity import ANY_RUN
from penstock.node.data_dir.process_history import _HEAD, RUNS_PATH, SLOT_BYTES, ProcessHistory
from penstock.raft.tasks import RESERVE_PATH
from penstock.vfs import Vfs
from penstock.vfs.faulty import CHANGES, FaultyVfs, FileFault, FileOperationKind
from penstock.vfs.memory import Keep, MemoryVfs
from penstock.vfs.real import RealVfs
from penstock.vfs.reserve import Reserve
from tests.full_disk import fill


def begun(vfs: Vfs, process: str, *, has_data: bool = True) -> ProcessHistory:
    runs = ProcessHistory(vfs)
    runs.begin(process, has_data=has_data)
    return runs


def test_a_new_directory_knows_its_runs_from_the_first_on() -> None:
    vfs = MemoryVfs()
    assert begun(vfs, "a", has_data=False).names == ("a",)
    runs = begun(vfs, "b")
    assert (runs.names, runs.process, runs.notices) == (("a", "b"), "b", [])
    assert runs.registered() is None  # nothing is to be given up


def test_what_an_older_version_has_used_may_have_been_run_by_anybody() -> None:
    vfs = MemoryVfs()
    runs = begun(vfs, "a")
    assert runs.names == (ANY_RUN, "a")
    give_up = begun(vfs, "b").registered()
    assert give_up is not None
    give_up()
    assert begun(vfs, "c").names == ("a", "b", "c")


def test_a_power_loss_takes_no_run_that_somebody_may_have_heard_of() -> None:
    for seed in range(20):
        vfs = MemoryVfs()
        begun(vfs, "a", has_data=False)
        begun(vfs, "b")
        assert begun(vfs.crash_clone(Keep.SUBSET, random.Random(seed)), "c").names == ("a", "b", "c")


def test_thousands_of_starts_that_nobody_heard_of_keep_the_name_of_the_last_that_was() -> None:
    vfs = MemoryVfs()
    begun(vfs, "registered", has_data=False)
    for number in range(3_000):
        runs = begun(vfs, f"p{number}")
        assert "registered" in runs.names
        assert runs.process in runs.names
        assert len(runs.names) <= limits.RUNS_MAX
    give_up = runs.registered()
    assert give_up is not None
    give_up()
    names = begun(vfs, "next").names
    assert names[-2:] == (runs.process, "next")
    assert len(names) == limits.RUNS_MAX // 2 + 1


@pytest.mark.parametrize("byte", [0, 9, 16, SLOT_BYTES, SLOT_BYTES + 16])
def test_damage_ends_nobody(byte: int) -> None:
    vfs = MemoryVfs()
    begun(vfs, "a", has_data=False)
    begun(vfs, "b")
    file = vfs.open(RUNS_PATH)
    file.write_at(byte, b"?")
    file.close()
    runs = begun(vfs, "c")
    assert ANY_RUN in runs.names
    assert runs.names[-1] == "c"
    (notice,) = runs.notices
    assert "damaged" in notice
    give_up = runs.registered()
    assert give_up is not None
    give_up()
    names = begun(vfs, "d").names
    assert ANY_RUN not in names
    assert names[-2:] == ("c", "d")


def test_a_file_that_is_cut_short_is_damaged_and_no_older_copy() -> None:
    vfs = MemoryVfs()
    begun(vfs, "a", has_data=False)
    begun(vfs, "b")
    file = vfs.open(RUNS_PATH)
    file.truncate(SLOT_BYTES)  # what is left says "a"
    file.close()
    runs = begun(vfs, "c")
    assert ANY_RUN in runs.names
    (notice,) = runs.notices
    assert "damaged" in notice


@pytest.mark.parametrize("content", [b"", b"?" * 2 * SLOT_BYTES])
def test_a_file_that_says_nothing_is_told_of(content: bytes) -> None:
    vfs = MemoryVfs()
    file = vfs.open(RUNS_PATH, create=True)
    file.write_at(0, content)
    file.close()
    runs = begun(vfs, "a")
    assert runs.names == (ANY_RUN, "a")
    (notice,) = runs.notices
    assert notice == "runs cannot be read: whether this is an older copy cannot be checked now"


def test_a_directory_of_that_name_is_told_of(tmp_path: Path) -> None:
    (tmp_path / RUNS_PATH).mkdir()
    with pytest.raises(OperationalError, match="runs is a directory, but must be the file"):
        ProcessHistory(RealVfs(tmp_path)).begin("a", has_data=True)


def test_a_power_loss_in_the_middle_of_a_start_ends_nobody() -> None:
    for cut in range(1, 6):
        memory = MemoryVfs()
        begun(memory, "a", has_data=False)
        begun(memory, "b")
        vfs = FaultyVfs(memory)
        changes = count(1)
        vfs.plan = lambda one, n=changes, at=cut: (  # type: ignore[misc]
            FileFault(errno.EIO, 7) if one.kind in CHANGES and next(n) >= at else None
        )
        with suppress(OSError):
            begun(vfs, "c")
        for seed in range(10):
            names = begun(memory.crash_clone(Keep.SUBSET, random.Random(seed)), "d").names
            assert ANY_RUN in names or names[:2] == ("a", "b")


def test_on_a_full_disk_a_start_takes_no_room_but_for_the_first_which_takes_it_from_the_reserve() -> None:
    memory = MemoryVfs()
    reserve = Reserve(memory, RESERVE_PATH)
    reserve.fill()
    vfs = FaultyVfs(memory)
    fill(vfs)
    assert begun(vfs, "a", has_data=False).names == ("a",)
    left_bytes = Reserve(memory, RESERVE_PATH).size_bytes
    assert left_bytes == reserve.size_bytes - 2 * SLOT_BYTES
    for number in range(40):
        begun(vfs, f"p{number}")
    assert len(begun(vfs, "b").names) == 42
    assert Reserve(memory, RESERVE_PATH).size_bytes == left_bytes


def test_without_any_room_a_start_goes_by_the_name_of_the_one_before() -> None:
    memory = MemoryVfs()
    full = FaultyVfs(memory)
    full.plan = lambda one: FileFault(errno.ENOSPC) if one.kind is FileOperationKind.WRITE else None
    assert begun(full, "a").process == ANY_RUN
    begun(memory, "b")
    runs = begun(full, "c")
    assert (runs.names, runs.process) == ((ANY_RUN, "b"), "b")
    assert runs.notices


def test_a_name_that_was_found_is_on_the_disk_before_it_is_used_again() -> None:
    """A start that found no room may have written its name whole, and not synced it: the next one speaks under it."""
    whole = _HEAD.size + len("a\nb")  # behind it there are zeros already
    for seed in range(20):
        memory = MemoryVfs()
        begun(memory, "a", has_data=False)
        full = FaultyVfs(
            memory, lambda one: FileFault(errno.ENOSPC, whole) if one.kind is FileOperationKind.WRITE else None
        )
        assert begun(full, "b").process == "a"
        used = begun(full, "c").process
        assert used == "b"
        assert used in begun(memory.crash_clone(Keep.SUBSET, random.Random(seed)), "d").names


def test_a_name_whose_sync_failed_is_written_again_before_it_is_used() -> None:
    memory = MemoryVfs()
    begun(memory, "a", has_data=False)
    failing = FaultyVfs(memory, lambda one: FileFault(errno.EIO) if one.kind is FileOperationKind.SYNC else None)
    with pytest.raises(OSError, match="error"):
        begun(failing, "b")
    memory.fail_sync(RUNS_PATH)
    assert begun(memory, "").process == "b"
    assert "b" in begun(memory.crash_clone(), "d").names


def test_a_disk_that_does_not_sync_is_no_place_to_start() -> None:
    vfs = FaultyVfs(MemoryVfs())
    vfs.plan = lambda one: FileFault(errno.EIO) if one.kind is FileOperationKind.SYNC else None
    with pytest.raises(OSError, match="error"):
        begun(vfs, "a")
