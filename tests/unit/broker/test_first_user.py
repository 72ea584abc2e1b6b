"""Secrets that a broker draws: kept for their owner, and never taken from a file that holds none."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import OperationalError
from penstock.broker.first_user import FILE, SECRET_FILE, drawn_password, shared_secret


def test_what_was_drawn_is_found_again_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    password, is_new = drawn_password(tmp_path)
    assert is_new
    assert drawn_password(tmp_path) == (password, False)
    assert shared_secret(tmp_path) == shared_secret(tmp_path)
    assert {(tmp_path / one).stat().st_mode & 0o777 for one in (FILE, SECRET_FILE)} == {0o600}


@pytest.mark.parametrize("text", ["", "\n", "admin", "admin:", ":password", "eve:password", "\0"])
def test_a_file_without_a_password_gives_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(OperationalError, match="restore it, or delete it"):
        drawn_password(tmp_path)
    assert (tmp_path / FILE).read_text() == text


@pytest.mark.parametrize("text", ["", "\n", "short"])
def test_a_secret_that_is_cut_off_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / SECRET_FILE).write_text(text)
    with pytest.raises(OperationalError, match="is cut off"):
        shared_secret(tmp_path)
