"""The mark of a clean stop: there after one, gone before anything else, and durable in both."""

import errno
import random

from penstock.base.ids import Incarnation
from penstock.node.data_dir.clean_stop import CLEAN_STOP_PATH, doubtful_log, mark_clean_stop, take_clean_stop
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperationKind, nth
from penstock.vfs.memory import Keep, MemoryVfs
from tests.logs import DIRECTORY, open_log

RUN = Incarnation(17)


def test_an_empty_disk_was_not_stopped_cleanly() -> None:
    assert not take_clean_stop(MemoryVfs())


def test_a_clean_stop_is_told_once() -> None:
    vfs = MemoryVfs()
    mark_clean_stop(vfs, RUN)
    assert take_clean_stop(vfs) == RUN
    assert take_clean_stop(vfs) is None


def test_a_power_loss_behind_the_mark_leaves_it() -> None:
    vfs = MemoryVfs()
    mark_clean_stop(vfs, RUN)
    assert take_clean_stop(vfs.crash_clone(Keep.SYNCED)) == RUN


def test_a_power_loss_after_the_next_start_does_not_bring_it_back() -> None:
    vfs = MemoryVfs()
    mark_clean_stop(vfs, RUN)
    take_clean_stop(vfs)
    for seed in range(20):
        assert not take_clean_stop(vfs.crash_clone(Keep.SUBSET, random.Random(seed)))


def test_a_mark_that_names_no_run_says_nothing() -> None:
    vfs = MemoryVfs()
    vfs.open(CLEAN_STOP_PATH, create=True).close()
    assert take_clean_stop(vfs) is None
    assert CLEAN_STOP_PATH not in vfs.list("")


def test_a_log_is_doubtful_whose_checkpoint_is_corrupt_unreadable_or_away() -> None:
    vfs = MemoryVfs()
    vfs.open("streams/.nfs0000000001", create=True).close()
    assert not doubtful_log(vfs)
    open_log(vfs).close()
    (name,) = (one.rstrip("/") for one in vfs.list("streams") if one.endswith("/"))
    vfs.open(f"made/{name}", create=True).close()
    assert not doubtful_log(vfs)
    assert doubtful_log(FaultyVfs(vfs, nth(0, FileFault(errno.EIO), FileOperationKind.READ))) == DIRECTORY
    vfs.open(f"{DIRECTORY}/checkpoint").write_at(40, b"\xff")
    assert doubtful_log(vfs) == DIRECTORY
    vfs.remove(f"{DIRECTORY}/checkpoint")
    assert doubtful_log(vfs) == DIRECTORY
    vfs.remove(f"made/{name}")
    assert not doubtful_log(vfs), "a folder of no stream of this broker"
