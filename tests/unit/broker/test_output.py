"""What goes out, in which order, and what it holds meanwhile; what is looked at before a range of a file is sent."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.output import Output, Written, _is_cached
from penstock.broker.shared_budget import SharedBudget
from penstock.broker.transport import PlainTransport
from penstock.node.step import Extent
from penstock.vfs.real import RealVfs

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


class Sending:
    """An output, the other end of its socket, and a folder with files."""

    def __init__(self, folder: Path, ours: socket.socket, theirs: socket.socket) -> None:
        self.vfs = RealVfs(folder)
        self.folder = folder
        self.theirs = theirs
        self.buffers = SharedBudget(1_000)
        self.files = SharedBudget(2)
        self.damaged: list[str] = []
        self.output = Output(PlainTransport(ours), self.buffers, self.files, lambda: 0)

    def extent(self, name: str, start: int, end: int) -> Extent:
        """A part of a file that is made with its first one."""
        if not (self.folder / name).exists():
            (self.folder / name).write_bytes(name.encode() * 1_000)
        return Extent(self.vfs, name, start, end - start, lambda path, position, reason: self.damaged.append(path))

    def sent(self) -> bytes:
        """All that comes out at the other end."""
        while (written := self.output.write()) is not Written.DONE:
            assert written is Written.COLD
            assert self.output.cold is not None
            self.output.cold.read()
            self.output.warmed(None)
        return self.theirs.recv(100_000)


@pytest.fixture
def sending(tmp_path: Path) -> Iterator[Sending]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield Sending(tmp_path, ours, theirs)


def test_pieces_of_files_and_of_memory_go_out_as_one(sending: Sending) -> None:
    pieces = (b"<", sending.extent("a", 0, 3), sending.extent("a", 7, 9), b"", b"|", sending.extent("b", 0, 4), b">")
    assert sending.output.add_payload(b"head", *pieces)
    assert sending.output.waiting_bytes == 4 + 3 + 9
    assert (sending.files.used, sending.buffers.used) == (2, 4 + 3)
    assert sending.sent() == b"head<aaaaa|bbbb>"
    assert (sending.files.used, sending.buffers.used, sending.output.waiting_bytes) == (0, 0, 0)


def test_an_answer_that_goes_on_where_the_last_one_ends_shares_its_file(sending: Sending) -> None:
    for start in range(3):
        assert sending.output.add_payload(b"", sending.extent("a", start, start + 1))
    assert sending.files.used == 1
    assert sending.sent() == b"aaa"
    assert sending.files.used == 0


def test_pieces_for_which_there_is_no_place_take_none(sending: Sending) -> None:
    assert sending.output.add_payload(b"", sending.extent("a", 0, 2))
    opened = len(os.listdir("/proc/self/fd"))
    assert not sending.output.add_payload(b"head", *(sending.extent(name, 0, 1) for name in "abc"))
    assert not sending.output.add_payload(b"head", sending.extent("a", 0, 1), b"x" * 400, b"y" * 700)
    assert (sending.files.used, sending.buffers.used, sending.output.waiting_bytes) == (1, 0, 2)
    assert len(os.listdir("/proc/self/fd")) == opened
    missing = Extent(sending.vfs, "none", 0, 1, lambda path, position, reason: None)
    with pytest.raises(FileNotFoundError):
        sending.output.add_payload(b"head", sending.extent("a", 0, 1), b"x", missing)
    assert (sending.files.used, sending.buffers.used, sending.output.waiting_bytes) == (1, 0, 2)
    assert sending.sent() == b"aa"
    assert len(os.listdir("/proc/self/fd")) == opened - 1


def test_what_is_dropped_gives_everything_back(sending: Sending) -> None:
    assert sending.output.add_payload(b"head", sending.extent("a", 0, 3), sending.extent("a", 3, 4), b"x")
    sending.output.drop()
    assert (sending.files.used, sending.buffers.used, sending.output.waiting_bytes) == (0, 0, 0)


def test_what_is_held_moves_to_the_buffers_that_are_used_from_now_on(sending: Sending) -> None:
    assert sending.output.add_payload(b"head", b"body")
    others = SharedBudget(1_000)
    sending.output.use(others)
    assert sending.output.add_payload(b"", b"more")
    assert (sending.buffers.used, others.used) == (0, 12)
    assert sending.sent() == b"headbodymore"
    assert (sending.buffers.used, others.used) == (0, 0)
