"""`penstock relay`: publishes a stream's messages to NATS, for ordinary subscribers."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.config import Acks, Intake
from penstock.base.errors import OperationalError, RemoteError
from penstock.base.subjects import overlap
from penstock.cli.messages.read import all_partitions, as_group, place_of
from penstock.cli.messages.relay_answers import Answers, Storing
from penstock.cli.messages.relay_frames import SubjectMapping, frames_of, header_pattern
from penstock.cli.terminal import output, places
from penstock.cli.terminal.failure import clearly, say, say_note
from penstock.cli.terminal.following import BATCH_ROWS_MAX, following
from penstock.cli.terminal.nats_options import (
    NatsCreds,
    NatsTlsCa,
    NatsTlsCert,
    NatsTlsKey,
    login_of,
    nats_option,
    tls_of,
    urls_of,
)
from penstock.cli.terminal.options import (
    DEFAULT_TIMEOUT,
    Debug,
    Json,
    Server,
    StreamArgument,
    Timeout,
    connected,
    examples,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.cli.messages.read import Batches
    from penstock.cli.messages.relay_nats import NatsOutput
    from penstock.client.blocking.client import Client
    from penstock.client.blocking.threads import LoopThread
    from penstock.client.values import Start
    from penstock.messages import StreamInfo

EXAMPLES = examples(
    "# all messages once, each on copies.<its own subject>",
    "penstock relay orders --to 'copies.{subject}'",
    "# new messages, with the subject's tokens in another order",
    "penstock relay orders --to 'eu.{3}.{2}' --from latest --follow",
    "# an hour of yesterday, at a rate that subscribers can take",
    "penstock relay orders --to replay.orders --from 2026-01-31T08:00 --until 2026-01-31T09:00 --rate 500",
    "# until stopped; the next run continues there",
    "penstock relay orders --to 'copies.{subject}' --group copies --follow",
)
_LOT_BYTES = 1 << 20
_UNACKED_MAX = 4_000  # messages in flight to streams: JetStream rejects them beyond its own queue (10,000)
_RETRY_S = 0.2
_LOOK_AGAIN_S = 1.0  # shortest interval between look-ups of the streams at the target
_JETSTREAM_AGAIN_S = 60.0  # interval if no JetStream answers, because each attempt may take seconds
_RATE_PARTS = 20  # parts per second with --rate, to spread messages evenly
_RATE = re.compile(r"([0-9][0-9_,]*)(?:/s)?")


def _rate(text: str | None) -> int | None:
    if text is None:
        return None
    found = _RATE.fullmatch(text.strip())
    rate = int(re.sub("[_,]", "", found[1])) if found else 0
    if not rate:
        raise typer.BadParameter(f"{text!r} is not a rate: give messages per second, such as 500 or 500/s")
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
            help="Target subject, in which {subject} stands for the message's subject, and {1}, {2}, … for its tokens.",
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
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new messages, until Ctrl-C.")] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="NAME",
            help="Start at this consumer group's committed offsets, else at --from; commit what NATS has confirmed.",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="N", help="Most messages per second.  Default: no limit."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.  Default: all.")
    ] = None,
    without: Annotated[
        str | None,
        typer.Option(
            "--without",
            metavar="HEADER[,…]",
            help="Leave these headers out, such as Nats-TTL,Nats-Rollup or 'Nats-Schedule*'.",
        ),
    ] = None,
    stored: Annotated[
        bool | None,
        typer.Option(
            "--stored/--not-stored",
            help="Wait for streams to ack each message, or not.  Default: wait for those of this cluster and of "
            "JetStream that store the target.",
            show_default=False,
        ),
    ] = None,
    nats: Annotated[str | None, nats_option("The nats-server to publish to.  Default: the broker's.")] = None,
    nats_creds: NatsCreds = None,
    nats_tls_ca: NatsTlsCa = None,
    nats_tls_cert: NatsTlsCert = None,
    nats_tls_key: NatsTlsKey = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Publish a stream's messages to NATS, for ordinary subscribers.

    A message keeps its value, headers and key, and gets headers with its origin: Penstock-Stream, Penstock-Partition,
    Penstock-Offset, Penstock-Timestamp.

    NATS confirms each batch before the next one is read. With --group the offsets are committed every few seconds: a
    relay that was killed continues there, after the session time-out (10 s), and publishes later messages again
    (at-least-once delivery). Subscribers that are not connected miss messages, as always in NATS.

    The command refuses a target that the stream itself stores; it names other streams that store the target, and waits
    for their acks. A message that one of them rejects (a TTL, a rollup, its size) ends the relay: the error names it,
    and no offset from there on is committed. A message that a stream acks as a duplicate (Nats-Msg-Id) counts as
    stored, since a relay that continues publishes some messages again; their number is printed at the end.
    """
    mapping, rate_max = SubjectMapping(to), _rate(rate)
    left_out = header_pattern([name.strip() for name in (without or "").split(",") if name.strip()])
    from_place = places.parse_place(start, "--from")
    to_place = None if end is None else places.parse_place(end, "--until", takes_last=False)
    if to_place is not None and (follow or group is not None):
        raise typer.BadParameter("--until is for a relay that reads a range once: not with --follow or --group")
    urls, options = urls_of(nats), login_of(nats_creds) | tls_of(nats_tls_ca, nats_tls_cert, nats_tls_key)
    relayed, is_done = _Relayed(left_out), False
    why = f"stream {stream} holds no messages there; --follow waits for what comes"
    try:
        with connected(ctx, server, timeout, nats=urls) as (client, seconds):
            info = client.stream(stream, timeout=seconds)
            elsewhere = urls is not None and not set(urls) <= set(client.nats_urls)
            target = _Target(client, info, mapping, is_elsewhere=elsewhere, stored=stored, timeout_s=seconds)
            target.check()
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
                target.refresh(thread, nats_output)
                sending = _Sending(thread, nats_output, mapping, info, partition, target, relayed, seconds)
                for batch in batches:
                    for part, pause_s in _paced(batch, rate_max):
                        sending.send(part)
                        advance(relayed.messages)
                        time.sleep(pause_s)
                thread.run(nats_output.end(waits=not target.storing.is_known))
            if group is not None and not relayed.messages:
                why = consuming.why_nothing()
        is_done = True
    finally:
        if is_done or relayed.messages:
            relayed.say(stream, to, why, as_json=as_json)


class _Target:
    """Looks up the streams that store the target, at first and again during the relay.

    Messages relayed between the creation of a stream and the next look-up are not confirmed by that stream.
    """

    def __init__(
        self,
        client: Client,
        info: StreamInfo,
        mapping: SubjectMapping,
        *,
        is_elsewhere: bool,
        stored: bool | None,
        timeout_s: float,
    ) -> None:
        self.storing = Storing()
        self._client = client
        self._info = info
        self._mapping = mapping
        self._is_elsewhere = is_elsewhere
        self._stored = stored
        self._timeout_s = timeout_s
        self._noted: set[str] = set()
        self._looked_s: float | None = None
        self._jetstream: list[str] = []
        self._jetstream_again_s = 0.0

    def check(self) -> None:
        """Raise ValueError if the stream itself stores the target, a loop. Print a note on other such streams."""
        if not self._is_elsewhere:
            own = (self._info.config.subject_of(number) for number in range(max(1, len(self._info.partitions))))
            self._mapping.refuse((self._info.subject, *own))
        elif self._stored is None:
            text = (
                "note: the relay does not check if a Penstock stream stores messages published at another NATS server"
            )
            self._note(f"{text}; --stored waits for the ack of each message")
        self._acking()

    def refresh(self, thread: LoopThread, nats_output: NatsOutput) -> None:
        """Look up the streams, unless that was done recently. Subscribe to acks once a stream must ack."""
        now_s = time.monotonic()
        if self._stored is False or (self._looked_s is not None and now_s < self._looked_s + _LOOK_AGAIN_S):
            return
        is_first, self._looked_s = self._looked_s is None, now_s
        try:
            patterns = self._acking()
            if now_s >= self._jetstream_again_s:
                found = thread.run(nats_output.jetstream_patterns(self._mapping.pattern(self._info.subject)[0]))
                if found is None:  # no JetStream, or it is down: keep the last result
                    self._jetstream_again_s = now_s + _JETSTREAM_AGAIN_S
                else:
                    self._jetstream = found
        except (RemoteError, OperationalError):
            if is_first:
                raise
            return  # an outage of the broker or of NATS: keep the last result
        storing = Storing([*patterns, *self._jetstream], at_least=1 if self._stored else 0)
        if not nats_output.inbox and (storing.is_known or self._is_elsewhere):
            thread.run(nats_output.listen())
        self.storing = storing

    def _acking(self) -> list[str]:
        """Return the subjects of this cluster's other streams that ack relayed messages, one entry per ack."""
        if self._is_elsewhere:
            return []
        target, _ = self._mapping.pattern(self._info.subject)
        found, paused = dict[tuple[str, str], str](), dict[tuple[str, str], str]()
        for other in self._client.streams(timeout=self._timeout_s):
            is_own = other.stream_id == self._info.stream_id or other.config.is_internal
            if is_own or not overlap(other.subject, target):
                continue
            name = other.name
            self._note(f"note: stream {name} stores {other.subject}, and so messages that are relayed to {target}")
            if other.config.acks is Acks.REPLY:
                into = paused if other.intake == Intake.PAUSED else found
                for number in range(max(1, len(other.partitions))):
                    pattern = other.config.subject_of(number)
                    # The streams of a group are one queue group: each message is acked by one of them.
                    into[other.config.group or name, pattern] = pattern
            elif self._stored is not False:
                self._note(f"note: stream {name} does not ack these messages, so it only counts those that it rejects")
        # A paused stream acks nothing: wait for it only if there is no other, so that no message is lost.
        return list((found or paused).values())

    def _note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            say_note(text)


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
    """Return an upper bound of the offsets to relay; None if unknown."""
    known = [one for one in info.partitions if partition in (None, one.partition)]
    if any(one.committed_end is None or one.log_start is None for one in known):
        return None
    return sum((one.committed_end or 0) - (one.log_start or 0) for one in known)


def _paced(batch: pa.RecordBatch, rate_max: int | None) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Yield (part of at most `_UNACKED_MAX` rows, seconds to wait after it)."""
    rows = max(1, min(_UNACKED_MAX, rate_max // _RATE_PARTS if rate_max else batch.num_rows))
    due_s = time.monotonic()
    for begin in range(0, batch.num_rows, rows):
        part = batch.slice(begin, rows)
        due_s += part.num_rows / rate_max if rate_max else 0.0
        yield part, max(0.0, due_s - time.monotonic()) if rate_max else 0.0


class _Sending:
    """Publishes parts of batches, each again until all required streams have acked it."""

    def __init__(
        self,
        thread: LoopThread,
        nats_output: NatsOutput,
        mapping: SubjectMapping,
        info: StreamInfo,
        partition: int | None,
        target: _Target,
        relayed: _Relayed,
        timeout_s: float,
    ) -> None:
        self._thread = thread
        self._output = nats_output
        self._mapping = mapping
        self._info = info
        self._partition = partition
        self._target = target
        self._relayed = relayed
        self._timeout_s = timeout_s
        self._attempt = 0

    def send(self, part: pa.RecordBatch) -> None:
        """Publish a part. Raise OperationalError if it is rejected or not acked in time, Unavailable without NATS."""
        from penstock.client.read.batches import partition_of

        self._target.refresh(self._thread, self._output)
        said = partition_of(part)
        number = (self._partition or 0) if said is None else said
        left, give_up_s = part, time.monotonic() + self._timeout_s
        while True:
            answers = self._answers_to(left, number)
            reply = f"{self._output.inbox}.{self._attempt}.{number}" if answers is not None else ""
            lots = self._relayed.lots(left, self._mapping, self._info, number, self._output.size_max, reply)
            self._thread.run(self._output.send(lots, answers))
            if answers is not None:
                self._relayed.duplicates += answers.duplicates
            missing = None if answers is None else answers.first_missing
            if missing is None:
                break
            assert answers is not None
            if time.monotonic() > give_up_s:
                raise OperationalError(f"the message at offset {missing} is not stored: {answers.later}")
            # Repeat from there on, in order; later messages may be stored already, and are then stored twice.
            begin = left.column("offset").to_pylist().index(missing)
            if begin:
                give_up_s = time.monotonic() + self._timeout_s
            left = left.slice(begin)
            time.sleep(_RETRY_S)
        self._relayed.count(part, number)

    def _answers_to(self, part: pa.RecordBatch, number: int) -> Answers | None:
        if not self._output.inbox:
            return None
        self._attempt += 1
        return Answers(self._attempt, number, self._target.storing.needed(part, self._mapping))


class _Relayed:
    """Builds the frames and counts the published messages."""

    def __init__(self, without: bytes | None) -> None:
        self.messages = 0
        self.headers_dropped = 0
        self.duplicates = 0
        self._without = without
        self._begin_s = time.monotonic()
        self._ends: dict[int, int] = {}

    def lots(
        self,
        batch: pa.RecordBatch,
        mapping: SubjectMapping,
        info: StreamInfo,
        partition: int,
        size_max: int,
        reply: str,
    ) -> Sequence[memoryview]:
        """Return the frames of a batch, in pieces of about 1 MiB. Raise OperationalError if a message is too large."""
        rows = max(1, batch.num_rows // math.ceil((batch.nbytes + 1) / _LOT_BYTES))
        lots = []
        for begin in range(0, batch.num_rows, rows):
            part = batch.slice(begin, rows)
            made = frames_of(part, mapping, info.name, partition, reply=reply, without=self._without)
            if made.size_max > size_max:
                text = f"with its headers the message at offset {made.largest_offset} has {made.size_max:,} bytes"
                raise OperationalError(f"{text}; nats-server takes {size_max:,} (its max_payload)")
            lots.append(made.data)
            self.headers_dropped += made.headers_dropped
        return lots

    def count(self, batch: pa.RecordBatch, partition: int) -> None:
        """Count a batch that was published and, where streams store it, acked."""
        self.messages += batch.num_rows
        self._ends[partition] = batch.column("offset")[-1].as_py() + 1

    def say(self, stream: str, to: str, why: str, *, as_json: bool) -> None:
        """Print a summary, also after an interruption."""
        seconds = max(1e-3, time.monotonic() - self._begin_s)
        if as_json:
            ends = {str(number): end for number, end in sorted(self._ends.items())}
            told = {"stream": stream, "messages": self.messages, "seconds": round(seconds, 3), "ends": ends}
            output.print_json({**told, "duplicates": self.duplicates})
        elif self.messages:
            count = output.counted(self.messages, "message")
            say(f"relayed {count} of stream {stream} to {to}, {self.messages / seconds:,.0f} a second")
        else:
            say_note(f"nothing was relayed: {why}")
        if self.duplicates:
            what = "acked as duplicates: the stream had a message with their Nats-Msg-Id already"
            say_note(f"note: {output.counted(self.duplicates, 'message')} {what} (--without Nats-Msg-Id stores each)")
        if self.headers_dropped:
            say_note(f"note: {output.counted(self.headers_dropped, 'message')} without their invalid NATS header block")


@contextmanager
def _opened(urls: Sequence[str], options: dict[str, Any], timeout: float) -> Iterator[tuple[LoopThread, NatsOutput]]:
    from penstock.cli.messages.relay_nats import NatsOutput
    from penstock.client.blocking.threads import LoopThread

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
