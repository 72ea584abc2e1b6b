"""Results of a verification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from penstock.commitlog.verify.replica_comparison import ComparedReplica, ReplicaDifference


class DamagedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A corrupt place in a file and the range of offsets lost with it; (None, None) if no row is lost."""

    file: str
    position: int
    base_offset: int | None
    end_offset: int | None
    expected: str
    found: str


class VerifiedReplica(msgspec.Struct, kw_only=True):
    """Result for one replica of a partition: a broker, data directory, folder or segment file.

    `committed_end` is 0 if unknown; `unlisted` counts corrupt places beyond those in `damage`; `torn` is the start of a
    possibly torn tail, which is not verified; `not_verified`: why the replica could not be verified.
    """

    stream: str
    partition: int
    replica: str
    log_start: int
    log_end: int
    committed_end: int = 0
    rows: int = 0
    size_bytes: int = 0
    damage: list[DamagedPlace] = []
    unlisted: int = 0
    torn: DamagedPlace | None = None
    not_verified: str | None = None
    compared_from: int | None = None
    compared_end: int | None = None
    differs: bool = False

    @property
    def verdict(self) -> str:
        """`not verified`, `damaged`, `differs` or `sound`."""
        if self.not_verified is not None:
            return "not verified"
        if self.damage:
            return "damaged"
        return "differs" if self.differs else "sound"


class Differing(msgspec.Struct, frozen=True, kw_only=True):
    """A range of offsets in which replicas have different rows.

    `legal`: explained by compaction, TTL or rollup at different times.
    """

    stream: str
    partition: int
    begin: int
    end: int
    replicas: tuple[str, ...]
    others: tuple[str, ...]
    rows_only_in_replicas: int
    rows_only_in_others: int
    rows_that_differ: int
    first_offsets: tuple[int, ...]
    legal: bool


def differing(stream: str, partition: int, found: ReplicaDifference) -> Differing:
    """Return the result for a difference."""
    rows = found.rows
    return Differing(
        stream=stream,
        partition=partition,
        begin=found.begin,
        end=found.end,
        replicas=found.ones,
        others=found.others,
        rows_only_in_replicas=rows.only_first,
        rows_only_in_others=rows.only_second,
        rows_that_differ=rows.other,
        first_offsets=tuple(rows.offsets_other or rows.offsets_only),
        legal=found.is_legal,
    )


def note_compared(replica: VerifiedReplica, one: ComparedReplica, all_of_them: Sequence[ComparedReplica]) -> None:
    """Set the range of the replica's offsets that another replica has, too."""
    shared = [
        (begin, end)
        for other in all_of_them
        if other is not one
        and (begin := max(one.log_start, other.log_start)) < (end := min(one.committed_end, other.committed_end))
    ]
    if shared:
        replica.compared_from = min(begin for begin, _ in shared)
        replica.compared_end = max(end for _, end in shared)


def judge(replicas: Iterable[VerifiedReplica], found: Iterable[Differing]) -> None:
    """Set `differs`: on the minority if one exists, else on all replicas of a difference."""
    by_name = {one.replica: one for one in replicas}
    for one in found:
        if not one.legal:
            wrong = one.others if len(one.replicas) > len(one.others) else (*one.replicas, *one.others)
            for name in wrong:
                by_name[name].differs = True


class Verified(NamedTuple):
    """Result of a verification: all replicas, and the ranges of offsets in which some have other rows."""

    replicas: list[VerifiedReplica]
    differences: list[Differing]

    @property
    def is_sound(self) -> bool:
        """True if all replicas were verified and are sound."""
        return all(one.verdict == "sound" for one in self.replicas)
