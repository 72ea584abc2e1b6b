"""What is looked at before a range of a file is sent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.broker.output import _is_cached

PAGE = 4096


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot tell what is cached")
@pytest.mark.parametrize(
    ("position", "size", "pages"),
    [
        (0, 1, [0]),
        (5, PAGE - 5, [0]),
        (PAGE, PAGE, [1]),
        (PAGE - 1, 2, [0, 1]),
        (PAGE // 2, 2 * PAGE, [0, 1, 2]),
        (0, 9 * PAGE, [0, 4, 8]),
    ],
)
def test_the_ends_and_the_middle_are_looked_at_each_page_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int, size: int, pages: list[int]
) -> None:
    probed: list[int] = []
    preadv = os.preadv

    def seen(descriptor: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        probed.append(offset)
        return preadv(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", seen)
    path = tmp_path / "file"
    path.write_bytes(bytes(10 * PAGE))
    with path.open("rb") as file:
        assert _is_cached(file.fileno(), position, size)
    assert probed == [page * PAGE for page in pages]
