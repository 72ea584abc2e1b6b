"""What every file system promises, on a real folder and in memory alike."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.vfs import Vfs
from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.faulty import FaultyVfs
from penstock.vfs.memory import MemoryVfs
from penstock.vfs.real import RealVfs
from tests.encryption import encryption_keys


@pytest.fixture(params=["real", "memory", "faulty", "encrypted"])
def vfs(request: pytest.FixtureRequest, tmp_path: Path) -> Vfs:
    if request.param == "real":
        return RealVfs(tmp_path / "a" / "root")
    if request.param == "encrypted":
        return EncryptedVfs(RealVfs(tmp_path / "a" / "root"), encryption_keys(), lambda _path: True)
    return MemoryVfs() if request.param == "memory" else FaultyVfs(MemoryVfs())


def test_writes_and_reads_at_positions(vfs: Vfs) -> None:
    file = vfs.open("folder/file", create=True)
    file.write_at(0, b"abc", bytearray(b"def"), memoryview(b"ghi"))
    file.write_at(2, b"XY")
    assert file.read_at(0, 100) == b"abXYefghi"
    assert file.read_at(3, 2) == b"Ye"
    assert file.read_at(9, 5) == b""
    assert file.size() == 9
    assert file.path == "folder/file"
    file.close()
    file.close()


@pytest.mark.parametrize(("position", "length"), [(0, -1), (-1, 1), (5, -2)])
def test_a_read_of_less_than_nothing_is_refused_as_the_kernel_refuses_it(vfs: Vfs, position: int, length: int) -> None:
    file = vfs.open("file", create=True)
    file.write_at(0, b"abcdef")
    with pytest.raises(OSError, match="Invalid argument"):
        file.read_at(position, length)
    file.close()


def test_a_write_behind_the_end_leaves_zeros(vfs: Vfs) -> None:
    file = vfs.open("file", create=True)
    file.write_at(3, b"x")
    assert file.read_at(0, 10) == b"\0\0\0x"
    file.close()


def test_truncate_cuts_and_extends(vfs: Vfs) -> None:
    file = vfs.open("file", create=True)
    file.write_at(0, b"abcdef")
    file.truncate(2)
    file.truncate(4)
    assert file.read_at(0, 10) == b"ab\0\0"
    file.close()


def test_more_buffers_than_one_system_call_takes(vfs: Vfs) -> None:
    file = vfs.open("file", create=True)
    file.write_at(0, *[b"%04d" % n for n in range(3000)])
    assert file.size() == 12_000
    assert file.read_at(4 * 2999, 4) == b"2999"
    file.close()


def test_a_missing_file_is_an_error_unless_it_is_created(vfs: Vfs) -> None:
    with pytest.raises(FileNotFoundError):
        vfs.open("nothing")
    with pytest.raises(FileNotFoundError):
        vfs.open("no/folder/file", read_only=True)
    assert vfs.list("no") == []


@pytest.mark.parametrize("read_only", [True, False])
def test_a_folder_is_not_opened_as_a_file(vfs: Vfs, read_only: bool) -> None:
    vfs.open("folder/file", create=True).close()
    with pytest.raises(IsADirectoryError):
        vfs.open("folder", read_only=read_only)


def test_read_only_files_refuse_writes(vfs: Vfs) -> None:
    vfs.open("file", create=True).close()
    file = vfs.open("file", read_only=True)
    with pytest.raises(OSError, match=r"descriptor|reading"):
        file.write_at(0, b"x")
    assert file.size() == 0
    file.close()


def test_lists_names_sorted_with_folders_marked(vfs: Vfs) -> None:
    for path in ("f/b", "f/a", "f/c/d"):
        vfs.open(path, create=True).close()
    assert list(vfs.list("f")) == ["a", "b", "c/"]
    assert list(vfs.list("")) == ["f/"]


def test_rename_replaces_and_moves_folders(vfs: Vfs) -> None:
    for path, data in (("f/old", b"old"), ("f/new", b"new")):
        file = vfs.open(path, create=True)
        file.write_at(0, data)
        file.close()
    vfs.rename("f/old", "f/new")
    vfs.rename("f", "deep/er/g")
    file = vfs.open("deep/er/g/new")
    assert file.read_at(0, 9) == b"old"
    file.close()
    assert vfs.list("f") == []
    with pytest.raises(FileNotFoundError):
        vfs.rename("f", "h")


def test_removed_files_can_still_be_read_by_those_who_have_them_open(vfs: Vfs) -> None:
    file = vfs.open("f/file", create=True)
    file.write_at(0, b"still here")
    vfs.remove("f/file")
    vfs.remove("f/file")
    vfs.remove("nowhere/at/all")
    assert vfs.list("f") == []
    assert file.read_at(0, 20) == b"still here"
    file.close()
    vfs.open("f/deep/file", create=True).close()
    vfs.remove("f")
    assert vfs.list("") == []


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a//b", "./a", "a/./b", "nul\0"])
def test_paths_stay_within_the_root(vfs: Vfs, path: str) -> None:
    with pytest.raises(OSError, match=r"root"):
        vfs.open(path, create=True)


def test_a_file_knows_whether_its_path_still_leads_to_it(vfs: Vfs) -> None:
    file = vfs.open("f/g/file", create=True)
    assert file.has_its_name()
    vfs.rename("f/g/file", "f/g/other")
    assert not file.has_its_name()
    vfs.rename("f/g/other", "f/g/file")
    assert file.has_its_name()
    vfs.rename("f", "moved")
    assert not file.has_its_name(), "a folder above it was moved"
    vfs.rename("moved", "f")
    vfs.remove("f/g/file")
    vfs.open("f/g/file", create=True).close()
    assert not file.has_its_name(), "another file is there"
    vfs.remove("f")
    vfs.open("f", create=True).close()
    assert not file.has_its_name(), "a file is where its folder was"
    file.close()


def test_a_file_can_be_created_without_its_folders(vfs: Vfs) -> None:
    with pytest.raises(FileNotFoundError):
        vfs.open("f/g/file", create=True, make_folders=False)
    assert vfs.list("") == []
    vfs.open("f/g/file", create=True).close()
    vfs.open("f/g/other", create=True, make_folders=False).close()
    assert list(vfs.list("f/g")) == ["file", "other"]


def test_an_open_folder_is_synced_without_opening_anything(vfs: Vfs) -> None:
    vfs.open("f/g/file", create=True).close()
    folder = vfs.open_folder("f/g")
    folder.sync()
    folder.close()
    folder.close()
    with pytest.raises(FileNotFoundError):
        vfs.open_folder("missing")


def test_syncs_files_and_folders(vfs: Vfs) -> None:
    file = vfs.open("f/g/file", create=True)
    file.write_at(0, b"x")
    file.sync()
    file.close()
    vfs.sync_dir("f/g")
    vfs.sync_dir("")
    with pytest.raises(FileNotFoundError):
        vfs.sync_dir("missing")


def test_only_real_files_have_a_descriptor(tmp_path: Path) -> None:
    file = RealVfs(tmp_path).open("file", create=True)
    descriptor = file.fileno()
    assert descriptor is not None
    assert not os.get_inheritable(descriptor)
    file.close()
    assert MemoryVfs().open("file", create=True).fileno() is None
