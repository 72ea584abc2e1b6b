"""Argument and result types: positions in the log, messages, headers, acks.

Rules: the parts of a message are parsed on access, never before; header blocks come from untrusted publishers, so the
parser accepts any input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from penstock.base import limits, notebook
from penstock.client.places import EARLIEST as EARLIEST
from penstock.client.places import LATEST as LATEST
from penstock.client.places import LastMessages as LastMessages
from penstock.client.places import Place as Place
from penstock.client.places import Start as Start
from penstock.hot.row_objects import Row
from penstock.messages import StreamInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VERSION_LINE = b"NATS/1.0"
_HEADER_NAME = re.compile(r"[!-9;-~]+")  # printable ASCII without space and colon
TOMBSTONE_HEADER = "Penstock-Tombstone"


StreamName = str | StreamInfo
"""A stream by name, or as returned by a call (then only that very stream, not one recreated under its name)."""


def datetime_of(timestamp_us: int) -> datetime:
    """Return microseconds since 1970 UTC as an aware datetime."""
    return _EPOCH + timedelta(microseconds=timestamp_us)


def microseconds_of(moment: datetime) -> int:
    """Return an aware datetime as microseconds since 1970 UTC. ValueError: a naive datetime."""
    if moment.tzinfo is None:
        raise ValueError(f"the datetime {moment} has no time zone; give one, such as datetime.now(timezone.utc)")
    return (moment - _EPOCH) // timedelta(microseconds=1)


class Headers(Mapping[str, str]):
    """The headers of a message. Names are case-sensitive; `headers[name]` is the first value, `get_all` returns all.

    Parsed from `raw` (the NATS header block) on first use; malformed lines are skipped, and bytes that are not UTF-8
    become surrogate escapes.
    """

    __slots__ = ("_values", "raw")

    def __init__(self, raw: bytes | None) -> None:
        self.raw = raw
        self._values: dict[str, list[str]] | None = None

    def _parsed(self) -> dict[str, list[str]]:
        if self._values is None:
            values: dict[str, list[str]] = {}
            for line in (self.raw or b"").split(b"\r\n")[1:]:
                name, colon, value = line.partition(b":")
                if colon and name:
                    text = value.strip(b" \t").decode("utf-8", "surrogateescape")
                    values.setdefault(name.decode("utf-8", "surrogateescape"), []).append(text)
            self._values = values
        return self._values

    def __getitem__(self, name: str) -> str:
        return self._parsed()[name][0]

    def get_all(self, name: str) -> list[str]:
        """Return every value of `name`, in order; empty if there is none."""
        return list(self._parsed().get(name, ()))

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def __repr__(self) -> str:
        return f"Headers({self._parsed()!r})"


class Message(Row):
    """One stored message. `value` is None for a tombstone and b"" for an empty payload."""

    __slots__ = ()

    def __init__(
        self,
        offset: int,
        timestamp_us: int,
        subject: str,
        key: bytes | None,
        value: bytes | None,
        headers: bytes | None,
        partition: int = 0,
    ) -> None:
        self.offset = offset
        self.partition = partition  # of its stream: offsets count within one
        self.timestamp_us = timestamp_us  # append time, microseconds since 1970 UTC
        self.subject = subject
        self.key = key
        self.value = value
        self.header_block = headers
        self._parsed = None

    @property
    def headers(self) -> Headers:
        """The headers, parsed on first use."""
        parsed: Headers | None = self._parsed
        if parsed is None:
            parsed = self._parsed = Headers(self.header_block)
        return parsed

    @property
    def timestamp(self) -> datetime:
        """Append time, in UTC."""
        return datetime_of(self.timestamp_us)

    @property
    def is_tombstone(self) -> bool:
        """True if the message is a tombstone: it deletes its key."""
        return self.value is None

    @property
    def text(self) -> str | None:
        """The value as text; None for a tombstone. ValueError: it is not UTF-8."""
        if self.value is None:
            return None
        try:
            return self.value.decode()
        except UnicodeDecodeError as error:
            text = f"the value of offset {self.offset} is not UTF-8 from byte {error.start} on"
            raise ValueError(f"{text}: use .value, which is bytes") from None

    def json(self) -> Any:
        """Return the value parsed as JSON; None for a tombstone. ValueError: it is not JSON."""
        if self.value is None:
            return None
        try:
            return json.loads(self.value)
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            begins = "it is empty" if not self.value else f"it begins {notebook.preview(self.value)!r}"
            raise ValueError(f"the value of offset {self.offset} is not JSON: {reason}; {begins}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._all() == other._all()

    def __hash__(self) -> int:
        return hash(self._all())

    def _all(self) -> tuple[object, ...]:
        return self.partition, self.offset, self.timestamp_us, self.subject, self.key, self.value, self.header_block

    def __repr__(self) -> str:
        value = self.value
        if value is not None and len(value) > limits.PAYLOAD_PREVIEW_BYTES:
            value = value[: limits.PAYLOAD_PREVIEW_BYTES] + b"..."
        which = f"partition={self.partition}, offset={self.offset}" if self.partition else f"offset={self.offset}"
        return f"Message({which}, subject={self.subject!r}, key={self.key!r}, value={value!r})"

    def _repr_html_(self) -> str:
        shown: dict[str, object] = dict(zip(_SHOWN, _shown(self), strict=True))
        headers = {f"header {name}": ", ".join(self.headers.get_all(name)) for name in self.headers}
        return notebook.html_pairs(shown | headers)


class MessageList(list[Message]):
    """Messages; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        return messages_html(self, count=len(self))


def messages_html(messages: Iterable[Message], *, count: int) -> str:
    """Return an HTML table of the first of `count` messages."""
    return notebook.html_table(_SHOWN, map(_shown, messages), count=count)


_SHOWN = ("partition", "offset", "timestamp", "subject", "key", "value")


def _shown(one: Message) -> tuple[object, ...]:
    texts = notebook.preview(one.key), notebook.preview(one.value)
    return one.partition, one.offset, one.timestamp, one.subject, *texts


def encode_headers(headers: Mapping[str, str | Sequence[str]]) -> bytes | None:
    """Return the NATS header block of `headers`; None if there are none.

    ValueError: a name or value that would break the block. TypeError: one that is not text.
    """
    if not headers:
        return None
    lines = [_VERSION_LINE]
    given: Iterable[tuple[Any, Any]] = headers.items()  # callers without a type checker may pass anything
    for name, values in given:
        check_header_name(name)
        if isinstance(values, bytes | bytearray) or not isinstance(values, Iterable):
            raise TypeError(f"the value of header {name!r} is {type(values).__name__}; give text, or several in a list")
        for value in (values,) if isinstance(values, str) else values:
            check_header_value(name, value)
            lines.append(f"{name}: {value}".encode())
    return b"\r\n".join((*lines, b"", b""))


def check_header_name(name: str) -> None:
    """Raise ValueError unless `name` is a valid header name; TypeError unless it is text."""
    if not isinstance(name, str):
        raise TypeError(f"the header name {name!r} is {type(name).__name__}; give text")
    if _HEADER_NAME.fullmatch(name) is None:
        raise ValueError(f"the header name {name!r} may hold only printable ASCII without spaces and colons")


def check_header_value(name: str, value: str) -> None:
    """Raise ValueError unless `value` fits one header line and is read back unchanged; TypeError unless it is text."""
    if not isinstance(value, str):
        raise TypeError(f"the value of header {name!r} is {type(value).__name__}; give text")
    if "\r" in value or "\n" in value or "\0" in value or value != value.strip(" \t"):
        raise ValueError(f"the value of header {name!r} may not hold line ends or begin or end with a space: {value!r}")


class OffsetAt(NamedTuple):
    """A position resolved to an offset. `timestamp` is None if there is no message at or after `offset`."""

    offset: int
    timestamp: datetime | None
    log_start: int
    committed_end: int


class AppendResult(NamedTuple):
    """The result of one appended batch: its n-th row has offset `base_offset + n` in `partition`."""

    base_offset: int
    end_offset: int
    timestamp: datetime
    fsynced: bool
    partition: int = 0


class Truncation(NamedTuple):
    """The part of a partition that was, or would be, deleted: messages, and bytes by whole batches."""

    partition: int
    log_start: int
    messages: int
    size_bytes: int


class Erasure(NamedTuple):
    """State of the erasing of what was deleted with `secure=True`, on the brokers that hold the partition.

    `erased`: brokers whose files hold nothing of it any more. `waiting`: for each other live one, what it waits for.
    `absent`: brokers that are away; they erase when they are back.
    """

    partition: int
    erased: tuple[int, ...] = ()
    waiting: tuple[str, ...] = ()
    absent: tuple[int, ...] = ()


class Deletion(NamedTuple):
    """The number of messages that were deleted now, and of those that were gone already: deleted before, or hidden by a
    limit by subject or a rollup. `missing`: other offsets without a message: purged, or not stored yet. `erasure`: of a
    secure deletion.
    """

    deleted: int
    already_deleted: int = 0
    missing: tuple[int, ...] = ()
    erasure: Erasure | None = None


class SubjectPurge(NamedTuple):
    """The number of a partition's messages that were, or would be, deleted, all before an offset. `erasure`: of a
    secure purge.
    """

    partition: int
    messages: int
    before: int
    erasure: Erasure | None = None


class KnownProducer(NamedTuple):
    """A producer that appended to a partition within the last ten minutes."""

    partition: int
    producer_id: int
    epoch: int
    last_sequence: int  # sequence number of its last appended row, counted from 0 in each epoch
    last_offset: int  # offset of that row
    last_append: datetime


class SubjectState(NamedTuple):
    """A subject of a stream: the number of its messages in a partition, and the offsets of the first and the last."""

    subject: str
    messages: int
    first: int
    last: int
    partition: int = 0


class Envelope(NamedTuple):
    """Publishes a message in an envelope, with options that only an envelope has.

    `correlation_id` is returned with the ack. With `expected_offset` the message is stored only at that offset.
    With `crc` the broker checks the envelope's checksum.
    """

    correlation_id: str = ""
    expected_offset: int | None = None
    crc: bool = False


class PubAck(NamedTuple):
    """A stream's confirmation that a published message is stored, and how durably."""

    stream: str
    offset: int
    partition: int = 0
    duplicate: bool = False
    leader_epoch: int | None = None
    replicas: int | None = None
    fsynced: bool | None = None
    correlation_id: str = ""  # of a message in an envelope
