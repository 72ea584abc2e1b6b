"""Have brokers verify their replicas of a partition, slice by slice.

Rules: each replica is asked itself, up to the `committed_end` that it knows; a broker that does not answer is reported
at the end and does not stop the others. All replicas of a partition get the same ranges, cut where any of them begins
or ends. Between two slices a broker rests: for as long as the rate limit requires, and a share of the time the slice
took. Nothing keeps running on the broker after the caller has disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock.base import limits
from penstock.base.errors import ErrorCode, OperationalError, PenstockError, RemoteError
from penstock.base.ids import BrokerId, Offset, PartitionId
from penstock.batch import codec
from penstock.client.blocking import client as blocking
from penstock.client.checks import seconds_of
from penstock.client.link.link import Link
from penstock.client.read.batches import check_format
from penstock.messages import (
    DamageInfo,
    FetchRequest,
    FetchResponse,
    PartitionInfo,
    RowSum,
    StreamInfo,
    VerifyRequest,
    VerifyResponse,
)

if TYPE_CHECKING:
    import pyarrow as pa

_PASSING = frozenset({ErrorCode.OVERLOADED, ErrorCode.NOT_YET, ErrorCode.STOPPING})
_PAUSE_S = 0.5  # before a busy broker is asked again

Tell = Callable[[int], None]
"""Called with the number of offsets newly verified."""


@dataclass(slots=True, eq=False)
class ReplicaCheck:
    """One replica and the result of its verification. `failure`: why it could not be verified completely."""

    broker_id: BrokerId
    address: str | None
    log_start: int = 0
    committed_end: int = 0
    verified_end: int = 0
    rows: int = 0
    size_bytes: int = 0
    sums: dict[int, RowSum] = field(default_factory=dict)
    damage: list[DamageInfo] = field(default_factory=list)
    side_files: list[DamageInfo] = field(default_factory=list)  # corruption in files that hold no rows
    failure: str = ""


def replicas_of(link: Link, part: PartitionInfo) -> list[ReplicaCheck]:
    """Return the replicas of a partition, with the brokers' addresses. A single broker has the only one."""
    if not part.replicas:
        return [ReplicaCheck(link.hello.broker_id, link.server)]
    return [
        ReplicaCheck(broker_id, link.view.address_of(broker_id))
        for broker_id in sorted((*part.replicas, *part.observers))
    ]


class PartitionCheck:
    """Verifies the replicas of one partition: call `measure`, `verify`, then `batches_between` where they differ."""

    def __init__(self, link: Link, info: StreamInfo, partition: PartitionId, *, rate: int, timeout_s: float) -> None:
        """`rate`: bytes per second that each broker reads, counted uncompressed."""
        self._link = link
        self._info = info
        self._partition = partition
        self._rate = rate
        self._timeout_s = timeout_s
        self.replicas = replicas_of(link, info.partitions[partition])

    async def measure(self) -> int:
        """Query each replica's range; return the number of offsets to verify in total. NotAuthorized."""
        await asyncio.gather(*map(self._measure, self.replicas))
        return sum(one.committed_end - one.log_start for one in self.replicas)

    async def verify(self, tell: Tell, only: tuple[int, int] | None = None) -> None:
        """Verify everything, or the range `only`, for replicas that hold all of it."""
        known = [one for one in self.replicas if not one.failure]
        cuts = sorted({place for one in known for place in (one.log_start, one.committed_end)})
        cuts = cuts if only is None else list(only)
        # If this is cancelled, or one task fails unexpectedly, the others end as well.
        async with asyncio.TaskGroup() as group:
            for one in known:
                group.create_task(self._verify(one, cuts, tell))

    async def _measure(self, replica: ReplicaCheck) -> None:
        if replica.address is None:
            replica.failure = "the broker's address is unknown"
            return
        try:
            found = await self._ask(replica, self._request())
        except (PenstockError, OperationalError) as error:
            if isinstance(error, RemoteError) and error.code == ErrorCode.NOT_AUTHORIZED:
                raise  # an authorization error does not concern one replica
            replica.failure = str(error)
            return
        replica.log_start = replica.verified_end = found.log_start
        replica.committed_end = max(found.log_start, found.committed_end)

    async def _verify(self, replica: ReplicaCheck, cuts: list[int], tell: Tell) -> None:
        try:
            for begin, end in pairwise(cuts):
                if replica.log_start <= begin and end <= replica.committed_end:
                    await self._verify_range(replica, begin, end, tell)
            end_offset = Offset(replica.committed_end)
            found = await self._slice(replica, self._request(offset=end_offset, end=end_offset))
            if found is not None:
                self._take(replica, found)
        except (PenstockError, OperationalError) as error:
            replica.failure = str(error)

    async def _verify_range(self, replica: ReplicaCheck, begin: int, end: int, tell: Tell) -> None:
        clock = asyncio.get_running_loop()
        offset = begin
        carried: RowSum | None = None
        while offset < end:
            asked_s = clock.time()
            request = self._request(offset=Offset(offset), begin=Offset(begin), end=Offset(end), carried=carried)
            found = await self._slice(replica, request)
            if found is None:  # retention has removed the range: discard partial sums
                tell(min(end, replica.log_start) - offset)
                offset, carried = replica.log_start, None
                begin = max(begin, min(offset, end))
                continue
            if found.end_offset <= offset:
                text = f"{replica.address} has verified up to offset {found.end_offset}, and was asked from {offset} on"
                raise OperationalError(f"{text}: it is broken, or of another version; see its log")
            carried = self._take(replica, found)
            tell(found.end_offset - offset)
            offset = replica.verified_end = found.end_offset
            took_s = clock.time() - asked_s
            await asyncio.sleep(max(found.size_bytes / self._rate - took_s, limits.VERIFY_REST_SHARE * took_s))

    async def _slice(self, replica: ReplicaCheck, request: VerifyRequest) -> VerifyResponse | None:
        """Return the broker's answer; None: the log begins later now, and `replica` was updated."""
        try:
            return await self._ask(replica, request)
        except RemoteError as error:
            log_start = error.details.get("log_start")
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE or not isinstance(log_start, int):
                raise
            if log_start <= (request.offset or 0):
                raise
            replica.log_start = log_start
            return None

    def _take(self, replica: ReplicaCheck, found: VerifyResponse) -> RowSum | None:
        """Record the result of a slice; return the partial checksum to be continued."""
        replica.rows += found.rows
        replica.size_bytes += found.size_bytes
        if found.damage is not None:
            replica.damage.append(found.damage)
        replica.side_files += found.side_files
        for one in found.sums:
            replica.sums[one.begin] = one
        last = found.sums[-1] if found.sums else None
        return last if last is not None and found.end_offset < last.end else None

    def _request(self, **fields: Any) -> VerifyRequest:
        return VerifyRequest(stream_id=self._info.stream_id, partition=self._partition, **fields)

    async def _ask(self, replica: ReplicaCheck, request: VerifyRequest) -> VerifyResponse:
        """Return the broker's answer; retry a busy broker until the time-out."""
        assert replica.address is not None
        clock = asyncio.get_running_loop()
        deadline_s = clock.time() + seconds_of(self._timeout_s)
        while True:
            left_s = max(0.001, deadline_s - clock.time())
            try:
                return (await self._link.call_at(replica.address, request, VerifyResponse, timeout_s=left_s))[0]
            except RemoteError as error:
                if error.code not in _PASSING or clock.time() + _PAUSE_S >= deadline_s:
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def batches_between(
        self, replica: ReplicaCheck, begin: int, end: int
    ) -> AsyncGenerator[Iterator[pa.RecordBatch], None]:
        """Yield a replica's verified batches that hold these offsets, fetched from its own broker, answer by answer."""
        assert replica.address is not None
        offset = begin
        while offset < end:
            request = FetchRequest(
                stream_id=self._info.stream_id,
                partition=self._partition,
                offset=Offset(offset),
                bytes_max=limits.VERIFY_SLICE_BYTES,
            )
            answer, raw = await self._link.call_at(replica.address, request, FetchResponse, timeout_s=self._timeout_s)
            check_format(answer.format_version)
            if answer.end_offset <= offset:
                raise RemoteError(ErrorCode.NOT_YET, f"broker {replica.broker_id} has nothing at offset {offset}")
            yield _batches_in(raw, f"what broker {replica.broker_id} sent")
            offset = answer.end_offset
            await asyncio.sleep(len(raw) / self._rate)


class Verifier:
    """Verifies one partition, for blocking programs."""

    def __init__(self, client: blocking.Client, info: StreamInfo, partition: PartitionId, **options: Any) -> None:
        """`options`: those of `PartitionCheck`."""
        self._thread = client._thread  # noqa: SLF001 (the same client's asyncio API)
        link = client._client._link  # noqa: SLF001 (the same)
        self._check = PartitionCheck(link, info, partition, **options)

    @property
    def replicas(self) -> list[ReplicaCheck]:
        """State of each replica."""
        return self._check.replicas

    def measure(self) -> int:
        """Query the ranges; see `PartitionCheck.measure`."""
        return self._thread.run(self._check.measure())

    def verify(self, tell: Tell, only: tuple[int, int] | None = None) -> None:
        """Verify; see `PartitionCheck.verify`. `tell` runs in another thread. An interrupt also stops the brokers."""
        self._thread.run(self._check.verify(tell, only))

    def batches_between(self, replica: ReplicaCheck, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield batches; see `PartitionCheck.batches_between`."""
        yield from self._thread.iterate(self._check.batches_between(replica, begin, end))


def _batches_in(raw: bytes | memoryview, source: str) -> Iterator[pa.RecordBatch]:
    view = memoryview(raw).cast("B")
    position = 0
    while position < len(view):
        header = codec.read_header(view[position:], file=source, position=position)
        message = view[position : position + header.size_bytes]
        codec.verify(message, file=source, position=position)
        yield codec.check_rows(message, file=source, position=position)
        position += header.size_bytes
