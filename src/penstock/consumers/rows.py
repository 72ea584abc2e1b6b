"""Rows of a log of consumers: keys and values (ADR 107).

Rules: the last row of a key counts. Whatever compaction has removed of the others, the rows fold to the same state: a
change has a slot of its own until a snapshot holds what is in it. Every number is checked when a row is read. An id is
random, so it is also the secret of the tokens in reply subjects.

    key     v1/ID/c         the consumer's name and config: bytes of the gateway
            v1/ID/s         a snapshot
            v1/ID/SLOT      a change; the ID is 8 bytes, and SLOT two hex digits

    snapshot   version, config, and as varints: number of the next change, generation, position, consumer sequence of
               the last delivery, ms of the clock; then the entries (see `hot.pending_rows`)
    change     version, varint: its number; then operations (see `hot.change_log`)
    config     flags, and as varints: ack_wait µs, number of backoffs, each in µs, max_deliver, max_ack_pending, order,
               sample_percent
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from penstock.base.errors import CorruptionError
from penstock.consumers import config as limits
from penstock.consumers.config import AckConfig
from penstock.hot import pending_rows
from penstock.hot.pending import PendingTable
from penstock.live.row_set import Reader, varint

ID_BYTES = 8
TOLD_BYTES_MAX = 256 * 1024
"""Of a consumer's name and config as the gateway writes them."""
SLOTS = 256
CHANGES_MAX = 128
"""Changes between two snapshots at most: half of the slots, so that none is used again too early."""
ENTRIES_MAX = 2 * (limits.ACK_PENDING_MAX + limits.PARKED_MAX)
"""Of a table that is read: a limit may have been lowered since."""

SHARED_CONFIGS_MAX = 1_024
"""Configs that are kept to be shared; the consumers of one whose config was dropped go on with theirs."""

_VERSION = 1
_PREFIX = b"v1/"
_KEY_BYTES = len(_PREFIX) + ID_BYTES + 1
_NUMBER_MAX = 2**60
_CLOCK_MS_MAX = 2**50
_ALL, _TELLS, _PRIORITY = 1, 2, 4  # flags of a config

TOLD, SNAPSHOT, CHANGE = "told", "snapshot", "change"
"""Kinds of keys."""


class Key(NamedTuple):
    """The parts of a key: the consumer, the kind of its row, and of a change the slot."""

    consumer_id: bytes
    kind: str
    slot: int = 0


def told_key(consumer_id: bytes) -> bytes:
    """Key of name and config."""
    return b"%b%b/c" % (_PREFIX, consumer_id)


def snapshot_key(consumer_id: bytes) -> bytes:
    """Key of the snapshot."""
    return b"%b%b/s" % (_PREFIX, consumer_id)


def change_key(consumer_id: bytes, number: int) -> bytes:
    """Key of a change."""
    return b"%b%b/%02x" % (_PREFIX, consumer_id, number % SLOTS)


def keys_of(consumer_id: bytes, number: int) -> list[bytes]:
    """Return all keys of a consumer whose next change has that number."""
    changes = [change_key(consumer_id, slot) for slot in range(min(number, SLOTS))]
    return [told_key(consumer_id), snapshot_key(consumer_id), *changes]


def parse_key(key: bytes) -> Key:
    """Return the parts of a key. CorruptionError: it is none."""
    consumer_id, rest = key[len(_PREFIX) : _KEY_BYTES - 1], key[_KEY_BYTES:]
    if key.startswith(_PREFIX) and key[_KEY_BYTES - 1 : _KEY_BYTES] == b"/":
        if rest == b"c":
            return Key(consumer_id, TOLD)
        if rest == b"s":
            return Key(consumer_id, SNAPSHOT)
        if len(rest) == 2 and not rest.translate(None, b"0123456789abcdef"):
            return Key(consumer_id, CHANGE, int(rest, 16))
    raise CorruptionError("", 0, "a key of a consumer's row", repr(key[:64]))


def encode_config(config: AckConfig) -> bytes:
    """Return the bytes of a config."""
    flags = config.acks_all * _ALL | config.tells_terminated * _TELLS | config.has_priority * _PRIORITY
    numbers = (config.ack_wait_us, len(config.backoff_us), *config.backoff_us, config.max_deliver)
    more = (config.max_ack_pending, config.order, config.sample_percent)
    return bytes((flags,)) + b"".join(map(varint, numbers + more))


@lru_cache(SHARED_CONFIGS_MAX)
def shared_config(config: AckConfig) -> tuple[AckConfig, bytes]:
    """Return an equal config and its bytes: the same objects for all consumers that have it, for there are many."""
    return config, encode_config(config)


def _read_config(reader: Reader) -> AckConfig:
    flags = reader.byte()
    if flags > _ALL | _TELLS | _PRIORITY:
        raise reader.wrong("flags of a config", str(flags))
    wait_us = reader.number(limits.WAIT_US_MAX)
    backoff_us = tuple([reader.number(limits.WAIT_US_MAX) for _ in range(reader.number(limits.BACKOFFS_MAX))])
    try:
        return AckConfig(
            ack_wait_us=wait_us,
            backoff_us=backoff_us,
            max_deliver=reader.number(limits.DELIVERIES_MAX),
            max_ack_pending=min(reader.number(limits.DELIVERIES_MAX), limits.ACK_PENDING_MAX),
            acks_all=bool(flags & _ALL),
            order=reader.number(limits.ORDER_TOKEN_FIRST + limits.TOKENS_MAX),
            sample_percent=reader.number(100),
            tells_terminated=bool(flags & _TELLS),
            has_priority=bool(flags & _PRIORITY),
        )
    except ValueError as error:
        raise reader.wrong("a config", str(error)) from None


def configure(table: PendingTable, config: AckConfig) -> None:
    """Give a table its config."""
    table.configure(
        config.backoff_us or (config.ack_wait_us,),
        max_deliver=config.max_deliver,
        pending_max=config.max_ack_pending,
        parked_max=limits.PARKED_MAX,
        order=config.order,
        acks_all=config.acks_all,
        sample_percent=config.sample_percent,
        tells_terminated=config.tells_terminated,
    )


def encode_change(number: int, change: bytes) -> bytes:
    """Return the value of a change."""
    return bytes((_VERSION,)) + varint(number) + change


def encode_snapshot(config: bytes, next_change: int, table: PendingTable) -> bytes:
    """Return the value of a snapshot; `config`: from `encode_config`."""
    numbers = (next_change, table.generation, table.next_offset, table.delivered, table.clock_ms)
    head = bytes((_VERSION,)) + config + b"".join(map(varint, numbers))
    return head + pending_rows.encode_entries(table)


class Snapshot(NamedTuple):
    """A snapshot but for its entries, which begin at byte `entries_at` of `value`."""

    config: AckConfig
    next_change: int
    generation: int
    next_offset: int
    delivered: int
    clock_ms: int
    value: bytes
    entries_at: int

    def table(self, consumer_id: bytes, now_us: int, entries_max: int) -> PendingTable:
        """Return the table as the snapshot says; `now_us`: when its clock goes on. CorruptionError: it is malformed."""
        table = PendingTable(consumer_id, self.next_offset, now_us, self.clock_ms)
        configure(table, self.config)
        table.keep_generation(self.generation)
        table.delivered = self.delivered
        try:
            pending_rows.decode_entries(table, self.value, self.entries_at, entries_max)
        except ValueError as error:
            raise CorruptionError("", 0, "the pending messages of a consumer", str(error)) from None
        return table


def decode_snapshot(value: bytes) -> Snapshot:
    """Return the parts of a snapshot. CorruptionError: it is malformed."""
    reader = Reader(value, "a snapshot of a consumer")
    _version(reader)
    config = _read_config(reader)
    return Snapshot(
        config,
        next_change=reader.number(_NUMBER_MAX),
        generation=reader.number(_NUMBER_MAX),
        next_offset=reader.number(_NUMBER_MAX),
        delivered=reader.number(_NUMBER_MAX),
        clock_ms=reader.number(_CLOCK_MS_MAX),
        value=value,
        entries_at=reader.position,
    )


def decode_change(value: bytes) -> tuple[int, int]:
    """Return the number of a change, and where its operations begin. CorruptionError: it is malformed."""
    reader = Reader(value, "a change of a consumer")
    _version(reader)
    return reader.number(_NUMBER_MAX), reader.position


def apply_change(table: PendingTable, value: bytes, at: int, entries_max: int) -> None:
    """Apply the operations of a change. CorruptionError: they are malformed, or do not fit the table."""
    try:
        pending_rows.apply_change(table, value, at, entries_max)
    except ValueError as error:
        raise CorruptionError("", 0, "a change of a consumer that fits its state", str(error)) from None


def _version(reader: Reader) -> None:
    version = reader.byte()
    if version != _VERSION:
        raise reader.wrong(f"version {_VERSION} of a consumer's row", f"version {version}")
