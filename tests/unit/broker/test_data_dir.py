"""The data directory: one broker at a time, and only what is Penstock's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.base.errors import OperationalError
from penstock.broker.data_dir import take_data_dir


def _refusal(path: Path) -> str:
    with pytest.raises(OperationalError) as raised:
        take_data_dir(path)
    return str(raised.value)


def test_a_directory_is_made_and_keeps_its_id(tmp_path: Path) -> None:
    path = tmp_path / "a" / "data"
    first = take_data_dir(path)
    assert json.loads((path / "penstock.json").read_bytes()) == {"format": 1, "id": first.id}
    assert (path / "LOCK").read_text() == f"{os.getpid()}\n"
    first.release()
    again = take_data_dir(path)
    assert again.id == first.id
    again.release()


@pytest.mark.parametrize("lock", ["kept", "removed", "replaced", "emptied"])
def test_one_at_a_time_whatever_becomes_of_the_lock_file(tmp_path: Path, lock: str) -> None:
    holder = take_data_dir(tmp_path)
    file = tmp_path / "LOCK"
    if lock != "kept":
        file.unlink()
    if lock == "replaced":
        file.mkdir()
    if lock == "emptied":
        file.touch()
    text = _refusal(tmp_path)
    assert f"the data directory {tmp_path} is in use by another broker" in text
    assert "--data-dir" in text
    assert (f"(process {os.getpid()})" in text) == (lock == "kept")
    holder.release()
    take_data_dir(tmp_path).release()


def test_a_directory_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    assert "holds precious" in _refusal(tmp_path)
    assert not (tmp_path / "penstock.json").exists()
    (tmp_path / "file").touch()
    assert f"cannot use the data directory {tmp_path / 'file'}" in _refusal(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"1e999",
        b"[" * 100_000,
        b'{"format":' + b"[" * 100_000,
        b'{"format":1}',
        b'{"id":"x"}',
        b'{"format":1,"id":""}',
        b'{"format":1,"id":7}',
        b'{"format":null,"id":"x"}',
        b'{"format":"1","id":"x"}',
        b'{"format":true,"id":"x"}',
        b'{"format":1.9,"id":"x"}',
        b'{"format":1e999,"id":"x"}',
        b'{"format":0,"id":"x"}',
        b'{"format":-3,"id":"x"}',
        b'{"format":1,"id":"x"} trailing',
    ],
)
def test_an_identity_that_makes_no_sense_is_told_and_kept(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "penstock.json"
    file.write_bytes(content)
    text = _refusal(tmp_path)
    assert f"{file} is not readable as Penstock's" in text
    assert "nothing was touched" in text
    assert len(text) < 500
    assert file.read_bytes() == content


def test_a_newer_format_is_told(tmp_path: Path) -> None:
    (tmp_path / "penstock.json").write_text('{"format":2,"id":"x","more":[]}')
    assert "has format 2; this Penstock reads up to 1: upgrade it" in _refusal(tmp_path)


def test_a_folder_in_place_of_the_identity_is_told(tmp_path: Path) -> None:
    (tmp_path / "penstock.json").mkdir()
    assert f"cannot read {tmp_path / 'penstock.json'}: Is a directory" in _refusal(tmp_path)


def test_an_identity_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "penstock.json.new").mkdir()
    assert f"cannot use the data directory {tmp_path}: Is a directory" in _refusal(tmp_path)
