"""Verifies streams: each broker verifies its own replicas, and their checksums are compared here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import astuple

from penstock.base import limits
from penstock.base.errors import PenstockError
from penstock.base.ids import PartitionId
from penstock.base.units import counted
from penstock.client.blocking.client import Client
from penstock.client.bulk.verifying import ReplicaCheck, Verifier
from penstock.commitlog.verify.checksums import RangeSum, Row, rows_between
from penstock.commitlog.verify.replica_comparison import ComparedReplica, differences
from penstock.messages import DamageInfo, StreamInfo
from penstock.ops.progress import Progress
from penstock.ops.verify.results import (
    DamagedPlace,
    Differing,
    Verified,
    VerifiedReplica,
    differing,
    judge,
    note_compared,
)


class _Which(NamedTuple):
    """A stream, or one of its partitions."""

    stream: str
    partition: int | None = None


def _which_of(text: str) -> _Which:
    name, _, partition = text.partition("/")
    return _Which(name, int(partition) if partition else None)


def verify_streams(
    client: Client,
    streams: Sequence[str] = (),
    *,
    rate: int = limits.VERIFY_BYTES_PER_S_DEFAULT,
    timeout: float = 10.0,
    progress: Progress | None = None,
) -> Verified:
    """Have brokers verify all replicas of `streams` ("orders", or "orders/2" for a partition); default: of all streams.

        found = ops.verify_streams(client, ["orders", "prices/2"])
        assert found.is_sound, [one.replica for one in found.replicas if one.verdict != "sound"]

    `rate`: most bytes per second that each broker reads. StreamNotFound; NotAuthorized: it needs the rule `admin`;
    ValueError: there is no such partition.
    """
    done = Verified([], [])
    checks = [
        (info, number, Verifier(client, info, PartitionId(number), rate=rate, timeout_s=timeout))
        for info, number in _partitions(client, [_which_of(one) for one in streams], timeout)
    ]
    total = sum(check.measure() for *_, check in checks)
    with (progress or Progress()).step("verifying", total) as show:
        offsets_done = 0

        def tell(offsets: int) -> None:
            nonlocal offsets_done
            offsets_done += offsets
            show(offsets_done)

        for info, number, check in checks:
            check.verify(tell)
            replicas, found = _compared(info, number, check)
            done.replicas.extend(replicas)
            done.differences.extend(found)
    return done


def _partitions(client: Client, wanted: Sequence[_Which], seconds: float) -> Iterator[tuple[StreamInfo, int]]:
    if not wanted:
        for info in client.streams(timeout=seconds):
            yield from ((info, number) for number in range(len(info.partitions)))
    for one in wanted:
        info = client.stream(one.stream, timeout=seconds)
        count = len(info.partitions)
        if one.partition is not None and one.partition >= count:
            text = f"stream {info.name} has {counted(count, 'partition')}, counted from 0"
            raise ValueError(f"{text}; there is no partition {one.partition}")
        yield from ((info, number) for number in range(count) if one.partition in (None, number))


def _name(one: ReplicaCheck) -> str:
    return f"broker {one.broker_id}"


def _compared(info: StreamInfo, number: int, check: Verifier) -> tuple[list[VerifiedReplica], list[Differing]]:
    replicas = {one.broker_id: _replica(info, number, one) for one in check.replicas}
    compared = [
        ComparedReplica(
            _name(one),
            one.log_start,
            one.committed_end if not one.failure else one.verified_end,
            {begin: RangeSum(*astuple(each)) for begin, each in one.sums.items()},
            tuple((damage.base_offset or 0, damage.end_offset) for damage in one.damage),
        )
        for one in check.replicas
    ]
    by_name = {_name(one): one for one in check.replicas}
    for each, one in zip(replicas.values(), compared, strict=True):
        note_compared(each, one, compared)

    def rows_of(name: str, begin: int, end: int) -> Iterator[Row]:
        return rows_between(check.batches_between(by_name[name], begin, end), begin, end)

    config = info.config
    may_lack = config.compact or config.allow_message_ttl or config.allow_rollup
    found: list[Differing] = []
    try:
        found += (differing(info.name, number, one) for one in differences(compared, rows_of, may_lack=may_lack))
    except PenstockError as error:
        for each in replicas.values():
            each.not_verified = each.not_verified or f"its rows could not be compared: {error}"
    judge(replicas.values(), found)
    return list(replicas.values()), found


def _replica(info: StreamInfo, number: int, one: ReplicaCheck) -> VerifiedReplica:
    return VerifiedReplica(
        stream=info.name,
        partition=number,
        replica=_name(one),
        log_start=one.log_start,
        log_end=one.verified_end,
        committed_end=one.committed_end,
        rows=one.rows,
        size_bytes=one.size_bytes,
        damage=[_place(damage, one) for damage in (*one.damage, *one.side_files)],
        not_verified=one.failure or None,
    )


def _place(damage: DamageInfo, one: ReplicaCheck) -> DamagedPlace:
    return DamagedPlace(
        file=f"{damage.file} of {_name(one)}",
        position=damage.position,
        base_offset=damage.base_offset,
        end_offset=damage.end_offset,
        expected=damage.expected,
        found=damage.found,
    )
