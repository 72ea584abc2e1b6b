"""Rows of consumers with acks, as they are written since release 0.4: `python -m tests.compat.golden_consumers`.

A file that a release has written is never written anew.
"""

from __future__ import annotations

from array import array
from pathlib import Path

from penstock.consumers.config import ORDER_SUBJECT, AckConfig
from penstock.consumers.state import ConsumerState, Row
from penstock.hot import pending
from penstock.hot.deliveries import Cursor, DecodedRows, Filter, Pull, Texts

GOLDEN = Path(__file__).parent / "golden"
ID = b"\x00\x01\x02/\xff456"
MS = 1_000

PLAIN = AckConfig(ack_wait_us=30_000_500, max_deliver=3, backoff_us=(1_000, 2_000_000), sample_percent=10)
ORDERED = AckConfig(order=ORDER_SUBJECT, max_ack_pending=1_000, tells_terminated=True, has_priority=True)
ALL = AckConfig(acks_all=True)


def _settle(state: ConsumerState, kind: int, offset: int, sequence: int, now_us: int, delay_us: int = 0) -> None:
    token = state.table.token(offset + 1, sequence)
    assert state.table.settle(kind, offset, sequence, token, delay_us, now_us) == pending.APPLIED


def _deliver_again(state: ConsumerState, offset: int, now_us: int) -> None:
    text = Texts(array("i", (0, 1)).tobytes(), b"s")
    row = DecodedRows(offset, array("q", (offset,)).tobytes(), array("q", (1,)).tobytes(), text, text, None)
    cursor = Cursor(Filter([]), b"", 0)
    cursor.attach(state.table, b"$JS.ACK.s.c.")
    cursor.pulls.append(Pull(b"inbox", b"", 1, 0))
    cursor.room = 1
    out = bytearray()
    cursor.fill_again(row, out, 1_000, now_us)
    assert out


def plain() -> tuple[ConsumerState, list[Row]]:
    """A consumer with one entry of each kind, whose rows have every operation but those of the other two."""
    state = ConsumerState.new(ID, PLAIN, b'{"name":"worker"}', 300, 0)
    found = state.first_rows()
    for offset in (300, 301, 302, 303, 310, 70_000):
        state.table.deliver(offset, 0, 2 * MS)
    found += state.take_rows(2 * MS)
    _settle(state, pending.ACK, 301, 2, 3 * MS)
    _settle(state, pending.NAK, 302, 3, 4 * MS)
    _settle(state, pending.NAK, 303, 4, 4 * MS, 5_000 * MS)
    _settle(state, pending.IN_PROGRESS, 310, 5, 5 * MS)
    _settle(state, pending.TERM, 70_000, 6, 5 * MS)
    state.table.pass_to(200_000)
    found += state.take_rows(5 * MS)
    state.give_up(300)
    for offset in range(200_000, 200_040):
        state.table.deliver(offset, 0, 6 * MS)
    state.remove_range(200_010, 200_030)
    _deliver_again(state, 302, 7 * MS)
    found += state.take_rows(7 * MS)
    return state, found


def ordered() -> tuple[ConsumerState, list[Row]]:
    """A consumer with an order by key, of which one is parked, and the turn of another one has come."""
    state = ConsumerState.new(ID, ORDERED, b"", 0, 0)
    found = state.first_rows()
    for offset, key in ((0, 7), (1, 8), (5, 0)):
        state.table.deliver(offset, key, MS)
    for offset, key in ((6, 7), (7, 8), (8, 8)):
        state.table.park(offset, key)
    found += state.take_rows(MS)
    _settle(state, pending.ACK, 0, 1, 2 * MS)
    found += state.take_rows(2 * MS)
    return state, found


def acks_all() -> tuple[ConsumerState, list[Row]]:
    """A consumer whose acks are for all before, which began anew once."""
    state = ConsumerState.new(ID, ALL, b"", 9, 0)
    found = state.first_rows()
    state.reset(4)
    for offset in range(4, 9):
        state.table.deliver(offset, 0, 8 * MS)
    _settle(state, pending.ACK, 6, 3, 9 * MS)
    found += state.take_rows(9 * MS)
    return state, found


CONSUMERS = {"plain": plain, "ordered": ordered, "all": acks_all}


def golden_bytes() -> dict[str, bytes]:
    """Return the content of each file: keys and values in hex, a line each, and the snapshot at the end."""
    made = {}
    for name, consumer in CONSUMERS.items():
        state, found = consumer()
        state.rows_lost()
        found += state.take_rows(0)
        lines = [b"%b %b\n" % (key.hex().encode(), (value or b"").hex().encode()) for key, value in found]
        made[f"consumer-{name}.txt"] = b"".join(lines)
    return made


def read_rows(name: str) -> list[tuple[bytes, bytes]]:
    """Return the rows of a file."""
    lines = (GOLDEN / f"consumer-{name}.txt").read_text().splitlines()
    return [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in (line.split(" ") for line in lines)]


if __name__ == "__main__":
    for file, content in golden_bytes().items():
        if not (GOLDEN / file).exists():
            (GOLDEN / file).write_bytes(content)
