"""A backup's folder may come from somebody else: nothing outside of it is touched, and no file of it is waited for."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import CorruptionError, OperationalError
from penstock.batch.codec import read_header
from penstock.messages import UserExport
from penstock.ops.backup.files import (
    BackupFile,
    FileWriter,
    Manifest,
    PartitionBackup,
    StreamBackup,
    check_file,
    private_file,
    private_folder,
    read_manifest,
)
from penstock.ops.backup.users import read_users, write_users
from tests.folders import without_folders
from tests.unit.client.read.test_reading import batch


def test_a_link_in_the_place_of_a_file_gives_way_and_what_it_names_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("keep")
    link = tmp_path / "manifest.part"
    link.symlink_to(other)
    with private_file(link) as out:
        out.write(b"new")
    assert other.read_text() == "keep"
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"


def test_a_link_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    other, backup = tmp_path / "other", tmp_path / "backup"
    other.mkdir()
    other.chmod(0o755)
    private_folder(backup)
    (backup / "users").symlink_to(other)
    with pytest.raises(OSError, match="users"):
        private_folder(backup, Path("users"))
    assert other.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder"])
def test_what_is_no_file_is_damage(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rows"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    file = BackupFile("rows", 0, 1, 1, 1_000, "0" * 64)
    with pytest.raises(CorruptionError):
        check_file(tmp_path, PartitionBackup(0), file)


def manifest(**partition: Any) -> dict[str, Any]:
    stream = {"name": "s", "stream_id": 2, "config": {"name": "s", "subject": "s"}}
    return {"format": 1, "streams": [{**stream, "partitions": [{"partition": 0, **partition}]}]}


@pytest.mark.parametrize(
    "said",
    [
        manifest(end=-5),
        manifest(end=2**63),
        manifest(end=2**70),
        manifest(log_start=-1),
        {"format": 1, "streams": [{**manifest()["streams"][0], "intake": "ajar"}]},
        {"format": 1, "groups": [{"group": "g", "stream_id": 2, "offsets": {"0": 2**80}}]},
        {"format": 1, "groups": [{"group": "g", "stream_id": 2, "offsets": {"x": 1}}]},
    ],
)
def test_numbers_that_none_can_be_are_damage_of_the_manifest(tmp_path: Path, said: dict[str, Any]) -> None:
    (tmp_path / "penstock-backup.json").write_text(json.dumps(said))
    with pytest.raises(OperationalError, match="is damaged"):
        read_manifest(tmp_path)


def test_a_sound_manifest_is_read(tmp_path: Path) -> None:
    (tmp_path / "penstock-backup.json").write_text(json.dumps(manifest(end=2**63 - 1)))
    assert read_manifest(tmp_path).streams[0].partitions[0].end == 2**63 - 1


def test_batches_that_do_not_follow_on_each_other_are_no_backup(tmp_path: Path) -> None:
    stream = StreamBackup("a", 7, StreamConfig(name="a", subject="a"))
    writer = FileWriter(tmp_path, stream, 0, 0)
    for base in (0, 2):
        data = batch(base, base + 2)
        writer.add(read_header(data), data)
    data = batch(5, 6)
    with pytest.raises(OperationalError, match=r"received offset 5, expected 4: .* run the backup again"):
        writer.add(read_header(data), data)
    writer.drop()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_backup_may_lie_where_folders_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As on CIFS, 9p and some of FUSE, where backups often are: its rows, its users and its manifest."""
    monkeypatch.setattr(os, "fsync", without_folders(number))
    stream = StreamBackup("a", 7, StreamConfig(name="a", subject="a"))
    writer = FileWriter(tmp_path, stream, 0, 0)
    data = batch(0, 2)
    writer.add(read_header(data), data)
    file = writer.finish()
    stream.partitions.append(PartitionBackup(0, end=2, files=[file]))
    write_users(tmp_path, Manifest(streams=[stream]), [UserExport(name="ann", created_us=1)], "2026-11-28")
    found = read_manifest(tmp_path)
    check_file(tmp_path, found.streams[0].partitions[0], file)
    assert found.access is not None
    assert [one.name for one in read_users(tmp_path, found.access)] == ["ann"]
