"""Whose a data directory is."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.errors import OperationalError
from penstock.broker.config.data_dir import take_data_dir
from penstock.node.data_dir.lost_files import GUARDS
from tests.folders import without_folders


def test_a_new_one_keeps_its_id(tmp_path: Path) -> None:
    first = take_data_dir(tmp_path / "data")
    first.release()
    again = take_data_dir(tmp_path / "data")
    again.release()
    assert first.id == again.id


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_one_that_is_made_is_its_owners_alone(tmp_path: Path, umask: None, caplog: pytest.LogCaptureFixture) -> None:
    for path in (tmp_path / "data", tmp_path / "more" / "data"):
        take_data_dir(path).release()
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert caplog.messages == []


def test_one_that_is_there_stays_as_it_is_and_is_told_where_others_see_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for mode, is_told in ((0o755, True), (0o751, True), (0o770, False), (0o700, False)):
        tmp_path.chmod(mode)
        caplog.clear()
        take_data_dir(tmp_path).release()
        assert stat.S_IMODE(tmp_path.stat().st_mode) == mode
        assert [f"chmod o= {tmp_path}" in one for one in caplog.messages] == [True] * is_told


@pytest.mark.parametrize(
    "name", ["lost+found", ".snapshot", ".Trash-1000", ".DS_Store", ".nfs00000000012c3f0a00000001"]
)
def test_what_a_file_system_puts_into_a_mount_point_is_no_stranger(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    data_dir = take_data_dir(tmp_path)
    data_dir.release()
    assert (tmp_path / name).is_dir()


@pytest.mark.parametrize("name", ["thesis.doc", "streams", ".ssh", ".bashrc"])
def test_somebody_elses_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(OperationalError, match=f"holds {name}"):
        take_data_dir(tmp_path)


def test_two_brokers_do_not_share_one(tmp_path: Path) -> None:
    held = take_data_dir(tmp_path)
    with pytest.raises(OperationalError, match=r"in use by another broker \(process \d+\)"):
        take_data_dir(tmp_path)
    held.release()


def test_what_belongs_to_one_broker_is_refused_to_another(tmp_path: Path) -> None:
    take_data_dir(tmp_path, 2).release()
    with pytest.raises(OperationalError, match="is that of broker 2, this is broker 3: start it with --id 2"):
        take_data_dir(tmp_path, 3)
    held = take_data_dir(tmp_path, 2)  # the refusal holds nothing
    assert (held.broker_id, held.cluster_id) == (2, "")
    held.release()


@pytest.mark.parametrize(("was", "became"), [('"broker_id": 2', '"broker_id": 3'), ('"id": "', '"id": "0')])
def test_one_that_is_damaged_is_not_believed(tmp_path: Path, was: str, became: str) -> None:
    take_data_dir(tmp_path, 2).release()
    file = tmp_path / "penstock.json"
    file.write_text(file.read_text().replace(was, became))
    with pytest.raises(OperationalError, match=r"penstock\.json is damaged"):
        take_data_dir(tmp_path, 2)


def test_one_that_says_no_broker_is_that_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "penstock.json").write_text('{"format": 1, "id": "old"}')
    with pytest.raises(OperationalError, match="broker 1"):
        take_data_dir(tmp_path, 2)
    held = take_data_dir(tmp_path)
    assert (held.id, held.broker_id) == ("old", 1)
    held.release()


def test_the_cluster_is_kept_for_good_beside_what_a_newer_version_wrote(tmp_path: Path) -> None:
    (tmp_path / "penstock.json").write_text('{"format": 1, "id": "old", "colour": "green"}')
    held = take_data_dir(tmp_path)
    held.remember_cluster("c")
    held.remember_cluster("c")
    assert json.loads((tmp_path / "penstock.json").read_bytes()) == {
        "crc32c": "0a7e31b3",
        "format": 1,
        "id": "old",
        "colour": "green",
        "broker_id": 1,
        "cluster_id": "c",
    }
    held.release()
    again = take_data_dir(tmp_path)
    assert again.cluster_id == "c"
    with pytest.raises(OperationalError, match="belongs to cluster c, and this broker was let into cluster d"):
        again.remember_cluster("d")
    again.release()
    assert json.loads((tmp_path / "penstock.json").read_bytes())["cluster_id"] == "c"


def test_a_cluster_that_cannot_be_written_down_is_told(tmp_path: Path) -> None:
    held = take_data_dir(tmp_path)
    (tmp_path / "penstock.json").unlink()
    with pytest.raises(OperationalError, match="cannot record the cluster id in"):
        held.remember_cluster("c")
    assert held.cluster_id == ""
    held.release()


def test_an_identity_that_is_no_file_or_a_huge_one_is_refused_at_once(tmp_path: Path) -> None:
    place = tmp_path / "penstock.json"
    os.mkfifo(place)
    with pytest.raises(OperationalError, match=r"penstock\.json: not a regular file, but a FIFO"):
        take_data_dir(tmp_path)
    place.unlink()
    place.touch()
    os.truncate(place, 20 << 30)
    with pytest.raises(OperationalError, match="21474836480 bytes, more than the 65536"):
        take_data_dir(tmp_path)


def test_nobody_waits_for_a_note_of_who_holds_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "LOCK")
    held = take_data_dir(tmp_path)
    with pytest.raises(OperationalError, match=r"in use by another broker; stop"):
        take_data_dir(tmp_path)
    held.release()


@pytest.mark.parametrize("more", ["9" * 5_000, "[" * 1_300 + "]" * 1_300], ids=["digits", "depth"])
def test_what_only_one_of_two_readers_takes_is_no_identity(tmp_path: Path, more: str) -> None:
    content = f'{{"format": 1, "id": "x", "crc32c": "00000000", "more": {more}}}'
    (tmp_path / "penstock.json").write_text(content)
    with pytest.raises(OperationalError, match="nothing was touched"):
        take_data_dir(tmp_path)
    assert (tmp_path / "penstock.json").read_text() == content


def test_which_guards_there_were_is_noted_and_never_forgotten(tmp_path: Path) -> None:
    data_dir = take_data_dir(tmp_path)
    assert data_dir.guards == frozenset()
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft/synced").touch()
    (tmp_path / "runs").touch()
    data_dir.remember_guards(GUARDS)
    data_dir.remember_cluster("blue")
    data_dir.release()
    (tmp_path / "runs").unlink()
    again = take_data_dir(tmp_path)
    again.remember_guards(GUARDS)
    again.release()
    assert (again.guards, again.cluster_id) == ({"raft/synced", "runs"}, "blue")


@pytest.mark.parametrize(
    ("what", "match"),
    [("missing", r"has no penstock\.json but holds raft"), ("zeroed", r"is not readable as Penstock's .*Restore it")],
)
def test_an_identity_that_is_lost_is_refused(tmp_path: Path, what: str, match: str) -> None:
    take_data_dir(tmp_path).release()
    (tmp_path / "raft").mkdir()
    file = tmp_path / "penstock.json"
    if what == "missing":
        file.unlink()
    else:
        file.write_bytes(bytes(len(file.read_bytes())))
    with pytest.raises(OperationalError, match=match):
        take_data_dir(tmp_path)


def test_an_older_identity_is_the_same_one(tmp_path: Path) -> None:
    first = take_data_dir(tmp_path)
    older = (tmp_path / "penstock.json").read_bytes()
    first.remember_cluster("blue")
    first.release()
    (tmp_path / "penstock.json").write_bytes(older)
    again = take_data_dir(tmp_path)
    assert (again.id, again.cluster_id) == (first.id, "")
    again.remember_cluster("blue")
    again.release()


@pytest.mark.parametrize("content", [None, bytes(5), b"1\n"], ids=["missing", "zeroed", "older"])
def test_the_note_of_who_runs_holds_nobody_back(tmp_path: Path, content: bytes | None) -> None:
    take_data_dir(tmp_path).release()
    (tmp_path / "LOCK").unlink()
    if content is not None:
        (tmp_path / "LOCK").write_bytes(content)
    take_data_dir(tmp_path).release()
    assert (tmp_path / "LOCK").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_folders_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "fsync", without_folders(number))
    path = tmp_path / "data"
    with pytest.raises(OperationalError, match=f"cannot use the data directory {path}: its file system cannot sync"):
        take_data_dir(path)


def test_a_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "data"
    with pytest.raises(OperationalError, match=f"cannot create the data directory {path}: "):
        take_data_dir(path)


def test_locks_that_nfs_does_not_grant_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OperationalError, match="No locks available; on NFS the server has to grant locks"):
        take_data_dir(tmp_path / "data")
