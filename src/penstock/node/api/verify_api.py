"""Verifies a replica on a client's request: slice by slice, in a disk thread, on an immutable view of the log.

Rules: one slice reads at most VERIFY_SLICE_BYTES and VERIFY_SLICE_BATCHES, or one batch; few run at once, and the
client pauses in between. No state is kept between slices, so a client that disconnects leaves nothing. Only committed
rows are read. Corruption is reported to the client, and to the log as by any reader; the next slice continues behind
it. The index entries of a slice's batches are checked with it; checkpoint and lineage with a slice without batches.
Wrong ones are reported and rewritten.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from msgspec.structs import astuple

from penstock.base import limits
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.batch import codec
from penstock.commitlog import Log, LogView, check_subject_indexes
from penstock.commitlog.verify.checksums import RangeSum, RangeSums
from penstock.messages import DamageInfo, RowSum, VerifyRequest, VerifyResponse
from penstock.node.partition.log_queries import Query
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.partition.query_executor import QueryExecutor
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.security.access import Call
from penstock.node.step import Outbox


class VerifyRange(NamedTuple):
    """The range of a slice: from `offset` up to `end`; checksum ranges begin at `begin`."""

    offset: int
    begin: int
    end: int
    carried: RangeSum | None


class VerifySlice(Query):
    """One slice; afterwards `end_offset` says how far it came."""

    def __init__(self, view: LogView, wanted: VerifyRange, log: Log) -> None:
        """Checkpoint and lineage are checked if the range is empty."""
        super().__init__(view)
        self._log = log
        self._flushed_end = log.flushed_end  # indexes have entries only below it
        self._side_files = log.side_files() if wanted.offset == wanted.end else None
        self.end_offset = wanted.offset
        self.rows = 0
        self.size_bytes = 0
        self.damage: DamageInfo | None = None
        self._wanted = wanted
        self.sums = RangeSums(wanted.begin, wanted.end, start=wanted.offset, carried=wanted.carried)

    def run(self) -> None:
        """Read and verify. Raise RemoteError if the log is no longer there."""
        wanted = self._wanted
        try:
            self._read()
        except RemoteError as error:
            if error.code != ErrorCode.CORRUPT_RANGE:
                raise
            self._lose(error)
        self._view.check_indexes(wanted.offset, self.end_offset, self._flushed_end)
        for _ in check_subject_indexes(self._view, wanted.offset, min(self.end_offset, self._flushed_end)):
            pass
        if self._side_files is not None:
            self._side_files.run()
        self.sums.settle()
        self.rows = self._counted() - (0 if wanted.carried is None else wanted.carried.rows)
        self._view.check_not_cut(self.end_offset)  # other rows may be there by now
        self.end_offset = min(self.end_offset, wanted.end)

    def _read(self) -> None:
        batches = self._batches(self._wanted.offset, self._wanted.end)
        for number, (header, data) in enumerate(batches, start=1):
            try:
                rows = codec.check_rows(data)
            except CorruptionError as error:
                # Its checksum is right: it was written like this.
                extent = Offset(header.base_offset), Offset(header.end_offset)
                self.damage = _damage(error, *extent)
                self.end_offset = header.end_offset
                return
            self.sums.add(rows)
            self.size_bytes += len(data)
            self.end_offset = header.end_offset
            if self.size_bytes >= limits.VERIFY_SLICE_BYTES or number >= limits.VERIFY_SLICE_BATCHES:
                return

    def _counted(self) -> int:
        going_on = self.sums.going_on
        return sum(one.rows for one in self.sums.done) + (0 if going_on is None else going_on.rows)

    def _lose(self, error: RemoteError) -> None:
        end = error.details.get("end_offset")
        base = max(int(error.details["base_offset"]), self.end_offset)
        lost_end = self._wanted.end if end is None else int(end)
        found = CorruptionError(*(error.details[name] for name in ("file", "position", "expected", "found")))
        self.damage = _damage(found, Offset(base), Offset(lost_end))
        # Continue behind it in any case.
        self.end_offset = max(lost_end, self.end_offset + 1)

    def wrong_files(self, partition: Partition) -> tuple[DamageInfo, ...]:
        """Return what is wrong in side files, which are or will be rewritten; call in the owner's thread."""
        found = [*self._view.wrong_indexes]
        if self._side_files is not None and partition.log is self._log and partition.when_idle is None:
            found += self._log.repair_side_files(self._side_files)
        return tuple(
            DamageInfo(file=one.file, position=one.position, expected=one.expected, found=one.found)
            for one in found[: limits.VERIFY_SIDE_PLACES_MAX]
        )

    def range_sums(self) -> tuple[RowSum, ...]:
        """Return the checksums for the client."""
        done, going_on = self.sums.done, self.sums.going_on
        return tuple(RowSum(*one) for one in (done if going_on is None else (*done, going_on)))  # type: ignore[arg-type]


def _damage(error: CorruptionError, base_offset: Offset, end_offset: Offset) -> DamageInfo:
    return DamageInfo(
        file=error.file,
        position=error.position,
        expected=str(error.expected),
        found=str(error.found),
        base_offset=base_offset,
        end_offset=end_offset,
    )


class VerifyApi:
    """All slices of one broker."""

    def __init__(self, outbox: Outbox, *, stopping: RemoteError) -> None:
        self._outbox = outbox
        self._stopping = stopping
        self._is_stopped = False
        self._executor = QueryExecutor(
            outbox, running_max=limits.VERIFY_RUNNING_MAX, waiting_max=limits.VERIFY_WAITING_MAX
        )
        self._open: set[Hashable] = set()  # callers without an answer

    def ask(self, find: PartitionLookup, call: Call, request: VerifyRequest) -> None:
        """Verify a slice of this broker's replica; `caller` is answered later.

        Raise RemoteError: as `PartitionLookup.replica`, or offset_out_of_range, bad_request, overloaded.
        """
        partition = find.replica(request.stream_id, request.partition)
        if request.offset is None:
            self._answer(call.caller, partition, None)
            return
        if self._is_stopped:
            raise self._stopping
        query = VerifySlice(partition.view(), _wanted(partition, request), partition.log)

        def done(error: Exception | None) -> None:
            if call.caller not in self._open:
                return
            self._open.discard(call.caller)
            try:
                if error is not None:
                    raise self._stopping if self._is_stopped else as_remote_error(error)
                call.authorize()
            except RemoteError as refusal:
                self._outbox.reply(call.caller, refusal)
            else:
                self._answer(call.caller, partition, query)

        self._executor.ask(call.caller, query, done, call.auth.who)
        self._open.add(call.caller)

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Forget the requests of disconnected callers."""
        gone = self._open.intersection(callers)
        self._open -= gone
        self._executor.callers_disconnected(gone)

    def stop(self) -> None:
        """Cancel all slices because the broker is about to stop. May be called twice."""
        self._is_stopped = True
        self._executor.stop(self._stopping)

    def _answer(self, caller: Hashable, partition: Partition, query: VerifySlice | None) -> None:
        response = VerifyResponse(
            log_start=Offset(partition.log_start),
            committed_end=Offset(partition.committed_end),
            end_offset=Offset(partition.log_start if query is None else query.end_offset),
            rows=0 if query is None else query.rows,
            size_bytes=0 if query is None else query.size_bytes,
            sums=() if query is None else query.range_sums(),
            damage=None if query is None else query.damage,
            side_files=() if query is None else query.wrong_files(partition),
        )
        self._outbox.reply(caller, response)


def _wanted(partition: Partition, request: VerifyRequest) -> VerifyRange:
    assert request.offset is not None
    offset, committed_end = int(request.offset), partition.committed_end
    end = committed_end if request.end is None else int(request.end)
    begin = offset if request.begin is None else int(request.begin)
    carried = None if request.carried is None else RangeSum(*astuple(request.carried))
    if offset < partition.log_start or max(offset, end) > committed_end:
        text = f"verify: {partition.label} holds {partition.log_start} up to (not including) {committed_end} here"
        raise RemoteError(
            ErrorCode.OFFSET_OUT_OF_RANGE, text, log_start=partition.log_start, committed_end=committed_end
        )
    if not begin <= offset <= end:
        text = f"verify: `begin` {begin}, `offset` {offset} and `end` {end} are not in order"
        raise RemoteError(ErrorCode.BAD_REQUEST, text)
    if carried is not None:
        wanted = RangeSums(begin, end).range_of(offset)
        if carried[:2] != wanted or not carried.begin <= carried.first_offset <= carried.last_offset < offset:
            raise RemoteError(ErrorCode.BAD_REQUEST, f"verify: `carried` is not of the range that holds {offset}")
    return VerifyRange(offset, begin, end, carried)
