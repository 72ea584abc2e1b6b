"""Decodes the rows of batches as clients do."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.batch import codec
from penstock.testing.errors import ViolationError

_OFFSETS, _SUBJECTS, _KEYS, _VALUES = 1, 4, 7, 10  # positions among the buffers of a batch


class ReadRows:
    """The decoded rows of some batches. For a tombstone `values` holds its unique subject."""

    __slots__ = ("compressed", "epochs", "keys", "leader_epoch", "offsets", "values")

    def __init__(self, raw: bytes) -> None:
        self.compressed = 0  # compressed batches
        self.keys: list[bytes | None] = []
        self.offsets: list[int] = []
        self.values: list[bytes] = []
        self.epochs: list[int] = []
        self.leader_epoch: int | None = None
        view = memoryview(raw)
        while view:
            batch = view[: codec.read_header(view).size_bytes]
            header = codec.verify(batch)
            plain = codec.uncompressed(batch)
            self.compressed += plain is not batch
            buffers = codec.buffers(plain)
            self.offsets += buffers[_OFFSETS].cast("q")[: header.count].tolist()
            subjects, values = (_strings(buffers, column, header.count) for column in (_SUBJECTS, _VALUES))
            self.values += [
                value if value is not None else subject or b"" for subject, value in zip(subjects, values, strict=True)
            ]
            self.keys += _strings(buffers, _KEYS, header.count)
            if self.leader_epoch is not None and header.leader_epoch < self.leader_epoch:
                raise ViolationError(f"epoch {header.leader_epoch} follows epoch {self.leader_epoch}")
            self.leader_epoch = header.leader_epoch
            self.epochs += [header.leader_epoch] * header.count
            view = view[len(batch) :]


def subjects_of(raw: bytes) -> frozenset[bytes]:
    """Return the subjects of the rows of one batch."""
    found = _strings(codec.buffers(memoryview(raw)), _SUBJECTS, codec.read_header(raw).count)
    return frozenset(subject or b"" for subject in found)


def _strings(buffers: Sequence[memoryview], at: int, count: int) -> list[bytes | None]:
    """Return a string column whose buffers begin at `at`."""
    is_there, ends, data = buffers[at], buffers[at + 1].cast("i"), bytes(buffers[at + 2])
    return [
        data[ends[row] : ends[row + 1]] if not is_there or is_there[row // 8] >> row % 8 & 1 else None
        for row in range(count)
    ]
