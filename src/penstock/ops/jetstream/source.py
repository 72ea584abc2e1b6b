"""Reads a JetStream stream: its state, its config, and its messages as rows of the log.

Rules: reading changes nothing in JetStream. Messages come from an ephemeral consumer in memory that acks nothing and
expires. In a stream with retention `workqueue` or `interest` a consumer would remove messages, so each message is
requested by its sequence. Header blocks are kept byte for byte: they are taken before nats-py parses them into a dict.

| Penstock            | JetStream                                      |
|---------------------|------------------------------------------------|
| offset              | sequence - 1                                   |
| timestamp           | time, in microseconds; raised if it steps back |
| subject, headers    | the same                                       |
| key, tombstone      | the headers `Penstock-Key…`, `-Tombstone`      |

A message that the target stream cannot hold raises `UnstorableError`, or is skipped if the caller asked for that.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from nats.errors import Error as NatsError

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.base.nats_logins import shown_url
from penstock.base.subjects import matches, subject_mistake
from penstock.client.errors import Unavailable
from penstock.client.publish.nats_client import StrictNatsClient
from penstock.client.publish.publishing import first_connection, not_connected
from penstock.client.values import TOMBSTONE_HEADER, Headers, microseconds_of
from penstock.ops.jetstream.config import COMPLETE, ORIGIN, record_of

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_MAX = 16_384
_BYTES_MAX = 4 << 20
_ASKED_AT_ONCE = 4_000
_SUBJECTS_KNOWN_MAX = 65_536
_PAUSE_S = 0.1  # between two attempts to get an ack
_IDLE_NS = 60 * 10**9  # inactivity after which JetStream deletes the consumer
_SUBJECT, _REPLY, _HEADERS, _VALUE = range(4)
_NO_MESSAGE = 10037
_NO_STREAM = 10059
_NO_MORE = b"NATS/1.0 404"
_OVER_MAX_BYTES = b"NATS/1.0 409 Message Size Exceeds MaxBytes"
_REPLACED = "\ufffd"  # the replacement for a byte that is not UTF-8 in the server's JSON
_SKIPPED_TOLD_MAX = 100
_GIVES_AWAY = ("workqueue", "interest")

Delivery = tuple[bytes, bytes, bytes, bytes]
"""Subject, reply subject, header block and value of a message."""


class State(msgspec.Struct):
    """A JetStream stream's state. `deleted`: sequences between the first and the last one, if they were asked for."""

    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0
    bytes: int = 0
    num_deleted: int = 0
    deleted: list[int] = []


class Info(msgspec.Struct):
    """A JetStream stream; `config` is the JSON object of its API."""

    config: dict[str, Any]
    state: State


class Sequences(msgspec.Struct):
    """A place of a consumer: a count of deliveries, and a message of the stream."""

    consumer_seq: int = 0
    stream_seq: int = 0


class SourceConsumer(msgspec.Struct):
    """A JetStream consumer; `config` is the JSON object of its API."""

    name: str
    config: dict[str, Any]
    delivered: Sequences
    ack_floor: Sequences
    num_ack_pending: int = 0


class _ConsumerPage(msgspec.Struct):
    total: int = 0
    consumers: list[SourceConsumer] = []


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    error: _Error | None = None


class _Ack(_Answer):
    stream: str = ""


class Stored(msgspec.Struct):
    """A message in JetStream; headers and data are Base64."""

    subject: str
    seq: int
    time: str
    hdrs: str = ""
    data: str = ""

    @property
    def timestamp_us(self) -> int:
        """Time when it was stored."""
        moment, _, rest = self.time.rstrip("Z").partition(".")
        return microseconds_of(datetime.fromisoformat(f"{moment}+00:00")) + int(f"{rest}000000"[:6])


class _StoredAnswer(msgspec.Struct):
    message: Stored


class UnstorableError(OperationalError):
    """The target stream cannot hold the message with sequence `seq`; `is_large` if its size is the reason."""

    def __init__(self, seq: int, why: str, *, is_large: bool) -> None:
        super().__init__(f"the message with sequence {seq} cannot be stored: {why}")
        self.seq = seq
        self.is_large = is_large


class JetStreamRows:
    """Collects messages into batches; raises times that step back, and counts them in `raised`.

    `patterns` and `bytes_max` are the target stream's subjects and size limit. With `skips`, messages that it cannot
    hold are skipped and counted in `skipped`; `skips_told` has (sequence, reason) of the first ones.
    """

    def __init__(
        self,
        last_us: int,
        *,
        patterns: Sequence[str] = (">",),
        bytes_max: int = limits.MESSAGE_BYTES_MAX,
        skips: bool = False,
    ) -> None:
        self.raised = self.skipped = 0
        self.skips_told: list[tuple[int, str]] = []
        self._last_us = last_us
        self._patterns = patterns
        self._bytes_max = bytes_max
        self._skips = skips
        self._subjects: dict[bytes, tuple[str, str]] = {}  # → text, and why it cannot be stored ("" if it can)
        self._clear()

    def _clear(self) -> None:
        self._columns: tuple[list[Any], ...] = ([], [], [], [], [], [])
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def is_full(self) -> bool:
        """True if the batch should be taken now."""
        return len(self) >= _ROWS_MAX or self.size_bytes >= _BYTES_MAX

    def add(self, seq: int, timestamp_us: int, subject: bytes, headers: bytes | None, value: bytes) -> None:
        """Append a message. Raise UnstorableError unless unstorable messages are skipped."""
        text, why = self._text(subject)
        key, kept = (None, value) if not headers or b"Penstock-" not in headers else _honoured(headers, value)
        large = _size_mistake(len(value), len(headers or b""), len(key or b""), self._bytes_max)
        if (why or large) and not self._skips:
            raise UnstorableError(seq, why or large, is_large=not why)
        if why or large:
            self.skipped += 1
            if len(self.skips_told) < _SKIPPED_TOLD_MAX:
                self.skips_told.append((seq, why or large))
            return
        if timestamp_us < self._last_us:
            timestamp_us, self.raised = self._last_us, self.raised + 1
        self._last_us = timestamp_us
        for column, one in zip(self._columns, (seq - 1, timestamp_us, text, key, kept, headers), strict=True):
            column.append(one)
        self.size_bytes += len(value) + len(headers or b"") + len(subject)

    def _text(self, subject: bytes) -> tuple[str, str]:
        found = self._subjects.get(subject)
        if found is None:
            if len(self._subjects) >= _SUBJECTS_KNOWN_MAX:
                self._subjects.clear()
            found = self._subjects[subject] = _subject_text(subject, self._patterns)
        return found

    def take(self) -> pa.RecordBatch:
        """Return all messages as a batch, and clear."""
        import pyarrow as pa

        from penstock.batch.schema import arrow_schema

        schema = arrow_schema()
        arrays = [pa.array(column, field.type) for column, field in zip(self._columns, schema, strict=True)]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _subject_text(subject: bytes, patterns: Sequence[str]) -> tuple[str, str]:
    try:
        text = subject.decode()
    except UnicodeDecodeError:
        return "", f"its subject {str(subject)[1:]} is not UTF-8"
    if (mistake := subject_mistake(text)) is not None:
        return "", mistake
    is_stored = any(matches(pattern, text) for pattern in patterns)
    return text, "" if is_stored else f"its subject {text!r} is not on {', '.join(map(repr, patterns))}"


def _size_mistake(value_bytes: int, header_bytes: int, key_bytes: int, bytes_max: int) -> str:
    for size, limit, what in (
        (value_bytes + header_bytes, bytes_max, "it has"),
        (header_bytes, limits.HEADER_BLOCK_BYTES_MAX, "its headers have"),
        (key_bytes, limits.KEY_BYTES_MAX, "its key has"),
    ):
        if size > limit:
            return f"{what} {size:,} bytes, and the limit is {limit:,}"
    return ""


def _honoured(headers: bytes, value: bytes) -> tuple[bytes | None, bytes | None]:
    """Return key and value as Penstock's own headers define them."""
    said = Headers(headers)
    key: bytes | None = None
    if (text := said.get("Penstock-Key")) is not None:
        key = text.encode("utf-8", "surrogateescape")
    elif (coded := said.get("Penstock-Key-Base64")) is not None:
        try:
            key = base64.b64decode(coded, validate=True)
        except ValueError:
            key = None  # an invalid header is kept like any other
    is_tombstone = said.get(TOMBSTONE_HEADER) == "1" and not value
    return key or None, None if is_tombstone else value


class _RawClient(StrictNatsClient):
    """nats-py client that delivers the messages of one subscription unparsed, in the queue `came`."""

    def __init__(self) -> None:
        super().__init__()
        self.raw_sid = 0
        self.came: asyncio.Queue[Delivery] = asyncio.Queue()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if sid == self.raw_sid:
            self.came.put_nowait((bytes(subject), bytes(reply), bytes(headers or b""), bytes(data)))
        else:
            await super()._process_msg(sid, subject, reply, data, headers)


class JetStream:
    """Connection to JetStream's API; used on one event loop."""

    def __init__(self, urls: Sequence[str], domain: str | None, timeout_s: float) -> None:
        self._urls = tuple(urls)
        self._api = "$JS.API" if domain is None else f"$JS.{domain}.API"
        self._timeout_s = timeout_s
        self._connection = _RawClient()
        self._numbers = itertools.count(1)
        self._complaint = ""

    @property
    def shown(self) -> str:
        """The server URLs without credentials."""
        return ", ".join(map(shown_url, self._urls))

    async def open(self, options: Mapping[str, Any]) -> None:
        """Connect. Raise Unavailable on failure."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await first_connection(
                    self._connection, self._urls, name="penstock-import", error_cb=self._complained, **options
                )
        except Unavailable:
            raise
        except TimeoutError:
            why = f" ({self._complaint})" if self._complaint else ""
            raise Unavailable(f"{not_connected(self.shown, self._complaint)}{why}") from None
        except (OSError, NatsError) as error:
            raise Unavailable(f"no connection to NATS at {self.shown}: {error}") from None

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def _complained(self, error: Exception) -> None:
        """Record an asynchronous error, for the error text of a request: a denied publish gets no answer."""
        self._complaint = str(error).removeprefix("nats: ")

    async def acked_by(self, stream: str, subjects: Sequence[str], wait_s: float) -> list[str]:
        """Publish a test message on each subject; return for each "" if Penstock's `stream` acked it, else why not.

        The header Nats-Expected-Stream keeps other streams, JetStream's too, from storing it. Retries for `wait_s`.
        """
        return await asyncio.gather(*(self._acked(stream, one, wait_s) for one in subjects))

    async def _acked(self, stream: str, subject: str, wait_s: float) -> str:
        headers = {"Nats-Expected-Stream": stream}
        deadline_s, why = asyncio.get_running_loop().time() + wait_s, "no answer in time"
        while (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            self._complaint = ""
            try:
                answer = await self._connection.request(subject, timeout=left_s, headers=headers)
            except NatsError as error:
                is_alone = "no responders" in str(error).lower()
                why = self._complaint or ("no responders" if is_alone else "no answer in time")
            else:
                if (said := _pub_ack(answer.data)).stream == stream:
                    return ""
                why = said.error.description if said.error else "another program answers"
            await asyncio.sleep(_PAUSE_S)
        return why

    async def _ask(self, what: str, body: object = None) -> bytes:
        """Request from JetStream's API; empty if there is no such message. Raise OperationalError if it refuses."""
        payload = b"" if body is None else msgspec.json.encode(body)
        try:
            answer = await self._connection.request(f"{self._api}.{what}", payload, timeout=self._timeout_s)
        except NatsError as error:
            if "no responders" in str(error).lower():
                text = f"NATS at {self.shown} has no JetStream for this user"
                raise OperationalError(f"{text}: give the nats-server that has it with --nats URL") from None
            raise Unavailable(f"JetStream at {self.shown} does not answer: {error}") from None
        said = msgspec.json.decode(answer.data, type=_Answer).error
        if said is None:
            return answer.data
        if said.err_code == _NO_MESSAGE:
            return b""
        if said.err_code == _NO_STREAM:
            raise OperationalError(f"JetStream at {self.shown} has no such stream")
        raise OperationalError(f"JetStream at {self.shown} refuses: {said.description} ({said.err_code})")

    async def info(self, stream: str) -> Info:
        """Return a stream's config and state. Raise OperationalError."""
        return msgspec.json.decode(await self._ask(f"STREAM.INFO.{stream}"), type=Info)

    async def deleted(self, stream: str) -> State:
        """Return a stream's state with the sequences that were deleted between its first and its last message."""
        return msgspec.json.decode(await self._ask(f"STREAM.INFO.{stream}", {"deleted_details": True}), type=Info).state

    async def names(self) -> list[str]:
        """Return names of existing streams; only the first page."""
        answer = msgspec.json.decode(await self._ask("STREAM.NAMES"))
        return list(answer.get("streams") or [])

    async def consumers(self, stream: str) -> list[SourceConsumer]:
        """Return all consumers of a stream, by name."""
        found: dict[str, SourceConsumer] = {}
        while True:
            page = msgspec.json.decode(
                await self._ask(f"CONSUMER.LIST.{stream}", {"offset": len(found)}), type=_ConsumerPage
            )
            before = len(found)
            found |= {one.name: one for one in page.consumers}
            if len(found) >= page.total or len(found) == before:
                return [found[name] for name in sorted(found)]

    async def move_aside(self, info: Info, subject: str) -> None:
        """Replace the stream's subjects by `subject`, and record the original ones in its metadata."""
        name = info.config["name"]
        metadata = {**(info.config.get("metadata") or {}), ORIGIN: " ".join(info.config.get("subjects") or [])}
        metadata.pop(COMPLETE, None)  # of an earlier cut-over, which the user has undone
        await self._ask(f"STREAM.UPDATE.{name}", {**info.config, "subjects": [subject], "metadata": metadata})

    async def record_complete(self, stream: str, last_seq: int, target: str) -> None:
        """Record in the stream's metadata that a cut-over into `target` has imported all up to `last_seq`.

        A nats-server before 2.10 records nothing.
        """
        config = (await self.info(stream)).config
        metadata = {**(config.get("metadata") or {}), COMPLETE: record_of(last_seq, target)}
        await self._ask(f"STREAM.UPDATE.{stream}", {**config, "metadata": metadata})

    async def get(self, stream: str, seq: int) -> Stored | None:
        """Return a message; None if it was deleted."""
        return await self._stored(stream, {"seq": seq})

    async def _stored(self, stream: str, wanted: Mapping[str, object]) -> Stored | None:
        answer = await self._ask(f"STREAM.MSG.GET.{stream}", wanted)
        return msgspec.json.decode(answer, type=_StoredAnswer).message if answer else None

    async def batches(
        self, info: Info, first_seq: int, rows: JetStreamRows, subject: str | None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the messages from `first_seq` to the last sequence in `info`; only those on `subject`, if given."""
        gives_away = info.config.get("retention") in _GIVES_AWAY
        source = self._one_by_one if gives_away else self._consumed
        refused: UnstorableError | None = None
        try:
            async with aclosing(source(info, first_seq, rows, subject)) as found:
                async for _ in found:
                    if rows.is_full:
                        yield rows.take()
        except UnstorableError as error:
            refused = error
        if len(rows):
            yield rows.take()
        if refused is not None:
            raise refused

    async def _one_by_one(
        self, info: Info, first_seq: int, rows: JetStreamRows, subject: str | None
    ) -> AsyncGenerator[None, None]:
        name, seq = info.config["name"], first_seq
        while seq <= info.state.last_seq:
            found = await self._stored(name, {"seq": seq, "next_by_subj": subject or ">"})
            if found is None or found.seq > info.state.last_seq:
                return
            headers = base64.b64decode(found.hdrs) if found.hdrs else None
            name_of = found.subject.encode()
            if _REPLACED in found.subject:
                name_of = found.subject.encode("latin-1", "replace").replace(b"?", b"\xff")  # keep it invalid UTF-8
            rows.add(found.seq, found.timestamp_us, name_of, headers, base64.b64decode(found.data))
            seq = found.seq + 1
            yield

    async def _consumed(
        self, info: Info, first_seq: int, rows: JetStreamRows, subject: str | None
    ) -> AsyncGenerator[None, None]:
        if first_seq > info.state.last_seq:
            return
        name, connection = info.config["name"], self._connection
        config: dict[str, Any] = {
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(1, first_seq),
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _IDLE_NS,
        }
        if subject is not None:
            config["filter_subject"] = subject
        made = msgspec.json.decode(await self._ask(f"CONSUMER.CREATE.{name}", {"stream_name": name, "config": config}))
        inbox = connection.new_inbox()
        subscription = await connection.subscribe(f"{inbox}.*")
        connection.came, connection.raw_sid = asyncio.Queue(), subscription._id  # noqa: SLF001 (no public name)
        try:
            ask = f"{self._api}.CONSUMER.MSG.NEXT.{name}.{made['name']}"
            async with aclosing(self._pulled(ask, inbox, info, rows)) as pulled:
                async for _ in pulled:
                    yield
        finally:
            connection.raw_sid = 0
            await subscription.unsubscribe()
            await self._ask(f"CONSUMER.DELETE.{name}.{made['name']}")

    async def _pulled(self, ask: str, inbox: str, info: Info, rows: JetStreamRows) -> AsyncGenerator[None, None]:
        many = msgspec.json.encode({"batch": _ASKED_AT_ONCE, "max_bytes": 2 * _BYTES_MAX, "no_wait": True})
        one = msgspec.json.encode({"batch": 1, "no_wait": True})  # without max_bytes: a message of any size
        body = many
        came, last_seq, seen = self._connection.came, info.state.last_seq, 0
        while True:
            reply = f"{inbox}.{next(self._numbers)}"
            await self._connection.publish(ask, body, reply=reply)
            left, before = _ASKED_AT_ONCE if body is many else 1, seen
            body = many
            while left:
                try:
                    delivery = await asyncio.wait_for(came.get(), self._timeout_s)
                except TimeoutError:
                    raise Unavailable(f"JetStream at {self.shown} sends no further messages") from None
                if not delivery[_REPLY]:  # a status message ends the pull request
                    if delivery[_SUBJECT] != reply.encode():
                        continue
                    if seen == before and delivery[_HEADERS].startswith(_OVER_MAX_BYTES):
                        body = one
                    elif seen == before and not delivery[_HEADERS].startswith(_NO_MORE):
                        said = delivery[_HEADERS].split(b"\r\n")[0].decode("utf-8", "replace")
                        raise OperationalError(f"JetStream at {self.shown} sends no further messages: {said}")
                    break
                seq, timestamp_us = place_of(delivery[_REPLY])
                if seq > last_seq:
                    return
                headers = delivery[_HEADERS] or None
                rows.add(seq, timestamp_us, delivery[_SUBJECT], headers, delivery[_VALUE])
                left, seen = left - 1, seq
                yield
                if seq == last_seq:
                    return
            if seen == before and body is many:
                return  # the messages up to `last_seq` were deleted


def _pub_ack(data: bytes) -> _Ack:
    try:
        return msgspec.json.decode(data, type=_Ack)
    except msgspec.MsgspecError:
        return _Ack()


def place_of(reply: bytes) -> tuple[int, int]:
    """Return (sequence, time in µs) of a delivery, from its ack subject."""
    tokens = reply.split(b".")
    begin = 5 if len(tokens) == 9 else 7  # the newer form has two more tokens before: domain and account hash
    return int(tokens[begin]), int(tokens[begin + 2]) // 1_000
