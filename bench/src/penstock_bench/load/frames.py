"""NATS protocol without sockets: frames encoded beforehand, and acks parsed after the clock has stopped.

Rules: All frames of a pool have the same length, so that the n-th begins at n × `stride` and a window is one slice.
Values are random, so that no product gains by compression. A server's output is parsed strictly; an answer that is not
an ack of the product's dialect is an error, with its text.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock_bench.load.content import Content, Tally


class _PubAck(msgspec.Struct):
    """The fields that identify an ack."""

    stream: str = ""
    seq: int = 0
    error: msgspec.Raw | None = None


_decoder = msgspec.json.Decoder(_PubAck)


def _is_pub_ack(payload: bytes) -> bool:
    try:
        ack = _decoder.decode(payload)
    except msgspec.DecodeError:
        return False
    return ack.error is None and ack.seq > 0


class Dialect(NamedTuple):
    """A product's framing around a value on NATS, and its ack format."""

    before_value: Callable[[str, int], bytes] | None  # from ack inbox and size; None: the inbox is the reply subject
    is_ack: Callable[[bytes], bool]


JETSTREAM = Dialect(before_value=None, is_ack=_is_pub_ack)
"""The dialect of JetStream and Penstock."""


class Pool:
    """Frames that publish random values of `size` bytes on `subject`, to be acked on `reply`."""

    def __init__(
        self,
        subject: str,
        reply: str,
        size: int,
        count: int,
        seed: int,
        *,
        bytes_max: int,
        dialect: Dialect = JETSTREAM,
        subjects: int = 1,
    ) -> None:
        """Encode the frames. `subjects`: if more than one, `subject.N` in turn, all of one length."""
        names = [subject]
        if subjects > 1:
            names = [f"{subject}.{number:0{len(str(subjects - 1))}d}" for number in range(subjects)]
        if dialect.before_value is None:
            heads = [f"PUB {name} {reply} {size}\r\n".encode() for name in names]
        else:
            before = dialect.before_value(reply, size)
            heads = [f"PUB {name} {len(before) + size}\r\n".encode() + before for name in names]
        self._head_bytes = len(heads[0])
        self._size = size
        self.stride = len(heads[0]) + size + 2
        self.count = max(1, min(count, bytes_max // self.stride))
        chance = random.Random(seed)  # noqa: S311 (the same bytes in every round, not a secret)
        values = memoryview(chance.randbytes(size * self.count))
        parts: list[bytes | memoryview] = []
        starts = range(0, len(values), size) if size else [0] * self.count
        for start, head in zip(starts, itertools.cycle(heads), strict=False):
            parts += (head, values[start : start + size], b"\r\n")
        self.frames = b"".join(parts)

    def values(self, count: int) -> Iterator[memoryview]:
        """Yield the values of the first `count` messages in sending order; the pool repeats."""
        view = memoryview(self.frames)
        for number in range(count):
            start = number % self.count * self.stride + self._head_bytes
            yield view[start : start + self._size]


def sent_content(pools: list[tuple[Pool, int]]) -> Content:
    """Return the content of the first messages of each (pool, number of messages)."""
    tally = Tally()
    for pool, count in pools:
        tally.add(pool.values(count))
    return tally.content(ordered=len(pools) == 1)


class Delivery(NamedTuple):
    """One MSG or HMSG. `headers` includes the status line."""

    subject: bytes
    reply: bytes | None
    headers: bytes
    payload: bytes


class Scanned(NamedTuple):
    """The complete frames of a buffer: deliveries, other lines, and the position after them."""

    deliveries: list[Delivery]
    lines: list[bytes]
    end: int


def scan(buffer: bytes | bytearray, start: int, end: int) -> Scanned:
    """Parse the bytes from `start` to `end`. Raise OperationalError if they are not NATS protocol."""
    deliveries: list[Delivery] = []
    lines: list[bytes] = []
    while (line_end := buffer.find(b"\r\n", start, end)) >= 0:
        line = bytes(buffer[start:line_end])
        body = line_end + 2
        if not line.startswith((b"MSG ", b"HMSG ")):
            lines.append(line)
            start = body
            continue
        words = line.split(b" ")
        headed = words[0] == b"HMSG"
        try:
            size = int(words[-1])
            head = int(words[-2]) if headed else 0
        except ValueError:
            raise OperationalError(f"not NATS protocol: {line[:100]!r}") from None
        after = body + size
        if after + 2 > end:
            break
        if len(words) - headed not in (4, 5) or not 0 <= head <= size or buffer[after : after + 2] != b"\r\n":
            raise OperationalError(f"not NATS protocol: {line[:100]!r}")
        reply = words[3] if len(words) - headed == 5 else None
        deliveries.append(
            Delivery(words[1], reply, bytes(buffer[body : body + head]), bytes(buffer[body + head : after]))
        )
        start = after + 2
    return Scanned(deliveries, lines, start)


class Audit(NamedTuple):
    """The answers to a publisher: acks, other answers, and the text of the first of these."""

    acks: int
    errors: int
    first_error: str


def audit(buffer: bytes | bytearray, end: int, dialect: Dialect = JETSTREAM) -> Audit:
    """Count the acks in everything that a publisher's connection received; anything else is an error."""
    found = scan(buffer, 0, end)
    errors = [line for line in found.lines if line.startswith(b"-ERR")]
    acks = 0
    for delivery in found.deliveries:
        if is_ack(delivery, dialect):
            acks += 1
        else:
            errors.append(delivery.headers + delivery.payload)
    if found.end != end:
        errors.append(bytes(buffer[found.end : end]))
    first = errors[0][: limits.PAYLOAD_PREVIEW_BYTES * 4].decode("utf-8", "replace") if errors else ""
    return Audit(acks, len(errors), first)


def is_ack(delivery: Delivery, dialect: Dialect = JETSTREAM) -> bool:
    """True if the answer is an ack; False for a NATS status or an error."""
    return not delivery.headers and dialect.is_ack(delivery.payload)
