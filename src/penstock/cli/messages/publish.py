"""`penstock publish`: publish messages through NATS and show their acks."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base import limits
from penstock.base.config import Acks, Intake
from penstock.base.errors import RemoteError
from penstock.base.partitioning import PartitionBy
from penstock.base.subjects import matches, subject_mistake
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import clearly, say, say_note
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
    CONNECTION_PANEL,
    DEFAULT_TIMEOUT,
    Debug,
    Json,
    Server,
    Timeout,
    connected,
    examples,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.client.blocking.client import Client
    from penstock.client.values import Envelope, PubAck
    from penstock.messages import StreamInfo

EXAMPLES = examples(
    "penstock publish orders.eu '{\"amount\": 42}' --key customer-7",
    "penstock publish orders.eu hello --header 'Nats-Msg-Id=42'",
    "# all of stdin as one message",
    "penstock publish images.raw - < photo.jpg",
    "# each line of stdin as a message",
    "penstock publish events.log - --lines < log.txt",
    "penstock publish orders.eu --tombstone --key customer-7",
    "# store it only if it gets this offset",
    "penstock publish orders.eu hello --envelope --expect-offset 42",
)
_PROGRESS_EVERY = 500
_EXPECTATIONS = "Nats-Expected-Last-"  # prefix of the headers that expect a sequence
_WRONG_LAST = re.compile(r"wrong last sequence: (\d+)")


_Nats = Annotated[
    str | None, nats_option("The nats-server to publish to, such as nats://HOST:PORT.  Default: the broker's.")
]
_InboxPrefix = Annotated[
    str | None,
    typer.Option(
        "--inbox-prefix",
        metavar="SUBJECT",
        help="Receive acks below this subject, such as _INBOX.shop, if the NATS user may subscribe only there.  "
        "Default: _INBOX.",
        rich_help_panel=CONNECTION_PANEL,
        show_default=False,
    ),
]
_Header = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; 'NAME: VALUE' works, too; may be repeated."),
]
_CorrelationId = Annotated[
    str | None,
    typer.Option(
        "--correlation-id", metavar="TEXT", help="With --envelope: the ack returns this id.", show_default=False
    ),
]
_ExpectOffset = Annotated[
    int | None,
    typer.Option(
        "--expect-offset",
        metavar="N",
        min=0,
        help="With --envelope: store it only if it gets this offset.",
        show_default=False,
    ),
]
_Retries = Annotated[
    int,
    typer.Option(
        "--retries",
        metavar="N",
        min=0,
        max=limits.PUBLISH_RETRIES_MAX,
        help="Resend a message up to N times within the time-out while no ack comes.  It may be stored twice.",
    ),
]


@dataclass(frozen=True, slots=True)
class _Values:
    """The values to publish: those of VALUE, --lines, --count and --tombstone."""

    value: str | None
    lines: bool
    count: int
    tombstone: bool

    @property
    def are_several(self) -> bool:
        return self.lines or self.count > 1

    def check(self, key: str | None) -> None:
        """Raise BadParameter if the options do not fit together, or not with --key."""
        if self.tombstone and (self.value is not None or self.lines):
            raise typer.BadParameter("a tombstone has no value")
        if key == "":
            raise typer.BadParameter("an empty key cannot be published; leave --key out for none")
        if self.tombstone and key is None:
            raise typer.BadParameter("a tombstone deletes a key: give --key")
        if self.value is None and not self.tombstone:
            raise typer.BadParameter("give a VALUE, or '-' to read it from stdin ('' is an empty message)")
        if self.lines and self.value != "-":
            raise typer.BadParameter("--lines reads stdin: give '-' as VALUE")
        if self.lines and self.count > 1:
            raise typer.BadParameter("give either --lines or --count")

    def read(self) -> Iterator[bytes | None]:
        if self.tombstone:
            return itertools.repeat(None, self.count)
        if self.lines:
            return (line.rstrip(b"\n").removesuffix(b"\r") for line in sys.stdin.buffer)
        is_stdin = self.value == "-"
        data = sys.stdin.buffer.read() if is_stdin else (self.value or "").encode("utf-8", "surrogateescape")
        return itertools.repeat(data, self.count)


@clearly
def publish(
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="The subject; a stream should store it.")],
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="The message; '-' reads it from stdin.", show_default=False)
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="TEXT", help="The message's key.")] = None,
    header: _Header = None,
    lines: Annotated[bool, typer.Option("--lines", help="With '-': each line of stdin is a message.")] = False,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="Publish the message N times.")] = 1,
    tombstone: Annotated[bool, typer.Option("--tombstone", help="Mark the key as deleted; has no value.")] = False,
    stream: Annotated[
        str | None,
        typer.Option("--stream", metavar="STREAM", help="Let only this stream store it.", show_default=False),
    ] = None,
    ack: Annotated[
        str,
        typer.Option(
            "--ack",
            metavar="all|leader|none",
            help="all: wait until the message is as durable as its stream promises; leader: until the leader alone has "
            "written it, not synced; none: do not wait.",
        ),
    ] = "all",
    envelope: Annotated[
        bool,
        typer.Option("--envelope", help="Publish in a Liftbridge-compatible envelope.  Takes protobuf."),
    ] = False,
    correlation_id: _CorrelationId = None,
    expect_offset: _ExpectOffset = None,
    crc: Annotated[bool, typer.Option("--crc", help="With --envelope: let the broker check a CRC.")] = False,
    retries: _Retries = 0,
    as_json: Json = False,
    nats: _Nats = None,
    nats_creds: NatsCreds = None,
    nats_tls_ca: NatsTlsCa = None,
    nats_tls_cert: NatsTlsCert = None,
    nats_tls_key: NatsTlsKey = None,
    inbox_prefix: _InboxPrefix = None,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Publish messages through NATS, as any NATS client would, and show their acks.

    If several streams store the subject, the command waits for all acks of a single message; with --count, --lines or
    --retries it waits for the first ack of each message.
    """
    if (mistake := subject_mistake(subject)) is not None:
        raise typer.BadParameter(mistake)
    if ack not in ("all", "leader", "none"):
        raise typer.BadParameter(f"--ack {ack!r} is not one of all, leader, none")
    wanted = _Values(value, lines, count, tombstone)
    wanted.check(key)
    options: dict[str, Any] = {"key": key, "headers": _headers(header or [])}
    options["envelope"] = _envelope(envelope, correlation_id, expect_offset, crc=crc)
    values = wanted.read()
    nats_options = _nats_options(nats_creds, inbox_prefix) | tls_of(nats_tls_ca, nats_tls_cert, nats_tls_key)
    reached = connected(ctx, server, timeout, nats=urls_of(nats), nats_options=nats_options)
    with _said_of_offsets(options), reached as (client, seconds):
        options["timeout"] = seconds
        acking = _who_acks(client, subject, stream, ack, seconds, in_envelope=envelope)
        if ack == "all" and len(acking) > 1 and not wanted.are_several and not retries:
            acks = list(client.publish_to_all(subject, next(values), **options).values())
        else:
            if len(acking) > 1:
                say_note(f"{' and '.join(acking)} store {subject}: the first ack of each message is waited for")
            options |= {"stream": stream, "ack": ack, "retries": retries}
            if wanted.are_several:
                _publish_many(client, subject, values, options, as_json=as_json, total=None if lines else count)
                return
            got = client.publish(subject, next(values), **options)
            acks = [] if got is None else [got]
    _show(subject, acks, as_json=as_json)


def _nats_options(creds: Path | None, inbox_prefix: str | None) -> dict[str, Any]:
    if inbox_prefix is not None and (mistake := subject_mistake(inbox_prefix)) is not None:
        raise typer.BadParameter(f"--inbox-prefix: {mistake}")
    return {**login_of(creds), **({"inbox_prefix": inbox_prefix} if inbox_prefix else {})}


def _who_acks(
    client: Client, subject: str, stream: str | None, ack: str, timeout: float, *, in_envelope: bool
) -> list[str]:
    """Return the streams that will ack a message. Raise ValueError or StreamNotFound if no ack can come."""
    from penstock.base.errors import ErrorCode
    from penstock.client.errors import StreamNotFound

    found = client.streams_for(subject, timeout=timeout)
    if stream is not None:
        info = client.stream(stream, timeout=timeout)
        if _is_mapped(info, subject):
            found = [info]
        if info.stream_id not in {one.stream_id for one in found}:
            raise ValueError(f"stream {stream} stores {', '.join(info.subjects)}, which does not cover {subject}")
        found = [info]
    if ack == "none":
        return []
    if not found:  # nats-server may map the subject to a partition's subject
        found = [one for one in client.streams(timeout=timeout) if _is_mapped(one, subject)]
    if not found:
        text = f"no stream stores the subject {subject!r}; make one with `penstock stream create NAME SUBJECT`"
        raise StreamNotFound(ErrorCode.STREAM_NOT_FOUND, text, subject=subject)
    heard = (Acks.REPLY, Acks.ENVELOPE) if in_envelope else (Acks.REPLY,)
    acking = [info.name for info in found if info.config.acks in heard]
    if not acking:
        silent = " and ".join(f"{info.name} (--acks {info.config.acks})" for info in found)
        may_ack = any(info.config.acks is Acks.ENVELOPE for info in found)
        advice = "publish with --envelope, or with --ack none" if may_ack else "publish with --ack none"
        raise ValueError(f"the streams that store {subject} send no acks: {silent}; {advice}")
    paused = [info.name for info in found if info.name in acking and info.intake == Intake.PAUSED]
    if not 0 < len(paused) < len(acking):
        return acking
    say_note(f"note: {' and '.join(paused)} is paused, and so does not store this message on {subject}")
    return [name for name in acking if name not in paused]


def _is_mapped(info: StreamInfo, subject: str) -> bool:
    """True if nats-server maps messages on this subject to partitions; see `penstock nats-config`."""
    return info.config.split.how is PartitionBy.MAPPED and matches(info.subject, subject)


@contextmanager
def _said_of_offsets(options: Mapping[str, Any]) -> Iterator[None]:
    """Word an error about --expect-offset in offsets: the broker's last sequence is the next offset.

    If headers expect a sequence, the broker's text stays, because the error may be about those.
    """
    expected = options["envelope"].expected_offset if options["envelope"] else None
    asks = any(name.startswith(_EXPECTATIONS) for name in options["headers"] or ())
    try:
        yield
    except RemoteError as error:
        last = _WRONG_LAST.fullmatch(error.message)
        if expected is None or asks or last is None:
            raise
        text = f"not stored: it would get offset {last[1]}, and not {expected}"
        raise RemoteError(error.code, text, **error.details) from None


def _show(subject: str, acks: list[PubAck], *, as_json: bool) -> None:
    if as_json:
        # `seq` is the sequence that a JetStream client gets: it counts from 1.
        output.print_json({"acks": [{**one._asdict(), "seq": one.offset + 1} for one in acks]})
        return
    if not acks:
        say(f"published on {subject}; no ack was asked for")
    for one in acks:
        again = " (a duplicate: stored before)" if one.duplicate else ""
        say(f"stored in {one.stream} at offset {one.offset}{how_safely(one)}{again}")


def how_safely(ack: PubAck) -> str:
    """Return the durability and replicas in an ack, as text; empty if it has none."""
    if ack.fsynced is None:
        return ""
    if ack.replicas is None or ack.replicas < 2:
        return ", on disk" if ack.fsynced else ", in memory, not synced"
    return f", on {ack.replicas} replicas ({'on their disks' if ack.fsynced else 'in memory, not synced'})"


def _envelope(wanted: bool, correlation_id: str | None, expect_offset: int | None, *, crc: bool) -> Envelope | None:
    from penstock.client.values import Envelope

    if wanted:
        return Envelope(correlation_id or "", expect_offset, crc)
    if correlation_id is not None or expect_offset is not None or crc:
        raise typer.BadParameter("--correlation-id, --expect-offset and --crc need an envelope: add --envelope")
    return None


def _headers(texts: list[str]) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    for text in texts:
        found = re.match(r"([^=:]+)(?:=|:[ \t]*)", text)  # the first `=` or `:` ends the name
        if found is None:
            raise typer.BadParameter(f"--header {text!r}: write NAME=VALUE, or 'NAME: VALUE'")
        name, value = found[1], text[found.end() :]
        if name in headers:
            raise typer.BadParameter(f"--header {name!r} is given twice")
        headers[name] = value
    return headers or None


def _publish_many(
    client: Client,
    subject: str,
    values: Iterator[bytes | None],
    options: dict[str, Any],
    *,
    as_json: bool,
    total: int | None,
) -> None:
    """Publish with many acks in flight; stop at the first failure and print the count of acked messages."""
    started_s = time.perf_counter()
    tally = _Tally()
    with output.progress("Publishing", total) as advance:
        try:
            for sent, value in enumerate(values, 1):
                tally.waiting.append(client.publish_nowait(subject, value, **options))
                if sent % _PROGRESS_EVERY == 0:
                    tally.collect(only_done=True)
                    advance(sent)
            tally.collect(only_done=False)
        except BaseException:
            say(f"stopped after {output.count_text(tally.acked)} acked messages", err=True)
            raise
        advance(tally.acked)
    elapsed_s = max(time.perf_counter() - started_s, 1e-9)
    if as_json:
        # Without acks it is unknown how many were stored.
        told = (None, None) if options["ack"] == "none" else (tally.stored, tally.duplicates)
        counts = {"messages": tally.acked, "stored": told[0], "duplicates": told[1]}
        output.print_json({**counts, "seconds": elapsed_s, "offsets": tally.ranges})
        return
    rate = output.count_text(round(tally.acked / elapsed_s))
    say(f"{output.count_text(tally.acked)} messages in {elapsed_s:.2f} s ({rate}/s)")
    for line in tally.lines():
        say(line)


class _Tally:
    """Counts acks; holds the futures of pending ones."""

    def __init__(self) -> None:
        self.waiting: list[Future[PubAck | None]] = []
        self.acked = 0
        self.stored = 0
        self.duplicates = 0
        self.duplicate_streams: dict[str, None] = {}  # in order
        self.ranges: dict[str, tuple[int, int]] = {}

    def collect(self, *, only_done: bool) -> None:
        """Take acks in order; with `only_done` stop at the first pending one. Raise the first failure."""
        taken = 0
        for future in self.waiting:
            if only_done and not future.done():
                break
            ack = future.result()
            taken += 1
            self.acked += 1
            if ack is not None and ack.duplicate:
                self.duplicates += 1
                self.duplicate_streams[ack.stream] = None
            elif ack is not None:
                self.stored += 1
                first, last = self.ranges.get(ack.stream, (ack.offset, ack.offset))
                self.ranges[ack.stream] = min(first, ack.offset), max(last, ack.offset)
        del self.waiting[:taken]

    def lines(self) -> Iterator[str]:
        """Yield a summary, one line per stream."""
        for name, (first, last) in self.ranges.items():
            yield f"stored in {name} at " + (f"offset {first}" if first == last else f"offsets {first} to {last}")
        if self.duplicates:
            were = "was a duplicate" if self.duplicates == 1 else "were duplicates"
            where = ", ".join(self.duplicate_streams)
            yield f"{output.count_text(self.duplicates)} {were} in {where}: stored before, and not again"
