"""Dead letters: messages that stored consumers have given up are stored in another stream, and only then leave them.

Rules: see `consumers.letters`. A letter is stored by the leader of the other stream, here or at another broker, which
stores each one once (`node.api.letters`). The message is read when its turn comes, so a queue of letters costs no
memory by message. Why letters of a consumer wait is told in its info, to the operator, and in metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.dead_letters import dead_letter_subject
from penstock.base.errors import CorruptionError, ErrorCode, PenstockError, RemoteError
from penstock.base.ids import Offset, StreamId, TimestampUs
from penstock.base.subjects import is_within
from penstock.batch import codec
from penstock.consumers.letters import Given, LetterQueue, Origin, letter_headers, letter_id, loop, path_of
from penstock.hot.message_group import MessageGroup
from penstock.jetstream.errors import ApiError, invalid_config
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.partition_streams import real_ids
from penstock.jetstream.readers.chunks import KEYED_COLUMNS, keyed_batches
from penstock.jetstream.readers.config.fields import DEAD_LETTERS
from penstock.jetstream.readers.reader import Reader
from penstock.jetstream.readers.stored.led import UNCERTAIN_US, LedConsumer
from penstock.jetstream.stream_state import api_time
from penstock.messages import (
    AppendRequest,
    FetchRequest,
    FetchResponse,
    Response,
    StoreLetterRequest,
    StoreLetterResponse,
)
from penstock.metadata.image import StreamState
from penstock.node.quorum.metadata_forwarding import THE_BROKER
from penstock.node.security.access import Authorization
from penstock.node.step import Lane, Payload

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.jetstream.readers.running.registry import ReaderRegistry

_ALONE = (ErrorCode.TOO_LARGE, ErrorCode.SCHEMA_MISMATCH, ErrorCode.CORRUPT_RANGE)
"""Codes of what is wrong with one letter, or with its message."""
_API = "the user of JetStream's API"
UNDER_WAY_MAX = 64
"""Letters of all consumers of one broker at once; the others wait."""


class _Row(NamedTuple):
    """The message of a letter."""

    subject: bytes
    key: bytes | None
    value: bytes | None
    headers: bytes | None
    timestamp_us: int


def _rows(batch: pa.RecordBatch) -> Iterator[_Row]:
    import pyarrow as pa

    subjects = batch.column("subject").cast(pa.binary()).to_pylist()
    columns = [batch.column(name).to_pylist() for name in ("key", "value", "headers")]
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return map(_Row, subjects, *columns, times)


def check_letter_rights(auth: Authorization, target: StreamState, who: str) -> None:
    """Raise RemoteError if a user may not append dead letters to a stream."""
    auth.check(AppendRequest(stream_id=target.stream_id))
    subject = dead_letter_subject(target.name, ">")
    allowed = auth.appended_subjects(target)
    if allowed is not None and not any(is_within(subject, one) for one in allowed):
        text = f"{who} may not append on {subject} of stream {target.name}"
        raise RemoteError(ErrorCode.NOT_AUTHORIZED, text, operation="append")


class LetterState(NamedTuple):
    """State of a consumer's dead letters, as it is told."""

    waiting: int
    failure: str


class DeadLetters:
    """The dead letters of all consumers that this broker leads."""

    def __init__(self, gateway: Gateway, registry: ReaderRegistry) -> None:
        self._gateway = gateway
        self._registry = registry
        self._active: dict[Reader, None] = {}  # with letters
        self._under_way = 0
        self._look_us = 0  # when those are looked at again of which another broker may be the leader
        self._settled: dict[Reader, None] = {}
        self.counters: Counter[str] = Counter()  # letters: stored, failed attempts

    # What is checked when a consumer is made

    def check_target(self, state: StreamState, name: str) -> None:
        """Raise ApiError (10052) or RemoteError if a stream cannot have the dead letters of a consumer of another."""
        if name == self._real(state).name:
            raise invalid_config(f"{DEAD_LETTERS}: {name} is the consumer's own stream")
        target = self._gateway.real_stream(name)
        if target is None:
            raise invalid_config(f"{DEAD_LETTERS}: there is no stream {name!r}")
        if why := self._mistake(target):
            raise invalid_config(f"{DEAD_LETTERS}: {why}")
        try:
            check_letter_rights(self._gateway.authorization, target, _API)
        except RemoteError as error:
            raise ApiError(403, 10052, f"{DEAD_LETTERS}: {error.message}") from None

    def _real(self, state: StreamState) -> StreamState:
        return self._gateway.node.image.streams.get(real_ids(state.stream_id)[0], state)

    @staticmethod
    def _mistake(target: StreamState) -> str:
        """Return why a stream can have no dead letters; empty: it can."""
        wanted = dead_letter_subject(target.name, ">")
        if len(target.partitions) > 1:
            return (
                f"stream {target.name} has {len(target.partitions)} partitions; dead letters need one of one partition"
            )
        if not any(is_within(wanted, subject) for subject in target.config.subjects):
            return f"stream {target.name} does not take {wanted}: `penstock stream create {target.name} '{wanted}'`"
        return ""

    # Letters

    def give(self, reader: Reader, led: LedConsumer, given: Given) -> None:
        """A message is given up: it stays pending until its letter is stored."""
        if led.letters is None:
            led.letters = LetterQueue()
        led.letters.add(given)
        self._active[reader] = None

    @staticmethod
    def told(led: LedConsumer) -> LetterState:
        """Return what is told of the letters of a consumer."""
        letters = led.letters
        return LetterState(0, "") if letters is None else LetterState(len(letters), letters.failure)

    @property
    def waiting(self) -> int:
        """Letters of all consumers that are not stored yet."""
        return sum(self.told(reader.led).waiting for reader in self._active if reader.led is not None)

    @property
    def has_settled(self) -> bool:
        """True if `take_settled` has something."""
        return bool(self._settled)

    def take_settled(self) -> list[Reader]:
        """Take the consumers of which a message is pending no more."""
        found, self._settled = [*self._settled], {}
        return found

    @property
    def next_us(self) -> int | None:
        """When `tick` has something to do."""
        if self._under_way >= UNDER_WAY_MAX:
            return None
        leds = [reader.led for reader in self._active if reader.led is not None]
        dues = [(led, led.letters.wake_us) for led in leds if led.letters is not None]
        return min((self._woken_us(led, due) for led, due in dues if due is not None), default=None)

    def _woken_us(self, led: LedConsumer, due_us: int) -> int:
        """Return when a letter that is due at a time may be sent."""
        return due_us if led.is_certain else max(due_us, self._look_us)

    def tick(self, now: Now) -> None:
        """Send the letters that are due."""
        for reader in [*self._active]:
            led = reader.led
            if led is None or led.letters is None or not self._is_current(reader, led):
                del self._active[reader]
                continue
            if not led.is_certain:
                self._look_us = now.elapsed_us + UNCERTAIN_US
                continue
            while self._under_way < UNDER_WAY_MAX and (given := led.letters.next(now.elapsed_us)) is not None:
                self._begin(reader, led, led.letters, given, now)
            if not len(led.letters):
                del self._active[reader]

    def _is_current(self, reader: Reader, led: LedConsumer) -> bool:
        return not led.is_deleted and led.writes.log.is_current and self._registry.of_table(led.state.table) is reader

    def _begin(self, reader: Reader, led: LedConsumer, letters: LetterQueue, given: Given, now: Now) -> None:
        """Read the message of a letter, if there still is a use for it."""
        if self._is_taken_back(led, letters, given):
            return
        if not reader.config.dead_letters:  # they are wanted no more
            self._settle(reader, led, letters, given, now)
            return
        self._under_way += 1
        try:
            self._target(reader)
            request = FetchRequest(
                stream_id=StreamId(reader.stream_id),
                offset=Offset(given.offset),
                end=Offset(given.offset + 1),
                bytes_max=1,
                columns=KEYED_COLUMNS,
            )
            self._gateway.ask_rows(request, now, partial(self._read, reader, led, given))
        except RemoteError as error:
            self._failed(reader, led, given, error)

    def _is_taken_back(self, led: LedConsumer, letters: LetterQueue, given: Given) -> bool:
        """True if there is no use for a letter any more: its message was acked late, is gone, or was begun anew."""
        if led.state.table.has_ended(given.offset):
            return False
        self._answer(led, given)
        letters.done()
        return True

    def _target(self, reader: Reader) -> StreamState:
        """Return the stream of the letters of a consumer. Raise RemoteError."""
        name = reader.config.dead_letters
        target = self._gateway.node.image.by_name(name) if name in self._gateway.node.image.names else None
        if target is None:
            raise RemoteError(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {name!r}")
        if why := self._mistake(target):
            raise RemoteError(ErrorCode.BAD_REQUEST, why)
        if target.partitions[0].leader is None:
            raise RemoteError(ErrorCode.NOT_YET, f"stream {name} has no leader now")
        return target

    def _read(
        self, reader: Reader, led: LedConsumer, given: Given, response: Response | RemoteError, payload: Payload
    ) -> None:
        """Decode the message in a disk thread."""
        if isinstance(response, RemoteError):
            self._failed(reader, led, given, response)
            return
        assert isinstance(response, FetchResponse), response
        found: list[_Row] = []

        def decode() -> None:
            found.extend(row for batch in keyed_batches(response, payload) for row in _rows(batch))

        def done(error: Exception | None) -> None:
            if isinstance(error, PenstockError | OSError):
                self._failed(reader, led, given, error)
            elif error is not None:
                raise error
            elif found:
                self._send(reader, led, given, found[0])
            else:
                self._gone(reader, led, given)

        self._gateway.node.outbox.work(Lane.READ, decode, done)

    def _gone(self, reader: Reader, led: LedConsumer, given: Given) -> None:
        """The message is not there any more."""
        self._under_way -= 1
        if led.letters is not None and self._is_current(reader, led):
            self._settle(reader, led, led.letters, given, self._gateway.node.now)

    def _send(self, reader: Reader, led: LedConsumer, given: Given, row: _Row) -> None:
        """Have the leader of the other stream store the letter."""
        node = self._gateway.node
        is_current = self._is_current(reader, led)
        # an ack may have come while the message was read
        if not is_current or (led.letters is not None and self._is_taken_back(led, led.letters, given)):
            self._under_way -= 1
            return
        try:
            if not led.is_certain:  # the process may have slept since
                raise RemoteError(ErrorCode.NOT_YET, "another broker may lead the consumer's stream by now")
            target = self._target(reader)
            check_letter_rights(self._gateway.authorization, target, _API)
        except RemoteError as error:
            self._failed(reader, led, given, error)
            return
        try:
            raw = self._encoded(reader, led, given, row, target)
        except RemoteError as error:
            self._failed(reader, led, given, error, is_alone=True)
            return
        request = StoreLetterRequest(
            stream_id=target.stream_id,
            letter=letter_id(led.state.consumer_id, given.offset),
            since_us=TimestampUs(row.timestamp_us),
        )

        def heard(response: Response | RemoteError, _: object) -> None:
            self._stored(reader, led, given, response)

        leader = target.partitions[0].leader
        assert leader is not None
        if leader == node.broker_id:
            self._gateway.ask(request, node.now, heard, raw=raw, who=THE_BROKER)
        else:
            node.ask_peer(leader, request, heard, raw)

    def _encoded(self, reader: Reader, led: LedConsumer, given: Given, row: _Row, target: StreamState) -> bytes:
        """Return the batch of a letter. Raise RemoteError: it would go in a circle."""
        node = self._gateway.node
        stream_id, partition = real_ids(reader.stream_id)
        source = node.image.streams[StreamId(stream_id)].name
        path = path_of(row.headers, row.subject.decode(), source)
        if why := loop(path, source, target.name):
            raise RemoteError(ErrorCode.BAD_REQUEST, why)
        origin = Origin(source, partition, reader.name, led.state.consumer_id, api_time(node.now.wall_us))
        room = min(target.config.max_message_bytes, limits.MESSAGE_BYTES_MAX) - len(row.value or b"")
        headers = letter_headers(given, origin, row.subject.decode(), row.headers, path, room)
        subject = dead_letter_subject(target.name, row.subject.decode()).encode()
        group = MessageGroup.of([subject], [row.value], keys=[row.key], headers=[headers])
        return bytes(codec.encode(group, 0, 1, base_offset=0, timestamp_us=0, leader_epoch=0)[0])

    def _stored(self, reader: Reader, led: LedConsumer, given: Given, response: Response | RemoteError) -> None:
        if isinstance(response, RemoteError):
            self._failed(reader, led, given, response)
            return
        assert isinstance(response, StoreLetterResponse), response
        self._under_way -= 1
        self.counters["stored"] += 1
        if led.letters is not None:
            led.letters.stored += 1
        if led.letters is not None and self._is_current(reader, led):
            self._settle(reader, led, led.letters, given, self._gateway.node.now)

    def _settle(self, reader: Reader, led: LedConsumer, letters: LetterQueue, given: Given, now: Now) -> None:
        """The message leaves the pending ones; its ack is answered once that is committed."""
        led.state.give_up(given.offset)
        self._answer(led, given)
        led.writes.note(led, now.elapsed_us, waits=bool(given.reply))
        letters.done()
        self._settled[reader] = None

    @staticmethod
    def _answer(led: LedConsumer, given: Given) -> None:
        if given.reply:
            led.answer(given.reply)

    def _failed(
        self, reader: Reader, led: LedConsumer, given: Given, error: Exception, *, is_alone: bool = False
    ) -> None:
        """Try again later, and say why if that is news. `is_alone`: it is not the stream that takes none."""
        self._under_way -= 1
        self.counters["failed"] += 1
        if led.letters is None or not self._is_current(reader, led):
            return
        text = error.message if isinstance(error, RemoteError) else str(error)
        is_alone |= isinstance(error, CorruptionError) or (isinstance(error, RemoteError) and error.code in _ALONE)
        if led.letters.failed(text, self._gateway.node.now.elapsed_us, is_alone=is_alone):
            feed = self._registry.feed_of(reader)
            told = f"consumer {reader.name} of stream {feed.name}: its dead letters wait for stream"
            self._gateway.node.outbox.step.notices.append(f"{told} {reader.config.dead_letters}: {text}")
