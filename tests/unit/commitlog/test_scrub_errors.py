"""What the disk, or this process, does not let the scrubber read: which of it is damage."""

from __future__ import annotations

import errno

import pytest

from penstock.base.errors import RemoteError
from penstock.commitlog import Log, LogConfig, LogState, Scrub
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperationKind, nth
from penstock.vfs.memory import MemoryVfs
from tests.logs import DIRECTORY, append, give_up_before, open_log, save

CONFIG = LogConfig(segment_bytes=9_000)


def grown() -> tuple[FaultyVfs, Log]:
    vfs = FaultyVfs(MemoryVfs())
    log = open_log(vfs, CONFIG)
    log.start_epoch(1)
    for number in range(40):
        append(log, 3, number)
    save(log)
    return vfs, log


def run_all(scrub: Scrub) -> None:
    while not scrub.is_done:
        scrub.run()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_shortage_of_this_process_is_no_damage(code: int) -> None:
    vfs, log = grown()
    scrub = Scrub(log.view(), 0, log.flushed_end, log.damage_found)
    vfs.plan = nth(0, FileFault(code), FileOperationKind.OPEN, path_end=".arrows")
    with pytest.raises(OSError, match=r"\[Errno"):
        run_all(scrub)
    assert (log.state, log.damage, scrub.damaged) == (LogState.WRITABLE, (), 0)


def test_an_error_that_passes_is_no_damage() -> None:
    vfs, log = grown()
    scrub = Scrub(log.view(), 0, log.flushed_end, log.damage_found)
    vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.OPEN, path_end=".arrows")
    run_all(scrub)
    assert (log.state, scrub.damaged) == (LogState.WRITABLE, 0)


@pytest.mark.parametrize("number", [0, 2, -1], ids=["the first", "in the midst", "the last"])
@pytest.mark.parametrize("with_index", [False, True])
def test_a_file_that_somebody_removed_is_damage(number: int, with_index: bool) -> None:
    """Retention has not removed it: nobody may take it for that, and what it held for given up."""
    vfs, log = grown()
    path = [name for name in vfs.list(DIRECTORY) if name.endswith(".arrows")][number]
    vfs.remove(f"{DIRECTORY}/{path}")
    if with_index:
        vfs.remove(f"{DIRECTORY}/{path.replace('.arrows', '.index')}")
    scrub = Scrub(log.view(), 0, log.flushed_end, log.damage_found)
    run_all(scrub)
    assert scrub.damaged == 1
    assert log.state is LogState.READ_ONLY
    (damage,) = log.damage
    assert (damage.file, damage.reason) == (f"{DIRECTORY}/{path}", "the segment file is missing")
    with pytest.raises(RemoteError, match="the segment file is missing"):
        list(log.view().batches(damage.base_offset, log.log_end))


def test_what_retention_removed_is_no_damage() -> None:
    _, log = grown()
    view = log.view()
    retention = give_up_before(log, 60)
    assert retention is not None
    retention.run()
    scrub = Scrub(view, 0, log.flushed_end, log.damage_found)
    run_all(scrub)
    assert (scrub.damaged, log.state, log.damage) == (0, LogState.WRITABLE, ())
    assert scrub.read_bytes


def test_what_a_deleted_stream_had_is_no_damage() -> None:
    vfs, log = grown()
    view = log.view()
    log.leave()
    log.close()
    for name in vfs.list(DIRECTORY):
        vfs.remove(f"{DIRECTORY}/{name}")
    scrub = Scrub(view, 0, log.flushed_end, log.damage_found)
    run_all(scrub)
    assert (scrub.damaged, scrub.read_bytes, log.damage) == (0, 0, ())
