"""Rows of dead letters: whatever a message, an error or a header holds, the row is a message again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.dead_letters import (
    DELIVERIES,
    HEADER,
    OFFSET,
    REASON,
    REASON_CHARS_MAX,
    STREAM,
    SUBJECT,
    dead_letter_subject,
    shown_reason,
)
from penstock.base.subjects import matches, subject_mistake
from penstock.batch import codec
from penstock.client.values import Message
from penstock.frugal.scopes.dead_letters import dead_letter_row, original_subject
from penstock.frugal.scopes.durable import Delivery
from penstock.hot.message_group import MessageGroup
from penstock.hot.rows import BatchRows, HeaderRequests
from penstock.node.partition.log_queries import RowRules


def message(subject: str = "frugal.a.Op", headers: bytes | None = None, *, value: bytes | None = b"v") -> Message:
    return Message(41, 5, subject, b"k", value, headers, 2)


def row_of(stored: Message, reason: str = "no", **wanted: Any) -> Message:
    row = dead_letter_row("orders-dead", Delivery("orders", stored, 3), "g", reason, **wanted)
    return Message(0, 0, row["subject"], row["key"], row["value"], row["headers"], 0)


def checked(letter: Message, bytes_max: int = limits.MESSAGE_BYTES_MAX) -> HeaderRequests:
    """Return what a letter asks of the leader of its stream. RemoteError: it is refused."""
    config = StreamConfig(
        name="orders-dead", subject=dead_letter_subject("orders-dead", ">"), max_message_bytes=bytes_max
    )
    group = MessageGroup.of([letter.subject.encode()], [letter.value], headers=[letter.header_block], keys=[letter.key])
    data, _ = codec.encode(group, 0, 1, base_offset=0, timestamp_us=0, leader_epoch=0)
    return RowRules.of(config, 0).check(BatchRows(data, codec.LAYOUT))


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


@pytest.mark.parametrize(
    "line",
    [
        "Nats-TTL: 5s",
        "Nats-TTL: nonsense",
        "Nats-TTL : 5s",
        "Nats-Rollup: sub",
        "Nats-Rollup: all",
        "Nats-Msg-Id: a",
        "Nats-Expected-Last-Sequence: 7",
        "Nats-Batch-Id: b",
        "Nats-Schedule: @at 2030-01-01T00:00:00Z",
        "Nats-Incr: +1",
        "Penstock-Key: k",
        "Penstock-Key-Base64: aw==",
        "Penstock-Ack: none",
        "Penstock-Tombstone: true",
    ],
)
def test_a_header_that_asked_a_broker_for_something_is_kept_and_asks_for_nothing(line: str) -> None:
    letter = row_of(message(headers=f"NATS/1.0\r\ntrace: t\r\n{line}\r\n\r\n".encode()))
    name, _, value = line.partition(":")
    assert name not in letter.headers
    assert letter.headers[HEADER + name] == value.strip()
    assert letter.headers["trace"] == "t"
    assert checked(letter) == HeaderRequests([], has_ttls=False, has_rollups=False, rollup_row=-1, is_bad=False)
    assert row_of(letter).headers[HEADER + name] == value.strip()  # a dead letter of a dead letter, too


def test_a_header_that_only_tells_something_keeps_its_name() -> None:
    block = b"NATS/1.0\r\nPenstock-Schema: 7\r\nNats-Stream: s\r\nx: Nats-TTL\r\n\r\n"
    found = row_of(message(headers=block)).headers
    assert (found["Penstock-Schema"], found["Nats-Stream"], found["x"]) == ("7", "s", "Nats-TTL")


def test_headers_that_do_not_fit_are_left_out_from_the_last_one_on() -> None:
    pad = 10_000
    lines = b"".join(b"h%d: %s\r\n" % (n, b"x" * pad) for n in range(6))
    stored = message(headers=b"NATS/1.0\r\n" + lines + b"z: " + b"x" * 5_500 + b"\r\n\r\n")
    letter = row_of(stored)
    assert checked(letter)
    assert [name for name in letter.headers if len(letter.headers[name]) == pad] == [f"h{n}" for n in range(6)]
    assert letter.headers[REASON] == "no (left out: the last 1 of 7 headers)"
    whole = row_of(message(headers=b"NATS/1.0\r\nA: " + b"x" * (limits.HEADER_BLOCK_BYTES_MAX - 20) + b"\r\n\r\n"))
    assert checked(whole)
    assert whole.headers[REASON] == "no (left out: the last 1 of 1 headers)"


def test_a_value_that_does_not_fit_is_left_out_and_is_no_tombstone() -> None:
    letter = row_of(message(value=b"x" * 2_000), bytes_max=2_000)
    assert checked(letter, 2_000)
    assert (letter.value, letter.headers[REASON]) == (b"", "no (left out: the value of 2000 bytes)")


def test_a_letter_is_as_short_as_it_is_wanted() -> None:
    stored = message(headers=b"NATS/1.0\r\ntrace: t\r\n\r\n")
    bare = row_of(stored, keeps_headers=False)
    assert (bare.value, "trace" in bare.headers) == (b"v", False)
    assert bare.headers[REASON] == "no (left out: the last 1 of 1 headers)"
    least = row_of(stored, keeps_headers=False, keeps_value=False)
    assert (least.value, "trace" in least.headers) == (b"", False)
    assert least.headers[REASON] == "no (left out: the value of 1 bytes, the last 1 of 1 headers)"
    assert row_of(message(value=None), keeps_headers=False, keeps_value=False).value is None
    assert row_of(message(value=None), keeps_value=False).headers[REASON] == "no"


@given(
    st.lists(st.tuples(st.sampled_from(["Nats-TTL", "Nats-Rollup", "a", "Penstock-Key"]), st.integers(0, 9_000))),
    st.integers(0, 9_000),
    st.text(),
    st.integers(9_000, 30_000),
)
def test_whatever_a_message_holds_its_stream_takes_the_letter(
    headers: list[tuple[str, int]], size: int, reason: str, bytes_max: int
) -> None:
    lines = "".join(f"{name}: {'x' * length}\r\n" for name, length in headers)
    stored = message(headers=f"NATS/1.0\r\n{lines}\r\n".encode(), value=b"v" * size)
    letter = row_of(stored, reason, bytes_max=bytes_max)
    assert not any(checked(letter, bytes_max)[1:3])
    assert letter.headers[OFFSET] == "41"
    assert letter.header_block is not None
    kept = len(letter.header_block.split(b"\r\n")) - 2 - 1 - 7  # the end, the first line, and ours
    left_out = "left out: " in letter.headers[REASON]
    assert left_out or (kept == len(headers) and letter.value == stored.value)
