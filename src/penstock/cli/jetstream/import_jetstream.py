"""`penstock import --from-jetstream`: imports a JetStream stream, keeping its sequences and times."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from penstock.base.config import Intake
from penstock.base.errors import OperationalError, PenstockError
from penstock.cli.jetstream import jetstream_config
from penstock.cli.jetstream.cut_over import check_is_heard
from penstock.cli.messages import placed_rows
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
    Json,
    Server,
    Timeout,
    Yes,
    connected,
    examples,
)

if TYPE_CHECKING:
    import asyncio

    import pyarrow as pa

    from penstock.cli.jetstream.source import Info, JetStream, JetStreamRows
    from penstock.client.blocking.client import Client
    from penstock.client.blocking.threads import LoopThread
    from penstock.client.bulk.placing import Placer
    from penstock.messages import StreamInfo

EXAMPLES = examples(
    "# copy all messages; the next run copies new ones",
    "penstock import --from-jetstream ORDERS --as orders",
    "penstock import --from-jetstream ORDERS --as orders",
    "# copy the rest, and let Penstock store the subject from then on",
    "penstock import --from-jetstream ORDERS --as orders --cut-over",
)
_PUT_TIMEOUT_S = 60.0
_CLOSE_S = 3.0
_SAME_LOOKS, _LOOK_S = 3, 0.1  # until JetStream has stored what it had received


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
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            metavar="SUBJECT",
            help="Only messages on this subject, which the stream then stores.  Default: that of the JetStream stream, "
            "if it has one.",
        ),
    ] = None,
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
    skip: Annotated[
        bool,
        typer.Option(
            "--skip-unstorable",
            help="Skip messages that the stream cannot hold, and list them: a subject that is not UTF-8 or not "
            "the stream's, a size over its limit.  Default: stop before the first of them.",
        ),
    ] = False,
    future_times: placed_rows.FutureTimesOption = placed_rows.FutureTimes.KEEP,
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

    --cut-over ends that: JetStream's stream gets another subject, the rest is imported, the new stream is resumed.
    Publishers that wait for acks and retry lose nothing. Without it, `penstock stream resume` is the last step.
    """
    urls, options = urls_of(nats), login_of(nats_creds) | tls_of(nats_tls_ca, nats_tls_cert, nats_tls_key)
    course = _Course()
    with (
        course.told(),
        connected(ctx, server, timeout, nats=urls) as (client, seconds),
        _opened(client, options, domain, seconds) as (thread, js),
    ):
        info = _as_before(client, thread.run(_known(js, source)), name or source, subject, seconds)
        mapped = jetstream_config.mapped(
            info.config, name=name or source, subject=subject, replicas=replicas, brokers=_brokers(client, seconds)
        )
        for note in mapped.notes:
            say_note(f"note: {note}")
        filtered = None if subject is None or [subject] == info.config.get("subjects") else subject
        times = placed_rows.RowTimes.of(future_times, client.status(timeout=seconds))
        job = _Job(client, thread, js, source, filtered, seconds, course, skip, times)
        if cut_over:
            check_is_heard(client, thread, js, source, seconds)
        stream = job.target(mapped)
        if cut_over:
            _check_cut_over(stream, info, mapped.subject)
            if not yes:
                aside = jetstream_config.subject_aside(source)
                question = (
                    f"Have JetStream's stream {source} store {aside} instead of {stream.subject}, and Penstock's "
                )
                confirm(f"{question}stream {stream.name} store that?", "JetStream goes on as it is")
        done = job.run(stream, info)
        if cut_over:
            done = job.switch(stream, info, done)
        course.is_over = True
        times.say(stream.name)
        _say(stream, source, done, is_cut_over=cut_over, as_json=as_json)


class _Course:
    """Progress of the command, to say how to continue if it fails or is interrupted."""

    def __init__(self) -> None:
        self.stream = ""
        self.end = 0
        self.is_aside = False  # True while neither JetStream nor Penstock stores the subject
        self.is_over = False

    @contextmanager
    def told(self) -> Iterator[None]:
        """Say how to continue: in a note of the error, or in a line on stderr after Ctrl-C."""
        nobody = "neither JetStream nor Penstock stores the subject now: run it again"
        try:
            yield
        except KeyboardInterrupt:
            if not self.is_over:
                far = f": {self.stream} has it up to {self.end}" if self.stream else ""
                say_note(f"interrupted{far}; {nobody if self.is_aside else 'run it again to go on'}")
            raise
        except PenstockError as error:
            if self.is_aside:
                error.add_note(nobody)
            raise


class ImportResult(NamedTuple):
    """Counts of one run. Up to sequence `end` the stream has all messages; `looked_to` is JetStream's last sequence."""

    messages: int
    end: int
    looked_to: int
    raised: int
    skipped: int
    skips_told: tuple[tuple[int, str], ...]


class _Job(NamedTuple):
    """One run of an import."""

    client: Client
    thread: LoopThread
    js: JetStream
    source: str
    subject: str | None
    timeout_s: float
    course: _Course
    skips: bool
    times: placed_rows.RowTimes

    def target(self, mapped: jetstream_config.Mapped) -> StreamInfo:
        """Return the target stream, created if it does not exist.

        Raise OperationalError if it is not paused or has several partitions.
        """
        from penstock.client.bulk.placing import create_paused
        from penstock.client.errors import StreamNotFound

        with suppress(StreamNotFound):
            there = self.client.stream(mapped.name, timeout=self.timeout_s)
            if there.intake != Intake.PAUSED:
                text = f"stream {there.name} is there, and is {there.intake}: an import needs one that is paused"
                raise OperationalError(f"{text}; give it another name with --as")
            if len(there.partitions) > 1:
                raise OperationalError(
                    f"stream {there.name} has {len(there.partitions)} partitions; sequences need one"
                )
            return there
        return create_paused(self.client, mapped.config(), timeout=self.timeout_s)

    def run(self, stream: StreamInfo, info: Info) -> ImportResult:
        """Copy the messages that the target lacks, up to the last sequence in `info`."""
        from penstock.cli.jetstream.source import JetStreamRows
        from penstock.client.bulk.placing import Placer

        placer = Placer(self.client, stream, timeout=max(self.timeout_s, _PUT_TIMEOUT_S))
        self.course.stream, self.course.end = stream.name, placer.end
        last_us, latest_us = self._last_us(stream, placer)
        rows = JetStreamRows(
            last_us,
            pattern=stream.subject,
            bytes_max=stream.config.max_message_bytes,
            skips=self.skips,
        )
        if placer.end > info.state.last_seq:
            text = f"stream {stream.name} goes up to sequence {placer.end}, and JetStream's {self.source} up to"
            raise OperationalError(f"{text} {info.state.last_seq}: it is another one")
        if placer.end == 0 and info.state.messages == 0:
            placer.begin_at(info.state.last_seq)
        messages = self._put(placer, info, rows, latest_us)
        if info.state.first_seq > 1:
            placer.give_up_before(min(info.state.first_seq - 1, placer.end))
        if placer.end < info.state.last_seq and self.subject is None:
            gone = "skipped or deleted" if rows.skipped else "deleted"
            text = f"JetStream's sequences from {placer.end + 1} to {info.state.last_seq} were {gone}"
            say_note(f"note: {text}: the next message here gets {placer.end + 1}")
        return ImportResult(
            messages, placer.end, info.state.last_seq, rows.raised, rows.skipped, tuple(rows.skips_told)
        )

    def switch(self, stream: StreamInfo, info: Info, done: ImportResult) -> ImportResult:
        """Give JetStream's stream another subject, copy the rest, and resume the target stream."""
        self.thread.run(self.js.move_aside(info, jetstream_config.subject_aside(self.source)))
        self.course.is_aside = True
        rest = self.run(stream, self.thread.run(_settled(self.js, self.source)))
        self.client.resume_stream(stream, timeout=self.timeout_s)
        self.course.is_aside = False
        _check_rest(self.thread.run(self.js.info(self.source)), stream, rest)
        return done._replace(
            messages=done.messages + rest.messages,
            end=rest.end,
            raised=done.raised + rest.raised,
            skipped=done.skipped + rest.skipped,
            skips_told=done.skips_told + rest.skips_told,
        )

    def _put(self, placer: Placer, info: Info, rows: JetStreamRows, latest_us: int | None) -> int:
        """Put the batches and return the count of messages.

        Each batch is held back until the next arrives, because the last one must cover the deleted sequences after it.
        """
        from penstock.cli.jetstream.source import UnstorableError

        def put(batch: pa.RecordBatch, end: int) -> None:
            placer.put(batch, end, may_be_ahead=self.times.is_ahead(batch))

        source = _iterate(self.thread, self.js.batches(info, placer.end + 1, rows, self.subject))
        messages, held = 0, None
        with closing(source), output.progress("Importing", info.state.messages, noun="messages") as advance:
            try:
                for batch in source:
                    if held is not None:
                        put(held, held.column("offset")[-1].as_py() + 1)
                        self.course.end = placer.end
                    self.times.count(batch)
                    held = batch if latest_us is None else placed_rows.with_times_up_to(batch, latest_us)
                    messages += batch.num_rows
                    advance(messages)
            except UnstorableError as error:
                if held is not None:
                    put(held, error.seq - 1)
                    self.course.end = placer.end
                error.add_note("all messages before it are imported; --skip-unstorable skips such messages")
                if error.is_large:
                    error.add_note(
                        f"`penstock stream alter {self.course.stream} --max-message-bytes` may raise the limit"
                    )
                raise
            if held is not None:
                put(held, info.state.last_seq)
        return messages

    def _last_us(self, stream: StreamInfo, placer: Placer) -> tuple[int, int | None]:
        """Return the time of the target's last message, and the latest time that further ones get (None: no limit).

        Raise OperationalError if JetStream has another message at that sequence.
        """
        last = placed_rows.last_row(self.client, stream, 0, placer, self.timeout_s)
        if last is None:
            return 0, self.times.latest_us()
        last_us = last.timestamp_us
        stored = self.thread.run(self.js.get(self.source, last.offset + 1))
        if stored is None:
            return last_us, self.times.latest_us(last_us, last_us)
        stored_us = max(stored.timestamp_us, last_us)  # the import raises times that step back
        is_same = stored.subject == last.subject
        if not is_same or not self.times.are_alike(last_us, stored_us):
            text = (
                f"stream {stream.name} has another message at sequence {last.offset + 1} than JetStream's {self.source}"
            )
            hint = self.times.hint(last_us, stored_us) if is_same else ""
            raise OperationalError(f"{text}: it was not imported from there{hint}; give another name with --as")
        return last_us, self.times.latest_us(last_us, stored_us)


async def _known(js: JetStream, source: str) -> Info:
    try:
        return await js.info(source)
    except OperationalError as error:
        if "no such stream" in str(error):
            with suppress(OperationalError):
                error.add_note(f"there are {', '.join(await js.names()) or 'none at all'}")
        raise


def _as_before(client: Client, info: Info, name: str, subject: str | None, timeout: float) -> Info:
    """Return `info`, with the original subject if a cut-over has begun.

    Raise OperationalError if the cut-over is complete, or if the original subject is unknown.
    """
    from penstock.client.errors import StreamNotFound

    if not jetstream_config.is_aside(info.config):
        return info
    source, there = info.config["name"], None
    with suppress(StreamNotFound):
        there = client.stream(name, timeout=timeout)
    before = jetstream_config.origin_of(info.config) or (None if there is None else there.subject)
    text = f"JetStream's stream {source} has handed its subject over to Penstock by --cut-over"
    if there is not None and there.intake == Intake.OPEN and there.subject == before:
        text = f"{text}: stream {name} stores {before} now, and nothing is left to import"
        raise OperationalError(f"{text}; delete {source} in JetStream when you like, or copy it with --as NAME")
    if before is not None:
        return msgspec.structs.replace(info, config={**info.config, "subjects": [before]})
    if subject is None:
        raise OperationalError(f"{text}, and that subject is not recorded: give it with --subject")
    return info


async def _settled(js: JetStream, source: str) -> Info:
    """Return the stream's info once its last sequence is stable.

    After the change of subject JetStream still stores messages that it had received before.
    """
    import asyncio

    info, same = await js.info(source), 0
    while same < _SAME_LOOKS:
        await asyncio.sleep(_LOOK_S)
        again = await js.info(source)
        same = same + 1 if again.state.last_seq == info.state.last_seq else 0
        info = again
    return info


def _check_rest(info: Info, stream: StreamInfo, rest: ImportResult) -> None:
    if info.state.last_seq > rest.looked_to:
        text = f"JetStream has stored sequences up to {info.state.last_seq} after its subject was taken away"
        raise OperationalError(f"{text}; stream {stream.name} lacks those after {rest.looked_to}")


def _brokers(client: Client, timeout: float) -> int:
    return max(1, len(client.status(timeout=timeout).brokers))


def _check_cut_over(stream: StreamInfo, info: Info, subject: str) -> None:
    if info.config.get("subjects") != [subject]:
        stored = ", ".join(info.config.get("subjects") or ["none"])
        text = f"JetStream's stream stores {stored}, and stream {stream.name} {subject}: that is not all of it"
        raise ValueError(f"{text}; docs/how-to/move-from-jetstream.md says how to switch by hand")


def _say(stream: StreamInfo, source: str, done: ImportResult, *, is_cut_over: bool, as_json: bool) -> None:
    if done.raised:
        count = output.counted(done.raised, "message")
        say_note(f"note: JetStream's clock stepped back: {count} got the time of the message before")
    for seq, why in done.skips_told:
        say_note(f"note: the message with sequence {seq} is skipped: {why}")
    if done.skipped > len(done.skips_told):
        say_note(f"note: {done.skipped:,} messages were skipped; these are the first")
    if as_json:
        told = {"stream": stream.name, "from": source, "messages": done.messages, "last_sequence": done.end}
        output.print_json({**told, "is_cut_over": is_cut_over, "skipped": done.skipped})
        return
    say(f"imported {output.counted(done.messages, 'message')} of {source}; {stream.name} has it up to {done.end}")
    if is_cut_over:
        say(f"stream {stream.name} stores {stream.subject} from now on")
    else:
        again = "run it again for new messages, and finally with --cut-over"
        say_note(f"stream {stream.name} is paused, and stores nothing by itself: {again}")


def _iterate(thread: LoopThread, source: Any) -> Generator[pa.RecordBatch, None, None]:
    import asyncio

    from penstock.client.blocking.threads import End, next_of

    steps: list[asyncio.Task[Any]] = []  # only the latest task

    async def step() -> Any:
        steps[:] = filter(None, [asyncio.current_task()])
        return await next_of(source)

    async def close() -> None:
        # A step that was just cancelled still runs and uses the connection; wait for its end.
        async with asyncio.timeout(_CLOSE_S):
            if steps:
                await asyncio.wait(steps)
            await source.aclose()

    try:
        while not isinstance(batch := thread.run(step()), End):
            yield batch
    finally:
        with suppress(Exception):  # the error that ended the iteration matters more
            thread.run(close())


@contextmanager
def _opened(
    client: Client, options: dict[str, Any], domain: str | None, timeout: float
) -> Iterator[tuple[LoopThread, JetStream]]:
    from penstock.cli.jetstream.source import JetStream
    from penstock.client.blocking.threads import LoopThread

    if not client.nats_urls:
        raise OperationalError("the broker names no NATS server; say where JetStream is with --nats URL")
    thread = LoopThread()
    try:
        js = JetStream(client.nats_urls, domain, timeout)
        try:
            thread.run(js.open(options))
            yield thread, js
        finally:
            thread.run(js.close())
    finally:
        thread.stop()
