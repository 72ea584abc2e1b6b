"""Sealed segments of a stream with a compression: written once more, compressed, and never again for that."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.errors import ErrorCode, RemoteError
from penstock.batch import codec, compression, layout
from penstock.batch.codec import NOBODY, BatchProducer
from penstock.batch.header import COMPRESSION_FLAGS, INCOMPRESSIBLE, MAY_HOLD_IDS, BatchHeader
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import Log, LogConfig, LogState, LogView, Survey
from penstock.commitlog.files.batch_walk import Walk
from penstock.groups.offsets import CommittedOffsets
from penstock.groups.rows import GroupPosition, OffsetKey, encode_key, encode_value
from penstock.node.api.internal_log import ReadRows
from penstock.node.partition.dedup import ReadIds
from penstock.node.partition.last_sequences import Counted, FindLasts
from penstock.node.partition.log_queries import FindOffset, GetMessage
from penstock.vfs.memory import Keep, MemoryVfs
from tests.batch_samples import sealed
from tests.groups import Columns, encoded
from tests.keyed import Told, append_keyed, rows_of
from tests.logs import (
    DIRECTORY,
    Message,
    append,
    clean_all,
    finished,
    messages_in,
    open_log,
    read_slices,
    save,
)

LZ4, ZSTD, NONE = Compression.LZ4, Compression.ZSTD, Compression.NONE
CONFIG = LogConfig(segment_bytes=60_000, compression=ZSTD)


def grown(vfs: MemoryVfs, config: LogConfig = CONFIG, rows: int = 20) -> tuple[Log, list[Message]]:
    """A log of several segments, all of it committed."""
    log = open_log(vfs, config)
    log.start_epoch(1)
    return log, more(log, rows)


def more(log: Log, rows: int = 20) -> list[Message]:
    """Some more of that."""
    start = log.log_end
    messages = [message for number in range(60) for message in append(log, rows, start + number * 10, size_bytes=200)]
    save(log)
    log.note_committed(log.log_end)
    return messages


def reopened(vfs: MemoryVfs, config: LogConfig) -> Log:
    """The log as a start finds it, once all of it is known to be committed."""
    log = open_log(vfs, config, must_exist=True)
    assert log.state is LogState.WRITABLE
    save(log)
    log.note_committed(log.log_end)
    return log


def stored(vfs: MemoryVfs, log: Log) -> list[BatchHeader]:
    """The headers of all batches of sealed segments, as they lie on the disk."""
    found = []
    for segment in log.view().segments[:-1]:
        file = vfs.open(segment.path, read_only=True)
        walk = Walk(file, position=SCHEMA_BYTES, end_position=segment.size_bytes, offset=segment.base_offset)
        found += [header for _, header in walk]
        assert walk.mistake is None
        file.close()
    return found


def kinds(vfs: MemoryVfs, log: Log) -> set[Compression]:
    """How they are compressed."""
    return {compression.of(header) for header in stored(vfs, log)}


@pytest.mark.parametrize("wished", [LZ4, ZSTD])
@pytest.mark.parametrize("rows", [2, 20, 120], ids=["small batches", "some batches", "one batch a segment"])
def test_sealed_segments_are_compressed_once(wished: Compression, rows: int) -> None:
    vfs = MemoryVfs()
    config = replace(CONFIG, compression=wished, segment_bytes=30_000 if rows < 100 else 20_000)
    log, messages = grown(vfs, config, rows)
    before, size_bytes = log.view(), log.size_bytes
    assert log.segment_count > 1
    assert clean_all(log) == log.segment_count - 1
    assert not log.wants_cleaning(0)
    assert kinds(vfs, log) == {wished}
    assert log.size_bytes < size_bytes / 2
    view = log.view()
    assert [one for _, data in view.batches(0, log.log_end) for one in messages_in(data)] == messages
    assert read_slices(vfs, view) == messages == read_slices(vfs, before)
    assert all(len(data) == header.size_bytes for header, data in view.batches(0, log.log_end))
    assert not any(header.flags & COMPRESSION_FLAGS for header, _ in view.batches(0, log.log_end, reverse=True))
    disk = vfs.crash_clone(Keep.ALL)
    again = reopened(disk, config)
    assert again.wants_cleaning(0), "it is looked at, as any"
    assert clean_all(again) == 0
    assert read_slices(disk, again.view()) == messages


def test_what_cannot_be_compressed_is_marked_and_never_written_again() -> None:
    vfs = MemoryVfs()
    log = open_log(vfs, CONFIG)
    log.start_epoch(1)
    random = Random(1)
    for number in range(30):
        columns = Columns([b"a"], None, [random.randbytes(10_000)], None)
        data = encoded(columns, base_offset=number, timestamp_us=number, leader_epoch=1)
        log.append(bytes(data), codec.read_header(data))
    save(log)
    log.note_committed(log.log_end)
    size_bytes = log.size_bytes
    assert clean_all(log) == log.segment_count - 1
    assert {header.flags & COMPRESSION_FLAGS for header in stored(vfs, log)} == {INCOMPRESSIBLE}
    assert log.size_bytes < size_bytes, "merged they are"
    for wished in Compression:
        again = reopened(vfs.crash_clone(Keep.ALL), replace(CONFIG, compression=wished))
        assert again.wants_cleaning(0)
        assert clean_all(again) == 0


def test_small_batches_that_are_not_merged_stay_plain() -> None:
    vfs = MemoryVfs()
    log = open_log(vfs, replace(CONFIG, segment_bytes=4_000))
    log.start_epoch(1)
    for _ in range(3):
        append(log, 9, size_bytes=200)
    save(log)
    log.note_committed(log.log_end)
    assert max(header.size_bytes for header in stored(vfs, log)) < limits.COMPRESSED_BATCH_BYTES_MIN
    assert clean_all(log) == 0
    assert kinds(vfs, log) == {NONE}


def test_another_codec_holds_for_what_is_written_from_then_on() -> None:
    vfs = MemoryVfs()
    log, messages = grown(vfs, replace(CONFIG, compression=NONE), rows=120)
    assert clean_all(log) == 0, "nothing is to be merged"
    first = log.segment_count
    log.configure(replace(CONFIG, compression=LZ4))
    assert clean_all(log) == first - 1
    assert kinds(vfs, log) == {LZ4}
    for wished in (ZSTD, NONE):
        log.configure(replace(CONFIG, compression=wished))
        assert clean_all(log) == 0
        assert kinds(vfs, log) == {LZ4}
    log.configure(CONFIG)
    messages += more(log, 120)
    assert clean_all(log) == log.segment_count - first
    assert kinds(vfs, log) == {LZ4, ZSTD}
    assert read_slices(vfs, log.view()) == messages


def test_offsets_and_times_within_a_compressed_batch_are_found() -> None:
    vfs = MemoryVfs()
    log, messages = grown(vfs)
    before = log.view()
    clean_all(log)
    after = log.view()
    assert kinds(vfs, log) == {ZSTD}
    for offset, timestamp_us, value in messages[:: len(messages) // 7]:
        assert after.first_at(timestamp_us, end=log.log_end) == before.first_at(timestamp_us, end=log.log_end)
        get = GetMessage(after, log.log_end, offset=offset, key=None, subject=None)
        get.run()
        header = codec.verify(get.data)
        assert (get.found_offset, header.min_timestamp_us, header.flags) == (offset, timestamp_us, 0)
        assert [one for _, _, one in messages_in(bytes(get.data))] == [value]
        find = FindOffset(after, log.log_end, offset=offset, timestamp_us=None)
        find.run()
        assert find.timestamp_us == timestamp_us
    last = GetMessage(after, messages[-200][0], offset=None, key=None, subject="orders.new")
    last.run()
    assert last.found_offset == messages[-201][0]
    for is_indexed in (True, False):
        names = [b"orders.new", b"absent"]
        end = messages[-200][0]
        lasts = FindLasts(after, end, names, Counted(), is_indexed=is_indexed, knows_all=is_indexed, is_long=False)
        lasts.run()
        found = lasts.lasts if lasts.older is None else [lasts.older.find(one, 0, len(one)) for one in names]
        assert found == [messages[-201][0], -1]


def keyed(vfs: MemoryVfs, config: LogConfig) -> Log:
    log = open_log(vfs, config)
    log.start_epoch(1)
    told: list[Told] = [(b"k%d" % (number % 50), b"value" * 40) for number in range(400)]
    for number in range(8):
        append_keyed(log, told[50 * number : 50 * number + 50], 10 + number)
    save(log)
    log.note_committed(log.log_end)
    return log


def test_compaction_reads_what_is_compressed_and_writes_it_compressed() -> None:
    vfs = MemoryVfs()
    config = replace(CONFIG, segment_bytes=20_000)
    log = keyed(vfs, config)
    clean_all(log)
    all_rows = rows_of(log.view())
    assert kinds(vfs, log) == {ZSTD}
    log.configure(replace(config, compact=True, compression=LZ4))
    now_us = 10**12
    assert clean_all(log, now_us)
    found = rows_of(log.view())
    assert len(found) < len(all_rows)
    assert {row.key: row.value for row in found} == {row.key: row.value for row in all_rows}
    assert kinds(vfs, log) <= {LZ4, ZSTD, NONE}
    assert LZ4 in kinds(vfs, log) or all(
        header.size_bytes < limits.COMPRESSED_BATCH_BYTES_MIN for header in stored(vfs, log) if header.flags == 0
    )


def test_what_a_start_reads_of_a_log_is_read_of_what_is_compressed() -> None:
    """Offsets of groups, message ids, and producers."""
    vfs = MemoryVfs()
    log = open_log(vfs, CONFIG)
    log.start_epoch(1)
    places = [OffsetKey("billing", 7, partition) for partition in range(50)]
    told: list[Told] = [(encode_key(place), encode_value(GroupPosition(place.partition))) for place in places]
    for number in range(20):
        append_keyed(log, told if number else [(key, None) for key, _ in told], number)
    rows = [b"NATS/1.0\r\nNats-Msg-Id: id-%d\r\n\r\n" % number for number in range(1_000)]
    for begin in range(0, 1_000, 100):
        columns = Columns([b"s"] * 100, None, [b"value" * 20] * 100, rows[begin : begin + 100])
        data = encoded(columns, base_offset=log.log_end, timestamp_us=100 + begin, leader_epoch=1)
        producer = BatchProducer(9, 1, begin) if begin < 200 else NOBODY
        numbers = {"base_offset": log.log_end, "timestamp_us": 100 + begin, "leader_epoch": 1}
        header = codec.renumber(data, **numbers, flags=MAY_HOLD_IDS, producer=producer)
        log.append(bytes(data), header)
    more(log)
    plain = log.view()
    found = [_read_at_a_start(plain)]
    clean_all(log)
    assert kinds(vfs, log) == {ZSTD}
    found.append(_read_at_a_start(log.view()))
    assert found[0] == found[1]
    offsets, ids, producers = found[1]
    assert (len(offsets), ids, producers) == (50, 1_000, [(1_000, 1_100), (1_100, 1_200)])


def _read_at_a_start(view: LogView) -> tuple[dict[int, GroupPosition], int, list[tuple[int, int]]]:
    offsets = ReadRows(view, CommittedOffsets())
    offsets.run()
    positions = {partition: one.position for partition, one in offsets.state.of("billing", 7).items()}
    ids = ReadIds(view, 0, 10_000)
    ids.run()
    batches = view.batches(0, view.log_end, wants=lambda header: bool(header.producer_id))
    producers = [(header.base_offset, header.end_offset) for header, _ in batches]
    return positions, len(ids.ids), producers


def test_damage_in_a_segment_that_is_compressed_already_is_found_when_it_is_looked_at() -> None:
    vfs = MemoryVfs()
    log, _ = grown(vfs)
    clean_all(log)
    disk = vfs.crash_clone(Keep.ALL)
    again = reopened(disk, CONFIG)
    file = disk.open(again.view().segments[1].path)
    file.write_at(SCHEMA_BYTES + 5, b"?")
    file.close()
    assert clean_all(again) == 0
    assert again.damage
    assert [name for name in disk.list(DIRECTORY) if name.endswith(".cleaned")] == []


def broken(vfs: MemoryVfs, log: Log) -> None:
    """Let the first batch of the log unpack to something else, under a checksum that fits."""
    segment = log.view().segments[0]
    file = vfs.open(segment.path)
    header = codec.read_header(file.read_at(SCHEMA_BYTES, codec.PREFIX_BYTES))
    data = bytearray(file.read_at(SCHEMA_BYTES, header.size_bytes))
    data[layout.BODY_POSITION] ^= 1
    file.write_at(SCHEMA_BYTES, sealed(data))
    file.close()


def test_a_batch_that_does_not_unpack_is_damage_for_whoever_reads_it() -> None:
    vfs = MemoryVfs()
    log, _ = grown(vfs)
    clean_all(log)
    broken(vfs, log)
    with pytest.raises(RemoteError, match="compressed buffers that unpack to what the rows want") as error:
        list(log.view().batches(0, log.log_end))
    assert error.value.code == ErrorCode.CORRUPT_RANGE
    assert log.damage


def test_a_pass_of_compaction_ends_at_a_batch_that_does_not_unpack() -> None:
    vfs = MemoryVfs()
    config = replace(CONFIG, segment_bytes=20_000)
    log = keyed(vfs, config)
    clean_all(log)
    broken(vfs, log)
    log.configure(replace(config, compact=True))
    task = log.clean(10**12)
    while task is not None and not isinstance(task, Survey):
        assert not log.cleaned(finished(task), 10**12)
        task = log.clean(10**12)
    survey = finished(task)
    assert isinstance(survey, Survey)
    assert not survey.is_whole
    assert not log.cleaned(survey, 10**12)
    assert log.damage
    assert log.state is LogState.READ_ONLY


@pytest.mark.parametrize("keep", list(Keep))
def test_a_crash_leaves_the_old_segment_or_the_new_one(keep: Keep) -> None:
    vfs = MemoryVfs()
    log, messages = grown(vfs)
    chance = Random(1) if keep is Keep.SUBSET else None
    task = log.clean(0)
    assert task is not None
    while not task.is_done:
        reopened(vfs.crash_clone(keep, chance), CONFIG)
        task.run()
    log.cleaned(task, 0)
    disk = vfs.crash_clone(keep, chance)
    again = reopened(disk, CONFIG)
    assert read_slices(disk, again.view()) == messages
    clean_all(again)
    assert kinds(disk, again) == {ZSTD}
    assert [name for name in disk.list(DIRECTORY) if name.endswith(".cleaned")] == []
