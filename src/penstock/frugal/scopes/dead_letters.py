"""Dead letters: messages that no handler could take, in a stream of their own.

Rules: a dead letter has key, value and headers of the message, its subject behind the prefix of the dead-letter stream,
`penstock.dead.<stream>.`, and in front of its headers what happened:

| header                     | value                                                                       |
|----------------------------|-----------------------------------------------------------------------------|
| `Penstock-Dead-Reason`     | the error of the last delivery, or why the message could not be decoded     |
| `Penstock-Dead-Deliveries` | how often it was given to a handler                                         |
| `Penstock-Dead-Group`      | the consumer group whose handler it was                                     |
| `Penstock-Dead-Stream`     | the stream that it comes from                                               |
| `Penstock-Dead-Partition`  | its partition there                                                         |
| `Penstock-Dead-Offset`     | its offset there; with the two before it names the message                  |
| `Penstock-Dead-Subject`    | its subject                                                                 |

Headers that ask a broker for something, such as `Nats-TTL`, `Nats-Rollup`, `Nats-Msg-Id` and `Penstock-Key`, stand
behind `Penstock-Dead-Header-`: the dead-letter stream would refuse them, or remove other letters for them.
What does not fit into the stream is left out, and the reason ends with what that was: headers from the last one on,
then the value. A letter that is refused nevertheless is tried again without its headers, then without its value, so
that none blocks its partition for ever; what is left out can be read where it comes from.
A dead letter may hold any bytes, so a stream that checks values (`schema_check: refuse`) is refused at the start. If
one begins to check later, a letter that does not fit the schema of its subject is stored on the subject
`penstock.dead.<stream>.unfit`; if a schema is for that, too, its partition waits, and the error says what to alter.
Letters are appended over the socket, not published, in batches, in the order of their partition, and are acked before
their messages count as settled. If only the answer was lost, they are appended twice.
The stream is created if it does not exist: with the replicas, storage and encryption of the stream that it serves, and
room for its largest message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.base import limits
from penstock.base.config import SchemaCheck
from penstock.base.dead_letters import (
    DELIVERIES,
    GROUP,
    LINE_END,
    NOTE_BYTES,
    OFFSET,
    PARTITION,
    REASON,
    STREAM,
    SUBJECT,
    VERSION_LINE,
    dead_letter_subject,
    fitting,
    lines_of,
    own_lines,
    shown_reason,
)
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.typed_headers import DEAD_PREFIX, DEAD_SUFFIX, DEAD_TOO_LONG, DEAD_UNFIT
from penstock.client.aio import Client
from penstock.client.errors import StreamExists, StreamNotFound
from penstock.client.values import Message
from penstock.frugal.scopes.durable import Delivery
from penstock.messages import StreamInfo

SUFFIX: Final = DEAD_SUFFIX
"""Behind a stream's name: the stream of its dead letters."""
_REFUSALS: Final = (ErrorCode.BAD_REQUEST, ErrorCode.TOO_LARGE, ErrorCode.SCHEMA_MISMATCH)
"""Errors that the same row gets again."""
_UNCHECKED: Final = "let it count them (`penstock stream alter {} --schema-check count`)"


def original_subject(message: Message) -> str:
    """Return the subject on which a message was published, also if it is a dead letter."""
    if not message.subject.startswith(DEAD_PREFIX):
        return message.subject
    _, _, rest = message.subject.removeprefix(DEAD_PREFIX).partition(".")
    return message.headers.get(SUBJECT, rest) if rest in (DEAD_TOO_LONG, DEAD_UNFIT) else rest


def dead_letter_row(
    stream: str,
    delivery: Delivery,
    group: str,
    reason: str,
    *,
    bytes_max: int = limits.MESSAGE_BYTES_MAX,
    keeps_headers: bool = True,
    keeps_value: bool = True,
    fits: bool = True,
) -> dict[str, Any]:
    """Return the row that is appended to the dead-letter stream, which takes `bytes_max` of headers and value.

    What does not fit, or is not to be kept, is left out; the reason says so. `fits`: its subject's schema takes it.
    """
    message = delivery.message
    value, theirs, reason = message.value, lines_of(message.header_block or b""), shown_reason(reason)
    kept, left_out = theirs, []
    ours = _own_lines(delivery, group, reason)
    frame = len(VERSION_LINE) + len(ours) + len(LINE_END)
    headers_max = min(bytes_max - len(value or b""), limits.HEADER_BLOCK_BYTES_MAX)
    is_all_kept = (keeps_headers or not theirs) and (keeps_value or not value)
    if not is_all_kept or frame + sum(map(len, theirs)) > headers_max:
        frame += NOTE_BYTES
        if value and (not keeps_value or frame + len(value) > bytes_max):
            left_out.append(f"the value of {len(value)} bytes")
            value = b""  # None would be a tombstone
        headers_max = min(bytes_max - len(value or b""), limits.HEADER_BLOCK_BYTES_MAX)
        kept = fitting(theirs, headers_max - frame) if keeps_headers else []
        if len(kept) < len(theirs):
            left_out.append(f"the last {len(theirs) - len(kept)} of {len(theirs)} headers")
        ours = _own_lines(delivery, group, f"{reason} (left out: {', '.join(left_out)})")
    return {
        "subject": dead_letter_subject(stream, original_subject(message) if fits else DEAD_UNFIT),
        "key": message.key,
        "value": value,
        "headers": VERSION_LINE + ours + b"".join(kept) + LINE_END,
    }


def _own_lines(delivery: Delivery, group: str, reason: str) -> bytes:
    message = delivery.message
    ours = {
        REASON: reason,
        DELIVERIES: str(delivery.deliveries),
        GROUP: group,
        STREAM: delivery.stream,
        PARTITION: str(message.partition),
        OFFSET: str(message.offset),
        SUBJECT: original_subject(message),
    }
    return own_lines(ours)


class DeadLetters:
    """The dead-letter stream of one subscription."""

    def __init__(self, client: Client, stream: str, group: str, *, timeout_s: float) -> None:
        self._client = client
        self.stream = stream
        self._group = group
        self._timeout_s = timeout_s
        self._bytes_max = limits.MESSAGE_BYTES_MAX

    async def open(self, source: StreamInfo) -> None:
        """Look the stream up, or create it. RemoteError, Unavailable, TimedOut.

        ValueError: its subject is another, or it refuses values that do not fit a schema.
        """
        try:
            found = await self._client.stream(self.stream, timeout=self._timeout_s)
        except StreamNotFound:
            found = await self._create(source)
        wanted = dead_letter_subject(self.stream, ">")
        if found.config.subject != wanted:
            text = f"stream {self.stream} is on {found.config.subject!r}, and takes no dead letters"
            raise ValueError(f"{text}: name another one, or create it on {wanted!r}")
        if found.config.schema_check is SchemaCheck.REFUSE:
            text = f"stream {self.stream} refuses values that do not fit a schema, and a dead letter may hold any bytes"
            raise ValueError(f"{text}: {_UNCHECKED.format(self.stream)}, or name another one")
        self._bytes_max = found.config.max_message_bytes

    async def _create(self, source: StreamInfo) -> StreamInfo:
        config = source.config
        wanted: dict[str, Any] = {
            "replicas": config.replicas,
            "min_isr": config.min_isr,
            "durability": config.durability,
            "storage": config.storage,
            "max_message_bytes": min(
                limits.MESSAGE_BYTES_MAX, config.max_message_bytes + limits.HEADER_BLOCK_BYTES_MAX
            ),
        }
        if config.encryption is not msgspec.UNSET:
            wanted["encryption"] = config.encryption
        subject = dead_letter_subject(self.stream, ">")
        try:
            return await self._client.create_stream(self.stream, subject, timeout=self._timeout_s, **wanted)
        except StreamExists:  # another client has created it meanwhile
            return await self._client.stream(self.stream, timeout=self._timeout_s)

    async def write(self, letters: Sequence[tuple[Delivery, str]]) -> None:
        """Append messages with their reasons, in order; returns when all are committed there.

        Raises what `Client.append` does; then some of them may be appended. One message alone is not refused for what
        it holds, as long as the stream takes what happened to it.
        """
        try:
            await self._append([self._row(*letter) for letter in letters])
        except RemoteError as error:
            if error.code not in _REFUSALS:
                raise
            found = await self._client.stream(self.stream, timeout=self._timeout_s)  # as it is by now
            self._bytes_max = found.config.max_message_bytes
            if len(letters) > 1:
                raise
            await self._append_less(*letters[0])

    async def _append_less(self, delivery: Delivery, reason: str) -> None:
        """Append a message that was refused: as it fits by now, else without its headers, else without its value."""
        keeps: dict[str, bool] = {}
        for less in ("keeps_headers", "keeps_value", ""):
            try:
                await self._append_fitting(delivery, reason, keeps)
            except RemoteError as error:
                if not less or error.code not in _REFUSALS or error.code == ErrorCode.SCHEMA_MISMATCH:
                    raise
                keeps[less] = False
            else:
                return

    async def _append_fitting(self, delivery: Delivery, reason: str, keeps: Mapping[str, bool]) -> None:
        """Append a message; one whose subject's schema does not take it, on a subject that should have none."""
        try:
            await self._append([self._row(delivery, reason, **keeps)])
        except RemoteError as error:
            if error.code != ErrorCode.SCHEMA_MISMATCH:
                raise
        else:
            return
        try:
            await self._append([self._row(delivery, reason, **keeps, fits=False)])
        except RemoteError as error:
            if error.code == ErrorCode.SCHEMA_MISMATCH:
                raise RemoteError(
                    error.code, f"{error.message}; {_UNCHECKED.format(self.stream)}", **error.details
                ) from error
            raise

    def _row(self, delivery: Delivery, reason: str, **keeps: bool) -> dict[str, Any]:
        return dead_letter_row(self.stream, delivery, self._group, reason, bytes_max=self._bytes_max, **keeps)

    async def _append(self, rows: list[dict[str, Any]]) -> None:
        await self._client.append(self.stream, rows, timeout=self._timeout_s)
