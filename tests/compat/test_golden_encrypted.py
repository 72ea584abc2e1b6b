"""Encrypted files of the first version are opened for ever, and today's code still writes the same bytes."""

from __future__ import annotations

from hashlib import sha256

from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.memory import MemoryVfs
from tests.compat.golden_encrypted import FILE, KEYS, PLAIN, Counted, written

LARGE = bytes(range(256)) * 600  # of three blocks
OF_LARGE = "2076b7b4840127d46addffa8a30152581a2a9cef973258bbd85740975eed9930"


def test_todays_code_writes_the_same_bytes() -> None:
    assert written() == FILE.read_bytes()
    assert sha256(written(LARGE)).hexdigest() == OF_LARGE


def test_todays_code_opens_it_and_goes_on() -> None:
    memory = MemoryVfs()
    memory.open("file", create=True).write_at(0, FILE.read_bytes())
    file = EncryptedVfs(memory, KEYS, lambda _path: True, Counted()).open("file")
    assert file.read_at(0, 1_000) == PLAIN
    file.write_at(len(PLAIN), b"!")
    assert file.read_at(0, 1_000) == PLAIN + b"!"
