"""`penstock import --from-jetstream`: imports a JetStream stream, keeping its sequences and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal import output
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import clearly, say, say_note
from penstock.cli.terminal.names import jetstream_name
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
    FutureTimesOption,
    Json,
    NoConsumers,
    Server,
    Timeout,
    Yes,
    connected,
    examples,
)
from penstock.ops.placed_rows import FutureTimes

if TYPE_CHECKING:
    from penstock.ops import Imported, JetStreamImport

EXAMPLES = examples(
    "# copy all messages; the next run copies new ones",
    "penstock import --from-jetstream ORDERS --as orders",
    "penstock import --from-jetstream ORDERS --as orders",
    "# copy the rest, and let Penstock store the subject from then on",
    "penstock import --from-jetstream ORDERS --as orders --cut-over",
)
_Subject = Annotated[
    str | None,
    typer.Option(
        "--subject",
        metavar="SUBJECT",
        help="Only messages on this subject, which the stream then stores.  Default: that of the JetStream stream, if "
        "it has one.",
    ),
]
_SkipUnstorable = Annotated[
    bool,
    typer.Option(
        "--skip-unstorable",
        help="Skip messages that the stream cannot hold, and list them: a subject that is not UTF-8 or not the "
        "stream's, a size over its limit.  Default: stop before the first of them.",
    ),
]


@clearly
def import_stream(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Option(
            "--from-jetstream", metavar="STREAM", help="The JetStream stream's name.", callback=jetstream_name
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Name of the stream in Penstock.  Default: the same.")
    ] = None,
    subject: _Subject = None,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", metavar="N", min=1, help="Default: as in JetStream, at most the number of brokers."),
    ] = None,
    cut_over: Annotated[
        bool,
        typer.Option(
            "--cut-over",
            help="Let JetStream stop storing the subject, import the rest, and let Penstock store it. Asks first.",
        ),
    ] = False,
    no_consumers: NoConsumers = False,
    skip: _SkipUnstorable = False,
    future_times: FutureTimesOption = FutureTimes.KEEP,
    domain: Annotated[
        str | None,
        typer.Option("--js-domain", metavar="NAME", help="JetStream's domain.", rich_help_panel=CONNECTION_PANEL),
    ] = None,
    nats: Annotated[
        str | None, nats_option("The nats-server with JetStream.  Default: the one that the broker reports.")
    ] = None,
    nats_creds: NatsCreds = None,
    nats_tls_ca: NatsTlsCa = None,
    nats_tls_cert: NatsTlsCert = None,
    nats_tls_key: NatsTlsKey = None,
    yes: Yes = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Import a JetStream stream into a stream of Penstock, with its sequences, times, subjects and headers.

    The message with JetStream's sequence 42 gets offset 41, which a PubAck reports as 42; deleted messages leave gaps.
    The stream is created with the settings of JetStream's stream, and paused: no broker subscribes for it.

    A Nats-TTL or Nats-Rollup header that the stream does not allow is copied without an effect, as in JetStream. The
    command stops before a message that the stream cannot hold, and names it; see --skip-unstorable.

    You can interrupt it at any time and run it again: it continues at the end of the stream and copies nothing twice.
    Run it while JetStream is in use, as often as you like; each run adds new messages.

    --cut-over ends that: JetStream's stream gets another subject, the rest is imported, its consumers are created here,
    and the new stream is resumed, or sealed if JetStream's is. Publishers that wait for acks and retry lose nothing.
    Without it, `penstock stream resume` is the last step. Once it is complete, it does nothing.

    A consumer goes on behind its ack floor: JetStream does not tell which messages above it are acked, so all of these
    are delivered again. What JetStream's consumer acks after the cut-over is delivered again, too.
    """
    from penstock.ops.jetstream.importing import ImportOptions, JetStreamImport

    wanted = ImportOptions(name, subject, replicas, skip, future_times, domain, not no_consumers)
    urls, options = urls_of(nats), login_of(nats_creds) | tls_of(nats_tls_ca, nats_tls_cert, nats_tls_key)
    job: JetStreamImport | None = None
    done: Imported | None = None
    try:
        with connected(ctx, server, timeout, nats=urls) as (client, seconds):
            told = output.ShownProgress()
            job = JetStreamImport(client, source, wanted, nats_options=options, timeout=seconds, progress=told)
            with job:
                if cut_over and not yes and not job.is_cut_over:
                    _ask(job, source)
                done = job.run(cut_over=cut_over)
                _say(source, done, is_sealed=job.is_sealed, as_json=as_json)
    except KeyboardInterrupt:
        if done is None:
            _say_interrupted(job)
        raise


def _ask(job: JetStreamImport, source: str) -> None:
    stream = job.check_cut_over()
    if note := frozen_copy_note(source):
        say_note(note)
    text = f"Have JetStream's stream {source} store {job.aside} instead of {', '.join(stream.subjects)}, and"
    confirm(f"{text} Penstock's stream {stream.name} store that?", "JetStream goes on as it is")


def frozen_copy_note(source: str) -> str:
    """Return the warning for a bucket or an object store, whose clients read through JetStream's API; else empty."""
    if not source.startswith(("KV_", "OBJ_")):
        return ""
    return (
        f"note: after the cut-over clients that name no JetStream domain write to Penstock and read JetStream's frozen "
        f"copy, without an error: have all of them name Penstock's domain, or delete JetStream's stream {source}"
    )


def _say_interrupted(job: JetStreamImport | None) -> None:
    far = f": {job.stream} has it up to {job.end}" if job is not None and job.stream else ""
    nobody = "neither JetStream nor Penstock stores the subject now: run it again"
    say_note(f"interrupted{far}; {nobody if job is not None and job.is_aside else 'run it again to go on'}")


def _say(source: str, done: Imported, *, is_sealed: bool, as_json: bool) -> None:
    if done.raised:
        count = output.counted(done.raised, "message")
        say_note(f"note: JetStream's clock stepped back: {count} got the time of the message before")
    for seq, why in done.skips:
        say_note(f"note: the message with sequence {seq} is skipped: {why}")
    if done.skipped > len(done.skips):
        say_note(f"note: {done.skipped:,} messages were skipped; these are the first")
    if as_json:
        told = {"stream": done.stream, "from": source, "messages": done.messages, "last_sequence": done.last_sequence}
        output.print_json(
            {**told, "is_cut_over": done.is_cut_over, "skipped": done.skipped, "consumers": done.consumers}
        )
        return
    count = output.counted(done.messages, "message")
    say(f"imported {count} of {source}; {done.stream} has it up to {done.last_sequence}")
    if done.consumers:
        say(f"{done.stream} has {output.counted(done.consumers, 'consumer')} of {source}")
    if done.is_cut_over and is_sealed:
        say(f"stream {done.stream} is sealed, as JetStream's stream {source} is")
    elif done.is_cut_over:
        say(f"stream {done.stream} stores {done.subject} from now on")
        if note := frozen_copy_note(source):
            say_note(note)
    else:
        again = "run it again for new messages, and finally with --cut-over"
        say_note(f"stream {done.stream} is paused, and stores nothing by itself: {again}")
