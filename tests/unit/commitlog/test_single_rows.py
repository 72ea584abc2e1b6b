"""Look-ups of one row: what they read, and that they serve nothing that is damaged, hidden or of another log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.client.read.batches import one_message
from penstock.commitlog import FilterBudget, Log, LogConfig, LogView, SubjectQueries, rows_at
from penstock.commitlog.errors import LogCutError
from penstock.commitlog.files import files
from penstock.commitlog.subject_queries import identity_of
from penstock.commitlog.subjects import writing
from penstock.commitlog.subjects.summing import SubjectSum
from penstock.live.row_set import RowSet
from penstock.node.partition.log_queries import GetMessage
from penstock.vfs import Vfs
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind
from penstock.vfs.memory import MemoryVfs
from penstock.vfs.page_cache import ColdError
from penstock.vfs.real import RealVfs
from tests.damage import flip
from tests.logs import clean_all, encrypted_logs, open_log, run, save
from tests.subjects import append_on, rows_on

PER_BATCH = 1_500
ROW_BYTES = 256
BATCH_BYTES = PER_BATCH * ROW_BYTES
CONFIG = LogConfig(segment_bytes=4 * BATCH_BYTES)


class Looked:
    """A log with large batches, each row on a subject of its own, whose reads are counted."""

    def __init__(self, batches: int = 6, config: LogConfig = CONFIG) -> None:
        self.read_bytes = 0
        self.disk = MemoryVfs()
        self.log = filled(FaultyVfs(self.disk, self._count), batches, config)

    def _count(self, operation: FileOperation) -> FileFault | None:
        if operation.kind is FileOperationKind.READ:
            self.read_bytes += operation.length
        return None

    def index(self) -> None:
        view = self.log.view()
        SubjectQueries(view, view.log_end).last("absent")

    def get(self, offset: int, hidden: RowSet | None = None) -> tuple[int, int]:
        """Return the offset that a look-up found, and the bytes read for it."""
        self.read_bytes = 0
        query = get(self.log.view().hiding(hidden), offset=offset)
        query.run()
        assert message_of(query) == (offset, f"s.{offset}")
        return query.found_offset, self.read_bytes

    def place(self, offset: int) -> tuple[str, int, int]:
        """Return the file, begin and end of the batch that holds an offset."""
        view = self.log.view()
        segment = view.segment_of(offset)
        extent = view.extent_in(segment.latest, offset)
        assert extent is not None
        return segment.latest.path, extent.position, extent.end_position


def filled(vfs: Vfs, batches: int, config: LogConfig = CONFIG, filters: FilterBudget | None = None) -> Log:
    log = open_log(vfs, config, filters=filters)
    log.start_epoch(1)
    for _ in range(batches):
        append_on(log, [f"s.{log.log_end + row}" for row in range(PER_BATCH)], ROW_BYTES)
    save(log)
    log.note_committed(log.log_end)
    return log


def get(view: LogView, *, offset: int | None = None, subject: str | None = None) -> GetMessage:
    return GetMessage(view, view.log_end, offset=offset, key=None, subject=subject, is_indexed=True)


def message_of(query: GetMessage) -> tuple[int, str]:
    found = one_message(query.data, query.found_offset, 0, source="test")
    assert found.value == b"." * ROW_BYTES
    return found.offset, found.subject


@pytest.fixture
def looked() -> Looked:
    log = Looked()
    log.index()
    return log


def test_of_a_large_batch_with_checksums_the_blocks_of_one_row_are_read(looked: Looked) -> None:
    for offset in (0, 1, PER_BATCH - 1, PER_BATCH, 2_000, looked.log.view().segments[1].base_offset - 1):
        assert looked.get(offset)[1] < BATCH_BYTES // 10


def test_a_batch_of_the_active_segment_is_read_as_a_whole_once() -> None:
    looked = Looked(2)
    assert len(looked.log.view().segments) == 1
    assert looked.get(77)[1] > BATCH_BYTES
    assert looked.get(78)[1] < BATCH_BYTES // 10
    assert looked.get(PER_BATCH)[1] > BATCH_BYTES
    append_on(looked.log, ["s.3000"], ROW_BYTES)
    assert looked.get(1_400)[1] < BATCH_BYTES // 10
    assert looked.get(3_000)[1] < BATCH_BYTES // 10  # it is small


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_damaged_row_is_reported_with_file_and_position_and_not_served(is_sealed: bool) -> None:
    looked = Looked(6 if is_sealed else 2)
    if is_sealed:
        looked.index()
    assert looked.get(700)
    path, begin, end = looked.place(700)
    for position in range(begin + 800, end, limits.SUM_BLOCK_BYTES // 2):
        flip(looked.disk, path, position)
    with pytest.raises(RemoteError) as caught:
        looked.get(700)
    assert caught.value.code == ErrorCode.CORRUPT_RANGE
    assert (caught.value.details["file"], caught.value.details["position"]) == (path, begin)
    assert looked.get(PER_BATCH + 700)  # another batch


def test_damage_elsewhere_in_the_batch_does_not_concern_the_row(looked: Looked) -> None:
    path, begin, _ = looked.place(700)
    flip(looked.disk, path, begin + BATCH_BYTES - 1_000)
    assert looked.get(700)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_hidden_rows_are_not_found(is_sealed: bool) -> None:
    looked = Looked(6 if is_sealed else 2)
    if is_sealed:
        looked.index()
    hidden = RowSet.of([700, 701])
    for _ in range(2):  # the second time by blocks
        assert looked.get(699, hidden)
        with pytest.raises(RemoteError) as caught:
            looked.get(700, hidden)
        assert caught.value.code == ErrorCode.MESSAGE_NOT_FOUND
        assert caught.value.details["deleted_end"] == 702


def test_what_another_log_has_put_in_the_place_of_a_batch_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PICKED_BATCH_BYTES", 1)
    log = filled(MemoryVfs(), 1)
    append_on(log, ["old.1", "old.2"])
    for _ in range(2):
        query = get(log.view(), offset=PER_BATCH + 1)
        query.run()
        assert one_message(query.data, PER_BATCH + 1, 0, source="test").subject == "old.2"
    run(log, log.truncate(Offset(PER_BATCH)))
    append_on(log, ["new.1", "new.2"])
    for _ in range(2):
        query = get(log.view(), offset=PER_BATCH + 1)
        query.run()
        assert one_message(query.data, PER_BATCH + 1, 0, source="test").subject == "new.2"


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_row_of_a_log_that_is_being_cut_is_not_served(is_sealed: bool) -> None:
    looked = Looked(6 if is_sealed else 2)
    if is_sealed:
        looked.index()
    assert looked.get(700)
    query = get(looked.log.view(), offset=700)
    looked.log.truncate(Offset(100))
    with pytest.raises(LogCutError):
        query.run()


@pytest.mark.parametrize("compression", [Compression.ZSTD, Compression.LZ4])
def test_compressed_batches_are_read_as_a_whole(compression: Compression) -> None:
    looked = Looked(config=LogConfig(segment_bytes=4 * BATCH_BYTES, compression=compression))
    clean_all(looked.log)
    looked.index()
    for _ in range(2):
        assert looked.get(700)
        assert not looked.log.view().segments[0].latest.subjects.batches


def test_so_many_batches_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_BATCHES_MAX", 1)
    looked = Looked(2)
    assert looked.get(700)
    assert looked.get(PER_BATCH)
    assert looked.get(PER_BATCH)[1] > BATCH_BYTES
    assert looked.get(701)[1] < BATCH_BYTES // 10


def test_batches_of_a_segment_with_checksums_are_not_remembered() -> None:
    looked = Looked()
    assert looked.get(700)
    segment = looked.log.view().segments[0].latest
    assert segment.subjects.batches
    looked.index()
    assert looked.get(700)
    assert not segment.subjects.batches


def test_an_index_that_names_the_row_of_another_subject_is_not_believed(looked: Looked) -> None:
    view = looked.log.view()
    segment = view.segments[0]
    total = SubjectSum()
    total.add(rows_on(["s.5", "s.4", "s.3"], 3))
    for _ in writing.write(looked.disk.open(files.subjects_path(segment.path)), total, identity_of(view, segment)):
        pass
    segment.subjects.forget_index()
    query = get(looked.log.view(), subject="s.5")
    query.run()
    assert message_of(query) == (5, "s.5")


# On the event loop.


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Log]:
    log = filled(RealVfs(tmp_path), 6)
    view = log.view()
    probe = view.vfs.cached(reads_max=4, bytes_max=100)
    assert probe is not None
    try:
        probe.open(view.segments[0].path, read_only=True).read_at(0, 8)
    except ColdError:
        pytest.skip("this file system does not say what the page cache has")
    yield log
    log.close()


def test_what_is_cached_is_looked_up_without_a_disk_thread(real: Log) -> None:
    last = real.log_end - 1
    assert not get(real.view(), subject="s.7").run_if_cached()  # the index is to be made
    for subject in ("s.7", f"s.{last}"):
        get(real.view(), subject=subject).run()
        query = get(real.view(), subject=subject)
        assert query.run_if_cached()
        assert message_of(query) == (int(subject[2:]), subject)
        assert query.looked_bytes
    with pytest.raises(RemoteError, match="no message with that subject"):
        get(real.view(), subject="absent").run_if_cached()
    with pytest.raises(RemoteError, match="is not there"):
        get(real.view(), offset=last + 1).run_if_cached()
    with pytest.raises(RemoteError, match="was deleted"):
        get(real.view().hiding(RowSet.of([7])), offset=7).run_if_cached()


def test_rows_are_not_summed_up_on_the_event_loop(real: Log) -> None:
    get(real.view(), subject="s.7").run()
    append_on(real, ["s.new"], ROW_BYTES)
    assert not get(real.view(), subject="s.new").run_if_cached()
    get(real.view(), subject="s.7").run()
    query = get(real.view(), subject="s.new")
    assert query.run_if_cached()
    assert message_of(query) == (real.log_end - 1, "s.new")


def test_few_filters_are_read_on_the_event_loop(real: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real.close()
    log = open_log(RealVfs(tmp_path), CONFIG, filters=FilterBudget(0))
    sealed = len(log.view().segments) - 1
    assert sealed
    for most, is_cached in ((sealed, True), (sealed - 1, False)):
        monkeypatch.setattr(limits, "CACHED_SEGMENTS_MAX", most)
        get(log.view(), subject="s.7").run()
        assert get(log.view(), subject="s.7").run_if_cached() is is_cached
        assert get(log.view(), offset=7).run_if_cached()  # is in one segment
    log.close()


def test_many_kept_filters_are_asked_by_a_disk_thread(real: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    get(real.view(), subject="s.7").run()
    for most, is_cached in ((len(real.view().segments), True), (len(real.view().segments) - 1, False)):
        monkeypatch.setattr(limits, "CACHED_FILTERS_MAX", most)
        assert get(real.view(), subject="s.7").run_if_cached() is is_cached


def test_a_batch_is_not_unpacked_on_the_event_loop(tmp_path: Path) -> None:
    log = filled(RealVfs(tmp_path), 6, LogConfig(segment_bytes=4 * BATCH_BYTES, compression=Compression.ZSTD))
    clean_all(log)
    for which in ({"offset": 7}, {"subject": "s.7"}):
        get(log.view(), **which).run()
        query = get(log.view(), **which)
        assert not query.run_if_cached()
        query.run()
        assert message_of(query) == (7, "s.7")
    log.close()


def test_damage_is_left_to_a_disk_thread(real: Log, tmp_path: Path) -> None:
    get(real.view(), subject="s.7").run()
    path = tmp_path / real.view().segments[0].path
    data = bytearray(path.read_bytes())
    for position in range(2_000, BATCH_BYTES, 1_000):
        data[position] ^= 1
    path.write_bytes(data)
    assert not get(real.view(), offset=7).run_if_cached()
    with pytest.raises(RemoteError) as caught:
        get(real.view(), offset=7).run()
    assert caught.value.code == ErrorCode.CORRUPT_RANGE


def test_memory_and_encrypted_files_are_left_to_a_disk_thread(tmp_path: Path) -> None:
    assert not get(filled(MemoryVfs(), 1).view(), offset=7).run_if_cached()
    with encrypted_logs():
        log = filled(RealVfs(tmp_path), 6)
        get(log.view(), subject="s.7").run()
        query = get(log.view(), subject="s.7")
        assert not query.run_if_cached()
        query.run()
        assert message_of(query) == (7, "s.7")
        log.close()


def test_rows_are_read_as_far_as_they_are_asked_for() -> None:
    """An answer holds few large messages, and a request may name many subjects."""
    log = open_log(MemoryVfs(), LogConfig(segment_bytes=2**20))
    log.start_epoch(1)
    for number in range(8):
        append_on(log, [f"s.{number}"], limits.PICKED_BATCH_BYTES // 4)
    read: list[int] = []
    rows = rows_at(log.view(), range(8), read.append)
    assert [found.row.offset for found in (next(rows), next(rows)) if found is not None] == [0, 1]
    assert len(read) == 2
    assert [found.row.offset for found in rows if found is not None] == [*range(2, 8)]
