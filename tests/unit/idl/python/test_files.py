"""Generated files on the disk: nothing that was not generated is written over or removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.idl.python.files import ForeignFileError, write
from penstock.idl.python.generate import MARK

TEXT = f"{MARK} from a; é\n"
FILES = {"shop/__init__.py": TEXT, "shop/orders/__init__.py": TEXT}


def test_files_are_written_and_changed(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "deep"
    assert write(FILES, folder) == [folder / name for name in FILES]
    assert (folder / "shop/orders/__init__.py").read_bytes() == TEXT.encode()
    assert write(FILES, folder) == []
    assert write({**FILES, "shop/__init__.py": f"{TEXT}x = 1\n"}, folder) == [folder / "shop/__init__.py"]
    (folder / "shop/mine.py").write_text("mine")
    write({"shop/__init__.py": TEXT}, folder)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert names == ["shop/__init__.py", "shop/mine.py", "shop/orders/__init__.py"]


def test_files_have_the_mode_of_new_files(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "new").touch()
    assert (tmp_path / "shop/__init__.py").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_a_foreign_file_stops_all(tmp_path: Path) -> None:
    foreign = tmp_path / "shop/orders/__init__.py"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("x = 1\n")
    with pytest.raises(ForeignFileError, match="not generated, so not written over") as caught:
        write(FILES, tmp_path)
    assert caught.value.paths == [foreign]
    assert foreign.read_text() == "x = 1\n"
    assert not (tmp_path / "shop/__init__.py").exists()


def test_an_empty_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    assert len(write(FILES, tmp_path)) == 2


@pytest.mark.parametrize("place", ["shop", "shop/orders", "shop/__init__.py"])
def test_links_are_not_followed(tmp_path: Path, place: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    link = folder / place
    link.parent.mkdir(parents=True)
    link.symlink_to(outside / "x.py" if place.endswith(".py") else outside)
    with pytest.raises(ForeignFileError):
        write(FILES, folder)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("place", ["shop", "shop/__init__.py"])
def test_what_is_no_file_or_folder(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    if place == "shop":
        (tmp_path / place).write_text(MARK)
    else:
        os.mkfifo(tmp_path / place)
    with pytest.raises(ForeignFileError):
        write(FILES, tmp_path)


def test_a_failed_write_leaves_no_rest(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write({"shop/__init__.py": f"{MARK}\ud800"}, tmp_path)
    assert list(tmp_path.rglob("*.py")) == []
