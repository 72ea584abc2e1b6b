"""`penstock relay`: publishes what a stream holds to NATS, for ordinary subscribers."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.errors import OperationalError
from penstock.base.subjects import overlap
from penstock.cli import output, places
from penstock.cli.failure import clearly, say, say_note
from penstock.cli.following import BATCH_ROWS_MAX, following
from penstock.cli.nats_options import NatsCreds, login_of, nats_option, urls_of
from penstock.cli.options import (
    DEFAULT_TIMEOUT,
    Debug,
    Json,
    Server,
    StreamArgument,
    Timeout,
    connected,
    examples,
)
from penstock.cli.read import all_partitions, as_group, place_of
from penstock.cli.relay_frames import SubjectMapping, frames_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.cli.read import Batches
    from penstock.cli.relay_nats import NatsOutput
    from penstock.client.blocking import Client
    from penstock.client.threads import LoopThread
    from penstock.client.values import Start
    from penstock.messages import StreamInfo

EXAMPLES = examples(
    "# all of it, once, each message on copies.<its own subject>",
    "penstock relay orders --to 'copies.{subject}'",
    "# what comes from now on, with tokens of the subject in another order",
    "penstock relay orders --to 'eu.{3}.{2}' --from latest --follow",
    "# an hour of yesterday, at a rate that subscribers can take",
    "penstock relay orders --to replay.orders --from 2026-01-31T08:00 --until 2026-01-31T09:00 --rate 500",
    "# for ever, and after a stop go on there",
    "penstock relay orders --to 'copies.{subject}' --group copies --follow",
)
_LOT_BYTES = 1 << 20
_RATE_PARTS = 20  # in a second, so that a rate is even
_RATE = re.compile(r"([0-9][0-9_,]*)(?:/s)?")


def _rate(text: str | None) -> int | None:
    if text is None:
        return None
    found = _RATE.fullmatch(text.strip())
    rate = int(re.sub("[_,]", "", found[1])) if found else 0
    if not rate:
        raise typer.BadParameter(f"{text!r} is no rate: give messages in a second, such as 500 or 500/s")
    return rate


@clearly
def relay(
    ctx: typer.Context,
    stream: StreamArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="SUBJECT",
            help="Where to publish: a subject, in which {subject} stands for that of the message, and {1}, {2}, … for "
            "its tokens.",
        ),
    ],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Begin here: earliest, latest, an offset, -N (the last N offsets), an age such as 30s or '5m ago', or "
            "a time (UTC, if it names no zone).",
        ),
    ] = "earliest",
    end: Annotated[
        str | None,
        typer.Option("--until", metavar="PLACE", help="End before here.  Default: where the log ends now."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="NAME",
            help="Go on where this group has committed, or --from if nowhere; and commit what NATS has confirmed.",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="N", help="So many messages in a second at most.  Default: as fast as it goes."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.  Default: all.")
    ] = None,
    nats: Annotated[str | None, nats_option("The nats-server to publish to.  Default: what the broker says.")] = None,
    nats_creds: NatsCreds = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Publish what a stream holds to NATS, for subscribers that know nothing of Penstock.

    A message keeps its value, headers and key, and gets headers that say where it is from: Penstock-Stream,
    Penstock-Partition, Penstock-Offset, Penstock-Timestamp.

    NATS confirms each batch before the next one is read. With --group that is committed every few seconds: a relay
    that was killed goes on there, once the session of the killed one is over (10 s), and publishes again what it had
    published since (at least once). Subscribers that are away miss what is published, as always in NATS.

    Where the target is stored by the stream itself, it is refused; other streams that store it are named.
    """
    mapping, rate_max = SubjectMapping(to), _rate(rate)
    from_place = places.parse_place(start)
    to_place = None if end is None else places.parse_place(end, takes_last=False)
    if to_place is not None and (follow or group is not None):
        raise typer.BadParameter("--until is for a relay that reads a range once: not with --follow or --group")
    urls, options = urls_of(nats), login_of(nats_creds)
    relayed, is_done = _Relayed(), False
    why = f"stream {stream} holds no messages there; --follow waits for what comes"
    try:
        with connected(ctx, server, timeout, nats=urls) as (client, seconds):
            info = client.stream(stream, timeout=seconds)
            _check_target(client, info, mapping, elsewhere=urls is not None, timeout=seconds)
            if group is not None:
                consuming = as_group(client, info, group, from_place, None, partition, seconds)
                batches = consuming.batches(follow=follow, for_ever=follow)
            else:
                batches = _batches(client, info, from_place, to_place, partition, seconds, follow=follow)
            total = None if follow or group is not None else _total(client, info, partition, seconds)
            with (
                closing(batches),
                _opened(client.nats_urls, options, seconds) as (thread, nats_output),
                output.progress("Relaying", total, noun="messages") as advance,
            ):
                for batch in batches:
                    for part, pause_s in _paced(batch, rate_max):
                        thread.run(nats_output.send(relayed.lots(part, mapping, info, partition, nats_output.size_max)))
                        advance(relayed.messages)
                        time.sleep(pause_s)
            if group is not None and not relayed.messages:
                why = consuming.why_nothing()
        is_done = True
    finally:
        if is_done or relayed.messages:
            relayed.say(stream, to, why, as_json=as_json)


def _check_target(
    client: Client, info: StreamInfo, mapping: SubjectMapping, *, elsewhere: bool, timeout: float
) -> None:
    """ValueError for a loop; a note for other streams that store what is relayed."""
    if elsewhere:
        say_note("note: whether a stream stores what is published at another NATS server, nobody looks")
        return
    own = tuple(info.config.subject_of(number) for number in range(max(1, len(info.partitions))))
    mapping.refuse((info.subject, *own))
    target, _ = mapping.pattern(info.subject)
    for other in client.streams(timeout=timeout):
        if other.stream_id != info.stream_id and not other.config.is_internal and overlap(other.subject, target):
            say_note(f"note: stream {other.name} stores {other.subject}, and so (some of) what is relayed to {target}")


def _batches(
    client: Client,
    info: StreamInfo,
    start: Start | places.LastMessages,
    end: Start | places.LastMessages | None,
    partition: int | None,
    timeout: float,
    *,
    follow: bool,
) -> Batches:
    if partition is None and len(info.partitions) > 1:
        return all_partitions(client, info, start, end, follow, timeout)
    number = partition or 0
    begin = place_of(client, info, number, start, timeout).offset
    stop = None if end is None else place_of(client, info, number, end, timeout).offset
    if follow:
        return following(client, info, begin, None, timeout, for_ever=True, partition=partition)
    return client.read(info, begin, end=stop, partition=number, batch_rows_max=BATCH_ROWS_MAX, timeout=timeout)


def _total(client: Client, info: StreamInfo, partition: int | None, timeout: float) -> int | None:
    """How many offsets there are; less may be wanted."""
    known = [one for one in info.partitions if partition in (None, one.partition)]
    if any(one.committed_end is None or one.log_start is None for one in known):
        return None
    return sum((one.committed_end or 0) - (one.log_start or 0) for one in known)


def _paced(batch: pa.RecordBatch, rate_max: int | None) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Parts of a batch, and how long to wait behind each."""
    if rate_max is None:
        yield batch, 0.0
        return
    rows = max(1, rate_max // _RATE_PARTS)
    due_s = time.monotonic()
    for begin in range(0, batch.num_rows, rows):
        part = batch.slice(begin, rows)
        due_s += part.num_rows / rate_max
        yield part, max(0.0, due_s - time.monotonic())


class _Relayed:
    """What was published so far."""

    def __init__(self) -> None:
        self.messages = 0
        self.headers_dropped = 0
        self._begin_s = time.monotonic()
        self._ends: dict[int, int] = {}

    def lots(
        self, batch: pa.RecordBatch, mapping: SubjectMapping, info: StreamInfo, partition: int | None, size_max: int
    ) -> Sequence[memoryview]:
        """The frames of a batch, in lots of about a MiB. OperationalError: a message is too large for NATS."""
        from penstock.client.batches import partition_of

        said = partition_of(batch)
        number = (partition or 0) if said is None else said
        rows = max(1, batch.num_rows // math.ceil((batch.nbytes + 1) / _LOT_BYTES))
        lots = []
        for begin in range(0, batch.num_rows, rows):
            made = frames_of(batch.slice(begin, rows), mapping, info.name, number)
            if made.size_max > size_max:
                text = f"with its headers the message at offset {made.largest_offset} has {made.size_max:,} bytes"
                raise OperationalError(f"{text}; nats-server takes {size_max:,} (its max_payload)")
            lots.append(made.data)
            self.headers_dropped += made.headers_dropped
        self.messages += batch.num_rows
        self._ends[number] = batch.column("offset")[-1].as_py() + 1
        return lots

    def say(self, stream: str, to: str, why: str, *, as_json: bool) -> None:
        """What was done, also where it was interrupted."""
        seconds = max(1e-3, time.monotonic() - self._begin_s)
        if as_json:
            ends = {str(number): end for number, end in sorted(self._ends.items())}
            output.print_json({"stream": stream, "messages": self.messages, "seconds": round(seconds, 3), "ends": ends})
        elif self.messages:
            count = output.counted(self.messages, "message")
            say(f"relayed {count} of stream {stream} to {to}, {self.messages / seconds:,.0f} a second")
        else:
            say_note(f"nothing was relayed: {why}")
        if self.headers_dropped:
            say_note(f"note: of {output.counted(self.headers_dropped, 'message')} the headers are no NATS header block")


@contextmanager
def _opened(urls: Sequence[str], options: dict[str, Any], timeout: float) -> Iterator[tuple[LoopThread, NatsOutput]]:
    from penstock.cli.relay_nats import NatsOutput
    from penstock.client.threads import LoopThread

    if not urls:
        raise OperationalError("the broker names no NATS server; say where to publish with --nats URL")
    thread = LoopThread()
    try:
        nats_output = NatsOutput(urls, timeout)
        try:
            thread.run(nats_output.open(options))
            yield thread, nats_output
        finally:
            thread.run(nats_output.close())
    finally:
        thread.stop()
