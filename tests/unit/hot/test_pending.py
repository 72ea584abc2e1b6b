"""The table of pending messages, and acks of a read."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.hot import pending as hot
from penstock.hot import pending_acks, pending_rows
from penstock.hot.message_group import MessageGroup

ID = b"consumer"
MS = 1_000
NAME = b"orders.worker"
MANY = 60_000


def table(**config: Any) -> hot.PendingTable:
    made = hot.PendingTable(ID, 0, 0)
    waits = config.pop("waits_us", (30_000 * MS,))
    given: dict[str, Any] = {
        "max_deliver": 0,
        "pending_max": 1_000_000,
        "parked_max": 10,
        "order": 0,
        "acks_all": False,
        "sample_percent": 0,
        "tells_terminated": False,
    }
    made.configure(waits, **{**given, **config})
    return made


def subject(one: hot.PendingTable, offset: int, sequence: int, *, name: bytes = NAME) -> bytes:
    token = one.token(offset + 1, sequence)
    return b"$JS.ACK.%b.1.%d.%d.%d.7" % (name, offset + 1, sequence, 1_700_000_000_000_000_000 + token)


def settle(one: hot.PendingTable, kind: int, offset: int, sequence: int, delay_us: int = 0, now_us: int = 0) -> int:
    return one.settle(kind, offset, sequence, one.token(offset + 1, sequence), delay_us, now_us)


def test_acks_of_a_read_are_applied_and_the_others_are_named() -> None:
    one = table(tells_terminated=True)
    for offset in range(9):
        one.deliver(offset, 0, 0)
    group = MessageGroup.of(
        [
            *(subject(one, offset, offset + 1) for offset in range(8)),
            subject(one, 8, 9, name=b"orders.other"),
            b"$JS.ACK.orders.worker.1.9.9",
            b"orders.eu",
        ],
        [b"+ACK", b"", None, b"-NAK", b"-NAK 1s", b"+WPI", b"+TERM", b"+NXT 5", b"+ACK", b"+ACK", b"+ACK"],
        replies=[*[None] * 2, b"_INBOX.a", *[None] * 8],
    )
    others: list[int] = []
    assert pending_acks.apply_acks(group, 0, 11, {NAME: one}, 5_000, others) == [one]
    assert others == [2, 4, 6, 7, 8, 9, 10]
    assert [found[0] for found in one.entries(0, 99)] == [2, 3, 4, 5, 6, 7, 8]
    assert one.ready_offsets(0, 9) == [3]
    assert one.entry(5) == ("hand", 1, 6, 6, 30_005 * MS)
    assert (one.acked, one.late, one.unknown, one.forged) == (4, 0, 0, 0)


def test_tables_of_a_read_that_changed_are_told_once() -> None:
    tables = {b"s.a": table(), b"s.b": table(), b"s.c": table()}
    for one in tables.values():
        one.deliver(0, 0, 0)
        one.deliver(1, 0, 0)
    names = [b"s.b", b"s.a", b"s.b", b"s.c"]
    places = [(0, 1), (0, 1), (1, 2), (1, 2)]
    subjects = [subject(tables[name], *place, name=name) for name, place in zip(names, places, strict=True)]
    group = MessageGroup.of([*subjects, b"$JS.ACK.s.c.1.1.1.5.0"], [b"+ACK"] * 5)
    assert pending_acks.apply_acks(group, 0, 3, tables, 0, []) == [tables[b"s.b"], tables[b"s.a"]]
    assert pending_acks.apply_acks(group, 0, 3, tables, 0, []) == []
    assert (tables[b"s.b"].unknown, tables[b"s.a"].unknown) == (2, 1)
    assert tables[b"s.c"].token(1, 1) != 5
    assert pending_acks.apply_acks(group, 4, 5, tables, 0, []) == []
    assert tables[b"s.c"].forged == 1
    with pytest.raises(IndexError):
        pending_acks.apply_acks(group, 0, 6, tables, 0, [])


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"$JS.ACK.",
        b"$JS.ACK.s",
        b"$JS.ACK.s.c.1.1.1.5",
        b"$JS.ACK..c.1.1.1.5.0",
        b"$JS.ACK.s..1.1.1.5.0",
        b"$JS.ACK.s.c.1.0.1.5.0",
        b"$JS.ACK.s.c.1.1.x.5.0",
        b"$JS.ACK.s.c.1.1.1..0",
        b"$JS.ACK.s.c.1.1.1.5.0.9",
        b"$JS.ACK.domain.hash.s.c.1.1.1.5.0",
        b"$JS.ACK.s.c.1.1234567890123456789.1.5.0",
        b"$JS.ACK.s.c.1.1.1.123456789012345678901.0",
    ],
)
def test_what_is_no_ack_has_no_parts(wrong: bytes) -> None:
    assert pending_acks.ack_parts(wrong) is None


def test_parts_of_an_ack() -> None:
    assert pending_acks.ack_parts(b"$JS.ACK.s.c.3.42.57.1700000000000001234.0") == (b"s.c", 3, 41, 57, 234)
    assert pending_acks.ack_parts(b"$JS.ACK.s.c.3.42.57.7.0") == (b"s.c", 3, 41, 57, 7)


def test_those_in_hand_take_40_bytes_each_and_leave_no_memory_behind() -> None:
    one = table()
    for offset in range(MANY):
        one.deliver(2 * offset, 0, offset)
    assert one.size_bytes() <= 40 * MANY
    assert one.remove_range(0, 2 * (MANY - 1)) == MANY - 1
    assert one.entry(2 * (MANY - 1)) is not None
    assert (one.count, one.ack_pending, one.floor_offset()) == (1, 1, 2 * (MANY - 1))
    assert one.floor_sequence() == MANY - 1
    assert one.size_bytes() < 10_000


def test_in_any_order_of_acks_the_table_stays_small() -> None:
    one, chance = table(), Random(7)
    hand: list[tuple[int, int]] = []
    for offset in range(20_000):
        one.deliver(offset, 0, 0)
        hand.append((offset, one.delivered))
        if len(hand) == 500:
            assert settle(one, hot.ACK, *hand.pop(int(chance.random() * 500))) == hot.APPLIED
    assert sorted(offset for offset, _ in hand) == [found[0] for found in one.entries(0, 10**6)]
    assert one.size_bytes() < 500 * 40 * 4
    assert pending_rows.encode_entries(one)


def test_what_is_due_is_found_among_many() -> None:
    one = table(waits_us=(100 * MS, 5 * MS))
    for offset in range(5_000):
        one.deliver(offset, 0, offset * MS)
    assert one.next_due_us() == 100 * MS
    assert one.expire(99 * MS) == []
    assert one.ready == 0
    assert one.expire(100 * MS) == []
    assert one.ready_offsets(0, 9) == [0]
    assert one.next_due_us() == 101 * MS
    one.expire(1_500 * MS)
    assert one.ready_offsets(1_000, 500) == list(range(1_000, 1_401))
    assert one.next_due_us() == 1_501 * MS


def test_what_has_reached_max_deliver_is_told_once_and_stays_until_it_is_given_up() -> None:
    one = table(waits_us=(10 * MS,), max_deliver=1)
    one.deliver(4, 0, 0)
    assert one.expire(10 * MS) == [4]
    assert one.expire(99 * MS) == []
    assert one.entry(4) == ("ended", 1, 1, 1, hot.NEVER)
    assert settle(one, hot.NAK, 4, 1) == hot.LATE
    assert one.offsets_in(hot.ENDED, 9) == [4]
    assert one.give_up(4)
    assert not one.give_up(4)
    assert (one.count, one.ack_pending, one.floor_sequence()) == (0, 0, 1)


def test_a_nak_of_the_last_delivery_tells_max_deliver_at_once() -> None:
    one = table(max_deliver=1)
    one.deliver(0, 0, 0)
    assert settle(one, hot.NAK, 0, 1) == hot.APPLIED
    assert one.ready == 0
    assert one.expire(0) == [0]


def test_each_delivery_waits_as_its_backoff_says() -> None:
    one = table(waits_us=(10 * MS, 50 * MS))
    one.deliver(0, 0, 0)
    assert settle(one, hot.NAK, 0, 1, hot.BY_BACKOFF, 5 * MS) == hot.APPLIED
    assert one.entry(0) == ("waits", 1, 1, 1, 15 * MS)
    one.expire(15 * MS)
    assert one.ready == 1


def test_a_delay_of_ages_is_bounded() -> None:
    one = table()
    one.deliver(0, 0, 0)
    assert settle(one, hot.NAK, 0, 1, 2**62, MS) == hot.APPLIED
    assert one.entry(0) == ("waits", 1, 1, 1, (2**45 + 1) * MS)


def test_sampled_acks_are_told() -> None:
    one = table(sample_percent=50)
    for offset in range(4):
        one.deliver(offset, 0, 0)
        settle(one, hot.ACK, offset, offset + 1, now_us=7 * MS)
    assert one.samples == [(2, 2, 1, 7_000), (4, 4, 1, 7_000)]


def test_an_order_cannot_change_while_messages_are_pending() -> None:
    one = table()
    one.deliver(0, 0, 0)
    config: dict[str, Any] = {"pending_max": 1, "parked_max": 1, "acks_all": False, "sample_percent": 0}
    with pytest.raises(ValueError, match="order cannot be changed"):
        one.configure((MS,), max_deliver=0, order=1, tells_terminated=False, **config)
    settle(one, hot.ACK, 0, 1)
    one.configure((MS,), max_deliver=0, order=1, tells_terminated=False, **config)
    one.deliver(1, 5, 0)
    one.park(2, 5)
    assert one.has_no_room()
    with pytest.raises(ValueError, match="not behind"):
        one.park(2, 5)


def test_a_run_of_marks_beyond_the_limit_is_lost_and_told_by_a_snapshot() -> None:
    one = table()
    for number in range(MANY):
        one.deliver(number << 30, 0, 0)
    assert one.changes.is_lost
    assert one.changes.size() <= 256 * 1024 + 64


@pytest.mark.parametrize("seed", range(20))
def test_a_range_that_leaves_makes_ready_what_its_messages_would_one_by_one(seed: int) -> None:
    chance = Random(seed)
    whole, single = table(order=1, parked_max=1_000), table(order=1, parked_max=1_000)
    for offset in range(600):
        key = chance.randrange(80)  # 0: none
        for one in (whole, single):
            if one.is_busy(key):
                one.park(offset, key)
            else:
                one.deliver(offset, key, 0)
    begin = chance.randrange(300)
    end = begin + chance.randrange(1, 300)
    assert whole.remove_range(begin, end) == end - begin
    assert sum(single.remove_range(offset, offset + 1) for offset in range(begin, end)) == end - begin
    assert whole.entries(0, 1_000) == single.entries(0, 1_000)
    assert whole.ready_offsets(0, 1_000) == single.ready_offsets(0, 1_000)
    for key in range(80):
        assert whole.is_busy(key) == single.is_busy(key)
    assert (whole.parked, whole.ack_pending) == (single.parked, single.ack_pending)
