"""Which messages of a group become rows, and what the others are told.

Rules: rows keep the order of the wire. A message that is refused gets an error ack if it would have been acked, and is
counted in any case: nothing disappears without a trace. A check that a header asks for and this broker cannot make is
refused, never ignored: a publisher that expects one must not be acked without it. The one exception is `Nats-Msg-Id`,
which ordinary clients send: it is stored with the message, and the same id twice is stored and acked twice.

The checks run in JetStream's order: expected stream, last subject sequence, last sequence, message id, last id, size.

| header                              | effect                                                                |
|-------------------------------------|-----------------------------------------------------------------------|
| `Penstock-Key`                      | the row's key                                                         |
| `Penstock-Key-Base64`               | the row's key, for keys that are not text                             |
| `Penstock-Tombstone: 1`             | with an empty payload: the row's value is null                        |
| `Penstock-Ack: none|leader|all`     | no ack; ack once written; ack once as durable as the stream promises  |
| `Nats-Expected-Stream`              | a stream of another name neither stores nor answers                   |
| `Nats-Expected-Last-Sequence`       | stored only if the last sequence is that one                          |
| names that NATS gives to what it hands on (`_TOLD`), and `Nats-Msg-Id` | stored, no effect                  |
| every other `Nats-` or `Penstock-` name | refused: it asks for something, now or in a later version         |

A subject is refused as well where the socket would refuse it: nats-server lets `orders.*` and control characters pass.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from penstock.base import limits
from penstock.base.config import Acks, StreamConfig
from penstock.base.subjects import RESERVED_PREFIXES, are_plain, begins_with_wildcard, subject_mistake
from penstock.batch.codec import Columns
from penstock.hot.scan import TooLarge
from penstock.ingest import acks

_RESERVED = tuple(prefix.encode() for prefix in RESERVED_PREFIXES)
_OURS = (b"\r\nPenstock-", b"\r\nNats-")
_HONOURED = {
    b"Penstock-Key",
    b"Penstock-Key-Base64",
    b"Penstock-Tombstone",
    b"Penstock-Ack",
    b"Nats-Expected-Stream",
    b"Nats-Expected-Last-Sequence",
    b"Nats-Msg-Id",
}
_TOLD = {
    b"Nats-Consumer-Stalled",
    b"Nats-Counter-Sources",
    b"Nats-Last-Consumer",
    b"Nats-Last-Sequence",
    b"Nats-Last-Stream",
    b"Nats-Marker-Reason",
    b"Nats-Msg-Size",
    b"Nats-Num-Pending",
    b"Nats-Pending-Bytes",
    b"Nats-Pending-Messages",
    b"Nats-Pin-Id",
    b"Nats-Request-Info",
    b"Nats-Response-Type",
    b"Nats-Sequence",
    b"Nats-Stream",
    b"Nats-Stream-Source",
    b"Nats-Subject",
    b"Nats-Time-Stamp",
    b"Nats-UpTo-Sequence",
}
"""What a message bears that JetStream or a service has handed on: it tells where it comes from and asks for nothing."""
_TOLD_PREFIXES = (b"Nats-Service-", b"Nats-Trace-")
_SEQUENCE_DIGITS_MAX = 19  # of 2^63 - 1

OTHER_STREAM = "other_stream"
"""Counted for a message whose Nats-Expected-Stream names another stream."""
RESERVED_SUBJECT = "reserved_subject"
"""Counted for a message that only a stream that names its subject's first token would store."""
REFUSED = "refused"
"""Counted for a message that fails a check."""


class MessageGroup(Protocol):
    """The messages that one socket read delivered to one subscription, column by column."""

    subjects: list[bytes]
    replies: list[bytes | None]
    headers: list[bytes | None]
    values: list[bytes]
    payload_bytes: int  # of headers and values together
    too_large: list[TooLarge]  # no rows: larger than any stream takes


@dataclass(frozen=True, slots=True)
class Rules:
    """What a stream's config means for admission, worked out once."""

    name: bytes
    acks_replies: bool
    message_bytes_max: int
    skips_reserved: bool

    @classmethod
    def of(cls, config: StreamConfig) -> Rules:
        """The rules of one stream."""
        return cls(
            name=config.name.encode(),
            acks_replies=config.acks is Acks.REPLY,
            message_bytes_max=config.max_message_bytes,
            skips_reserved=begins_with_wildcard(config.subject),
        )


@dataclass(slots=True)
class Admission:
    """Rows to append, in order, and the answers that need no append.

    `replies` has one entry per row, None where no ack is wanted; `early` holds the rows that are acked as soon as they
    are written. `dropped` counts what was not stored, by reason.
    """

    columns: Columns
    replies: list[bytes | None]
    early: set[int] = field(default_factory=set)
    errors: list[bytes] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.replies)


def admit(group: MessageGroup, rules: Rules, *, log_end: int) -> Admission:
    """The rows of `group` for a log that ends at `log_end`. Pure."""
    if _is_plain(group, rules):
        replies: list[bytes | None] = group.replies if rules.acks_replies else [None] * len(group.values)
        admission = Admission(Columns(group.subjects, None, group.values, None), replies)
    else:
        admission = _Sorter(rules, log_end).sort(group)
    _refuse_too_large(group, rules, admission)
    return admission


def refuse_all(group: MessageGroup, rules: Rules, error: acks.AckError, reason: str) -> Admission:
    """No rows: every message of `group` is refused with `error`, for what the broker cannot do now."""
    refused = Admission(Columns([], None, [], None), [])
    for subject, reply, block in zip(group.subjects, group.replies, group.headers, strict=True):
        _refuse(subject, reply, block, rules, error, reason, refused)
    _refuse_too_large(group, rules, refused)
    return refused


def _refuse_too_large(group: MessageGroup, rules: Rules, out: Admission) -> None:
    for message in group.too_large:
        error = acks.message_too_large(message.size, rules.message_bytes_max)
        _refuse(message.subject, message.reply, message.headers, rules, error, REFUSED, out)


def _refuse(
    subject: bytes,
    reply: bytes | None,
    block: bytes | None,
    rules: Rules,
    error: acks.AckError,
    reason: str,
    out: Admission,
) -> None:
    """Count one message that is not looked at more closely, and answer it if it is meant for this stream."""
    if rules.skips_reserved and subject.startswith(_RESERVED):
        out.dropped[RESERVED_SUBJECT] += 1
        return
    fields = header_fields(block) if block is not None else {}
    expected = fields.get(b"Nats-Expected-Stream")
    if expected is not None and expected != rules.name:
        out.dropped[OTHER_STREAM] += 1
        return
    out.dropped[reason] += 1
    if reply is not None and rules.acks_replies and fields.get(b"Penstock-Ack") != b"none":
        out.errors.append(acks.error_ack(rules.name, reply, error))


def _is_plain(group: MessageGroup, rules: Rules) -> bool:
    """Whether no message of the group needs to be looked at by itself: C loops only."""
    return (
        not any(group.headers)
        and max(map(len, group.values), default=0) <= rules.message_bytes_max
        and not rules.skips_reserved
        and are_plain(group.subjects)
    )


def header_fields(block: bytes) -> dict[bytes, bytes]:
    """The fields of a header block whose names are ours or NATS's; the first of a name counts.

    The block ends at its blank line: what a publisher puts behind it is no header for NATS either.
    """
    if not any(mark in block for mark in _OURS):
        return {}
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\r\n")[1:]:
        if not line:
            break
        name, colon, value = line.partition(b":")
        if colon and name.startswith((b"Penstock-", b"Nats-")):
            fields.setdefault(name, value.strip())
    return fields


class _RefusedError(Exception):
    """Internal to the sorter: this message gets this error."""

    def __init__(self, error: acks.AckError) -> None:
        super().__init__(error)
        self.error = error


class _Sorter:
    """Looks at each message by itself."""

    def __init__(self, rules: Rules, log_end: int) -> None:
        self._rules = rules
        self._log_end = log_end
        self._looks_at_subjects = True
        self._subjects: list[bytes] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._headers: list[bytes | None] = []
        self._out = Admission(Columns(self._subjects, self._keys, self._values, self._headers), [])

    def sort(self, group: MessageGroup) -> Admission:
        self._looks_at_subjects = not are_plain(group.subjects)
        for subject, reply, block, value in zip(
            group.subjects, group.replies, group.headers, group.values, strict=True
        ):
            self._message(subject, reply, block, value)
        return self._out

    def _message(self, subject: bytes, reply: bytes | None, block: bytes | None, value: bytes) -> None:
        out = self._out
        if self._rules.skips_reserved and subject.startswith(_RESERVED):
            out.dropped[RESERVED_SUBJECT] += 1
            return
        fields = header_fields(block) if block is not None else {}
        expected = fields.get(b"Nats-Expected-Stream")
        if expected is not None and expected != self._rules.name:
            out.dropped[OTHER_STREAM] += 1
            return
        if not self._rules.acks_replies:
            reply = None
        level = fields.get(b"Penstock-Ack", b"all")
        try:
            self._check(subject, block, value, fields, level)
            key = _key(fields)
        except _RefusedError as refused:
            out.dropped[REFUSED] += 1
            if reply is not None and level != b"none":
                out.errors.append(acks.error_ack(self._rules.name, reply, refused.error))
            return
        if level == b"leader" and reply is not None:
            out.early.add(out.count)
        tombstone = not value and fields.get(b"Penstock-Tombstone") == b"1"
        self._subjects.append(subject)
        self._keys.append(key)
        self._values.append(None if tombstone else value)
        self._headers.append(block)
        out.replies.append(None if level == b"none" else reply)

    def _check(
        self, subject: bytes, block: bytes | None, value: bytes, fields: dict[bytes, bytes], level: bytes
    ) -> None:
        if fields:
            self._check_fields(fields, level)
        size = len(value) + (len(block) if block is not None else 0)
        if size > self._rules.message_bytes_max:
            raise _RefusedError(acks.message_too_large(size, self._rules.message_bytes_max))
        if block is not None and len(block) > limits.HEADER_BLOCK_BYTES_MAX:
            raise _RefusedError(acks.headers_too_large(len(block), limits.HEADER_BLOCK_BYTES_MAX))
        if self._looks_at_subjects:
            _check_subject(subject)

    def _check_fields(self, fields: dict[bytes, bytes], level: bytes) -> None:
        unsupported = [name for name in fields.keys() - _HONOURED - _TOLD if not name.startswith(_TOLD_PREFIXES)]
        if unsupported:
            names = ", ".join(sorted(name.decode("latin-1") for name in unsupported))
            raise _RefusedError(acks.bad_request(f"this version of Penstock does not support {names}"))
        if level not in (b"none", b"leader", b"all"):
            raise _RefusedError(acks.bad_request("Penstock-Ack must be none, leader or all"))
        wanted = fields.get(b"Nats-Expected-Last-Sequence")
        if wanted is not None:
            last = self._log_end + self._out.count
            digits = wanted.lstrip(b"0") or b"0"
            if not wanted.isdigit() or len(digits) > _SEQUENCE_DIGITS_MAX or int(digits) != last:
                raise _RefusedError(acks.wrong_last_sequence(last))


def _check_subject(subject: bytes) -> None:
    try:
        mistake = subject_mistake(subject.decode())
    except UnicodeDecodeError:
        mistake = "the subject is not valid UTF-8"
    if mistake is not None:
        raise _RefusedError(acks.bad_request(mistake))


def _key(fields: dict[bytes, bytes]) -> bytes | None:
    key = fields.get(b"Penstock-Key")
    if key is None and (encoded := fields.get(b"Penstock-Key-Base64")) is not None:
        try:
            key = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            raise _RefusedError(acks.bad_request("Penstock-Key-Base64 is not valid base64")) from None
    if key is not None and len(key) > limits.KEY_BYTES_MAX:
        raise _RefusedError(acks.bad_request(f"the key is {len(key)} bytes long; the limit is {limits.KEY_BYTES_MAX}"))
    return key
