"""Sizes and durations as people write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import units
from tests.work import lines_run


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1048576", 2**20),
        ("64MiB", 64 * 2**20),
        ("64 mib", 64 * 2**20),
        ("1.5k", 1536),
        ("1.5GB", 1_500_000_000),
        ("2T", 2**41),
        ("12B", 12),
        (" 7KiB ", 7168),
        ("9007199.254740993GB", 2**53 + 1),  # exact, where a float is not
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert units.parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 Mibi", "1e6", "1,5MB", "0x10", "١", "1MiB2", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("30s", 30_000_000),
        ("500ms", 500_000),
        ("250us", 250),
        ("1h30m", 5_400_000_000),
        ("1h 30m", 5_400_000_000),
        ("7D", 7 * 86_400_000_000),
        ("0.5s", 500_000),
        ("2w", 14 * 86_400_000_000),
        ("15min", 900_000_000),
        ("3H 5S", 10_805_000_000),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert units.parse_duration_us(text) == expected


@pytest.mark.parametrize("text", ["", "s", "-1s", "1h30", "1 houri", "1h,30m", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        units.parse_duration_us(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1M", "'1M': m is minutes and M is refused; write 1m for minutes, 30d for months"),
        ("1d1.5 M", "'1d1.5 M': m is minutes and M is refused; write 1.5m for minutes, 45d for months"),
        ("2mo", "'2mo': a month has no fixed length; write 60d"),
        ("1 month", "'1 month': a month has no fixed length; write 30d"),
        ("10Y", "'10Y': a year has no fixed length; write 3650d"),
        ("2 years", "'2 years': a year has no fixed length; write 730d"),
    ],
)
def test_months_and_years_are_asked_back(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        units.parse_duration_us(text)


@pytest.mark.parametrize(
    ("text", "short"), [("1 day", "1d"), ("2hours", "2h"), ("30 days", "30d"), ("5 Minutes", "5m"), ("1h 9secs", "9s")]
)
def test_words_for_units_are_told_short(text: str, short: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is not a duration; write {short}$"):
        units.parse_duration_us(text)


@pytest.mark.parametrize("text", ["5us", "0.1ms", " 999us"])
def test_what_is_below_a_millisecond_is_named_as_it_was_written(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text.strip()} is below 1ms, the least$"):
        units.parse_duration_ms(text)


def test_units_of_kubernetes_are_told_in_full() -> None:
    with pytest.raises(ValueError, match=r"'10Gi' is not a size; write 10GiB$"):
        units.parse_bytes("10Gi")


@pytest.mark.parametrize("text", ["10GB", "64MiB", "9765625KiB", "1000", "1500MB", "0"])
def test_a_short_size_is_read_back(text: str) -> None:
    size_bytes = units.parse_bytes(text)
    short = units.format_short_bytes(size_bytes)
    assert units.parse_bytes(short) == size_bytes
    assert len(short) <= len(text)


@pytest.mark.parametrize("number", ["7", "0.5", " 30 "])
def test_a_duration_without_a_unit_is_asked_back(number: str) -> None:
    bare = number.strip()
    said = f"{bare} has no unit; write for example {bare}s, {bare}m, {bare}h or {bare}d"
    with pytest.raises(ValueError, match=re.escape(said)):
        units.parse_duration_us(number)


@given(st.integers(0, 2**60))
def test_an_exact_size_is_read_back(size_bytes: int) -> None:
    assert units.parse_bytes(units.format_exact_bytes(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("duration_us", "expected"),
    [
        (0, "0s"),
        (12_300, "12.3ms"),
        (1_500_000, "1.5s"),
        (65_000_000, "1m 5s"),
        (183_600_000_000, "2d 3h"),
        (-5, "-5us"),
    ],
)
def test_durations_for_people(duration_us: int, expected: str) -> None:
    assert units.format_duration_us(duration_us) == expected


@pytest.mark.parametrize(
    ("size_bytes", "expected"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**40, "3.0 TiB")]
)
def test_sizes_for_people(size_bytes: int, expected: str) -> None:
    assert units.format_bytes(size_bytes) == expected


@pytest.mark.parametrize("text", ["1" * 20_000, "1" * 20_000 + "!", "1s" * 10_000 + "!", "1.1" * 5_000 + "s!"])
def test_what_is_no_duration_is_looked_at_once(text: str) -> None:
    def refused() -> None:
        with pytest.raises(ValueError, match=r"duration|what\?"):
            units.parse_duration_us(text)

    assert lines_run(refused) < 10 * len(text)
