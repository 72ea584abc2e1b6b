"""Which files an include may name, and that the disk gives no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.idl.files import FileReader, candidates, is_within, texts
from penstock.idl.lexer import FILE_BYTES_MAX
from penstock.idl.linker import link
from penstock.idl.mistakes import IdlError


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("/idl/a", "/idl", True),
        ("/idl", "/idl", True),
        ("/idl/a/../b", "/idl/", True),
        ("/idl/../etc/a", "/idl", False),
        ("/idlx/a", "/idl", False),
        ("/a", "/", True),
        ("a", "/", False),
        ("a/b", "a", True),
        ("ab", "a", False),
        ("a", ".", True),
        ("a", "", True),
        ("./a/../b", ".", True),
        ("..", ".", False),
        ("../a", ".", False),
        ("a/../../b", ".", False),
        ("/a", ".", False),
        ("..a", ".", True),
        ("../a", "..", True),
        ("../../a", "..", False),
    ],
)
def test_is_within(path: str, root: str, expected: bool) -> None:
    assert is_within(path, root) is expected


def test_candidates() -> None:
    assert candidates("x.frugal", "a/b/m.frugal", ["a", "c"]) == ["a/b/x.frugal", "a/x.frugal", "c/x.frugal"]
    assert candidates("../x.frugal", "a/b/m.frugal", ["a", "c"]) == ["a/x.frugal"]
    assert candidates("../x.frugal", "a/m.frugal", ["a"]) == []
    assert candidates("./x.frugal", "m.frugal", [""]) == ["x.frugal"]


def test_texts() -> None:
    assert texts({"a": "b"})("a") == "b"
    with pytest.raises(FileNotFoundError):
        texts({})("a")


def test_a_file_below_a_root_is_read(tmp_path: Path) -> None:
    (tmp_path / "idl" / "sub").mkdir(parents=True)
    (tmp_path / "idl" / "sub" / "a.frugal").write_text("größe")
    reader = FileReader([str(tmp_path / "gone"), str(tmp_path / "idl")])
    assert reader(str(tmp_path / "idl" / "sub" / ".." / "sub" / "a.frugal")) == "größe"
    with pytest.raises(FileNotFoundError):
        reader(str(tmp_path / "idl" / "b.frugal"))
    with pytest.raises(PermissionError, match="no regular file"):
        reader(str(tmp_path / "idl" / "sub"))


def test_links_are_followed_within_the_roots_only(tmp_path: Path) -> None:
    inside, outside = tmp_path / "idl", tmp_path / "secret"
    inside.mkdir()
    outside.mkdir()
    (outside / "a.frugal").write_text("struct Secret {}")
    (inside / "real.frugal").write_text("struct Real {}")
    (inside / "link.frugal").symlink_to(outside / "a.frugal")
    (inside / "good.frugal").symlink_to("real.frugal")
    (inside / "folder").symlink_to(outside)
    (inside / "loop.frugal").symlink_to("loop.frugal")
    reader = FileReader([str(inside)])
    assert reader(str(inside / "good.frugal")) == "struct Real {}"
    for path in ("link.frugal", "folder/a.frugal", "../secret/a.frugal"):
        with pytest.raises(PermissionError, match="outside of the folders that are given"):
            reader(str(inside / path))
    with pytest.raises(OSError, match="symbolic links"):
        reader(str(inside / "loop.frugal"))
    (inside / "main.frugal").write_text('include "link.frugal"\ninclude "good.frugal"')
    with pytest.raises(IdlError) as caught:
        link(str(inside / "main.frugal"), reader)
    assert str(caught.value) == (
        f"{inside}/main.frugal:1:9: {inside}/link.frugal cannot be read: it lies, or a link leads, outside of the "
        "folders that are given"
    )


def test_a_root_may_be_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.frugal").write_text("x")
    (tmp_path / "root").symlink_to("real")
    assert FileReader([str(tmp_path / "root")])(str(tmp_path / "root" / "a.frugal")) == "x"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.frugal")
    with pytest.raises(PermissionError, match="no regular file"):
        FileReader([str(tmp_path)])(str(tmp_path / "a.frugal"))


def test_a_file_that_is_too_large_or_no_text(tmp_path: Path) -> None:
    reader = FileReader([str(tmp_path)])
    (tmp_path / "a.frugal").write_bytes(b" " * FILE_BYTES_MAX)
    assert len(reader(str(tmp_path / "a.frugal"))) == FILE_BYTES_MAX
    (tmp_path / "a.frugal").write_bytes(b" " * (FILE_BYTES_MAX + 1))
    with pytest.raises(OSError, match="more than 2,097,152 bytes"):
        reader(str(tmp_path / "a.frugal"))
    (tmp_path / "a.frugal").write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        reader(str(tmp_path / "a.frugal"))
