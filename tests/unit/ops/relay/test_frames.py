"""What is sent to NATS for rows of the log, and where to."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from penstock.batch.schema import arrow_schema
from penstock.ops.relay.frames import SubjectMapping, frames_of, header_pattern

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
ENDS = "Penstock-Stream: orders\r\nPenstock-Partition: 3\r\nPenstock-Offset: %d\r\nPenstock-Timestamp: %s\r\n\r\n"


def batch_of(*rows: tuple[int, str, bytes | None, bytes | None, bytes | None]) -> pa.RecordBatch:
    full = [(offset, MOMENT, subject, key, value, headers) for offset, subject, key, value, headers in rows]
    schema = arrow_schema()
    columns = [pa.array(values, field.type) for values, field in zip(zip(*full, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def parsed(data: bytes) -> list[tuple[str, bytes, bytes]]:
    """Subject, header block and value of each frame, by the lengths that it says."""
    found = []
    while data:
        line, _, rest = data.partition(b"\r\n")
        word, subject, headers, size = line.split(b" ")
        assert word == b"HPUB"
        assert rest[int(size) : int(size) + 2] == b"\r\n"
        found.append((subject.decode(), rest[: int(headers)], rest[int(headers) : int(size)]))
        data = rest[int(size) + 2 :]
    return found


def test_a_row_becomes_a_frame_with_its_headers_and_where_it_is_from() -> None:
    batch = batch_of(
        (4, "orders.eu", None, b"plain", None),
        (7, "orders.us", None, b"with", b"NATS/1.0\r\nColour: red\r\nColour: blue\r\n\r\n"),
        (
            9,
            "orders.eu",
            None,
            b"",
            b"NATS/1.0\r\nPenstock-Offset: 1\r\nNats-Expected-Last-Sequence: 7\r\nA: b\r\nPenstock-Stream: far\r\n\r\n",
        ),
    )
    made = frames_of(batch, SubjectMapping("copies.{2}.{subject}"), "orders", 3)
    moment = "2026-01-02T03:04:05.000006Z"
    assert parsed(bytes(made.data)) == [
        ("copies.eu.orders.eu", ("NATS/1.0\r\n" + ENDS % (4, moment)).encode(), b"plain"),
        ("copies.us.orders.us", ("NATS/1.0\r\nColour: red\r\nColour: blue\r\n" + ENDS % (7, moment)).encode(), b"with"),
        ("copies.eu.orders.eu", ("NATS/1.0\r\nA: b\r\n" + ENDS % (9, moment)).encode(), b""),
    ]
    assert made.largest_offset == 7
    assert made.size_max == len(parsed(bytes(made.data))[1][1]) + 4


def test_keys_and_tombstones_that_came_over_the_socket_are_said_in_headers() -> None:
    batch = batch_of(
        (0, "a", b"k 1", None, None),
        (1, "a", b"\xff\x00", b"v", None),
        (2, "a", b"said", b"v", b"NATS/1.0\r\nPenstock-Key: said\r\n\r\n"),
        (3, "a", b" spaces ", None, b"NATS/1.0\r\nPenstock-Tombstone: 1\r\n\r\n"),
        (4, "a", None, b"v", None),
    )
    blocks = [block for _, block, _ in parsed(bytes(frames_of(batch, SubjectMapping("b"), "s", 0).data))]
    said = [block.decode().split("Penstock-Stream")[0].split("\r\n")[1:-1] for block in blocks]
    assert said == [
        ["Penstock-Key: k 1", "Penstock-Tombstone: 1"],
        ["Penstock-Key-Base64: /wA="],
        ["Penstock-Key: said"],
        ["Penstock-Tombstone: 1", "Penstock-Key-Base64: IHNwYWNlcyA="],
        [],
    ]


def test_headers_that_are_none_are_left_out_and_counted() -> None:
    batch = batch_of((0, "a", None, b"v", b"junk\r\n\r\nPUB x 0\r\n"), (1, "a", None, b"v", None))
    made = frames_of(batch, SubjectMapping("b"), "s", 0)
    assert made.headers_dropped == 1
    assert [block[:17] for _, block, _ in parsed(bytes(made.data))] == [b"NATS/1.0\r\nPenstoc"] * 2


def test_parts_of_a_batch_make_their_own_frames_only() -> None:
    batch = batch_of(*((number, f"a.{number}", None, b"%d" % number, None) for number in range(9)))
    made = [frames_of(batch.slice(begin, 3), SubjectMapping("b.{2}"), "s", 0) for begin in (0, 3, 6)]
    assert [value for part in made for _, _, value in parsed(bytes(part.data))] == [b"%d" % one for one in range(9)]


@pytest.mark.parametrize(
    ("template", "mistake"),
    [
        ("a.{0}", "is unknown"),
        ("a.{name}", "is unknown"),
        ("a.{1", "has an unmatched brace"),
        ("a..b", "empty token"),
        ("a.*", "wildcard"),
        ("a b", "white space"),
    ],
)
def test_what_is_no_target_is_said(template: str, mistake: str) -> None:
    with pytest.raises(ValueError, match=mistake):
        SubjectMapping(template)


def test_a_subject_without_that_token_is_said() -> None:
    with pytest.raises(ValueError, match="has no token 3"):
        SubjectMapping("c.{3}").of("a.b")


@pytest.mark.parametrize(
    ("template", "source", "pattern"),
    [
        ("fixed.one", "orders.>", ("fixed.one", True)),
        ("copies.{subject}", "orders.>", ("copies.orders.>", True)),
        ("{2}.{1}", "orders.*", ("*.orders", True)),
        ("c-{1}.x", "orders.*", ("c-orders.x", True)),
        ("c-{2}.x", "orders.*", ("*.x", False)),
        ("{subject}.x", "orders.>", ("orders.>", False)),
        ("{5}", "orders.>", ("*", True)),
    ],
)
def test_where_all_of_it_goes(template: str, source: str, pattern: tuple[str, bool]) -> None:
    assert SubjectMapping(template).pattern(source) == pattern


def test_what_would_come_back_is_refused_at_once_or_message_by_message() -> None:
    for template in ("orders.x", "orders.{subject}", "{subject}"):
        with pytest.raises(ValueError, match="endless loop"):
            SubjectMapping(template).refuse(("orders.>",))
    mapping = SubjectMapping("c-{1}.x")
    mapping.refuse(("*.x",))  # not all that it covers comes back …
    with pytest.raises(ValueError, match="endless loop"):
        mapping.of("a.x")  # … but this does
    fine = SubjectMapping("d-{1}.y.z")
    fine.refuse(("*.x",))
    assert fine.of("a.x") == "d-a.y.z"


def test_a_reply_subject_names_the_offset() -> None:
    batch = batch_of((4, "orders.eu", None, b"a", None), (7, "orders.us", None, b"", None))
    made = frames_of(batch, SubjectMapping("copies"), "orders", 3, reply="_INBOX.x.2.3")
    lines = [line for line in bytes(made.data).split(b"\r\n") if line.startswith(b"HPUB")]
    assert [line.split(b" ")[1:3] for line in lines] == [[b"copies", b"_INBOX.x.2.3-4"], [b"copies", b"_INBOX.x.2.3-7"]]


def test_headers_are_left_out_by_name() -> None:
    block = (
        b"NATS/1.0\r\nNats-TTL: 1h\r\nNats-TTLs: no\r\nA: Nats-TTL: 1h\r\nNats-Schedule: x\r\nNats-Scheduler: y\r\n\r\n"
    )
    batch = batch_of((4, "orders.eu", None, b"a", block))
    made = frames_of(
        batch, SubjectMapping("copies"), "orders", 3, without=header_pattern(["Nats-TTL", "Nats-Schedule*", "a.c"])
    )
    ((_, headers, _),) = parsed(bytes(made.data))
    assert headers.split(b"\r\n")[1:3] == [b"Nats-TTLs: no", b"A: Nats-TTL: 1h"]
    assert b"Nats-Sched" not in headers


@pytest.mark.parametrize("name", ["a b", "a:", "*", "a*b", "caf\u00e9", "a\r\n"])
def test_what_is_no_name_of_a_header(name: str) -> None:
    with pytest.raises(ValueError, match="is not a header name"):
        header_pattern([name])
