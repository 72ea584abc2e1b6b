"""`penstock stream truncate`: gives up what a stream holds before a place in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.errors import ErrorCode
from penstock.base.units import format_bytes
from penstock.cli import output, places
from penstock.cli.confirming import confirm
from penstock.cli.failure import advising, clearly
from penstock.cli.options import DEFAULT_TIMEOUT, Debug, Json, Server, StreamArgument, Timeout, Yes, connected, examples

if TYPE_CHECKING:
    from penstock.client.values import Start, Truncation

EXAMPLES = examples(
    "# what would go?",
    "penstock stream truncate orders --before '30d ago' --dry-run",
    "penstock stream truncate orders --before 2026-01-31T08:00",
    "penstock stream truncate orders --before 120000 --partition 2 --yes",
)


def _place(text: str) -> Start:
    place = places.parse_place(text, takes_last=False)
    if isinstance(place, places.LastMessages):
        raise typer.BadParameter("give an offset, an age or a time: -N is no place that stays where it is")
    return place


@clearly
def truncate(
    ctx: typer.Context,
    stream: StreamArgument,
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="PLACE",
            help="Give up what comes before: an offset, an age such as 30d, a time (UTC, if it names no zone), or "
            "latest (all there is).",
        ),
    ],
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            metavar="N",
            min=0,
            help="Only this partition; an offset needs one where there are several.  Default: all.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
    yes: Yes = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Give up what a stream holds before a place in it. Asks first.

    Once this command has ended, nothing of it comes back, whichever broker fails.
    Offsets are counted: where some were compacted away, or have expired, that is more than messages.
    Bytes are counted in whole batches, as one broker has them; the disk gets them back in whole segment files.
    """
    place = _place(before)
    in_range = advising(ErrorCode.OFFSET_OUT_OF_RANGE, "give --before an offset in that range")
    with in_range, connected(ctx, server, timeout) as (client, seconds):
        info = client.stream(stream, timeout=seconds)
        if isinstance(place, int) and partition is None and len(info.partitions) > 1:
            text = f"an offset is a place in one partition, and stream {info.name} has {len(info.partitions)}"
            raise typer.BadParameter(f"{text}: say which with --partition")
        found = client.truncate_stream(info, place, partition=partition, dry_run=True, timeout=seconds)
        if dry_run:
            _say(info.name, found, "would go", as_json=as_json)
            return
        if not yes:
            confirm(f"Give up {_what(found)} of stream {info.name} for good?", f"stream {info.name} keeps what it has")
        done = []
        for one in found:  # what was counted, also if a time or `latest` is another place by now
            done += client.truncate_stream(info, one.log_start, partition=one.partition, timeout=seconds)
        _say(info.name, done, "gone", as_json=as_json)


def _what(found: list[Truncation]) -> str:
    count = sum(one.messages for one in found)
    size_bytes = sum(one.size_bytes for one in found)
    return f"{output.counted(count, 'offset')} ({format_bytes(size_bytes)})"


def _say(name: str, found: list[Truncation], what: str, *, as_json: bool) -> None:
    for one in found:
        if as_json:
            output.print_json(one._asdict())
            continue
        which = (
            f"stream {name}" if len(found) == 1 and not one.partition else f"stream {name}, partition {one.partition}"
        )
        begins = "begins" if what == "gone" else "would begin"
        typer.echo(f"{which}: {_what([one])} {what}; it {begins} at offset {one.log_start}")
