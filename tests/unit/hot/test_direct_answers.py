"""Answers to DIRECT.GET against a plain formatting of the same rows, compiled and not."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import codec
from penstock.hot.direct_answers import direct_answers, time_text
from penstock.hot.message_group import MessageGroup
from tests.extent import examples

ROOM = 1 << 20
ROWS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"orders.eu"]),
        st.sampled_from([None, b"", b"hello", b"\r\nPUB x 1\r\n" * 3]),
        st.sampled_from([None, b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\nC: d\r\n\r\n"]),
        st.integers(1, 9),  # to the next offset
        st.integers(0, 2**51),
    ),
    max_size=6,
)


def batch(rows: list[tuple[bytes, bytes | None, bytes | None, int, int]]) -> tuple[bytes, list[int], list[int]]:
    """The batch of an answer, its offsets and its times."""
    if not rows:
        return b"", [], []
    offsets = [sum(row[3] for row in rows[:at]) for at in range(len(rows))]
    times = [row[4] for row in rows]
    group = MessageGroup.of([row[0] for row in rows], [row[1] for row in rows], headers=[row[2] for row in rows])
    return bytes(codec.encode_at(group, array("q", offsets), array("q", times))), offsets, times


def shown(time_us: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    fraction = f".{moment.microsecond:06}".rstrip("0").rstrip(".")
    return f"{moment.year:04}{moment:-%m-%dT%H:%M:%S}{fraction}Z"


@given(ROWS, st.data())
@settings(max_examples=examples(150), deadline=None)
def test_the_answers_to_gets(
    rows: list[tuple[bytes, bytes | None, bytes | None, int, int]], data: st.DataObject
) -> None:
    raw, offsets, times = batch(rows)
    asked = data.draw(st.lists(st.integers(-1, len(rows) - 1), max_size=8))
    pending = data.draw(st.sampled_from([-1, 0, 1, 100]))
    bytes_max = data.draw(st.sampled_from([1, 20, ROOM]))
    has_headers = data.draw(st.booleans())
    payload_max = data.draw(st.sampled_from([40, 150, ROOM]))
    replies = [b"_INBOX.%d" % at for at in range(len(asked))]
    wanted, counted, last, left, sent = [], 0, 7, pending, 0
    for reply, row in zip(replies, asked, strict=True):
        sent += 1
        if row < 0:
            wanted.append(b"HPUB %b 34 34\r\nNATS/1.0 404 Message Not Found\r\n\r\n\r\n" % reply)
            continue
        subject, value, own, _, _ = rows[row]
        lines = [f"Nats-Stream: s\r\nNats-Subject: {subject.decode()}\r\nNats-Sequence: {offsets[row] + 1}"]
        lines.append(f"Nats-Time-Stamp: {shown(times[row])}")
        if pending >= 0:
            lines.append(f"Nats-Num-Pending: {left}\r\nNats-Last-Sequence: {last}")
        headers = (own or b"NATS/1.0\r\n\r\n")[:-2] + "\r\n".join(lines).encode() + b"\r\n\r\n"
        value = value or b""
        if len(headers) * has_headers + len(value) > payload_max:
            status = b"NATS/1.0 413 Message Larger Than Max Payload\r\n\r\n"
            wanted.append(b"HPUB %b %d %d\r\n%b\r\n" % (reply, len(status), len(status), status))
        elif has_headers:
            sizes = (reply, len(headers), len(headers) + len(value))
            wanted.append(b"HPUB %b %d %d\r\n" % sizes + headers + value + b"\r\n")
        else:
            wanted.append(b"PUB %b %d\r\n%b\r\n" % (reply, len(value), value))
        last, left = offsets[row] + 1, max(left - 1, 0)
        counted += len(subject) + len(value) + len(own or b"")
        if counted >= bytes_max:
            break
    found = direct_answers(raw, codec.LAYOUT, b"s", replies, asked, pending, 7, bytes_max, payload_max, has_headers)
    assert found == (b"".join(wanted), sent, counted)


def test_a_row_beyond_the_batch_is_refused() -> None:
    raw, *_ = batch([(b"a", b"1", None, 1, 5)])
    with pytest.raises(IndexError):
        direct_answers(raw, codec.LAYOUT, b"s", [b"r"], [1], -1, 0, ROOM, ROOM, True)
    with pytest.raises(IndexError):
        direct_answers(b"", codec.LAYOUT, b"s", [b"r"], [0], -1, 0, ROOM, ROOM, True)


@given(st.datetimes(min_value=datetime(1, 1, 1)))  # noqa: DTZ001
@settings(max_examples=examples(200), deadline=None)
def test_times(moment: datetime) -> None:
    time_us = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001
    assert time_text(time_us).decode() == shown(time_us)


def test_times_beyond_the_calendar_are_clamped() -> None:
    assert time_text(-(2**63)).startswith(b"0000-01-01T")
    assert time_text(2**63 - 1).startswith(b"9999-12-31T")
