"""The mark of a clean stop: there after one, gone before anything else, and durable in both."""

import random

from penstock.node.clean_stop import mark_clean_stop, take_clean_stop
from penstock.vfs.memory import Keep, MemoryVfs


def test_an_empty_disk_was_not_stopped_cleanly() -> None:
    assert not take_clean_stop(MemoryVfs())


def test_a_clean_stop_is_told_once() -> None:
    vfs = MemoryVfs()
    mark_clean_stop(vfs)
    assert take_clean_stop(vfs)
    assert not take_clean_stop(vfs)


def test_a_power_loss_behind_the_mark_leaves_it() -> None:
    vfs = MemoryVfs()
    mark_clean_stop(vfs)
    assert take_clean_stop(vfs.crash_clone(Keep.SYNCED))


def test_a_power_loss_after_the_next_start_does_not_bring_it_back() -> None:
    vfs = MemoryVfs()
    mark_clean_stop(vfs)
    take_clean_stop(vfs)
    for seed in range(20):
        assert not take_clean_stop(vfs.crash_clone(Keep.SUBSET, random.Random(seed)))
