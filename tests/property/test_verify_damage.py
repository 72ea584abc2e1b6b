"""Damage at any byte of any file of a log is found, with its offsets; a sound log is sound; nothing is written."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import CorruptionError
from penstock.batch import codec
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import LogConfig
from penstock.commitlog.verify.verifying import verify_log
from penstock.vfs.memory import Keep, MemoryVfs
from tests.extent import each_change, examples
from tests.logs import DIRECTORY, append, clean_all, open_log, save

CONFIG = LogConfig(segment_bytes=5000)


def written(seed: int) -> MemoryVfs:
    """A log of some segments and leaderships, stopped or not, cleaned or not; all of it flushed."""
    random = Random(seed)
    disk = MemoryVfs()
    log = open_log(disk, CONFIG)
    for epoch in range(1, random.randint(2, 4)):
        log.start_epoch(epoch)
        for number in range(random.randint(1, 12)):
            append(log, random.randint(1, 3), 100 * epoch + number, size_bytes=random.choice((0, 100, 900)))
    save(log)
    log.note_committed(log.log_end)
    if random.random() < 0.5:
        clean_all(log, 10**12)
        while (disposal := log.dispose()) is not None:  # older generations are not looked at
            disposal.run()
            log.disposed()
    if random.random() < 0.5:
        log.close()
    return disk.crash_clone(Keep.ALL)


def all_bytes(disk: MemoryVfs) -> dict[str, bytes]:
    return {path: disk.open(path).read_at(0, 10**7) for path in disk.files()}


def lost_with(data: bytes, base_offset: int, position: int) -> tuple[int, int] | None:
    """The offsets of the batch that has this byte of a segment; None: it is of none."""
    at = SCHEMA_BYTES
    if position < at:
        return None
    while True:
        header = codec.read_header(data[at:])
        if position < at + header.size_bytes:
            return header.base_offset, header.end_offset
        at += header.size_bytes


@settings(max_examples=examples(300))
@given(st.integers(0, 2**32))
def test_a_sound_log_is_sound(seed: int) -> None:
    disk = written(seed)
    before = all_bytes(disk)
    found = verify_log(disk, DIRECTORY)
    assert (found.mistakes, found.torn) == ([], None)
    assert found.rows == found.log_end == sum(one.rows for one in found.sums)
    assert all_bytes(disk) == before


@each_change
@settings(max_examples=examples(600))
@given(st.integers(0, 2**32), st.randoms(use_true_random=False), st.integers(1, 255))
def test_any_other_byte_is_found(seed: int, random: Random, change: int) -> None:
    disk = written(seed)
    all_end = verify_log(disk, DIRECTORY).log_end
    path = f"{DIRECTORY}/{random.choice(disk.list(DIRECTORY))}"
    file = disk.open(path)
    data = file.read_at(0, file.size())
    position = random.randrange(len(data))
    file.write_at(position, bytes([data[position] ^ change]))
    before = all_bytes(disk)
    found = verify_log(disk, DIRECTORY)
    assert all_bytes(disk) == before
    assert [one for one in found.mistakes if one.file == path and one.position <= position]
    if not path.endswith(".arrows"):
        assert not found.damaged()
        return
    lost = lost_with(data, int(path.rpartition("/")[2][:20]), position)
    if lost is None:
        assert not found.damaged()
        return
    ((begin, end),) = found.damaged()
    is_last = end is None  # behind the last batch of a log nothing tells where what was lost ends
    assert (begin, lost[1] if is_last else end) == lost
    assert found.log_end == (lost[0] if is_last else all_end)
    assert found.rows == all_end - len(range(*lost))


@each_change
@settings(max_examples=examples(200))
@given(st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_several_damaged_places_hide_nothing_else(seed: int, random: Random) -> None:
    disk = written(seed)
    segments = [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(".arrows")]
    lost: set[int] = set()
    for _ in range(random.randint(1, 4)):
        path = random.choice(segments)
        file = disk.open(path)
        data = file.read_at(0, file.size())
        position = random.randrange(SCHEMA_BYTES, len(data)) if len(data) > SCHEMA_BYTES else 0
        try:
            gone = lost_with(data, 0, position)
        except CorruptionError:
            continue  # a header that is damaged already
        if gone is None or gone[0] in lost:
            continue
        lost.update(range(*gone))
        file.write_at(position, bytes([data[position] ^ 0x10]))
    found = verify_log(disk, DIRECTORY)
    told: set[int] = set()
    for begin, end in found.damaged():
        told.update(range(begin, end if end is not None else max(lost, default=begin) + 1))
    assert told == lost
