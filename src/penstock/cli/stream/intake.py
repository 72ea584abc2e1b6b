"""`penstock stream pause | resume | read-only | seal`: change if a stream accepts messages (its intake)."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.base.config import Intake
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import clearly, say, say_note
from penstock.cli.terminal.options import DEFAULT_TIMEOUT, Debug, Server, StreamArgument, Timeout, Yes, connected
from penstock.ops.placed_rows import unfinished_note


@clearly
def pause(
    ctx: typer.Context,
    stream: StreamArgument,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Pause a stream: brokers do not subscribe to its subjects until it is resumed.

    The stream stores no messages. Publishers get "no responders", unless another subscriber is there.

    Reads and retention go on. A paused stream is no longer read-only.
    """
    with connected(ctx, server, timeout) as (client, seconds):
        before = client.stream(stream, timeout=seconds)
        info = client.pause_stream(before, timeout=seconds)
    no_longer = ", and no longer read-only" if before.intake == Intake.READ_ONLY else ""
    say(f"stream {info.name} is paused{no_longer}: brokers do not subscribe to {', '.join(info.subjects)} for it")


@clearly
def resume(
    ctx: typer.Context,
    stream: StreamArgument,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Let a stream that is paused or read-only accept messages again.

    Messages that are published after this command has ended are stored.
    """
    with connected(ctx, server, timeout) as (client, seconds):
        info = client.resume_stream(stream, timeout=seconds)
    say(f"stream {info.name} takes messages: it stores {', '.join(info.subjects)}")
    if note := unfinished_note(info.config):
        say_note(note)


@clearly
def read_only(
    ctx: typer.Context,
    stream: StreamArgument,
    off: Annotated[
        bool, typer.Option("--off", help="Let a read-only stream accept messages again; for a paused one use resume.")
    ] = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Let a stream reject messages, each with an error, until it is resumed.

    Publishers get JetStream's error 10109. Reads and retention go on. A read-only stream is no longer paused.
    """
    with connected(ctx, server, timeout) as (client, seconds):
        before = client.stream(stream, timeout=seconds)
        was_paused = before.intake == Intake.PAUSED
        if off and was_paused:
            advice = f"`penstock stream resume {before.name}` lets it accept messages again"
            raise ValueError(f"stream {before.name} is paused, and not read-only: {advice}")
        info = (client.resume_stream if off else client.make_read_only)(before, timeout=seconds)
    no_longer = ", and no longer paused" if was_paused else ""
    say(f"stream {info.name} takes messages" if off else f"stream {info.name} is read-only{no_longer}")


@clearly
def seal(
    ctx: typer.Context,
    stream: StreamArgument,
    yes: Yes = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Seal a stream permanently: no message is added or removed. Asks first.

    Messages are rejected with JetStream's error 10109, retention stops, and the stream cannot be truncated.

    Only the whole stream can be deleted.
    """
    with connected(ctx, server, timeout) as (client, seconds):
        info = client.stream(stream, timeout=seconds)
        if not yes:
            question = f"Seal stream {info.name} for good? It takes no messages again."
            confirm(question, f"stream {info.name} stays as it is")
        client.seal_stream(info, timeout=seconds)
    say(f"stream {info.name} is sealed: what it holds stays, until the stream is deleted")
