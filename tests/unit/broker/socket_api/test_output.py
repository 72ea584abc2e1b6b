"""What goes out, in which order, and what it holds meanwhile; what is looked at before a range of a file is sent."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base import limits
from penstock.broker.socket_api.output import FileRangeError, Output, WriteOutcome, _is_cached
from penstock.broker.socket_api.shared_budget import SharedBudget
from penstock.broker.transport.transport import PlainTransport
from penstock.node.step import FileRange
from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.faulty import FaultyVfs, FileOperation, FileOperationKind
from penstock.vfs.real import RealVfs
from tests.encryption import encryption_keys

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


def add_payload(output: Output, head: bytes, *pieces: bytes | FileRange) -> bool:
    """Send all of it, or nothing and False: there is no room."""
    if (parts := output.prepare(*pieces)) is None:
        return False
    output.send(head, parts)
    return True


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

    def extent(self, name: str, start: int, end: int) -> FileRange:
        """A part of a file that is made with its first one."""
        if not (self.folder / name).exists():
            (self.folder / name).write_bytes(name.encode() * 1_000)
        return FileRange(self.vfs, name, start, end - start, lambda path, position, reason: self.damaged.append(path))

    def sent(self) -> bytes:
        """All that comes out at the other end."""
        while (written := self.output.write()) is not WriteOutcome.DONE:
            assert written is WriteOutcome.COLD
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
    assert add_payload(sending.output, b"head", *pieces)
    assert sending.output.waiting_bytes == 4 + 3 + 9
    assert (sending.files.used, sending.buffers.used) == (2, 4 + 3)
    assert sending.sent() == b"head<aaaaa|bbbb>"
    assert (sending.files.used, sending.buffers.used, sending.output.waiting_bytes) == (0, 0, 0)


def test_an_answer_that_goes_on_where_the_last_one_ends_shares_its_file(sending: Sending) -> None:
    for start in range(3):
        assert add_payload(sending.output, b"", sending.extent("a", start, start + 1))
    assert sending.files.used == 1
    assert sending.sent() == b"aaa"
    assert sending.files.used == 0


def test_pieces_for_which_there_is_no_place_take_none(sending: Sending) -> None:
    assert add_payload(sending.output, b"", sending.extent("a", 0, 2))
    opened = len(os.listdir("/proc/self/fd"))
    assert not add_payload(sending.output, b"head", *(sending.extent(name, 0, 1) for name in "abc"))
    assert not add_payload(sending.output, b"head", sending.extent("a", 0, 1), b"x" * 400, b"y" * 700)
    assert (sending.files.used, sending.buffers.used, sending.output.waiting_bytes) == (1, 0, 2)
    assert len(os.listdir("/proc/self/fd")) == opened
    missing = FileRange(sending.vfs, "none", 0, 1, lambda path, position, reason: None)
    with pytest.raises(FileNotFoundError):
        add_payload(sending.output, b"head", sending.extent("a", 0, 1), b"x", missing)
    assert (sending.files.used, sending.buffers.used, sending.output.waiting_bytes) == (1, 0, 2)
    assert sending.sent() == b"aa"
    assert len(os.listdir("/proc/self/fd")) == opened - 1


def test_what_is_dropped_gives_everything_back(sending: Sending) -> None:
    assert add_payload(sending.output, b"head", sending.extent("a", 0, 3), sending.extent("a", 3, 4), b"x")
    sending.output.drop()
    assert (sending.files.used, sending.buffers.used, sending.output.waiting_bytes) == (0, 0, 0)


def test_what_is_held_moves_to_the_buffers_that_are_used_from_now_on(sending: Sending) -> None:
    assert add_payload(sending.output, b"head", b"body")
    assert add_payload(sending.output, b"", sending.extent("a", 0, 3))
    others, files = SharedBudget(1_000), SharedBudget(10)
    sending.output.use(others, files)
    assert add_payload(sending.output, b"", b"more")
    assert (sending.buffers.used, others.used, sending.files.used, files.used) == (0, 12, 0, 1)
    sent = sending.sent()
    assert sent.startswith(b"headbody")
    assert sent.endswith(b"more")
    assert (sending.buffers.used, others.used, sending.files.used, files.used) == (0, 0, 0, 0)


class Encrypted(Sending):
    """The same, of files that are encrypted."""

    def __init__(self, folder: Path, ours: socket.socket, theirs: socket.socket) -> None:
        super().__init__(folder, ours, theirs)
        self.read: list[int] = []  # lengths, of what lies on the disk
        self.raw = FaultyVfs(self.vfs, watcher=self.saw)
        self.encrypted = EncryptedVfs(self.raw, encryption_keys(), lambda _path: True)

    def saw(self, operation: FileOperation) -> None:
        if operation.kind is FileOperationKind.READ:
            self.read.append(operation.length)

    def secret(self, name: str, content: bytes) -> FileRange:
        """All of a file."""
        self.encrypted.open(name, create=True).write_at(0, content)
        return FileRange(
            self.encrypted, name, 0, len(content), lambda path, position, reason: self.damaged.append(path)
        )


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[Encrypted]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield Encrypted(tmp_path, ours, theirs)


def test_what_is_encrypted_is_read_by_disk_threads_in_slices_and_counted(encrypted: Encrypted) -> None:
    content = os.urandom(3 * limits.SENDFILE_SLICE_BYTES + 777)
    output = encrypted.output
    assert add_payload(output, b"head", encrypted.secret("a", content))
    got = bytearray()
    encrypted.read.clear()
    while (written := output.write()) is not WriteOutcome.DONE:
        assert not encrypted.read, "the event loop has read it"
        assert encrypted.buffers.used <= limits.SENDFILE_SLICE_BYTES + 4
        if written is WriteOutcome.COLD:
            assert output.cold is not None
            output.cold.read()
            assert encrypted.read
            output.warmed(None)
            encrypted.read.clear()
        with contextlib.suppress(BlockingIOError):
            got += encrypted.theirs.recv(1 << 20)
    with contextlib.suppress(BlockingIOError):
        while True:
            got += encrypted.theirs.recv(1 << 20)
    assert got == b"head" + content
    assert (encrypted.files.used, encrypted.buffers.used, output.waiting_bytes) == (0, 0, 0)


def test_what_was_read_of_an_answer_that_is_dropped_is_given_back(encrypted: Encrypted) -> None:
    assert add_payload(encrypted.output, b"", encrypted.secret("a", bytes(4_000_000)))
    assert encrypted.output.write() is WriteOutcome.COLD
    assert encrypted.output.cold is not None
    encrypted.output.cold.read()
    encrypted.output.warmed(None)
    assert encrypted.output.write() is WriteOutcome.MORE
    assert encrypted.buffers.used > 0
    encrypted.output.drop()
    assert (encrypted.files.used, encrypted.buffers.used) == (0, 0)


def test_an_encrypted_file_that_is_too_short_is_damage(encrypted: Encrypted) -> None:
    extent = encrypted.secret("a", b"x" * 5_000)
    encrypted.encrypted.open("a").truncate(3_000)
    assert add_payload(encrypted.output, b"", extent)
    with pytest.raises(FileRangeError, match="cannot read a at byte 3000: the file is shorter"):
        encrypted.sent()
    assert encrypted.damaged == ["a"]
