"""Of each key the last message stays, and a tombstone as long as anybody may have seen what it ends."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from penstock.base import limits
from penstock.batch.codec import BatchProducer
from penstock.commitlog import Cleaning, LiveCounts, Log, LogConfig, LogState, Survey
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperationKind
from penstock.vfs.memory import Keep, MemoryVfs
from tests.extent import each_change
from tests.keyed import Row, Told, append_keyed, batches_of, rows_of
from tests.logs import DIRECTORY, clean_all, finished, give_up_before, open_log, run, save

RETENTION_US = 100_000_000
CONFIG = LogConfig(segment_bytes=4096, compact=True, tombstone_retention_us=RETENTION_US)
KEYLESS: Told = (None, b"kept")


class Stream:
    """A log, and all that was appended to it."""

    def __init__(self, config: LogConfig = CONFIG, vfs: MemoryVfs | FaultyVfs | None = None) -> None:
        self.vfs = vfs or MemoryVfs()
        self.log: Log = open_log(self.vfs, config)
        self.log.start_epoch(1)
        self.rows: list[Row] = []
        self.now_us = 0

    def append(self, *messages: Told, times: int = 1, producer: BatchProducer | None = None) -> None:
        """So many batches of these messages."""
        for _ in range(times):
            self.now_us += 1
            self.rows += append_keyed(self.log, messages, self.now_us, producer or BatchProducer())

    def seal(self) -> None:
        """What was appended goes into segments that are committed."""
        end = self.log.log_end
        while self.log.view().segments[-1].base_offset < end:
            self.append(KEYLESS)
        save(self.log)
        self.log.note_committed(self.log.log_end)

    def compact(self, wait_us: int = 0) -> int:
        """Once that time has passed; how many segments were written anew."""
        self.now_us += wait_us
        return clean_all(self.log, self.now_us)

    @property
    def found(self) -> list[Row]:
        return rows_of(self.log.view())

    def of(self, key: bytes) -> list[bytes | None]:
        """The values that the log has of a key."""
        return [row.value for row in self.found if row.key == key]


def test_of_each_key_the_last_message_stays_where_it_was() -> None:
    stream = Stream()
    for number in range(20):
        stream.append((b"a", b"%d" % number), (b"b", b"%d" % -number), KEYLESS, (b"only %d" % number, b""))
    stream.seal()
    before, size_bytes = stream.log.view(), stream.log.size_bytes
    assert stream.compact()
    sealed_end = stream.log.view().segments[-1].base_offset
    gone = {row for row in stream.rows if row.key in (b"a", b"b") and row.offset < 4 * 19}
    assert stream.found == [row for row in stream.rows if row not in gone]
    assert stream.log.size_bytes < size_bytes
    headers = [header for header, _ in batches_of(stream.log.view())]
    assert [one.base_offset for one in headers] == [0, *(one.end_offset for one in headers[:-1])]
    assert any(one.count < one.end_offset - one.base_offset for one in headers if one.end_offset <= sealed_end)
    assert rows_of(before) == stream.found, "whoever has a view of before goes on with the new files"
    again = open_log(stream.vfs.crash_clone(Keep.ALL), CONFIG, must_exist=True)  # type: ignore[union-attr]
    assert rows_of(again.view()) == stream.found
    for log in (stream.log, again):
        assert LiveCounts(log.view(), log.log_end).rows() == len(stream.found) < log.log_end


def test_an_empty_key_of_an_older_log_is_none() -> None:
    stream = Stream(replace(CONFIG, tombstone_retention_us=0))
    for number in range(3):
        stream.append((b"", b"%d" % number), (b"", None), (b"k", b"%d" % number))
    stream.seal()
    assert stream.compact() > 0
    stream.append((b"", b"3"), (b"k", b"3"))  # and where the rows before are judged by what comes behind them
    stream.seal()
    assert stream.compact(RETENTION_US) > 0
    assert b"0" not in stream.of(b"k")
    assert stream.of(b"") == [b"0", None, b"1", None, b"2", None, b"3"]


def test_without_compaction_nothing_goes() -> None:
    stream = Stream(replace(CONFIG, compact=False))
    stream.append((b"a", b"1"), times=40)
    stream.seal()
    stream.compact(10 * RETENTION_US)
    assert stream.found == stream.rows


def test_a_pass_waits_until_enough_has_come() -> None:
    stream = Stream()
    for number in range(100):
        stream.append((b"%d" % number, b"1"), KEYLESS)
    stream.seal()
    stream.compact()
    assert stream.found == stream.rows
    stream.append((b"0", b"2"), KEYLESS, times=10)
    stream.seal()
    stream.compact()
    assert stream.of(b"0")[0] == b"1", "a tenth of the log is not worth a pass over all of it"
    stream.append((b"0", b"3"), KEYLESS, times=400)
    stream.seal()
    assert stream.compact()
    assert stream.of(b"0") == [b"3"]


def test_a_tombstone_stays_as_long_as_a_reader_may_need_it() -> None:
    stream = Stream()
    stream.append((b"a", b"1"), (b"b", b"1"), (b"b", None), KEYLESS)
    stream.append(KEYLESS, times=10)
    stream.append((b"a", None), KEYLESS)
    stream.seal()
    stream.compact(5 * RETENTION_US)
    assert stream.of(b"a") == stream.of(b"b") == [None], "it was judged for the first time"
    stream.compact(RETENTION_US - 1)
    assert stream.of(b"a") == [None]
    assert stream.log.cleaning_due_us(stream.now_us) == stream.now_us + 1
    stream.compact(1)
    assert stream.of(b"a") == stream.of(b"b") == []
    assert [row for row in stream.found if row.key is None] == [row for row in stream.rows if row.key is None]
    assert stream.log.cleaning_due_us(stream.now_us) is None


def test_each_tombstone_has_its_time() -> None:
    stream = Stream()
    stream.append((b"a", b"1"), (b"a", None), KEYLESS)
    stream.append(KEYLESS, times=4)
    stream.seal()
    stream.compact(1)
    stream.append((b"b", b"1"), (b"b", None), KEYLESS)
    stream.append(KEYLESS, times=10)
    stream.seal()
    stream.compact(RETENTION_US // 2)
    assert stream.of(b"a") == stream.of(b"b") == [None]
    stream.compact(RETENTION_US // 2)
    assert (stream.of(b"a"), stream.of(b"b")) == ([], [None])
    stream.compact(RETENTION_US // 2)
    assert stream.of(b"b") == []


def test_a_tombstone_goes_after_what_it_ended_is_gone_for_good() -> None:
    stream = Stream()
    stream.append((b"a", b"1"), KEYLESS)
    stream.append(KEYLESS, times=10)
    stream.append((b"a", None), KEYLESS)
    stream.seal()
    stream.compact()
    written = [one.path for one in stream.log.view().segments if one.path.endswith(".2.arrows")]
    assert written
    stream.now_us += RETENTION_US
    survey = finished(stream.log.clean(stream.now_us))
    assert isinstance(survey, Survey)
    assert survey.judged
    names = stream.vfs.crash_clone(Keep.SYNCED).list(DIRECTORY)  # type: ignore[union-attr]
    assert {path.rpartition("/")[2] for path in written} <= set(names)


def test_a_tombstone_stays_while_a_message_of_its_key_must() -> None:
    stream = Stream()
    stream.append((b"a", b"1"), (b"a", b"2"))
    stream.log.start_epoch(2)  # the one before has nothing but these
    stream.append((b"a", None), KEYLESS)
    stream.seal()
    for _ in range(4):
        stream.compact(RETENTION_US)
        assert stream.of(b"a") == [b"2", None]
    assert [header.leader_epoch for header, _ in batches_of(stream.log.view())][:2] == [1, 2]


def test_a_batch_of_a_producer_stays_one_of_its_own() -> None:
    stream = Stream()
    stream.append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), producer=BatchProducer(9, 3, 0))
    stream.append((b"c", b"1"), (b"c", b"2"), producer=BatchProducer(9, 3, 3))
    stream.append((b"a", b"3"), (b"c", None), KEYLESS)
    stream.seal()
    for _ in range(3):
        stream.compact(RETENTION_US)
        assert [(row.offset, row.key, row.value) for row in stream.found[:5]] == [
            (1, b"b", b"1"),
            (4, b"c", b"2"),
            (5, b"a", b"3"),
            (6, b"c", None),
            (7, None, b"kept"),
        ]
    found = [header for header, _ in batches_of(stream.log.view())][:2]
    assert [(one.producer_id, one.producer_epoch, one.producer_sequence) for one in found] == [(9, 3, 0), (9, 3, 3)]
    assert [(one.base_offset, one.end_offset, one.count) for one in found] == [(0, 3, 1), (3, 5, 1)]


def test_the_last_message_of_all_stays_though_it_is_a_tombstone() -> None:
    stream = Stream(replace(CONFIG, segment_age_us=10))
    stream.append((b"a", b"1"), KEYLESS)
    stream.append((b"a", None))
    save(stream.log)
    stream.log.tick(10**12)
    save(stream.log)
    stream.log.note_committed(stream.log.log_end)
    assert stream.log.view().segments[-2].end_offset == stream.log.log_end, "all is sealed"
    for _ in range(3):
        stream.compact(RETENTION_US)
        assert [row.value for row in stream.found] == [b"kept", None]
    assert stream.log.cleaning_due_us(stream.now_us) is None, "nothing would come of it"
    stream.append(KEYLESS, times=12)
    stream.seal()
    for _ in range(3):
        stream.compact(RETENTION_US)
    assert stream.of(b"a") == []


def test_a_pass_is_not_begun_again_for_what_can_never_go() -> None:
    stream = Stream(replace(CONFIG, tombstone_retention_us=0))
    stream.append((b"a", b"1"), producer=BatchProducer(9, 1, 0))
    stream.append((b"a", None), (b"b", b"1"), (b"b", None), KEYLESS)
    stream.append(KEYLESS, times=8)
    stream.seal()
    surveys = 0
    for _ in range(200):
        stream.now_us += 1_000_000
        while stream.log.wants_cleaning(stream.now_us):
            if (task := stream.log.clean(stream.now_us)) is not None:
                surveys += isinstance(task, Survey)
                stream.log.cleaned(finished(task), stream.now_us)
    assert surveys == 2, "the second has taken what could go a minute later"
    assert stream.of(b"a") == [b"1", None]
    assert stream.of(b"b") == []


def test_what_must_stay_has_no_segment_written_anew() -> None:
    stream = Stream()
    for number in range(40):
        stream.append((b"a", b"%d" % number), producer=BatchProducer(9, 1, number))
    stream.seal()
    paths = [one.path for one in stream.log.view().segments]
    surveys = 0
    while (task := stream.log.clean(stream.now_us)) is not None:
        surveys += isinstance(task, Survey)
        stream.log.cleaned(finished(task), stream.now_us)
    assert surveys == 1
    assert [one.path for one in stream.log.view().segments] == paths
    assert stream.found == stream.rows


@pytest.mark.parametrize("what", ["survey", "segment"])
def test_retention_may_take_what_a_pass_is_about_to_read(what: str) -> None:
    stream = Stream()
    stream.append((b"a", b"1"), KEYLESS, times=60)
    stream.seal()
    while isinstance(task := stream.log.clean(stream.now_us), Cleaning):
        stream.log.cleaned(finished(task), stream.now_us)
    assert task is not None
    if what == "segment":
        stream.log.cleaned(finished(task), stream.now_us)
        task = stream.log.clean(stream.now_us)
        assert isinstance(task, Cleaning)
    removal = give_up_before(stream.log, stream.log.view().segments[3].base_offset + 1)
    assert removal is not None
    removal.run()
    if what == "segment":
        with pytest.raises(FileNotFoundError):
            finished(task)
    else:
        finished(task)
    stream.log.cleaned(task, stream.now_us)
    while (task := stream.log.clean(stream.now_us)) is not None:
        stream.log.cleaned(finished(task), stream.now_us)
    log_start = stream.log.log_start
    assert stream.log.cleaning_due_us(stream.now_us) is None
    assert [row for row in stream.found if row.offset >= log_start and row.key is None] == [
        row for row in stream.rows if row.offset >= log_start and row.key is None
    ]
    assert len(stream.of(b"a")) < 10


def test_nothing_goes_any_more_once_the_stream_is_not_to_be_compacted() -> None:
    stream = Stream()
    stream.append((b"a", b"1"), KEYLESS, times=40)
    stream.seal()
    while isinstance(task := stream.log.clean(stream.now_us), Cleaning):
        stream.log.cleaned(finished(task), stream.now_us)
    assert task is not None
    stream.log.cleaned(finished(task), stream.now_us)
    task = stream.log.clean(stream.now_us)
    stream.log.configure(CONFIG.untouched())
    assert task is not None
    assert not stream.log.cleaned(finished(task), stream.now_us)
    stream.compact()
    assert stream.found == stream.rows


def test_what_is_young_stays_and_is_looked_at_when_its_time_has_come() -> None:
    stream = Stream(replace(CONFIG, compaction_lag_us=500))
    stream.append((b"a", b"1"), KEYLESS, times=40)
    stream.seal()
    stream.compact()
    assert stream.found == stream.rows
    due_us = stream.log.cleaning_due_us(stream.now_us)
    assert due_us == stream.log.view().segments[0].last_timestamp_us + 500
    stream.append((b"b", b"1"), KEYLESS, times=40)
    stream.seal()
    young = [row for row in stream.rows if row.key == b"b"]
    assert stream.compact(young[0].timestamp_us + 499 - stream.now_us)
    assert len(stream.of(b"a")) == 1
    assert [row for row in stream.found if row.key == b"b"] == young


@each_change
def test_more_keys_than_can_be_noted_take_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMPACTION_KEYS_MAX", 10)
    monkeypatch.setattr("penstock.commitlog.cleaner.latest_by_key._ROWS_AT_ONCE", 1)
    monkeypatch.setattr(limits, "COMPACTION_ROWS_AT_ONCE", 5)
    monkeypatch.setattr(limits, "COMPACTION_DIRTY_SHARE", 10**6)
    stream = Stream(replace(CONFIG, segment_bytes=20_000, max_bytes=limits.MERGED_SHARE * 3_000))
    for number in range(240):
        stream.append((b"%d" % (number % 40), b"%d" % number), (b"%d" % number, None), KEYLESS)
    stream.seal()
    tables: dict[bytes | None, bytes | None] = {row.key: row.value for row in stream.rows}
    passes = 0
    while stream.log.wants_cleaning(stream.now_us):
        task = stream.log.clean(stream.now_us)
        passes += isinstance(task, Survey)
        if task is not None:
            stream.log.cleaned(finished(task), stream.now_us)
        assert {row.key: row.value for row in stream.found} == tables
    assert passes > 3
    end = stream.log.view().segments[-2].base_offset
    keyed = [row.key for row in stream.found if row.key is not None and row.offset < end]
    assert len(keyed) == len(set(keyed))


@pytest.mark.parametrize("what", ["survey", "segment"])
def test_a_cut_and_another_config_end_a_pass(what: str) -> None:
    stream = Stream()
    stream.append((b"a", b"1"), times=40)
    stream.seal()
    task = stream.log.clean(stream.now_us)
    while isinstance(task, Cleaning):  # what is merged first
        stream.log.cleaned(finished(task), stream.now_us)
        task = stream.log.clean(stream.now_us)
    assert isinstance(task, Survey)
    if what == "segment":
        stream.log.cleaned(finished(task), stream.now_us)
        stream.log.configure(replace(CONFIG, compact=False))
        assert stream.log.clean(stream.now_us) is None
    else:
        run(stream.log, stream.log.truncate(5))
        stream.log.cleaned(finished(task), stream.now_us)
    assert stream.found == stream.rows[: stream.log.log_end]
    stream.log.configure(CONFIG)
    assert not stream.compact(), "not at once again"


def test_a_pass_that_has_noted_all_keys_it_can_is_followed_by_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though what is dirty then is less than half of the log."""
    monkeypatch.setattr(limits, "COMPACTION_KEYS_MAX", 60)
    monkeypatch.setattr("penstock.commitlog.cleaner.latest_by_key._ROWS_AT_ONCE", 1)
    stream = Stream(replace(CONFIG, segment_bytes=20_000, max_bytes=limits.MERGED_SHARE * 3_000))
    for number in range(80):
        stream.append((b"%d" % number, b"old"), KEYLESS)
    for number in range(80):
        stream.append((b"%d" % number, b"new"), KEYLESS)
    stream.seal()
    stream.compact()
    end = stream.log.view().segments[-2].base_offset
    keyed = [row.key for row in stream.found if row.key is not None and row.offset < end]
    assert len(keyed) == len(set(keyed))


def test_a_disk_that_takes_nothing_is_tried_again_later() -> None:
    vfs = FaultyVfs(MemoryVfs())
    stream = Stream(vfs=vfs)
    stream.append((b"a", b"1"), times=40)
    stream.seal()
    while isinstance(task := stream.log.clean(stream.now_us), Cleaning):
        stream.log.cleaned(finished(task), stream.now_us)
    assert task is not None
    stream.log.cleaned(finished(task), stream.now_us)
    task = stream.log.clean(stream.now_us)
    assert isinstance(task, Cleaning)
    finished(task)
    vfs.plan = lambda operation: FileFault(errno.ENOSPC) if operation.kind is FileOperationKind.RENAME else None
    with pytest.raises(OSError, match="No space"):
        stream.log.cleaned(task, stream.now_us)
    assert not stream.log.wants_cleaning(stream.now_us)
    assert stream.log.cleaning_due_us(stream.now_us) == stream.now_us + limits.COMPACTION_RETRY_MS * 1_000
    assert stream.log.state is LogState.WRITABLE
    assert stream.found == stream.rows


def test_damage_ends_a_pass_and_is_told() -> None:
    stream = Stream()
    stream.append((b"a", b"1"), (b"a", b"2"), times=40)
    stream.seal()
    while isinstance(task := stream.log.clean(stream.now_us), Cleaning):
        stream.log.cleaned(finished(task), stream.now_us)
    segment = stream.log.view().segments[0]
    file = stream.vfs.open(segment.path)
    file.write_at(segment.size_bytes - 1, bytes([file.read_at(segment.size_bytes - 1, 1)[0] ^ 1]))
    assert task is not None
    stream.log.cleaned(finished(task), stream.now_us)
    assert stream.log.state is LogState.READ_ONLY
    assert [one.file for one in stream.log.damage] == [segment.path]
    assert not stream.log.wants_cleaning(stream.now_us + 10**9)
