"""What only a real folder can show."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.vfs import Vfs, real
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperationKind, nth
from penstock.vfs.real import RealFile, RealVfs, read_whole, sync_folder, sync_folder_if_possible
from penstock.vfs.synced_mark import SyncedMark
from penstock.vfs.unkeyed import UnkeyedVfs
from tests.folders import as_nfs_keeps, without_folders


def test_the_root_is_made_with_all_its_parents(tmp_path: Path) -> None:
    RealVfs(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_the_root_is_never_removed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        RealVfs(tmp_path).remove("")


def test_a_write_that_the_kernel_takes_in_pieces_is_continued(tmp_path: Path) -> None:
    """The kernel may take a part of a large write, on any file; here it is said to have taken 1,000 bytes."""
    vfs = RealVfs(tmp_path)
    file = vfs.open("file", create=True)
    parts: list[bytes] = [b"a" * 70_000, b"b" * 70_000, b"c"]
    assert os.pwrite(file.fileno() or -1, parts[0][:1000], 0) == 1000
    file._continue_write(0, 1000, b"".join(parts))
    assert file.size() == 140_001
    assert file.read_at(140_000, 5) == b"c"
    file.close()


class UnreadableFile(RealFile):
    """A file of a disk that cannot read it."""

    __slots__ = ()

    def read_at(self, position: int, length: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error", self.path)


class UnreadableVfs(UnkeyedVfs):
    file_type = UnreadableFile


@pytest.mark.parametrize(
    ("disk", "opened"),
    [
        (lambda root: FaultyVfs(RealVfs(root), nth(0, FileFault(errno.EIO), FileOperationKind.READ)), SyncedMark),
        (UnreadableVfs, lambda vfs, path: vfs.open(path)),
    ],
)
def test_what_cannot_be_read_as_it_is_opened_does_not_stay_open(
    tmp_path: Path, disk: Callable[[Path], Vfs], opened: Callable[[Vfs, str], object]
) -> None:
    (tmp_path / "file").write_bytes(bytes(512))
    vfs, before = disk(tmp_path), len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Input/output error") as failed:  # it holds the frames, and what they have open
        opened(vfs, "file")
    assert len(os.listdir("/proc/self/fd")) == before, failed


def test_names_need_not_be_ascii(tmp_path: Path) -> None:
    vfs = RealVfs(tmp_path)
    vfs.open("größe/π", create=True).close()
    assert vfs.list("größe") == ["π"]


def test_reads_go_on_in_other_threads_while_one_writes(tmp_path: Path) -> None:
    vfs = RealVfs(tmp_path)
    file = vfs.open("file", create=True)
    mistakes: list[bytes] = []

    def read() -> None:
        for _ in range(200):
            data = file.read_at(0, 1 << 20)
            if data != b"x" * len(data):
                mistakes.append(data)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(500):
        file.write_at(number * 100, b"x" * 100)
    for thread in threads:
        thread.join()
    assert not mistakes
    file.close()


def _fifo(place: Path) -> None:
    os.mkfifo(place)


def _socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))


def _device(place: Path) -> None:
    place.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("make", "name"),
    [(_fifo, "a FIFO"), (_socket, "a socket"), (_device, "a device")],
    ids=["fifo", "socket", "device"],
)
@pytest.mark.parametrize("read_only", [True, False])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], name: str, read_only: bool
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    make(Path("file"))
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(OSError, match=f"not a regular file, but {name}") as caught:
        RealVfs(tmp_path).open("file", read_only=read_only)
    assert (caught.value.errno, caught.value.filename) == (errno.ENXIO, str(tmp_path / "file"))
    with pytest.raises(OSError, match=f"not a regular file, but {name}"):
        RealVfs(tmp_path).open("file", create=True)
    with pytest.raises(OSError, match=f"not a regular file, but {name}"):
        read_whole(tmp_path / "file", 100)
    assert len(os.listdir("/dev/fd")) == before


def test_reads_and_writes_of_a_regular_file_wait_as_ever(tmp_path: Path) -> None:
    file = RealVfs(tmp_path).open("file", create=True)
    descriptor = file.fileno()
    assert descriptor is not None
    assert os.get_blocking(descriptor)
    file.close()


def test_a_name_that_leads_to_itself_is_listed(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing")
    vfs = RealVfs(tmp_path)
    assert vfs.list("") == ["loop", "nowhere"]
    with pytest.raises(OSError, match="symbolic links"):
        vfs.open("loop", read_only=True)


def test_a_small_file_is_read_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert read_whole(tmp_path / "file", 100) == b"x" * 100
    with pytest.raises(OSError, match="100 bytes, more than the 99 that such a file may have"):
        read_whole(tmp_path / "file", 99)
    with pytest.raises(IsADirectoryError):
        read_whole(tmp_path, 99)
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "none", 99)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_where_folders_cannot_be_synced_data_is_refused_and_a_users_own_files_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    vfs = RealVfs(tmp_path)
    monkeypatch.setattr(os, "fsync", without_folders(number))
    sync_folder_if_possible(tmp_path)
    for sync in (lambda: sync_folder(tmp_path), lambda: vfs.sync_dir(""), lambda: vfs.open_folder("").sync()):
        with pytest.raises(OSError, match=f"its file system cannot sync folders.*{tmp_path}"):
            sync()
    monkeypatch.setattr(os, "fsync", without_folders(errno.EIO))
    for fails in (sync_folder, sync_folder_if_possible):
        with pytest.raises(OSError, match=f"Input/output error: '{tmp_path}'"):
            fails(tmp_path)


def test_a_folder_goes_but_for_what_nfs_keeps_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vfs = RealVfs(tmp_path)
    for name in ("s/0/open", "s/0/closed", "s/1/closed", "s/2/deeper/closed"):
        vfs.open(name, create=True).close()
    kept = as_nfs_keeps(tmp_path / "s" / "0" / "open", monkeypatch)
    vfs.remove("s")
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == [kept]
    vfs.remove("s")  # as a later start does
    monkeypatch.undo()
    vfs.remove("s")  # once it is closed
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_and_is_not_kept_by_nfs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vfs = RealVfs(tmp_path)
    vfs.open("s/0/open", create=True).close()
    as_nfs_keeps(tmp_path / "s" / "0" / "open", monkeypatch)
    real = os.unlink

    def unlink(path: str, *, dir_fd: int | None = None) -> None:
        if path == "busy":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink)
    vfs.open("s/1/busy", create=True).close()
    with pytest.raises(OSError, match="busy"):
        vfs.remove("s")


def test_the_parents_of_a_folder_are_synced_only_once_until_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a removed or renamed folder, and of one that another process has made again, the new name may be lost."""
    vfs, synced = RealVfs(tmp_path), []
    real_fsync = os.fsync

    def counted(descriptor: int) -> None:
        here = os.fstat(descriptor)
        folders = [tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())]
        (folder,) = (path for path in folders if os.path.samestat(path.stat(), here))
        synced.append(str(folder).removeprefix(str(tmp_path)))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)

    def synced_for(path: str) -> list[str]:
        synced.clear()
        vfs.sync_dir(path)
        return sorted(synced)

    everything = ["", "/a", "/a/b", "/a/b/c"]
    vfs.open("a/b/c/file", create=True).close()
    assert synced_for("a/b/c") == everything
    assert synced_for("a/b/c") == ["/a/b/c"]
    assert synced_for("a") == ["/a"]
    vfs.open("a/b/d/file", create=True).close()
    assert synced_for("a/b/d") == ["/a/b", "/a/b/d"]
    vfs.remove("a/b")
    vfs.open("a/b/c/file", create=True).close()
    assert synced_for("a/b/c") == ["/a", "/a/b", "/a/b/c"]
    vfs.rename("a/b", "a/e")
    assert synced_for("a/e/c") == ["/a", "/a/e", "/a/e/c"]
    (tmp_path / "a" / "e").rename(tmp_path / "old")
    vfs.open("a/e/c/file", create=True).close()
    assert synced_for("a/e/c") == ["/a", "/a/e", "/a/e/c"]


def test_what_is_known_of_folders_ends_with_them_also_after_others_were_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system gives a new folder the inode of one that was removed: then only the removal tells."""
    vfs, synced = RealVfs(tmp_path), []
    monkeypatch.setattr(real, "LASTING_FOLDERS_MAX", 2)
    monkeypatch.setattr(real.RealFolder, "identity", (1, 1))
    for path in ("a/b", "a/b/c"):
        vfs.open(f"{path}/file", create=True).close()
        vfs.sync_dir(path)  # the second time all that is known was forgotten
    vfs.remove("a")
    vfs.open("a/b/c/file", create=True).close()
    monkeypatch.setattr(real.RealFolder, "sync", lambda folder: synced.append(folder._full))
    vfs.sync_dir("a/b/c")
    assert sorted(name.removeprefix(str(tmp_path)) for name in synced) == ["", "/a", "/a/b", "/a/b/c"]


def test_syncs_that_run_together_all_run_and_one_that_fails_is_told(tmp_path: Path) -> None:
    vfs, ran = RealVfs(tmp_path), []

    def fails() -> None:
        raise OSError(errno.EIO, "it cannot be synced")

    with pytest.raises(OSError, match="it cannot be synced"):
        vfs.together(lambda: ran.append(1), fails, lambda: ran.append(2))
    assert sorted(ran) == [1, 2]
