"""`penstock stream copy`: copies a stream's rows to another stream, in the same cluster or another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from penstock.base.config import Intake, StreamConfig
from penstock.base.errors import OperationalError, RemoteError
from penstock.base.ids import are_different_clusters
from penstock.cli.terminal import output, places
from penstock.cli.terminal.failure import clearly, say, say_note
from penstock.cli.terminal.names import stream_name
from penstock.cli.terminal.options import (
    CONNECTION_PANEL,
    DEFAULT_TIMEOUT,
    Debug,
    FutureTimesOption,
    Json,
    Server,
    StreamArgument,
    Timeout,
    connected,
    examples,
)
from penstock.ops import placed_rows

if TYPE_CHECKING:
    from penstock.client.blocking.client import Client
    from penstock.client.bulk.placing import Placer
    from penstock.client.read.filters import Filter
    from penstock.client.values import Start
    from penstock.messages import StreamInfo

EXAMPLES = examples(
    "# the same rows under another name; it is paused",
    "penstock stream copy orders orders-copy",
    "# some of them",
    "penstock stream copy orders orders-eu --subject 'orders.eu.*' --from '7d ago'",
    "# into another cluster; run it again for new messages, and finally let the copy take over",
    "penstock stream copy orders orders --to-server other:7422",
    "penstock stream copy orders orders --to-server other:7422 --resume",
)


@clearly
def copy(
    ctx: typer.Context,
    source: StreamArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The name of the copy.", callback=stream_name)],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Begin here: earliest, an offset, an age or a time (UTC, if it names no zone).",
        ),
    ] = "earliest",
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="PLACE", help="End before here.  Default: where the log ends now."),
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="PATTERN", help="Only subjects that match, such as 'orders.*'.")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like", metavar="STREAM", help="Use the config of this stream, in the copy's cluster.  Default: SOURCE's."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume the copy once it is complete. Only one stream should store a subject."),
    ] = False,
    future_times: FutureTimesOption = placed_rows.FutureTimes.KEEP,
    to_server: Annotated[
        str | None,
        typer.Option(
            "--to-server",
            metavar="HOST:PORT[,…]",
            help="A broker of the cluster where the copy is to be.  Default: the same.",
            rich_help_panel=CONNECTION_PANEL,
        ),
    ] = None,
    to_credentials: Annotated[
        Path | None,
        typer.Option(
            "--to-credentials",
            metavar="FILE",
            help="As --credentials, for that cluster.  Default: the same.",
            rich_help_panel=CONNECTION_PANEL,
        ),
    ] = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Copy a stream: the same rows at the same offsets, with the same times, subjects, keys, values and headers.

    If the copy does not exist, it is created with the source's config, and paused: no broker subscribes for it, so that
    it stores no other messages. Rows that --subject excludes are missing in it. Each run ends with a comparison of the
    copied rows by checksums.

    You can interrupt it and run it again: it continues at the end of the copy, copies no row twice, and adds new rows.
    --resume ends that. Offsets of groups are not copied: see `penstock group show` and `penstock group reset`.
    """
    begin, end = _place(start, "--from"), None if until is None else _place(until, "--until")
    wanted = _filter(subject)
    with ExitStack() as stack:
        here, seconds = stack.enter_context(connected(ctx, server, timeout))
        there = here
        if to_server is not None:
            known = {} if to_credentials is None else {"credentials": to_credentials}
            there, _ = stack.enter_context(connected(ctx, to_server, timeout, **known))
        info = here.stream(source, timeout=seconds)
        clusters = (here.cluster_id(timeout=seconds), there.cluster_id(timeout=seconds))
        if source == target and not are_different_clusters(*clusters):
            raise typer.BadParameter("the copy needs another name, or another cluster (--to-server)")
        if (isinstance(begin, int) or isinstance(end, int)) and len(info.partitions) > 1:
            text = f"an offset is a place in one partition, and stream {info.name} has {len(info.partitions)}"
            raise typer.BadParameter(f"{text}: give a time")
        times = placed_rows.RowTimes.of(future_times, there.status(timeout=seconds))
        job = _Job(here, there, info, wanted, seconds, times)
        config = job.config(target, like)
        made = job.target(config)
        spans = [job.span(made, number, begin, end) for number in range(max(1, len(info.partitions)))]
        with (
            job.keeping(made),
            output.progress("Copying", sum(one.end - one.begin for one in spans), noun="offsets") as advance,
        ):
            rows = sum(job.copy(made, one, advance, before) for one, before in _with_sums(spans))
        is_sealed = like is None and info.intake == Intake.SEALED
        if is_sealed and config.max_age_ms is not None:
            say_note(placed_rows.SEALED_NOTE.format(made.name))
        if later := placed_rows.later(config, is_sealed=is_sealed):
            there.alter_stream(made, timeout=seconds, **later)
        if resume:
            there.resume_stream(made, timeout=seconds)
        times.tell(output.ShownProgress(), made.name)
    _say(info, made, rows, resumed=resume, as_json=as_json)


def _place(text: str, option: str) -> Start:
    place = places.parse_place(text, option, takes_last=False)
    if isinstance(place, places.LastMessages):
        raise typer.BadParameter("-N changes with each new message: give an offset, an age or a time")
    return place


def _filter(subject: str | None) -> Filter | None:
    from penstock.client.read.filters import Filter

    return None if subject is None else Filter(subject=subject)


class _Span(NamedTuple):
    """The offset range of one partition to copy: `[begin, end)`."""

    placer: Placer
    partition: int
    first: int  # first offset of the whole copy
    begin: int
    end: int
    latest_us: int | None  # later row times are lowered to this one; None: no limit


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
    times: placed_rows.RowTimes

    def config(self, name: str, like: str | None) -> StreamConfig:
        """Return the final config of the copy, limited to the brokers of its cluster."""
        of = self.source.config if like is None else self.there.stream(like, timeout=self.timeout_s).config
        fields: dict[str, Any] = {field: getattr(of, field) for field in StreamConfig.__struct_fields__}
        split = {field: getattr(self.source.config, field) for field in ("partitions", "partition_by", "range_bounds")}
        brokers = max(1, len(self.there.status(timeout=self.timeout_s).brokers))
        count = min(fields["replicas"] or 1, brokers)
        if count < (fields["replicas"] or 1):
            say_note(f"note: there are {brokers} brokers: {name} gets {count} replicas, not {fields['replicas']}")
        min_isr = fields["min_isr"] if (fields["min_isr"] or 0) <= count else None
        observers = min(fields["observers"], max(0, brokers - count))
        changes = {"replicas": count, "min_isr": min_isr, "observers": observers}
        return StreamConfig(**{**fields, **split, **changes, "name": name, "subject": self.source.subject})

    def target(self, config: StreamConfig) -> StreamInfo:
        """Return the copy, created if it does not exist.

        Raise OperationalError if it is not paused or has another number of partitions.
        """
        from penstock.client.bulk.placing import create_paused
        from penstock.client.errors import StreamNotFound

        with suppress(StreamNotFound):
            there = self.there.stream(config.name, timeout=self.timeout_s)
            if there.intake != Intake.PAUSED:
                text = f"stream {there.name} is there, and is {there.intake}: rows keep their offsets only in one"
                raise OperationalError(f"{text} that is paused; take another name, or `penstock relay` to publish them")
            if len(there.partitions) != len(self.source.partitions):
                raise OperationalError(f"stream {there.name} has {len(there.partitions)} partitions; it is not a copy")
            return there
        first = msgspec.structs.replace(config, **placed_rows.LATER)
        return create_paused(self.there, first, timeout=self.timeout_s)

    @contextmanager
    def keeping(self, made: StreamInfo) -> Iterator[None]:
        """Suspend retention and compaction of the copy meanwhile; restore their settings if the copy fails."""
        had = placed_rows.later(made.config)
        if had:
            self.there.alter_stream(made, timeout=self.timeout_s, **{field: placed_rows.LATER[field] for field in had})
        try:
            yield
        except BaseException:
            if had:
                try:
                    self.there.alter_stream(made, timeout=self.timeout_s, **had)
                except (RemoteError, OperationalError):
                    said = ", ".join(f"{field} = {value}" for field, value in had.items())
                    say_note(f"note: stream {made.name} had {said}; this could not be restored")
            raise

    def span(self, made: StreamInfo, partition: int, begin: Start, end: Start | None) -> _Span:
        """Return the range that the copy lacks. Raise OperationalError if the copy holds other rows."""
        from penstock.client.bulk.placing import Placer
        from penstock.client.values import LATEST

        at = self.here.offsets(self.source, begin, partition=partition, timeout=self.timeout_s)
        stop = self.here.offsets(
            self.source, LATEST if end is None else end, partition=partition, timeout=self.timeout_s
        )
        placer = Placer(self.there, made, partition, timeout=max(self.timeout_s, placed_rows.PUT_TIMEOUT_S))
        latest_us = self._check(made, partition, placer)
        first = max(at.offset, at.log_start)
        lacks = max(first, placer.end)
        begins = next((one.log_start for one in made.partitions if one.partition == partition), None) or 0
        if first < begins:
            text = f"note: partition {partition} of stream {made.name} begins at offset {begins}"
            say_note(f"{text}: earlier rows of {self.source.name} are not copied; to copy them take another name")
        return _Span(placer, partition, first, lacks, max(lacks, stop.offset), latest_us)

    def _check(self, made: StreamInfo, partition: int, placer: Placer) -> int | None:
        """Raise OperationalError if the copy's last row differs from the source's; return `_Span.latest_us`."""
        from penstock.client.errors import MessageNotFound, OffsetOutOfRange

        last = placed_rows.last_row(self.there, made, partition, placer, self.timeout_s)
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
        from penstock.commitlog.verify.checksums import RangeSums

        if span.begin == span.end:
            return 0

        def tell(end: int) -> None:
            advance(before + min(end, span.end) - span.begin)

        sums = RangeSums(span.begin)
        batches = self.times.limited(self.times.counted(self._batches(span)), span.latest_us)
        placed_rows.put(span.placer, placed_rows.summed(batches, sums), tell, self.times)
        span.placer.give_up_before(min(span.first, span.placer.end))
        info, what = self.there.stream(made.name, timeout=self.timeout_s), f"stream {self.source.name}"
        places = (span.begin, span.placer.end)
        return placed_rows.compare(self.there, info, span.partition, sums, *places, what=what)

    def _batches(self, span: _Span) -> placed_rows.Batches:
        from penstock.client.bulk.raw_batches import raw_batches
        from penstock.client.read.batches import OffsetRange, rows

        options: dict[str, Any] = {"timeout": self.timeout_s}
        for header, data, _ in raw_batches(self.here, self.source, span.partition, span.begin, span.end, **options):
            end = min(header.end_offset, span.end)
            batch = rows(header, memoryview(data), OffsetRange(span.begin, end), source=f"stream {self.source.name}")
            yield batch if self.wanted is None else self.wanted.rows(batch), end


def _say(source: StreamInfo, made: StreamInfo, rows: int, *, resumed: bool, as_json: bool) -> None:
    if as_json:
        output.print_json({"source": source.name, "target": made.name, "rows": rows, "is_resumed": resumed})
        return
    say(f"copied {output.counted(rows, 'row')} of stream {source.name} to {made.name}, and compared them")
    if not resumed:
        say_note(f"stream {made.name} is paused: run it again for new messages, and finally with --resume")
