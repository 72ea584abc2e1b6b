"""Files of `--output`: an error names the file that was asked for."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from penstock.cli.messages.destination import Destination, Format
from penstock.cli.messages.rows import Look


def target(path: Path) -> Destination:
    return Destination(Format.CSV, path, force=False, decode=None, look=Look(headers=False, wide=False))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    wanted = tmp_path / "nosuchdir" / "o.csv"
    with pytest.raises(FileNotFoundError) as caught, target(wanted).opened():
        pass
    assert caught.value.filename == str(wanted)
    assert caught.value.strerror == f"there is no folder {str(wanted.parent)!r}"


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    wanted = tmp_path / "o.csv"
    with pytest.raises(OSError, match="No space left") as caught, target(wanted).opened():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(wanted)
    assert not list(tmp_path.iterdir())
