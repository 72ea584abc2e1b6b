"""What the disk, or this process, does not let the scrubber read: which of it is damage."""

from __future__ import annotations

import errno

import pytest

from penstock.commitlog import Log, LogConfig, LogState, Scrub
from penstock.vfs.faulty import Fault, FaultyVfs, Kind, nth
from penstock.vfs.memory import MemoryVfs
from tests.logs import append, open_log, save

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
    vfs.plan = nth(0, Fault(code), Kind.OPEN, path_end=".arrows")
    with pytest.raises(OSError, match=r"\[Errno"):
        run_all(scrub)
    assert (log.state, log.damage, scrub.damaged) == (LogState.WRITABLE, (), 0)


def test_an_error_that_passes_is_no_damage() -> None:
    vfs, log = grown()
    scrub = Scrub(log.view(), 0, log.flushed_end, log.damage_found)
    vfs.plan = nth(0, Fault(errno.EIO), Kind.OPEN, path_end=".arrows")
    run_all(scrub)
    assert (log.state, scrub.damaged) == (LogState.WRITABLE, 0)
