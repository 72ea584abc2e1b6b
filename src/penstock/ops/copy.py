"""Copies a stream's rows to another stream, in the same cluster or another one.

Rules: the copy is paused, so that it stores no other messages; rows keep their offsets and times. A run continues at
the end of the copy, and ends with a comparison of the copied rows by checksums. Deletion in the copy is suspended
meanwhile. Offsets that the source has deleted before they were copied are a hole, which is reported. The copy gets the
schemas of the source, before the rows and after the ranges are known: so it has those by which the rows were written.
A run that lets the copy accept messages gives it the consumers of the source first, as they are then; a copy with the
retention `interest` gets that behind them: without them it would show no row.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, NamedTuple

import msgspec

from penstock.base.config import Intake, StreamConfig, SuspendDeletion
from penstock.base.errors import OperationalError
from penstock.base.ids import are_different_clusters
from penstock.base.units import format_offsets
from penstock.client.blocking.client import Client
from penstock.client.bulk.placing import Placer
from penstock.client.bulk.raw_batches import raw_batches
from penstock.client.errors import MessageNotFound, OffsetOutOfRange, StreamNotFound
from penstock.client.read import batches
from penstock.client.read.filters import Filter
from penstock.client.values import EARLIEST, LATEST, Message, Start
from penstock.commitlog.verify.checksums import RangeSums
from penstock.messages import StreamInfo
from penstock.ops import carried_consumers, carried_schemas, placed_rows
from penstock.ops.errors import ArgumentError
from penstock.ops.placed_rows import FutureTimes, RowTimes
from penstock.ops.progress import Progress


class Copied(NamedTuple):
    """Result of one run: `rows` were copied and compared; `consumers` are in the copy, if it is resumed."""

    source: str
    target: str
    rows: int
    is_resumed: bool
    consumers: int = 0


class CopyOptions(NamedTuple):
    """The range of a stream to copy, and the config of the copy.

    `start`, `end`: only rows from there on, and before there; default: where the log ends now. `subject`: only subjects
    that match. `like`: a stream of the copy's cluster, whose config the copy gets. `resume`: let the copy accept
    messages at the end. `future_times`: see `FutureTimes`. `consumers`: with `resume`, those of JetStream's API, too.
    """

    start: Start = EARLIEST
    end: Start | None = None
    subject: str | None = None
    like: str | None = None
    resume: bool = False
    future_times: FutureTimes | str = "keep"
    consumers: bool = True


def copy_stream(
    here: Client,
    source: str,
    target: str,
    options: CopyOptions | None = None,
    *,
    there: Client | None = None,
    timeout: float = 10.0,
    progress: Progress | None = None,
) -> Copied:
    """Copy the rows of stream `source` that stream `target` lacks; a new target gets the source's config, paused.

        with penstock.connect("one:7422") as here, penstock.connect("two:7422") as there:
            done = ops.copy_stream(here, "orders", "orders", there=there)

    `there`: the cluster of the copy; default: the same. ArgumentError: the copy needs another name, or an offset is
    given for several partitions. OperationalError: the target is not paused, or holds other rows.
    """
    there, told = there or here, progress or Progress()
    start, end, subject, like, resume, future_times, with_consumers = options or CopyOptions()
    wanted = None if subject is None else Filter(subject=subject)
    info = here.stream(source, timeout=timeout)
    clusters = (here.cluster_id(timeout=timeout), there.cluster_id(timeout=timeout))
    if source == target and not are_different_clusters(*clusters):
        raise ArgumentError("the copy needs another name, or another cluster (--to-server)")
    if (isinstance(start, int) or isinstance(end, int)) and len(info.partitions) > 1:
        text = f"an offset is a place in one partition, and stream {info.name} has {len(info.partitions)}"
        raise ArgumentError(f"{text}: give a time")
    times = RowTimes.of(FutureTimes(future_times), there.status(timeout=timeout))
    job = _Job(here, there, info, wanted, timeout, times, told)
    config = job.config(target, like)
    is_sealed, has_age = like is None and info.intake == Intake.SEALED, config.max_age_ms is not None
    config = msgspec.structs.replace(config, **placed_rows.NO_LIMITS) if is_sealed else config
    made = job.target(placed_rows.shown_config(config))
    limits = {} if like is None else {field: getattr(config, field) for field in placed_rows.NO_LIMITS}
    with placed_rows.unfinished_said(made.config, told):
        spans = [job.span(made, number, start, end) for number in range(max(1, len(info.partitions)))]
        job.copy_schemas(made)
    total = sum(one.end - one.begin for one in spans)
    with (
        placed_rows.deletion_suspended(there, made, timeout, told, **limits),
        told.step("Copying", total, noun="offsets") as advance,
    ):
        rows = sum(job.copy(made, one, advance, before) for one, before in _with_sums(spans))
    if is_sealed and has_age and made.config.max_age_ms is None:
        told.note(placed_rows.SEALED_NOTE.format(made.name))
    consumers = job.finish(made, config, with_consumers=with_consumers) if resume else 0
    times.tell(told, made.name)
    return Copied(info.name, made.name, rows, resume, consumers)


class _Span(NamedTuple):
    """The offset range of one partition to copy: `[begin, end)`."""

    placer: Placer
    partition: int
    start: int  # log start offset of the copy
    begin: int
    end: int
    latest_us: int | None  # later row times are lowered to this one; None: no limit
    is_log_start: bool  # True if the source has no earlier rows


def _with_sums(spans: list[_Span]) -> list[tuple[_Span, int]]:
    """Return each span with the count of offsets in the spans before it."""
    done, found = 0, []
    for one in spans:
        found.append((one, done))
        done += one.end - one.begin
    return found


class _Job(NamedTuple):
    """One run of a copy."""

    here: Client
    there: Client
    source: StreamInfo
    wanted: Filter | None
    timeout_s: float
    times: RowTimes
    progress: Progress

    def config(self, name: str, like: str | None) -> StreamConfig:
        """Return the final config of the copy, limited to the brokers of its cluster."""
        of = self.source.config if like is None else self.there.stream(like, timeout=self.timeout_s).config
        fields: dict[str, Any] = {field: getattr(of, field) for field in StreamConfig.__struct_fields__}
        kept = ("subject", "more_subjects", "former_subjects", "partitions", "partition_by", "range_bounds")
        kept_too = ("first_offset", "suspend_deletion")  # rows keep their offsets
        sources = {field: getattr(self.source.config, field) for field in (*kept, *kept_too)}
        brokers = max(1, len(self.there.status(timeout=self.timeout_s).brokers))
        count = min(fields["replicas"] or 1, brokers)
        if count < (fields["replicas"] or 1):
            self.progress.note(
                f"note: there are {brokers} brokers: {name} gets {count} replicas, not {fields['replicas']}"
            )
        min_isr = fields["min_isr"] if (fields["min_isr"] or 0) <= count else None
        observers = min(fields["observers"], max(0, brokers - count))
        changes = {"replicas": count, "min_isr": min_isr, "observers": observers}
        return StreamConfig(**{**fields, **sources, **changes, "name": name})

    def target(self, config: StreamConfig) -> StreamInfo:
        """Return the copy, created with deletion suspended if it does not exist.

        Raise OperationalError if it is not paused or has another number of partitions.
        """
        with suppress(StreamNotFound):
            there = self.there.stream(config.name, timeout=self.timeout_s)
            if there.intake != Intake.PAUSED:
                text = f"stream {there.name} exists, and is {there.intake}: rows keep their offsets only in one"
                raise OperationalError(f"{text} that is paused; take another name, or `penstock relay` to publish them")
            if len(there.partitions) != len(self.source.partitions):
                raise OperationalError(f"stream {there.name} has {len(there.partitions)} partitions; it is not a copy")
            if there.config.suspend_deletion is SuspendDeletion.COPYING:
                text = f"note: an earlier run into stream {there.name} was interrupted, or another one is under way"
                self.progress.note(f"{text}: this one resumes deletion at its end")
            return there
        return placed_rows.create_target(self.there, config, self.timeout_s, self.progress, source=self.source.name)

    def span(self, made: StreamInfo, partition: int, begin: Start, end: Start | None) -> _Span:
        """Return the range that the copy lacks. Raise OperationalError if the copy holds other rows."""
        at = self.here.offsets(self.source, begin, partition=partition, timeout=self.timeout_s)
        stop = self.here.offsets(
            self.source, LATEST if end is None else end, partition=partition, timeout=self.timeout_s
        )
        placer = Placer(self.there, made, partition, timeout=max(self.timeout_s, placed_rows.PUT_TIMEOUT_S))
        last = placed_rows.last_row(self.there, made, partition, placer, self.timeout_s)
        # The only row may be the rest of a `begin_at` that was interrupted.
        has_rows = last is not None and not placer.is_dummy(last)
        latest_us = self._check(made, partition, last if has_rows else None)
        first = max(at.offset, at.log_start)
        lacks = max(first, placer.end)
        begins = next((one.log_start for one in made.partitions if one.partition == partition), None) or 0
        if first < begins:
            text = f"note: partition {partition} of stream {made.name} begins at offset {begins}"
            self.progress.note(
                f"{text}: earlier rows of {self.source.name} are not copied; to copy them take another name"
            )
        has_rows = has_rows and self._has_rows_before(made, partition, placer, first)
        if has_rows and placer.end < first:
            self._hole(made, partition, placer.end, first, at.log_start)
        is_start = first == at.log_start
        end = max(lacks, stop.offset)
        return _Span(placer, partition, placer.start if has_rows else first, lacks, end, latest_us, is_start)

    def copy_schemas(self, made: StreamInfo) -> None:
        """Register the source's schemas that the copy lacks; note what is refused."""
        found = carried_schemas.read_schemas(self.here, self.source, self.timeout_s, self.progress.note)
        if found is not None:
            note = self.progress.note
            carried_schemas.register_schemas(self.there, made, found.versions, self.timeout_s, note)

    def finish(self, made: StreamInfo, config: StreamConfig, *, with_consumers: bool) -> int:
        """Give the copy the consumers of the source, and let it accept messages; return how many consumers it has."""
        count, note = 0, self.progress.note
        if with_consumers:
            found = carried_consumers.read_consumers(self.here, self.source, self.timeout_s, note)
            count = carried_consumers.restore_consumers(self.there, made, found, self.timeout_s, note)
        placed_rows.restore_retention(self.there, made, config, self.timeout_s)
        self.there.resume_stream(made, timeout=self.timeout_s)
        return count

    def _hole(self, made: StreamInfo, partition: int, end: int, first: int, log_start: int) -> None:
        """Report offsets that the copy, which ends at `end`, will lack. OperationalError: the source still has some."""
        of = f"partition {partition} of stream {made.name}"
        if log_start < first:
            text = f"{of} ends at offset {end}, and --from begins at {first}: it would lack what is between"
            raise OperationalError(f"{text}; leave --from out, or take another name")
        gone = f"offsets {format_offsets(end, first)} were deleted in {self.source.name} before they were copied"
        self.progress.note(f"note: {of}: {gone}")

    def _has_rows_before(self, made: StreamInfo, partition: int, placer: Placer, first: int) -> bool:
        """True if an earlier run has copied rows before `first`; the copy then keeps its log start offset."""
        end = min(first, placer.end)
        if placer.start >= end:
            return False
        found = self.there.messages(made, placer.start, end=end, partition=partition, timeout=self.timeout_s)
        with closing(found) as rows:
            return next(rows, None) is not None

    def _check(self, made: StreamInfo, partition: int, last: Message | None) -> int | None:
        """Raise OperationalError if the copy's last row differs from the source's; return `_Span.latest_us`."""
        if last is None:
            return self.times.latest_us()
        with suppress(MessageNotFound):  # compacted or expired in the source since it was copied
            try:
                found = self.here.get(self.source, last.offset, partition=partition, timeout=self.timeout_s)
            except OffsetOutOfRange as error:
                if last.offset < int(error.details["log_start"]):
                    return self.times.latest_us(last.timestamp_us, last.timestamp_us)
                found = None
            hint = ""
            if found is not None and found.subject == last.subject:
                if self.times.are_alike(last.timestamp_us, found.timestamp_us):
                    return self.times.latest_us(last.timestamp_us, found.timestamp_us)
                hint = self.times.hint(last.timestamp_us, found.timestamp_us)
            text = f"stream {made.name} holds another row at offset {last.offset} than {self.source.name}"
            raise OperationalError(f"{text}: it is not a copy of it{hint}; take another name")
        return self.times.latest_us(last.timestamp_us, last.timestamp_us)

    def copy(self, made: StreamInfo, span: _Span, advance: Callable[[int], None], before: int) -> int:
        """Copy one partition's rows and compare them; return their count."""
        if span.begin == span.end:
            if span.placer.end < span.begin == span.start and span.is_log_start:  # neither of them has rows
                span.placer.give_up_before(span.placer.end)
                span.placer.begin_at(span.begin)
            span.placer.give_up_before(min(span.start, span.placer.end))
            return 0

        def tell(end: int) -> None:
            advance(before + min(end, span.end) - span.begin)

        sums = RangeSums(span.begin)
        limited = self.times.limited(self.times.counted(self._batches(span)), span.latest_us)
        placed_rows.put(span.placer, placed_rows.summed(limited, sums), tell, self.times)
        span.placer.give_up_before(min(span.start, span.placer.end))
        info, what = self.there.stream(made.name, timeout=self.timeout_s), f"stream {self.source.name}"
        places = (span.begin, span.placer.end)
        return placed_rows.compare(self.there, info, span.partition, sums, *places, what=what)

    def _batches(self, span: _Span) -> placed_rows.Batches:
        options: dict[str, Any] = {"timeout": self.timeout_s}
        for header, data, _ in raw_batches(self.here, self.source, span.partition, span.begin, span.end, **options):
            end = min(header.end_offset, span.end)
            places = batches.OffsetRange(span.begin, end)
            batch = batches.rows(header, memoryview(data), places, source=f"stream {self.source.name}")
            yield batch if self.wanted is None else self.wanted.rows(batch), end
