"""What `restore` and `stream copy` share: rows put where they were, and compared afterwards.

Rules: what would take rows away meanwhile is off until all is there and compared; see `LATER`. Rows are compared by the
checksums with which replicas are: those that the leader counts, and those of what was to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.base.ids import PartitionId

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.base.config import StreamConfig
    from penstock.client.blocking import Client
    from penstock.client.placing import Placer
    from penstock.client.values import Message
    from penstock.commitlog.checksums import RangeSums
    from penstock.messages import StreamInfo

PUT_TIMEOUT_S = 60.0
_PUT_BYTES = 4 << 20
LATER: dict[str, Any] = {"max_age_ms": None, "max_messages": None, "max_bytes": None, "compact": False}
"""Fields of a config as they are while rows come."""

Batches = Iterator[tuple["pa.RecordBatch", int]]
"""Rows, perhaps none, and up to where they go."""


SEALED_NOTE = "note: stream {} gets no max_age: it is of a sealed stream, which keeps all that it has"


def later(config: StreamConfig, *, is_sealed: bool = False) -> dict[str, Any]:
    """What a stream with that config is to get once all is there: of a sealed one, of which nothing goes, nothing."""
    if is_sealed:
        return {}
    return {field: getattr(config, field) for field, value in LATER.items() if getattr(config, field) != value}


def put(placer: Placer, batches: Batches, tell: Callable[[int], None]) -> None:
    """Put all of it; `tell` hears up to where it is there."""
    for rows, end in _joined(batches):
        placer.put(rows, end)
        tell(end)


def _joined(batches: Batches) -> Batches:
    """Small batches put together: each is an append, which waits for the disk."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    rows = size = end = 0
    for batch, covered in batches:
        end = covered
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if waiting and (size >= _PUT_BYTES or rows >= limits.BATCH_ROWS_MAX):
            yield pa.concat_batches(waiting), end
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting), end


def last_row(client: Client, info: StreamInfo, partition: int, timeout: float) -> Message | None:
    """The last row of a partition, behind which there may be a gap; None: it holds none."""
    from penstock.client.values import datetime_of

    known = client.stream(info.name, timeout=timeout).partitions[partition]
    moment, last = datetime_of(known.last_timestamp_us or 0), None
    for last in client.messages(info, moment, partition=partition, timeout=timeout):  # noqa: B007 (the last one counts)
        pass
    return last


def summed(batches: Batches, sums: RangeSums) -> Batches:
    """The same; their rows are counted in `sums` as they go by."""
    for rows, end in batches:
        if rows.num_rows:
            sums.add(rows)
        yield rows, end


def compare(
    client: Client, info: StreamInfo, partition: int, expected: RangeSums, begin: int, end: int, *, what: str
) -> int:
    """Whether a partition has just the rows that are expected in `[begin, end)`; how many. OperationalError: not so."""
    from penstock.client.verifying import Verifier

    wanted = {int(one.begin): (one.rows, one.crcs) for one in expected.finish()}
    count = sum(rows for rows, _ in wanted.values())
    if info.config.allow_message_ttl or info.config.allow_rollup or begin >= end:
        return count  # of the first two rows go by themselves
    rate, leader = limits.RESTORE_VERIFY_BYTES_PER_S, info.partitions[partition].leader_id
    verifier = Verifier(client, info, PartitionId(partition), rate=rate, timeout_s=PUT_TIMEOUT_S)
    verifier.measure()
    verifier.verify(lambda _: None, (begin, end))
    replica = next((one for one in verifier.replicas if leader in (None, one.broker_id)), verifier.replicas[0])
    if replica.failure:
        raise OperationalError(f"stream {info.name} cannot be compared with {what}: {replica.failure}")
    found = {int(one.begin): (one.rows, tuple(one.crcs)) for one in replica.sums.values() if one.rows}
    if wanted != found:
        differs = min(one for one in {*wanted, *found} if wanted.get(one) != found.get(one))
        raise OperationalError(f"stream {info.name} is not what {what} has, from offset {differs} on")
    return count
