"""Arguments and options of `penstock consumer …`, and what their texts mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.units import parse_duration_us
from penstock.cli.terminal import places
from penstock.cli.terminal.completing import complete_consumer, complete_stream
from penstock.cli.terminal.names import consumer_name, stream_name

if TYPE_CHECKING:
    from penstock.client.values import Start

ConsumerArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONSUMER",
        help="The consumer's name.",
        callback=consumer_name,
        autocompletion=complete_consumer,
    ),
]
StreamOrAll = Annotated[
    str | None,
    typer.Argument(
        metavar="[STREAM]",
        help="Only of this stream.  Default: of all.",
        callback=stream_name,
        autocompletion=complete_stream,
    ),
]
ConsumerPartition = Annotated[
    int | None,
    typer.Option(
        "--partition",
        metavar="N",
        min=0,
        help="The consumer's partition; needed if the stream has several.",
    ),
]
NewConsumer = Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer's name.", callback=consumer_name)]
Subjects = Annotated[
    list[str] | None,
    typer.Option(
        "--subject",
        metavar="PATTERN",
        help="Only messages on these subjects, such as 'orders.*'; may be given several times.",
        show_default=False,
    ),
]
Begin = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="Begin here: earliest, latest (what comes from now on), an offset, an age such as 30s or '5m ago', or "
        "a time (UTC, if it names no zone).",
    ),
]
Acks = Annotated[
    str,
    typer.Option(
        "--acks",
        metavar="explicit|all|none",
        help="explicit: each message is acked; all: an ack counts for all before it; none: a delivered message is "
        "done.",
    ),
]
AckWait = Annotated[
    str | None,
    typer.Option("--ack-wait", metavar="DURATION", help="Deliver again without an ack in this time.  Default: 30s."),
]
MaxDeliver = Annotated[
    int | None, typer.Option("--max-deliver", metavar="N", min=1, help="Deliver a message so often at most.")
]
MaxAckPending = Annotated[
    int | None,
    typer.Option(
        "--max-ack-pending",
        metavar="N",
        min=1,
        help="Deliver nothing new while so many messages have no ack.  Default: 1,000.",
    ),
]
OrderBy = Annotated[
    str | None,
    typer.Option(
        "--order-by",
        metavar="key|subject|token:N",
        help="Messages alike in this are with one client at a time, in order.",
    ),
]
DeadLetters = Annotated[
    str | None,
    typer.Option(
        "--dead-letters",
        metavar="STREAM",
        help="Store a message here that was delivered as often as it may be, or that a client terminated.",
        callback=stream_name,
        autocompletion=complete_stream,
    ),
]
InactiveAfter = Annotated[
    str | None,
    typer.Option(
        "--inactive-after",
        metavar="DURATION",
        help="Delete it after so long without a client.  Default: it stays (with acks), or 5s (without).",
    ),
]
Description = Annotated[str, typer.Option("--description", metavar="TEXT", help="What it is for.")]


def seconds_given(text: str | None, option: str) -> float | None:
    """Return a duration in seconds. BadParameter."""
    if text is None:
        return None
    try:
        return parse_duration_us(text) / 1e6
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def place_given(text: str, option: str) -> Start:
    """Return a place of the log. BadParameter."""
    place = places.parse_place(text, option, takes_last=False)
    if isinstance(place, places.LastMessages):
        raise typer.BadParameter("give earliest, latest, an offset, an age or a time: -N changes with each new message")
    return place
