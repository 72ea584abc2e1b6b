"""Verified batches of which messages were looked up, in memory: the next look-up in one reads no file.

Rules: a batch is void once its partition has another table of last offsets (`identity`): then the leadership has ended,
or rows are hidden that were last ones. All partitions of a broker share the room; the oldest batch goes first.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from penstock.base.ids import PartitionKey
from penstock.batch.codec import Buffer


class _Batch(NamedTuple):
    identity: object
    end_offset: int
    data: Buffer


class KeptBatches:
    """Batches of one broker's partitions, of `bytes_max` at most."""

    def __init__(self, bytes_max: int) -> None:
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._batches: dict[tuple[PartitionKey, int], _Batch] = {}  # by base offset, the oldest first
        self._bases: dict[PartitionKey, list[int]] = {}  # base offsets in order

    def find(self, key: PartitionKey, identity: object, offset: int) -> Buffer | None:
        """Return the batch that has an offset, or None."""
        bases = self._bases.get(key)
        if bases is None or not (number := bisect_right(bases, offset)):
            return None
        base_offset = bases[number - 1]
        found = self._batches[key, base_offset]
        if found.identity is not identity:
            self._drop(key, base_offset)
            return None
        return found.data if offset < found.end_offset else None

    def keep(self, key: PartitionKey, identity: object, base_offset: int, end_offset: int, data: Buffer) -> None:
        """Keep a batch."""
        if len(data) > self._bytes_max:
            return
        if (key, base_offset) in self._batches:
            self._drop(key, base_offset)
        while self.size_bytes + len(data) > self._bytes_max:
            self._drop(*next(iter(self._batches)))
        bases = self._bases.setdefault(key, [])
        bases.insert(bisect_right(bases, base_offset), base_offset)
        self._batches[key, base_offset] = _Batch(identity, end_offset, data)
        self.size_bytes += len(data)

    def _drop(self, key: PartitionKey, base_offset: int) -> None:
        self.size_bytes -= len(self._batches.pop((key, base_offset)).data)
        bases = self._bases[key]
        bases.remove(base_offset)
        if not bases:
            del self._bases[key]
