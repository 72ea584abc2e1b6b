"""Publishes a stream's messages to NATS, for ordinary subscribers.

Rules: NATS confirms each batch before the next one is read, and so do the streams that store the target. With a group
its offsets are committed after that, so a relay that is killed continues there and publishes some messages again
(at-least-once delivery).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.base.config import Acks, Intake
from penstock.base.errors import OperationalError, RemoteError
from penstock.base.subjects import overlap
from penstock.client.blocking.client import Client
from penstock.client.blocking.threads import LoopThread
from penstock.client.read.batches import partition_of
from penstock.client.values import EARLIEST, Start
from penstock.messages import StreamInfo
from penstock.ops.errors import ArgumentError
from penstock.ops.progress import Progress
from penstock.ops.reading.places import LastMessages, Reading, ReadOptions
from penstock.ops.relay.answers import Answers, Storing
from penstock.ops.relay.frames import SubjectMapping, frames_of, header_pattern
from penstock.ops.relay.nats_output import NatsOutput

_LOT_BYTES = 1 << 20
_UNACKED_MAX = 4_000  # messages in flight to streams: JetStream rejects them beyond its own queue (10,000)
_RETRY_S = 0.2
_LOOK_AGAIN_S = 1.0  # shortest interval between look-ups of the streams at the target
_JETSTREAM_AGAIN_S = 60.0  # interval if no JetStream answers, because each attempt may take seconds
_SHOWN_MAX = 8  # partitions whose offsets the first note shows
_RATE_PARTS = 20  # parts per second with a rate, to spread messages evenly


class RelayOptions(NamedTuple):
    """Which messages a relay publishes, and how.

    `start`, `end`: default from the earliest to where the log ends now. `follow`: continue with new messages, for ever.
    `group`: start at this consumer group's committed offsets, and commit what NATS has confirmed. `partition`: only
    this one. `rate`: most messages per second. `without`: leave these headers out; a final * matches any suffix.
    `stored`: wait for the acks of streams, or not; default: of those that store the target.
    """

    start: Start = EARLIEST
    end: Start | None = None
    follow: bool = False
    group: str | None = None
    partition: int | None = None
    rate: int | None = None
    without: Sequence[str] = ()
    stored: bool | None = None


class Relay:
    """A relay of one stream to a NATS subject; run it once.

        relay = ops.Relay("orders", "copies.{subject}", ops.RelayOptions(group="copies"))
        with penstock.connect() as client:
            relay.run(client)
        print(relay.messages)

    After `run`, also if it raised: `messages` counts the published ones, `ends` has the next offset by partition,
    `duplicates` counts those that a stream acked as duplicates (Nats-Msg-Id), `headers_dropped` those without their
    invalid header block; `why_nothing` says why there was no message.
    """

    def __init__(self, stream: str, to: str, options: RelayOptions | None = None) -> None:
        """Relay `stream` to the subject `to`, in which {subject} is the message's, and {1}, {2}, … are its tokens.

        ValueError: the template or a header name is invalid. ArgumentError: `end` with `follow` or `group`.
        """
        self.messages = 0
        self.headers_dropped = 0
        self.duplicates = 0
        self.ends: dict[int, int] = {}
        self.why_nothing = f"stream {stream} holds no messages there; --follow waits for what comes"
        self._mapping = SubjectMapping(to)
        self._options = wanted = options or RelayOptions()
        self._without = header_pattern(wanted.without)
        self._stream = stream
        if wanted.end is not None and (wanted.follow or wanted.group is not None):
            raise ArgumentError("--until is for a relay that reads a range once: not with --follow or --group")

    def run(
        self,
        client: Client,
        *,
        nats_options: Mapping[str, Any] | None = None,
        timeout: float = 10.0,
        progress: Progress | None = None,
    ) -> None:
        """Publish to the NATS server that `client` publishes to; `nats_options` are those of `nats.connect`.

        ValueError: the stream itself stores the target. ArgumentError: the start does not fit several partitions, or a
        group. Unavailable: no NATS. OperationalError: NATS or a stream rejects a message, or a stream does not ack it.
        """
        told = progress or Progress()
        info, wanted = client.stream(self._stream, timeout=timeout), self._options
        target = _Target(client, info, self._mapping, wanted.stored, timeout, told)
        target.check()
        reads = ReadOptions(wanted.start, wanted.end, wanted.follow, wanted.group, wanted.partition)
        reading = Reading(client, info, reads, for_ever=wanted.follow, timeout_s=timeout, progress=told)
        if isinstance(wanted.end, int):  # OffsetOutOfRange: a relay publishes all that is asked for, or none
            client.offsets(info, wanted.end, partition=wanted.partition or 0, timeout=timeout)
        is_unknown = wanted.follow or wanted.group is not None
        total = None if is_unknown else _total(info, wanted.partition)
        with (
            closing(reading.batches),
            _opened(client.nats_urls, nats_options or {}, timeout) as (thread, nats_output),
            told.step("Relaying", total, noun="messages") as advance,
        ):
            target.refresh(thread, nats_output)
            if wanted.follow:
                told.note(f"waiting for messages of stream {info.name} {_begin_text(client, info, wanted, timeout)}")
            source = _Source(info, wanted.partition, self._mapping, self._without)
            sending = _Sending(self, source, target, thread, nats_output, timeout)
            for batch in reading.batches:
                for part, pause_s in _paced(batch, wanted.rate):
                    sending.send(part)
                    advance(self.messages)
                    time.sleep(pause_s)
            thread.run(nats_output.end(waits=not target.storing.is_known))
        if reading.consuming is not None and not self.messages:
            self.why_nothing = reading.consuming.why_nothing()


def _begin_text(client: Client, info: StreamInfo, wanted: RelayOptions, timeout_s: float) -> str:
    """Say where a relay begins in each partition."""
    if isinstance(wanted.start, LastMessages):
        return f"from the last {wanted.start.message_count} on"
    committed: dict[int, int | None] = {}
    if wanted.group is not None:
        committed = {one.partition: one.offset for one in client.groups.offsets(wanted.group, info, timeout=timeout_s)}
    numbers = range(len(info.partitions)) if wanted.partition is None else (wanted.partition,)
    begins = {}
    for number in numbers[:_SHOWN_MAX]:
        begin = committed.get(number)
        if begin is None:
            begin = client.offsets(info, wanted.start, partition=number, timeout=timeout_s).offset
        begins[number] = begin
    if len(numbers) == 1:
        return f"from offset {begins[numbers[0]]} on"
    more = ", …" if len(numbers) > _SHOWN_MAX else ""
    return f"from these offsets on (partition: offset): {', '.join(f'{n}: {at}' for n, at in begins.items())}{more}"


class _Source(NamedTuple):
    """The stream, and how a message becomes a frame."""

    info: StreamInfo
    partition: int | None
    mapping: SubjectMapping
    without: bytes | None

    def partition_of(self, batch: pa.RecordBatch) -> int:
        said = partition_of(batch)
        return (self.partition or 0) if said is None else said

    def lots(self, batch: pa.RecordBatch, size_max: int, reply: str) -> tuple[list[memoryview], int]:
        """Return (the frames of a batch in pieces of about 1 MiB, count of dropped header blocks).

        Raise OperationalError if a message is too large.
        """
        rows = max(1, batch.num_rows // math.ceil((batch.nbytes + 1) / _LOT_BYTES))
        number, lots, dropped = self.partition_of(batch), [], 0
        for begin in range(0, batch.num_rows, rows):
            part = batch.slice(begin, rows)
            made = frames_of(part, self.mapping, self.info.name, number, reply=reply, without=self.without)
            if made.size_max > size_max:
                text = f"with its headers the message at offset {made.largest_offset} has {made.size_max:,} bytes"
                raise OperationalError(f"{text}; nats-server takes {size_max:,} (its max_payload)")
            lots.append(made.data)
            dropped += made.headers_dropped
        return lots, dropped


class _Target:
    """Looks up the streams that store the target, at first and again during the relay.

    Messages relayed between the creation of a stream and the next look-up are not confirmed by that stream.
    """

    def __init__(
        self,
        client: Client,
        info: StreamInfo,
        mapping: SubjectMapping,
        stored: bool | None,
        timeout_s: float,
        progress: Progress,
    ) -> None:
        self.storing = Storing()
        self._client = client
        self._info = info
        self._mapping = mapping
        self._stored = stored
        self._timeout_s = timeout_s
        self._progress = progress
        self._noted: set[str] = set()
        self._looked_s: float | None = None
        self._jetstream: list[str] = []
        self._jetstream_again_s = 0.0

    def check(self) -> None:
        """Raise ValueError if the stream itself stores the target, a loop. Note other such streams."""
        own = (self._info.config.subject_of(number) for number in range(max(1, len(self._info.partitions))))
        self._mapping.refuse((*self._info.subjects, *own))
        self._acking()

    def refresh(self, thread: LoopThread, nats_output: NatsOutput) -> None:
        """Look up the streams, unless that was done recently. Subscribe to acks once a stream must ack."""
        now_s = time.monotonic()
        if self._stored is False or (self._looked_s is not None and now_s < self._looked_s + _LOOK_AGAIN_S):
            return
        is_first, self._looked_s = self._looked_s is None, now_s
        try:
            patterns = self._acking()
            if now_s >= self._jetstream_again_s:
                asked = [thread.run(nats_output.jetstream_patterns(target)) for target in self._targets()]
                if None in asked:  # no JetStream, or it is down: keep the last result
                    self._jetstream_again_s = now_s + _JETSTREAM_AGAIN_S
                else:
                    self._jetstream = [pattern for found in asked for pattern in found or ()]
        except (RemoteError, OperationalError):
            if is_first:
                raise
            return  # an outage of the broker or of NATS: keep the last result
        storing = Storing([*patterns, *self._jetstream], at_least=1 if self._stored else 0)
        if not nats_output.inbox and storing.is_known:
            thread.run(nats_output.listen())
        self.storing = storing

    def _targets(self) -> list[str]:
        """Return the patterns of the subjects to which messages of the stream are relayed."""
        return list(dict.fromkeys(self._mapping.pattern(one)[0] for one in self._info.config.held_subjects))

    def _acking(self) -> list[str]:
        """Return the subjects of this cluster's other streams that ack relayed messages, one entry per ack."""
        targets = self._targets()
        found, paused = dict[tuple[str, str], str](), dict[tuple[str, str], str]()
        for other in self._client.streams(timeout=self._timeout_s):
            is_own = other.stream_id == self._info.stream_id or other.config.is_internal
            met = [(one, target) for one in other.subjects for target in targets if overlap(one, target)]
            if is_own or not met:
                continue
            name, (stored, target) = other.name, met[0]
            self._note(f"note: stream {name} stores {stored}, and so messages that are relayed to {target}")
            if other.config.acks is Acks.REPLY:
                into = paused if other.intake == Intake.PAUSED else found
                for number in range(max(1, len(other.partitions))):
                    # The streams of a group are one queue group: each message is acked by one of them.
                    into |= {(other.config.group or name, one): one for one in other.config.subjects_of(number)}
            elif self._stored is not False:
                self._note(f"note: stream {name} does not ack these messages, so it only counts those that it rejects")
        # A paused stream acks nothing: wait for it only if there is no other, so that no message is lost.
        return list((found or paused).values())

    def _note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._progress.note(text)


def _total(info: StreamInfo, partition: int | None) -> int | None:
    """Return an upper bound of the offsets to relay; None if unknown."""
    known = [one for one in info.partitions if partition in (None, one.partition)]
    if any(one.committed_end is None or one.log_start is None for one in known):
        return None
    return sum((one.committed_end or 0) - (one.log_start or 0) for one in known)


def _paced(batch: pa.RecordBatch, rate_max: int | None) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Yield (part of at most `_UNACKED_MAX` rows, seconds to wait after it)."""
    rows = max(1, min(_UNACKED_MAX, rate_max // _RATE_PARTS if rate_max else batch.num_rows))
    due_s = time.monotonic()
    for begin in range(0, batch.num_rows, rows):
        part = batch.slice(begin, rows)
        due_s += part.num_rows / rate_max if rate_max else 0.0
        yield part, max(0.0, due_s - time.monotonic()) if rate_max else 0.0


class _Sending:
    """Publishes parts of batches, each again until all required streams have acked it."""

    def __init__(
        self,
        relay: Relay,
        source: _Source,
        target: _Target,
        thread: LoopThread,
        nats_output: NatsOutput,
        timeout_s: float,
    ) -> None:
        self._relay = relay
        self._source = source
        self._thread = thread
        self._output = nats_output
        self._target = target
        self._timeout_s = timeout_s
        self._attempt = 0

    def send(self, part: pa.RecordBatch) -> None:
        """Publish a part. Raise OperationalError if it is rejected or not acked in time, Unavailable without NATS."""
        self._target.refresh(self._thread, self._output)
        number = self._source.partition_of(part)
        left, give_up_s = part, time.monotonic() + self._timeout_s
        while True:
            answers = self._answers_to(left, number)
            reply = f"{self._output.inbox}.{self._attempt}.{number}" if answers is not None else ""
            lots, dropped = self._source.lots(left, self._output.size_max, reply)
            self._relay.headers_dropped += dropped
            self._thread.run(self._output.send(lots, answers))
            if answers is not None:
                self._relay.duplicates += answers.duplicates
            missing = None if answers is None else answers.first_missing
            if missing is None:
                break
            assert answers is not None
            if time.monotonic() > give_up_s:
                raise OperationalError(f"the message at offset {missing} is not stored: {answers.later}")
            # Repeat from there on, in order; later messages may be stored already, and are then stored twice.
            begin = left.column("offset").to_pylist().index(missing)
            if begin:
                give_up_s = time.monotonic() + self._timeout_s
            left = left.slice(begin)
            time.sleep(_RETRY_S)
        self._relay.messages += part.num_rows
        self._relay.ends[number] = part.column("offset")[-1].as_py() + 1

    def _answers_to(self, part: pa.RecordBatch, number: int) -> Answers | None:
        if not self._output.inbox:
            return None
        self._attempt += 1
        return Answers(self._attempt, number, self._target.storing.needed(part, self._source.mapping))


@contextmanager
def _opened(urls: Sequence[str], options: Mapping[str, Any], timeout: float) -> Iterator[tuple[LoopThread, NatsOutput]]:
    if not urls:
        raise OperationalError("the broker names no NATS server; say where to publish with --nats URL")
    thread = LoopThread()
    try:
        nats_output = NatsOutput(urls, timeout)
        try:
            thread.run(nats_output.open(options))
            yield thread, nats_output
        finally:
            thread.run(nats_output.close())
    finally:
        thread.stop()
