"""A replica that stopped cleanly leads at once: only if nothing on its disk may be taken for less than it is."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from penstock.commitlog.files import checkpoint as checkpoints
from penstock.node.data_dir.clean_stop import CLEAN_STOP_PATH
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, no_faults
from penstock.vfs.memory import MemoryVfs
from tests.damage import flip, write
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.replicas.test_repairs import replica, values

FLIPPED = 20
SYNCED, ROWS = 12, 28
"""Rows that the checkpoint on every disk covers, and all."""


def tears_checkpoints(operation: FileOperation) -> FileFault | None:
    """Refuse a checkpoint in the midst of a slot, as a full disk does."""
    if operation.kind is FileOperationKind.WRITE and operation.path.endswith("/checkpoint"):
        return FileFault(errno.ENOSPC, min(40, operation.length))
    return None


def with_rows(durability: str) -> tuple[Brokers, Member]:
    """Three brokers that have all rows on their disks; the checkpoint of one of them could not be written lately."""
    brokers = formed(cleaner_bytes_per_s=0)
    brokers.leader.create("s", subject="s", replicas=3, segment_bytes=4096, durability=durability)
    brokers.run(500)
    publish(brokers, range(SYNCED))
    brokers.run(3_000)
    last = next(member for member in brokers.members.values() if member is not brokers.led("s"))
    last.vfs.plan = tears_checkpoints
    publish(brokers, range(SYNCED, ROWS))
    brokers.run(200)
    assert {values(member) for member in brokers.members.values()} == {tuple(range(ROWS))}
    return brokers, last


def publish(brokers: Brokers, numbers: range) -> None:
    for number in numbers:
        brokers.publish("s", b"%d " % number + b"." * 500)


def flip_row(member: Member, offset: int) -> None:
    view = replica(member).log.view()
    segment, extent = view.batch_at(offset)
    flip(member.memory, view.segments[segment].path, extent.end_position - 8)


@pytest.mark.parametrize("durability", ["auto", "fsync", "os"])
@pytest.mark.parametrize("is_full", [True, False], ids=["full", "with room again"])
def test_damage_behind_a_torn_checkpoint_on_the_last_disk_in_sync_takes_nothing_from_the_others(
    durability: str, is_full: bool
) -> None:
    """It was cut off as a torn tail, the broker led at once, as after a clean stop, and the others truncated theirs."""
    brokers, last = with_rows(durability)
    disks = {one: brokers.stop(one) for one in brokers.ids if one != last.broker_id}
    if not is_full:
        last.vfs.plan = no_faults
    flip_row(last, FLIPPED)
    disks[last.broker_id] = brokers.stop(last.broker_id)
    assert (CLEAN_STOP_PATH in last.memory.list("")) == (not is_full)
    for one, disk in disks.items():
        brokers.start(one, disk)
        brokers.run(400)
    brokers.run(30_000)
    assert {values(member) for member in brokers.members.values()} == {tuple(range(ROWS))}
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]


def tear(disk: MemoryVfs, folder: str) -> None:
    write(disk, f"{folder}/checkpoint", checkpoints.read(disk, folder).slot * checkpoints.SLOT_STEP_BYTES + 40, b"torn")


def tear_both(disk: MemoryVfs, folder: str) -> None:
    for slot in range(checkpoints.SLOTS):
        write(disk, f"{folder}/checkpoint", slot * checkpoints.SLOT_STEP_BYTES + 40, b"torn")


def remove(disk: MemoryVfs, folder: str) -> None:
    disk.remove(f"{folder}/checkpoint")


@pytest.mark.parametrize("harm", [tear, tear_both, remove])
@pytest.mark.parametrize("offset", [FLIPPED, ROWS - 1], ids=["in the midst", "at the end"])
def test_a_disk_that_loses_a_checkpoint_and_a_row_while_its_broker_rests_takes_nothing_from_the_others(
    harm: Callable[[MemoryVfs, str], None], offset: int
) -> None:
    brokers, last = with_rows("auto")
    last.vfs.plan = no_faults
    disks = {one: brokers.stop(one) for one in brokers.ids if one != last.broker_id}
    flip_row(last, offset)
    folder = replica(last).log.view().segments[0].path.rpartition("/")[0]
    disk = disks[last.broker_id] = brokers.stop(last.broker_id)
    assert CLEAN_STOP_PATH in disk.list("")
    harm(disk, folder)
    for one in disks:
        brokers.start(one, disks[one])
        brokers.run(400)
    brokers.run(30_000)
    assert f"{folder} has lost a checkpoint: this start is one as after a kill" in brokers[last.broker_id].notices
    assert {values(member) for member in brokers.members.values()} == {tuple(range(ROWS))}
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
