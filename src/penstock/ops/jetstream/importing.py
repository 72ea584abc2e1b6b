"""Imports a JetStream stream, keeping its sequences and times.

Rules: the target stream is paused, so that it stores no other messages; sequence 42 becomes offset 41. A run continues
at the end of the target and copies nothing twice; what JetStream has deleted meanwhile of what was copied before is
deleted here, too. Each batch is held back until the next arrives, because the last one must cover the deleted
sequences after it. A cut-over brings the consumers before the target accepts messages: JetStream tells of each its ack
floor, and not which messages above it are acked, so all of these are delivered again.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from typing import Any, NamedTuple, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base import limits
from penstock.base.config import Intake, RetentionPolicy
from penstock.base.errors import ErrorCode, OperationalError, PenstockError, RemoteError
from penstock.base.ids import Offset
from penstock.base.units import counted
from penstock.client.blocking.client import Client
from penstock.client.blocking.threads import End, LoopThread, next_of
from penstock.client.bulk.placing import Placer
from penstock.client.errors import MessageNotFound, OffsetOutOfRange, StreamNotFound
from penstock.messages import ExportedConsumer, StreamInfo
from penstock.ops import carried_consumers, placed_rows
from penstock.ops.carried_consumers import CarriedConsumer
from penstock.ops.jetstream import config as jetstream_config
from penstock.ops.jetstream.cut_over import CutOverCheck
from penstock.ops.jetstream.source import Info, JetStream, JetStreamRows, State, Stored, UnstorableError
from penstock.ops.placed_rows import FutureTimes, RowTimes
from penstock.ops.progress import Progress

_CLOSE_S = 3.0
_SAME_LOOKS, _LOOK_S = 3, 0.1  # until JetStream has stored what it had received
_LOOKS_BACK = 1_000  # sequences at JetStream's end, deleted or unstorable, before one that can be compared
_DELETED_MAX = 1_000_000  # sequences that JetStream tells at once: some 10 MB of JSON
_NOT_STORED = "neither JetStream nor Penstock stores the subject now: run it again"

_INTEREST_REFUSED = (
    ErrorCode.INVALID_CONFIG,  # it does not go with what was altered meanwhile
    ErrorCode.BAD_REQUEST,
    ErrorCode.NOT_AUTHORIZED,
    ErrorCode.UNSUPPORTED_VERSION,  # brokers below release 0.4
)
"""Refusals of the retention that do not keep a cut-over from being completed: more messages stay than have to."""


class Brought(NamedTuple):
    """The consumers of a cut-over: those that are there, of those that are to be carried."""

    there: int
    wanted: int


class Imported(NamedTuple):
    """Result of one run. The stream has all messages up to `last_sequence`, and stores `subject` after a cut-over;
    if there are several subjects, these are in it with commas between them.

    `raised`: count of messages that got the time of the message before, because JetStream's clock stepped back.
    `skipped`: count of those that the stream cannot hold; `skips` has (sequence, reason) of the first ones.
    `consumers`: count of consumers that a cut-over has brought.
    """

    stream: str
    subject: str
    messages: int
    last_sequence: int
    raised: int
    skipped: int
    skips: tuple[tuple[int, str], ...]
    is_cut_over: bool
    consumers: int = 0


class ImportOptions(NamedTuple):
    """The range of a JetStream stream to import, and the config of the new stream.

    `name`: default the same. `subject`: only its messages, which the stream then stores; default: all of the JetStream
    stream. `replicas`: default as in JetStream, at most the number of brokers. `skip_unstorable`: skip
    messages that the stream cannot hold, else a run stops before the first of them. `future_times`: see `FutureTimes`.
    `domain`: JetStream's domain. `consumers`: a cut-over brings the consumers, too.
    """

    name: str | None = None
    subject: str | None = None
    replicas: int | None = None
    skip_unstorable: bool = False
    future_times: FutureTimes | str = "keep"
    domain: str | None = None
    consumers: bool = True


class JetStreamImport:
    """An import of one JetStream stream; while it is entered, it is connected to JetStream.

        options = ops.ImportOptions(name="orders")
        with penstock.connect() as client, ops.JetStreamImport(client, "ORDERS", options) as job:
            print(job.run().messages)
            job.run(cut_over=True)

    After an interrupted run `stream` is the name of the target ("" if there is none yet), which has the messages up to
    sequence `end`; `is_aside` is True if neither JetStream nor Penstock stores the subject: run it again.
    `is_cut_over` is True if the target stores the subject: a run then changes nothing, and only checks that it has all.
    """

    def __init__(
        self,
        client: Client,
        source: str,
        options: ImportOptions | None = None,
        *,
        nats_options: Mapping[str, Any] | None = None,
        timeout: float = 10.0,
        progress: Progress | None = None,
    ) -> None:
        """Import the JetStream stream `source` of the NATS server that `client` publishes to.

        `nats_options` are those of `nats.connect`. Raises on entry Unavailable; InvalidConfig: there is no subject,
        choose one; OperationalError: there is no such stream, or its subjects before a cut-over are unknown.
        """
        self.stream = ""
        self.end = 0
        self.is_aside = False
        self.is_cut_over = False
        self._client = client
        self._source = source
        self._options = options or ImportOptions()
        self._future_times = FutureTimes(self._options.future_times)
        self._nats_options = nats_options or {}
        self._timeout_s = timeout
        self._progress = progress or Progress()
        self._stack = ExitStack()
        self._is_checked = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._open(stack)
            client, timeout_s = self._client, self._timeout_s
            name, subject = self._options.name or self._source, self._options.subject
            info = self._thread.run(_known(self._js, self._source))
            self._info, self.is_cut_over = _as_before(client, info, name, subject, timeout_s)
            brokers, replicas = max(1, len(client.status(timeout=timeout_s).brokers)), self._options.replicas
            self._mapped = jetstream_config.mapped(
                self._info.config, name=name, subject=subject, replicas=replicas, brokers=brokers
            )
            for note in () if self.is_cut_over else self._mapped.notes:
                self._progress.note(f"note: {note}")
            self._filter = None if subject is None or [subject] == self._info.config.get("subjects") else subject
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self, stack: ExitStack) -> None:
        urls = self._client.nats_urls
        if not urls:
            raise OperationalError("the broker names no NATS server; say where JetStream is with --nats URL")
        thread = LoopThread()
        stack.callback(thread.stop)
        self._js = js = JetStream(urls, self._options.domain, self._timeout_s)
        self._thread = thread
        stack.callback(lambda: thread.run(js.close()))
        thread.run(js.open(self._nats_options))

    @property
    def aside(self) -> str:
        """The subject that JetStream's stream stores after the cut-over, on which no client publishes."""
        return jetstream_config.subject_aside(self._source)

    @property
    def is_sealed(self) -> bool:
        """True if JetStream's stream is sealed; a cut-over seals the target then."""
        return bool(self._info.config.get("sealed"))

    def check_cut_over(self) -> StreamInfo:
        """Check that a cut-over loses nothing; return the target stream, created if it does not exist.

        OperationalError: brokers do not receive what is published where JetStream is; or as for `run`. ValueError: the
        JetStream stream stores other subjects, too. `run(cut_over=True)` does it unless it was done.
        """
        if self.is_cut_over:
            return self._client.stream(self._mapped.name, timeout=self._timeout_s)
        told = self._progress
        CutOverCheck(self._client, self._thread, self._js, self._source, self._timeout_s, told).run()
        stream, subjects = self._target_stream(), self._info.config.get("subjects")
        if sorted(subjects or ()) != sorted(self._mapped.subjects):
            text = f"JetStream's stream stores {', '.join(subjects or ['none'])}, and stream {stream.name}"
            text = f"{text} {', '.join(self._mapped.subjects)}: that is not all of it"
            raise ValueError(f"{text}; docs/how-to/move-from-jetstream.md says how to switch by hand")
        self._is_checked = True
        return stream

    def run(self, *, cut_over: bool = False) -> Imported:
        """Copy the messages that the target lacks; it is created, paused, if it does not exist.

        `cut_over`: then give JetStream's stream another subject, copy the rest, and resume the target, or seal it as
        JetStream's is; nothing is left to do if that is complete. UnstorableError: the target cannot hold a message.
        OperationalError: the target is not paused, or has other messages.
        """
        if self.is_cut_over:
            return self._complete(cut_over=cut_over)
        try:
            if cut_over and not self._is_checked:
                self.check_cut_over()
            self._times = RowTimes.of(self._future_times, self._client.status(timeout=self._timeout_s))
            stream = self._target_stream()
            with placed_rows.unfinished_said(stream.config, self._progress):
                state = self._thread.run(self._js.info(self._source)).state
            with self._deletion_suspended(stream):
                done = self._copy(stream, msgspec.structs.replace(self._info, state=state))
            if cut_over:
                done = self._switch(stream, done)
        except PenstockError as error:
            if self.is_aside:
                error.add_note(_NOT_STORED)
            raise
        self._times.tell(self._progress, stream.name)
        return done

    def _deletion_suspended(self, stream: StreamInfo) -> AbstractContextManager[None]:
        return placed_rows.deletion_suspended(self._client, stream, self._timeout_s, self._progress)

    def _target_stream(self) -> StreamInfo:
        """Return the target stream, created if it does not exist.

        Raise OperationalError if it is not paused or has several partitions.
        """
        with suppress(StreamNotFound):
            there = self._client.stream(self._mapped.name, timeout=self._timeout_s)
            if there.intake != Intake.PAUSED:
                text = f"stream {there.name} exists, and is {there.intake}: an import needs one that is paused"
                raise OperationalError(f"{text}; give it another name with --as")
            if len(there.partitions) > 1:
                raise OperationalError(
                    f"stream {there.name} has {len(there.partitions)} partitions; sequences need one"
                )
            return there
        config, progress = self._mapped.config(), self._progress
        return placed_rows.create_target(self._client, config, self._timeout_s, progress, source=self._source)

    def _complete(self, *, cut_over: bool) -> Imported:
        """Return the result of a run after the cut-over. OperationalError: the target may lack messages of JetStream's
        stream, because it was resumed by someone else; or without `cut_over`.
        """
        name, subject = self._mapped.name, ", ".join(self._mapped.subjects)
        if not cut_over:
            text = f"JetStream's stream {self._source} has handed its subject over to Penstock by --cut-over"
            text = f"{text}: stream {name} stores {subject} now, and nothing is left to import"
            raise OperationalError(
                f"{text}; delete {self._source} in JetStream when you like, or copy it with --as NAME"
            )
        stream = self._client.stream(name, timeout=self._timeout_s)
        info = self._thread.run(self._js.info(self._source))
        last_seq = info.state.last_seq
        imported = jetstream_config.imported_up_to(info.config, self._target(stream))
        if last_seq > imported and (seq := self._missing(stream, info.state)):
            text = f"JetStream's stream {self._source} goes up to sequence {seq}, which stream {name} lacks"
            text = f"{text}: it was stored during the cut-over, or {name} was resumed before the cut-over was complete"
            raise OperationalError(f"{text}; keep {self._source}, and import it with --as NAME")
        self._progress.note(f"note: the cut-over of {self._source} was complete before; nothing was changed")
        return Imported(name, subject, 0, last_seq, 0, 0, (), True)

    def _target(self, stream: StreamInfo) -> str:
        return f"{self._client.cluster_id(timeout=self._timeout_s)}/{stream.stream_id}"

    def _missing(self, stream: StreamInfo, state: State) -> int:
        """Return the last sequence that the target could hold, if it does not hold JetStream's message there; else 0.

        Messages are imported in order, so the last one proves all. A message published here has another time. What
        cannot be compared, because the target has deleted it, counts as missing.
        """
        last_seq = state.last_seq
        for seq in range(last_seq, max(state.first_seq - 1, last_seq - _LOOKS_BACK), -1):
            stored = self._thread.run(self._js.get(self._source, seq))
            if stored is not None and (not self._options.skip_unstorable or self._is_storable(stream, stored)):
                return 0 if self._holds(stream, stored) else seq
        return last_seq if last_seq - state.first_seq >= _LOOKS_BACK else 0

    def _is_storable(self, stream: StreamInfo, stored: Stored) -> bool:
        rows = JetStreamRows(
            0, patterns=stream.config.held_subjects, bytes_max=stream.config.max_message_bytes, skips=True
        )
        rows.add(
            stored.seq, stored.timestamp_us, stored.subject.encode(), b64decode(stored.hdrs), b64decode(stored.data)
        )
        return not rows.skipped

    def _holds(self, stream: StreamInfo, stored: Stored) -> bool:
        """True if the target has this message, with its time."""
        try:
            here = self._client.get(stream, stored.seq - 1, timeout=self._timeout_s)
        except (MessageNotFound, OffsetOutOfRange):
            return False
        expected = (stored.subject, b64decode(stored.data), stored.timestamp_us)
        return (here.subject, here.value or b"", here.timestamp_us) == expected

    def _switch(self, stream: StreamInfo, done: Imported) -> Imported:
        """Give JetStream's stream another subject, copy the rest, and resume the target stream."""
        self._thread.run(self._js.move_aside(self._info, self.aside))
        self.is_aside = True
        info = self._thread.run(_settled(self._js, self._source))
        with self._deletion_suspended(stream):
            rest = self._copy(stream, info)
        consumers = self._bring_consumers(stream) if self._options.consumers else Brought(0, 0)
        if self._info.config.get("retention") == RetentionPolicy.INTEREST and not self.is_sealed:
            self._take_interest(stream, consumers)
        if self.is_sealed:
            self._client.seal_stream(stream, timeout=self._timeout_s)
        else:
            self._client.resume_stream(stream, timeout=self._timeout_s)
        self.is_aside, self.is_cut_over = False, True
        last_seq = self._thread.run(self._js.info(self._source)).state.last_seq
        if last_seq > info.state.last_seq:
            text = f"JetStream has stored sequences up to {last_seq} after its subject was taken away"
            raise OperationalError(f"{text}; stream {stream.name} lacks those after {info.state.last_seq}")
        with suppress(PenstockError):  # a further run then compares the last message
            self._thread.run(self._js.record_complete(self._source, last_seq, self._target(stream)))
        return rest._replace(
            messages=done.messages + rest.messages,
            raised=done.raised + rest.raised,
            skipped=done.skipped + rest.skipped,
            skips=done.skips + rest.skips,
            is_cut_over=True,
            consumers=consumers.there,
        )

    def _take_interest(self, stream: StreamInfo, consumers: Brought) -> None:
        """Give the target the retention `interest` if all that JetStream's messages wait for is there."""
        text = f"note: stream {stream.name} has not got the retention interest of JetStream's stream"
        advice = f"`{jetstream_config.interest_command(stream.name)}`"
        if not consumers.there or consumers.there < consumers.wanted:
            which = f"only {consumers.there} of {consumers.wanted}" if consumers.there else "none"
            text = f"{text}, as {which} of its consumers {'are' if consumers.there > 1 else 'is'} here"
            self._progress.note(f"{text}: messages that others want would go. Once all are here: {advice}")
            return
        try:
            self._client.alter_stream(stream, retention=RetentionPolicy.INTEREST, timeout=self._timeout_s)
        except RemoteError as error:
            if error.code not in _INTEREST_REFUSED:
                raise
            self._progress.note(f"{text}: {error.message}. Once that is mended: {advice}")
        else:
            self._progress.note(f"note: stream {stream.name} has retention interest now, as JetStream's stream")

    def _bring_consumers(self, stream: StreamInfo) -> Brought:
        """Create JetStream's consumers in the target, each at its ack floor; return how many are there."""
        note, wanted = self._progress.note, list[CarriedConsumer]()
        for one in self._thread.run(self._js.consumers(self._source)):
            if why := jetstream_config.consumer_left_out(one.config):
                note(f"note: consumer {one.name} of stream {stream.name} is left out: {why}")
                continue
            floor = one.delivered if one.config.get("ack_policy", "none") == "none" else one.ack_floor
            if one.num_ack_pending:
                text = f"note: consumer {one.name} of stream {stream.name} had"
                text = f"{text} {counted(one.num_ack_pending, 'message')} without an ack: what is above its ack floor,"
                note(f"{text} sequence {floor.stream_seq}, is delivered again, and counted anew")
            exported = ExportedConsumer(
                name=one.name,
                config=jetstream_config.consumer_config(one.config),
                next_offset=Offset(floor.stream_seq),
                deliveries=floor.consumer_seq,
            )
            wanted.append(CarriedConsumer(0, exported))
        there = carried_consumers.restore_consumers(self._client, stream, wanted, self._timeout_s, note)
        return Brought(there, len(wanted))

    def _copy(self, stream: StreamInfo, info: Info) -> Imported:
        """Copy the messages that the target lacks, up to the last sequence in `info`."""
        placer = Placer(self._client, stream, timeout=max(self._timeout_s, placed_rows.PUT_TIMEOUT_S))
        self.stream, self.end = stream.name, placer.end
        copied_end = placer.end  # by earlier runs
        last_us, latest_us = self._last_us(stream, placer)
        bytes_max, may_skip = stream.config.max_message_bytes, self._options.skip_unstorable
        rows = JetStreamRows(last_us, patterns=stream.config.held_subjects, bytes_max=bytes_max, skips=may_skip)
        if placer.end > info.state.last_seq:
            text = f"stream {stream.name} goes up to sequence {placer.end}, and JetStream's {self._source} up to"
            raise OperationalError(f"{text} {info.state.last_seq}: it is another one")
        if placer.end == 0 and info.state.messages == 0:
            placer.begin_at(info.state.last_seq)
        messages = self._put(placer, info, rows, latest_us)
        if info.state.first_seq > 1:
            placer.give_up_before(min(info.state.first_seq - 1, placer.end))
        self._delete_again(stream, max(0, info.state.first_seq - 1), copied_end)
        if placer.end < info.state.last_seq and self._filter is None:
            gone = "skipped or deleted" if rows.skipped else "deleted"
            text = f"JetStream's sequences from {placer.end + 1} to {info.state.last_seq} were {gone}"
            self._progress.note(f"note: {text}: the next message here gets {placer.end + 1}")
        skips = tuple(rows.skips_told)
        return Imported(
            stream.name, ", ".join(stream.subjects), messages, placer.end, rows.raised, rows.skipped, skips, False
        )

    def _delete_again(self, stream: StreamInfo, begin: int, end: int) -> None:
        """Delete the messages in `[begin, end)`, from earlier runs, that JetStream has deleted since."""
        if begin >= end:
            return
        state = self._thread.run(self._js.info(self._source)).state
        here = self._client.stream(stream.name, timeout=self._timeout_s)
        if not state.num_deleted or (self._filter is None and here.messages == state.messages):
            return
        if state.num_deleted > _DELETED_MAX:
            text = f"note: JetStream's stream lacks {state.num_deleted:,} sequences: it was not compared with"
            self._progress.note(f"{text} {stream.name} if it has deleted messages that were imported before")
            return
        gone = pa.array(self._thread.run(self._js.deleted(self._source)).deleted, pa.int64())
        left = _Gone(pc.subtract(gone, 1))
        for batch in self._read(stream, begin, end):
            left.find(batch)
        deleted = 0
        try:
            if not stream.config.denies_deletion:
                deleted = self._client.delete(stream, left.offsets, timeout=self._timeout_s).deleted
            elif left.offsets and not stream.config.denies_purge:
                for batch in self._read(stream, begin, end):
                    left.bound(batch)
                for subject, before in left.purges():
                    purged = self._client.purge_subject(stream, subject, before=before, timeout=self._timeout_s)
                    deleted += sum(one.messages for one in purged)
        except RemoteError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
        if deleted:
            text = f"note: {counted(deleted, 'message')} deleted in {stream.name}, as in JetStream since an earlier run"
            self._progress.note(text)

    def _read(self, stream: StreamInfo, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        return self._client.read(stream, begin, end=end, columns=["offset", "subject"], timeout=self._timeout_s)

    def _put(self, placer: Placer, info: Info, rows: JetStreamRows, latest_us: int | None) -> int:
        """Put the batches and return the count of messages."""

        def put(batch: pa.RecordBatch, end: int) -> None:
            placer.put(batch, end, may_be_ahead=self._times.is_ahead(batch))

        source = _iterate(self._thread, self._js.batches(info, placer.end + 1, rows, self._filter))
        messages, held = 0, None
        with closing(source), self._progress.step("Importing", info.state.messages, noun="messages") as advance:
            try:
                for batch in source:
                    if held is not None:
                        put(held, held.column("offset")[-1].as_py() + 1)
                        self.end = placer.end
                    self._times.count(batch)
                    held = batch if latest_us is None else placed_rows.with_times_up_to(batch, latest_us)
                    messages += batch.num_rows
                    advance(messages)
            except UnstorableError as error:
                if held is not None:
                    put(held, error.seq - 1)
                    self.end = placer.end
                error.add_note("all messages before it are imported; --skip-unstorable skips such messages")
                if error.is_large:
                    error.add_note(f"`penstock stream alter {self.stream} --max-message-bytes` may raise the limit")
                raise
            if held is not None:
                put(held, info.state.last_seq)
        return messages

    def _last_us(self, stream: StreamInfo, placer: Placer) -> tuple[int, int | None]:
        """Return the time of the target's last message, and the latest time that further ones get (None: no limit).

        Raise OperationalError if JetStream has another message at that sequence.
        """
        last = placed_rows.last_row(self._client, stream, 0, placer, self._timeout_s)
        if last is None:
            return 0, self._times.latest_us()
        last_us = last.timestamp_us
        stored = self._thread.run(self._js.get(self._source, last.offset + 1))
        if stored is None:
            return last_us, self._times.latest_us(last_us, last_us)
        stored_us = max(stored.timestamp_us, last_us)  # the import raises times that step back
        is_same = stored.subject == last.subject
        if not is_same or not self._times.are_alike(last_us, stored_us):
            text = f"stream {stream.name} has another message at sequence {last.offset + 1} than JetStream's"
            text = f"{text} {self._source}"
            hint = self._times.hint(last_us, stored_us) if is_same else ""
            raise OperationalError(f"{text}: it was not imported from there{hint}; give another name with --as")
        return last_us, self._times.latest_us(last_us, stored_us)


class _Gone:
    """Messages of the target that JetStream has deleted, at these offsets or fewer."""

    def __init__(self, offsets: pa.Array) -> None:
        self.offsets: list[int] = []  # of messages that are here
        self._deleted = offsets
        self._subjects: dict[str, list[int]] = {}
        self._kept: dict[str, int] = {}  # the first message of a subject that is not deleted

    def find(self, batch: pa.RecordBatch) -> None:
        """Add those among these rows."""
        found = batch.filter(pc.is_in(batch.column("offset"), self._deleted))
        offsets = found.column("offset").to_pylist()
        self.offsets += offsets
        for offset, subject in zip(offsets, found.column("subject").to_pylist(), strict=True):
            self._subjects.setdefault(subject, []).append(offset)

    def bound(self, batch: pa.RecordBatch) -> None:
        """Note which messages of the same subjects stay; called with all rows, in order."""
        others = batch.filter(pc.invert(pc.is_in(batch.column("offset"), self._deleted)))
        others = others.filter(pc.is_in(others.column("subject"), pa.array(list(self._subjects), pa.string())))
        for offset, subject in zip(*(others.column(name).to_pylist() for name in ("offset", "subject")), strict=True):
            self._kept.setdefault(subject, offset)

    def purges(self) -> Iterator[tuple[str, int]]:
        """Yield subjects, each with the offset before which all its messages are deleted."""
        for subject, offsets in self._subjects.items():
            kept = self._kept.get(subject, limits.OFFSET_MAX)
            if before := max((one + 1 for one in offsets if one < kept), default=0):
                yield subject, before


async def _known(js: JetStream, source: str) -> Info:
    try:
        return await js.info(source)
    except OperationalError as error:
        if "no such stream" in str(error):
            with suppress(OperationalError):
                error.add_note(f"there are {', '.join(await js.names()) or 'none at all'}")
        raise


def _as_before(client: Client, info: Info, name: str, subject: str | None, timeout: float) -> tuple[Info, bool]:
    """Return `info`, with the original subject if a cut-over has begun, and True if that is complete.

    Raise OperationalError if the original subject is unknown.
    """
    if not jetstream_config.is_aside(info.config):
        return info, False
    source, there = info.config["name"], None
    with suppress(StreamNotFound):
        there = client.stream(name, timeout=timeout)
    before = jetstream_config.origin_of(info.config) or ([] if there is None else list(there.subjects))
    is_complete = there is not None and there.intake in (Intake.OPEN, Intake.SEALED) and {*there.subjects} == {*before}
    if before:
        return msgspec.structs.replace(info, config={**info.config, "subjects": before}), is_complete
    if subject is None:
        text = f"JetStream's stream {source} has handed its subject over to Penstock by --cut-over"
        raise OperationalError(f"{text}, and that subject is not recorded: give it with --subject")
    return info, False


async def _settled(js: JetStream, source: str) -> Info:
    """Return the stream's info once its last sequence is stable.

    After the change of subject JetStream still stores messages that it had received before.
    """
    info, same = await js.info(source), 0
    while same < _SAME_LOOKS:
        await asyncio.sleep(_LOOK_S)
        again = await js.info(source)
        same = same + 1 if again.state.last_seq == info.state.last_seq else 0
        info = again
    return info


def _iterate(thread: LoopThread, source: Any) -> Generator[pa.RecordBatch, None, None]:
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
