"""A JetStream stream as `penstock import` reads it: its state and config, and its messages as rows of the log.

Rules: nothing is changed there. Messages are read by a consumer that lives in memory, acks nothing, and goes by itself.
Where a stream gives messages away (retention `workqueue` or `interest`), a consumer would take them: there each is
asked for by its sequence. Header blocks are kept byte for byte, so they are taken before nats-py makes a dict of them.

| here                | there                                        |
|---------------------|----------------------------------------------|
| offset              | sequence - 1                                 |
| timestamp           | its time, to the microsecond; never going back |
| subject, headers    | the same                                     |
| key, tombstone      | what `Penstock-Key…` and `-Tombstone` say    |

A message that the stream here cannot hold (`UnstorableError`) is named, and read past only where that is asked for.
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
from penstock.cli.jetstream_config import ORIGIN
from penstock.client.errors import Unavailable
from penstock.client.nats_client import StrictNatsClient
from penstock.client.publishing import first_connection, not_connected
from penstock.client.values import TOMBSTONE_HEADER, Headers, microseconds_of

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_MAX = 16_384
_BYTES_MAX = 4 << 20
_ASKED_AT_ONCE = 4_000
_SUBJECTS_KNOWN_MAX = 65_536
_PAUSE_S = 0.1  # between two messages that are to be acked
_IDLE_NS = 60 * 10**9  # so long a consumer lives that nobody asks
_SUBJECT, _REPLY, _HEADERS, _VALUE = range(4)
_NO_MESSAGE = 10037
_NO_STREAM = 10059
_NO_MORE = b"NATS/1.0 404"
_OVER_MAX_BYTES = b"NATS/1.0 409 Message Size Exceeds MaxBytes"
_REPLACED = "\ufffd"  # what the server's JSON has for a byte that is not UTF-8
_SKIPPED_TOLD_MAX = 100
_GIVES_AWAY = ("workqueue", "interest")

Delivery = tuple[bytes, bytes, bytes, bytes]
"""Subject, reply subject, header block and value of a message."""


class State(msgspec.Struct):
    """What a stream holds."""

    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0
    bytes: int = 0


class Info(msgspec.Struct):
    """A stream: `config` as JetStream has it."""

    config: dict[str, Any]
    state: State


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct):
    error: _Error | None = None


class _Ack(_Answer):
    stream: str = ""


class _Stored(msgspec.Struct):
    subject: str
    seq: int
    time: str
    hdrs: str = ""
    data: str = ""

    @property
    def timestamp_us(self) -> int:
        """When it was stored."""
        moment, _, rest = self.time.rstrip("Z").partition(".")
        return microseconds_of(datetime.fromisoformat(f"{moment}+00:00")) + int(f"{rest}000000"[:6])


class _StoredAnswer(msgspec.Struct):
    message: _Stored


class UnstorableError(OperationalError):
    """The stream here cannot hold a message of JetStream's; `seq` is its sequence. `is_large`: for its size."""

    def __init__(self, seq: int, why: str, *, is_large: bool) -> None:
        super().__init__(f"the message with sequence {seq} cannot be stored: {why}")
        self.seq = seq
        self.is_large = is_large


class Rows:
    """Messages on their way to a batch; times that go back are raised, and counted.

    `pattern` and `bytes_max` are of the stream here. `skips`: what it cannot hold is passed over, and counted in
    `skipped`; `skips_told` says why for the first of them.
    """

    def __init__(
        self, last_us: int, *, pattern: str = ">", bytes_max: int = limits.MESSAGE_BYTES_MAX, skips: bool = False
    ) -> None:
        self.raised = self.skipped = 0
        self.skips_told: list[tuple[int, str]] = []
        self._last_us = last_us
        self._pattern = pattern
        self._bytes_max = bytes_max
        self._skips = skips
        self._subjects: dict[bytes, tuple[str, str]] = {}  # as text, and why it cannot be stored
        self._clear()

    def _clear(self) -> None:
        self._columns: tuple[list[Any], ...] = ([], [], [], [], [], [])
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def is_full(self) -> bool:
        """Whether it is to be put."""
        return len(self) >= _ROWS_MAX or self.size_bytes >= _BYTES_MAX

    def add(self, seq: int, timestamp_us: int, subject: bytes, headers: bytes | None, value: bytes) -> None:
        """One message, behind all others. UnstorableError."""
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
            found = self._subjects[subject] = _subject_text(subject, self._pattern)
        return found

    def take(self) -> pa.RecordBatch:
        """A batch of them all."""
        import pyarrow as pa

        from penstock.batch.schema import arrow_schema

        schema = arrow_schema()
        arrays = [pa.array(column, field.type) for column, field in zip(self._columns, schema, strict=True)]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _subject_text(subject: bytes, pattern: str) -> tuple[str, str]:
    try:
        text = subject.decode()
    except UnicodeDecodeError:
        return "", f"its subject {str(subject)[1:]} is not UTF-8"
    if (mistake := subject_mistake(text)) is not None:
        return "", mistake
    return text, "" if matches(pattern, text) else f"its subject {text!r} is not on {pattern!r}"


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
    """Key and value of a message that was meant for Penstock."""
    said = Headers(headers)
    key: bytes | None = None
    if (text := said.get("Penstock-Key")) is not None:
        key = text.encode("utf-8", "surrogateescape")
    elif (coded := said.get("Penstock-Key-Base64")) is not None:
        try:
            key = base64.b64decode(coded, validate=True)
        except ValueError:
            key = None  # JetStream stores such a header like any other
    is_tombstone = said.get(TOMBSTONE_HEADER) == "1" and not value
    return key or None, None if is_tombstone else value


class _RawClient(StrictNatsClient):
    """nats-py, with the messages of one subscription handed over as they came."""

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
    """See the module; all on one event loop."""

    def __init__(self, urls: Sequence[str], domain: str | None, timeout_s: float) -> None:
        self._urls = tuple(urls)
        self._api = "$JS.API" if domain is None else f"$JS.{domain}.API"
        self._timeout_s = timeout_s
        self._connection = _RawClient()
        self._numbers = itertools.count(1)
        self._complaint = ""

    @property
    def shown(self) -> str:
        """Where it is, without credentials."""
        return ", ".join(map(shown_url, self._urls))

    async def open(self, options: Mapping[str, Any]) -> None:
        """Connect. Unavailable."""
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
        """Give back the connection."""
        await self._connection.close()

    async def _complained(self, error: Exception) -> None:
        """Whoever waits for an answer hears of it; what may not be published is not answered."""
        self._complaint = str(error).removeprefix("nats: ")

    async def acked_by(self, stream: str, subjects: Sequence[str], wait_s: float) -> list[str]:
        """Whether that stream of Penstock acks a message on each of these subjects, published here: "", or why not.

        No other stream stores the messages, be it one of JetStream. Each is asked again until the time has passed.
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
                why = self._complaint or ("nobody is subscribed there" if is_alone else "no answer in time")
            else:
                if (said := _pub_ack(answer.data)).stream == stream:
                    return ""
                why = said.error.description if said.error else "another program answers"
            await asyncio.sleep(_PAUSE_S)
        return why

    async def _ask(self, what: str, body: object = None) -> bytes:
        """The answer of JetStream's API; OperationalError with what it refuses. Empty: there is no such message."""
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
        """A stream's config and state. OperationalError."""
        return msgspec.json.decode(await self._ask(f"STREAM.INFO.{stream}"), type=Info)

    async def names(self) -> list[str]:
        """The streams that there are, some at least."""
        answer = msgspec.json.decode(await self._ask("STREAM.NAMES"))
        return list(answer.get("streams") or [])

    async def move_aside(self, info: Info, subject: str) -> None:
        """Have the stream store what is published on `subject`, and nothing else."""
        name = info.config["name"]
        metadata = {**(info.config.get("metadata") or {}), ORIGIN: (info.config.get("subjects") or [""])[0]}
        await self._ask(f"STREAM.UPDATE.{name}", {**info.config, "subjects": [subject], "metadata": metadata})

    async def get(self, stream: str, seq: int) -> _Stored | None:
        """One message; None: it is not there any more."""
        return await self._stored(stream, {"seq": seq})

    async def _stored(self, stream: str, wanted: Mapping[str, object]) -> _Stored | None:
        answer = await self._ask(f"STREAM.MSG.GET.{stream}", wanted)
        return msgspec.json.decode(answer, type=_StoredAnswer).message if answer else None

    async def batches(
        self, info: Info, first_seq: int, rows: Rows, subject: str | None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """What it holds from `first_seq` up to its last sequence in `info`; of a `subject`, if one is given."""
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
        self, info: Info, first_seq: int, rows: Rows, subject: str | None
    ) -> AsyncGenerator[None, None]:
        name, seq = info.config["name"], first_seq
        while seq <= info.state.last_seq:
            found = await self._stored(name, {"seq": seq, "next_by_subj": subject or ">"})
            if found is None or found.seq > info.state.last_seq:
                return
            headers = base64.b64decode(found.hdrs) if found.hdrs else None
            name_of = found.subject.encode()
            if _REPLACED in found.subject:
                name_of = found.subject.encode("latin-1", "replace").replace(b"?", b"\xff")  # no UTF-8 there either
            rows.add(found.seq, found.timestamp_us, name_of, headers, base64.b64decode(found.data))
            seq = found.seq + 1
            yield

    async def _consumed(
        self, info: Info, first_seq: int, rows: Rows, subject: str | None
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
        connection.came, connection.raw_sid = asyncio.Queue(), subscription._id  # noqa: SLF001 (told nowhere else)
        try:
            ask = f"{self._api}.CONSUMER.MSG.NEXT.{name}.{made['name']}"
            async with aclosing(self._pulled(ask, inbox, info, rows)) as pulled:
                async for _ in pulled:
                    yield
        finally:
            connection.raw_sid = 0
            await subscription.unsubscribe()
            await self._ask(f"CONSUMER.DELETE.{name}.{made['name']}")

    async def _pulled(self, ask: str, inbox: str, info: Info, rows: Rows) -> AsyncGenerator[None, None]:
        many = msgspec.json.encode({"batch": _ASKED_AT_ONCE, "max_bytes": 2 * _BYTES_MAX, "no_wait": True})
        one = msgspec.json.encode({"batch": 1, "no_wait": True})  # of any size
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
                    raise Unavailable(f"JetStream at {self.shown} sends nothing further") from None
                if not delivery[_REPLY]:  # a status: a request is served
                    if delivery[_SUBJECT] != reply.encode():
                        continue
                    if seen == before and delivery[_HEADERS].startswith(_OVER_MAX_BYTES):
                        body = one
                    elif seen == before and not delivery[_HEADERS].startswith(_NO_MORE):
                        said = delivery[_HEADERS].split(b"\r\n")[0].decode("utf-8", "replace")
                        raise OperationalError(f"JetStream at {self.shown} gives no further message: {said}")
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
                return  # the last ones were deleted


def _pub_ack(data: bytes) -> _Ack:
    try:
        return msgspec.json.decode(data, type=_Ack)
    except msgspec.MsgspecError:
        return _Ack()


def place_of(reply: bytes) -> tuple[int, int]:
    """Sequence and time (µs) of a delivery, by the subject on which it would be acked."""
    tokens = reply.split(b".")
    begin = 5 if len(tokens) == 9 else 7  # with a domain and the hash of an account, two more come before
    return int(tokens[begin]), int(tokens[begin + 2]) // 1_000
