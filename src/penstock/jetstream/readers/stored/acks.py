"""Acks of stored consumers: those of one read of the connection, applied in compiled code.

Rules: plain acks make no objects here. An ack that asks for more (an answer, a delay, the next message) is taken
by itself. One with a reply subject is answered once what it changed is committed; one that names no delivery of its
consumer gets no answer, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from penstock.base.clock import Now
from penstock.consumers.letters import TERMINATED, Given
from penstock.hot import pending, pending_acks
from penstock.hot.message_group import MessageGroup
from penstock.hot.pending import PendingTable
from penstock.jetstream.answers import publish_command
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.pulls import status
from penstock.jetstream.readers.reader import Reader
from penstock.jetstream.readers.stored.advisories import Advisories
from penstock.jetstream.readers.stored.dead_letters import DeadLetters
from penstock.jetstream.readers.stored.led import LedConsumer
from penstock.jetstream.readers.stored.removals import Removals

DELAY_US_MAX = 366 * 86_400_000_000
_DURATION = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
_DURATION["h"] = 60 * _DURATION["m"]


class AckTables:
    """The tables of messages in hand of all stored consumers of this broker, by `<stream>.<consumer>`."""

    def __init__(self) -> None:
        self.tables: dict[bytes, PendingTable] = {}
        self.readers: dict[PendingTable, Reader] = {}

    def enter(self, stream: str, reader: Reader) -> None:
        """Take acks for a consumer."""
        assert reader.led is not None
        self.tables[f"{stream}.{reader.name}".encode()] = reader.led.state.table
        self.readers[reader.led.state.table] = reader

    def leave(self, stream: str, reader: Reader) -> None:
        """Take no acks for a consumer any more."""
        assert reader.led is not None
        self.tables.pop(f"{stream}.{reader.name}".encode(), None)
        self.readers.pop(reader.led.state.table, None)


class Ack(NamedTuple):
    """One ack that asks for more."""

    kind: int
    delay_us: int = 0
    reason: str = ""
    pull: bytes | None = None  # payload of the pull request that follows it


class _Delay(msgspec.Struct):
    delay: int = 0  # ns


_delay = msgspec.json.Decoder(_Delay).decode


def parsed_ack(payload: bytes) -> Ack | None:
    """Return what the payload of an ack says; None: it says nothing."""
    if payload in (b"", b"+ACK", b"+OK"):
        return Ack(pending.ACK)
    if payload == b"+WPI":
        return Ack(pending.IN_PROGRESS)
    if payload.startswith(b"-NAK"):
        return Ack(pending.NAK, _parsed_delay(payload[4:].strip()))
    if payload.startswith(b"+TERM"):
        return Ack(pending.TERM, reason=payload[5:].strip().decode(errors="replace")[:1024])
    if payload.startswith(b"+NXT"):
        return Ack(pending.ACK, pull=payload[4:])
    return None


def _parsed_delay(text: bytes) -> int:
    """Return a delay in µs: of JSON, or as Go writes durations; what is none is a plain -NAK, as in nats-server."""
    if not text:
        return 0
    try:
        delay_ns = _delay(text).delay if text.startswith(b"{") else _go_ns(text.decode())
    except (msgspec.DecodeError, ValueError, RecursionError):
        return 0
    return min(max(0, delay_ns) // 1_000, DELAY_US_MAX)


def _go_ns(text: str) -> int:
    """Return a Go duration such as 1m30s in ns. ValueError."""
    if text == "0":
        return 0
    total, rest = 0.0, text
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        unit = next((one for one in ("ns", "us", "µs", "ms", "s", "m", "h") if rest[digits:].startswith(one)), None)
        if unit is None or not digits or digits > 24:
            raise ValueError(text)
        total += float(rest[:digits]) * _DURATION[unit]
        rest = rest[digits + len(unit) :]
    return int(min(total, 1e18))


class Acks:
    """Applies acks."""

    def __init__(
        self,
        gateway: Gateway,
        tables: AckTables,
        advisories: Advisories,
        removals: Removals,
        dead_letters: DeadLetters,
    ) -> None:
        self._gateway = gateway
        self._tables = tables
        self._advisories = advisories
        self._removals = removals
        self._dead_letters = dead_letters

    def take(
        self,
        group: MessageGroup,
        now: Now,
        stream_name: Callable[[Reader], str],
        next_pull: Callable[[Reader, bytes, bytes], None],
    ) -> list[Reader]:
        """Apply the acks of a read; return the consumers that changed. `next_pull` takes what follows +NXT."""
        others: list[int] = []
        if b"-NAK" in group.data:
            self._tell_refused(group, stream_name)
        changed = pending_acks.apply_acks(group, 0, len(group), self._tables.tables, now.elapsed_us, others)
        found: dict[Reader, None] = {}
        for table in changed:
            if (reader := self._tables.readers.get(table)) is not None:
                found[reader] = None
                self._note(reader, now, waits=False)
        for row in others:
            reader = self._take_one(group, row, now, stream_name, next_pull)
            if reader is not None:
                found[reader] = None
        for reader in found:
            if reader.led is not None and reader.led.state.table.takes_settled:
                self._removals.settled(reader, is_awaited=bool(reader.led.replies))
            if reader.config.sample_percent:
                self._tell_samples(reader, stream_name(reader))
        return list(found)

    @staticmethod
    def _note(reader: Reader, now: Now, *, waits: bool) -> None:
        led = reader.led
        assert led is not None
        led.writes.note(led, now.elapsed_us, waits=waits)

    def _tell_refused(self, group: MessageGroup, stream_name: Callable[[Reader], str]) -> None:
        """Tell of the plain -NAK of a read, before they are applied in compiled code, as far as the rate allows."""
        for row in range(len(group)):
            if not self._advisories.has_room:
                return
            if group.value(row) != b"-NAK" or group.reply(row) or group.early(row):
                continue  # others are told when they are taken
            parts = pending_acks.ack_parts(group.subject(row))
            table = None if parts is None else self._tables.tables.get(parts[0])
            if parts is None or table is None:
                continue
            _, deliveries, offset, sequence, token = parts
            reader = self._tables.readers.get(table)
            if reader is not None and table.check(pending.NAK, offset, sequence, token) == pending.APPLIED:
                self._advisories.refused(stream_name(reader), reader.name, offset, sequence, deliveries)

    def _tell_samples(self, reader: Reader, stream: str) -> None:
        """Tell the sampled acks of a consumer."""
        assert reader.led is not None
        samples = reader.led.state.table.samples
        for sequence, consumer_sequence, deliveries, took_us in samples:
            self._advisories.acked(stream, reader.name, sequence, consumer_sequence, deliveries, took_us)
        samples.clear()

    def _take_one(
        self,
        group: MessageGroup,
        row: int,
        now: Now,
        stream_name: Callable[[Reader], str],
        next_pull: Callable[[Reader, bytes, bytes], None],
    ) -> Reader | None:
        parts = pending_acks.ack_parts(group.subject(row))
        ack = parsed_ack(group.value(row) or b"")
        reply = group.reply(row) or group.early(row)
        if parts is None or ack is None:
            return None
        key, deliveries, offset, sequence, token = parts
        table = self._tables.tables.get(key)
        reader = None if table is None else self._tables.readers.get(table)
        if table is None or reader is None or (led := reader.led) is None:
            return None
        is_letter = ack.kind == pending.TERM and bool(reader.config.dead_letters)
        if is_letter and table.check(ack.kind, offset, sequence, token) == pending.APPLIED:
            if not table.has_ended(offset):  # the first word counts
                self._terminate(reader, led, Given(offset, deliveries, _terminated(ack.reason), reply or b""))
                self._advisories.terminated(stream_name(reader), reader.name, offset, sequence, deliveries, ack.reason)
            return reader
        result = table.settle(ack.kind, offset, sequence, token, ack.delay_us, now.elapsed_us)
        stream = stream_name(reader)
        if result == pending.APPLIED and ack.kind == pending.NAK:
            self._advisories.refused(stream, reader.name, offset, sequence, deliveries)
        elif result == pending.APPLIED and ack.kind == pending.TERM:
            self._advisories.terminated(stream, reader.name, offset, sequence, deliveries, ack.reason)
        if result == pending.UNKNOWN and reply is not None and ack.kind in (pending.ACK, pending.TERM):
            self._removals.settled_before(reader, offset)
        if result != pending.FORGED and reply is not None:
            if ack.pull is not None:
                next_pull(reader, reply, ack.pull)
            elif result == pending.LATE and led.state.config.is_ordered:
                block = status(503, "Message is in another hand")
                self._gateway.send(publish_command(reply, b"", block))
            else:
                led.replies.append(reply)
        has_waiter = bool(led.replies)
        self._note(reader, now, waits=has_waiter)
        return reader

    def _terminate(self, reader: Reader, led: LedConsumer, given: Given) -> None:
        """A message becomes a dead letter; its ack is answered once that is stored."""
        led.state.table.end(given.offset)
        self._dead_letters.give(reader, led, given)


def _terminated(reason: str) -> str:
    return f"{TERMINATED}: {reason}" if reason else TERMINATED
