"""`penstock stream copy`: copies a stream's rows to another stream, in the same cluster or another one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal import output, places
from penstock.cli.terminal.failure import clearly, say, say_note
from penstock.cli.terminal.names import stream_name
from penstock.cli.terminal.options import (
    CONNECTION_PANEL,
    DEFAULT_TIMEOUT,
    Debug,
    FutureTimesOption,
    Json,
    NoConsumers,
    Server,
    StreamArgument,
    SubjectPattern,
    Timeout,
    UntilPlace,
    as_bad_parameter,
    connected,
    examples,
)
from penstock.ops.placed_rows import FutureTimes

if TYPE_CHECKING:
    from penstock.client.values import Start
    from penstock.ops import Copied

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
    until: UntilPlace = None,
    subject: SubjectPattern = None,
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
    no_consumers: NoConsumers = False,
    future_times: FutureTimesOption = FutureTimes.KEEP,
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
    --resume ends that. It first gives the copy the consumers of JetStream's API that the source has, each where it is
    then: end their clients before, or they get again what they ack later. Offsets of groups are not copied: see
    `penstock group show` and `penstock group reset`.
    """
    from penstock.ops.copy import CopyOptions, copy_stream

    end = None if until is None else _place(until, "--until")
    options = CopyOptions(_place(start, "--from"), end, subject, like, resume, future_times, not no_consumers)
    with ExitStack() as stack, as_bad_parameter():
        here, seconds = stack.enter_context(connected(ctx, server, timeout))
        there = here
        if to_server is not None:
            known = {} if to_credentials is None else {"credentials": to_credentials}
            there, _ = stack.enter_context(connected(ctx, to_server, timeout, **known))
        told = output.ShownProgress()
        done = copy_stream(here, source, target, options, there=there, timeout=seconds, progress=told)
    _say(done, as_json=as_json)


def _place(text: str, option: str) -> Start:
    place = places.parse_place(text, option, takes_last=False)
    if isinstance(place, places.LastMessages):
        raise typer.BadParameter("-N changes with each new message: give an offset, an age or a time")
    return place


def _say(done: Copied, *, as_json: bool) -> None:
    if as_json:
        output.print_json(done._asdict())
        return
    say(f"copied {output.counted(done.rows, 'row')} of stream {done.source} to {done.target}, and compared them")
    if done.consumers:
        say(f"stream {done.target} has {output.counted(done.consumers, 'consumer')} of {done.source}")
    if not done.is_resumed:
        say_note(f"stream {done.target} is paused: run it again for new messages, and finally with --resume")
