"""Frames of a consumer with acks: count, sequence and token as told, and each delivery in the table."""

from __future__ import annotations

from array import array

import pytest

from penstock.hot import deliveries as hot
from penstock.hot import pending
from tests.unit.hot.test_deliveries import cursor, filled, rows, texts
from tests.unit.hot.test_pending import settle, table

MS = 1_000


def attached(one: pending.PendingTable, *patterns: bytes, messages: int = 1_000) -> hot.Cursor:
    made = cursor(*patterns, messages=messages)
    made.attach(one, b"$JS.ACK.s.c.")
    return made


def again(one: hot.Cursor, source: hot.DecodedRows, now_us: int = 5) -> tuple[int, bytes]:
    out = bytearray()
    return one.fill_again(source, out, 2**30, now_us), bytes(out)


def offsets(out: bytes) -> list[int]:
    return [int(line.split(b".")[5]) - 1 for line in out.split(b"\r\n") if line.startswith(b"LMSG")]


def test_a_frame_tells_count_sequence_and_token() -> None:
    one = table()
    made = attached(one)
    source = rows([b"s.a", b"s.b"], [b"one", b""])
    _, out = filled(made, source)
    tokens = one.token(1, 1), one.token(2, 2)
    assert out == (
        b"LMSG inbox $JS.ACK.s.c.1.1.1.1700000000000000%03d.0@s.a 3\r\none\r\n"
        b"LMSG inbox $JS.ACK.s.c.1.2.2.1700000000000001%03d.0@s.b 0\r\n\r\n" % tokens
    )
    assert settle(one, pending.NAK, 0, 1) == pending.APPLIED
    stop, out = again(made, source)
    assert stop == hot.TOOK_ALL
    assert out == b"LMSG inbox $JS.ACK.s.c.2.1.3.1700000000000000%03d.0@s.a 3\r\none\r\n" % one.token(1, 3)
    assert one.entry(0) == ("hand", 2, 3, 1, 30_001 * MS)
    assert (made.next_offset, made.last_offset, made.delivered) == (2, 1, 3)


def test_it_stops_at_max_ack_pending_and_goes_on() -> None:
    one = table(pending_max=2)
    made = attached(one)
    source = rows([b"s"] * 4)
    stop, out = filled(made, source)
    assert (stop, offsets(out), made.next_offset) == (hot.PENDING_FULL, [0, 1], 2)
    assert settle(one, pending.ACK, 1, 2) == pending.APPLIED
    stop, out = filled(made, source)
    assert (stop, offsets(out)) == (hot.PENDING_FULL, [2])


def test_messages_of_a_key_are_in_one_hand() -> None:
    one = table(order=4)
    made = attached(one)
    source = rows([b"s.a", b"s.b", b"s.a", b"s.a", b"s"])
    made.pending = 5
    _, out = filled(made, source)
    assert offsets(out) == [0, 1, 4]
    assert (one.parked, made.pending + one.parked) == (2, 2)
    assert b".0@" not in out
    settle(one, pending.ACK, 0, 1)
    _, out = again(made, source)
    assert offsets(out) == [2]
    assert b".1@s.a" in out
    one.remove_range(2, 3)
    assert offsets(again(made, source)[1]) == [3]


def keyed(keys: list[bytes]) -> hot.DecodedRows:
    """Four messages."""
    times, subjects, values = array("q", [1] * 4).tobytes(), texts([b"s"] * 4), texts([b"v"] * 4)
    return hot.DecodedRows(0, array("q", range(4)).tobytes(), times, subjects, values, None, texts(keys))


def test_an_order_by_key_needs_keys() -> None:
    assert offsets(filled(attached(table(order=1)), keyed([b"k", b"", b"k", b""]))[1]) == [0, 1, 3]
    assert rows([b"s"]).key_hash(0, 1) == 0
    with pytest.raises(ValueError, match="3 keys for 4 rows"):
        keyed([b"k"] * 3)


def test_a_message_whose_turn_comes_does_not_hold_back_an_expired_one() -> None:
    """Neither would be delivered ever again: at max_ack_pending only the expired one lowers the count."""
    one = table(order=2, pending_max=2)
    made = attached(one)
    source = rows([b"s.a", b"s.a", b"s.b", b"s.c"])
    filled(made, source)
    settle(one, pending.ACK, 0, 1)
    assert offsets(filled(made, source)[1]) == [3]
    one.expire(60_000 * MS)
    stop, out = again(made, source)
    assert (stop, offsets(out)) == (hot.PENDING_FULL, [2, 3])
    settle(one, pending.ACK, 2, 4)
    assert offsets(again(made, source)[1]) == [1]


def test_what_is_gone_is_not_delivered_again() -> None:
    one = table()
    made = attached(one)
    filled(made, rows([b"s"] * 4))
    for offset in range(4):
        settle(one, pending.NAK, offset, offset + 1)
    left = rows([b"s"] * 3, offsets=[0, 2, 3])
    left.skip(b"\x00\x01\x00")
    assert offsets(again(made, left)[1]) == [0, 3]
    assert one.count == 2
    with pytest.raises(ValueError, match="without acks"):
        again(cursor(), left)


def test_without_a_request_nothing_is_parked() -> None:
    one = table(order=2)
    made = attached(one, messages=1)
    source = rows([b"s.a", b"s.a"])
    assert offsets(filled(made, source)[1]) == [0]
    assert one.parked == 0
    assert made.next_offset == 1


def test_what_is_not_delivered_any_more_does_not_hold_back_a_message_whose_turn_comes() -> None:
    """A work queue keeps what reached max_deliver: it counts to no limit, or the message would never be delivered."""
    one = table(order=2, pending_max=2, max_deliver=1)
    made = attached(one)
    source = rows([b"s.a", b"s.a", b"s.b", b"s.c", b"s.d"])
    filled(made, source)
    assert one.expire(60_000 * MS) == [0, 2]
    assert offsets(filled(made, source)[1]) == [3, 4]
    assert one.expire(120_000 * MS) == [3, 4]
    settle(one, pending.ACK, 0, 1)
    assert (one.ready, one.ended, one.has_no_room()) == (1, 3, False)
    assert offsets(again(made, source)[1]) == [1]
