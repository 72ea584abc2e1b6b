"""`penstock consumer …`: show, create, pause, reset and delete the consumers of JetStream's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.errors import ErrorCode
from penstock.base.units import parse_duration_us, utc_text
from penstock.cli.terminal import output, places
from penstock.cli.terminal.completing import complete_consumer, complete_stream
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import advising, clearly, printable, say, say_note
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.names import consumer_name, stream_name
from penstock.cli.terminal.options import (
    DEFAULT_TIMEOUT,
    Debug,
    Json,
    Server,
    StreamArgument,
    Timeout,
    Yes,
    connected,
    examples,
)
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    from penstock.client.blocking.client import Client
    from penstock.client.consume.stream_consumers import ConsumerInfo
    from penstock.client.values import Start

app = typer.Typer(
    cls=Group,
    help="Show, create, pause, reset and delete consumers: from them NATS clients get a stream's messages.\n\n"
    "A consumer remembers which messages of a stream its clients got, and with acks which of them are done; a message "
    "without an ack is delivered again. Several clients of one consumer share its messages. Consumers belong to "
    "JetStream's API, which brokers answer with --jetstream-api auto; `penstock group` is about consumer groups of "
    "Penstock's own clients.",
    epilog=examples(
        "# all consumers, and how far they are",
        "penstock consumer ls",
        "# what will be delivered next",
        "penstock consumer peek orders billing",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

_ConsumerArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONSUMER",
        help="The consumer's name.",
        callback=consumer_name,
        autocompletion=complete_consumer,
    ),
]
_Partition = Annotated[
    int | None,
    typer.Option(
        "--partition",
        metavar="N",
        min=0,
        help="The consumer's partition; needed if the stream has several.",
    ),
]
_StreamOrAll = Annotated[
    str | None,
    typer.Argument(
        metavar="[STREAM]",
        help="Only of this stream.  Default: of all.",
        callback=stream_name,
        autocompletion=complete_stream,
    ),
]
_NUMBERS = ("partition", "pending", "unacked", "redelivered", "waiting")
_LEFT_OUT_FIRST = ("redelivered", "waiting", "kind", "partition")


@contextmanager
def _advised(stream: str | None) -> Iterator[None]:
    """Say what to do about errors of all these commands."""
    where = "STREAM" if stream is None else stream
    with (
        advising(ErrorCode.CONSUMER_NOT_FOUND, f"`penstock consumer ls {where}` shows those that there are"),
        advising(ErrorCode.CONSUMER_EXISTS, "take another name, or delete it first"),
    ):
        yield


@clearly
def list_consumers(
    ctx: typer.Context,
    stream: _StreamOrAll = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """List consumers, and how far they are.

    pending: messages that it has not delivered yet. unacked: delivered, and not acked. redelivered: of those, delivered
    more than once. waiting: requests of clients that wait for messages.
    """
    need_stdout()
    with _advised(stream), connected(ctx, server, timeout) as (client, seconds):
        found = _all(client, stream, seconds)
    if as_json:
        for one in found:
            output.print_json(_told(one))
    elif found:
        _print_table([_row(one) for one in found])
    else:
        say_note(
            "no consumers; a NATS client makes them, or `penstock consumer create STREAM CONSUMER`"
            if stream is None
            else f"stream {stream} has no consumers; a NATS client makes them, or `penstock consumer create {stream} …`"
        )


def _all(client: Client, stream: str | None, seconds: float) -> list[ConsumerInfo]:
    if stream is not None:
        return client.consumers.all(stream, timeout=seconds)
    infos = [info for info in client.streams(timeout=seconds) if not info.config.is_internal]
    return [one for info in infos for one in client.consumers.all(info, timeout=seconds)]


def _row(one: ConsumerInfo) -> dict[str, str]:
    return {
        "stream": one.stream,
        "partition": str(one.partition),
        "consumer": one.name,
        "kind": _kind(one),
        "acks": one.ack_policy,
        "pending": output.count_text(one.pending),
        "unacked": output.count_text(one.ack_pending),
        "redelivered": output.count_text(one.redelivered),
        "waiting": output.count_text(one.waiting),
        "state": _state(one),
    }


def _kind(one: ConsumerInfo) -> str:
    return f"{'durable' if one.is_durable else 'ephemeral'} {'push' if one.is_push else 'pull'}"


def _state(one: ConsumerInfo) -> str:
    """Return why it delivers nothing; empty if it does."""
    if one.paused_until is not None:
        return "paused"
    return "full: waits for acks" if one.is_full else ""


def _print_table(rows: list[dict[str, str]]) -> None:
    console = output.console()
    if all(row["partition"] == "0" for row in rows):
        rows = [{title: text for title, text in row.items() if title != "partition"} for row in rows]
    rows = [{title: printable(text) for title, text in row.items()} for row in rows]
    titles = output.fitting(rows, console.width, left_out_first=_LEFT_OUT_FIRST)
    table = output.table(*titles, right=_NUMBERS)
    for row in rows:
        table.add_row(*(output.cell(row[title]) for title in titles))
    console.print(table)


def _told(one: ConsumerInfo) -> dict[str, Any]:
    """Return a consumer for JSON."""
    return {**one._asdict(), "is_full": one.is_full}


@clearly
def info(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: _ConsumerArgument,
    partition: _Partition = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Show a consumer: how far it is, what waits for an ack, and its config.

    json: one object, with [bold]name, stream, partition, created, next_offset, acked_end, deliveries, pending,
    ack_pending, redelivered, waiting, paused_until, last_delivered, config[/bold] and others. next_offset is behind the
    last delivered message; all that the consumer takes before acked_end is acked.
    """
    need_stdout()
    with _advised(stream), connected(ctx, server, timeout) as (client, seconds):
        _show(client.consumers.info(stream, consumer, partition=partition, timeout=seconds), as_json=as_json)


def _show(one: ConsumerInfo, *, as_json: bool) -> None:
    if as_json:
        output.print_json(_told(one))
        return
    pending_max = "" if one.ack_pending_max is None else f", at most {output.count_text(one.ack_pending_max)}"
    last = "" if one.last_delivered is None else f", last {one.last_delivered:%Y-%m-%d %H:%M:%SZ}"
    facts = {
        "consumer": f"{one.name} of stream {one.stream}" + (f", partition {one.partition}" if one.partition else ""),
        "kind": f"{_kind(one)}, acks: {one.ack_policy}",
        "created": f"{one.created:%Y-%m-%d %H:%M:%SZ}",
        "takes": ", ".join(one.filters) or "all messages",
        "state": _state_line(one),
        "delivered": f"up to offset {one.next_offset} ({output.count_text(one.deliveries)} deliveries{last})",
        "acked": "" if one.ack_policy == "none" else f"all before offset {one.acked_end}",
        "pending": f"{output.count_text(one.pending)} not delivered yet",
        "unacked": ""
        if one.ack_policy == "none"
        else f"{output.count_text(one.ack_pending)}{pending_max}; {output.count_text(one.redelivered)} delivered again",
        "waiting": f"{output.count_text(one.waiting)} requests of clients",
        "order by": one.order_by or "",
        "dead letters": _letters_line(one),
    }
    width = max(map(len, facts))
    for title, text in facts.items():
        if text:
            say(f"{title:<{width}}  {printable(text)}")
    say(f"{'config':<{width}}  {printable(json.dumps(_plain_config(one.config)))}")


def _letters_line(one: ConsumerInfo) -> str:
    if one.dead_letters is None:
        return ""
    waiting = f"; {output.count_text(one.dead_letters_waiting)} wait" if one.dead_letters_waiting else ""
    return f"to stream {one.dead_letters}{waiting}" + (f": {one.dead_letters_error}" if one.dead_letters_error else "")


def _state_line(one: ConsumerInfo) -> str:
    if one.paused_until is not None:
        from penstock.client.consume.stream_consumers import UNTIL_RESUMED

        if one.paused_until >= UNTIL_RESUMED:
            return f"paused; go on with `penstock consumer resume {one.stream} {one.name}`"
        return f"paused until {one.paused_until:%Y-%m-%d %H:%M:%SZ}"
    if one.is_full:
        return "full: it delivers nothing new until messages are acked; are its clients still there?"
    return "delivers"


def _plain_config(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value not in ("", [], {}, None)}


@clearly
def peek(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: _ConsumerArgument,
    count: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, max=1000, help="How many messages.")] = 10,
    partition: _Partition = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Show the next messages of a consumer, without taking them.

    They are those that it will deliver for the first time; what was delivered and not acked is not shown again. The
    consumer does not notice. Your user needs the right to read them.
    """
    from penstock.cli.messages.rows import json_row

    need_stdout()
    with _advised(stream), connected(ctx, server, timeout) as (client, seconds):
        found = client.consumers.peek(stream, consumer, count, partition=partition, timeout=seconds)
    if as_json:
        for message in found:
            output.print_json(json_row(message))
        return
    if not found:
        say_note(f"consumer {consumer} has delivered all there is")
        return
    table = output.table("offset", "time", "subject", "key", "value", right=("offset",))
    for message in found:
        when = output.short_time_text(message.timestamp_us)
        value = output.shown_bytes(message.value, _VALUE_CELLS)
        subject = printable(message.subject)
        table.add_row(str(message.offset), when, output.cell(subject), output.shown_bytes(message.key), value)
    output.console().print(table)


_VALUE_CELLS = 60


@clearly
def create(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer's name.", callback=consumer_name)],
    subject: Annotated[
        list[str] | None,
        typer.Option(
            "--subject",
            metavar="PATTERN",
            help="Only messages on these subjects, such as 'orders.*'; may be given several times.",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Begin here: earliest, latest (what comes from now on), an offset, an age such as 30s or '5m ago', or "
            "a time (UTC, if it names no zone).",
        ),
    ] = "earliest",
    acks: Annotated[
        str,
        typer.Option(
            "--acks",
            metavar="explicit|all|none",
            help="explicit: each message is acked; all: an ack counts for all before it; none: a delivered message is "
            "done.",
        ),
    ] = "explicit",
    ack_wait: Annotated[
        str | None,
        typer.Option(
            "--ack-wait", metavar="DURATION", help="Deliver again without an ack in this time.  Default: 30s."
        ),
    ] = None,
    deliveries_max: Annotated[
        int | None,
        typer.Option("--max-deliver", metavar="N", min=1, help="Deliver a message so often at most."),
    ] = None,
    ack_pending_max: Annotated[
        int | None,
        typer.Option(
            "--max-ack-pending",
            metavar="N",
            min=1,
            help="Deliver nothing new while so many messages have no ack.  Default: 1,000.",
        ),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option(
            "--order-by",
            metavar="key|subject|token:N",
            help="Messages alike in this are with one client at a time, in order.",
        ),
    ] = None,
    inactive_after: Annotated[
        str | None,
        typer.Option(
            "--inactive-after",
            metavar="DURATION",
            help="Delete it after so long without a client.  Default: it stays (with acks), or 5s (without).",
        ),
    ] = None,
    description: Annotated[str, typer.Option("--description", metavar="TEXT", help="What it is for.")] = "",
    partition: _Partition = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Create a pull consumer. The same command again changes nothing; another config is an error.

    NATS clients fetch messages from it: js.pull_subscribe_bind in nats-py, `nats consumer next STREAM CONSUMER`.
    """
    if acks not in ("explicit", "all", "none"):
        raise typer.BadParameter(f"--acks {acks}: give explicit, all or none")
    begin, wait_s, inactive_s = (
        _place(start, "--from"),
        _seconds(ack_wait, "--ack-wait"),
        _seconds(inactive_after, "--inactive-after"),
    )
    with _advised(stream), connected(ctx, server, timeout) as (client, seconds):
        made = client.consumers.create(
            stream,
            consumer,
            subject=subject or (),
            start=begin,
            acks=acks,  # type: ignore[arg-type]
            ack_wait=wait_s,
            deliveries_max=deliveries_max,
            ack_pending_max=ack_pending_max,
            order_by=order_by,
            inactive_after=inactive_s,
            description=description,
            partition=partition,
            timeout=seconds,
        )
    _show(made, as_json=as_json)


def _seconds(text: str | None, option: str) -> float | None:
    if text is None:
        return None
    try:
        return parse_duration_us(text) / 1e6
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def _place(text: str, option: str) -> Start:
    place = places.parse_place(text, option, takes_last=False)
    if isinstance(place, places.LastMessages):
        raise typer.BadParameter("give earliest, latest, an offset, an age or a time: -N changes with each new message")
    return place


@clearly
def pause(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: _ConsumerArgument,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="For so long, such as 30m.  Default: until it is resumed."),
    ] = None,
    partition: _Partition = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Have a consumer deliver nothing for a while. Its clients stay connected, and acks count."""
    seconds_paused = _seconds(for_, "--for")
    until = None if seconds_paused is None else timedelta(seconds=seconds_paused)
    with _advised(stream), connected(ctx, server, timeout) as (client, seconds):
        found = client.consumers.pause(stream, consumer, until, partition=partition, timeout=seconds)
    if as_json:
        output.print_json(_told(found))
        return
    how_long = "until it is resumed" if until is None else f"until {_moment(found.paused_until)}"
    say(f"consumer {consumer} of stream {stream} is paused {how_long}")


def _moment(moment: datetime | None) -> str:
    return "now" if moment is None else utc_text(round(moment.timestamp() * 1_000_000))


@clearly
def resume(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: _ConsumerArgument,
    partition: _Partition = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Have a paused consumer go on."""
    with _advised(stream), connected(ctx, server, timeout) as (client, seconds):
        found = client.consumers.resume(stream, consumer, partition=partition, timeout=seconds)
    if as_json:
        output.print_json(_told(found))
    else:
        say(f"consumer {consumer} of stream {stream} goes on; {output.count_text(found.pending)} messages are pending")


@clearly
def reset(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: _ConsumerArgument,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Where it goes on: earliest, latest, an offset, an age such as 30s or '5m ago', or a time (UTC, if it "
            "names no zone).  Default: behind what it has delivered.",
        ),
    ] = None,
    partition: _Partition = None,
    yes: Yes = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Have a consumer go on at another place, and forget what it delivered without an ack. Asks first.

    Only a consumer that began at `earliest` goes anywhere; one that began at an offset or a time, not before that.
    """
    place = None if to is None else _place(to, "--to")
    with _advised(stream), connected(ctx, server, timeout) as (client, seconds):
        before = client.consumers.info(stream, consumer, partition=partition, timeout=seconds)
        if not yes:
            unacked = f", and forget {output.count_text(before.ack_pending)} deliveries" if before.ack_pending else ""
            where = "behind what it has delivered" if to is None else f"at {to}"
            confirm(
                f"Have consumer {consumer} of stream {stream} go on {where}{unacked}?",
                f"consumer {consumer} stays where it is",
            )
        found = client.consumers.reset(stream, consumer, place, partition=partition, timeout=seconds)
    if as_json:
        output.print_json(_told(found))
    else:
        pending = output.count_text(found.pending)
        say(f"consumer {consumer} of stream {stream} goes on: {pending} messages are pending; it was at offset "
            f"{before.next_offset}")  # fmt: skip


@clearly
def delete(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: _ConsumerArgument,
    partition: _Partition = None,
    yes: Yes = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Delete a consumer, and what it knows of deliveries and acks. Asks first. The messages stay."""
    with _advised(stream), connected(ctx, server, timeout) as (client, seconds):
        found = client.consumers.info(stream, consumer, partition=partition, timeout=seconds)
        if not yes:
            lost = f"; {output.count_text(found.ack_pending)} messages have no ack yet" if found.ack_pending else ""
            confirm(f"Delete consumer {consumer} of stream {stream}{lost}?", f"consumer {consumer} stays")
        client.consumers.delete(stream, consumer, partition=partition, timeout=seconds)
    say(f"consumer {consumer} of stream {stream} is deleted")


for _name, _command, _lines in (
    ("ls", list_consumers, ("penstock consumer ls", "penstock consumer ls orders --json | jq .pending")),
    (
        "info",
        info,
        ("penstock consumer info orders billing", "penstock consumer info orders billing --json | jq .ack_pending"),
    ),
    ("peek", peek, ("penstock consumer peek orders billing", "penstock consumer peek orders billing -n 100 --json")),
    (
        "create",
        create,
        (
            "penstock consumer create orders billing --acks none --inactive-after 1h",
            "penstock consumer create orders eu --subject 'orders.eu.*' --ack-wait 1m --max-deliver 5",
            "# each customer's orders in order, with many workers",
            "penstock consumer create orders mail --order-by key",
        ),
    ),
    ("pause", pause, ("penstock consumer pause orders billing", "penstock consumer pause orders billing --for 30m")),
    ("resume", resume, ("penstock consumer resume orders billing",)),
    (
        "reset",
        reset,
        (
            "penstock consumer reset orders billing --to earliest",
            "penstock consumer reset orders billing --to '1h ago' --yes",
        ),
    ),
    ("delete", delete, ("penstock consumer delete orders billing", "penstock consumer delete orders billing --yes")),
):
    app.command(_name, cls=Command, epilog=examples(*_lines))(_command)
