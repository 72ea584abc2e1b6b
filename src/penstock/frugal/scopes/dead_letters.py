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

It is appended over the socket, not published, so it fits even if headers and value are as large as NATS takes. Those of
a partition are appended in batches, in their order, and are acked before their messages count as settled. If only the
answer was lost, they are appended twice.
The stream is created if it does not exist: with the replicas, storage and encryption of the stream that it serves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.base import limits
from penstock.client.aio import Client
from penstock.client.errors import StreamExists, StreamNotFound
from penstock.client.values import Message
from penstock.frugal.scopes.durable import Delivery
from penstock.messages import StreamInfo

REASON: Final = "Penstock-Dead-Reason"
DELIVERIES: Final = "Penstock-Dead-Deliveries"
GROUP: Final = "Penstock-Dead-Group"
STREAM: Final = "Penstock-Dead-Stream"
PARTITION: Final = "Penstock-Dead-Partition"
OFFSET: Final = "Penstock-Dead-Offset"
SUBJECT: Final = "Penstock-Dead-Subject"

REASON_CHARS_MAX: Final = 1_000
"""Longer reasons are cut."""
SUFFIX: Final = "-dead"
"""Behind a stream's name: the stream of its dead letters."""
_HEADER_BYTES: Final = 16 * 1024  # what ours take at most, with room
_PREFIX: Final = "penstock.dead."
_TOO_LONG: Final = "too-long"  # in the place of a subject that is too long with the prefix; the header has it
_BLANK = re.compile(r"[\x00-\x1f\x7f]+")
_VERSION_LINE, _BLOCK_END = b"NATS/1.0\r\n", b"\r\n\r\n"


def dead_letter_subject(stream: str, subject: str) -> str:
    """Return the subject of a dead letter in its stream; `>` gives the pattern of the stream."""
    made = f"{_PREFIX}{stream}.{subject}"
    return made if len(made.encode()) <= limits.SUBJECT_BYTES_MAX else f"{_PREFIX}{stream}.{_TOO_LONG}"


def original_subject(message: Message) -> str:
    """Return the subject on which a message was published, also if it is a dead letter."""
    if not message.subject.startswith(_PREFIX):
        return message.subject
    _, _, rest = message.subject.removeprefix(_PREFIX).partition(".")
    return message.headers.get(SUBJECT, rest) if rest == _TOO_LONG else rest


def dead_letter_row(stream: str, delivery: Delivery, group: str, reason: str) -> dict[str, Any]:
    """Return the row that is appended to the dead-letter stream."""
    message = delivery.message
    ours = {
        REASON: shown_reason(reason),
        DELIVERIES: str(delivery.deliveries),
        GROUP: group,
        STREAM: delivery.stream,
        PARTITION: str(message.partition),
        OFFSET: str(message.offset),
        SUBJECT: original_subject(message),
    }
    lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in ours.items())
    return {
        "subject": dead_letter_subject(stream, original_subject(message)),
        "key": message.key,
        "value": message.value,
        "headers": _VERSION_LINE + lines + _lines_of(message) + b"\r\n",
    }


def shown_reason(reason: str) -> str:
    """Return a reason as one line that a header takes."""
    text = _BLANK.sub(" ", reason).strip()
    if len(text) > REASON_CHARS_MAX:
        text = text[: REASON_CHARS_MAX - 3] + "..."
    return text.encode("utf-8", "backslashreplace").decode() or "unknown"


def _lines_of(message: Message) -> bytes:
    """Return the lines of a message's header block; none if NATS passed on something that is no block."""
    block = message.header_block
    if not block or not block.startswith(b"NATS/1.0") or not block.endswith(_BLOCK_END):
        return b""
    _, _, rest = block.partition(b"\r\n")  # the first line may have a status
    return rest[:-2]


class DeadLetters:
    """The dead-letter stream of one subscription."""

    def __init__(self, client: Client, stream: str, group: str, *, timeout_s: float) -> None:
        self._client = client
        self.stream = stream
        self._group = group
        self._timeout_s = timeout_s

    async def open(self, source: StreamInfo) -> None:
        """Look the stream up, or create it. ValueError: its subject is another. RemoteError, Unavailable, TimedOut."""
        try:
            found = await self._client.stream(self.stream, timeout=self._timeout_s)
        except StreamNotFound:
            found = await self._create(source)
        wanted = dead_letter_subject(self.stream, ">")
        if found.config.subject != wanted:
            text = f"stream {self.stream} is on {found.config.subject!r}, and takes no dead letters"
            raise ValueError(f"{text}: name another one, or create it on {wanted!r}")

    async def _create(self, source: StreamInfo) -> StreamInfo:
        config = source.config
        wanted: dict[str, Any] = {
            "replicas": config.replicas,
            "min_isr": config.min_isr,
            "durability": config.durability,
            "storage": config.storage,
            "max_message_bytes": min(limits.MESSAGE_BYTES_MAX, config.max_message_bytes + _HEADER_BYTES),
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

        Raises what `Client.append` does; then some of them may be appended.
        """
        rows = [dead_letter_row(self.stream, delivery, self._group, reason) for delivery, reason in letters]
        await self._client.append(self.stream, rows, timeout=self._timeout_s)
