"""Finds the offset ranges in which replicas of a partition differ, and the differing rows.

Rules: a replica takes part in a range if it has all of it: its log starts no later, it knows all of the range to be
committed, and none of it is corrupt. Ranges are those of `checksums`, cut at the begin and end of every replica. This
module does not decide which replica is right.

Where a stream removes single rows (compaction by key, time to live, rollups of a subject), each replica does so at its
own time: a row missing on one replica is no difference there, but two unequal rows at one offset always are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.base import limits
from penstock.commitlog.verify.checksums import RangeSum, Row


class ComparedReplica(NamedTuple):
    """One replica. `damaged`: its corrupt offset ranges, half-open; an end of None is unknown."""

    name: str
    log_start: int
    committed_end: int
    sums: Mapping[int, RangeSum]  # by their begin offset
    damaged: tuple[tuple[int, int | None], ...] = ()

    def has(self, begin: int, end: int) -> bool:
        """True if the replica takes part in this range."""
        if not self.log_start <= begin < end <= self.committed_end:
            return False
        return not any(lost < end and (lost_end is None or begin < lost_end) for lost, lost_end in self.damaged)


class UnequalRange(NamedTuple):
    """A range in which replicas differ. `groups`: replicas with equal rows, the largest group first."""

    begin: int
    end: int
    groups: tuple[tuple[str, ...], ...]


def unequal_ranges(replicas: Sequence[ComparedReplica]) -> Iterator[UnequalRange]:
    """Yield all ranges that differ, in order."""
    ends = {one.begin: one.end for replica in replicas for one in replica.sums.values()}
    for begin, end in sorted(ends.items()):
        groups: dict[object, list[str]] = {}
        for replica in replicas:
            if replica.has(begin, end):
                found = replica.sums.get(begin)
                groups.setdefault(None if found is None else (found.rows, found.crcs), []).append(replica.name)
        if len(groups) > 1:
            ordered = sorted(groups.values(), key=lambda names: (-len(names), names))
            yield UnequalRange(begin, end, tuple(map(tuple, ordered)))


@dataclass(slots=True)
class RowComparison:
    """Row counts of two replicas in one range. The first differing offsets are listed."""

    both: int = 0
    only_first: int = 0
    only_second: int = 0
    other: int = 0  # same offset, different rows
    offsets_only: list[int] = field(default_factory=list)
    offsets_other: list[int] = field(default_factory=list)

    def is_difference(self, *, may_lack: bool) -> bool:
        """True if the replicas differ illegally. `may_lack`: each may have removed rows that the other still has."""
        return bool(self.other or (not may_lack and (self.only_first or self.only_second)))


class ReplicaDifference(NamedTuple):
    """Two groups of replicas with different rows in a range. `is_legal`: each may have removed what it lacks."""

    begin: int
    end: int
    ones: tuple[str, ...]
    others: tuple[str, ...]
    rows: RowComparison
    is_legal: bool


def differences(
    replicas: Sequence[ComparedReplica], rows_of: Callable[[str, int, int], Iterable[Row]], *, may_lack: bool
) -> Iterator[ReplicaDifference]:
    """Yield all differences, in order. `rows_of` returns a replica's rows between two offsets."""
    for found in unequal_ranges(replicas):
        ones = found.groups[0]
        for others in found.groups[1:]:
            begin, end = found.begin, found.end
            rows = compare_rows(rows_of(ones[0], begin, end), rows_of(others[0], begin, end))
            if rows.only_first or rows.only_second or rows.other:
                yield ReplicaDifference(begin, end, ones, others, rows, not rows.is_difference(may_lack=may_lack))


def compare_rows(first: Iterable[Row], second: Iterable[Row]) -> RowComparison:
    """Compare row by row, both sides in offset order, holding at most two rows in memory.

    A blank row, which only covers an offset, counts as none: its content was removed.
    """
    found = RowComparison()
    ones, twos = ((row for row in rows if row[2]) for rows in (first, second))
    one, two = next(ones, None), next(twos, None)
    while one is not None or two is not None:
        if two is None or (one is not None and one[0] < two[0]):
            assert one is not None
            found.only_first += 1
            _name(found.offsets_only, one[0])
            one = next(ones, None)
        elif one is None or two[0] < one[0]:
            found.only_second += 1
            _name(found.offsets_only, two[0])
            two = next(twos, None)
        else:
            found.both += 1
            if one != two:
                found.other += 1
                _name(found.offsets_other, one[0])
            one, two = next(ones, None), next(twos, None)
    return found


def _name(offsets: list[int], offset: int) -> None:
    if len(offsets) < limits.VERIFY_ROWS_LISTED_MAX:
        offsets.append(offset)
