"""Whose a data directory is."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import OperationalError
from penstock.broker.data_dir import take_data_dir


def test_a_new_one_keeps_its_id(tmp_path: Path) -> None:
    first = take_data_dir(tmp_path / "data")
    first.release()
    again = take_data_dir(tmp_path / "data")
    again.release()
    assert first.id == again.id


@pytest.mark.parametrize("name", ["lost+found", ".snapshot", ".Trash-1000", ".DS_Store"])
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
