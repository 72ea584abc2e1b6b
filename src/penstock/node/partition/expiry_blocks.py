"""Blocks of a log with rows that will expire, and which of their rows do so next.

Rules: a block is a range of offsets, of which the least expiry is known. As one is read again, because rows of it
expire, those that expire next are noted with their times, and it is not read again for these: with times to live that
are scattered over a large log, each second some rows of every block expire. All blocks of a broker share the room for
such notes, EXPIRY_NEXT_ROWS_MAX; EXPIRY_NEXT_ROWS_MIN of a block may be noted in any case.

    block   ────────────────────────────────────────────────────────────▶ offsets
    next    12:00:07 row 3 │ 12:00:07 row 9 │ 12:00:08 row 1 │ … later_us: it is read again

Beyond EXPIRY_BLOCKS_MAX neighbours become one: memory is bounded, and more is read when one is due.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.base import limits

_PART = 4  # of the budget that is left, the blocks of a partition take this part at most: others come, too

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class NextRows:
    """Rows of a block that expire next: their wall-clock times, which do not fall, and beside them their offsets.

    `later_us`: when the first one of the others expires, at the earliest; None: no other one will.
    """

    dues_us: array[int]
    offsets: array[int]
    later_us: int | None

    @property
    def due_us(self) -> int | None:
        """Time at which the first row expires, at the earliest; None: none will.

        Rows that came after the note was made may expire before those that are noted.
        """
        if not self.dues_us:
            return self.later_us
        return self.dues_us[0] if self.later_us is None else min(self.dues_us[0], self.later_us)

    def over(self, now_us: int) -> list[int] | None:
        """Return the offsets of the rows that are over, in their order; None: others are over, too."""
        if self.later_us is not None and self.later_us <= now_us:
            return None
        return sorted(self.offsets[: bisect_right(self.dues_us, now_us)])

    def before(self, due_us: int) -> NextRows:
        """Return them with others that expire at that time, at the earliest."""
        later_us = due_us if self.later_us is None else min(due_us, self.later_us)
        return NextRows(self.dues_us, self.offsets, later_us)

    def after(self, now_us: int) -> NextRows:
        """Return what is left of them."""
        left = bisect_right(self.dues_us, now_us)
        return NextRows(self.dues_us[left:], self.offsets[left:], self.later_us)


class NextRowsBudget:
    """Room for notes of rows that expire next, shared by the partitions of a broker."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = limits.EXPIRY_NEXT_ROWS_MAX


class Nearest:
    """Collects rows with their times, and keeps the `most` that expire first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._dues_us: list[pa.Int64Array] = []
        self._offsets: list[pa.Int64Array] = []
        self._count = 0
        self._later_us: int | None = None

    def add(self, dues_us: pa.Int64Array, offsets: pa.Int64Array) -> None:
        """Add rows."""
        if len(offsets):
            self._dues_us.append(dues_us)
            self._offsets.append(offsets)
            self._count += len(offsets)
            if self._count > self._most + limits.EXPIRY_BLOCK_ROWS:
                self._sort()

    def _sort(self) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        dues_us, offsets = pa.concat_arrays(self._dues_us), pa.concat_arrays(self._offsets)
        order = pc.sort_indices(dues_us)
        if len(order) > self._most:
            first_us = dues_us[order[self._most].as_py()].as_py()
            self._later_us = first_us if self._later_us is None else min(first_us, self._later_us)
            order = order.slice(0, self._most)
        self._dues_us, self._offsets, self._count = [dues_us.take(order)], [offsets.take(order)], len(order)

    def finish(self) -> NextRows:
        """Return them."""
        if not self._count:
            return NextRows(array("q"), array("q"), self._later_us)
        self._sort()
        return NextRows(_numbers(self._dues_us[0]), _numbers(self._offsets[0]), self._later_us)


def _numbers(values: pa.Int64Array) -> array[int]:
    numbers = array("q")
    buffer = values.buffers()[1]
    assert buffer is not None
    numbers.frombytes(memoryview(buffer)[8 * values.offset : 8 * (values.offset + len(values))])
    return numbers


@dataclass(slots=True)
class Block:
    """Rows in [`begin`, `end`). `due_us`: wall-clock time at which the first one expires, at the earliest."""

    begin: int
    end: int
    due_us: int
    size_bytes: int
    next_rows: NextRows | None = None  # None: it was not read again since it was new


class ExpiryBlocks:
    """Blocks in the order of offsets; no two overlap."""

    __slots__ = ("_blocks", "_budget", "_noted", "_rows_max", "known_end")

    def __init__(self, begin: int, budget: NextRowsBudget) -> None:
        self.known_end = begin  # all before it was read
        self._budget, self._noted = budget, 0
        self._blocks: list[Block] = []
        self._rows_max = limits.EXPIRY_BLOCK_ROWS

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def next_us(self) -> int | None:
        """Time at which the next row expires, at the earliest; None: none will."""
        return min((one.due_us for one in self._blocks), default=None)

    @property
    def next_rows_max(self) -> int:
        """Number of rows of one block that may be noted as its next ones: a part of what is left of the budget."""
        return max(self._budget.left // (_PART * max(1, len(self._blocks))), limits.EXPIRY_NEXT_ROWS_MIN)

    def settle(self) -> None:
        """Take from the budget what is noted now, and give back what was before."""
        noted = sum(len(one.next_rows.offsets) for one in self._blocks if one.next_rows is not None)
        self._budget.left += self._noted - noted
        self._noted = noted

    def close(self) -> None:
        """Give all back: the blocks are used no more."""
        self._budget.left += self._noted
        self._noted = 0

    def add(self, begin: int, end: int, due_us: int, size_bytes: int) -> None:
        """Add rows behind all others, of a batch of that many bytes."""
        last = self._blocks[-1] if self._blocks else None
        if last is not None:
            begin = max(begin, last.end)
            bytes_max = limits.EXPIRY_BLOCK_BYTES * self._rows_max // limits.EXPIRY_BLOCK_ROWS
            if end - last.begin <= self._rows_max and last.size_bytes + size_bytes <= bytes_max:
                last.end, last.due_us = end, min(last.due_us, due_us)
                last.size_bytes += size_bytes
                last.next_rows = None if last.next_rows is None else last.next_rows.before(due_us)
                return
        self._blocks.append(Block(begin, end, due_us, size_bytes))
        if len(self._blocks) > limits.EXPIRY_BLOCKS_MAX:
            self._merge()

    def _merge(self) -> None:
        self._rows_max *= 2
        merged: list[Block] = []
        for number in range(0, len(self._blocks), 2):
            pair = self._blocks[number : number + 2]
            due_us, size_bytes = min(one.due_us for one in pair), sum(one.size_bytes for one in pair)
            merged.append(Block(pair[0].begin, pair[-1].end, due_us, size_bytes))
        self._blocks = merged

    def due(self, now_us: int, start: int) -> list[Block]:
        """Return the blocks that are due, in order, and forget those below the log start."""
        if self._blocks and self._blocks[0].end <= start:
            self._blocks = [one for one in self._blocks if one.end > start]
        return [one for one in self._blocks if one.due_us <= now_us]

    def looked(self, begin: int, next_rows: NextRows) -> None:
        """Take what expires next of the block at `begin`: what is over is hidden."""
        number = bisect_left(self._blocks, begin, key=_begin_of)
        due_us = next_rows.due_us
        if due_us is None:
            del self._blocks[number]
        else:
            self._blocks[number].due_us, self._blocks[number].next_rows = due_us, next_rows


def _begin_of(block: Block) -> int:
    return block.begin
