"""The disk of a chaos run: what was synced is there after the power failed, and what was not is gone, or in part."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.vfs import real
from tests.chaos.unsynced import UnsyncedVfs, beside, power_fails, unsynced
from tests.extent import each_change


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def written(vfs: UnsyncedVfs, path: str, data: bytes) -> None:
    """A file that is on the disk, with its name."""
    file = vfs.open(path, create=True)
    file.write_at(0, data)
    file.sync()
    vfs.sync_dir(path.rpartition("/")[0])


def test_a_file_is_there_with_its_synced_bytes(root: Path) -> None:
    vfs = UnsyncedVfs(root)
    written(vfs, "a/b", b"synced")
    file = vfs.open("a/b")
    file.write_at(6, b" and more")
    file.write_at(0, b"S")
    file.write_at(2, b"N", b"C")
    file.truncate(4)
    assert files(root) == {"a/b": b"SyNC"}
    assert power_fails(root) == 4
    assert files(root) == {"a/b": b"synced"}
    assert power_fails(root) == 0
    assert files(root) == {"a/b": b"synced"}


def test_every_sync_is_noted(root: Path) -> None:
    """One by the kernel is not: what was acked after it would be undone."""
    assert UnsyncedVfs(root).open("a", create=True).sync_fileno() is None


def test_a_name_takes_a_sync_of_its_folder(root: Path) -> None:
    vfs = UnsyncedVfs(root)
    file = vfs.open("a/b/c", create=True)
    file.write_at(0, b"bytes")
    file.sync()
    power_fails(root)
    assert files(root) == {}
    assert not (root / "a").exists()


def test_moves_and_removals_are_undone(root: Path) -> None:
    vfs = UnsyncedVfs(root)
    for name in ("old", "new", "gone", "folder/inner"):
        written(vfs, name, name.encode())
    vfs.rename("old", "new")
    vfs.remove("gone")
    vfs.remove("folder")
    vfs.rename("new", "elsewhere/new")
    assert files(root) == {"elsewhere/new": b"old"}
    power_fails(root)
    assert files(root) == {"old": b"old", "new": b"new", "gone": b"gone", "folder/inner": b"folder/inner"}


def test_what_was_synced_under_one_name_is_there_under_another(root: Path) -> None:
    vfs = UnsyncedVfs(root)
    written(vfs, "lineage", b"1")
    file = vfs.open("lineage.new", create=True)
    file.write_at(0, b"12")
    file.sync()
    vfs.rename("lineage.new", "lineage")
    vfs.sync_dir("")
    file.write_at(2, b"3")
    power_fails(root)
    assert files(root) == {"lineage": b"12"}


def test_a_process_that_was_killed_leaves_its_notes_to_the_next(root: Path) -> None:
    written(UnsyncedVfs(root), "a", b"1")
    UnsyncedVfs(root).open("a").write_at(1, b"2")
    with (beside(root) / "notes").open("ab") as notes:
        notes.write(b'\n{"op": "write", "fi')  # killed while it noted something
    UnsyncedVfs(root).open("a").write_at(2, b"3")
    assert files(root) == {"a": b"123"}
    power_fails(root)
    assert files(root) == {"a": b"1"}


@each_change
def test_chance_leaves_the_first_of_what_was_not_synced(root: Path) -> None:
    found = set()
    for seed in range(60):
        place = root / str(seed)
        vfs = UnsyncedVfs(place)
        written(vfs, "a", b"0")
        for number in range(1, 4):
            vfs.open("a").write_at(number * 2 - 1, b"%d%d" % (number, number))
        power_fails(place, random.Random(seed))
        found.add(files(place)["a"])
    whole = b"0112233"
    assert found == {whole[:length] for length in range(1, 8)}, "also torn"


def test_it_tells_since_when_a_log_is_not_on_the_disk(root: Path) -> None:
    vfs = UnsyncedVfs(root)
    written(vfs, "streams/1-a/0/0.arrows", b"schema")
    assert unsynced(root, "streams/1-a/0") is None
    file = vfs.open("streams/1-a/0/0.arrows")
    file.write_at(6, b"batch")
    first = unsynced(root, "streams/1-a/0")
    file.write_at(11, b"batch")
    assert first is not None
    assert unsynced(root, "streams/1-a/0") == first
    assert unsynced(root, "streams/2-b/0") is None
    file.sync()
    assert unsynced(root, "streams/1-a/0") is None
    vfs.rename("streams/1-a/0/0.arrows", "streams/1-a/0/0.1.arrows")
    assert unsynced(root, "streams/1-a/0") is None, "its bytes are there, under one name or the other"
    vfs.open("streams/1-a/0/9.arrows", create=True)
    assert unsynced(root, "streams/1-a/0") is not None, "its name"


def test_it_tells_for_how_long_nothing_was_done_about_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(_file: real.RealFile) -> None:
        seen.append(unsynced(root, "streams/1-a/0"))

    vfs = UnsyncedVfs(root)
    written(vfs, "streams/1-a/0/0.arrows", b"schema")
    file = vfs.open("streams/1-a/0/0.arrows")
    file.write_at(6, b"batch")
    waiting = unsynced(root, "streams/1-a/0")
    assert waiting is not None
    assert waiting.syncing_since_s is None
    assert waiting.waited_s(waiting.since_s + 9.0) == pytest.approx(9.0)
    monkeypatch.setattr(real.RealFile, "sync", look)
    file.sync()
    (during,) = seen
    assert during is not None
    assert during.since_s == waiting.since_s
    assert during.syncing_since_s is not None
    assert 0.0 < during.waited_s(during.since_s + 9.0) == during.syncing_since_s - during.since_s < 9.0
    assert during.waited_s(during.since_s) == 0.0, "the power failed before"


def test_a_sync_that_a_killed_process_had_begun_is_under_way_no_more(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_file: real.RealFile) -> None:
        raise InterruptedError

    vfs = UnsyncedVfs(root)
    written(vfs, "streams/1-a/0/0.arrows", b"schema")
    file = vfs.open("streams/1-a/0/0.arrows")
    file.write_at(6, b"batch")
    monkeypatch.setattr(real.RealFile, "sync", killed)
    with pytest.raises(InterruptedError):
        file.sync()
    waiting = unsynced(root, "streams/1-a/0")
    assert waiting is not None
    assert waiting.syncing_since_s is not None
    monkeypatch.setattr("tests.chaos.unsynced._notes", {})  # another process
    UnsyncedVfs(root)
    assert unsynced(root, "streams/1-a/0") == waiting._replace(syncing_since_s=None)


def test_what_is_gone_for_good_gives_its_room_back(root: Path) -> None:
    vfs = UnsyncedVfs(root)
    for name in ("gone", "new", "old", "folder/inner"):
        written(vfs, name, name.encode())
    vfs.remove("gone")
    vfs.remove("folder")
    vfs.rename("old", "new")
    kept = beside(root) / "files"
    assert len(list(kept.iterdir())) == 4
    vfs.sync_dir("")
    assert [path.read_bytes() for path in kept.iterdir() if path.stat().st_nlink == 1] == [b"folder/inner"]
    assert list((beside(root) / "removed").iterdir()) == []
    assert power_fails(root) == 0
    assert files(root) == {"new": b"old"}
