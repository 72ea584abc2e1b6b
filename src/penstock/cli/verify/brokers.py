"""`penstock verify` of streams: each broker verifies its own replicas, and the command compares their checksums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base.errors import PenstockError
from penstock.cli.terminal import output
from penstock.cli.verify.report import DamagedPlace, Differing, VerifiedReplica, differing, judge, note_compared

if TYPE_CHECKING:
    from penstock.client.blocking.client import Client
    from penstock.client.bulk.verifying import ReplicaCheck, Verifier
    from penstock.commitlog.verify.checksums import Row
    from penstock.messages import DamageInfo, StreamInfo


class Which(NamedTuple):
    """A stream, or one of its partitions."""

    stream: str
    partition: int | None = None


def which_of(text: str) -> Which:
    """Parse `orders` or `orders/2`."""
    name, _, partition = text.partition("/")
    return Which(name, int(partition) if partition else None)


def verify_brokers(
    client: Client, wanted: Sequence[Which], *, rate: int, seconds: float
) -> tuple[list[VerifiedReplica], list[Differing]]:
    """Verify all replicas of `wanted`, or of all streams. `rate`: bytes per second on each broker. Raise ValueError."""
    from penstock.base.ids import PartitionId
    from penstock.client.bulk.verifying import Verifier

    replicas: list[VerifiedReplica] = []
    found: list[Differing] = []
    checks = [
        (info, number, Verifier(client, info, PartitionId(number), rate=rate, timeout_s=seconds))
        for info, number in _partitions(client, wanted, seconds)
    ]
    total = sum(check.measure() for *_, check in checks)
    with output.progress("verifying", total) as show:
        done = 0

        def tell(offsets: int) -> None:
            nonlocal done
            done += offsets
            show(done)

        for info, number, check in checks:
            check.verify(tell)
            made, differ = _compared(info, number, check)
            replicas += made
            found += differ
    return replicas, found


def _partitions(client: Client, wanted: Sequence[Which], seconds: float) -> Iterator[tuple[StreamInfo, int]]:
    if not wanted:
        for info in client.streams(timeout=seconds):
            yield from ((info, number) for number in range(len(info.partitions)))
    for one in wanted:
        info = client.stream(one.stream, timeout=seconds)
        count = len(info.partitions)
        if one.partition is not None and one.partition >= count:
            text = f"stream {info.name} has {output.counted(count, 'partition')}, counted from 0"
            raise ValueError(f"{text}; there is no partition {one.partition}")
        yield from ((info, number) for number in range(count) if one.partition in (None, number))


def _name(one: ReplicaCheck) -> str:
    return f"broker {one.broker_id}"


def _compared(info: StreamInfo, number: int, check: Verifier) -> tuple[list[VerifiedReplica], list[Differing]]:
    from penstock.commitlog.verify.checksums import RangeSum, rows_between
    from penstock.commitlog.verify.replica_comparison import ComparedReplica, differences

    replicas = {one.broker_id: _replica(info, number, one) for one in check.replicas}
    compared = [
        ComparedReplica(
            _name(one),
            one.log_start,
            one.committed_end if not one.failure else one.verified_end,
            {begin: RangeSum(*_fields(each)) for begin, each in one.sums.items()},
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


def _fields(one: object) -> tuple[int, int, int, int, int, tuple[int, ...]]:
    from msgspec.structs import astuple

    return astuple(one)  # type: ignore[arg-type]


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
