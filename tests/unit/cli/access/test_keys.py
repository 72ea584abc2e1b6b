"""`penstock keys`: keys that are made, which are in use, and another one in their place."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.commitlog.files.files import holds_messages
from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.keys import EncryptionKeys, KeyMissingError, parse_keys
from penstock.vfs.real import RealVfs
from tests.cli_app import app
from tests.extent import each_change
from tests.folders import without_folders

LOG = "streams/00000004-orders/0"


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["keys", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def made(folder: Path, keys: EncryptionKeys) -> RealVfs:
    """A data directory with a segment, an index and something in quarantine."""
    vfs = RealVfs(folder)
    encrypted = EncryptedVfs(vfs, keys, holds_messages)
    for path in (f"{LOG}/00000000000000000000.arrows", f"{LOG}/00000000000000000000.index", "quarantine/x/0/y.arrows"):
        encrypted.open(path, create=True).write_at(0, b"message")
    return vfs


def test_a_new_key_is_printed_and_another_one_each_time() -> None:
    first, second = (parse_keys(run("new")) for _ in range(2))
    assert first.current_id != second.current_id
    assert parse_keys(run("new", "mine")).ids == ("mine",)
    assert "is no key id: it has letters" in run("new", "not mine", code=2)


def test_a_file_of_keys_is_made_for_one_user_and_gets_the_new_key_first(tmp_path: Path) -> None:
    file = tmp_path / "penstock.keys"
    assert run("new", "old", "--file", str(file)) == ""
    assert file.stat().st_mode & 0o777 == 0o600
    run("new", "new", "--file", str(file))
    assert parse_keys(file.read_text()).ids == ("new", "old")
    before = file.read_text()
    assert "occurs twice" in run("new", "new", "--file", str(file), code=2)
    assert file.read_text() == before
    assert sorted(tmp_path.iterdir()) == [file]


def test_a_file_of_keys_may_lie_where_folders_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", without_folders(errno.EINVAL))
    run("new", "mine", "--file", str(tmp_path / "penstock.keys"))
    assert parse_keys((tmp_path / "penstock.keys").read_text()).ids == ("mine",)


def test_what_nfs_keeps_gets_no_other_key() -> None:
    assert holds_messages(f"{LOG}/00000000000000000000.arrows")
    assert not holds_messages(f"{LOG}/.nfs0000000000a1b2c300000001")


@each_change
def test_a_file_of_keys_keeps_its_owner_and_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "penstock.keys"
    run("new", "old", "--file", str(file))
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 1234, 4321)
    before = file.stat()
    run("new", "new", "--file", str(file))
    after = file.stat()
    assert before.st_ino != after.st_ino
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_what_a_killed_command_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "keys.new").touch()
    run("new", "--file", str(tmp_path / "keys"))
    assert len(parse_keys((tmp_path / "keys").read_text()).ids) == 1


@each_change
def test_what_is_in_use_is_listed_by_stream(tmp_path: Path) -> None:
    made(tmp_path, parse_keys(run("new", "old")))
    RealVfs(tmp_path).open("streams/00000005-plain/0/00000000000000000000.arrows", create=True).write_at(0, b"\xff" * 8)
    rows = [json.loads(line) for line in run("list", str(tmp_path), "--json").splitlines()]
    assert [(row["stream"], row["key_id"], row["files"]) for row in rows] == [
        ("00000004-orders", "old", 1),
        ("00000005-plain", None, 1),
        ("x", "old", 1),
    ]
    assert "00000004-orders" in run("list", str(tmp_path))
    assert "not a data directory" in run("list", str(tmp_path / LOG), code=2)


@each_change
def test_files_take_another_key_and_need_the_old_one_no_more(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    run("new", "old", "--file", str(file))
    old = parse_keys(file.read_text())
    vfs = made(tmp_path / "data", old)
    run("new", "new", "--file", str(file))
    run("rewrap", str(tmp_path / "data"), "--encryption-keys-file", str(file))
    assert "old" not in run("list", str(tmp_path / "data"))
    path = f"{LOG}/00000000000000000000.arrows"
    only_new = EncryptionKeys([("new", parse_keys(file.read_text()).key("new", ""))])
    assert EncryptedVfs(vfs, only_new, holds_messages).open(path).read_at(0, 10) == b"message"
    with pytest.raises(KeyMissingError):
        EncryptedVfs(vfs, old, holds_messages).open(path)


def test_a_file_whose_key_is_not_there_stays_as_it_is_and_is_named(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    run("new", "other", "--file", str(file))
    made(tmp_path / "data", parse_keys(run("new", "old")))
    said = run("rewrap", str(tmp_path / "data"), "--encryption-keys-file", str(file), code=1)
    assert "2 files not changed" in said
    assert "'old', which is not among the keys here" in said
