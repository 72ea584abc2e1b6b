"""Whatever is damaged in a log, another replica's batches mend it, however its cleaner has merged them."""

from __future__ import annotations

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from penstock.base.errors import RemoteError
from penstock.commitlog import Log, LogConfig, LogState, RepairError, SegmentRepair
from penstock.vfs.memory import Keep, MemoryVfs
from tests.damage import flip
from tests.logs import (
    DIRECTORY,
    Message,
    append,
    as_logs_see,
    clean_all,
    finished,
    flush_and_note,
    give_up_before,
    open_log,
    read_slices,
    save,
)

CONFIG = LogConfig(segment_bytes=9_000)
_TOO_MANY_TURNS = 10_000


def grown(batches: list[int], epochs: list[int]) -> tuple[MemoryVfs, Log, list[Message]]:
    """A log with batches of so many rows each; a leadership begins before those whose numbers are `epochs`."""
    disk = MemoryVfs()
    log = open_log(disk, CONFIG)
    messages: list[Message] = []
    for number, rows in enumerate(batches):
        if number in epochs or not number:
            log.start_epoch(log.leader_epoch + 1)
        messages += append(log, rows, number * 10)
    save(log)
    log.note_committed(log.log_end)
    return disk, log, messages


def copied(disk: MemoryVfs) -> MemoryVfs:
    return disk.crash_clone(Keep.ALL)


class Donor:
    """Another replica: gives batches of what is committed there, a few at a time."""

    def __init__(self, log: Log, disk: MemoryVfs, committed_end: int, bytes_max: int) -> None:
        self.log = log
        self.disk = disk
        self.committed_end = committed_end
        self.bytes_max = bytes_max

    def serve(self, mending: SegmentRepair) -> None:
        """What it says of the hole."""
        assert mending.hole is not None
        offset = mending.hole.offset
        try:
            found = self.log.view().slice(offset, end=self.committed_end, bytes_max=self.bytes_max)
        except RemoteError:
            if offset < self.log.log_start:
                mending.begins(self.log.log_start)
            else:
                mending.ends()
            return
        if found is None:
            mending.ends()
        else:
            mending.offer(as_logs_see(self.disk).open(found.path).read_at(found.position, found.length), leads=True)


def mend(log: Log, donor: Donor) -> SegmentRepair:
    """As a node does it, but for the placing."""
    mending = log.repair()
    for _ in range(_TOO_MANY_TURNS):
        if mending.is_done:
            return mending
        if mending.hole is not None:
            donor.serve(mending)
        mending.run()
    raise AssertionError("it never comes to an end")


def rows_of(disk: MemoryVfs, log: Log) -> list[Message]:
    view = log.view()
    return read_slices(disk, view, view.log_start, view.log_end)


@st.composite
def harmed(draw: st.DrawFn, disk: MemoryVfs) -> str:
    """Do harm to one file of the log."""
    names = [name for name in disk.list(DIRECTORY) if name.endswith(".arrows")]
    if not names:
        return "nothing is left to harm"
    path = f"{DIRECTORY}/{draw(st.sampled_from(names))}"
    file = disk.open(path)
    size_bytes = file.size()
    if not size_bytes:
        return "it is empty already"
    kind = draw(st.sampled_from(["flip", "flip", "flip", "cut", "zeros", "gone"]))
    if kind == "flip":
        for position in draw(st.lists(st.integers(0, size_bytes - 1), min_size=1, max_size=3)):
            file.write_at(position, bytes([file.read_at(position, 1)[0] ^ 1 << draw(st.integers(0, 7))]))
    elif kind == "cut":
        file.truncate(draw(st.integers(0, size_bytes - 1)))
    elif kind == "zeros":
        begin = draw(st.integers(0, size_bytes - 1))
        file.write_at(begin, bytes(draw(st.integers(1, size_bytes - begin))))
    else:
        disk.remove(path)
    if draw(st.booleans()):
        disk.remove(path.replace(".arrows", ".index"))
    lineage = f"{DIRECTORY}/lineage"
    if not draw(st.integers(0, 3)) and "lineage" in disk.list(DIRECTORY) and (size_bytes := disk.open(lineage).size()):
        position = draw(st.integers(0, size_bytes - 1))
        flip(disk, lineage, position)
        kind += f", the lineage at {position},"
    return f"{kind} {path}"


@given(data=st.data())
def test_a_log_is_whole_again_whatever_was_damaged(data: st.DataObject) -> None:
    draw = data.draw
    batches = draw(st.lists(st.integers(1, 6), min_size=1, max_size=40), label="rows of batches")
    epochs = draw(st.lists(st.integers(1, len(batches)), max_size=3), label="epochs begin")
    disk, log, messages = grown(batches, epochs)
    given_up = draw(st.sampled_from([0, 0, draw(st.integers(0, log.log_end))]), label="given up before")
    if draw(st.booleans(), label="merged here"):
        clean_all(log)
    log.close()
    other_disk = copied(disk)
    other = open_log(other_disk, CONFIG, must_exist=True)
    if draw(st.booleans(), label="merged there"):
        clean_all(other)
    if given_up:
        removal = give_up_before(other, given_up)
        if removal is not None:
            removal.run()
    for _ in range(draw(st.integers(1, 3))):
        note(draw(harmed(disk)))
    damaged = open_log(disk, CONFIG, must_exist=True)
    find_all(damaged)
    if damaged.state is LogState.WRITABLE:
        return  # an index that is gone, and the like
    donor = Donor(other, other_disk, other.log_end, draw(st.sampled_from([1, 2_000, 10**6]), label="bytes at once"))
    try:
        mending = mend(damaged, donor)
    except RepairError as error:
        if "upgrade" not in str(error):  # else nothing says that it is ours
            raise
        return
    if draw(st.booleans(), label="killed before it is placed"):
        disk = disk.crash_clone(Keep.ALL)
        damaged = open_log(disk, CONFIG, must_exist=True)
        find_all(damaged)
        assert damaged.state is LogState.READ_ONLY
        mending = mend(damaged, donor)
    damaged.close()
    mending.place()
    for mended_disk in (disk, disk.crash_clone(Keep.SYNCED)):
        mended = open_log(mended_disk, CONFIG, must_exist=True)
        assert mended.state is LogState.WRITABLE, mended.damage
        start = mended.log_start
        assert start <= given_up
        assert rows_of(mended_disk, mended) == messages[start:]
        assert mended.log_end == len(messages)


def find_all(log: Log) -> None:
    """Read all, as readers do: what is damaged is known then."""
    view = log.view()
    offset = view.log_start
    while offset < view.log_end:
        try:
            for header, _ in view.batches(offset, view.log_end):
                offset = header.end_offset
        except RemoteError as error:
            end = error.details.get("end_offset", error.details.get("log_start"))
            offset = view.log_end if end is None else max(end, offset + 1)
    _ = log.damage


def test_what_was_never_committed_is_cut_where_it_is_damaged() -> None:
    disk, log, messages = grown([2] * 30, [])
    log.close()
    other_disk = copied(disk)
    other = open_log(other_disk, CONFIG, must_exist=True)
    flip_last(disk)
    damaged = open_log(disk, CONFIG, must_exist=True)
    find_all(damaged)
    assert damaged.state is LogState.READ_ONLY
    (damage,) = damaged.damage
    mending = mend(damaged, Donor(other, other_disk, damage.base_offset - 2, 10**6))
    damaged.close()
    mending.place()
    mended = open_log(disk, CONFIG, must_exist=True)
    assert mended.state is LogState.WRITABLE
    assert mended.log_end == damage.base_offset
    assert rows_of(disk, mended) == messages[: damage.base_offset]
    assert any(".cut-" in name for name in disk.list(DIRECTORY))


def flip_last(disk: MemoryVfs) -> None:
    """Damage a batch in the midst of the last segment."""
    name = [name for name in disk.list(DIRECTORY) if name.endswith(".arrows")][-1]
    file = as_logs_see(disk).open(f"{DIRECTORY}/{name}")
    file.write_at(file.size() // 2, b"\xff" * 20)


def test_another_leaderships_messages_end_the_log_there() -> None:
    """What is here behind the hole comes from a leadership whose messages there were never committed."""
    disk, log, messages = grown([2] * 10, [])
    other_disk = copied(disk)
    for _ in range(5):  # to be deposed
        append(log, 2, 1_000)
    flush_and_note(log)
    log.close()
    other = open_log(other_disk, CONFIG, must_exist=True)
    other.start_epoch(2)
    for number in range(10):
        messages += append(other, 2, 2_000 + number)
    flush_and_note(other)
    flip_last(disk)
    damaged = open_log(disk, CONFIG, must_exist=True)
    find_all(damaged)
    assert damaged.state is LogState.READ_ONLY
    hole = damaged.damage[0]
    mending = mend(damaged, Donor(other, other_disk, other.log_end, 10**6))
    damaged.close()
    mending.place()
    mended = open_log(disk, CONFIG, must_exist=True)
    assert mended.state is LogState.WRITABLE
    assert hole.base_offset <= mended.log_end < 30
    assert {entry.leader_epoch for entry in mended.lineage} == {1}


def test_what_a_replica_offers_is_not_believed() -> None:
    disk, log, _ = grown([2] * 30, [])
    log.close()
    flip_last(disk)
    damaged = open_log(disk, CONFIG, must_exist=True)
    find_all(damaged)
    for lie in (b"nonsense" * 200, bytes(2_000), damaged_bytes(disk)):
        mending = damaged.repair()
        while mending.hole is None:
            mending.run()
        mending.offer(lie, leads=True)
        with pytest.raises(Exception, match=r"sound|offers"):
            finished(mending)
    assert damaged.state is LogState.READ_ONLY


def damaged_bytes(disk: MemoryVfs) -> bytes:
    """Batches of the beginning, which are sound, and not what is asked for."""
    from penstock.batch.schema import SCHEMA_BYTES

    return as_logs_see(disk).open(f"{DIRECTORY}/{0:020d}.arrows").read_at(SCHEMA_BYTES, 10**6)
