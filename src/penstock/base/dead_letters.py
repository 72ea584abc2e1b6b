"""Dead letters: what a message that no client could take carries in the stream that keeps it.

Rules: a dead letter has key and value of the message; its subject is behind the prefix of the stream that it is in,
`penstock.dead.<stream>.`; headers tell where it comes from. Headers that ask a broker for something, such as
`Nats-TTL`, `Nats-Rollup`, `Nats-Msg-Id` and `Penstock-Key`, stand behind `Penstock-Dead-Header-`: the stream would
refuse them, or remove other letters for them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.base import limits
from penstock.base.typed_headers import DEAD_PREFIX, DEAD_SUBJECT, DEAD_TOO_LONG

REASON: Final = "Penstock-Dead-Reason"
DELIVERIES: Final = "Penstock-Dead-Deliveries"
STREAM: Final = "Penstock-Dead-Stream"
PARTITION: Final = "Penstock-Dead-Partition"
OFFSET: Final = "Penstock-Dead-Offset"
SUBJECT: Final = DEAD_SUBJECT
GROUP: Final = "Penstock-Dead-Group"
"""The consumer group whose handler it was."""
CONSUMER: Final = "Penstock-Dead-Consumer"
"""The consumer of JetStream's API that gave it up."""
SEQUENCE: Final = "Penstock-Dead-Sequence"
"""JetStream's number of the message: its offset + 1."""
TIME: Final = "Penstock-Dead-Time"
"""When it was given up, as RFC 3339."""
LETTER: Final = "Penstock-Dead-Letter"
"""Id of the letter: one that is stored already is not stored again."""
PATH: Final = "Penstock-Dead-Path"
"""The streams that the message came through as a dead letter, the first one first."""
HEADER: Final = "Penstock-Dead-Header-"
"""In front of the name of a header that asked a broker for something."""

REASON_CHARS_MAX: Final = 1_000
"""Longer reasons are cut."""
NOTE_BYTES: Final = 128  # behind the reason: what was left out
VERSION_LINE: Final = b"NATS/1.0\r\n"
LINE_END: Final = b"\r\n"
_BLOCK_END = b"\r\n\r\n"
_BLANK = re.compile(r"[\x00-\x1f\x7f]+")
_REQUEST = re.compile(
    rb"nats-(batch-|expected-|incr|msg-id|rollup|schedule|ttl)|penstock-(ack|key|tombstone)", re.IGNORECASE
)
"""Begins of the names that `penstock.hot.headers` honours or refuses; more generous, for brokers of later versions."""


def dead_letter_subject(stream: str, subject: str) -> str:
    """Return the subject of a dead letter in its stream; `>` gives the pattern of the stream."""
    made = f"{DEAD_PREFIX}{stream}.{subject}"
    return made if len(made.encode()) <= limits.SUBJECT_BYTES_MAX else f"{DEAD_PREFIX}{stream}.{DEAD_TOO_LONG}"


def shown_reason(reason: str) -> str:
    """Return a reason as one line that a header takes."""
    text = _BLANK.sub(" ", reason).strip()
    if len(text) > REASON_CHARS_MAX:
        text = text[: REASON_CHARS_MAX - 3] + "..."
    return text.encode("utf-8", "backslashreplace").decode() or "unknown"


def own_lines(fields: Mapping[str, str]) -> bytes:
    """Return the header lines of these fields."""
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in fields.items())


def lines_of(block: bytes) -> list[bytes]:
    """Return the lines of a message's header block; none if NATS passed on something that is no block."""
    if not block or not block.startswith(b"NATS/1.0") or not block.endswith(_BLOCK_END):
        return []
    _, *lines = block[: block.index(_BLOCK_END)].split(LINE_END)  # the first line may have a status
    return [(HEADER.encode() if _REQUEST.match(line) else b"") + line + LINE_END for line in lines]


def fitting(lines: Sequence[bytes], bytes_max: int) -> list[bytes]:
    """Return the first lines, as many as fit."""
    used = itertools.accumulate(map(len, lines))
    return [line for line, end in zip(lines, used, strict=True) if end <= bytes_max]
