"""`penstock consumer …`: show, create, pause, reset and delete the consumers of JetStream's API."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.units import utc_text
from penstock.cli.stream.consumer_options import (
    Acks,
    AckWait,
    Begin,
    ConsumerArgument,
    ConsumerPartition,
    DeadLetters,
    Description,
    InactiveAfter,
    MaxAckPending,
    MaxDeliver,
    NewConsumer,
    OrderBy,
    StreamOrAll,
    Subjects,
    place_given,
    seconds_given,
)
from penstock.cli.stream.consumer_views import advised, consumer_row, print_table, show, taking_nothing, told
from penstock.cli.terminal import output
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import clearly, printable, say, say_note
from penstock.cli.terminal.help import Command, Group
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


@clearly
def list_consumers(
    ctx: typer.Context,
    stream: StreamOrAll = None,
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
    with advised(stream), connected(ctx, server, timeout) as (client, seconds):
        found = _all(client, stream, seconds)
    if as_json:
        for one in found:
            output.print_json(told(one))
    elif found:
        print_table([consumer_row(one) for one in found])
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


@clearly
def info(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: ConsumerArgument,
    partition: ConsumerPartition = None,
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
    with advised(stream), connected(ctx, server, timeout) as (client, seconds):
        show(client.consumers.info(stream, consumer, partition=partition, timeout=seconds), as_json=as_json)


@clearly
def peek(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: ConsumerArgument,
    count: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=1, max=1000, help="How many messages.")] = 10,
    partition: ConsumerPartition = None,
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
    with advised(stream), connected(ctx, server, timeout) as (client, seconds):
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
    consumer: NewConsumer,
    subject: Subjects = None,
    start: Begin = "earliest",
    acks: Acks = "explicit",
    ack_wait: AckWait = None,
    deliveries_max: MaxDeliver = None,
    ack_pending_max: MaxAckPending = None,
    order_by: OrderBy = None,
    dead_letters: DeadLetters = None,
    inactive_after: InactiveAfter = None,
    description: Description = "",
    partition: ConsumerPartition = None,
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
    begin = place_given(start, "--from")
    wait_s, inactive_s = seconds_given(ack_wait, "--ack-wait"), seconds_given(inactive_after, "--inactive-after")
    with advised(stream), connected(ctx, server, timeout) as (client, seconds):
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
            dead_letters=dead_letters,
            inactive_after=inactive_s,
            description=description,
            partition=partition,
            timeout=seconds,
        )
        subjects = client.stream(stream, timeout=seconds).config.held_subjects if subject else ()
    for one in taking_nothing(made.filters, subjects) if subject else ():
        held = printable(", ".join(subjects))
        say_note(f"note: consumer {consumer} takes nothing on {one}: the stream's subjects are {held}")
    show(made, as_json=as_json)


@clearly
def pause(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: ConsumerArgument,
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="For so long, such as 30m.  Default: until it is resumed."),
    ] = None,
    partition: ConsumerPartition = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Have a consumer deliver nothing for a while. Its clients stay connected, and acks count."""
    seconds_paused = seconds_given(for_, "--for")
    until = None if seconds_paused is None else timedelta(seconds=seconds_paused)
    with advised(stream), connected(ctx, server, timeout) as (client, seconds):
        found = client.consumers.pause(stream, consumer, until, partition=partition, timeout=seconds)
    if as_json:
        output.print_json(told(found))
        return
    how_long = "until it is resumed" if until is None else f"until {_moment(found.paused_until)}"
    say(f"consumer {consumer} of stream {stream} is paused {how_long}")


def _moment(moment: datetime | None) -> str:
    return "now" if moment is None else utc_text(round(moment.timestamp() * 1_000_000))


@clearly
def resume(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: ConsumerArgument,
    partition: ConsumerPartition = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Have a paused consumer go on."""
    with advised(stream), connected(ctx, server, timeout) as (client, seconds):
        found = client.consumers.resume(stream, consumer, partition=partition, timeout=seconds)
    if as_json:
        output.print_json(told(found))
    else:
        say(f"consumer {consumer} of stream {stream} goes on; {output.count_text(found.pending)} messages are pending")


@clearly
def reset(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: ConsumerArgument,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Where it goes on: earliest, latest, an offset, an age such as 30s or '5m ago', or a time (UTC, if it "
            "names no zone).  Default: behind what it has delivered.",
        ),
    ] = None,
    partition: ConsumerPartition = None,
    yes: Yes = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Have a consumer go on at another place, and forget what it delivered without an ack. Asks first.

    Only a consumer that began at `earliest` goes anywhere; one that began at an offset or a time, not before that.
    """
    place = None if to is None else place_given(to, "--to")
    with advised(stream), connected(ctx, server, timeout) as (client, seconds):
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
        output.print_json(told(found))
    else:
        pending = output.count_text(found.pending)
        say(f"consumer {consumer} of stream {stream} goes on: {pending} messages are pending; it was at offset "
            f"{before.next_offset}")  # fmt: skip


@clearly
def delete(
    ctx: typer.Context,
    stream: StreamArgument,
    consumer: ConsumerArgument,
    partition: ConsumerPartition = None,
    yes: Yes = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Delete a consumer, and what it knows of deliveries and acks. Asks first. The messages stay."""
    with advised(stream), connected(ctx, server, timeout) as (client, seconds):
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
            "# what three deliveries did not get done is kept in another stream",
            "penstock stream create orders-dead 'penstock.dead.orders-dead.>'",
            "penstock consumer create orders packing --max-deliver 3 --dead-letters orders-dead",
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
