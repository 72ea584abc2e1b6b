"""Consumers with acks: what a leader reads from the log of consumers, and acks of clients."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from penstock.base.errors import CorruptionError
from penstock.consumers import rows
from penstock.consumers.config import ORDER_SUBJECT, AckConfig
from penstock.consumers.fold import stored_consumers
from penstock.consumers.state import ConsumerState
from penstock.hot import pending, pending_rows
from tests.fuzz.target import Cover, Modules, Target

_ID = b"consumer"
_ENTRIES_MAX = 400
_POSITION = 10_000
_PARTS = b"|"
_NAME = b"s.c"


def _table(module: Any, flags: int) -> Any:
    table = module.PendingTable(_ID, _POSITION, 0, 50)
    table.configure(
        (10_000, 30_000),
        max_deliver=3 if flags & 4 else 0,
        pending_max=100,
        parked_max=50,
        order=flags & 1,
        acks_all=flags & 3 == 2,
        sample_percent=50,
        tells_terminated=bool(flags & 8),
    )
    table.delivered = 5_000
    return table


def _shown(table: Any) -> tuple[object, ...]:
    counts = table.count, table.ack_pending, table.parked, table.ready, table.redelivered
    entries = table.entries(0, _ENTRIES_MAX)
    assert len(entries) == table.count == table.ack_pending + table.parked
    assert sum(entry[1] == "ready" for entry in entries) == table.ready
    assert [entry[0] for entry in entries] == sorted({entry[0] for entry in entries})
    assert all(entry[0] < table.next_offset and entry[3] <= table.delivered for entry in entries)
    return counts, tuple(entries), table.floor_offset(), table.floor_sequence(), table.next_offset, table.clock_ms


def pending_table(modules: Modules, data: bytes) -> object:
    """Entries of a snapshot, and a change: refused with a place, or a table that holds together."""
    if len(data) < 2:
        return "empty"
    module, bytes_of = modules("pending"), modules("pending_rows")
    table = _table(module, data[0])
    entries, change = data[2 : 2 + data[1]], data[2 + data[1] :]
    try:
        bytes_of.decode_entries(table, entries, 0, _ENTRIES_MAX)
        first = _shown(table)
        again = _table(module, data[0])
        bytes_of.decode_entries(again, bytes_of.encode_entries(table), 0, _ENTRIES_MAX)
        assert _shown(again) == first
        bytes_of.apply_change(table, change, 0, _ENTRIES_MAX)
    except ValueError as error:
        return f"ValueError {error}"
    changed = _shown(table)
    return changed, tuple(table.expire(40_000_000)), _shown(table)


def _worked(chance: Random, flags: int) -> tuple[bytes, bytes]:
    """The entries of a table, and a change of it."""
    table = _table(pending, flags)
    entries = b""
    for round_ in range(2):
        for _ in range(int(chance.random() * 12)):
            now_us = 60_000 + int(chance.random() * 20_000)
            key = int(chance.random() * 3)
            offset = table.next_offset + int(chance.random() * 3)
            if flags & 1 and table.is_busy(key):
                table.park(offset, key)
            else:
                table.deliver(offset, key * (flags & 1), now_us)
            found = table.entries(0, 99)
            one = found[int(chance.random() * len(found))]
            token = table.token(one[0] + 1, one[3]) if one[3] else 0
            if chance.random() < 0.5:
                table.settle(int(chance.random() * 4), one[0], one[3], token, int(chance.random() * 3) * 900, now_us)
            if chance.random() < 0.05:
                table.remove_range(one[0], one[0] + 5)
        if round_ == 0:
            # As of the position and the deliveries that a table begins with.
            begun = _table(pending, flags)
            entries = pending_rows.encode_entries(begun)
            table = begun
    return entries, table.changes.take(table.next_offset)


def made_table(chance: Random) -> bytes:
    """A change of an empty table, or entries that are sound or nearly."""
    flags = int(chance.random() * 8)
    entries, change = _worked(chance, flags)
    if chance.random() < 0.7:
        offset = 0
        entries = b""
        for _ in range(int(chance.random() * 4)):
            gap = int(chance.random() * 100)
            entries += bytes((gap, chance.choice((0x69, 0x79, 0x39, 0x59, 0x6A, 0x7B, 0x64, 0x61, 0x7D))))
            entries += bytes((int(chance.random() * 128),)) * int(chance.random() * 3)
            entries += bytes(4) * (flags & 1)
            offset += gap
    return bytes((flags, len(entries))) + entries + change


def ack_read(modules: Modules, data: bytes) -> object:
    """A read of acks: lines of a subject, a payload and a reply subject."""
    table = _table(modules("pending"), data[0] if data else 0)
    for offset in range(_POSITION, _POSITION + 8):
        table.deliver(offset, 0, 60_000)
    lines = [[*line.split(_PARTS), b"", b""][:3] for line in data[1:].split(b"\n")]
    group = modules("message_group").MessageGroup.of(
        [line[0] for line in lines], [line[1] for line in lines], replies=[line[2] or None for line in lines]
    )
    others: list[int] = []
    acks = modules("pending_acks")
    touched = acks.apply_acks(group, 0, len(lines), {_NAME: table}, 61_000, others)
    parts = tuple(acks.ack_parts(line[0]) for line in lines)
    counts = table.acked, table.late, table.unknown, table.forged
    assert sum(counts) + len(others) == len(lines)
    assert len(touched) == (table.acked > 0)
    return counts, tuple(others), parts, tuple(table.samples), _shown(table), table.changes.take(table.next_offset)


def made_acks(chance: Random) -> bytes:
    """Acks of deliveries, or nearly."""
    table = _table(pending, 0)
    payloads = (b"", b"+ACK", b"-NAK", b"+WPI", b"+TERM", b"+NXT 5", b'-NAK {"delay":1000}', b"+ACKK")
    lines = []
    for _ in range(1 + int(chance.random() * 6)):
        number = int(chance.random() * 9)
        sequence, delivered = _POSITION + 1 + number, 5_001 + number
        token = table.token(sequence, delivered) if chance.random() < 0.9 else 7
        ns = 1_700_000_000_000_000_000 + token
        subject = b"$JS.ACK.%b.1.%d.%d.%d.0" % (chance.choice((_NAME, _NAME, b"s.d")), sequence, delivered, ns)
        lines.append(subject + _PARTS + chance.choice(payloads) + chance.choice((b"", b"", b"|_INBOX.a")))
    return bytes((int(chance.random() * 16),)) + b"\n".join(lines)


def consumer_rows(modules: Modules, data: bytes) -> object:
    """Rows of a consumer, each with a byte of its slot and two of its length: refused, or a state."""
    found: dict[bytes, bytes] = {rows.told_key(_ID): b"{}"}
    at = 0
    while at + 3 <= len(data):
        size = int.from_bytes(data[at + 1 : at + 3], "little")
        value = data[at + 3 : at + 3 + size]
        key = rows.change_key(_ID, data[at] - 1) if data[at] else rows.snapshot_key(_ID)
        found[key] = value
        at += 3 + size
    try:
        state = stored_consumers(found)[_ID].take_over(1_000_000, 2**40, entries_max=_ENTRIES_MAX)
    except CorruptionError as error:
        return f"CorruptionError {str(error.expected)[:40]}"
    table = state.table
    state.rows_lost()
    again = stored_consumers({rows.told_key(_ID): b"{}", **_values(state)})[_ID].take_over(1_000_000, 2**40)
    assert again.table.entries(0, _ENTRIES_MAX) == table.entries(0, _ENTRIES_MAX)
    return state.config.order, table.count, table.delivered


def _values(state: ConsumerState) -> Mapping[bytes, bytes]:
    return {key: value for key, value in state.take_rows(1_000_000) if value is not None}


def made_rows(chance: Random) -> bytes:
    """The snapshot and the changes of a consumer."""
    config = AckConfig(
        max_deliver=int(chance.random() * 3),
        order=ORDER_SUBJECT if chance.random() < 0.3 else 0,
        backoff_us=(1_000,) * int(chance.random() * 3),
    )
    state = ConsumerState.new(_ID, config, b"{}", 0, 0)
    found = state.first_rows()[1:]
    for number in range(int(chance.random() * 4)):
        for _ in range(1 + int(chance.random() * 4)):
            state.table.deliver(state.table.next_offset + number, 0, number * 2_500)
        state.give_up(number)
        found += state.take_rows(number * 2_500)
    out = b""
    for key, value in found:
        slot = 0 if key == rows.snapshot_key(_ID) else int(key[-2:], 16) + 1
        out += bytes((slot,)) + len(value or b"").to_bytes(2, "little") + (value or b"")
    return out


TARGETS: tuple[Target, ...] = (
    Target(
        "pending_table",
        pending_table,
        made_table,
        (
            Cover("penstock.hot.pending_rows", ("decode_entries", "_is_state", "Numbers")),
            Cover("penstock.hot.pending_rows", ("apply_change", "_enter", "_change")),
        ),
        compares=True,
    ),
    Target(
        "ack_read",
        ack_read,
        made_acks,
        (Cover("penstock.hot.pending_acks", ("AckSubject", "ack_parts", "apply_acks", "_kind")),),
        pieces=(b"$JS.ACK.", b"+ACK", b"-NAK", b"+TERM", b"+WPI", b"\n", b"|"),
        compares=True,
    ),
    Target(
        "consumer_rows",
        consumer_rows,
        made_rows,
        (Cover("penstock.consumers.rows", ("decode_snapshot", "_read_config", "decode_change", "_version")),),
    ),
)
