"""`penstock stream delete-message`, and `stream purge --subject`: delete messages in the middle of a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.errors import ErrorCode
from penstock.cli.terminal import output
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
    from penstock.client.values import Deletion, Erasure, Start, SubjectPurge
    from penstock.messages import StreamInfo

SECURE_HELP = (
    "Erase the bytes, too: wait until the files of no live broker hold them. Archives, backups, copies and tables keep "
    "them."
)

EXAMPLES = examples(
    "penstock stream delete-message orders 4711",
    "penstock stream delete-message orders 4711 4712 4713 --partition 2 --yes",
    "# nothing of it may be left on any disk",
    "penstock stream delete-message orders 4711 --secure",
)


@clearly
def delete_message(
    ctx: typer.Context,
    stream: StreamArgument,
    offsets: Annotated[
        list[int], typer.Argument(metavar="OFFSET...", min=0, help="The offsets of the messages (`seq` minus 1).")
    ],
    partition: Annotated[
        int | None,
        typer.Option("--partition", metavar="N", min=0, help="The partition; needed if there are several."),
    ] = None,
    secure: Annotated[bool, typer.Option("--secure", help=SECURE_HELP)] = False,
    yes: Yes = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Delete single messages of a stream, for good. Asks first.

    Once this command has ended, no leader shows them any more, whichever broker fails. The other messages keep their
    offsets. The bytes leave the disks with the cleaner, later, or with --secure before the command ends; copies in
    archives, backups, other streams and tables stay. With --secure brokers that are away are named: they erase the
    bytes when they are back. After two minutes the command fails and says what it waited for; the erasing goes on, and
    the same command waits for it again.
    """
    with advising(ErrorCode.MESSAGE_NOT_FOUND, "nothing was deleted"), connected(ctx, server, timeout) as connection:
        client, seconds = connection
        info = client.stream(stream, timeout=seconds)
        if partition is None and len(info.partitions) > 1:
            text = f"an offset is a place in one partition, and stream {info.name} has {len(info.partitions)}"
            raise typer.BadParameter(f"{text}: say which with --partition")
        if not yes:
            what = f"message {offsets[0]}" if len(offsets) == 1 else f"{len(offsets)} messages"
            confirm(f"Delete {what} of stream {info.name} for good?", f"stream {info.name} keeps what it has")
        progress = _progress() if secure else None
        done = client.delete(info, offsets, partition=partition, secure=secure, progress=progress, timeout=seconds)
    if as_json:
        output.print_json(_as_json(done))
    else:
        gone = f"{output.count_text(done.already_deleted)} gone already (deleted, or beyond a limit by subject)"
        before = f", {gone}" if done.already_deleted else ""
        say(f"stream {info.name}: {output.counted(done.deleted, 'message')} deleted{before}{_erased(done.erasure)}")
        if done.missing:
            end = info.partitions[partition or 0].committed_end
            later = [offset for offset in done.missing if end is not None and offset >= end]
            _note_missing([one for one in done.missing if one not in later], "expired, purged or compacted")
            _note_missing(later, f"not stored yet, the next message gets offset {end}")
    if done.missing and not done.deleted:
        raise typer.Exit(1)


def _note_missing(offsets: Sequence[int], why: str) -> None:
    if offsets:
        where = ", ".join(map(str, offsets[:10])) + (", …" if len(offsets) > 10 else "")
        say_note(f"no message at {where}: {why}")


def purge_subject(
    client: Client,
    info: StreamInfo,
    subject: str,
    before: Start | None,
    keep: int,
    partition: int | None,
    *,
    dry_run: bool,
    secure: bool,
    yes: bool,
    as_json: bool,
    timeout: float,
) -> None:
    """Carry out `stream purge --subject`: count, ask, delete."""
    found = client.purge_subject(
        info, subject, before=before, keep=keep, partition=partition, dry_run=True, timeout=timeout
    )
    if dry_run:
        _say(info.name, subject, found, "would go", as_json=as_json)
        return
    if not yes:
        count = output.counted(sum(one.messages for one in found), "message")
        confirm(f"Purge {count} on {subject} of stream {info.name} for good?", f"stream {info.name} keeps what it has")
    done: list[SubjectPurge] = []
    for one in found:  # the confirmed ones, even if more have come by now
        done += client.purge_subject(
            info,
            subject,
            before=one.before,
            partition=one.partition,
            secure=secure,
            progress=_progress() if secure else None,
            timeout=timeout,
        )
    _say(info.name, subject, done, "gone", as_json=as_json)


def _say(name: str, subject: str, found: list[SubjectPurge], what: str, *, as_json: bool) -> None:
    for one in found:
        if as_json:
            output.print_json(_as_json(one))
            continue
        which = f"stream {name}" + (f", partition {one.partition}" if len(found) > 1 or one.partition else "")
        say(f"{which}: {output.counted(one.messages, 'message')} on {subject} {what}{_erased(one.erasure)}")


def _as_json(done: Deletion | SubjectPurge) -> dict[str, object]:
    told = done._asdict()
    erasure = told.pop("erasure")
    return told if erasure is None else {**told, "erased": erasure.erased, "absent": erasure.absent}


def _erased(erasure: Erasure | None) -> str:
    """Return the end of a line: which brokers have erased the messages, and which are away."""
    if erasure is None:
        return ""
    text = f", and erased on {_brokers(erasure.erased)}"
    if not erasure.absent:
        return text
    when = "is away and erases when it is back" if len(erasure.absent) == 1 else "are away and erase when they are back"
    return f"{text}; {_brokers(erasure.absent)} {when}"


def _brokers(ids: Sequence[int]) -> str:
    numbers = ", ".join(map(str, ids))
    return f"broker {numbers}" if len(ids) == 1 else f"brokers {numbers}"


def _progress() -> Callable[[Erasure], None]:
    """Return a callback that says on stderr how many replicas are done, and what the others wait for."""
    told: list[str] = []

    def say_state(state: Erasure) -> None:
        if state.waiting:
            count = len(state.erased) + len(state.waiting)
            text = f"erased on {len(state.erased)} of {count} live brokers; {'; '.join(state.waiting)}"
            if told[-1:] != [text]:
                told.append(text)
                say_note(text)

    return say_state
