"""One consumer: its rows are few bytes, each row is told in time, and a fold takes what compaction leaves."""

from __future__ import annotations

from random import Random

import pytest

from penstock.base.errors import CorruptionError
from penstock.base.limits import CONSUMER_ROW_BYTES_MAX
from penstock.consumers import rows
from penstock.consumers.config import ACK_PENDING_MAX, ORDER_KEY, PARKED_MAX, WAIT_US_MAX, AckConfig
from penstock.consumers.fold import stored_consumers
from penstock.consumers.state import NOTE_MS, PASSED_MAX, ConsumerState, Row
from penstock.hot import pending

ID = b"consumer"
MS = 1_000
BYTES_AN_ACK_MAX = 64


def made(config: AckConfig | None = None) -> ConsumerState:
    state = ConsumerState.new(ID, config or AckConfig(), b"{}", 0, 0)
    state.first_rows()
    return state


def deliver(state: ConsumerState, count: int, now_us: int = 0) -> None:
    for _ in range(count):
        state.table.deliver(state.table.next_offset, 0, now_us)


def ack(state: ConsumerState, offset: int, sequence: int, now_us: int = 0) -> None:
    token = state.table.token(offset + 1, sequence)
    assert state.table.settle(pending.ACK, offset, sequence, token, 0, now_us) == pending.APPLIED


def folded(found: list[Row], now_us: int = 0, log_end: int = 2**40) -> ConsumerState:
    left = {key: value for key, value in dict(found).items() if value is not None}
    return stored_consumers(left)[ID].take_over(now_us, log_end)


def test_consumers_with_equal_configs_share_one() -> None:
    """Of 100,000 consumers that a program makes alike, each would keep a config of its own."""
    first, second, other = (made(AckConfig(backoff_us=(wait_ms * MS,))) for wait_ms in (5, 5, 6))
    assert second.config is first.config
    assert other.config.backoff_us == (6 * MS,)
    folded_one = folded(second.first_rows())
    assert folded_one.config is first.config
    second.update(AckConfig(backoff_us=(6 * MS,)), b"{}")
    assert second.config is other.config
    assert first.config.backoff_us == (5 * MS,)
    assert folded(second.first_rows()).config == other.config


@pytest.mark.parametrize("in_flight", [1, 50, 500])
def test_rows_are_few_bytes_an_ack(in_flight: int) -> None:
    """Each ack is a row of its own, in any order, with the snapshots and all keys."""
    state, chance = made(), Random(in_flight)
    hand: list[tuple[int, int]] = []
    size = 0
    for number in range(1_000):
        now_us = int(number * 2_500 * chance.random())
        while len(hand) < in_flight:
            deliver(state, 1, now_us)
            hand.append((state.table.next_offset - 1, state.table.delivered))
        ack(state, *hand.pop(int(chance.random() * in_flight)), now_us)
        size += sum(len(key) + len(value or b"") for key, value in state.take_rows(now_us))
    assert size / 1_000 <= BYTES_AN_ACK_MAX


def test_snapshots_bound_the_changes() -> None:
    state = ConsumerState.new(ID, AckConfig(), b"{}", 0, 0)
    found = state.first_rows()
    for number in range(3 * rows.CHANGES_MAX):
        deliver(state, 1)
        taken = state.take_rows(0)
        assert len(taken) == (2 if number % rows.CHANGES_MAX == rows.CHANGES_MAX - 1 else 1)
        found += taken
    assert folded(found).table.entries(0, 10**6) == state.table.entries(0, 10**6)
    assert len(dict(found)) <= rows.SLOTS + 2
    assert {key for key, _ in state.deletion()} >= {key for key, _ in found}


def test_a_change_is_never_longer_than_a_snapshot_may_be() -> None:
    state = made()
    deliver(state, 3_000)
    for offset in range(0, 3_000, 2):
        ack(state, offset, offset + 1)
    for offset in range(1, 2_999, 2):
        ack(state, offset, offset + 1)
    ((key, value),) = state.take_rows(0)
    assert key == rows.snapshot_key(ID)
    assert len(value or b"") < 100


def test_the_time_that_is_left_is_noted_each_minute_while_messages_wait() -> None:
    state = ConsumerState.new(ID, AckConfig(ack_wait_us=10 * NOTE_MS * MS), b"{}", 0, 0)
    found = state.first_rows()
    deliver(state, 1)
    found += state.take_rows(0)
    assert state.due_us() == NOTE_MS * MS
    assert state.take_rows(NOTE_MS * MS - 1) == []
    found += state.take_rows(NOTE_MS * MS)
    later = folded(found, now_us=5_000_000 * MS)
    assert later.table.entry(0) == ("hand", 1, 1, 1, (5_000_000 + 9 * NOTE_MS) * MS)
    ack(state, 0, 1)
    state.take_rows(NOTE_MS * MS)
    assert state.due_us() == pending.NEVER
    assert not state.has_changes(10**15)


def test_a_position_alone_is_noted_now_and_then() -> None:
    state = made()
    state.table.pass_to(PASSED_MAX - 1)
    assert state.take_rows(0) == []
    state.table.pass_to(PASSED_MAX)
    assert len(state.take_rows(0)) == 1
    assert state.take_rows(0) == []


def test_positions_beyond_the_end_of_the_log_go_back() -> None:
    state = ConsumerState.new(ID, AckConfig(order=ORDER_KEY), b"{}", 0, 0)
    found = state.first_rows()
    for offset in range(6):
        if offset % 3:
            state.table.park(offset, 9)
        else:
            state.table.deliver(offset, 9 if offset == 0 else 0, 0)
    found += state.take_rows(0)
    later = folded(found, log_end=3)
    assert [one[:2] for one in later.table.entries(0, 9)] == [(0, "hand"), (1, "parked"), (2, "parked")]
    assert later.table.next_offset == 3
    assert [key for key, _ in later.take_rows(0)] == [rows.snapshot_key(ID)]
    later.table.deliver(3, 4, 0)
    assert folded(found, log_end=0).table.count == 0
    assert folded(found, log_end=6).take_rows(0) == []


def test_after_an_update_rows_are_a_snapshot_under_the_new_config() -> None:
    state = made()
    deliver(state, 1)
    found = state.update(AckConfig(ack_wait_us=5 * MS), b'{"ack_wait":5}')
    assert [key for key, _ in found] == [rows.told_key(ID), rows.snapshot_key(ID)]
    deliver(state, 1)
    found += state.take_rows(0)
    later = folded(found)
    assert (later.told, later.config) == (state.told, state.config)
    assert later.table.entries(0, 9) == state.table.entries(0, 9)
    with pytest.raises(ValueError, match="order cannot be changed"):
        state.update(AckConfig(order=ORDER_KEY), b"")
    assert state.config == later.config


def test_a_reset_makes_acks_of_earlier_deliveries_forged() -> None:
    state = made()
    deliver(state, 1)
    token = state.table.token(1, 1)
    state.reset(0)
    deliver(state, 1)
    assert state.table.token(1, 1) != token
    assert state.table.settle(pending.ACK, 0, 1, token, 0, 0) == pending.FORGED
    assert (state.table.count, state.table.delivered) == (1, 1)


@pytest.mark.parametrize("key", [b"", b"v1/", b"v2/consumer/s", b"v1/consumer/x", b"v1/consumer/0G", b"v1/consumer-s"])
def test_a_key_that_is_none_is_refused(key: bytes) -> None:
    with pytest.raises(CorruptionError, match="a key of a consumer"):
        stored_consumers({key: b""})


def test_rows_that_do_not_fit_together_are_refused() -> None:
    state = ConsumerState.new(ID, AckConfig(), b"{}", 0, 0)
    found = dict(state.first_rows())
    deliver(state, 1)
    change = dict(state.take_rows(0))
    sound = {key: value for key, value in {**found, **change}.items() if value is not None}
    told, snapshot, slot = rows.told_key(ID), rows.snapshot_key(ID), rows.change_key(ID, 0)
    for wrong in (
        {told: b""},
        {snapshot: sound[snapshot]},
        {**sound, slot: b"\x02" + sound[slot][1:]},
        {**sound, snapshot: sound[snapshot][:5]},
        {told: b"", snapshot: sound[snapshot], rows.change_key(ID, 1): sound[slot]},
        {**sound, rows.change_key(ID, 2): rows.encode_change(2, b"")},
        {**sound, snapshot: sound[snapshot][:-1] + b"\xff" * 7 + b"\x7f"},
    ):
        with pytest.raises(CorruptionError):
            stored_consumers(wrong)
    for wrong in ({**sound, slot: sound[slot] + b"\x0f"}, {**sound, snapshot: sound[snapshot] + b"\x01"}):
        with pytest.raises(CorruptionError):
            stored_consumers(wrong)[ID].take_over(0, 9)
    assert stored_consumers(sound)[ID].take_over(0, 9).table.count == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ack_wait_us", 0),
        ("backoff_us", (1,)),
        ("backoff_us", (1_000,) * 101),
        ("max_deliver", -1),
        ("max_ack_pending", 0),
        ("order", 99),
        ("sample_percent", 101),
    ],
)
def test_numbers_beyond_their_bounds_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        AckConfig(**{field: value})  # type: ignore[arg-type]


def test_acks_for_all_have_no_order() -> None:
    with pytest.raises(ValueError, match="order by key"):
        AckConfig(acks_all=True, order=ORDER_KEY)


def test_acks_for_all_of_neighbours_are_all_told() -> None:
    """They are one run, of which only the first offset was read."""
    state = ConsumerState.new(ID, AckConfig(acks_all=True), b"{}", 0, 0)
    found = state.first_rows()
    deliver(state, 5)
    found += state.take_rows(0)
    ack(state, 2, 3)
    ack(state, 3, 4)
    found += state.take_rows(0)
    assert [one[0] for one in folded(found).table.entries(0, 9)] == [4]


def test_a_snapshot_of_all_that_may_be_pending_fits_a_row() -> None:
    """Scattered over a stream of 2**40 messages, each of its own key, given back, and due at another time."""
    state, chance = ConsumerState.new(ID, AckConfig(order=ORDER_KEY), b"{}", 0, 0), Random(7)
    table, count = state.table, ACK_PENDING_MAX + PARKED_MAX + pending.ENDED_MAX
    for number in range(count):
        offset = number * (2**40 // count)
        table.deliver(offset, 1 + number, 0)
        token = table.token(offset + 1, table.delivered)
        delay_us = int(chance.random() * WAIT_US_MAX)
        assert table.settle(pending.NAK, offset, table.delivered, token, delay_us, 0) == pending.APPLIED
    assert 12 * count < len(state.export()) < CONSUMER_ROW_BYTES_MAX - 10 * count
