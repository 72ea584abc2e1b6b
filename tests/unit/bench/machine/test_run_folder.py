"""Where logs lie: on a disk with room, and not for long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.base.errors import OperationalError
from penstock_bench.machine.facts import MEMORY_FILE_SYSTEMS, file_system
from penstock_bench.machine.run_folder import LOCK_FILE, folder_on_disk, left_behind, place


def test_a_folder_of_its_own_that_is_gone_afterwards(tmp_path: Path) -> None:
    with place(tmp_path, bytes_needed=1) as folder:
        assert folder.parent == tmp_path
        (folder / "log").write_bytes(b"1")
    assert list(tmp_path.iterdir()) == []


def test_without_room_nothing_begins(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match=r"with --dir$"), place(tmp_path, bytes_needed=2**60):
        pytest.fail("there is no room")
    less = place(tmp_path, bytes_needed=2**60, or_else="give fewer --messages")
    with pytest.raises(OperationalError, match=r"--dir, or give fewer --messages$"), less:
        pytest.fail("there cannot be so much room")


def test_a_folder_is_left_behind_when_its_process_was_killed_and_not_before(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from penstock_bench.machine.run_folder import place\n"
    code += "with place(Path(sys.argv[1]), bytes_needed=1) as made: print(made, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        made = Path(process.stdout.readline().strip())
        assert (made / LOCK_FILE).read_text() == f"{process.pid}\n"
        assert left_behind(tmp_path) == []
        process.kill()
    assert left_behind(tmp_path) == [made]
    assert left_behind(tmp_path) == [made]  # looking changes nothing


def test_what_others_made_is_not_ours_to_name(tmp_path: Path) -> None:
    (tmp_path / "penstock-bench-without-a-lock").mkdir()
    (tmp_path / "something").mkdir()
    (tmp_path / "something" / LOCK_FILE).write_text("1\n")
    assert left_behind(tmp_path) == []


@pytest.mark.skipif(file_system(Path("/var/tmp")) in MEMORY_FILE_SYSTEMS, reason="this machine has no disk there")
def test_a_folder_in_memory_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    if file_system(Path("/dev/shm")) not in MEMORY_FILE_SYSTEMS:
        pytest.skip("this machine has no file system in memory")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/dev/shm")
    assert file_system(folder_on_disk()) not in MEMORY_FILE_SYSTEMS


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, OperationalError])
def test_the_removal_of_many_files_is_told(tmp_path: Path, error: type[BaseException] | None) -> None:
    said: list[str] = []

    def run() -> None:
        with place(tmp_path, bytes_needed=0, say=said.append) as folder:
            for number in range(1_000):
                (folder / f"{number}").touch()
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(error):
            run()
    assert len(said) == 1
    assert said[0].startswith("removing 1,001 files from ")
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_removed_is_named(tmp_path: Path) -> None:
    said: list[str] = []
    with place(tmp_path, bytes_needed=0, say=said.append, remove=lambda _: None) as folder:
        pass
    assert said == [f"not all could be removed: rm -r {folder}"]
