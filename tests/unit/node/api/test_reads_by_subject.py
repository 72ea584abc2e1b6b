"""Fetches of some subjects read only what the subject indexes leave possible: the bytes that they read are counted."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from penstock.base import limits
from penstock.base.ids import Offset, StreamId
from penstock.commitlog import Log, LogConfig, SubjectQueries
from penstock.messages import FetchRequest
from penstock.node.api.projections import Project
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind
from penstock.vfs.memory import MemoryVfs
from tests.damage import flip
from tests.logs import DIRECTORY, open_log, save
from tests.subjects import append_on

ROWS = 20_000
SEGMENT_BYTES = 1_000_000


class Counted:
    """A log whose reads are counted: `rows` on the subjects that `subject_of` names, in batches of `per_batch`."""

    def __init__(self, subjects: Sequence[str], per_batch: int, size_bytes: int = 256, *, is_indexed: bool = True):
        self.read_bytes = 0
        self.disk = MemoryVfs()
        self.vfs = FaultyVfs(self.disk, self._count)
        self.log: Log = open_log(self.vfs, LogConfig(segment_bytes=SEGMENT_BYTES))
        self.log.start_epoch(1)
        for first in range(0, len(subjects), per_batch):
            append_on(self.log, subjects[first : first + per_batch], size_bytes)
        save(self.log)
        self.log.note_committed(self.log.log_end)
        view = self.log.view()
        self.end = view.segments[-1].base_offset  # of what is sealed
        self.sealed_bytes = sum(one.size_bytes for one in view.segments[:-1])
        if is_indexed:
            SubjectQueries(view, view.log_end).last("absent")  # makes the indexes

    def _count(self, operation: FileOperation) -> FileFault | None:
        if operation.kind is FileOperationKind.READ:
            self.read_bytes += operation.length
        return None

    def read(self, *patterns: str) -> tuple[list[int], float]:
        """Return the offsets of all matching rows in sealed segments, and the share of the bytes read for that."""
        self.read_bytes = offset = 0
        found: list[int] = []
        while offset < self.end:
            view = self.log.view()
            request = FetchRequest(
                stream_id=StreamId(7), offset=Offset(offset), subjects=patterns, end=Offset(self.end)
            )
            query = Project(view, self.vfs, view.log_end, request, is_indexed=True)
            query.run()
            assert query.end_offset > offset
            if query.raw:
                found += pa.ipc.open_stream(query.raw).read_all().column("offset").to_pylist()
            offset = query.end_offset
        return found, self.read_bytes / self.sealed_bytes

    def segment_paths(self) -> list[str]:
        return [one.path for one in self.log.view().segments[:-1]]


def on_own(rows: int = ROWS) -> list[str]:
    """Each row on a subject of its own, those of a group of ten far from each other."""
    return [f"u.{number % (rows // 10)}.{number}" for number in range(rows)]


def test_a_filter_that_matches_few_rows_reads_few_bytes() -> None:
    log = Counted(on_own(), 50)
    found, share = log.read("u.77.*")
    assert found == list(range(77, log.end, ROWS // 10))
    assert share <= 0.06  # of each ten batches in a thousand and an index of small segments
    assert log.read("u.no.*")[1] <= 0.01
    assert log.read("absent")[1] <= 0.001


def test_segments_without_a_match_are_not_read() -> None:
    subjects = [f"often.{number % 7}" for number in range(ROWS)]
    subjects[5_000] = subjects[5_100] = "rare"
    log = Counted(subjects, 50)
    found, share = log.read("rare")
    assert found == [5_000, 5_100]
    assert share <= 0.02
    found, share = log.read("often.3", "rare")
    assert len(found) == sum(one in ("often.3", "rare") for one in subjects[: log.end])


def test_without_an_index_all_is_read() -> None:
    log = Counted(on_own(2_000 * 4), 50, is_indexed=False)
    found, share = log.read("u.77.*")
    assert found == list(range(77, log.end, 800))
    assert share > 0.9


@pytest.mark.parametrize("harm", ["lost", "damaged"])
def test_a_lost_or_damaged_index_costs_reading_its_segment(harm: str) -> None:
    log = Counted(on_own(), 50)
    path = log.segment_paths()[1].replace(".arrows", ".subjects")
    assert log.disk.list(DIRECTORY).count(path.rpartition("/")[2]) == 1
    if harm == "lost":
        log.disk.remove(path)
    else:
        for position in range(400, log.disk.open(path).size() - 200, 90):
            flip(log.disk, path, position)
    before = log.read("u.77.*")
    assert before[0] == list(range(77, log.end, ROWS // 10))
    assert 1 / (len(log.segment_paths()) + 1) < before[1] < 2.5 / len(log.segment_paths())


def test_a_fetch_looks_into_so_many_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SKIPPED_SEGMENTS_MAX", 2)
    log = Counted(on_own(), 50)
    view = log.log.view()
    request = FetchRequest(stream_id=StreamId(7), offset=Offset(0), subjects=("absent",))
    query = Project(view, log.vfs, view.log_end, request, is_indexed=True)
    query.run()
    assert (query.end_offset, query.last_epoch, query.raw) == (view.segments[2].base_offset, None, b"")
    assert log.read("u.77.*")[0] == list(range(77, log.end, ROWS // 10))
