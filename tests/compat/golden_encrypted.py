"""The golden encrypted file: what is done to it, with keys and nonces that chance does not make.

Rules: `golden/encrypted1.bin` was written once, and never changes; every later version opens it. `python -m
tests.compat.golden_encrypted` writes it if it is missing.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.keys import EncryptionKeys
from penstock.vfs.memory import MemoryVfs

FILE = Path(__file__).with_name("golden") / "encrypted1.bin"
KEYS = EncryptionKeys([("golden-1", bytes(range(32)))])
PLAIN = b"the first record" + b"the second" + b"after a cut"


class Counted:
    """Bytes that look like chance, the same every time."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, length: int) -> bytes:
        self._number += 1
        return sha256(b"%d" % self._number).digest()[:length]


def written(*more: bytes) -> bytes:
    """What today's code writes: two records, a cut in the midst of the second, and one more; then what is given."""
    memory = MemoryVfs()
    file = EncryptedVfs(memory, KEYS, lambda _path: True, Counted()).open("file", create=True)
    file.write_at(0, b"the first record")
    file.write_at(16, b"the second record")
    file.truncate(26)
    file.write_at(26, b"after a cut")
    for data in more:
        file.write_at(file.size(), data)
    return memory.open("file").read_at(0, 10**7)


if __name__ == "__main__" and not FILE.exists():
    FILE.write_bytes(written())
