"""What is found in a log's folder and not understood is kept, whatever it is; what was written in part may go."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.base.errors import RemoteError
from penstock.batch.schema import schema_message
from penstock.commitlog import LogConfig, LogState
from penstock.commitlog.files.files import segment_path
from penstock.vfs.memory import MemoryVfs
from penstock.vfs.real import RealVfs
from tests.logs import DIRECTORY, PARTITION, STREAM_ID, Message, append, flush, make_batch, open_log, read_slices

WIDE = LogConfig(segment_bytes=100_000)
NOISE = Random(3).randbytes(5000)
FOREIGN = schema_message(STREAM_ID, PARTITION).replace(b"offset", b"OFFSET") + NOISE


def closed_log() -> tuple[MemoryVfs, list[Message]]:
    disk = MemoryVfs()
    log = open_log(disk, WIDE)
    wanted = append(log, 3) + append(log, 2)
    log.close()
    return disk, wanted


def content(disk: MemoryVfs, path: str) -> bytes:
    return disk.open(path).read_at(0, 10**7)


def kept(disk: MemoryVfs) -> list[bytes]:
    return [content(disk, path) for path in disk.files() if ".cut-" in path]


@pytest.mark.parametrize("base_offset", [500, 5])
@pytest.mark.parametrize(
    "data", [NOISE, FOREIGN, NOISE[:50], b"\0" * 600 + b"x", b"A"], ids=lambda data: str(len(data))
)
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_file_that_is_no_segment_is_kept(data: bytes, base_offset: int, has_checkpoint: bool) -> None:
    disk, wanted = closed_log()
    disk.open(segment_path(DIRECTORY, base_offset), create=True).write_at(0, data)
    if not has_checkpoint:
        disk.remove(f"{DIRECTORY}/checkpoint")
    log = open_log(disk, WIDE)
    assert log.state is LogState.WRITABLE
    assert kept(disk) == [data]
    assert [cut.kept_as for cut in log.cuts] == [path for path in disk.files() if ".cut-" in path]
    wanted += append(log, 1)
    log.close()
    assert read_slices(disk, open_log(disk, WIDE).view()) == wanted
    assert kept(disk) == [data]


@pytest.mark.parametrize("base_offset", [500, 5])
@pytest.mark.parametrize("data", [b"", bytes(3000), schema_message(STREAM_ID, PARTITION)[:300] + bytes(212)])
def test_a_file_with_nothing_in_it_goes(data: bytes, base_offset: int) -> None:
    disk, wanted = closed_log()
    disk.open(segment_path(DIRECTORY, base_offset), create=True).write_at(0, data)
    log = open_log(disk, WIDE)
    assert log.state is LogState.WRITABLE
    assert kept(disk) == []
    assert read_slices(disk, log.view()) == wanted


def test_an_empty_segment_behind_a_torn_one_goes() -> None:
    disk, _ = closed_log()
    disk.open(segment_path(DIRECTORY, 500), create=True).write_at(0, schema_message(STREAM_ID, PARTITION))
    assert open_log(disk, WIDE).state is LogState.WRITABLE
    assert kept(disk) == []


@pytest.mark.parametrize("noise", [NOISE, b"\0\0x", bytes(400) + NOISE[:200], make_batch(9, 1, 0)[0][:500]])
def test_bytes_at_the_tail_that_no_append_has_written_are_kept(noise: bytes) -> None:
    disk, wanted = closed_log()
    path = segment_path(DIRECTORY, 0)
    disk.open(path).write_at(disk.open(path).size(), noise)
    log = open_log(disk, WIDE)
    assert log.state is LogState.WRITABLE
    assert kept(disk) == [noise]
    assert read_slices(disk, log.view()) == wanted


@pytest.mark.parametrize("length", [1, 8, 200, 279, 280, 500, 800])
@pytest.mark.parametrize("zeros", [0, 300])
def test_an_append_that_was_written_in_part_goes(length: int, zeros: int) -> None:
    disk, wanted = closed_log()
    path = segment_path(DIRECTORY, 0)
    disk.open(path).write_at(disk.open(path).size(), make_batch(5, 1, 0)[0][:length] + bytes(zeros))
    log = open_log(disk, WIDE)
    assert (log.state, [cut.length_bytes for cut in log.cuts]) == (LogState.WRITABLE, [length + zeros])
    assert len(kept(disk)) <= (0 < length < 280 and zeros > 0), "a header that is cut may be anything"
    assert read_slices(disk, log.view()) == wanted


def test_noise_behind_an_append_that_was_written_in_part_is_kept_with_it() -> None:
    disk, wanted = closed_log()
    path = segment_path(DIRECTORY, 0)
    batch = bytearray(make_batch(5, 1, 0)[0])
    batch[-1] ^= 1
    batch[400] ^= 1
    disk.open(path).write_at(disk.open(path).size(), bytes(batch) + NOISE)
    log = open_log(disk, WIDE)
    assert kept(disk) == [bytes(batch) + NOISE]
    assert read_slices(disk, log.view()) == wanted


def test_a_file_in_the_way_of_a_new_segment_is_kept() -> None:
    disk = MemoryVfs()
    log = open_log(disk)
    wanted = append(log, 1, size_bytes=3000)
    disk.open(segment_path(DIRECTORY, 1), create=True).write_at(0, NOISE)
    wanted += append(log, 1, size_bytes=3000)
    flush(log)
    assert kept(disk) == [NOISE]
    assert read_slices(disk, open_log(disk.crash_clone()).view()) == wanted


# Segments that cannot be read.


def test_one_segment_that_cannot_be_opened_costs_its_own_range_only(tmp_path: Path) -> None:
    vfs = RealVfs(tmp_path)
    log = open_log(vfs)
    wanted: list[Message] = []
    while log.segment_count < 4:
        wanted += append(log, 2, size_bytes=900)
    log.close()
    bases = sorted(int(path.name[:20]) for path in (tmp_path / DIRECTORY).glob("*.arrows"))
    path = tmp_path / segment_path(DIRECTORY, bases[1])
    path.unlink()
    path.symlink_to("nowhere")
    again = open_log(vfs)
    assert again.state is LogState.READ_ONLY
    (damage,) = again.damage
    assert (damage.base_offset, damage.end_offset) == (bases[1], bases[2])
    assert "No such file" in damage.reason
    view = again.view()
    assert read_slices(vfs, view, 0, bases[1]) == wanted[: bases[1]]
    with pytest.raises(RemoteError, match="damaged"):
        view.slice(bases[1], end=view.log_end, bytes_max=1)
    assert read_slices(vfs, view, bases[2]) == wanted[bases[2] :]
    assert path.is_symlink()


@pytest.mark.parametrize("which", [0, -1], ids=["first", "active"])
def test_the_first_or_the_active_segment_may_be_the_one(tmp_path: Path, which: int) -> None:
    vfs = RealVfs(tmp_path)
    log = open_log(vfs)
    wanted: list[Message] = []
    while log.segment_count < 3:
        wanted += append(log, 2, size_bytes=900)
    log.close()
    bases = sorted(int(path.name[:20]) for path in (tmp_path / DIRECTORY).glob("*.arrows"))
    path = tmp_path / segment_path(DIRECTORY, bases[which])
    path.unlink()
    path.symlink_to("nowhere")
    again = open_log(vfs)
    assert (again.state, again.log_start, again.log_end) == (LogState.READ_ONLY, 0, len(wanted))
    (damage,) = again.damage
    assert damage.base_offset == bases[which]
    assert read_slices(vfs, again.view(), 0 if which else bases[1], None if which == 0 else bases[-1]) == (
        wanted[: bases[-1]] if which else wanted[bases[1] :]
    )
