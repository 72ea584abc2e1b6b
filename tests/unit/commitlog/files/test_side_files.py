"""Damage beside the segments: what a look at the files calls damage, a log that runs finds and mends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import Log, LogConfig, LogState, Scrub
from penstock.commitlog.files.checkpoint import SLOT_BYTES, SLOT_STEP_BYTES
from penstock.commitlog.files.index import ENTRY_BYTES
from penstock.commitlog.files.lineage import LineageEntry, pack_entry
from penstock.commitlog.verify.verifying import VerifiedLog, verify_log
from penstock.vfs.memory import MemoryVfs
from tests.damage import content, flip, write
from tests.logs import DIRECTORY, PARTITION, STREAM_ID, append, open_log, read_batches, save

CONFIG = LogConfig(segment_bytes=6_400)
CHECKPOINT = f"{DIRECTORY}/checkpoint"
LINEAGE = f"{DIRECTORY}/lineage"
SEALED, ACTIVE = 0, -1


@dataclass(frozen=True)
class Harm:
    """Something that happens to a file. `is_damage`: `penstock verify` calls it so."""

    name: str
    harm: Callable[[MemoryVfs], None]
    is_damage: bool = True


def index_path(disk: MemoryVfs, number: int) -> str:
    """The index of a segment."""
    return f"{DIRECTORY}/{[name for name in disk.list(DIRECTORY) if name.endswith('.index')][number]}"


def of_index(number: int) -> list[Harm]:
    """What can happen to the index of that segment."""

    def zeroed(first: int, end: int) -> Callable[[MemoryVfs], None]:
        def harm(disk: MemoryVfs) -> None:
            path = index_path(disk, number)
            count = disk.open(path).size() // ENTRY_BYTES
            begin, stop = first % count, (end - 1) % count + 1
            write(disk, path, begin * ENTRY_BYTES, bytes((stop - begin) * ENTRY_BYTES))

        return harm

    def flipped(position: int) -> Callable[[MemoryVfs], None]:
        return lambda disk: flip(disk, index_path(disk, number), position)

    def longer(data: bytes) -> Callable[[MemoryVfs], None]:
        return lambda disk: write(disk, index_path(disk, number), len(content(disk, index_path(disk, number))), data)

    which = "sealed" if number == SEALED else "active"
    found = [
        Harm(f"{which}: first entry zeroed", zeroed(0, 1)),
        Harm(f"{which}: an entry zeroed", zeroed(4, 5)),
        Harm(f"{which}: several zeroed", zeroed(1, 6)),
        Harm(f"{which}: last entry zeroed", zeroed(-1, 0)),
        Harm(f"{which}: all zeroed", zeroed(0, 0)),
        Harm(f"{which}: flipped", flipped(3 * ENTRY_BYTES + 17)),
        Harm(f"{which}: zeros behind it", longer(bytes(2 * ENTRY_BYTES))),
        Harm(f"{which}: short", lambda disk: disk.open(index_path(disk, number)).truncate(ENTRY_BYTES), False),
        Harm(f"{which}: empty", lambda disk: disk.open(index_path(disk, number)).truncate(0), False),
        Harm(f"{which}: removed", lambda disk: disk.remove(index_path(disk, number)), False),
    ]
    if number == SEALED:
        found.append(Harm(f"{which}: part of an entry behind it", longer(b"12345")))
    return found


def _emptied(path: str) -> Callable[[MemoryVfs], None]:
    return lambda disk: write(disk, path, 0, bytes(len(content(disk, path))))


def _both_slots(disk: MemoryVfs) -> None:
    flip(disk, CHECKPOINT, 3)
    flip(disk, CHECKPOINT, SLOT_STEP_BYTES + 95)


def _older_lineage(disk: MemoryVfs) -> None:
    file = disk.open(LINEAGE)
    file.truncate(file.size() - len(pack_entry(LineageEntry(1, 0))))


OF_CHECKPOINT = [
    Harm("checkpoint: slot 0 flipped", lambda disk: flip(disk, CHECKPOINT, 40)),
    Harm("checkpoint: slot 1 flipped", lambda disk: flip(disk, CHECKPOINT, SLOT_STEP_BYTES + 8)),
    Harm("checkpoint: both flipped", _both_slots),
    Harm("checkpoint: first unused byte", lambda disk: flip(disk, CHECKPOINT, SLOT_BYTES)),
    Harm("checkpoint: last unused byte", lambda disk: flip(disk, CHECKPOINT, SLOT_STEP_BYTES - 1, 7)),
    Harm("checkpoint: bytes behind it", lambda disk: write(disk, CHECKPOINT, SLOT_STEP_BYTES + SLOT_BYTES, b"x")),
    Harm("checkpoint: zeroed", _emptied(CHECKPOINT)),
    Harm("checkpoint: removed", lambda disk: disk.remove(CHECKPOINT)),
]
OF_LINEAGE = [
    Harm("lineage: flipped", lambda disk: flip(disk, LINEAGE, 0)),
    Harm("lineage: last entry flipped", lambda disk: flip(disk, LINEAGE, 24 + 21)),
    Harm("lineage: zeroed", _emptied(LINEAGE)),
    Harm("lineage: removed", lambda disk: disk.remove(LINEAGE)),
    Harm("lineage: of another log", lambda disk: write(disk, LINEAGE, 0, pack_entry(LineageEntry(2, 0)))),
    Harm("lineage: an older copy", _older_lineage),
    Harm("lineage: part of an entry behind it", lambda disk: write(disk, LINEAGE, 48, b"x")),
]
ALL = [*of_index(SEALED), *of_index(ACTIVE), *OF_CHECKPOINT, *OF_LINEAGE]


def grown() -> tuple[MemoryVfs, Log]:
    """A log of several segments and two leaderships."""
    disk = MemoryVfs()
    log = open_log(disk, CONFIG)
    for epoch in (1, 2):
        log.start_epoch(epoch)
        for number in range(8):
            append(log, 2, 100 * epoch + number)
            if number % 3 == 0:
                save(log)
    assert log.segment_count > 2
    if (task := log.flush(with_index=True)) is not None:
        task.run()
        log.flushed(task)
    log.checkpoint()
    return disk, log


def verified(disk: MemoryVfs) -> VerifiedLog:
    """What `penstock verify` of the files says."""
    return verify_log(disk, DIRECTORY, ids=(STREAM_ID, PARTITION), is_made=True)


def scrub(log: Log) -> int:
    """Look through all of it as the scrubber does, and mend; how many places were wrong beside the segments."""
    work = Scrub(log.view(), log.log_start, log.flushed_end, log.damage_found, log.side_files())
    while not work.is_done:
        work.run()
    assert work.side_files is not None
    wrong = [*work.wrong_indexes, *log.repair_side_files(work.side_files)]
    for number in range(3):
        log.tick((number + 10) * 10**7)
        if (task := log.flush(with_index=True)) is not None:
            task.run()
            log.flushed(task)
    return len(wrong)


def test_a_sound_log_is_sound_for_all() -> None:
    disk, log = grown()
    assert verified(disk).is_sound
    assert scrub(log) == 0


@pytest.mark.parametrize(
    ("one", "rests"),
    [*((one, False) for one in ALL), *((one, True) for one in of_index(ACTIVE))],
    ids=lambda one: one.name if isinstance(one, Harm) else "at rest" if one else "awake",
)
def test_a_log_that_runs_finds_and_mends_it(one: Harm, rests: bool) -> None:
    disk, log = grown()
    if rests:
        assert log.rest()
    wanted = read_batches(log.view(), 0, log.log_end)
    before = {name: content(disk, f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY) if name != "checkpoint"}
    one.harm(disk)
    assert verified(disk).is_sound is not one.is_damage
    found = scrub(log)
    assert bool(found) is one.is_damage
    assert verified(disk).is_sound
    if "active: short" not in one.name and "active: empty" not in one.name and "active: removed" not in one.name:
        assert {name: content(disk, f"{DIRECTORY}/{name}") for name in before} == before
    assert scrub(log) == 0
    assert read_batches(log.view(), 0, log.log_end) == wanted
    assert log.state is LogState.WRITABLE
    append(log, 3, 1_000)
    log.close()
    assert verified(disk).is_sound
    again = open_log(disk, CONFIG, must_exist=True)
    assert (again.state, again.log_end) == (LogState.WRITABLE, log.log_end)


@pytest.mark.parametrize(
    "one",
    [one for one in ALL if one.name not in {"checkpoint: zeroed", "checkpoint: removed"}],
    ids=lambda one: one.name,
)
def test_what_happened_while_the_broker_was_stopped_is_mended_by_its_start_or_its_scrubber(one: Harm) -> None:
    disk, log = grown()
    log.close()
    one.harm(disk)
    log = open_log(disk, CONFIG)
    scrub(log)
    assert verified(disk).is_sound
    assert log.state is LogState.WRITABLE
    assert log.lineage == (LineageEntry(1, 0), LineageEntry(2, 16))


def test_what_is_written_while_it_is_looked_at_is_no_damage() -> None:
    """A leadership begins, and batches are flushed, between the look and what comes of it."""
    disk, log = grown()
    work = Scrub(log.view(), 0, log.flushed_end, log.damage_found, log.side_files())
    append(log, 2, 300)
    log.start_epoch(3)
    append(log, 2, 301)
    save(log)
    while not work.is_done:
        work.run()
    assert work.side_files is not None
    assert [*work.wrong_indexes, *log.repair_side_files(work.side_files)] == []
    assert verified(disk).is_sound
    assert log.lineage[-1] == LineageEntry(3, 34)


def test_the_index_of_a_damaged_segment_is_not_written() -> None:
    """It would vouch for the damage at the next start."""
    disk, log = grown()
    path = index_path(disk, SEALED)
    flip(disk, path.replace(".index", ".arrows"), 1_500)
    scrub(log)
    assert log.state is LogState.READ_ONLY
    assert path.rpartition("/")[2] not in disk.list(DIRECTORY)


@pytest.mark.parametrize("where", [SCHEMA_BYTES + 100, 0], ids=["its first batch", "all of it"])
def test_a_segment_without_an_index_that_is_damaged_since_it_was_read(where: int) -> None:
    disk, log = grown()
    path = index_path(disk, SEALED)
    file = disk.open(path.replace(".index", ".arrows"))
    disk.remove(path)
    file.write_at(where, bytes(100 if where else file.size()))
    view = log.view()
    view.check_indexes(0, log.log_end, log.flushed_end)
    assert view.wrong_indexes == []
    assert log.state is LogState.READ_ONLY


def test_a_look_at_a_log_without_messages_counts_as_work() -> None:
    """One after the other of many would else burn a core."""
    log = open_log(MemoryVfs(), CONFIG)
    work = Scrub(log.view(), 0, 0, log.damage_found, log.side_files())
    work.run()
    assert work.moved_bytes
