"""Compiled and plain ingest do the same with whatever comes: the same rows, verdicts, bytes and acks, or error."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from penstock.base import limits
from penstock.batch import codec
from penstock.batch.schema import arrow_schema
from tests import hot_modes
from tests.batch_samples import Row, numbers_of, opened, rows_of, segment_of
from tests.extent import examples

pytestmark = hot_modes.needs_compiled

SUBJECTS = (
    st.sampled_from([b"a", b"a.b", b"a..b", b".a", b"a.", b"*", b"a.*", b"a.>", b"a*", b">b", b"$SYS.x", b"_INBOX.y"])
    | st.text(max_size=12).map(str.encode)
    | st.text("aé\u2028\u00a0\x7f. →😀", max_size=12).map(str.encode)
    | st.binary(min_size=1, max_size=12)
)
LINES = st.sampled_from(
    [
        b"Penstock-Key: k",
        b"Penstock-Key:\t k \x0b",
        b"Penstock-Key",
        b"Penstock-Key-Base64: AP8=",
        b"Penstock-Key-Base64: QQ==QQ==",
        b"Penstock-Tombstone: 1",
        b"Penstock-Ack: none",
        b"Penstock-Ack: leader",
        b"Penstock-Ack: all",
        b"Penstock-Ack: ",
        b"Nats-Expected-Stream: s",
        b"Nats-Expected-Stream: other",
        b"Nats-Expected-Last-Sequence: 007",
        b"Nats-Expected-Last-Sequence: 8",
        b"Nats-Expected-Last-Subject-Sequence: 0",
        b"Nats-Expected-Last-Subject-Sequence: 08",
        b"Nats-Expected-Last-Subject-Sequence: 9",
        b"Nats-Expected-Last-Subject-Sequence:",
        b"Nats-Expected-Last-Subject-Sequence-Subject: s.a",
        b"Nats-Expected-Last-Subject-Sequence-Subject: s.*",
        b"Nats-Expected-Last-Subject-Sequence-Subject:",
        b"Nats-Msg-Id: x",
        b"Nats-Msg-Id: y",
        b"Nats-Msg-Id: " + 65 * b"z",
        b"Nats-Msg-Id:",
        b"Nats-Expected-Last-Msg-Id: x",
        b"Nats-Expected-Last-Msg-Id: " + 65 * b"z",
        b"Nats-Expected-Last-Msg-Id:",
        b"Nats-Service-Error: x",
        b"Nats-Stream-Source: x",
        b"Nats-Stream-Sources: x",
        b"Nats-:",
        b"nats-TTL: 1",
        b"Nats-TTL: 1h",
        b"Nats-TTL: never",
        b"Nats-TTL: soon",
        b"Nats-TTL:",
        b"Nats-Rollup: sub",
        b"Nats-Rollup: ALL",
        b"Nats-Rollup: others",
        b"Nats-Batch-Id: x",
        b"Nats-Batch-Id:",
        b"Nats-Batch-Sequence: 1",
        b"Nats-Batch-Commit: 1",
        b"Nats-Incr: 1",
        b"Nats-Incr: -12",
        b"Nats-Incr: +",
        b"Nats-Incr: x",
        b"Nats-Incr:",
        b"",
    ]
) | st.binary(max_size=16).map(lambda text: b"Penstock-Key-Base64:" + text)
BLOCKS = (
    st.none()
    | st.binary(max_size=40)
    | st.lists(LINES | st.binary(max_size=12), max_size=5).map(lambda lines: b"\r\n".join([b"NATS/1.0", *lines, b""]))
)
MESSAGES = st.lists(
    st.tuples(SUBJECTS, st.none() | st.sampled_from([b"r", b"_INBOX.abc", b"a.1.$FI"]), BLOCKS, st.binary(max_size=30)),
    max_size=12,
)
FRAMES = st.lists(
    st.sampled_from([b"MSG", b"HMSG", b"PING", b" ", b"\r\n", b"\n", b"a.b", b"1", b"12", b"0", b"5", b"3", b"hello"])
    | st.binary(max_size=6),
    max_size=30,
).map(b"".join)


def in_both(run: Any) -> list[Any]:
    """What `run` gives when it finds the modules compiled, and plain."""
    return [run(hot_modes.running), run(hot_modes.plain)]


def parts(group: Any) -> list[tuple[bytes | None, ...]]:
    """All that a group holds."""
    read = (group.subject, group.reply, group.headers, group.value, group.key, group.early)
    return [tuple(part(row) for part in read) for row in range(len(group))]


def group_in(mode: Any, messages: list[Any]) -> Any:
    subjects, replies, headers, values = zip(*messages, strict=True) if messages else ((), (), (), ())
    return mode("message_group").MessageGroup.of(subjects, values, headers=headers, replies=replies)


def scanned(mode: Any, data: bytes, start: int, end: int, skip_bytes: int) -> tuple[Any, ...]:
    frames = mode("scan").Frames(skip_bytes)
    result = hot_modes.outcome(mode("scan").scan, data, start, end, frames)
    groups = {sid: (parts(group), list(group.too_large)) for sid, group in frames.groups.items()}
    counted = (frames.skipped, frames.skipped_line, frames.unanswerable)
    return result, groups, frames.lines, frames.needed_bytes, frames.skip_bytes, counted


@st.composite
def whole_frames(draw: st.DrawFn) -> bytes:
    out = b""
    for subject, reply, headers, value in draw(MESSAGES):
        name = subject.replace(b" ", b"") or b"x"
        middle = b"" if reply is None else draw(st.sampled_from((b"", b"", b"", b"x ", b" "))) + reply + b" "
        sid = draw(st.integers(1, 3))
        if headers is None:
            out += b"MSG %b %d %b%d\r\n%b\r\n" % (name, sid, middle, len(value), value)
        else:
            total = len(headers) + len(value)
            out += b"HMSG %b %d %b%d %d\r\n%b%b\r\n" % (name, sid, middle, len(headers), total, headers, value)
    return out


@given(whole_frames() | FRAMES, st.integers(0, 400), st.binary(max_size=3), st.integers(-2, 60), st.integers(-3, 9))
@settings(max_examples=examples(400))
def test_scan(data: bytes, at: int, damage: bytes, cut: int, skip_bytes: int) -> None:
    at %= len(data) + 1
    damaged = data[:at] + damage + data[at + len(damage) :]
    skip_bytes = 0 if 0 <= skip_bytes < 2 else skip_bytes
    compiled, plain = in_both(lambda mode: scanned(mode, damaged, 0, len(damaged) - cut, skip_bytes))
    assert compiled == plain


@given(
    MESSAGES,
    st.booleans(),
    st.integers(0, 60),
    st.booleans(),
    st.sampled_from([0, 7, 8, 2**63 - 20]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
    st.none() | st.tuples(st.integers(1, 3), st.sampled_from([0, 7, 8]), st.sampled_from([0, 7])),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.tuples(st.integers(-1, 3), st.integers(0, 3), st.sampled_from([0, 7, 8]), st.booleans()),
    st.integers(0, 2),
)
@settings(max_examples=examples(400))
def test_verdicts(
    messages: list[Any],
    acks: bool,
    bytes_max: int,
    skips_reserved: bool,
    log_end: int,
    acks_env: bool,
    tracks_ids: bool,
    ids_max: int,
    known: tuple[int, int, int] | None,
    allows_ttls: bool,
    allows_rollups: bool,
    has_others: bool,
    limited: tuple[int, int, int, bool],
    batches: int,
) -> None:
    room_rows, subject_max, counted_from, refuses = limited
    subjects_max, known_from, log_start = known or (0, 0, 0)

    def sort(mode: Any) -> tuple[Any, ...]:
        ids = mode("message_ids").MessageIds(ids_max) if ids_max else None
        if ids is not None and has_others:
            know_others(mode, ids)
        group = group_in(mode, messages)
        counts = subject_max > 1
        lasts = mode("subject_table").SubjectTable(subjects_max, known_from, None, counts) if known else None
        found = mode("classification").classify(
            group, b"s", acks, bytes_max, skips_reserved, log_end, acks_env, ids, tracks_ids, lasts, log_start,
            allows_ttls, allows_rollups, False, marks(group) if has_others else None,
            {subject: len(subject) % 4 - 2 for subject, *_ in messages[::2]} if has_others else None, tracks_ids,
            room_rows, -1, subject_max, counted_from, refuses and subject_max > 0,
            {subject: len(subject) % 4 - 2 for subject, *_ in messages[::3]} if has_others else None,
            batches=batches,
        )  # fmt: skip
        refused = [
            [(one.row, one.verdict, one.number, one.partition, one.is_answered, one.enveloped) for one in ones]
            for ones in (found.refused, found.duplicates, found.elsewhere)
        ]
        waiting = mode("envelope_acks").waiting
        kept = [waiting(found.rows, 0, len(found.rows), is_early) for is_early in (False, True)]
        told = mode("acks").waiting_again(found.group, found.duplicates, log_end + 1, log_end + 4)
        told = (*told, mode("acks").pubacks_again(b"s", *told, b"}"))
        seen = (found.other_stream, found.reserved, found.controls, found.has_ids, found.needs_ids, found.needs_lasts)
        seen = (*seen, found.unknown, found.uncounted, found.has_ttls, found.has_rollups, found.rollup_row)
        told_again: list[Any] = mode("acks").enveloped_again(found.duplicates, log_end, log_end + 4)
        if ids is not None:
            told_again += [len(ids), ids.forgotten, *(ids.find(name, 0, len(name)) for name in (b"x", b"y", 65 * b"z"))]
        if lasts is not None:
            since = found.lasts_since_rollup()
            tables = [lasts] if since is None else [lasts, since]
            places = [each.find(subject, 0, len(subject)) for subject, *_ in messages for each in tables]
            places += [each.count(subject, 0, len(subject)) for subject, *_ in messages for each in tables if counts]
            lasts.take_back()
            places += [lasts.count(subject, 0, len(subject)) for subject, *_ in messages if counts]
            told_again += [lasts.known_from, len(lasts), places]
        return parts(found.rows), refused, seen, kept, told, told_again

    compiled, plain = in_both(sort)
    assert compiled == plain


def marks(group: Any) -> bytes:
    """Each third message has a value that does not fit."""
    return bytes(row % 3 == 2 for row in range(len(group)))


def know_others(mode: Any, ids: Any) -> None:
    """Another partition has some of the ids."""
    others = mode("message_ids").RemoteMessageIds(2)
    others.gather(3, [(9, 5, b"y"), (4, 2, b"x"), (2, 1, b"w")])
    ids.know(others)


@given(
    MESSAGES,
    st.booleans(),
    st.integers(0, 60),
    st.booleans(),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=examples(300))
def test_refusals(
    messages: list[Any],
    acks: bool,
    bytes_max: int,
    skips_reserved: bool,
    quotes_max: int,
    is_closed: bool,
    acks_env: bool,
    has_others: bool,
) -> None:
    def answer(mode: Any) -> tuple[Any, ...]:
        group = group_in(mode, messages)
        if is_closed:
            found = mode("classification").close(group, b"s", acks, skips_reserved, acks_env)
        else:
            ids = mode("message_ids").MessageIds(9) if has_others else None
            if ids is not None:
                know_others(mode, ids)
            found = mode("classification").classify(
                group, b"s", acks, bytes_max, skips_reserved, 7, acks_env, ids, has_others, None, 0,
                mistyped=marks(group) if has_others else None,
            )  # fmt: skip
        asked: list[tuple[int, bytes | None]] = []

        def body_of(verdict: int, quoted: bytes | None) -> bytes:
            asked.append((verdict, quoted))
            return b"%d \0 %b" % (verdict, quoted or b"")

        answers = mode("refusals").answers(found.group, found.refused, body_of, quotes_max, b"head")
        answers += mode("refusals").answers(found.group, found.elsewhere, body_of, quotes_max, b"head")
        return answers, asked, len(found.refused), found.other_stream, found.reserved, found.controls, len(found.rows)

    compiled, plain = in_both(answer)
    assert compiled == plain
    assert not is_closed or compiled[-1] == 0


@given(st.binary(max_size=40) | st.text(" a\x0b\x0c\x1c", max_size=20).map(str.encode), st.binary(max_size=9))
@settings(max_examples=examples(300))
def test_who_waits_is_counted_and_answered_alike(replies: bytes, body: bytes) -> None:
    compiled, plain = in_both(
        lambda mode: (mode("acks").waiting_count(replies), mode("refusals").answers_alike(replies, body))
    )
    assert compiled == plain


@given(BLOCKS.filter(lambda block: block is not None))
@settings(max_examples=examples(300))
def test_headers(block: bytes) -> None:
    def read(mode: Any) -> tuple[Any, ...]:
        fields = mode("headers").HeaderFields()
        fields.read(block, 0, len(block))
        names = ("ack", "encoded_key", "id", "key", "last_id", "rollup", "sequence", "stream", "tombstone", "ttl")
        begins = [(name, getattr(fields, name)) for name in names]
        return [(begin, getattr(fields, f"{name}_end")) for name, begin in begins if begin >= 0], fields.unsupported

    compiled, plain = in_both(read)
    assert compiled == plain
    assert compiled[1] == bool(hot_modes.running("headers").unsupported(block))


ROWS = st.lists(
    st.tuples(
        st.binary(max_size=9), st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=9), st.none() | st.sampled_from([b"", b"r", b"a\x0bb\x0c", b"_INBOX.x"]),
    ),
    min_size=1,
    max_size=20,
)  # fmt: skip


@given(
    ROWS,
    st.data(),
    st.integers(-1, 2**63),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 2**32),
    st.integers(-1, 2**16),
)
@settings(max_examples=examples(300))
def test_encode_and_acks(rows: list[Any], data: st.DataObject, base: int, time: int, epoch: int, flags: int) -> None:
    start, end = data.draw(st.tuples(st.integers(-1, len(rows) + 1), st.integers(-1, len(rows) + 1)))

    def write(mode: Any) -> tuple[Any, ...]:
        subjects, keys, values, headers, replies = zip(*rows, strict=True)
        group = mode("message_group").MessageGroup.of(subjects, values, keys=keys, headers=headers, replies=replies)
        encoder = mode("encode").Encoder(codec.LAYOUT)
        waiting = hot_modes.outcome(mode("acks").waiting, group, start, end, False)
        acks = hot_modes.outcome(mode("acks").pubacks, b"s", waiting[1], base, b"}") if waiting[0] == "value" else None
        try:
            message = encoder.encode(group, start, end, base, time, epoch, flags)
        except (IndexError, OverflowError):
            message = "refused"
        return message, waiting, acks if 0 <= base < 2**63 - 20 else None

    compiled, plain = in_both(write)
    assert compiled == plain


@given(ROWS, st.integers(0, 2**63 - 100), st.integers(-(2**63), 2**63 - 1))
def test_encode_is_what_arrow_makes_of_the_rows(rows: list[Any], base_offset: int, timestamp_us: int) -> None:
    _, keys, values, headers, _ = zip(*rows, strict=True)
    names = [b"s%d" % number for number in range(len(rows))]
    for mode in (hot_modes.running, hot_modes.plain):
        group = mode("message_group").MessageGroup.of(names, values, keys=keys, headers=headers)
        message, fields = (
            mode("encode").Encoder(codec.LAYOUT).encode(group, 0, len(rows), base_offset, timestamp_us, 1, 0)
        )
        header = astuple(codec.verify(message))
        assert header[: len(fields)] == fields
        assert not any(header[len(fields) :])  # it is of no run
        table = opened(segment_of(message))
        model = [
            pa.array(column, field.type)
            for column, field in zip((names, keys, values, headers), list(arrow_schema())[2:], strict=True)
        ]
        assert rows_of(table) == list(map(Row, names, keys, values, headers))
        assert [table.column(number + 2).null_count for number in range(4)] == [array.null_count for array in model]
        assert numbers_of(table, "offset") == list(range(base_offset, base_offset + len(rows)))
        assert numbers_of(table, "timestamp") == [timestamp_us] * len(rows)


@given(ROWS, st.integers(0, 80), st.integers(1, 9))
def test_batches_keep_to_their_bounds(rows: list[Any], bytes_max: int, rows_max: int) -> None:
    subjects, keys, values, headers, _ = zip(*rows, strict=True)

    def cut(mode: Any) -> list[int]:
        group = mode("message_group").MessageGroup.of(subjects, values, keys=keys, headers=headers)
        ends = [0]
        while ends[-1] < len(group):
            ends.append(group.batch_end(ends[-1], rows_max, bytes_max))
        return ends

    compiled, plain = in_both(cut)
    assert compiled == plain
    sizes = [sum(len(part or b"") for part in row[:4]) for row in rows]
    for start, end in itertools.pairwise(compiled):
        assert 0 < end - start <= rows_max
        assert end - start == 1 or sum(sizes[start:end]) <= bytes_max
        assert end == len(rows) or end - start == rows_max or sum(sizes[start : end + 1]) > bytes_max


def test_what_lies_outside_of_the_bytes_is_refused() -> None:
    group = hot_modes.running("message_group").MessageGroup(b"abc")
    nowhere = [-1] * 10
    for begin, end in ((0, 4), (2, 1), (-2, 1), (-1, 0), (4, 4), (2**31, 2**31)):
        for place in range(6):
            row = [0, 0, *nowhere]
            row[2 * place : 2 * place + 2] = begin, end
            try:
                group.add(*row)
            except IndexError:
                continue
            raise AssertionError((place, begin, end))
    assert len(group) == 0
    fields = hot_modes.running("headers").HeaderFields()
    for begin, end in ((0, 4), (2, 1), (-1, 2)):
        assert hot_modes.outcome(fields.read, b"abc", begin, end)[1] == "IndexError"
    assert limits.BATCH_ROWS_BYTES_MAX < 2**31
