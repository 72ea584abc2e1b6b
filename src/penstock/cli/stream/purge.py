"""`penstock stream purge`: deletes a stream's messages before a position, or those on a subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.config import Storage
from penstock.base.errors import ErrorCode, PenstockError
from penstock.base.units import format_bytes
from penstock.cli.stream.deleting import SECURE_HELP, purge_subject
from penstock.cli.terminal import output, places
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import advising, clearly, say, say_note
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

if TYPE_CHECKING:
    from penstock.client.blocking.client import Client
    from penstock.client.values import Start, Truncation
    from penstock.messages import StreamInfo

EXAMPLES = examples(
    "# what would be deleted?",
    "penstock stream purge orders --before '30d ago' --dry-run",
    "penstock stream purge orders --before 2026-01-31T08:00",
    "penstock stream purge orders --before 120000 --partition 2 --yes",
    "# keep the last 1,000 of each partition",
    "penstock stream purge orders --keep 1000",
    "penstock stream purge orders --all",
    "# the messages on a subject, but for the last 10",
    "penstock stream purge orders --subject orders.eu.7 --keep 10",
)


def _place(text: str) -> Start:
    place = places.parse_place(text, "--before", takes_last=False)
    if isinstance(place, places.LastMessages):
        raise typer.BadParameter("-N changes with each new message; to keep the last N use --keep N")
    return place


@clearly
def purge(
    ctx: typer.Context,
    stream: StreamArgument,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="PLACE",
            help="Delete messages before this: an offset, an age such as 30d, or a time (UTC, if it names no zone).",
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            min=1,
            help="Delete all but the last N messages of each partition; with --subject: all but the last N of those.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all messages so far.")] = False,
    subject: Annotated[
        str | None,
        typer.Option("--subject", metavar="SUBJECT", help="Only messages on this subject (with wildcards, if given)."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            metavar="N",
            min=0,
            help="Only this partition; needed with an offset if there are several.  Default: all.",
        ),
    ] = None,
    secure: Annotated[bool, typer.Option("--secure", help=f"With --subject. {SECURE_HELP}")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and change nothing.")] = False,
    yes: Yes = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Delete a stream's messages before a position. Prints how much that is, and asks first.

    Choose the position with one of --before, --keep and --all; with --subject it may be left out. After this command
    has ended, deleted messages never come back, whichever broker fails. The remaining messages keep their offsets.

    The command counts messages, and the bytes of whole batches on one broker; disk space is freed in whole segment
    files, a moment later, and the command prints how much that was so far.

    With --subject the command counts messages, and the log's beginning stays where it is; disk space is freed by the
    cleaner, later, or with --secure before the command ends. To delete single messages, and for what --secure says and
    waits for, see `penstock stream delete-message`.
    """
    chosen = sum((before is not None, keep is not None, everything))
    if subject is not None:
        if chosen > 1:
            text = "choose one of --before PLACE, --keep N and --all"
            raise typer.BadParameter(f"{text}: what --keep keeps are the last ones of all messages, whatever is before")
        end = None if before is None else _place(before)
        with connected(ctx, server, timeout) as (client, seconds):
            info = client.stream(stream, timeout=seconds)
            _check_partition(info, end, partition)
            purge_subject(
                client,
                info,
                subject,
                end,
                keep or 0,
                partition,
                dry_run=dry_run,
                secure=secure,
                yes=yes,
                as_json=as_json,
                timeout=seconds,
            )
        return
    if secure:
        raise typer.BadParameter("--secure needs --subject, which may be '>': it rewrites the files of a log")
    if chosen != 1:
        raise typer.BadParameter("choose what to delete with one of --before PLACE, --keep N and --all")
    place = _place("latest" if before is None else before)
    in_range = advising(ErrorCode.OFFSET_OUT_OF_RANGE, "give --before an offset in that range")
    with in_range, connected(ctx, server, timeout) as (client, seconds):
        info = client.stream(stream, timeout=seconds)
        _check_partition(info, place, partition)
        found = client.truncate_stream(info, place, keep=keep or 0, partition=partition, dry_run=True, timeout=seconds)
        if dry_run:
            _say(info.name, found, "would go", as_json=as_json)
            return
        if not yes:
            if len(found) > 1:
                for line in _lines(info.name, found, "would go"):
                    say_note(line)
            confirm(f"Purge {_what(found)} of stream {info.name} for good?", f"stream {info.name} keeps what it has")
        sizes, done = _sizes(client, info, seconds), []
        for one in found:  # the confirmed offsets, even if a time or the end resolves to others by now
            done += client.truncate_stream(info, one.log_start, partition=one.partition, timeout=seconds)
        _say(info.name, done, "gone", as_json=as_json, freed=None if as_json else _freed(client, info, sizes, seconds))


def _check_partition(info: StreamInfo, place: Start | None, partition: int | None) -> None:
    if isinstance(place, int) and partition is None and len(info.partitions) > 1:
        text = f"an offset is a place in one partition, and stream {info.name} has {len(info.partitions)}"
        raise typer.BadParameter(f"{text}: say which with --partition, or give a time")


def _sizes(client: Client, info: StreamInfo, timeout: float) -> dict[int, int]:
    """Return the size of each partition's files on its leader's disk; empty for a stream in memory."""
    if info.config.storage is Storage.MEMORY:
        return {}
    parts = client.stream(info.name, timeout=timeout).partitions
    return {one.partition: one.size_bytes for one in parts if one.log_start is not None}


def _freed(client: Client, info: StreamInfo, sizes: dict[int, int], timeout: float) -> dict[int, int]:
    """Return how much less each partition takes on the disk than in `sizes`; empty if that is unknown."""
    try:
        now = _sizes(client, info, timeout)
    except PenstockError:  # the purge is complete: this is only for the text
        return {}
    return {partition: max(0, size - now[partition]) for partition, size in sizes.items() if partition in now}


def _what(found: list[Truncation]) -> str:
    count = sum(one.messages for one in found)
    size_bytes = sum(one.size_bytes for one in found)
    # Disk space is freed only in whole segments.
    freed = format_bytes(size_bytes) if size_bytes or not count else "no whole segment, so 0 B"
    return f"{output.counted(count, 'message')} ({freed})"


def _lines(name: str, found: list[Truncation], what: str, freed: dict[int, int] | None = None) -> list[str]:
    begins = "begins" if what == "gone" else "would begin"
    lines = []
    for one in found:
        which = f"stream {name}"
        if len(found) > 1 or one.partition:
            which += f", partition {one.partition}"
        line = f"{which}: {_what([one])} {what}; it {begins} at offset {one.log_start}"
        if freed is not None and (size_bytes := freed.get(one.partition)) is not None:
            line += f"; on disk: {format_bytes(size_bytes)} freed so far (whole segment files only)"
        lines.append(line)
    return lines


def _say(name: str, found: list[Truncation], what: str, *, as_json: bool, freed: dict[int, int] | None = None) -> None:
    if as_json:
        for one in found:
            output.print_json(one._asdict())
        return
    for line in _lines(name, found, what, freed):
        say(line)
