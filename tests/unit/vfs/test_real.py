"""What only a real folder can show."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from penstock.vfs.real import RealVfs


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
