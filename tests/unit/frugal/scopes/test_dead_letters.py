"""Rows of dead letters: whatever a message, an error or a header holds, the row is a message again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.subjects import matches, subject_mistake
from penstock.client.values import Message
from penstock.frugal.scopes.dead_letters import (
    DELIVERIES,
    OFFSET,
    REASON,
    REASON_CHARS_MAX,
    STREAM,
    SUBJECT,
    dead_letter_row,
    dead_letter_subject,
    original_subject,
    shown_reason,
)
from penstock.frugal.scopes.durable import Delivery


def message(subject: str = "frugal.a.Op", headers: bytes | None = None, *, value: bytes | None = b"v") -> Message:
    return Message(41, 5, subject, b"k", value, headers, 2)


def row_of(stored: Message, reason: str = "no") -> Message:
    row = dead_letter_row("orders-dead", Delivery("orders", stored, 3), "g", reason)
    return Message(0, 0, row["subject"], row["key"], row["value"], row["headers"], 0)


def test_a_dead_letter_has_what_happened_in_front_of_its_own_headers() -> None:
    stored = message(headers=b"NATS/1.0\r\ntrace: t\r\nPenstock-Dead-Stream: other\r\ntrace: u\r\n\r\n")
    letter = row_of(stored, "LookupError: no such order")
    assert (letter.subject, letter.key, letter.value) == ("penstock.dead.orders-dead.frugal.a.Op", b"k", b"v")
    assert letter.headers[REASON] == "LookupError: no such order"
    assert (letter.headers[DELIVERIES], letter.headers[STREAM], letter.headers[OFFSET]) == ("3", "orders", "41")
    assert letter.headers.get_all(STREAM) == ["orders", "other"]  # the first counts: a message cannot lie about itself
    assert letter.headers.get_all("trace") == ["t", "u"]


def test_a_dead_letter_of_a_dead_letter_keeps_the_subject_on_which_it_was_published() -> None:
    once = row_of(message())
    again = row_of(once)
    assert again.subject == once.subject
    assert original_subject(again) == original_subject(once) == "frugal.a.Op"


def test_a_subject_that_is_too_long_with_the_prefix_is_in_the_header() -> None:
    subject = "frugal." + "x" * (limits.SUBJECT_BYTES_MAX - 7)
    letter = row_of(message(subject))
    assert subject_mistake(letter.subject) is None
    assert letter.headers[SUBJECT] == subject
    assert original_subject(letter) == subject


@pytest.mark.parametrize("block", [b"", b"junk", b"NATS/1.0\r\nno end\r\n", b"NATS/1.0\r\n\r\n", b"\xff\r\n\r\n"])
def test_headers_that_are_no_block_are_left_out(block: bytes) -> None:
    assert set(row_of(message(headers=block)).headers) == set(row_of(message()).headers)


@given(st.text(), st.binary() | st.none())
def test_no_reason_breaks_the_headers(reason: str, value: bytes | None) -> None:
    letter = row_of(message(value=value), reason)
    assert letter.headers[STREAM] == "orders"
    assert letter.header_block is not None
    assert letter.header_block.endswith(b"\r\n\r\n")
    assert letter.header_block.count(b"\r\n\r\n") == 1
    assert letter.headers[REASON]
    assert letter.value == value


def test_a_reason_is_one_line_and_cut() -> None:
    assert shown_reason("a\r\n\tb\0c") == "a b c"
    assert shown_reason("") == "unknown"
    assert len(shown_reason("x" * 5_000)) == REASON_CHARS_MAX
    assert shown_reason("\udcff") == "\\udcff"


def test_the_pattern_of_a_dead_letter_stream_stores_its_letters() -> None:
    pattern = dead_letter_subject("orders-dead", ">")
    assert subject_mistake(pattern, wildcards=True) is None
    assert matches(pattern, row_of(message()).subject)
