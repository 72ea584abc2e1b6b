"""A mend that fails at one of its steps is done again, and a replica that is out meanwhile says why."""

from __future__ import annotations

import errno

import pytest

from penstock.base.errors import RemoteError
from penstock.commitlog import Cleaning, LogState
from penstock.messages import PartitionHealth, PartitionInfo
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, no_faults
from penstock.vfs.memory import Keep
from tests.extent import each_change
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.replicas.test_repairs import ROWS, damage, others, read_all, replica, values

MINUTE_MS = 60_000


def shown(member: Member) -> PartitionInfo:
    """What this broker says of its replica."""
    return member.node._router.report.stream(member.image.by_name("s")).partitions[0]


def small(*, rows: int = ROWS, **settings: int) -> Brokers:
    """Three brokers, and a stream of some small segments that all of them have, on their disks."""
    brokers = formed(**settings)
    brokers.leader.create("s", subject="s", replicas=3, min_isr=2, segment_bytes=4096)
    brokers.run(500)
    publish_more(brokers, rows)
    brokers.run(3_000)
    return brokers


def publish_more(brokers: Brokers, rows: int = ROWS) -> None:
    begin = len(values(brokers.led("s")))
    for number in range(begin, begin + rows):
        brokers.publish("s", b"%d " % number + b"." * 500)


def assert_in_sync(brokers: Brokers, follower: Member) -> None:
    """It is mended, and follows: what is published now is there at once."""
    assert replica(follower).log.state is LogState.WRITABLE, follower.notices
    before = values(brokers.led("s"))
    assert before == tuple(range(len(before)))
    brokers.publish("s", b"99 and on")
    brokers.run(5_000)
    assert values(follower) == (*before, 99)
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
    assert (shown(follower).state, shown(follower).state_reason) == (PartitionHealth.ONLINE, "")


@each_change
@pytest.mark.parametrize("times", [1, 3], ids=["once", "three times"])
def test_a_rename_that_fails_is_done_again_and_the_replica_is_in_sync(times: int) -> None:
    brokers = small()
    follower = others(brokers, brokers.led("s"))[0]
    damage(follower.memory, 0)
    refused = 0

    def plan(operation: FileOperation) -> FileFault | None:
        nonlocal refused
        is_last_step = operation.kind is FileOperationKind.RENAME and refused < times
        refused += is_last_step
        return FileFault(errno.ENOSPC) if is_last_step else None

    follower.vfs.plan = plan
    read_all(follower)
    brokers.run(3_000)
    assert refused == 1
    assert follower.broker_id not in brokers.partition("s").isr
    assert shown(follower).state == PartitionHealth.READ_ONLY
    assert "No space left" in shown(follower).state_reason
    brokers.run(MINUTE_MS)
    assert refused == times
    assert_in_sync(brokers, follower)


def with_a_log_that_cannot_be_opened() -> tuple[Brokers, Member]:
    """A follower's log is closed to be mended when its disk begins to fail."""
    brokers = small()
    follower = others(brokers, brokers.led("s"))[0]
    damage(follower.memory, 0)
    is_closed = False

    def plan(operation: FileOperation) -> FileFault | None:
        nonlocal is_closed
        is_closed |= operation.kind is FileOperationKind.RENAME and operation.path.endswith(".mended")
        return FileFault(errno.EIO) if is_closed and operation.path.startswith("streams/") else None

    follower.vfs.plan = plan
    read_all(follower)
    brokers.run(10_000)
    assert is_closed
    return brokers, follower


@each_change
def test_a_log_that_cannot_be_opened_says_so_and_is_opened_once_the_disk_is_well() -> None:
    brokers, follower = with_a_log_that_cannot_be_opened()
    assert shown(follower).state == PartitionHealth.FAILED
    assert "was closed to be mended, and cannot be opened" in shown(follower).state_reason
    assert "Input/output error" in shown(follower).state_reason
    refused = follower.replies[follower.fetch("s")].response
    assert isinstance(refused, RemoteError)
    assert refused.code == "storage_failed"
    assert "cannot be opened" in refused.message
    told = [notice for notice in follower.notices if "cannot be opened, once it was mended" in notice]
    assert len(told) <= 2, "what failed first, and what fails since"
    follower.vfs.plan = no_faults
    brokers.run(MINUTE_MS)
    assert_in_sync(brokers, follower)


@each_change
def test_a_log_that_cannot_be_opened_is_tried_less_and_less_often() -> None:
    brokers, follower = with_a_log_that_cannot_be_opened()
    plan, tried_us = follower.vfs.plan, set()

    def counted(operation: FileOperation) -> FileFault | None:
        if operation.path.startswith("streams/"):
            tried_us.add(brokers.clock.now.elapsed_us)
        return plan(operation)

    follower.vfs.plan = counted
    brokers.run(2 * MINUTE_MS)
    assert 0 < len(tried_us) <= 4


def test_a_stream_whose_log_cannot_be_opened_can_be_deleted() -> None:
    brokers, follower = with_a_log_that_cannot_be_opened()
    follower.vfs.plan = no_faults
    brokers.leader.delete("s")
    brokers.run(5_000)
    assert not follower.memory.list("streams")
    assert not follower.node._partitions


@each_change
def test_a_log_that_is_damaged_and_whose_end_cannot_be_synced_is_opened_again_and_mended() -> None:
    """It is opened at the start of a broker that was killed, with damage, while the disk is full."""
    brokers = small()
    follower = others(brokers, brokers.led("s"))[0]
    brokers.kill(follower.broker_id)
    disk = follower.memory.crash_clone(Keep.ALL)
    path = damage(disk, 0)
    disk.remove(path.replace(".arrows", ".index"))  # else nobody looks there before somebody reads it
    disk.open(path.rpartition("/")[0] + "/checkpoint").truncate(0)  # nothing says what was flushed
    follower = Member(brokers, follower.broker_id, follower.disk_name, disk)
    refused = 0

    def plan(operation: FileOperation) -> FileFault | None:
        nonlocal refused
        is_again = operation.kind is FileOperationKind.WRITE and operation.path.endswith(".arrows")
        refused += is_again
        return FileFault(errno.ENOSPC) if is_again else None

    follower.vfs.plan = plan
    brokers.join_again(follower)
    brokers.run(10_000)
    assert refused
    assert shown(follower).state == PartitionHealth.READ_ONLY
    assert "its end cannot be brought to the disk" in shown(follower).state_reason
    follower.vfs.plan = no_faults
    brokers.run(MINUTE_MS)
    assert_in_sync(brokers, follower)


def being_cleaned(**settings: int) -> tuple[Brokers, Member]:
    """The cleaner of a follower is at the first segment when that is found to be damaged."""
    brokers = small(rows=2, **settings)
    follower = others(brokers, brokers.led("s"))[0]
    if not settings:
        follower.hung = (Cleaning,)
    publish_more(brokers)
    brokers.run(2_000)
    assert replica(follower).log.is_cleaned
    return brokers, follower


def files_of(member: Member, suffix: str) -> list[str]:
    return [path for path in member.memory.files() if path.endswith(suffix)]


@each_change
def test_a_segment_that_the_cleaner_is_writing_is_mended_once_it_gives_way() -> None:
    brokers, follower = being_cleaned()
    damage(follower.memory, 0)
    (number,) = (n for n, work in enumerate(follower.disk) if "Cleaning" in repr(work.run))
    executed = follower.execute(number)
    read_all(follower)
    brokers.run(10_000)
    assert "once the cleaner is done with it" in shown(follower).state_reason
    assert not files_of(follower, ".mended")
    follower.hung = ()
    follower.complete(executed)
    brokers.run(MINUTE_MS)
    assert_in_sync(brokers, follower)


def test_a_segment_that_waits_for_the_cleaners_rate_is_mended_at_once() -> None:
    brokers, follower = being_cleaned(cleaner_bytes_per_s=1)
    damage(follower.memory, 0)
    read_all(follower)
    brokers.run(10_000)
    assert_in_sync(brokers, follower)


@each_change
def test_a_log_that_could_not_be_opened_at_the_start_is_opened_later_and_follows() -> None:
    brokers = small()
    follower = others(brokers, brokers.led("s"), brokers.leader)[0]
    brokers.kill(follower.broker_id)
    follower = Member(brokers, follower.broker_id, follower.disk_name, follower.memory.crash_clone(Keep.ALL))
    opened = 0

    def plan(operation: FileOperation) -> FileFault | None:
        nonlocal opened
        is_log = operation.path.startswith("streams/00")
        opened += is_log and operation.kind is FileOperationKind.LIST
        return FileFault(errno.EIO) if is_log else None

    follower.vfs.plan = plan
    brokers.join_again(follower)
    brokers.run(MINUTE_MS)
    assert (shown(follower).state, follower.broker_id in brokers.partition("s").isr) == ("failed", False)
    assert "Input/output error" in shown(follower).state_reason
    assert 3 <= opened <= 6
    assert len([notice for notice in follower.notices if "cannot open the log" in notice]) == 1
    follower.vfs.plan = no_faults
    brokers.run(2 * MINUTE_MS)
    assert_in_sync(brokers, follower)
