"""Frames of deliveries: written as told, for all bounds, and never beyond them."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.subjects import matches
from penstock.hot import deliveries as hot
from tests.unit.jetstream.readers.gateways import parsed

ROOM = 2**40


def bounds(values: list[bytes]) -> bytes:
    return array("i", accumulate(map(len, values), initial=0)).tobytes()


def texts(values: list[bytes]) -> hot.Texts:
    return hot.Texts(bounds(values), b"".join(values))


def rows(
    subjects: list[bytes],
    values: list[bytes] | None = None,
    headers: list[bytes] | None = None,
    *,
    offsets: list[int] | None = None,
) -> hot.DecodedRows:
    count = len(subjects)
    offsets = offsets or list(range(count))
    times = array("q", [1_700_000_000_000_000 + offset for offset in offsets]).tobytes()
    blocks = texts(headers) if headers else None
    numbers = array("q", offsets).tobytes()
    return hot.DecodedRows(0, numbers, times, texts(subjects), texts(values or [b"v"] * count), blocks)


def cursor(*patterns: bytes, messages: int = 1_000, pending: int = 0) -> hot.Cursor:
    made = hot.Cursor(hot.Filter(list(patterns)), b"$JS.ACK.s.c.1.", 0)
    made.pulls.append(hot.Pull(b"inbox", b"", messages, 0))
    made.room, made.pending = ROOM, pending
    return made


def filled(one: hot.Cursor, source: hot.DecodedRows, bytes_max: int = ROOM) -> tuple[int, bytes]:
    out = bytearray()
    return one.fill(source, out, bytes_max, 5), bytes(out)


def test_a_frame_is_what_nats_server_reads() -> None:
    stop, out = filled(cursor(pending=2), rows([b"s.a", b"s.b"], [b"one", b""], [b"NATS/1.0\r\nA: b\r\n\r\n", b""]))
    assert stop == hot.TOOK_ALL
    assert out == (
        b"HMSG inbox $JS.ACK.s.c.1.1.1.1700000000000000000.1@s.a 18 21\r\nNATS/1.0\r\nA: b\r\n\r\none\r\n"
        b"LMSG inbox $JS.ACK.s.c.1.2.2.1700000000000001000.0@s.b 0\r\n\r\n"
    )


def test_numbers_have_all_their_digits() -> None:
    places = sorted({10**digits + step for digits in range(19) for step in (-1, 0, 1)})
    source = rows([b"s"] * (len(places) - 1), offsets=[place - 1 for place in places if place])
    one = cursor(pending=10**18)
    _, out = filled(one, source)
    assert [found.stream_seq for found in parsed(out)] == places[1:]
    for place in places:
        one = cursor(pending=place + 1)
        _, out = filled(one, rows([b"s"]))
        assert [found.pending for found in parsed(out)] == [place]


subjects = st.lists(st.sampled_from((b"s", b"s.a", b"s.b", b"s.a.b", b"s.a.b.c", b"t.a")), min_size=1, max_size=30)
patterns = st.lists(st.sampled_from((b"s.*", b"s.a.>", b"s", b"*.a", b"s.*.b", b">", b"s.>")), max_size=3)


@given(
    subjects=subjects,
    wanted=patterns,
    deleted=st.sets(st.integers(0, 29)),
    messages=st.integers(1, 40),
    room=st.integers(1, 3_000),
    size=st.integers(0, 50),
    bytes_max=st.integers(1, 2_000),
)
def test_it_goes_on_where_it_stopped(
    subjects: list[bytes], wanted: list[bytes], deleted: set[int], messages: int, room: int, size: int, bytes_max: int
) -> None:
    source = rows(subjects, [b"%d" % n + b"x" * size for n in range(len(subjects))])
    source.skip(bytes(number in deleted for number in range(len(subjects))))
    texts_of = [one.decode() for one in wanted]
    expected = [
        number
        for number, subject in enumerate(subjects)
        if number not in deleted and (not wanted or any(matches(one, subject.decode()) for one in texts_of))
    ]
    one = cursor(*wanted)
    one.pending = one.filter.count(source, 0)
    assert one.pending == len(expected)
    found = b""
    for _ in range(2 * len(subjects) + 2):
        one.pulls.clear()
        one.pulls.append(hot.Pull(b"inbox", b"", messages, 0))
        one.room = room
        stop, out = filled(one, source, bytes_max)
        found += out
        if stop in (hot.TOOK_ALL, hot.LOW) or one.next_offset >= source.end_offset:
            break
    delivered = parsed(found)
    assert [one.stream_seq - 1 for one in delivered] == expected
    assert [one.pending for one in delivered] == list(range(len(expected)))[::-1]
    assert [one.consumer_seq for one in delivered] == list(range(1, len(expected) + 1))


def test_why_it_stops() -> None:
    source = rows([b"s.a"] * 4)
    one = cursor(messages=2)
    assert filled(one, source)[0] == hot.EXHAUSTED
    one.pulls.append(hot.Pull(b"inbox", b"", 5, 0))
    one.messages_left = 0
    assert filled(one, source) == (hot.EXHAUSTED, b"")
    one.messages_left, one.room = hot.UNLIMITED, 0
    assert filled(one, source) == (hot.NO_ROOM, b"")
    one.room, one.due_us = ROOM, 1_700_000_000_000_001
    assert filled(one, source) == (hot.TOO_EARLY, b"")
    one.due_us = hot.UNLIMITED
    stop, out = filled(one, source, 1)
    assert (stop, len(parsed(out))) == (hot.FULL, 1)
    one.finished.clear()
    one.low_room = ROOM
    assert filled(one, source)[0] == hot.LOW
    assert one.next_offset == 4


def requests(one: hot.Cursor, *wanted: tuple[bytes, int, int]) -> None:
    one.pulls.clear()
    for inbox, batch, limit in wanted:
        made = hot.Pull(inbox, b"", batch, 0)
        made.bytes_left, made.has_limit = limit, limit > 0
        one.pulls.append(made)


def test_requests_are_served_in_turn() -> None:
    one = cursor()
    requests(one, (b"a", 3, 0), (b"b", 1, 0), (b"c", 9, 0))
    stop, out = filled(one, rows([b"s"] * 7))
    assert [found.inbox for found in parsed(out)] == ["a", "b", "c", "a", "c", "a", "c"]
    assert (stop, [pull.inbox for pull in one.finished]) == (hot.LOW, [b"b", b"a"])
    assert [(pull.inbox, pull.batch, pull.delivered, pull.beat_us) for pull in one.pulls] == [(b"c", 6, 3, 5)]


def test_a_request_with_too_little_room_lets_the_next_one_have_the_message() -> None:
    size = len(b"$JS.ACK.s.c.1.1.1.1700000000000000000.0sv")
    one = cursor()
    requests(one, (b"a", 9, size + 3), (b"b", 9, size - 1), (b"c", 9, size), (b"d", 9, 0))
    _, out = filled(one, rows([b"s"] * 4))
    assert [found.inbox for found in parsed(out)] == ["a", "c", "d", "d"]
    told = {pull.inbox: (pull.batch, pull.bytes_left, pull.is_too_small) for pull in one.finished}
    assert told == {b"a": (8, 3, True), b"b": (9, size - 1, True), b"c": (0, 0, False)}


@given(batches=st.lists(st.integers(1, 5), max_size=6), count=st.integers(1, 20), bytes_max=st.integers(1, 500))
def test_requests_get_equal_shares(batches: list[int], count: int, bytes_max: int) -> None:
    one = cursor()
    requests(one, *((b"%d" % number, batch, 0) for number, batch in enumerate(batches)))
    queue, expected = [*enumerate(batches)], []
    for _ in range(count):
        if queue:
            (number, left), *queue = queue
            expected.append(str(number))
            if left > 1:
                queue.append((number, left - 1))
    source, found = rows([b"s"] * count), b""
    while True:
        stop, out = filled(one, source, bytes_max)
        found += out
        if stop != hot.FULL:
            break
    assert [found.inbox for found in parsed(found)] == expected
    assert [(int(pull.inbox), pull.batch) for pull in one.pulls] == queue


def test_only_wanted_offsets_below_the_resumption_are_sent() -> None:
    source = rows([b"s.a"] * 5, offsets=[1, 3, 4, 7, 9])
    one = cursor(b"s.*")
    one.want(array("q", [0, 3, 5, 7]).tobytes(), 8)
    assert one.next_wanted() == 0
    _, out = filled(one, source)
    assert [found.stream_seq - 1 for found in parsed(out)] == [3, 7, 9]


def test_several_cursors_are_served_up_to_a_size() -> None:
    source = rows([b"s.a", b"s.b"])
    cursors = [cursor(), cursor(b"s.b"), cursor(messages=1), cursor()]
    out, stopped = bytearray(), list[hot.Cursor]()
    assert hot.deliver(cursors, 0, source, out, ROOM, 7, stopped) == 4
    assert stopped == [cursors[2]]
    assert [found.stream_seq for found in parsed(bytes(out))] == [1, 2, 2, 1, 1, 2]
    assert {one.delivered_us for one in cursors} == {7}
    again, out = [cursor(), cursor()], bytearray()
    assert hot.deliver(again, 0, source, out, 10, 7, stopped) == 1
    assert stopped[-1] is again[0]


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        (b"", b""),
        (b"\0" * 4, b""),
        (b"\0" * 9, b""),
        (array("i", [0, 4]).tobytes(), b"abc"),
        (array("i", [-1, 1]).tobytes(), b"abc"),
        (array("i", [3, 1]).tobytes(), b"abc"),
        (array("i", [0, 2, 1, 3]).tobytes(), b"abc"),
    ],
)
def test_bounds_of_texts_that_do_not_fit_are_refused(ends: bytes, text: bytes) -> None:
    with pytest.raises(ValueError, match="bytes"):
        hot.Texts(ends, text)


@pytest.mark.parametrize(
    ("offsets", "times", "subjects_", "values", "headers"),
    [
        (0, 0, 1, 1, None),
        (8, 7, 1, 1, None),
        (9, 8, 1, 1, None),
        (8, 8, 2, 1, None),
        (8, 8, 1, 2, None),
        (8, 8, 1, 1, 2),
        (16, 16, 2, 2, 1),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    offsets: int, times: int, subjects_: int, values: int, headers: int | None
) -> None:
    blocks = None if headers is None else texts([b"x"] * headers)
    with pytest.raises(ValueError, match="bytes of offsets"):
        hot.DecodedRows(0, b"x" * offsets, b"x" * times, texts([b"s"] * subjects_), texts([b"v"] * values), blocks)


def test_marks_and_patterns_that_do_not_fit_are_refused() -> None:
    source = rows([b"s.a", b"s.b"])
    with pytest.raises(ValueError, match="marks"):
        source.skip(b"\1")
    for pattern in (b"", b".", b"a.", b".a", b"a..b"):
        with pytest.raises(ValueError, match="empty token"):
            hot.Filter([pattern])
    with pytest.raises(ValueError, match="8 bytes"):
        cursor().want(b"x", 1)
    late = hot.DecodedRows(5, b"\5" + b"\0" * 7, b"\0" * 8, texts([b"s"]), texts([b""]), None)
    with pytest.raises(IndexError, match="rows from 5 on"):
        filled(cursor(), late)


@pytest.mark.parametrize(("payload_max", "kept"), [(71, b"A: b\r\n"), (70, b"")])
def test_headers_that_are_too_large_with_the_mark_are_left_out_too(payload_max: int, kept: bytes) -> None:
    source = rows([b"s.a"], [b"v" * 200], [b"NATS/1.0\r\nA: b\r\n\r\n"])
    one = cursor()
    one.payload_max = payload_max
    _, out = filled(one, source)
    block = b"NATS/1.0\r\n%bPenstock-Too-Large: max_payload\r\nNats-Msg-Size: 200\r\n\r\n" % kept
    assert parsed(out)[0].headers == block
    assert (source.delivered, source.cut) == (1, 1)


@pytest.mark.parametrize("block", [b"x", b"NATS/1.0", b"NATS/1.0\r\n\r", b"NATS/1.0\r\nA: b\r\n", b"nats/1.0\r\n\r\n"])
def test_what_is_no_header_block_is_left_out(block: bytes) -> None:
    _, out = filled(cursor(), rows([b"s.a"], [b"v"], [block]))
    assert out.startswith(b"LMSG ")
    one = cursor()
    one.headers_only = True
    _, out = filled(one, rows([b"s.a"], [b"v"], [block]))
    assert parsed(out)[0].headers == b"NATS/1.0\r\nNats-Msg-Size: 1\r\n\r\n"
