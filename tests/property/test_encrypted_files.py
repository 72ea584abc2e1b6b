"""An encrypted file is what a plain one is, whatever is done to it; and a crash takes no more of it."""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.vfs import File
from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.encrypted_format import BLOCK_BYTES, PLAIN_BYTES_MAX
from penstock.vfs.memory import Keep, MemoryVfs
from tests.encryption import encryption_keys
from tests.extent import examples

_SIZES = st.one_of(
    st.integers(0, 2_000),
    st.integers(PLAIN_BYTES_MAX - 120, PLAIN_BYTES_MAX + 120),
    st.sampled_from([3 * BLOCK_BYTES, 3 * PLAIN_BYTES_MAX, 17 * BLOCK_BYTES]),
)


class EncryptedFileModel(RuleBasedStateMachine):
    """`model` is what a plain file would hold. Its bytes are never zero, so that what is lost shows."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.random = Random(seed)
        self.memory = MemoryVfs()
        self.model = b""
        self.sound = 0  # so many bytes a crash must leave as they are
        self.states: list[bytes] = []  # what the file has held since the last sync: no crash leaves anything else
        self.open()

    def open(self) -> None:
        self.vfs = EncryptedVfs(self.memory, encryption_keys(), lambda _path: True, self.random.randbytes)
        self.file: File = self.vfs.open("folder/file", create=True)
        self.memory.sync_dir("folder")
        # One that stays open, as a reader's does.
        self.reader: File = self.vfs.open("folder/file", read_only=True)

    def some(self, size: int) -> bytes:
        return self.random.randbytes(size).replace(b"\0", b"x")

    @rule(size=_SIZES, times=st.sampled_from([1, 1, 1, 3, 150]))
    def append(self, size: int, times: int) -> None:
        for _ in range(times if size < 2_000 else 1):
            data = self.some(size)
            half = size // 2
            self.file.write_at(len(self.model), data[:half], memoryview(data)[half:])
            self.model += data

    @rule(back=st.one_of(st.integers(0, 3_000), st.integers(0, 3 * BLOCK_BYTES)))
    def cut(self, back: int) -> None:
        length = max(0, len(self.model) - back)
        self.file.truncate(length)
        self.model = self.model[:length]
        self.sound = min(self.sound, length)

    @rule(where=st.floats(0, 1), size=st.integers(1, 3 * BLOCK_BYTES))
    def write_again(self, where: float, size: int) -> None:
        begin = int(where * len(self.model))
        self.file.write_at(begin, self.model[begin : begin + size])

    @rule(where=st.floats(0, 1), size=st.integers(1, 900))
    def write_over(self, where: float, size: int) -> None:
        begin = int(where * len(self.model))
        data = self.some(size)
        self.file.write_at(begin, data)
        self.model = self.model[:begin] + data + self.model[begin + size :]
        self.sound = min(self.sound, begin)

    @rule()
    def sync(self) -> None:
        self.file.sync()
        self.sound = len(self.model)
        self.states.clear()

    def is_of_some_state(self, found: bytes) -> bool:
        """Whether each byte was at its place in one of them, or is a zero."""
        seen = np.frombuffer(found, np.uint8)
        is_known = seen == 0
        for state in self.states:
            there = np.frombuffer(state[: len(found)], np.uint8)
            is_known[: len(there)] |= seen[: len(there)] == there
        return bool(is_known.all())

    @rule(where=st.floats(0, 1), size=st.one_of(st.integers(0, 3_000), st.integers(0, 20 * BLOCK_BYTES)))
    def read(self, where: float, size: int) -> None:
        begin = int(where * (len(self.model) + 10))
        assert self.file.read_at(begin, size) == self.model[begin : begin + size]
        assert self.reader.read_at(begin, size) == self.model[begin : begin + size]

    @rule()
    def reopen(self) -> None:
        self.file.close()
        self.reader.close()
        self.open()

    @precondition(lambda self: self.model)
    @rule(keep=st.sampled_from([Keep.SYNCED, Keep.SUBSET, Keep.SUBSET, Keep.SUBSET]), goes_on=st.booleans())
    def crash(self, keep: Keep, goes_on: bool) -> None:
        self.memory = self.memory.crash_clone(keep, self.random if keep is Keep.SUBSET else None)
        self.open()
        size = self.file.size()
        found = self.file.read_at(0, size + 1)
        assert len(found) == size
        # Zeros that an earlier crash has left at the end may go where the file was cut among them.
        assert found[: self.sound].ljust(self.sound, b"\0") == self.model[: self.sound]
        assert self.is_of_some_state(found), "what was cut off is back"
        if goes_on:  # with what is there, as a log does that knows better what is sound
            self.model = found
        else:
            self.file.truncate(self.sound)
            self.model = self.model[: self.sound]
        self.file.write_at(0, self.model)
        self.sync()

    @invariant()
    def same_size(self) -> None:
        if not self.states or self.states[-1] != self.model:
            self.states.append(self.model)
        assert self.file.size() == self.reader.size() == len(self.model)


EncryptedFileModel.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
TestEncryptedFile = EncryptedFileModel.TestCase
