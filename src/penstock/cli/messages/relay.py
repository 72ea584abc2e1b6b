"""`penstock relay`: publishes a stream's messages to NATS, for ordinary subscribers."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal import output, places
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
    DEFAULT_TIMEOUT,
    Debug,
    Follow,
    FromPlace,
    Json,
    OnePartition,
    Server,
    StreamArgument,
    Timeout,
    UntilPlace,
    as_bad_parameter,
    connected,
    examples,
)

if TYPE_CHECKING:
    from penstock.ops import Relay

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
_RATE = re.compile(r"([0-9][0-9_,]*)(?:/s)?")

_Target = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="SUBJECT",
        help="Target subject, in which {subject} stands for the message's subject, and {1}, {2}, … for its tokens.",
    ),
]
_Stored = Annotated[
    bool | None,
    typer.Option(
        "--stored/--not-stored",
        help="Wait for streams to ack each message, or not.  Default: wait for those of this cluster and of JetStream "
        "that store the target.",
        show_default=False,
    ),
]


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
    to: _Target,
    start: FromPlace = "earliest",
    end: UntilPlace = None,
    follow: Follow = False,
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
    partition: OnePartition = None,
    without: Annotated[
        str | None,
        typer.Option(
            "--without",
            metavar="HEADER[,…]",
            help="Leave these headers out, such as Nats-TTL,Nats-Rollup or 'Nats-Schedule*'.",
        ),
    ] = None,
    stored: _Stored = None,
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
    from penstock.ops.relay.relaying import Relay, RelayOptions

    rate_max, from_place = _rate(rate), places.parse_place(start, "--from")
    until_place = None if end is None else places.parse_place(end, "--until", takes_last=False)
    headers = [name.strip() for name in (without or "").split(",") if name.strip()]
    wanted = RelayOptions(from_place, until_place, follow, group, partition, rate_max, headers, stored)
    with as_bad_parameter():
        relay = Relay(stream, to, wanted)
    urls, options = urls_of(nats), login_of(nats_creds) | tls_of(nats_tls_ca, nats_tls_cert, nats_tls_key)
    begin_s, is_done = time.monotonic(), False
    try:
        with as_bad_parameter(), connected(ctx, server, timeout, nats=urls) as (client, seconds):
            relay.run(client, nats_options=options, timeout=seconds, progress=output.ShownProgress())
        is_done = True
    finally:
        if is_done or relay.messages:
            _say(relay, stream, to, time.monotonic() - begin_s, as_json=as_json)


def _say(relay: Relay, stream: str, to: str, elapsed_s: float, *, as_json: bool) -> None:
    """Print a summary, also after an interruption."""
    seconds = max(1e-3, elapsed_s)
    if as_json:
        ends = {str(number): end for number, end in sorted(relay.ends.items())}
        told = {"stream": stream, "messages": relay.messages, "seconds": round(seconds, 3), "ends": ends}
        output.print_json({**told, "duplicates": relay.duplicates})
    elif relay.messages:
        count = output.counted(relay.messages, "message")
        say(f"relayed {count} of stream {stream} to {to}, {relay.messages / seconds:,.0f} a second")
    else:
        say_note(f"nothing was relayed: {relay.why_nothing}")
    if relay.duplicates:
        what = "acked as duplicates: the stream had a message with their Nats-Msg-Id already"
        say_note(f"note: {output.counted(relay.duplicates, 'message')} {what} (--without Nats-Msg-Id stores each)")
    if relay.headers_dropped:
        say_note(f"note: {output.counted(relay.headers_dropped, 'message')} without their invalid NATS header block")
