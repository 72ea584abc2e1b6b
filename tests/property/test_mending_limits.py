"""What mending must not do: cut by a lineage that was lost, take a message for batches, undo what was given up."""

from __future__ import annotations

import pytest

from penstock.batch import codec
from penstock.commitlog import Log, LogConfig, LogState, RepairError
from penstock.vfs.memory import MemoryVfs
from tests.damage import flip
from tests.groups import Columns, encoded
from tests.logs import DIRECTORY, append, finished, give_up_before, make_batch, open_log, save
from tests.property.test_mending import CONFIG, Donor, copied, find_all, grown, mend, rows_of

ALL_BYTES = 10**6
LARGE = LogConfig(segment_bytes=100_000)


def segments(disk: MemoryVfs) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(".arrows")]


def lose_lineage(disk: MemoryVfs, how: str) -> None:
    path = f"{DIRECTORY}/lineage"
    if how == "flipped":
        flip(disk, path, 3)
    elif how == "cut":
        disk.open(path).truncate(24)
    else:
        disk.remove(path)


def damaged_log(disk: MemoryVfs) -> Log:
    log = open_log(disk, CONFIG, must_exist=True)
    find_all(log)
    assert log.state is LogState.READ_ONLY
    return log


def placed(disk: MemoryVfs, log: Log, donor: Donor) -> Log:
    """Mended, and opened anew."""
    mending = mend(log, donor)
    log.close()
    mending.place()
    return open_log(disk, CONFIG, must_exist=True)


@pytest.mark.parametrize("segment", [0, 3, -1])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_lineage_that_is_lost_too_cuts_nothing(segment: int, how: str) -> None:
    disk, log, messages = grown([3] * 60, [20, 40])
    lineage = log.lineage
    log.close()
    other_disk = copied(disk)
    other = open_log(other_disk, CONFIG, must_exist=True)
    path = segments(disk)[segment]
    flip(disk, path, disk.open(path).size() // 2)
    lose_lineage(disk, how)
    mended = placed(disk, damaged_log(disk), Donor(other, other_disk, other.log_end, ALL_BYTES))
    assert (mended.state, mended.log_end) == (LogState.WRITABLE, len(messages))
    assert rows_of(disk, mended) == messages
    assert mended.lineage == lineage


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_lineage_that_is_lost_is_that_of_the_batches(how: str) -> None:
    disk, log, _ = grown([3] * 60, [20, 40])
    lineage = log.lineage
    assert len(lineage) == 3
    log.close()
    lose_lineage(disk, how)
    assert open_log(disk, CONFIG, must_exist=True).lineage == lineage


def test_another_epoch_is_nothing_that_a_follower_may_say() -> None:
    disk, log, messages = grown([3] * 60, [20, 40])
    log.close()
    path = segments(disk)[0]
    flip(disk, path, disk.open(path).size() // 2)
    damaged = damaged_log(disk)
    (damage,) = damaged.damage
    assert damage.end_offset is not None
    batch, _ = make_batch(damage.base_offset, damage.end_offset - damage.base_offset, 0, leader_epoch=2)
    mending = damaged.repair()
    while mending.hole is None:
        mending.run()
    mending.offer(bytes(batch), leads=False)
    with pytest.raises(RepairError, match="not the leader"):
        finished(mending)
    assert damaged.log_end == len(messages)


def test_batches_within_a_message_are_none_of_the_log() -> None:
    """A message may hold the bytes of batches that would fit: a backup of segments, or somebody's mischief."""
    disk = MemoryVfs()
    log = open_log(disk, LARGE)
    log.start_epoch(1)
    append(log, 3, 0)
    forged = bytes(
        encoded(
            Columns([b"orders.new"] * 2, None, [b"FORGED"] * 2, None),
            base_offset=log.log_end + 1,
            timestamp_us=5,
            leader_epoch=1,
        )
    )
    for shift in range(8):
        values = [b"a", b"x" * shift + forged, b"c", b"d"]
        columns = Columns([b"orders.new"] * 4, None, values, None)
        data = bytes(encoded(columns, base_offset=log.log_end, timestamp_us=5, leader_epoch=1))
        if data.find(forged) % 8 == 0:
            break
    log.append(data, codec.read_header(data))
    append(log, 3, 20)
    save(log)
    log.note_committed(log.log_end)
    log.close()
    other_disk = copied(disk)
    other = open_log(other_disk, CONFIG, must_exist=True)
    (path,) = segments(disk)
    file = disk.open(path)
    flip(disk, path, file.read_at(0, file.size()).find(data))  # so that the size of that batch is not known
    disk.remove(path.replace(".arrows", ".index"))
    mended = placed(disk, damaged_log(disk), Donor(other, other_disk, other.log_end, ALL_BYTES))
    assert rows_of(disk, mended) == rows_of(other_disk, other)


def test_the_batch_behind_covers_what_compaction_took_at_the_beginning_of_an_epoch() -> None:
    disk = MemoryVfs()
    log = open_log(disk, LARGE)
    log.start_epoch(1)
    append(log, 10, 0)
    log.start_epoch(2)
    append(log, 2, 10)
    append(log, 8, 20)
    append(log, 3, 30)
    save(log)
    log.note_committed(log.log_end)
    log.close()
    (path,) = segments(disk)
    file = disk.open(path)
    batch, _ = make_batch(10, 2, 10, leader_epoch=2)
    flip(disk, path, file.read_at(0, file.size()).find(bytes(batch)) + len(batch) // 2)
    merged, _ = make_batch(12, 8, 20, leader_epoch=2)  # of 10 and 11 nothing is left at the leader
    message = bytearray(merged)
    codec.covering(message, 10, 20)
    mending = damaged_log(disk).repair()
    while not mending.is_done:
        if mending.hole is not None:
            mending.offer(bytes(message), leads=True)
        mending.run()
    assert mending.ranges == 1


def test_what_was_given_up_does_not_come_back() -> None:
    disk, log, _ = grown([3] * 60, [20, 40])
    other_disk = copied(disk)
    other = open_log(other_disk, CONFIG, must_exist=True)  # which has all of it
    if (retention := give_up_before(log, 31)) is not None:
        retention.run()
    save(log)
    log.close()
    path = segments(disk)[0]
    flip(disk, path, 900)
    disk.remove(path.replace(".arrows", ".index"))
    damaged = damaged_log(disk)
    assert damaged.log_start == 31
    assert placed(disk, damaged, Donor(other, other_disk, other.log_end, ALL_BYTES)).log_start == 31
