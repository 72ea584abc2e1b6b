"""What a power loss leaves in memory's model of a disk."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.vfs.memory import SECTOR_BYTES, Keep, MemoryVfs


def content(vfs: MemoryVfs, path: str) -> bytes:
    file = vfs.open(path)
    return file.read_at(0, file.size())


def synced_file(vfs: MemoryVfs, path: str, data: bytes) -> None:
    file = vfs.open(path, create=True)
    file.write_at(0, data)
    file.sync()
    folder, _, _ = path.rpartition("/")
    vfs.sync_dir(folder)


def test_an_open_folder_syncs_its_names_and_no_others() -> None:
    disk = MemoryVfs()
    for path in ("f/old", "g/old"):
        disk.open(path, create=True).close()
    disk.sync_dir("f")
    disk.sync_dir("g")
    folder = disk.open_folder("f")
    for path in ("f/new", "g/new"):
        disk.open(path, create=True).close()
    folder.sync()
    assert list(disk.crash_clone().files()) == ["f/new", "f/old", "g/old"]


def test_unsynced_bytes_are_lost() -> None:
    vfs = MemoryVfs()
    synced_file(vfs, "f/file", b"synced")
    vfs.open("f/file").write_at(6, b" and more")
    assert content(vfs.crash_clone(), "f/file") == b"synced"
    assert content(vfs.crash_clone(Keep.ALL), "f/file") == b"synced and more"
    assert content(vfs, "f/file") == b"synced and more"


def test_an_overwritten_byte_comes_back() -> None:
    vfs = MemoryVfs()
    synced_file(vfs, "f/file", b"a" * 2000)
    file = vfs.open("f/file")
    file.write_at(600, b"b" * 100)
    file.truncate(650)
    file.truncate(1000)
    assert content(vfs.crash_clone(), "f/file") == b"a" * 2000


def test_what_a_failed_sync_was_to_write_is_written_by_no_later_one() -> None:
    vfs = MemoryVfs()
    synced_file(vfs, "f/file", b"a" * 1500)
    file = vfs.open("f/file")
    file.write_at(0, b"b")
    file.write_at(1500, b"b" * 600)
    vfs.fail_sync("f/file")
    file.write_at(2100, b"c" * 600)
    file.sync()
    assert content(vfs, "f/file") == b"b" + b"a" * 1499 + b"b" * 600 + b"c" * 600
    on_disk = content(vfs.crash_clone(), "f/file")
    assert on_disk == b"a" * 1500 + bytes(4 * SECTOR_BYTES - 1500) + b"b" * (2100 - 4 * SECTOR_BYTES) + b"c" * 600
    file.write_at(0, file.read_at(0, 2700))
    file.sync()
    assert content(vfs.crash_clone(), "f/file") == content(vfs, "f/file")


def test_a_failed_sync_gives_up_nothing_that_is_on_the_disk() -> None:
    vfs = MemoryVfs()
    synced_file(vfs, "f/file", b"a" * 1500)
    vfs.fail_sync("f/file")
    vfs.open("f/file").sync()
    assert content(vfs.crash_clone(), "f/file") == b"a" * 1500


def test_synced_bytes_without_a_synced_name_are_lost() -> None:
    vfs = MemoryVfs()
    vfs.open("f/file", create=True).sync()
    assert list(vfs.crash_clone().files()) == []
    assert list(vfs.crash_clone(Keep.ALL).files()) == ["f/file"]


def test_sync_dir_makes_the_way_up_to_the_root_durable() -> None:
    vfs = MemoryVfs()
    vfs.open("a/b/c/file", create=True).close()
    vfs.open("a/b/other/file", create=True).close()
    vfs.sync_dir("a/b/c")
    assert list(vfs.crash_clone().files()) == ["a/b/c/file"]


def test_a_removed_name_comes_back_until_it_is_synced() -> None:
    vfs = MemoryVfs()
    synced_file(vfs, "f/file", b"x")
    vfs.remove("f/file")
    assert content(vfs.crash_clone(), "f/file") == b"x"
    vfs.sync_dir("f")
    assert list(vfs.crash_clone().files()) == []


def test_a_rename_is_atomic_in_every_subset() -> None:
    vfs = MemoryVfs()
    synced_file(vfs, "f/old", b"x")
    vfs.rename("f/old", "f/new")
    seen = {tuple(vfs.crash_clone(Keep.SUBSET, Random(seed)).files()) for seed in range(50)}
    assert seen == {("f/old",), ("f/new",)}


def test_subsets_tear_and_reorder_unsynced_sectors() -> None:
    vfs = MemoryVfs()
    synced_file(vfs, "file", b"s" * SECTOR_BYTES)
    file = vfs.open("file")
    file.write_at(SECTOR_BYTES, b"1" * SECTOR_BYTES, b"2" * SECTOR_BYTES)
    seen = set()
    for seed in range(300):
        data = content(vfs.crash_clone(Keep.SUBSET, Random(seed)), "file")
        assert data[:SECTOR_BYTES] == b"s" * SECTOR_BYTES
        seen.add(tuple(data[n : n + 1] for n in range(SECTOR_BYTES, len(data), SECTOR_BYTES)))
    assert (b"\0", b"2") in seen, "the later sector without the earlier one"
    assert (b"1", b"2") in seen
    assert () in seen


def test_an_overwritten_sector_may_be_any_of_its_versions() -> None:
    vfs = MemoryVfs()
    synced_file(vfs, "file", b"0")
    file = vfs.open("file")
    for version in (b"1", b"2"):
        file.write_at(0, version)
    seen = {content(vfs.crash_clone(Keep.SUBSET, Random(seed)), "file") for seed in range(60)}
    assert seen == {b"0", b"1", b"2"}


@given(st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=1500), st.booleans()), max_size=12), st.integers())
def test_what_was_synced_and_not_touched_since_is_in_every_clone(
    writes: list[tuple[int, bytes, bool]], seed: int
) -> None:
    vfs = MemoryVfs()
    synced_file(vfs, "file", b"")
    file = vfs.open("file")
    safe: dict[int, int] = {}
    for position, data, sync in writes:
        file.write_at(position, data)
        touched = {n // SECTOR_BYTES for n in range(position, position + len(data))}
        safe = {place: byte for place, byte in safe.items() if place // SECTOR_BYTES not in touched}
        if sync:
            file.sync()
            safe = dict(enumerate(content(vfs, "file")))
    for clone in (vfs.crash_clone(), vfs.crash_clone(Keep.ALL), vfs.crash_clone(Keep.SUBSET, Random(seed))):
        data = content(clone, "file")
        assert all(data[place] == byte for place, byte in safe.items())
