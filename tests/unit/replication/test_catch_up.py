"""Rates that many logs share."""

from __future__ import annotations

from penstock.replication.catch_up import ByteRate


def test_a_rate_is_paid_for_by_waiting() -> None:
    rate = ByteRate(1_000_000)
    assert rate.free_us(0) == 0
    rate.take(1_250_000, 0)  # a quarter of a second's worth was saved up
    assert rate.free_us(0) in range(1_000_000, 1_000_002)
    assert rate.free_us(1_000_001) == 1_000_001


def test_a_rate_at_rest_saves_up_a_quarter_of_a_second() -> None:
    rate = ByteRate(1_000_000)
    rate.free_us(60_000_000)
    rate.take(250_000, 60_000_000)
    assert rate.free_us(60_000_000) == 60_000_000
    rate.take(1_000, 60_000_000)
    assert rate.free_us(60_000_000) > 60_000_000
