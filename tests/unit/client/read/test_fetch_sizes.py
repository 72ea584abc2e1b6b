"""A task of a short range does not fetch megabytes of what lies behind it."""

from __future__ import annotations

from penstock.base import limits
from penstock.client.read.reading import _FetchSize


def asked(rows: int, *, of_bytes: int) -> int:
    """What is asked for at the end of a range, so many rows before it, if rows had this size until now."""
    size = _FetchSize()
    size.took(0.01, 10_000 * of_bytes)
    size.held(10_000, 10_000 * of_bytes)
    return size.bytes_for(rows, 1)


def test_so_much_is_asked_for_at_the_end_as_the_rest_is_expected_to_have() -> None:
    for row_bytes in (300, 5_000):
        rest = 1_000_000 // row_bytes
        assert rest * row_bytes < asked(rest, of_bytes=row_bytes) < 1.5 * rest * row_bytes


def test_no_less_and_no_more_than_the_limits() -> None:
    assert asked(1, of_bytes=300) == limits.READ_FETCH_BYTES_MIN
    assert asked(2**63, of_bytes=300) == limits.READ_FETCH_BYTES_MAX
    assert asked(1, of_bytes=10**9) == limits.READ_FETCH_BYTES_MAX
