"""A publisher to many subjects: one raw connection, frames made as they are sent, a window of unacked messages.

Rules: Subjects are random ones of the load, by its seed, or all of them in turn (`is_new`). Each answer is read, and
one that is no ack ends the load. A frame costs the generator about a microsecond: compare the server's CPU time per
message beside the rates.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load.nats_socket import NatsSocket, inbox
from penstock_bench.machine.processes import Stopwatch

_CHUNK = 500  # messages sent at once
_READ_BYTES = 1 << 18
_HEADERS = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 0\r\n\r\n"
_EXCERPT_BYTES = 300


class SubjectLoad(msgspec.Struct, frozen=True):
    """Messages to many subjects, `<prefix>.<number>`. `is_new`: each to the next one, expecting it to be empty."""

    nats: Address
    prefix: str
    messages: int
    subjects: int
    window: int = 4_000
    size: int = 256
    is_new: bool = False
    seed: int = 1
    watched: dict[str, int] = {}  # processes whose CPU time is measured


class SubjectsPublished(msgspec.Struct, frozen=True):
    """The outcome: every message was acked."""

    seconds: float
    cpu_seconds: dict[str, float]


def subject_of(prefix: str, number: int) -> str:
    """Return the subject of a number: 12 to 24 characters."""
    return f"{prefix}.{number:08x}"


def publish(load: SubjectLoad) -> Iterator[SubjectsPublished]:
    """Worker: publish all messages. Raise OperationalError for an answer that is no ack."""
    reply = inbox().encode()
    with NatsSocket(load.nats) as nats:
        nats.send(b"SUB %b 1\r\n" % reply)
        nats.barrier()
        watch = Stopwatch(load.watched)
        open_count, answers = 0, _Answers(nats, reply)
        for frames, count in _frames(load, reply):
            nats.send(frames)
            open_count += count
            while open_count > load.window - _CHUNK:
                open_count -= answers.acks()
        while open_count > 0:
            open_count -= answers.acks()
        seconds, cpu_seconds = watch.read()
    yield SubjectsPublished(seconds, cpu_seconds)


def _frames(load: SubjectLoad, reply: bytes) -> Iterator[tuple[bytes, int]]:
    chance = random.Random(load.seed)  # noqa: S311 (the same load in every run, no secret)
    value = chance.randbytes(load.size)
    prefix = load.prefix.encode()
    if load.is_new:
        tail = b" %b %d %d\r\n%b%b\r\n" % (reply, len(_HEADERS), len(_HEADERS) + load.size, _HEADERS, value)
        head = b"HPUB %b.%%08x" % prefix
    else:
        tail = b" %b %d\r\n%b\r\n" % (reply, load.size, value)
        head = b"PUB %b.%%08x" % prefix
    for begin in range(0, load.messages, _CHUNK):
        count = min(_CHUNK, load.messages - begin)
        numbers = (
            range(begin, begin + count) if load.is_new else [int(chance.random() * load.subjects) for _ in range(count)]
        )
        yield tail.join([head % number for number in numbers]) + tail, count


class _Answers:
    """Counts the acks that a connection receives."""

    def __init__(self, nats: NatsSocket, reply: bytes) -> None:
        self._nats = nats
        self._token = b"MSG " + reply
        self._rest = b""  # the end of what was received, shorter than a token

    def acks(self) -> int:
        """Receive once; return the number of acks that began. Raise OperationalError for another answer."""
        data = self._rest + self._nats.socket.recv(_READ_BYTES)
        if len(data) == len(self._rest):
            raise OperationalError("nats-server closed the connection")
        if (at := max(data.find(b'"error"'), data.find(b"-ERR"))) >= 0:
            said = data[max(0, at - _EXCERPT_BYTES) : at + _EXCERPT_BYTES].decode("utf-8", "replace")
            raise OperationalError(f"a message was refused: {said}")
        if b"PING\r\n" in data:
            self._nats.send(b"PONG\r\n")
        self._rest = data[1 - len(self._token) :]
        return data.count(self._token)
