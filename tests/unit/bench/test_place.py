"""Where logs lie: on a disk with room, and not for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import OperationalError
from penstock.bench.machine import MEMORY_FILE_SYSTEMS, file_system
from penstock.bench.place import folder_on_disk, place


def test_a_folder_of_its_own_that_is_gone_afterwards(tmp_path: Path) -> None:
    with place(tmp_path / "made", bytes_needed=1) as folder:
        assert folder.parent == tmp_path / "made"
        (folder / "log").write_bytes(b"1")
    assert list((tmp_path / "made").iterdir()) == []


def test_without_room_nothing_begins(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match="--dir"), place(tmp_path, bytes_needed=2**60):
        pytest.fail("there cannot be so much room")


@pytest.mark.skipif(file_system(Path("/var/tmp")) in MEMORY_FILE_SYSTEMS, reason="this machine has no disk there")
def test_a_folder_in_memory_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    if file_system(Path("/dev/shm")) not in MEMORY_FILE_SYSTEMS:
        pytest.skip("this machine has no file system in memory")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/dev/shm")
    assert file_system(folder_on_disk()) not in MEMORY_FILE_SYSTEMS
