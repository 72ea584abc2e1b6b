"""Each error code is told: what it means, whether an append that is so refused was stored, and who repeats it."""

from __future__ import annotations

import pytest

from penstock.base.errors import ErrorCode
from penstock.client.link.error_codes import (
    AGAIN,
    DID_NOTHING,
    ERROR_CODES,
    IF_LEADER,
    IN_DOUBT,
    OF_ONE_BROKER,
    Handling,
    Stored,
)


def test_every_code_is_in_the_table() -> None:
    assert set(ErrorCode) - ERROR_CODES.keys() == set(), "say what a new code means, and who repeats it"


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_is_explained(code: ErrorCode) -> None:
    told = ERROR_CODES[code]
    assert told.meaning
    assert told.advice
    assert "|" not in told.meaning + told.advice


def test_an_append_is_repeated_only_after_what_says_that_nothing_was_done() -> None:
    assert DID_NOTHING < AGAIN
    assert {ERROR_CODES[code].stored for code in DID_NOTHING} == {Stored.NO}
    assert {ErrorCode.TIMED_OUT, ErrorCode.FENCED_EPOCH, ErrorCode.INTERNAL} <= IN_DOUBT
    for code in AGAIN & IN_DOUBT:
        assert ERROR_CODES[code].handling is Handling.REPEATS_IF_HARMLESS


def test_a_code_is_handled_in_one_way() -> None:
    assert ErrorCode.STORAGE_FAILED in OF_ONE_BROKER
    assert not AGAIN & IF_LEADER
    assert not AGAIN & OF_ONE_BROKER
    assert not IF_LEADER & OF_ONE_BROKER
