"""The power fails at any step of putting what was mended in its place: then it is whole, or can be mended again."""

from __future__ import annotations

import pytest

from penstock.commitlog import LogState
from penstock.vfs.faulty import CHANGES, FaultyVfs, FileOperation
from penstock.vfs.memory import Keep, MemoryVfs
from tests.damage import flip
from tests.logs import DIRECTORY, give_up_before, open_log
from tests.property.test_mending import CONFIG, Donor, copied, find_all, grown, mend, rows_of
from tests.property.test_mending_limits import segments

pytestmark = pytest.mark.usefixtures("at_rest")


TRIES_MAX = 3


def flip_at(disk: MemoryVfs, path: str, share: float) -> None:
    flip(disk, path, int(disk.open(path).size() * share))


def harm(disk: MemoryVfs, case: str) -> int:
    """Do it; gives up to where the other replica has given up what was there."""
    paths = segments(disk)
    given_up = 0
    if case == "flipped, the first":
        flip_at(disk, paths[0], 0.5)
    elif case == "flipped, the last":
        flip_at(disk, paths[-1], 0.3)
    elif case == "gone, the first":
        disk.remove(paths[0])
    elif case == "flipped, and gone":
        flip_at(disk, paths[2], 0.5)
        disk.remove(paths[4])
    elif case == "flipped, and given up":
        flip_at(disk, paths[0], 0.5)
        flip_at(disk, paths[1], 0.5)
        given_up = 31
    elif case == "flipped, with the lineage":
        flip_at(disk, paths[1], 0.5)
        flip(disk, f"{DIRECTORY}/lineage", 3)
    else:
        for path in paths[:-1]:
            disk.remove(path)
    return given_up


@pytest.mark.parametrize("keep", [Keep.SYNCED, Keep.ALL])
@pytest.mark.parametrize(
    "case",
    [
        "flipped, the first",
        "flipped, the last",
        "gone, the first",
        "flipped, and gone",
        "flipped, and given up",
        "flipped, with the lineage",
        "gone, all but the last",
    ],
)
def test_power_loss_at_every_change(case: str, keep: Keep) -> None:
    disk, log, messages = grown([3] * 60, [20, 40])
    log.close()
    other_disk = copied(disk)
    other = open_log(other_disk, CONFIG, must_exist=True)
    given_up = harm(disk, case)
    if given_up and (retention := give_up_before(other, given_up)) is not None:
        retention.run()
    disk = disk.crash_clone(Keep.ALL)
    vfs = FaultyVfs(disk)
    damaged = open_log(vfs, CONFIG, must_exist=True)
    find_all(damaged)
    assert damaged.state is LogState.READ_ONLY
    donor = Donor(other, other_disk, other.log_end, 2_000)
    mending = mend(damaged, donor)
    damaged.close()
    clones: list[tuple[FileOperation, MemoryVfs]] = []

    def watch(operation: FileOperation) -> None:
        if operation.kind in CHANGES:
            clones.append((operation, disk.crash_clone(keep)))

    vfs.watcher = watch
    mending.place()
    vfs.watcher = None
    assert len(clones) > 3
    for operation, clone in clones:
        log = open_log(clone, CONFIG, must_exist=True)
        find_all(log)
        for _ in range(TRIES_MAX):
            if log.state is LogState.WRITABLE:
                break
            again = mend(log, donor)
            log.close()
            again.place()
            log = open_log(clone, CONFIG, must_exist=True)
            find_all(log)
        assert log.state is LogState.WRITABLE, operation
        assert log.log_start <= given_up, operation
        assert rows_of(clone, log) == messages[log.log_start :], operation
