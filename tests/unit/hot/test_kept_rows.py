"""Gets out of memory: which rows are gets, what is certain, and the same answers as out of a batch."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import codec
from penstock.batch.picking import PickedRow, RowPicker
from penstock.hot.direct_answers import direct_answers
from penstock.hot.kept_rows import (
    AT,
    CERTAIN,
    UNKNOWN,
    KeptRow,
    KeptRows,
    answer_kept,
    kept_state,
    refuse_rows,
    sort_gets,
)
from penstock.hot.message_group import MessageGroup
from penstock.hot.subject_table import SubjectTable
from tests.extent import examples
from tests.groups import group_of

PREFIX = b"$JS.API.DIRECT.GET."
ROOM = 1 << 20
ME = object()
BLOCKS = st.sampled_from([None, b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: b\r\nC: d\r\n\r\n"])


def table_of(*subjects: bytes, known_from: int = 0) -> SubjectTable:
    """A table in which these subjects have the offsets `known_from`, …"""
    table = SubjectTable(1_000, known_from)
    if subjects:
        table.note(MessageGroup.of(subjects, [b""] * len(subjects)), 0, len(subjects), known_from)
        table.written()
    return table


def kept(
    subject: bytes, offset: int, value: bytes | None = b"v", headers: bytes | None = None, time_us: int = 1
) -> KeptRow:
    one = absent(subject, offset + 1)
    one.put(offset, time_us, None, value, headers)
    return one


def absent(subject: bytes, end: int) -> KeptRow:
    return KeptRow("p", ME, subject, end)


def asked(*rows: tuple[bytes, bytes]) -> MessageGroup:
    return group_of([(PREFIX + subject, b"r.%d" % number, None, body) for number, (subject, body) in enumerate(rows)])


@pytest.mark.parametrize(
    ("subject", "body", "stream", "wanted"),
    [
        (b"s.a", b"", b"s", b"a"),
        (b"s.$KV.b.k", b"", b"s", b"$KV.b.k"),
        (b"s", b'{"last_by_subj":"a.b"}', b"s", b"a.b"),
        (b"s", b'{"last_by_subj": "a.b"}', b"s", b"a.b"),
        (b"s", b'{"last_by_subj":""}', b"", b""),
        (b"s", b'{"last_by_subj":"a\\u0062"}', b"", b""),
        (b"s", b'{"last_by_subj":"a","seq":"1"}', b"", b""),
        (b"s", b'{"last_by_subj":"}', b"", b""),
        (b"s", b'{"last_by_subj":', b"", b""),
        (b"s", b'{"last_by_subj": "', b"", b""),
        (b"s", b'{"seq":1}', b"", b""),
        (b"s", b"", b"", b""),
        (b"s.", b"", b"", b""),
        (b"", b"", b"", b""),
        (b".a", b"", b"", b""),
        (b"s.a", b'{"no_hdr":true}', b"", b""),
    ],
)
def test_which_requests_are_plain_gets(subject: bytes, body: bytes, stream: bytes, wanted: bytes) -> None:
    group = asked((subject, body))
    found, others = sort_gets(group, 0, 1, [b"$JS.x.API.DIRECT.GET.", PREFIX])
    assert list(found) == ([stream] if stream else [])
    assert others == ([] if stream else [0])
    if stream:
        assert [found[stream].row(0), found[stream].subject(group, 0)] == [0, wanted]
        pieces, left = answer_kept(found[stream], group, {wanted: kept(wanted, 0)}, table_of(wanted), ME, 0, 1, ROOM)
        assert left == []
        assert b"\r\nNats-Subject: %b\r\n" % wanted in pieces[0]


def test_a_get_with_headers_or_without_a_reply_is_looked_at_one_by_one() -> None:
    group = group_of([(PREFIX + b"s.a", b"r", b"NATS/1.0\r\nA: b\r\n\r\n", b""), (PREFIX + b"s.a", None, None, b"")])
    assert sort_gets(group, 0, 2, [PREFIX]) == ({}, [0, 1])


def test_what_is_certain() -> None:
    one = kept(b"a", 5)  # found below 6
    assert kept_state(one, 5, 0, ME) == CERTAIN
    assert kept_state(one, 7, 0, ME) == AT
    assert kept_state(None, 7, 0, ME) == AT
    assert kept_state(one, 5, 0, object()) == AT  # of another table
    assert kept_state(one, -1, 6, ME) == CERTAIN
    assert kept_state(one, -1, 7, ME) == UNKNOWN  # one may have come between
    assert kept_state(None, -1, 0, ME) == UNKNOWN
    assert kept_state(absent(b"a", 6), -1, 6, ME) == CERTAIN
    assert kept_state(absent(b"a", 6), 6, 6, ME) == AT


def test_only_what_is_certain_and_shown_is_answered() -> None:
    group = asked((b"s.a", b""), (b"s.b", b""), (b"s.c", b""), (b"s.d", b""), (b"s.e", b""))
    table = table_of(b"a", b"b", b"e", known_from=10)
    rows = {
        b"a": kept(b"a", 10),
        b"b": kept(b"b", 9),
        b"c": absent(b"c", 10),
        b"d": kept(b"d", 3),
        b"e": kept(b"e", 12),
    }
    found, _ = sort_gets(group, 0, 5, [PREFIX])
    pieces, left = answer_kept(found[b"s"], group, rows, table, ME, 0, 12, ROOM)
    assert left == [1, 3, 4]  # another one came; the table begins later; it is not shown yet
    (commands,) = pieces
    assert commands.startswith(b"HPUB r.0 ")
    assert commands.endswith(b"HPUB r.2 34 34\r\nNATS/1.0 404 Message Not Found\r\n\r\n\r\n")
    pieces, left = answer_kept(found[b"s"], group, rows, table, ME, 11, 12, ROOM)
    assert pieces[0].startswith(b"HPUB r.0 34 34\r\nNATS/1.0 404 ")  # it is below the log start


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b.c"]), st.sampled_from([None, b"", b"v" * 9]), BLOCKS), min_size=1),
    st.integers(0, 2**51),
    st.sampled_from([20, 150, ROOM]),
)
@settings(max_examples=examples(100), deadline=None)
def test_the_answers_are_those_out_of_a_batch(
    messages: list[tuple[bytes, bytes | None, bytes | None]], time_us: int, payload_max: int
) -> None:
    subjects = [b"%b.%d" % (subject, number) for number, (subject, _, _) in enumerate(messages)]
    values, headers = [one[1] for one in messages], [one[2] for one in messages]
    rows = {
        subject: kept(subject, number, values[number], headers[number], time_us)
        for number, subject in enumerate(subjects)
    }
    group = asked(*((b"orders." + subject, b"") for subject in subjects))
    found, _ = sort_gets(group, 0, len(subjects), [PREFIX])
    gets = found[b"orders"]
    pieces, left = answer_kept(gets, group, rows, table_of(*subjects), ME, 0, len(subjects), payload_max)
    assert left == []
    batch = codec.encode_at(
        MessageGroup.of(subjects, values, headers=headers),
        array("q", range(len(subjects))),
        array("q", [time_us] * len(subjects)),
    )
    replies = [b"r.%d" % number for number in range(len(subjects))]
    wanted, _, _ = direct_answers(
        bytes(batch), codec.LAYOUT, b"orders", replies, [*range(len(subjects))], -1, 0, ROOM, payload_max, True
    )
    assert b"".join(pieces) == wanted


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"b.c", b"d", b"e"]),
            st.sampled_from([None, b"", b"k"]),
            st.sampled_from([None, b"", b"v" * 9]),
            BLOCKS,
        ),
        min_size=1,
        max_size=20,
    ),
    st.sets(st.sampled_from([b"a", b"b.c", b"d", b"none"])),
    st.integers(0, 2**51),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_batch_replaces_what_is_kept_of_its_subjects(
    messages: list[tuple[bytes, bytes | None, bytes | None, bytes | None]], asked_for: set[bytes], time_us: int
) -> None:
    group = MessageGroup.of(
        [one[0] for one in messages],
        [one[2] for one in messages],
        keys=[one[1] for one in messages],
        headers=[one[3] for one in messages],
    )
    batch, _ = codec.encode(group, 0, len(messages), base_offset=7, timestamp_us=time_us, leader_epoch=1, flags=0)
    rows, newer = KeptRows(ROOM), object()
    for subject in asked_for:
        rows.keep(kept(subject, 3))
        rows.keep(kept(subject, 5))
    rows.store("other", newer, batch, codec.LAYOUT)
    assert all(one.offset == 5 for one in (rows.of("p") or {}).values())
    rows.store("p", newer, batch, codec.LAYOUT)
    found = rows.of("p") or {}
    assert set(found) == asked_for
    picker, lasts = RowPicker.of(bytes(batch)), {one[0]: row for row, one in enumerate(messages)}
    for subject, one in found.items():
        if subject not in lasts:
            assert (one.offset, one.identity, one.value) == (5, ME, b"v")
            continue
        told = PickedRow(one.offset, one.timestamp_us, one.subject, one.key, one.value, one.headers)
        assert told == picker.row(lasts[subject])
        assert (one.identity, one.end) == (newer, one.offset + 1)
    room = rows.size_bytes
    for one in list(found.values()):
        rows.drop(one)
    assert room >= 700 * len(asked_for)
    assert (rows.size_bytes, rows.of("p")) == (0, None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"b.c"]),
            st.sampled_from([None, b"", b"k"]),
            st.sampled_from([None, b"", b"v" * 9]),
            BLOCKS,
            st.integers(1, 3),
        ),
        min_size=1,
        max_size=20,
    ),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([b"a", b"b.c", b"none"])), max_size=9),
)
@settings(max_examples=examples(150), deadline=None)
def test_rows_of_a_batch_are_kept_if_they_are_on_their_subjects(
    messages: list[tuple[bytes, bytes | None, bytes | None, bytes | None, int]], wanted: list[tuple[int, bytes]]
) -> None:
    offsets = array("q", accumulate(one[4] for one in messages))
    group = MessageGroup.of(
        [one[0] for one in messages],
        [one[2] for one in messages],
        keys=[one[1] for one in messages],
        headers=[one[3] for one in messages],
    )
    batch = bytes(codec.encode_at(group, offsets, array("q", range(100, 100 + len(messages)))))
    rows, picker, last = KeptRows(ROOM), RowPicker.of(batch), dict[bytes, PickedRow]()
    rows.keep_rows("p", ME, 99, batch, codec.LAYOUT, [one for one, _ in wanted], [one for _, one in wanted])
    for offset, subject in wanted:
        if offset in offsets and (row := picker.row(offsets.index(offset))).subject == subject:
            last[subject] = row
    found = {
        subject: PickedRow(one.offset, one.timestamp_us, one.subject, one.key, one.value, one.headers)
        for subject, one in (rows.of("p") or {}).items()
    }
    assert found == last
    assert all((one.identity, one.end) == (ME, 99) for one in (rows.of("p") or {}).values())
    with pytest.raises(IndexError):
        rows.keep_rows("p", ME, 99, batch, codec.LAYOUT, [1], [])
    with pytest.raises(IndexError):
        rows.keep_rows("p", ME, 99, batch[:90], codec.LAYOUT, [], [])


def test_some_of_the_gets_are_taken_out() -> None:
    group = asked((b"s.a", b""), (b"s.b", b""), (b"s.c", b""))
    found, _ = sort_gets(group, 0, 3, [PREFIX])
    some = found[b"s"].only([2, 0])
    assert [(some.row(number), some.subject(group, number)) for number in range(some.count)] == [(2, b"c"), (0, b"a")]
    assert some.stream == b"s"
    with pytest.raises(IndexError):
        found[b"s"].only([3])
    with pytest.raises(IndexError):
        found[b"s"].only([-1])


def test_what_grows_beyond_the_limit_goes_unless_it_was_used() -> None:
    rows = KeptRows(4_000)
    for number in range(4):
        rows.keep(kept(b"%d" % number, number))
    used = (rows.of("p") or {})[b"0"]
    used.is_used = True
    group = MessageGroup.of([b"3"], [b"v" * 1_500])
    batch, _ = codec.encode(group, 0, 1, base_offset=9, timestamp_us=1, leader_epoch=1, flags=0)
    rows.store("p", ME, batch, codec.LAYOUT)
    assert sorted(rows.of("p") or {}) == [b"0", b"2", b"3"]
    assert not used.is_used
    group = MessageGroup.of([b"3"], [b"v" * 4_000])  # too large by itself
    batch, _ = codec.encode(group, 0, 1, base_offset=10, timestamp_us=1, leader_epoch=1, flags=0)
    rows.store("p", ME, batch, codec.LAYOUT)
    assert sorted(rows.of("p") or {}) == [b"0", b"2"]
    assert rows.size_bytes == sum(one.size_bytes for one in (rows.of("p") or {}).values())


def test_many_answers_are_several_pieces() -> None:
    subjects = [b"k%d" % number for number in range(2_000)]
    group = asked(*((b"s." + subject, b"") for subject in subjects))
    found, _ = sort_gets(group, 0, 2_000, [PREFIX])
    rows = {subject: kept(subject, number, b"v" * 700) for number, subject in enumerate(subjects)}
    pieces, left = answer_kept(found[b"s"], group, rows, table_of(*subjects), ME, 0, 2_000, ROOM)
    assert left == []
    assert len(pieces) > 4
    assert max(map(len, pieces)) <= 256 * 1024
    assert b"".join(pieces).count(b"HPUB r.") == 2_000
    assert all(one.startswith(b"HPUB r.") and one.endswith(b"\r\n") for one in pieces)


def test_a_request_that_is_not_there_is_an_error() -> None:
    group = asked((b"s.a", b""))
    gets = sort_gets(group, 0, 1, [PREFIX])[0][b"s"]
    for number in (-1, 1):
        with pytest.raises(IndexError):
            gets.row(number)
        with pytest.raises(IndexError):
            gets.subject(group, number)


def test_rows_that_do_not_fit_are_refused() -> None:
    group = group_of(
        [
            (b"$JS.API.STREAM.INFO.s", b"a", None, b""),
            (b"$JS.API.DIRECT.GET.s.x", b"b", None, b""),
            (b"$JS.API.STREAM.INFO.s", None, None, b""),
            (b"$JS.API.INFO", b"c", b"NATS/1.0\r\nProbe: 1\r\n\r\n", b""),
            (b"$JS.API.INFO", b"d", b"NATS/1.0\r\nOther: 1\r\n\r\n", b""),
            (b"$JS.hub.API.INFO", b"e", None, b""),
        ]
    )
    texts = [b"$JS.API."], [b"$JS.API.DIRECT.GET."], b"NATS/1.0 503 x\r\n\r\n", b"{}", b"Probe"
    assert refuse_rows(group, 0, 6, *texts) == (
        b"PUB a 2\r\n{}\r\nHPUB b 18 18\r\nNATS/1.0 503 x\r\n\r\n\r\nPUB d 2\r\n{}\r\n",
        [2, 3, 5],
    )
    assert refuse_rows(group, 2, 3, *texts) == (b"", [2])
    assert refuse_rows(group, 0, 2, [], [], b"b", b"e", b"Probe") == (b"", [0, 1])
    for begin, end in ((0, 7), (-1, 2), (2, 1)):
        with pytest.raises(IndexError):
            refuse_rows(group, begin, end, [], [], b"", b"", b"")
        with pytest.raises(IndexError):
            sort_gets(group, begin, end, [])
