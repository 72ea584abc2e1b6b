"""Errors carry what their handler needs, and read well."""

from __future__ import annotations

import pytest

from penstock.base.errors import ConfigError, CorruptionError, ErrorCode, OperationalError, PenstockError, RemoteError


def test_a_remote_error_has_a_stable_code_and_its_numbers() -> None:
    error = RemoteError(ErrorCode.OFFSET_OUT_OF_RANGE, "offset 9 is not there", log_start=1, log_end=5)
    assert error.code == "offset_out_of_range"
    assert type(error.code) is str
    assert error.details == {"log_start": 1, "log_end": 5}
    assert str(error) == "offset 9 is not there [offset_out_of_range]"


def test_a_code_of_a_newer_broker_stays_as_it_is() -> None:
    assert RemoteError("from_the_future", "?").code == "from_the_future"


def test_corruption_says_where_and_what() -> None:
    error = CorruptionError("0.arrows", 568, "CRC-32C 01", "02")
    assert str(error) == "0.arrows: at byte 568: expected CRC-32C 01, found 02"
    assert (error.file, error.position, error.expected, error.found) == ("0.arrows", 568, "CRC-32C 01", "02")


@pytest.mark.parametrize("kind", [RemoteError, OperationalError, ConfigError, CorruptionError])
def test_all_are_penstocks_and_none_is_another(kind: type[Exception]) -> None:
    assert issubclass(kind, PenstockError)
    others = {RemoteError, OperationalError, ConfigError, CorruptionError} - {kind}
    assert not any(issubclass(kind, other) for other in others)


def test_codes_are_their_own_names() -> None:
    assert all(code.value == code.name.lower() for code in ErrorCode)
